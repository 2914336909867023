//! exFAT keeps a valid data length as NTFS does, and its driver is in Debian's kernels. So a Debian
//! kernel is booted in an emulated machine, measures there with this binary, and tells what it counted.
//!
//! What is needed besides QEMU: a kernel with its modules as the package `linux-image-cloud-amd64`
//! installs them, or unpacked in the directory that `NVX_TEST_KERNEL_ROOT` names. The volume lies on a
//! loop device over memory of that machine.

#![cfg(unix)]
#![allow(clippy::print_stderr, reason = "a skipped test says why")]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking, also in its helper functions"
)]

use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

/// What the machine does first: process 1 is this script.
const INIT: &str = r#"#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mount -t tmpfs tmp /tmp
exec > /dev/ttyS1
insmod /loop.ko && insmod /exfat.ko
truncate -s 256M /tmp/image
mkfs.exfat /tmp/image > /tmp/log 2>&1 || cat /tmp/log
losetup /dev/loop0 /tmp/image
mount -t exfat /dev/loop0 /mnt
measure="nvx bench writeback --dir /mnt --memory 32M --samples 1 --warmups 0 --json"
$measure --writeback auto --writeback ascending --writeback ranges:8 --pattern all --pattern alternate
echo ------
nvx demo --dir /mnt --memory 32M --fill alternate --backend soft --json
echo ------
ls -A /mnt
poweroff -f
"#;
/// An emulated machine takes a minute.
const LIMIT_SECONDS: &str = "220";
const RAM_BYTES: u64 = 32 << 20;

fn skip(test: &str, reason: &str) {
    eprintln!("SKIP: {test}: {reason}");
    if let Some(path) = std::env::var_os("NVX_TEST_SKIPS") {
        let mut file = std::fs::OpenOptions::new().append(true).open(path).unwrap();
        file.write_all(format!("{test}: {reason}\n").as_bytes())
            .unwrap();
    }
}

/// A Debian kernel and the files that its machine needs.
struct Parts {
    kernel: PathBuf,
    modules: Vec<PathBuf>,
    programs: Vec<PathBuf>,
}

impl Parts {
    /// `Err` says what is missing, and where it is to be had.
    fn find() -> Result<Self, String> {
        let root = std::env::var_os("NVX_TEST_KERNEL_ROOT").unwrap_or_else(|| "/".into());
        let root = PathBuf::from(root);
        let versions = std::fs::read_dir(root.join("lib/modules"));
        let modules = ["drivers/block/loop.ko", "fs/exfat/exfat.ko"];
        let found = versions.into_iter().flatten().flatten().find_map(|entry| {
            let version = entry.file_name();
            let files = modules.map(|name| entry.path().join("kernel").join(name));
            let kernel = format!("boot/vmlinuz-{}", version.to_str()?);
            let kernel = root.join(kernel);
            let whole = kernel.exists() && files.iter().all(|file| file.exists());
            whole.then(|| (kernel, files.into()))
        });
        let (kernel, modules) = found.ok_or_else(|| {
            let root = root.display();
            format!("no Debian kernel with exfat.ko in {root} (package linux-image-cloud-amd64; NVX_TEST_KERNEL_ROOT names another place)")
        })?;
        let programs = [
            ("busybox", "busybox-static"),
            ("mkfs.exfat", "exfatprogs"),
            ("cpio", "cpio"),
            ("qemu-system-x86_64", "qemu-system-x86"),
        ];
        let programs = programs
            .into_iter()
            .map(|(name, package)| {
                let paths = std::env::var_os("PATH").unwrap_or_default();
                let directories = std::env::split_paths(&paths).chain([root.join("usr/sbin")]);
                let mut files = directories.map(|directory| directory.join(name));
                let file = files.find(|file| file.exists());
                file.ok_or_else(|| format!("{name} is missing; it is in the package {package}"))
            })
            .collect::<Result<Vec<_>, _>>()?;
        Ok(Self {
            kernel,
            modules,
            programs,
        })
    }
}

fn copy(file: &Path, to: &Path) {
    std::fs::create_dir_all(to.parent().unwrap()).unwrap();
    std::fs::copy(file, to).unwrap();
    std::fs::set_permissions(to, std::fs::Permissions::from_mode(0o755)).unwrap();
}

