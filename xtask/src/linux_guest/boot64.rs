//! A kernel that can only be entered by the 64-bit boot protocol.
//!
//! Debian's kernels all have a PVH entry, which NVX prefers. So one of them is changed where its packed ELF file says
//! where its notes are: the PVH note among them is no longer found. The kernel's own unpacking does not look at
//! notes, so the rest boots as it is.

use std::ops::Range;

use anyhow::{Context, Result, bail};

/// Offsets in a bzImage, from Linux's `Documentation/arch/x86/boot.rst`.
const SETUP_SECTS: usize = 0x1f1;
const PAYLOAD_OFFSET: usize = 0x248;
const PAYLOAD_LENGTH: usize = 0x24c;
const SECTOR_BYTES: usize = 512;
/// First bytes of the LZ4 legacy frame that Linux's build makes; blocks of a length and so many bytes follow.
const LZ4_LEGACY: [u8; 4] = [0x02, 0x21, 0x4c, 0x18];
/// The unpacked size stands behind the payload's frame.
const SIZE_BYTES: usize = 4;

/// Offsets in an ELF file of 64 bits, and in one of its program headers.
const E_PHOFF: usize = 0x20;
const E_PHNUM: usize = 0x38;
const PROGRAM_HEADER_BYTES: usize = 56;
const P_OFFSET: usize = 8;
const P_FILESZ: usize = 32;
const PT_NOTE: u32 = 4;

/// `bz_image`, whose payload must be packed by LZ4, without its PVH entry.
pub fn without_pvh(bz_image: &[u8]) -> Result<Vec<u8>> {
    let payload = payload(bz_image)?;
    let mut unpacked = Vec::new();
    unpack(bz_image, payload.clone(), &mut unpacked, &mut |_, _| ())?;
    let header = note_header(&unpacked)?;
    let length = number(&unpacked, header + P_FILESZ)?;
    // Any byte of the offset will do, but not the last ones, which lead out of the file.
    for at in (header + P_OFFSET..header + P_OFFSET + 4).rev() {
        let mut place = None;
        let mut watch = |output: usize, input: Range<usize>| {
            if (output..output + input.len()).contains(&at) {
                place = Some(input.start + at - output);
            }
        };
        unpack(bz_image, payload.clone(), &mut Vec::new(), &mut watch)?;
        let Some(place) = place else { continue };
        let leads_nowhere = |value: &u8| {
            let mut offset = number(&unpacked, header + P_OFFSET)
                .unwrap_or_default()
                .to_le_bytes();
            offset[at - header - P_OFFSET] = *value;
            let offset = u64::from_le_bytes(offset) as usize;
            let notes = unpacked.get(offset..offset.saturating_add(length as usize));
            notes.is_some_and(|notes| notes.iter().all(|byte| *byte == 0))
        };
        let Some(value) = (0..=u8::MAX).find(leads_nowhere) else {
            continue;
        };
        let mut image = bz_image.to_vec();
        image[place] = value;
        let mut changed = Vec::new();
        unpack(&image, payload.clone(), &mut changed, &mut |_, _| ())?;
        // The packed byte may stand for others too.
        let others = |bytes: &[u8]| [&bytes[..at], &bytes[at + 1..]].concat();
        if changed[at] == value && others(&changed) == others(&unpacked) {
            return Ok(image);
        }
    }
    bail!("no byte of its program header stands by itself in the packed kernel")
}

fn payload(image: &[u8]) -> Result<Range<usize>> {
    let sectors = *image.get(SETUP_SECTS).context("no setup header")?;
    let size = |at| -> Result<usize> {
        let bytes = image.get(at..at + 4).context("no setup header")?;
        Ok(u32::from_le_bytes(bytes.try_into()?) as usize)
    };
    let start = (usize::from(sectors) + 1) * SECTOR_BYTES + size(PAYLOAD_OFFSET)?;
    let end = start + size(PAYLOAD_LENGTH)?.saturating_sub(SIZE_BYTES);
    if image
        .get(start..end)
        .is_none_or(|payload| !payload.starts_with(&LZ4_LEGACY))
    {
        bail!("its payload is not packed by LZ4");
    }
    Ok(start + LZ4_LEGACY.len()..end)
}

