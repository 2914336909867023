//! A bzImage: boot sector and setup code, then the protected-mode kernel, which is a small program with the
//! packed kernel in it (Linux's `Documentation/arch/x86/boot.rst`).

use std::borrow::Cow;

use nvx_memory::GuestAddress;

use super::decompress::{Compression, DecompressError, decompress};
use super::{Kernel, KernelEntry, KernelError, KernelFormat, Segment, pvh_elf};

/// Offsets in the file, from "The Real-Mode Kernel Header".
const SETUP_SECTS: usize = 0x1f1;
const HEADER_JUMP_LENGTH: usize = 0x201;
const VERSION: usize = 0x206;
const LOADFLAGS: usize = 0x211;
const XLOADFLAGS: usize = 0x236;
const PAYLOAD_OFFSET: usize = 0x248;
const PAYLOAD_LENGTH: usize = 0x24c;
const PREF_ADDRESS: usize = 0x258;
const INIT_SIZE: usize = 0x260;

/// The header ends this far after 0x202 plus the byte at 0x201, the displacement of the jump over it.
const HEADER_JUMP_ORIGIN: usize = 0x202;
/// `boot_params` has room for the setup header up to here (`struct boot_params`, `edd_mbr_sig_buffer`).
const HEADER_END_MAX: usize = 0x290;

/// The first version that names where the payload is.
const VERSION_PAYLOAD: u16 = 0x208;
/// The first version with `xloadflags`.
const VERSION_XLOADFLAGS: u16 = 0x20c;
/// `loadflags`: the protected-mode kernel goes to 1 MiB or above.
const LOADED_HIGH: u8 = 1;
/// `xloadflags`: there is a 64-bit entry point at 0x200.
const XLF_KERNEL_64: u16 = 1;
/// Offset of the 64-bit entry point in the protected-mode kernel.
const ENTRY_64_OFFSET: u64 = 0x200;
const SECTOR_BYTES: usize = 512;
/// `setup_sects` of 0 means this many, for old kernels.
const SETUP_SECTS_DEFAULT: usize = 4;
/// The payload is followed, and a gzip stream ends, with the size of what it unpacks to.
const UNPACKED_SIZE_BYTES: usize = 4;

/// Why a bzImage cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum BzImageError {
    /// The file ends too early.
    #[error("the file ends before {what}")]
    Truncated {
        /// What is missing.
        what: &'static str,
    },
    /// The boot protocol is older than anything that can be started.
    #[error("boot protocol {}.{:02} is too old; {}.{:02} is needed", version >> 8, version & 0xff, needed >> 8, needed & 0xff)]
    Version {
        /// What the header says, major version in the upper byte.
        version: u16,
        /// The oldest one that would do.
        needed: u16,
    },
    /// There is neither a PVH entry nor a 64-bit one.
    #[error(
        "there is neither a PVH entry in its payload nor a 64-bit entry point: a 32-bit kernel?"
    )]
    NoEntry,
    /// It says that it is larger in memory than any kernel, or than itself.
    #[error(
        "header field init_size says {init_size} bytes of memory, pref_address {pref_address:#x}: no place for it"
    )]
    Place {
        /// Where it wants to be.
        pref_address: u64,
        /// How much memory it wants.
        init_size: u32,
    },
    /// The payload cannot be unpacked.
    #[error("its payload cannot be unpacked")]
    Payload(#[source] DecompressError),
    /// The payload is a damaged kernel.
    #[error("what its payload unpacks to cannot be started")]
    Unpacked(#[source] Box<KernelError>),
}

/// The setup header of a bzImage, from offset 0x1f1 on: `boot_params` wants it at the same offset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetupHeader {
    bytes: Vec<u8>,
}

impl SetupHeader {
    /// Its offset in `boot_params`, in bytes.
    pub const OFFSET: usize = SETUP_SECTS;

