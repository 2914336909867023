//! The machine contract: where a guest finds its memory, and how it is entered.
//!
//! [`layout`] has every address that the contract fixes. [`read_image`] reads a guest image from a file
//! within bounds, [`load_pvh`] places it in new guest RAM together with what the PVH boot protocol hands to
//! the guest, and says in which state the first vCPU begins.
//! [`kernel`] finds the Linux kernel in the kinds of file that hold one.
//! [`initramfs`] packs a root file system for a Linux guest. [`control_line`] is what the monitor and `nvx` inside a guest say to each other.
//!
//! [`load_linux`] places a kernel with all that it is handed, [`acpi_tables()`] among it.
//!
//! A guest image is input from outside: every number in it is checked before the first byte is written, and an
//! image that is something else than an ELF file with a PVH entry is refused with a word about what it
//! looks like.
#![forbid(unsafe_code)]

mod acpi;
mod at_once;
pub mod control_line;
mod image;
pub mod initramfs;
pub mod kernel;
pub mod layout;
mod linux;
mod pvh;
mod start_info;
mod stream_decoder;
mod zero_page;

pub use acpi::{ACPI_OEM_ID, acpi_tables};
pub use image::{IMAGE_MAX_BYTES, ImageFormat, ImageReadError, read_image};
pub use layout::{CONTRACT_VERSION, MemorySizeError, ram_layout};
pub use linux::{
    Boot64State, InitramfsFile, InitramfsSource, LinuxEntry, LinuxGuest, LinuxLoadError, load_linux,
};
pub use pvh::{EntryState, LoadError, load_pvh};
pub use stream_decoder::{decompress_up_to, stream_decoder};
