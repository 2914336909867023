//! Loads an uncompressed ELF file by the PVH boot protocol (Xen's `docs/misc/pvh.pandoc` and the public headers
//! `elfnote.h`, `arch-x86/hvm/start_info.h`).
//!
//! The file's note of type 18 names a 32-bit entry point. The guest starts there in protected mode with flat
//! segments, paging and interrupts off, and EBX pointing at `hvm_start_info`, which in turn points at the
//! memory map and the command line.

use std::ops::Range;

use elf::ElfBytes;
use elf::abi::{EM_386, EM_X86_64, PT_LOAD, PT_NOTE};
use elf::endian::LittleEndian;
use elf::note::Note;
use elf::segment::ProgramHeader;
use nvx_memory::{AccessError, GuestAddress, GuestMemory, RamLayout};

use crate::image::ImageFormat;
use crate::layout::{
    BOOT_DATA_BYTES, BOOT_DATA_START, COMMAND_LINE, COMMAND_LINE_MAX_BYTES, MEMORY_MAP, START_INFO,
};

const XEN_ELFNOTE_PHYS32_ENTRY: u64 = 18;
const START_INFO_MAGIC: u32 = 0x336e_c578;
/// Version 1 is the one that has a memory map.
const START_INFO_VERSION: u32 = 1;
const MEMORY_MAP_KIND_RAM: u32 = 1;
const MEMORY_MAP_ENTRY_BYTES: usize = 24;

const _: () = assert!(
    nvx_memory::MAX_RANGES * MEMORY_MAP_ENTRY_BYTES <= (COMMAND_LINE.0 - MEMORY_MAP.0) as usize,
    "the memory map must end before the command line"
);

/// How the first vCPU begins: 32-bit protected mode, flat segments, no paging, interrupts off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryState {
    /// Guest physical address of the first instruction, below 4 GiB.
    pub rip: u64,
    /// Address of `hvm_start_info`, which EBX must hold.
    pub start_info: GuestAddress,
}

/// Why a guest image cannot be loaded. Guest RAM is unchanged then, unless the error is
/// [`Write`](Self::Write).
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The image is no ELF file.
    #[error("the guest image is no ELF file: {looks_like}")]
    NotElf {
        /// What it may be instead.
        looks_like: ImageFormat,
    },
    /// The image begins like an ELF file and breaks its rules.
    #[error("the guest image is a damaged ELF file")]
    Malformed(#[source] elf::ParseError),
    /// The image is for another processor.
    #[error("the guest image is for ELF machine {machine}, not for x86 (62 or 3)")]
    Machine {
        /// `e_machine`.
        machine: u16,
    },
    /// No segment is to be loaded.
    #[error("the guest image has no segment to load")]
    NoSegments,
    /// A segment holds more bytes in the file than in memory.
    #[error("segment {index}: {file_bytes} bytes in the file, but only {memory_bytes} in memory")]
    FileExceedsMemory {
        /// Position in the program header table.
        index: usize,
        /// `p_filesz`.
        file_bytes: u64,
        /// `p_memsz`.
        memory_bytes: u64,
    },
    /// A segment's bytes do not lie in the file.
    #[error("segment {index}: its bytes do not lie in the file")]
    OutsideFile {
        /// Position in the program header table.
        index: usize,
        /// What the parser said.
        #[source]
        source: elf::ParseError,
    },
    /// A segment does not lie in one range of guest RAM.
    #[error("segment {index}: {memory_bytes} bytes at {address} are not all guest RAM")]
    OutsideRam {
        /// Position in the program header table.
        index: usize,
        /// `p_paddr`.
        address: GuestAddress,
        /// `p_memsz`.
        memory_bytes: u64,
    },
    /// A segment lies where the boot data goes.
    #[error(
        "segment {index} at {address} lies over the boot data ({BOOT_DATA_START}, {BOOT_DATA_BYTES} bytes)"
    )]
    OverBootData {
        /// Position in the program header table.
        index: usize,
        /// `p_paddr`.
        address: GuestAddress,
    },
    /// Two segments share memory.
    #[error("segments {first} and {second} overlap in memory")]
    Overlap {
        /// Position of the lower one in the program header table.
        first: usize,
        /// Position of the other one.
        second: usize,
    },
    /// No PVH entry note.
    #[error(
        "the guest image has no PVH entry (a Xen note of type 18); Linux has one with CONFIG_PVH"
    )]
    NoEntryNote,
    /// The PVH entry note has no 4 or 8 bytes.
    #[error("the PVH entry note has {bytes} bytes, not 4 or 8")]
    EntryNote {
        /// Length of the note's descriptor.
        bytes: usize,
    },
    /// The entry point is not in a loaded segment's bytes.
    #[error("the PVH entry {entry:#x} lies in no loaded segment below 4 GiB")]
    EntryOutside {
        /// The address in the note.
        entry: u64,
    },
    /// The command line is too long.
    #[error("the command line has {bytes} bytes; at most {COMMAND_LINE_MAX_BYTES} are possible")]
    CommandLineTooLong {
        /// Its length.
        bytes: usize,
    },
    /// The command line holds a NUL, which would end it.
    #[error("the command line holds a NUL byte at position {position}")]
    CommandLineNul {
        /// Where.
        position: usize,
    },
    /// Guest RAM refused a write.
    #[error("{what} cannot be written to guest RAM")]
    Write {
        /// What was to be written.
        what: &'static str,
        /// What guest memory said.
        #[source]
        source: AccessError,
    },
}

