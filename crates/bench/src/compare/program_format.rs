//! How a program of this system begins.

#[cfg(not(windows))]
pub(super) use elf::{MACHINE, MAGIC};
#[cfg(windows)]
pub(super) use portable_executable::{MACHINE, MAGIC};

/// ELF-64 object file format, file header.
#[cfg(not(windows))]
mod elf {
    /// What it begins with.
    pub(in super::super) const MAGIC: &[u8] = b"\x7fELF";
    /// Where it names the processor architecture.
    pub(in super::super) const MACHINE: std::ops::Range<usize> = 18..20;
}

/// Microsoft's "PE Format".
#[cfg(windows)]
mod portable_executable {
    /// What it begins with.
    pub(in super::super) const MAGIC: &[u8] = b"MZ";
    /// The architecture stands at a place that the header names; it is not looked at.
    pub(in super::super) const MACHINE: std::ops::Range<usize> = 0..2;
}
