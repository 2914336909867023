//! Each kind of file that holds a kernel, booted.

use std::path::Path;
use std::time::Duration;

use nvx_snapshot::MEMORY_FILE;

use crate::guest::{KernelFile, Linux};
use crate::support::vm::Vm;
use crate::support::{arguments, text};

/// How often a snapshot is taken of the guest that cannot tell how far it is.
const PAGE_BYTES: usize = 4096;
const LOOKS: u32 = 15;
const LOOK_INTERVAL: Duration = Duration::from_secs(3);

fn boots(test: &str, kernel: KernelFile, version_part: &str) {
    let Some(linux) = Linux::begin(test, kernel) else {
        return;
    };
    let done = linux.run("uname -r; nproc").expect_code(0);
    let lines: Vec<&str> = done.output.lines().collect();
    assert_eq!(lines.len(), 2, "{done:?}");
    assert!(lines[0].contains(version_part), "{done:?}");
    assert_eq!(lines[1], "1");
}

#[test]
fn a_bzimage_with_an_lz4_payload_boots() {
    boots("kernels::bzimage", KernelFile::Cloud, "cloud-amd64");
}

#[test]
fn an_elf_file_boots() {
    boots("kernels::elf", KernelFile::CloudElf, "cloud-amd64");
}

#[test]
fn a_bzimage_without_a_pvh_entry_boots_by_the_64_bit_protocol() {
    boots("kernels::boot64", KernelFile::CloudBoot64, "cloud-amd64");
}

#[test]
fn a_bzimage_with_an_xz_payload_boots() {
    boots("kernels::generic", KernelFile::Generic, "-amd64");
}

/// Debian's libkrunfw has neither a serial console nor an initramfs, so its kernel can do nothing here but
/// look for a root file system in vain. It tells nobody, so its memory is looked at.
#[test]
fn the_kernel_in_a_libkrunfw_boots_until_it_has_no_root() {
    let Some(linux) = Linux::begin("kernels::krunfw", KernelFile::Krunfw) else {
        return;
    };
    let kernel = linux.kernel.path();
    let root = text(linux.directory.path());
    let words = [
        "run",
        "--kernel",
        text(&kernel),
        "--memory",
        "128M",
        "--cmdline",
        "panic=0 nvx.test=marker",
        "--snapshot-root",
        root,
    ];
    let vm = Vm::start_mute(&arguments(words, []), linux.directory.path());
    // The last one as it is printed, which is not as it stands in the kernel's image.
    let expected = [
        "Linux version 6.",
        "nvx.test=marker",
        "Unable to mount root fs on unknown-block(0,0)",
    ];
    let mut missing = Vec::new();
    for look in 0..LOOKS {
        std::thread::sleep(LOOK_INTERVAL);
        let snapshot = linux.path(&format!("look-{look}"));
        vm.capture(&snapshot, &["--continue"]).expect_code(0);
        let found = text_in(&snapshot.join(MEMORY_FILE));
        missing = expected.to_vec();
        missing.retain(|text| !found.contains(text));
        std::fs::remove_dir_all(&snapshot).unwrap();
        if missing.is_empty() {
            break;
        }
    }
    assert!(missing.is_empty(), "not in the guest's memory: {missing:?}");
    vm.stop();
}

/// The file as text, without pages of zeros. What loops over bytes here is the standard library, which is
/// optimised even where tests are not.
fn text_in(file: &Path) -> String {
    let memory = std::fs::read(file).unwrap();
    let pages: Vec<&[u8]> = memory
        .chunks(PAGE_BYTES)
        .filter(|page| *page != &[0; PAGE_BYTES][..])
        .collect();
    String::from_utf8_lossy(&pages.concat()).into_owned()
}

#[test]
fn two_vcpus_are_seen() {
    vcpus_are_seen("kernels::two_vcpus", 2);
}

#[test]
#[ignore = "long: more vCPUs than the emulated machine has processors"]
fn four_and_eight_vcpus_are_seen() {
    for vcpus in [4, 8] {
        vcpus_are_seen("kernels::many_vcpus", vcpus);
    }
}

fn vcpus_are_seen(test: &str, vcpus: u8) {
    let Some(mut linux) = Linux::begin(test, KernelFile::Cloud) else {
        return;
    };
    linux.vcpus = vcpus;
    let done = linux.run("nproc").expect_code(0);
    assert_eq!(done.output.trim_end(), vcpus.to_string());
}
