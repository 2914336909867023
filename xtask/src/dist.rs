//! `cargo xtask build`: the binary that is shipped, measured and put into guests.
//!
//! It is statically linked, so that it runs in an initramfs with nothing beside it and starts without a
//! dynamic loader. `+crt-static` on the gnu target needs an explicit `--target`: without one the flag would
//! reach procedural macros, which cannot be static.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::workspace::{Workspace, cargo};

/// What it is built for, named although it is this machine's own.
pub const TARGET: &str = "x86_64-unknown-linux-gnu";

/// A fixed load address saves the relocation pass at every start. Names of the second mangling tell the
/// instances of a generic function apart, which the order of functions needs.
pub const RUSTFLAGS: &str =
    "-C target-feature=+crt-static -C relocation-model=static -C symbol-mangling-version=v0";

/// How to build.
#[derive(clap::Args, Default)]
pub struct Options {
    /// Optimized build; this is the default.
    #[arg(long, conflicts_with = "dev")]
    release: bool,
    /// Quick build with the dev profile, for trying things.
    #[arg(long)]
    dev: bool,
}

/// Builds the binary and returns its path. Fails if it turns out to need a dynamic loader.
pub fn build(workspace: &Workspace, options: &Options) -> Result<PathBuf> {
    build_by("build", workspace, options, &[])
}

/// Builds the shipped binary and has the linker write its map; returns the binary's path.
pub fn build_with_map(workspace: &Workspace, map: &Path) -> Result<PathBuf> {
    let argument = format!("link-arg=-Wl,-Map={}", map.display());
    build_by(
        "rustc",
        workspace,
        &Options::default(),
        &["--", "-C", &argument],
    )
}

fn build_by(
    command: &str,
    workspace: &Workspace,
    options: &Options,
    further: &[&str],
) -> Result<PathBuf> {
    let (profile, directory) = if options.dev && !options.release {
        ("dev", "debug")
    } else {
        ("release", "release")
    };
    let status = cargo()
        .args([command, "--locked", "--package", "nvx", "--target", TARGET])
        .args(["--profile", profile])
        .args(further)
        .env("NVX_START_ORDER", "1")
        .env("RUSTFLAGS", RUSTFLAGS)
        .current_dir(&workspace.root)
        .status()
        .context("cannot run cargo build")?;
    if !status.success() {
        bail!("cargo build of the static binary failed");
    }
    let binary = workspace
        .target_dir
        .join(TARGET)
        .join(directory)
        .join("nvx");
    require_static(&binary)?;
    Ok(binary)
}

fn require_static(binary: &Path) -> Result<()> {
    let name = binary.display();
    let image = std::fs::read(binary).with_context(|| format!("cannot read {name}"))?;
    match needs_loader(&image) {
        Some(false) => Ok(()),
        Some(true) => bail!("{name} is not statically linked: it names a program interpreter"),
        None => bail!("{name} is not a 64-bit little-endian ELF file"),
    }
}

/// Whether an ELF64 image has a PT_INTERP program header; `None` if it is no such image.
fn needs_loader(image: &[u8]) -> Option<bool> {
    const PT_INTERP: u64 = 3;
    let number = |at: usize, bytes: usize| -> Option<u64> {
        let field = image.get(at..at.checked_add(bytes)?)?;
        Some(
            field
                .iter()
                .rev()
                .fold(0, |sum, &byte| sum << 8 | u64::from(byte)),
        )
    };
    if image.get(..6)? != b"\x7fELF\x02\x01" {
        return None;
    }
    // ELF-64 object file format, file header: e_phoff at 32, e_phentsize at 54, e_phnum at 56.
    let table = usize::try_from(number(32, 8)?).ok()?;
    let entry_bytes = usize::try_from(number(54, 2)?).ok()?;
    for index in 0..usize::try_from(number(56, 2)?).ok()? {
        if number(table.checked_add(index.checked_mul(entry_bytes)?)?, 4)? == PT_INTERP {
            return Some(true);
        }
    }
    Some(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn elf(header_types: &[u32]) -> Vec<u8> {
        let mut image = vec![0; 64];
        image[..6].copy_from_slice(b"\x7fELF\x02\x01");
        image[32] = 64;
        image[54] = 56;
        image[56] = u8::try_from(header_types.len()).unwrap();
        for kind in header_types {
            image.extend(kind.to_le_bytes());
            image.extend([0; 52]);
        }
        image
    }

    #[test]
    fn interpreter_is_seen() {
        assert_eq!(needs_loader(&elf(&[1, 4])), Some(false));
        assert_eq!(needs_loader(&elf(&[1, 3, 4])), Some(true));
    }

    #[test]
    fn other_files_are_refused() {
        assert_eq!(needs_loader(b""), None);
        assert_eq!(needs_loader(b"#!/bin/sh\n"), None);
        let whole = elf(&[1, 4]);
        assert_eq!(needs_loader(&whole[..100]), None);
    }

    #[test]
    fn this_test_binary_is_dynamic() {
        let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        if cfg!(not(target_feature = "crt-static")) {
            assert_eq!(needs_loader(&own), Some(true));
        }
    }
}
