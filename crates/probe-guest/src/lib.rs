//! The built-in guest that proves what a monitor claims about guest RAM.
//!
//! [`image`] assembles a few hundred bytes of 32-bit code into an ELF file with a PVH entry note, so that any
//! monitor that boots PVH kernels can run the same bytes. The guest fills pages of RAM with words that follow
//! from a seed and each word's address ([`word`]), says so, and then serves one-letter lines on the console:
//!
//! | line | what it does | answer |
//! | --- | --- | --- |
//! | (boot) | fills RAM, draws a nonce that lives only in RAM | `PROBE-READY nonce=<16 hex> count=0` |
//! | `v` | compares every word | `PROBE-VERIFY ok checksum=<8 hex> seed=<n> count=<n>` or `PROBE-VERIFY bad address=0x<8 hex>` |
//! | `d` | fills again with the next seed | `PROBE-DIRTIED seed=<n> count=<n>` |
//! | `s` | requests a snapshot | `PROBE-REFUSED`, `PROBE-CONTINUED nonce=<16 hex> count=<n>`, `PROBE-RESTORED nonce=<16 hex> count=<n>`, or `PROBE-UNAVAILABLE` where there is no snapshot port |
//! | `l` | counts in RAM, at [`TURNS_ADDRESS`], for ever; takes no more lines | `PROBE-LOOPING count=<n>` |
//! | `h` | hits ports and memory that is no RAM at random, the snapshot port among them | random bytes, then `PROBE-HAMMERED count=<n>` |
//! | `w` | writes to the console for ever; takes no more lines | `PROBE-FLOOD`, again and again |
//! | `r` | requests snapshots for ever, whatever becomes of them; takes no more lines | `PROBE-PESTERING count=<n>` |
//! | `xN` | ends the machine with status N (0 to 255, 0 when left out) | |
//! | other | | `PROBE-WHAT` |
//!
//! `count` is the number of lines taken so far, this one included, so it shows that the guest did not start
//! anew. An empty line is not one, carriage returns are ignored, and a line longer than 16 bytes is an unknown
//! one. A guest that was restored without having asked for a snapshot says `PROBE-RESTORED` by itself.
//! Without a usable PVH memory map it says `PROBE-FAILED` and ends with status 1.
//!
//! # Ports
//! Console data 0xe9 and status 0xea, shutdown 0x604, snapshot 0x605. Where 0xea reads as all ones there is no
//! such console: the guest then also writes to the serial line at 0x3f8 and takes its lines from there. Where there
//! is no serial line either, it halts after `PROBE-READY`.
//!
//! # Instructions
//! The code stays within a small set, so that any back end, an interpreter included, can run it: 32-bit flat
//! protected mode, no interrupts, no segment loads, no CPUID, no string or floating-point instructions.
//! [`MNEMONICS`] is that set; operands are 8- or 32-bit registers, immediates and memory; `in`
//! and `out` also move 16 bits.
//!
//! ```
//! let params: nvx_probe_guest::ProbeParams = "fill=top:256,seed=7".parse()?;
//! params.check(128 << 20)?;
//! let elf = nvx_probe_guest::image()?;
//! assert_eq!(params.command_line(), "fill=top:256 seed=7");
//! assert_eq!(&elf[..4], b"\x7fELF");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod assemble;
mod code;
mod elf;
mod layout;
mod params;
mod pattern;
mod ports;

pub use assemble::{AssembleError, image};
pub use params::{CapacityError, Fill, ParamsError, ProbeParams};
pub use pattern::{FILL_START, PAGE_BYTES, SECTOR_BYTES, Span, checksum, word};

/// Guest-physical address of the 32-bit word in which `l` counts its turns. It begins at 0 and wraps.
pub const TURNS_ADDRESS: u32 = layout::TURNS;

/// Every instruction that the image may contain, in alphabetical order.
pub const MNEMONICS: [&str; 29] = [
    "adc", "add", "and", "call", "cmp", "dec", "div", "hlt", "imul", "in", "inc", "ja", "jae",
    "jb", "jbe", "je", "jmp", "jne", "mov", "movzx", "out", "rdtsc", "ret", "rol", "shl", "shr",
    "sub", "test", "xor",
];

/// The image of [`image`], assembled when this crate was built: the same bytes, at no cost to a monitor that
/// starts. (The assembler's first use in a process takes about 0.2 ms, most of it for its tables.)
#[must_use]
pub fn prebuilt() -> &'static [u8] {
    include_bytes!(concat!(env!("OUT_DIR"), "/probe-guest.elf"))
}

#[cfg(test)]
mod tests;
