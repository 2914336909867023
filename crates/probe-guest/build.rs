//! Assembles the probe guest's image once, so that a monitor that starts need not.

#![allow(
    dead_code,
    reason = "the crate's own modules are compiled here too, of which this script uses one function"
)]

#[path = "src/assemble.rs"]
mod assemble;
#[path = "src/code.rs"]
mod code;
#[path = "src/elf.rs"]
mod elf;
#[path = "src/layout.rs"]
mod layout;
#[path = "src/params.rs"]
mod params;
#[path = "src/pattern.rs"]
mod pattern;
#[path = "src/ports.rs"]
mod ports;

use std::error::Error;
use std::path::PathBuf;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=src");
    let directory = std::env::var_os("OUT_DIR").ok_or("OUT_DIR is not set")?;
    let file = PathBuf::from(directory).join("probe-guest.elf");
    std::fs::write(file, assemble::image()?)?;
    Ok(())
}
