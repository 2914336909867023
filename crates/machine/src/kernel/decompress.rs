//! Unpacking the payload of a kernel.
//!
//! A decoder is told how many bytes the whole is, and gives exactly these or an error: a payload cannot make
//! it hold more, whatever the payload says about itself.

use std::fmt;
use std::io::{self, Read};

use crate::at_once::do_at_once;
use crate::image::IMAGE_MAX_BYTES;

/// Most memory that an xz or Zstandard decoder may keep as history, in bytes. `zstd --ultra -22`, which Linux's
/// build uses, wants 128 MiB; xz's largest preset 64 MiB.
const HISTORY_MAX_BYTES: u64 = 128 << 20;
/// Most bytes that one block of an LZ4 legacy frame unpacks to (`lz4_Frame_format.md`, "Legacy frame").
const LZ4_LEGACY_BLOCK_BYTES: usize = 8 << 20;
const LZ4_LEGACY_MAGIC: [u8; 4] = [0x02, 0x21, 0x4c, 0x18];

/// How a payload is packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// gzip (RFC 1952).
    Gzip,
    /// xz.
    Xz,
    /// Zstandard (RFC 8878).
    Zstd,
    /// LZ4's legacy frame, as `lz4 -l` writes it.
    Lz4Legacy,
}

impl Compression {
    /// Tells by the first bytes; `None` for another one, or for none at all.
    #[must_use]
    pub fn of(payload: &[u8]) -> Option<Self> {
        let magics: [(&[u8], Self); 4] = [
            (&[0x1f, 0x8b, 8], Self::Gzip),
            (&[0xfd, b'7', b'z', b'X', b'Z', 0], Self::Xz),
            (&[0x28, 0xb5, 0x2f, 0xfd], Self::Zstd),
            (&LZ4_LEGACY_MAGIC, Self::Lz4Legacy),
        ];
        magics
            .iter()
            .find(|(magic, _)| payload.starts_with(magic))
            .map(|(_, compression)| *compression)
    }
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Gzip => "gzip",
            Self::Xz => "xz",
            Self::Zstd => "Zstandard",
            Self::Lz4Legacy => "LZ4",
        })
    }
}

/// Why a payload cannot be unpacked.
#[derive(Debug, thiserror::Error)]
pub enum DecompressError {
    /// It would be larger than any kernel.
    #[error("the payload would unpack to {bytes} bytes; at most {IMAGE_MAX_BYTES} are possible")]
    TooLarge {
        /// What it says of itself.
        bytes: u64,
    },
    /// The decoder refused it, or it ends early.
    #[error("the {compression} payload is damaged")]
    Damaged {
        /// How it is packed.
        compression: Compression,
        /// What the decoder said.
        #[source]
        source: io::Error,
    },
    /// It goes on after the bytes that were expected.
    #[error("the {compression} payload unpacks to more than the {bytes} bytes that it should")]
    Longer {
        /// How it is packed.
        compression: Compression,
        /// What was expected.
        bytes: u64,
    },
}

/// Unpacks `payload`, which must hold exactly `output_bytes` bytes, at most [`IMAGE_MAX_BYTES`].
///
/// # Errors
/// [`DecompressError`] when it holds something else or is damaged.
pub fn decompress(
    compression: Compression,
    payload: &[u8],
    output_bytes: u64,
) -> Result<Vec<u8>, DecompressError> {
    let too_large = DecompressError::TooLarge {
        bytes: output_bytes,
    };
    let Ok(length) = usize::try_from(output_bytes) else {
        return Err(too_large);
    };
    if output_bytes > IMAGE_MAX_BYTES {
        return Err(too_large);
    }
    // Pages that the decoder never reaches are never touched.
    let mut output = vec![0; length];
    let end = match compression {
        Compression::Gzip => read_whole(flate2::bufread::GzDecoder::new(payload), &mut output),
        Compression::Xz => {
            let limit_kib = u32::try_from(HISTORY_MAX_BYTES >> 10).unwrap_or(u32::MAX) + 1024;
            let reader = lzma_rust2::XzReader::new_mem_limit(payload, false, limit_kib);
            read_whole(reader, &mut output)
        }
        Compression::Zstd => read_zstd(payload, &mut output),
        Compression::Lz4Legacy => read_lz4_legacy(payload, &mut output),
    };
    match end {
        Ok(End::Reached) => Ok(output),
        Ok(End::Beyond) => Err(DecompressError::Longer {
            compression,
            bytes: output_bytes,
        }),
        Err(source) => Err(DecompressError::Damaged {
            compression,
            source,
        }),
    }
}