/// Unpacks the blocks at `payload`. `literal` is told of each run of bytes that stands in `image` as it is: where it
/// goes in the output, and where it comes from.
fn unpack(
    image: &[u8],
    payload: Range<usize>,
    output: &mut Vec<u8>,
    literal: &mut dyn FnMut(usize, Range<usize>),
) -> Result<()> {
    let truncated = "the payload ends within a block";
    let mut at = payload.start;
    while at < payload.end {
        let length = image.get(at..at + 4).context(truncated)?;
        let end = at + 4 + u32::from_le_bytes(length.try_into()?) as usize;
        let mut input = Input {
            image,
            at: at + 4,
            end,
        };
        while input.at < end {
            let token = input.byte().context(truncated)?;
            let count = input.length(token >> 4).context(truncated)?;
            let run = input.at..input.at + count;
            output.extend(image.get(run.clone()).context(truncated)?);
            literal(output.len() - count, run);
            input.at += count;
            if input.at >= end {
                break;
            }
            let distance = [
                input.byte().context(truncated)?,
                input.byte().context(truncated)?,
            ];
            let from = output
                .len()
                .checked_sub(u16::from_le_bytes(distance).into())
                .context("a match before the beginning")?;
            // A match has at least four bytes, and may overlap what it makes.
            let count = input.length(token & 0xf).context(truncated)? + 4;
            for index in from..from + count {
                output.push(output[index]);
            }
        }
        at = end;
    }
    Ok(())
}

struct Input<'a> {
    image: &'a [u8],
    at: usize,
    end: usize,
}

impl Input<'_> {
    fn byte(&mut self) -> Option<u8> {
        let byte = (self.at < self.end).then(|| self.image.get(self.at))??;
        self.at += 1;
        Some(*byte)
    }

    /// A length whose first four bits are `start`; further bytes follow as long as they are full.
    fn length(&mut self, start: u8) -> Option<usize> {
        let mut length = usize::from(start);
        let mut goes_on = start == 0xf;
        while goes_on {
            let byte = self.byte()?;
            length += usize::from(byte);
            goes_on = byte == u8::MAX;
        }
        Some(length)
    }
}

/// Where the first program header of notes stands in `elf`.
fn note_header(elf: &[u8]) -> Result<usize> {
    let table = number(elf, E_PHOFF)? as usize;
    let count = elf.get(E_PHNUM).context("no ELF header")?;
    (0..usize::from(*count))
        .map(|index| table + index * PROGRAM_HEADER_BYTES)
        .find(|header| elf.get(*header..*header + 4) == Some(&PT_NOTE.to_le_bytes()))
        .context("no notes in the kernel")
}

fn number(bytes: &[u8], at: usize) -> Result<u64> {
    let bytes = bytes
        .get(at..at + 8)
        .context("the kernel ends within a header")?;
    Ok(u64::from_le_bytes(bytes.try_into()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A block with this sequence: literals, then a match of `distance` and `length`, then literals.
    fn packed(first: &[u8], (distance, length): (u16, u8), last: &[u8]) -> Vec<u8> {
        let mut block = vec![(first.len() as u8) << 4 | (length - 4)];
        block.extend(first);
        block.extend(distance.to_le_bytes());
        block.push((last.len() as u8) << 4);
        block.extend(last);
        let mut all = (block.len() as u32).to_le_bytes().to_vec();
        all.extend(block);
        all
    }

    #[test]
    fn blocks_are_unpacked_and_their_literals_told() {
        let image = packed(b"abc", (2, 7), b"xyz");
        let mut output = Vec::new();
        let mut literals = Vec::new();
        let all = 0..image.len();
        unpack(&image, all, &mut output, &mut |at, from| {
            literals.push((at, from))
        })
        .unwrap();
        assert_eq!(output, b"abcbcbcbcbxyz");
        assert_eq!(literals, [(0, 5..8), (10, 11..14)]);
        let cut = 0..image.len() - 1;
        let mut ignore = |_, _| ();
        assert!(unpack(&image[..cut.end], cut, &mut Vec::new(), &mut ignore).is_err());
        let before = packed(b"abc", (4, 4), b"xyz");
        let all = 0..before.len();
        assert!(unpack(&before, all, &mut Vec::new(), &mut ignore).is_err());
    }

    #[test]
    fn long_runs_have_longer_lengths() {
        let mut input = Input {
            image: &[255, 255, 3],
            at: 0,
            end: 3,
        };
        assert_eq!(input.length(15), Some(15 + 255 + 255 + 3));
        assert_eq!(input.length(14), Some(14));
        assert_eq!(input.length(15), None);
    }

    #[test]
    fn what_is_no_such_kernel_is_refused() {
        assert!(without_pvh(&[]).is_err());
        assert!(without_pvh(&[0; 4096]).is_err());
    }
}