    /// Its bytes, at most those up to offset 0x290.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

pub(super) fn parse(image: Cow<'_, [u8]>) -> Result<Kernel<'_>, KernelError> {
    let header = Header::read(&image).map_err(KernelError::BzImage)?;
    let unpacked = header.unpack(&image).map_err(KernelError::BzImage)?;
    if let Some((compression, kernel)) = unpacked {
        match pvh_elf::parse(
            Cow::Owned(kernel),
            KernelFormat::BzImageUnpacked(compression),
        ) {
            Ok(kernel) => return Ok(kernel),
            // A kernel without CONFIG_PVH, or a payload that is no ELF file: it can still unpack itself.
            Err(KernelError::NoEntryNote | KernelError::NotAKernel { .. }) => {}
            Err(source) => {
                return Err(KernelError::BzImage(BzImageError::Unpacked(Box::new(
                    source,
                ))));
            }
        }
    }
    header.self_unpacking(image).map_err(KernelError::BzImage)
}

/// What the header says, as far as it is needed.
struct Header {
    version: u16,
    /// Offset of the protected-mode kernel in the file.
    kernel_offset: usize,
    loadflags: u8,
    xloadflags: u16,
    payload_offset: usize,
    payload_bytes: usize,
    pref_address: u64,
    init_size: u32,
    setup_header: SetupHeader,
}

impl Header {
    fn read(image: &[u8]) -> Result<Self, BzImageError> {
        let version = u16::from_le_bytes(field(image, VERSION)?);
        if version < VERSION_PAYLOAD {
            return Err(BzImageError::Version {
                version,
                needed: VERSION_PAYLOAD,
            });
        }
        let [sectors] = field(image, SETUP_SECTS)?;
        let sectors = match usize::from(sectors) {
            0 => SETUP_SECTS_DEFAULT,
            sectors => sectors,
        };
        let [loadflags] = field(image, LOADFLAGS)?;
        let [jump] = field(image, HEADER_JUMP_LENGTH)?;
        let header_end = (HEADER_JUMP_ORIGIN + usize::from(jump)).min(HEADER_END_MAX);
        let setup_header = image
            .get(SETUP_SECTS..header_end)
            .ok_or(BzImageError::Truncated {
                what: "its setup header ends",
            })?;
        let size = |offset| -> Result<usize, BzImageError> {
            let size = u32::from_le_bytes(field(image, offset)?);
            Ok(usize::try_from(size).unwrap_or(usize::MAX))
        };
        Ok(Self {
            version,
            kernel_offset: (sectors + 1) * SECTOR_BYTES,
            loadflags,
            xloadflags: u16::from_le_bytes(field(image, XLOADFLAGS)?),
            payload_offset: size(PAYLOAD_OFFSET)?,
            payload_bytes: size(PAYLOAD_LENGTH)?,
            pref_address: u64::from_le_bytes(field(image, PREF_ADDRESS)?),
            init_size: u32::from_le_bytes(field(image, INIT_SIZE)?),
            setup_header: SetupHeader {
                bytes: setup_header.to_vec(),
            },
        })
    }

    /// What the payload unpacks to; `None` when it is packed in a way that only the kernel itself knows.
    fn unpack(&self, image: &[u8]) -> Result<Option<(Compression, Vec<u8>)>, BzImageError> {
        let truncated = BzImageError::Truncated {
            what: "its payload ends",
        };
        let start = self.kernel_offset.checked_add(self.payload_offset);
        let range = start.and_then(|start| Some(start..start.checked_add(self.payload_bytes)?));
        let Some(payload) = range.and_then(|range| image.get(range)) else {
            return Err(truncated);
        };
        let Some(compression) = Compression::of(payload) else {
            return Ok(None);
        };
        let Some((stream, size)) = payload.split_last_chunk::<UNPACKED_SIZE_BYTES>() else {
            return Err(truncated);
        };
        // In a gzip stream the size is its own last field; elsewhere the build has appended it.
        let stream = match compression {
            Compression::Gzip => payload,
            _ => stream,
        };
        let unpacked_bytes = u64::from(u32::from_le_bytes(*size));
        decompress(compression, stream, unpacked_bytes)
            .map(|kernel| Some((compression, kernel)))
            .map_err(BzImageError::Payload)
    }

    /// The file itself, to be entered by the 64-bit boot protocol.
    fn self_unpacking(self, image: Cow<'_, [u8]>) -> Result<Kernel<'_>, BzImageError> {
        if self.version < VERSION_XLOADFLAGS {
            return Err(BzImageError::Version {
                version: self.version,
                needed: VERSION_XLOADFLAGS,
            });
        }
        if self.loadflags & LOADED_HIGH == 0 || self.xloadflags & XLF_KERNEL_64 == 0 {
            return Err(BzImageError::NoEntry);
        }
        let file = self.kernel_offset..image.len();
        let length = file.len() as u64;
        if length <= ENTRY_64_OFFSET {
            return Err(BzImageError::Truncated {
                what: "its 64-bit entry point",
            });
        }
        let end = self.pref_address.checked_add(u64::from(self.init_size));
        let (Some(_), true) = (end, length <= u64::from(self.init_size)) else {
            return Err(BzImageError::Place {
                pref_address: self.pref_address,
                init_size: self.init_size,
            });
        };
        Ok(Kernel {
            bytes: image,
            segments: vec![Segment {
                index: 0,
                start: GuestAddress(self.pref_address),
                memory_bytes: u64::from(self.init_size),
                file,
            }],
            format: KernelFormat::BzImage,
            entry: KernelEntry::Boot64 {
                entry: self.pref_address + ENTRY_64_OFFSET,
                setup_header: Some(self.setup_header),
            },
        })
    }
}

/// The bytes of a header field.
fn field<const BYTES: usize>(image: &[u8], offset: usize) -> Result<[u8; BYTES], BzImageError> {
    image
        .get(offset..)
        .and_then(|rest| rest.first_chunk())
        .copied()
        .ok_or(BzImageError::Truncated {
            what: "its setup header ends",
        })
}

#[cfg(test)]
mod tests;
