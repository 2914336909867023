//! The segments and the PVH entry of an ELF file.

use std::borrow::Cow;

use elf::ElfBytes;
use elf::abi::{EM_386, EM_X86_64, PT_LOAD, PT_NOTE};
use elf::endian::LittleEndian;
use elf::note::Note;
use elf::segment::ProgramHeader;
use nvx_memory::GuestAddress;

use super::{Kernel, KernelEntry, KernelError, KernelFormat, Segment};
use crate::image::ImageFormat;

/// Xen's public header `elfnote.h`.
const XEN_ELFNOTE_PHYS32_ENTRY: u64 = 18;

pub(super) fn parse(image: Cow<'_, [u8]>, format: KernelFormat) -> Result<Kernel<'_>, KernelError> {
    let elf = open(&image)?;
    let segments = segments(&elf)?;
    let entry = entry(&elf, &segments)?;
    Ok(Kernel {
        segments,
        format,
        entry: KernelEntry::Pvh32 { entry },
        bytes: image,
    })
}

/// The ELF file for an x86 processor in `image`.
pub(super) fn open(image: &[u8]) -> Result<ElfBytes<'_, LittleEndian>, KernelError> {
    if !image.starts_with(&elf::abi::ELFMAGIC) {
        return Err(KernelError::NotAKernel {
            looks_like: ImageFormat::of(image),
        });
    }
    let elf = ElfBytes::minimal_parse(image).map_err(KernelError::Malformed)?;
    match elf.ehdr.e_machine {
        EM_X86_64 | EM_386 => Ok(elf),
        machine => Err(KernelError::Machine { machine }),
    }
}

/// The segments to load, ascending in memory and disjoint.
fn segments(elf: &ElfBytes<'_, LittleEndian>) -> Result<Vec<Segment>, KernelError> {
    let table = elf.segments().ok_or(KernelError::NoSegments)?;
    let mut segments = table
        .iter()
        .enumerate()
        .filter(|(_, header)| header.p_type == PT_LOAD && header.p_memsz > 0)
        .map(|(index, header)| check_segment(elf, index, &header))
        .collect::<Result<Vec<_>, _>>()?;
    if segments.is_empty() {
        return Err(KernelError::NoSegments);
    }
    segments.sort_by_key(|segment| segment.start);
    for pair in segments.windows(2) {
        if let [lower, upper] = pair
            && upper.start.0 < lower.end()
        {
            return Err(KernelError::Overlap {
                first: lower.index,
                second: upper.index,
            });
        }
    }
    Ok(segments)
}

fn check_segment(
    elf: &ElfBytes<'_, LittleEndian>,
    index: usize,
    header: &ProgramHeader,
) -> Result<Segment, KernelError> {
    if header.p_filesz > header.p_memsz {
        return Err(KernelError::FileExceedsMemory {
            index,
            file_bytes: header.p_filesz,
            memory_bytes: header.p_memsz,
        });
    }
    let outside = |source| KernelError::OutsideFile { index, source };
    let bytes = elf.segment_data(header).map_err(outside)?;
    let offset =
        usize::try_from(header.p_offset).map_err(|_| outside(elf::ParseError::IntegerOverflow))?;
    Ok(Segment {
        index,
        start: GuestAddress(header.p_paddr),
        memory_bytes: header.p_memsz,
        file: offset..offset + bytes.len(),
    })
}

/// The entry point that the PVH note names.
fn entry(elf: &ElfBytes<'_, LittleEndian>, segments: &[Segment]) -> Result<u32, KernelError> {
    let entry = entry_note(elf)?;
    let offset_in = |segment: &Segment| entry.checked_sub(segment.start.0);
    let inside = segments
        .iter()
        .any(|segment| offset_in(segment).is_some_and(|at| at < segment.file.len() as u64));
    match u32::try_from(entry) {
        Ok(entry) if inside => Ok(entry),
        _ => Err(KernelError::EntryOutside { entry }),
    }
}

fn entry_note(elf: &ElfBytes<'_, LittleEndian>) -> Result<u64, KernelError> {
    let table = elf.segments().ok_or(KernelError::NoEntryNote)?;
    for (index, header) in table.iter().enumerate() {
        if header.p_type != PT_NOTE {
            continue;
        }
        let notes = elf
            .segment_data_as_notes(&header)
            .map_err(|source| KernelError::OutsideFile { index, source })?;
        for note in notes {
            if let Note::Unknown(note) = note
                && note.n_type == XEN_ELFNOTE_PHYS32_ENTRY
                && note.name == b"Xen\0"
            {
                return note_address(note.desc);
            }
        }
    }
    Err(KernelError::NoEntryNote)
}

fn note_address(descriptor: &[u8]) -> Result<u64, KernelError> {
    match *descriptor {
        [a, b, c, d] => Ok(u64::from(u32::from_le_bytes([a, b, c, d]))),
        [a, b, c, d, e, f, g, h] => Ok(u64::from_le_bytes([a, b, c, d, e, f, g, h])),
        _ => Err(KernelError::EntryNote {
            bytes: descriptor.len(),
        }),
    }
}