/// Copies a program and the libraries that it is linked with.
fn copy_program(file: &Path, root: &Path) {
    let name = file.file_name().unwrap();
    copy(file, &root.join("bin").join(name));
    let listing = Command::new("ldd").arg(file).output().unwrap();
    let listing = String::from_utf8(listing.stdout).unwrap();
    let words = listing.split_ascii_whitespace();
    for library in words.filter(|word| word.starts_with('/')) {
        copy(Path::new(library), &root.join(&library[1..]));
    }
}

/// The machine's first file system, as an archive.
fn initramfs(parts: &Parts, directory: &Path) -> PathBuf {
    let root = directory.join("root");
    for name in ["proc", "sys", "dev", "tmp", "mnt", "bin"] {
        std::fs::create_dir_all(root.join(name)).unwrap();
    }
    let init = root.join("init");
    std::fs::write(&init, INIT).unwrap();
    std::fs::set_permissions(&init, std::fs::Permissions::from_mode(0o755)).unwrap();
    for module in &parts.modules {
        copy(module, &root.join(module.file_name().unwrap()));
    }
    for program in [
        parts.programs[0].as_path(),
        &parts.programs[1],
        Path::new(env!("CARGO_BIN_EXE_nvx")),
    ] {
        copy_program(program, &root);
    }
    let archive = directory.join("initramfs");
    let packed = Command::new("sh")
        .args([
            "-c",
            "cd \"$1\" && find . | cpio -o -H newc --quiet > \"$2\"",
            "sh",
        ])
        .args([&root, &archive])
        .status()
        .unwrap();
    assert!(packed.success());
    archive
}

#[test]
fn exfat_is_written_once_by_any_strategy() {
    let test = "exfat_is_written_once_by_any_strategy";
    let parts = match Parts::find() {
        Ok(parts) => parts,
        Err(reason) => return skip(test, &reason),
    };
    let directory = tempfile::tempdir().unwrap();
    let told = directory.path().join("told");
    let machine = Command::new("timeout")
        .args(["-k", "5", LIMIT_SECONDS, "qemu-system-x86_64"])
        .args(["-accel", "tcg", "-cpu", "max", "-m", "1500", "-nodefaults"])
        .args([
            "-display",
            "none",
            "-no-reboot",
            "-serial",
            "stdio",
            "-serial",
        ])
        .arg(format!("file:{}", told.display()))
        .args(["-append", "console=ttyS0 quiet panic=-1", "-kernel"])
        .arg(&parts.kernel)
        .arg("-initrd")
        .arg(initramfs(&parts, directory.path()))
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&std::fs::read(&told).unwrap()).into_owned();
    let console = String::from_utf8_lossy(&machine.stdout).into_owned();
    assert!(machine.status.success(), "{told}\n{console}");
    let parts: Vec<&str> = told.split("------").collect();
    let [report, demo, left] = parts[..] else {
        panic!("{told}\n{console}");
    };
    let report: Value = serde_json::from_str(report).unwrap();
    assert_eq!(report["file_system"], "exfat");
    let cells = report["cells"].as_array().unwrap();
    assert_eq!(cells.len(), 6);
    for cell in cells {
        let sample = &cell["samples"][0];
        let written = sample["device_bytes"].as_u64().unwrap();
        eprintln!("{} {}: {written}", cell["pattern"], sample["strategy"]);
        // The file system's own records come to it.
        assert!(
            (RAM_BYTES..RAM_BYTES + (512 << 10)).contains(&written),
            "{cell}"
        );
    }
    let demo: Value = serde_json::from_str(demo).unwrap();
    eprintln!("{}", demo["capture"]);
    // There are no hard links on exFAT; the copy is the writeback.
    assert_eq!(demo["capture"]["publication"], "copy");
    let reason = demo["capture"]["publication_reason"].as_str().unwrap();
    assert!(reason.contains("cannot be linked"), "{reason}");
    assert!(left.trim().starts_with("nvx-demo-"), "{left}");
    assert_eq!(left.trim().lines().count(), 1, "{left}");
}