/// Loads `image` and the boot data into `memory`, which is new: bytes that no segment fills must read as zero.
///
/// # Errors
/// [`LoadError`] when the image or the command line cannot be used; everything is checked before the first write.
pub fn load_pvh(
    memory: &GuestMemory,
    image: &[u8],
    command_line: &str,
) -> Result<EntryState, LoadError> {
    check_command_line(command_line)?;
    let elf = parse(image)?;
    let segments = segments(&elf, memory.layout())?;
    let entry = entry(&elf, &segments)?;

    for segment in &segments {
        write(memory, "a segment", segment.start, segment.bytes)?;
    }
    write_boot_data(memory, command_line)?;
    Ok(EntryState {
        rip: u64::from(entry),
        start_info: START_INFO,
    })
}

fn check_command_line(command_line: &str) -> Result<(), LoadError> {
    if command_line.len() > COMMAND_LINE_MAX_BYTES {
        return Err(LoadError::CommandLineTooLong {
            bytes: command_line.len(),
        });
    }
    match command_line.bytes().position(|byte| byte == 0) {
        Some(position) => Err(LoadError::CommandLineNul { position }),
        None => Ok(()),
    }
}

fn parse(image: &[u8]) -> Result<ElfBytes<'_, LittleEndian>, LoadError> {
    if !image.starts_with(&elf::abi::ELFMAGIC) {
        return Err(LoadError::NotElf {
            looks_like: ImageFormat::of(image),
        });
    }
    let elf = ElfBytes::minimal_parse(image).map_err(LoadError::Malformed)?;
    match elf.ehdr.e_machine {
        EM_X86_64 | EM_386 => Ok(elf),
        machine => Err(LoadError::Machine { machine }),
    }
}

/// A checked segment: `bytes` go to `start`, zeros follow up to `end`.
struct Segment<'image> {
    index: usize,
    start: GuestAddress,
    end: u64,
    bytes: &'image [u8],
}

/// The segments to load, ascending in memory and disjoint.
fn segments<'image>(
    elf: &ElfBytes<'image, LittleEndian>,
    ram: &RamLayout,
) -> Result<Vec<Segment<'image>>, LoadError> {
    let table = elf.segments().ok_or(LoadError::NoSegments)?;
    let mut segments = table
        .iter()
        .enumerate()
        .filter(|(_, header)| header.p_type == PT_LOAD && header.p_memsz > 0)
        .map(|(index, header)| check_segment(elf, ram, index, &header))
        .collect::<Result<Vec<_>, _>>()?;
    if segments.is_empty() {
        return Err(LoadError::NoSegments);
    }
    segments.sort_by_key(|segment| segment.start);
    for pair in segments.windows(2) {
        if let [lower, upper] = pair
            && upper.start.0 < lower.end
        {
            return Err(LoadError::Overlap {
                first: lower.index,
                second: upper.index,
            });
        }
    }
    Ok(segments)
}

fn check_segment<'image>(
    elf: &ElfBytes<'image, LittleEndian>,
    ram: &RamLayout,
    index: usize,
    header: &ProgramHeader,
) -> Result<Segment<'image>, LoadError> {
    let start = GuestAddress(header.p_paddr);
    if header.p_filesz > header.p_memsz {
        return Err(LoadError::FileExceedsMemory {
            index,
            file_bytes: header.p_filesz,
            memory_bytes: header.p_memsz,
        });
    }
    let bytes = elf
        .segment_data(header)
        .map_err(|source| LoadError::OutsideFile { index, source })?;
    let end = start
        .0
        .checked_add(header.p_memsz)
        .filter(|end| is_ram(ram, start.0..*end))
        .ok_or(LoadError::OutsideRam {
            index,
            address: start,
            memory_bytes: header.p_memsz,
        })?;
    if start.0 < BOOT_DATA_START.0 + BOOT_DATA_BYTES && BOOT_DATA_START.0 < end {
        return Err(LoadError::OverBootData {
            index,
            address: start,
        });
    }
    Ok(Segment {
        index,
        start,
        end,
        bytes,
    })
}

