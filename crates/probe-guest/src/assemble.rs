//! Putting the image together. The build script compiles this module as well, for [`crate::prebuilt`].

use crate::{code, elf, layout};

/// Why the image could not be assembled: a fault of the program, not of its input.
#[derive(Debug, thiserror::Error)]
pub enum AssembleError {
    /// The assembler refused an instruction or a label.
    #[error("the probe guest's program cannot be assembled")]
    Program(#[source] iced_x86::IcedError),
    /// Data and code do not fit before the page of zeroed variables.
    #[error("the probe guest's image has {bytes} bytes, more than {max}")]
    TooLarge {
        /// Bytes of data and code.
        bytes: usize,
        /// Bytes that fit.
        max: usize,
    },
}

/// Assembles the probe guest: an ELF-64 file for x86-64 with one loaded segment at 1 MiB and a PVH entry note.
///
/// # Errors
/// [`AssembleError`] when the program does not assemble, which the tests of this crate rule out.
pub fn image() -> Result<Vec<u8>, AssembleError> {
    let data = layout::Data::new();
    let code = code::assemble(&data).map_err(AssembleError::Program)?;
    let entry = data.end();
    let mut loaded = data.bytes;
    loaded.extend_from_slice(&code);
    if loaded.len() > layout::LOADED_BYTES_MAX {
        return Err(AssembleError::TooLarge {
            bytes: loaded.len(),
            max: layout::LOADED_BYTES_MAX,
        });
    }
    Ok(elf::wrap(&loaded, layout::MEMORY_BYTES, entry))
}
