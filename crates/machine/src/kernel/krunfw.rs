//! The kernel inside a `libkrunfw` shared object.
//!
//! The library's data symbol `KERNEL_BUNDLE` is the kernel's memory image, flat, as it lies at its load address
//! (`bin2cbundle.py` of libkrunfw makes it). Where that is, where the kernel begins and how long it is,
//! only the exported function `krunfw_get_kernel(load_addr, entry_addr, size)` says, which stores three
//! constants through its arguments. It is read, never executed.

use std::borrow::Cow;
use std::ops::Range;

use elf::ElfBytes;
use elf::abi::{EM_X86_64, ET_DYN, PT_LOAD};
use elf::endian::LittleEndian;
use elf::symbol::Symbol;
use nvx_memory::GuestAddress;

use super::constant_stores::{ConstantStoresError, constant_stores};
use super::{Kernel, KernelEntry, KernelError, KernelFormat, Segment, pvh_elf};

const BUNDLE: &str = "KERNEL_BUNDLE";
const GET_KERNEL: &str = "krunfw_get_kernel";
/// Most bytes of the function that are looked at; gcc's without optimisation has 58.
const FUNCTION_MAX_BYTES: usize = 512;
/// Room after the flat image for what a kernel zeroes before it has read its memory map (`.bss` and `.brk`),
/// whose size the image does not tell. The distribution kernels looked at need 3-9 MiB.
const ZEROED_BYTES: u64 = 16 << 20;

/// Why the kernel in a libkrunfw cannot be found.
#[derive(Debug, thiserror::Error)]
pub enum KrunfwError {
    /// A symbol does not lie in the file.
    #[error("symbol {symbol} does not lie in the file")]
    Outside {
        /// Its name.
        symbol: &'static str,
    },
    /// The function does something unexpected.
    #[error("function krunfw_get_kernel does not just store three constants")]
    Function(#[source] ConstantStoresError),
    /// The constants contradict each other or the symbol.
    #[error(
        "krunfw_get_kernel says load address {load:#x}, entry {entry:#x} and {size} bytes, which does not fit KERNEL_BUNDLE of {bundle_bytes} bytes"
    )]
    Contradiction {
        /// Where the image goes.
        load: u64,
        /// Where the kernel begins.
        entry: u64,
        /// Length of the image in bytes.
        size: u64,
        /// Length of the symbol in bytes.
        bundle_bytes: u64,
    },
}

/// Where the kernel lies in the file and in memory.
pub(super) struct Bundle {
    file: Range<usize>,
    load: u64,
    entry: u64,
}

impl Bundle {
    pub(super) fn into_kernel(self, image: Cow<'_, [u8]>) -> Kernel<'_> {
        Kernel {
            bytes: image,
            segments: vec![Segment {
                index: 0,
                start: GuestAddress(self.load),
                memory_bytes: self.file.len() as u64 + ZEROED_BYTES,
                file: self.file,
            }],
            format: KernelFormat::Krunfw,
            entry: KernelEntry::Boot64 {
                entry: self.entry,
                setup_header: None,
            },
        }
    }
}

/// The kernel in `image`, an ELF file; `None` if the file is no libkrunfw.
pub(super) fn find(image: &[u8]) -> Result<Option<Bundle>, KernelError> {
    let elf = pvh_elf::open(image)?;
    if elf.ehdr.e_type != ET_DYN || elf.ehdr.e_machine != EM_X86_64 {
        return Ok(None);
    }
    let Some((symbols, names)) = elf.dynamic_symbol_table().map_err(KernelError::Malformed)? else {
        return Ok(None);
    };
    let find = |name: &str| {
        symbols.iter().find(|symbol| {
            usize::try_from(symbol.st_name)
                .ok()
                .and_then(|at| names.get(at).ok())
                == Some(name)
        })
    };
    let (Some(bundle), Some(function)) = (find(BUNDLE), find(GET_KERNEL)) else {
        return Ok(None);
    };
    locate(&elf, image, &bundle, &function)
        .map(Some)
        .map_err(KernelError::Krunfw)
}

fn locate(
    elf: &ElfBytes<'_, LittleEndian>,
    image: &[u8],
    bundle: &Symbol,
    function: &Symbol,
) -> Result<Bundle, KrunfwError> {
    let outside = |symbol| KrunfwError::Outside { symbol };
    let code = file_range(elf, function).ok_or(outside(GET_KERNEL))?;
    let code = image.get(code).ok_or(outside(GET_KERNEL))?;
    let code = &code[..code.len().min(FUNCTION_MAX_BYTES)];
    let [load, entry, size] = constant_stores(code).map_err(KrunfwError::Function)?;

    let contradiction = KrunfwError::Contradiction {
        load,
        entry,
        size,
        bundle_bytes: bundle.st_size,
    };
    let inside = entry.checked_sub(load).is_some_and(|offset| offset < size);
    if !inside || size > bundle.st_size || load.checked_add(size).is_none() {
        return Err(contradiction);
    }
    let range = file_range(elf, bundle).ok_or(outside(BUNDLE))?;
    let length = usize::try_from(size).map_err(|_| outside(BUNDLE))?;
    if range.end > image.len() {
        return Err(outside(BUNDLE));
    }
    Ok(Bundle {
        file: range.start..range.start + length,
        load,
        entry,
    })
}

/// Where the bytes of `symbol` lie in the file, by the segment that would be loaded at its address.
fn file_range(elf: &ElfBytes<'_, LittleEndian>, symbol: &Symbol) -> Option<Range<usize>> {
    elf.segments()?.iter().find_map(|header| {
        let offset = symbol.st_value.checked_sub(header.p_vaddr)?;
        let end = offset.checked_add(symbol.st_size)?;
        if header.p_type != PT_LOAD || end > header.p_filesz {
            return None;
        }
        let start = header.p_offset.checked_add(offset)?;
        let end = header.p_offset.checked_add(end)?;
        Some(usize::try_from(start).ok()?..usize::try_from(end).ok()?)
    })
}

#[cfg(test)]
mod tests;
