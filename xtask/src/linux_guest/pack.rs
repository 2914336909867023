//! The outer machine's root file system, packed as an initramfs.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use nvx_machine::initramfs::{Attributes, Initramfs, Node};

use super::kernels::Kernels;
use super::outer;

/// Directories of the kernel's modules that guests are given, below `kernel`.
const MODULE_DIRECTORIES: [&str; 4] = [
    "drivers/virtio",
    "drivers/char/hw_random",
    "drivers/net",
    "net/core",
];

/// Where Debian's packages of QEMU and of its firmware have it.
const FIRMWARE_DIRECTORIES: [&str; 2] = ["/usr/share/qemu", "/usr/share/seabios"];

/// Packs the outer machine's root file system.
pub fn pack(
    place: &Path,
    kernels: &Kernels,
    nvx: &Path,
    tests: &Path,
    commands: &str,
) -> Result<()> {
    let program = Attributes::of_root(0o755);
    let data = Attributes::of_root(0o644);
    let mut root = Initramfs::new();
    let init = include_bytes!("outer-init").to_vec();
    root.add("init", program, Node::File(init))?;
    root.add("lane/run", data, Node::File(commands.into()))?;
    root.add_host_file("bin/busybox", program, &kernels.busybox)?;
    root.add_host_file("bin/nvx", program, nvx)?;
    add_dynamic(&mut root, "lane/tests", tests)?;
    add_qemu(&mut root)?;
    root.add_host_file("kernels/vmlinuz", data, &kernels.cloud)?;
    root.add_host_file("kernels/vmlinux", data, &kernels.cloud_elf)?;
    root.add_host_file("kernels/vmlinuz-generic", data, &kernels.generic)?;
    if let Some(boot64) = &kernels.cloud_boot64 {
        root.add_host_file("kernels/vmlinuz-boot64", data, boot64)?;
    }
    if let Some(krunfw) = &kernels.krunfw {
        root.add_host_file("kernels/libkrunfw.so", data, krunfw)?;
    }
    add_modules(&mut root, &kernels.cloud_modules)?;

    let file = File::create(place).with_context(|| format!("cannot create {}", place.display()))?;
    let mut out = BufWriter::new(file);
    root.write_to(&mut out)?;
    out.flush()
        .with_context(|| format!("cannot write {}", place.display()))
}

/// KVM's modules for the outer machine, and those that guests load.
fn add_modules(root: &mut Initramfs, modules: &Path) -> Result<()> {
    let data = Attributes::of_root(0o644);
    for (name, file) in [
        ("irqbypass", "kernel/virt/lib/irqbypass.ko"),
        ("kvm", "kernel/arch/x86/kvm/kvm.ko"),
        ("kvm-amd", "kernel/arch/x86/kvm/kvm-amd.ko"),
    ] {
        root.add_host_file(&format!("lane/{name}.ko"), data, &modules.join(file))?;
    }
    let version = modules.file_name().unwrap_or_default().to_string_lossy();
    let lists = [
        "modules.order",
        "modules.builtin",
        "modules.builtin.modinfo",
    ];
    for list in lists {
        let name = format!("lib/modules/{version}/{list}");
        root.add_host_file(&name, data, &modules.join(list))?;
    }
    for directory in MODULE_DIRECTORIES {
        let source = modules.join("kernel").join(directory);
        let entries = std::fs::read_dir(&source)
            .with_context(|| format!("cannot read {}", source.display()))?;
        for entry in entries {
            let path = entry?.path();
            if path.is_file() {
                let file = path.file_name().unwrap_or_default().to_string_lossy();
                let name = format!("lib/modules/{version}/kernel/{directory}/{file}");
                root.add_host_file(&name, data, &path)?;
            }
        }
    }
    Ok(())
}

/// Adds `program` of this machine as `name`, and the libraries that it needs at their own places.
fn add_dynamic(root: &mut Initramfs, name: &str, program: &Path) -> Result<()> {
    let attributes = Attributes::of_root(0o755);
    root.add_host_file(name, attributes, program)?;
    let output = Command::new("ldd")
        .arg(program)
        .output()
        .context("cannot run ldd")?;
    for library in libraries(&String::from_utf8_lossy(&output.stdout)) {
        if !root.contains(library.trim_start_matches('/')) {
            root.add_host_file(library, attributes, Path::new(library))?;
        }
    }
    Ok(())
}

/// QEMU and the firmware of its microvm machine, which the speed table has beside nvx.
fn add_qemu(root: &mut Initramfs) -> Result<()> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut places = std::env::split_paths(&path).map(|directory| directory.join(outer::QEMU));
    let qemu = places
        .find(|place| place.is_file())
        .with_context(|| format!("no {}", outer::QEMU))?;
    add_dynamic(root, "usr/bin/qemu-system-x86_64", &qemu)?;
    for firmware in ["bios-microvm.bin", "linuxboot_dma.bin", "kvmvapic.bin"] {
        let file = FIRMWARE_DIRECTORIES
            .iter()
            .map(|directory| Path::new(directory).join(firmware))
            .find(|file| file.is_file())
            .with_context(|| format!("no {firmware} of {}", outer::QEMU))?;
        let name = format!("usr/share/qemu/{firmware}");
        root.add_host_file(&name, Attributes::of_root(0o644), &file)?;
    }
    Ok(())
}

/// Paths in the output of ldd: `name => path (address)` or `path (address)`.
fn libraries(text: &str) -> Vec<&str> {
    text.lines()
        .filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_found_in_what_ldd_says() {
        let text = "\tlinux-vdso.so.1 (0x7ff)\n\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x7f)\n\
                    \t/lib64/ld-linux-x86-64.so.2 (0x7f)\n";
        assert_eq!(
            libraries(text),
            [
                "/lib/x86_64-linux-gnu/libc.so.6",
                "/lib64/ld-linux-x86-64.so.2"
            ]
        );
        assert!(libraries("\tnot a dynamic executable\n").is_empty());
    }
}
