//! A Linux kernel as it lies in a file: what it is, what of it goes where, and how it is entered.
//!
//! Three kinds of file hold a kernel:
//!
//! | file | recognised by | entered |
//! | --- | --- | --- |
//! | ELF (`vmlinux`) | its magic | at its PVH note, in 32-bit protected mode |
//! | bzImage (`vmlinuz`) | `HdrS` in its boot header | its payload, unpacked here, at the PVH note of the ELF in it; else the file itself by the 64-bit boot protocol, and it unpacks itself in the guest |
//! | `libkrunfw.so` | a shared object with the symbols `KERNEL_BUNDLE` and `krunfw_get_kernel` | in 64-bit mode where `krunfw_get_kernel` says |
//!
//! Unpacking here costs a small part of what it costs in a guest that has just started, whose page tables and
//! caches are cold, and very little of what it costs where the guest's code is emulated.
//!
//! A kernel is input from outside. [`Kernel::parse`] is a function of bytes alone: it checks every number
//! before it is used, and bounds every size before something is decoded.

mod bz_image;
mod constant_stores;
mod decompress;
mod krunfw;
mod pvh_elf;

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

use nvx_memory::{GuestAddress, GuestMemory, RamLayout};

use crate::at_once::do_at_once;
use crate::image::{ImageFormat, ImageReadError, read_image};
use crate::layout::{BOOT_DATA_BYTES, BOOT_DATA_START};
use crate::pvh::LoadError;

pub use bz_image::{BzImageError, SetupHeader};
pub use decompress::{Compression, DecompressError, decompress};
pub use krunfw::KrunfwError;

/// Why a file is no kernel that can be started.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    /// The image is none of the known kinds.
    #[error("the guest image is no ELF file, bzImage or libkrunfw: {looks_like}")]
    NotAKernel {
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
    /// The image is a bzImage that cannot be used.
    #[error("the guest image is a bzImage that cannot be started")]
    BzImage(#[source] BzImageError),
    /// The image is a libkrunfw that cannot be used.
    #[error("the guest image is a libkrunfw whose kernel cannot be found")]
    Krunfw(#[source] KrunfwError),
}

/// Why a kernel cannot be read from a file.
#[derive(Debug, thiserror::Error)]
pub enum KernelReadError {
    /// The file cannot be read; the message names it.
    #[error(transparent)]
    Read(#[from] ImageReadError),
    /// The file holds no kernel that can be started.
    #[error("{}: is no kernel that can be started", path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        source: KernelError,
    },
}

/// How the first vCPU enters a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KernelEntry {
    /// PVH: 32-bit protected mode, paging off, EBX points at `hvm_start_info`.
    Pvh32 {
        /// Guest physical address of the first instruction.
        entry: u32,
    },
    /// Linux's 64-bit boot protocol (`Documentation/arch/x86/boot.rst`, "64-bit Boot Protocol"): long mode,
    /// low memory mapped at its own addresses, RSI points at `boot_params`.
    Boot64 {
        /// Guest physical address of the first instruction.
        entry: u64,
        /// What `boot_params` begins its setup header with; `None` where the file has none and the
        /// kernel takes zeros.
        setup_header: Option<SetupHeader>,
    },
}

/// What a kernel was recognised as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelFormat {
    /// An ELF file with a PVH entry.
    Elf,
    /// A bzImage whose payload was unpacked to an ELF file with a PVH entry.
    BzImageUnpacked(Compression),
    /// A bzImage that unpacks itself in the guest.
    BzImage,
    /// The flat image inside a libkrunfw shared object.
    Krunfw,
}

impl fmt::Display for KernelFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Elf => f.write_str("ELF file with a PVH entry"),
            Self::BzImageUnpacked(compression) => {
                write!(f, "bzImage, {compression} payload unpacked")
            }
            Self::BzImage => f.write_str("bzImage that unpacks itself"),
            Self::Krunfw => f.write_str("kernel inside a libkrunfw"),
        }
    }
}

/// A piece of a kernel: `bytes` go to `start`, zeros follow up to `memory_bytes`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelSegment<'kernel> {
    /// Where it begins in guest memory.
    pub start: GuestAddress,
    /// What the file holds of it.
    pub bytes: &'kernel [u8],
    /// Its size in guest memory in bytes, at least that of `bytes`.
    pub memory_bytes: u64,
}

/// A kernel of more bytes is copied into guest memory in such parts, some at the same time.
const PART_BYTES: usize = 4 << 20;

/// A segment as a range of the kernel's bytes.
#[derive(Clone, Debug)]
struct Segment {
    /// Position in the program header table, for messages.
    index: usize,
    start: GuestAddress,
    memory_bytes: u64,
    /// Lies within the kernel's bytes.
    file: Range<usize>,
}

impl Segment {
    fn end(&self) -> u64 {
        self.start.0.saturating_add(self.memory_bytes)
    }
}

/// A kernel whose every number has been checked, except that guest RAM must have room for it.
#[derive(Debug)]
pub struct Kernel<'image> {
    /// The file, or what it was unpacked to.
    bytes: Cow<'image, [u8]>,
    /// Ascending in memory and disjoint; at least one.
    segments: Vec<Segment>,
    format: KernelFormat,
    entry: KernelEntry,
}

