//! The kernels of the lane, and the packages that they come in.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use nvx_machine::kernel::read_kernel;

use super::boot64;
use super::packages::{Packages, Suite};

/// Kernels in the cache, and the packages that they came in.
pub struct Kernels {
    /// Debian's kernel for clouds as bzImage; the outer machine runs it too.
    pub cloud: PathBuf,
    /// The same, unpacked.
    pub cloud_elf: PathBuf,
    /// Its modules, a directory named as its version.
    pub cloud_modules: PathBuf,
    /// The same as bzImage without its PVH entry; `None` if this version's cannot be taken out.
    pub cloud_boot64: Option<PathBuf>,
    /// Debian's generic kernel as bzImage.
    pub generic: PathBuf,
    /// A libkrunfw; `None` if it cannot be had.
    pub krunfw: Option<PathBuf>,
    pub busybox: PathBuf,
}

impl Kernels {
    /// Fetches what is not there yet.
    pub fn fetch() -> Result<Self> {
        let packages = Packages::in_user_cache()?;
        let cloud_package = packages.fetch_dependency("linux-image-cloud-amd64", "linux-image-")?;
        let generic_package = packages.fetch_dependency("linux-image-amd64", "linux-image-")?;
        let busybox = packages.fetch(Suite::Own, "busybox-static")?;
        let krunfw = match packages.fetch(Suite::Sid, "libkrunfw5") {
            Ok(package) => Some(find_krunfw(&package)?),
            Err(error) => {
                println!("no libkrunfw, its tests are skipped: {error:#}");
                None
            }
        };
        let cloud = only_entry(&cloud_package.join("boot"), "vmlinuz-")?;
        let cloud_elf = unpacked(&cloud, packages.directory())?;
        let cloud_boot64 = match without_pvh(&cloud, packages.directory()) {
            Ok(kernel) => Some(kernel),
            Err(error) => {
                println!("no kernel without a PVH entry, its test is skipped: {error:#}");
                None
            }
        };
        Ok(Self {
            cloud,
            cloud_elf,
            cloud_boot64,
            cloud_modules: only_entry(&cloud_package.join("lib/modules"), "")?,
            generic: only_entry(&generic_package.join("boot"), "vmlinuz-")?,
            krunfw,
            busybox: busybox.join("bin/busybox"),
        })
    }
}

/// The entry of `directory` whose name begins with `prefix`.
fn only_entry(directory: &Path, prefix: &str) -> Result<PathBuf> {
    let entries = std::fs::read_dir(directory)
        .with_context(|| format!("cannot read {}", directory.display()))?;
    for entry in entries {
        let entry = entry.with_context(|| format!("cannot read {}", directory.display()))?;
        if entry.file_name().to_string_lossy().starts_with(prefix) {
            return Ok(entry.path());
        }
    }
    bail!("no {prefix}* in {}", directory.display())
}

/// The library itself in the unpacked package, not a link to it.
fn find_krunfw(package: &Path) -> Result<PathBuf> {
    let library = only_entry(&package.join("usr/lib/x86_64-linux-gnu"), "libkrunfw.so")?;
    library
        .canonicalize()
        .with_context(|| format!("cannot find {}", library.display()))
}

/// The ELF file in `kernel`, a bzImage, written once beside the packages.
fn unpacked(kernel: &Path, cache: &Path) -> Result<PathBuf> {
    let name = kernel.file_name().unwrap_or_default().to_string_lossy();
    let place = cache.join(name.replace("vmlinuz", "vmlinux"));
    if !place.exists() {
        let staging = cache.join("vmlinux.new");
        let kernel = read_kernel(kernel)?;
        std::fs::write(&staging, kernel.image())
            .with_context(|| format!("cannot write {}", staging.display()))?;
        std::fs::rename(&staging, &place)
            .with_context(|| format!("cannot rename {}", staging.display()))?;
    }
    Ok(place)
}

/// `kernel`, a bzImage, without its PVH entry, written once beside the packages.
fn without_pvh(kernel: &Path, cache: &Path) -> Result<PathBuf> {
    let name = kernel.file_name().unwrap_or_default().to_string_lossy();
    let place = cache.join(name.replace("vmlinuz", "boot64"));
    if !place.exists() {
        let staging = cache.join("boot64.new");
        let image =
            std::fs::read(kernel).with_context(|| format!("cannot read {}", kernel.display()))?;
        std::fs::write(&staging, boot64::without_pvh(&image)?)
            .with_context(|| format!("cannot write {}", staging.display()))?;
        std::fs::rename(&staging, &place)
            .with_context(|| format!("cannot rename {}", staging.display()))?;
    }
    Ok(place)
}