fn is_ram(ram: &RamLayout, addresses: Range<u64>) -> bool {
    ram.ranges().iter().any(|range| {
        range.start.0 <= addresses.start && addresses.end - range.start.0 <= range.size_bytes
    })
}

/// The entry point that the PVH note names.
fn entry(elf: &ElfBytes<'_, LittleEndian>, segments: &[Segment<'_>]) -> Result<u32, LoadError> {
    let entry = entry_note(elf)?;
    let offset_in = |segment: &Segment<'_>| entry.checked_sub(segment.start.0);
    let inside = segments
        .iter()
        .any(|segment| offset_in(segment).is_some_and(|at| at < segment.bytes.len() as u64));
    match u32::try_from(entry) {
        Ok(entry) if inside => Ok(entry),
        _ => Err(LoadError::EntryOutside { entry }),
    }
}

fn entry_note(elf: &ElfBytes<'_, LittleEndian>) -> Result<u64, LoadError> {
    let table = elf.segments().ok_or(LoadError::NoEntryNote)?;
    for (index, header) in table.iter().enumerate() {
        if header.p_type != PT_NOTE {
            continue;
        }
        let notes = elf
            .segment_data_as_notes(&header)
            .map_err(|source| LoadError::OutsideFile { index, source })?;
        for note in notes {
            if let Note::Unknown(note) = note
                && note.n_type == XEN_ELFNOTE_PHYS32_ENTRY
                && note.name == b"Xen\0"
            {
                return note_address(note.desc);
            }
        }
    }
    Err(LoadError::NoEntryNote)
}

fn note_address(descriptor: &[u8]) -> Result<u64, LoadError> {
    match *descriptor {
        [a, b, c, d] => Ok(u64::from(u32::from_le_bytes([a, b, c, d]))),
        [a, b, c, d, e, f, g, h] => Ok(u64::from_le_bytes([a, b, c, d, e, f, g, h])),
        _ => Err(LoadError::EntryNote {
            bytes: descriptor.len(),
        }),
    }
}

fn write_boot_data(memory: &GuestMemory, command_line: &str) -> Result<(), LoadError> {
    let ranges = memory.layout().ranges();
    let mut map = Vec::with_capacity(ranges.len() * MEMORY_MAP_ENTRY_BYTES);
    for range in ranges {
        map.extend_from_slice(&range.start.0.to_le_bytes());
        map.extend_from_slice(&range.size_bytes.to_le_bytes());
        map.extend_from_slice(&MEMORY_MAP_KIND_RAM.to_le_bytes());
        map.extend_from_slice(&0u32.to_le_bytes());
    }

    let mut info = Vec::with_capacity(56);
    info.extend_from_slice(&START_INFO_MAGIC.to_le_bytes());
    info.extend_from_slice(&START_INFO_VERSION.to_le_bytes());
    info.extend_from_slice(&0u32.to_le_bytes()); // flags
    info.extend_from_slice(&0u32.to_le_bytes()); // modules
    info.extend_from_slice(&0u64.to_le_bytes()); // module list
    info.extend_from_slice(&COMMAND_LINE.0.to_le_bytes());
    info.extend_from_slice(&0u64.to_le_bytes()); // RSDP
    info.extend_from_slice(&MEMORY_MAP.0.to_le_bytes());
    info.extend_from_slice(&(ranges.len() as u32).to_le_bytes());
    info.extend_from_slice(&0u32.to_le_bytes());

    write(memory, "the start info", START_INFO, &info)?;
    write(memory, "the memory map", MEMORY_MAP, &map)?;
    // RAM is zero, so the NUL is there already.
    write(
        memory,
        "the command line",
        COMMAND_LINE,
        command_line.as_bytes(),
    )
}

fn write(
    memory: &GuestMemory,
    what: &'static str,
    address: GuestAddress,
    bytes: &[u8],
) -> Result<(), LoadError> {
    memory
        .write(address, bytes)
        .map_err(|source| LoadError::Write { what, source })
}

#[cfg(test)]
mod tests;