/// Reads the kernel at `path`, which may be a symbolic link to a regular file.
///
/// # Errors
/// [`KernelReadError`] when it cannot be read or holds no kernel that can be started.
pub fn read_kernel(path: &Path) -> Result<Kernel<'static>, KernelReadError> {
    let image = read_image(path)?;
    Kernel::parse(image).map_err(|source| KernelReadError::Parse {
        path: path.to_owned(),
        source,
    })
}

impl<'image> Kernel<'image> {
    /// Recognises the kernel in `image`, the whole content of a file.
    ///
    /// # Errors
    /// [`KernelError`] when it is none, or a damaged one.
    pub fn parse(image: impl Into<Cow<'image, [u8]>>) -> Result<Self, KernelError> {
        let image = image.into();
        if image.starts_with(&elf::abi::ELFMAGIC) {
            if let Some(bundle) = krunfw::find(&image)? {
                return Ok(bundle.into_kernel(image));
            }
            return pvh_elf::parse(image, KernelFormat::Elf);
        }
        match ImageFormat::of(&image) {
            ImageFormat::BzImage => bz_image::parse(image),
            looks_like => Err(KernelError::NotAKernel { looks_like }),
        }
    }

    /// Recognises an ELF file with a PVH entry and nothing else, the quickest way for an image that is known
    /// to be one.
    ///
    /// # Errors
    /// [`KernelError`] when it is something else, or damaged.
    pub fn parse_elf(image: impl Into<Cow<'image, [u8]>>) -> Result<Self, KernelError> {
        pvh_elf::parse(image.into(), KernelFormat::Elf)
    }

    /// The file, or the ELF file that it was unpacked to.
    #[must_use]
    pub fn image(&self) -> &[u8] {
        &self.bytes
    }

    /// What the file was recognised as.
    #[must_use]
    pub fn format(&self) -> KernelFormat {
        self.format
    }

    /// How the first vCPU enters it.
    #[must_use]
    pub fn entry(&self) -> &KernelEntry {
        &self.entry
    }

    /// What goes where, ascending in memory and disjoint.
    pub fn segments(&self) -> impl Iterator<Item = KernelSegment<'_>> {
        self.segments.iter().map(|segment| KernelSegment {
            start: segment.start,
            bytes: self.bytes.get(segment.file.clone()).unwrap_or_default(),
            memory_bytes: segment.memory_bytes,
        })
    }

    /// The lowest address that the kernel occupies.
    #[must_use]
    pub fn lowest_address(&self) -> GuestAddress {
        self.segments
            .first()
            .map_or(GuestAddress(0), |segment| segment.start)
    }

    /// The address after the last one that the kernel occupies before it has read its memory map; an
    /// initramfs must lie above.
    #[must_use]
    pub fn end_address(&self) -> GuestAddress {
        GuestAddress(self.segments.last().map_or(0, Segment::end))
    }

    /// Writes the segments into `memory`, which is new: bytes that no segment fills must read as zero.
    ///
    /// # Errors
    /// [`LoadError`] when the segments do not fit into RAM, which is checked before the first write, or RAM
    /// refuses a write.
    pub fn load(&self, memory: &GuestMemory) -> Result<(), LoadError> {
        self.check_room(memory.layout())?;
        if self.bytes.len() > PART_BYTES && self.load_at_once(memory) {
            return Ok(());
        }
        for segment in self.segments() {
            memory
                .write(segment.start, segment.bytes)
                .map_err(|source| LoadError::Write {
                    what: "a segment",
                    source,
                })?;
        }
        Ok(())
    }

    /// Copies parts of the segments at the same time; false if one cannot be written.
    fn load_at_once(&self, memory: &GuestMemory) -> bool {
        let mut parts = Vec::new();
        for segment in self.segments() {
            let mut start = segment.start;
            for bytes in segment.bytes.chunks(PART_BYTES) {
                parts.push((start, bytes));
                start.0 += bytes.len() as u64;
            }
        }
        do_at_once(parts.into_iter(), |(start, bytes)| {
            memory.write(start, bytes).is_ok()
        })
    }

    /// Whether `ram` has room for every segment.
    ///
    /// # Errors
    /// [`LoadError::OutsideRam`] or [`LoadError::OverBootData`] for the first segment without room.
    pub fn check_room(&self, ram: &RamLayout) -> Result<(), LoadError> {
        for segment in &self.segments {
            let Segment {
                index,
                start: address,
                memory_bytes,
                ..
            } = *segment;
            let end = address.0.checked_add(memory_bytes);
            let Some(end) = end.filter(|end| is_ram(ram, address.0..*end)) else {
                return Err(LoadError::OutsideRam {
                    index,
                    address,
                    memory_bytes,
                });
            };
            if address.0 < BOOT_DATA_START.0 + BOOT_DATA_BYTES && BOOT_DATA_START.0 < end {
                return Err(LoadError::OverBootData { index, address });
            }
        }
        Ok(())
    }
}

fn is_ram(ram: &RamLayout, addresses: Range<u64>) -> bool {
    ram.ranges().iter().any(|range| {
        range.start.0 <= addresses.start && addresses.end - range.start.0 <= range.size_bytes
    })
}

#[cfg(test)]
mod tests;