/// Whether the payload ends where the output does.
enum End {
    Reached,
    Beyond,
}

/// Fills `output`. Reading on from there lets a decoder check what stands at the end of its stream.
fn read_whole(mut reader: impl Read, output: &mut [u8]) -> io::Result<End> {
    reader.read_exact(output)?;
    match reader.read(&mut [0])? {
        0 => Ok(End::Reached),
        _ => Ok(End::Beyond),
    }
}

fn read_zstd(payload: &[u8], output: &mut [u8]) -> io::Result<End> {
    let reader =
        ruzstd::decoding::StreamingDecoder::new_with_max_window_size(payload, HISTORY_MAX_BYTES)
            .map_err(io::Error::other)?;
    read_whole(reader, output)
}

/// Each block: its packed length (4 bytes, little endian), then its bytes. A frame may follow a frame.
fn read_lz4_legacy(payload: &[u8], output: &mut [u8]) -> io::Result<End> {
    if let Some(blocks) = full_blocks(payload, output.len())
        && unpack_at_once(&blocks, output)
    {
        return Ok(End::Reached);
    }
    read_lz4_blocks(payload, output)
}

/// The blocks of a payload of one frame, all full but the last, as the program `lz4` makes it; `None` of any other.
fn full_blocks(payload: &[u8], output_bytes: usize) -> Option<Vec<&[u8]>> {
    let mut rest = payload.strip_prefix(&LZ4_LEGACY_MAGIC)?;
    let mut blocks = Vec::new();
    while let Some((word, after)) = rest.split_first_chunk::<4>() {
        let length = usize::try_from(u32::from_le_bytes(*word)).ok()?;
        let (block, after) = after.split_at_checked(length)?;
        blocks.push(block);
        rest = after;
    }
    (blocks.len() == output_bytes.div_ceil(LZ4_LEGACY_BLOCK_BYTES)).then_some(blocks)
}

/// Unpacks blocks that need nothing of each other; false if one is damaged or not full.
fn unpack_at_once(blocks: &[&[u8]], output: &mut [u8]) -> bool {
    let rooms = output.chunks_mut(LZ4_LEGACY_BLOCK_BYTES);
    do_at_once(blocks.iter().zip(rooms), |(block, room)| {
        lz4_flex::block::decompress_into(block, room).ok() == Some(room.len())
    })
}

/// One block after the other.
fn read_lz4_blocks(payload: &[u8], output: &mut [u8]) -> io::Result<End> {
    let mut rest = payload.strip_prefix(&LZ4_LEGACY_MAGIC).unwrap_or(payload);
    let mut filled = 0;
    while let Some((word, after)) = rest.split_first_chunk::<4>() {
        rest = after;
        if *word == LZ4_LEGACY_MAGIC {
            continue;
        }
        let length = usize::try_from(u32::from_le_bytes(*word)).unwrap_or(usize::MAX);
        let (block, after) = rest
            .split_at_checked(length)
            .ok_or(io::ErrorKind::UnexpectedEof)?;
        let room = output.get_mut(filled..).unwrap_or_default();
        if room.is_empty() {
            return Ok(End::Beyond);
        }
        let room_bytes = room.len().min(LZ4_LEGACY_BLOCK_BYTES);
        let room = room.get_mut(..room_bytes).unwrap_or_default();
        filled += lz4_flex::block::decompress_into(block, room).map_err(io::Error::other)?;
        rest = after;
    }
    if rest.is_empty() && filled == output.len() {
        Ok(End::Reached)
    } else {
        Err(io::ErrorKind::UnexpectedEof.into())
    }
}

#[cfg(test)]
mod tests;
