//! The speed table: a stock kernel's boot beside QEMU's microvm machine, and a restore beside that boot.
//!
//! All run interleaved with the same kernel file, command line and initramfs. Times in an emulated machine
//! tell nothing by themselves, and little more when it is busy, so ratios are printed and nothing is asserted
//! about them.

use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use nvx_machine::initramfs::{Attributes, Initramfs, Node};

use crate::guest::{KernelFile, Linux};
use crate::support::{Process, arguments, nvx, restore, run, skip, text};

/// With all of the kernel's messages on the console, and with few.
const COMMAND_LINES: [&str; 2] = [
    "console=ttyS0 panic=-1",
    "console=ttyS0 quiet loglevel=3 panic=-1",
];
const MEMORY_MIB: u32 = 192;
/// The first output of user space.
const READY: &str = "INIT-READY";
/// Process 1: says that it runs, then answers lines.
const INIT: &str = "#!/bin/busybox sh\necho INIT-READY\nwhile read -r line; do echo PONG; done\n";
const QEMU: &str = "/usr/bin/qemu-system-x86_64";
/// At most these shares are aimed at.
const BOOT_GOAL: f64 = 0.5;
const RESTORE_GOAL: f64 = 0.03;

#[test]
#[ignore = "measures: the lane runs it by itself"]
fn table() {
    let Some(linux) = Linux::begin("speed::table", KernelFile::Cloud) else {
        return;
    };
    if !Path::new(QEMU).exists() {
        skip("speed::table", "no QEMU in the lane");
        return;
    }
    let rounds = std::env::var("NVX_SPEED_ROUNDS").map_or(1, |rounds| rounds.parse().unwrap());
    let initramfs = linux.path("speed.cpio");
    pack(&initramfs);
    eprintln!(
        "speed, emulated, kernel {}, medians of {rounds}; aimed at: boot at most {BOOT_GOAL} of QEMU's, restore at most \
         {RESTORE_GOAL} of the boot",
        KernelFile::Cloud.path().display()
    );
    eprintln!(
        "  boot: process start to init's first output; restore: process start to the guest's answer to a line"
    );
    for command_line in COMMAND_LINES {
        eprintln!("  {command_line}");
        let [mut boots, mut qemu_boots, mut restores] = [const { Vec::new() }; 3];
        for _ in 0..rounds {
            let (boot_s, restore_s) = boot_and_restore(&linux, &initramfs, command_line);
            boots.push(boot_s);
            restores.push(restore_s);
            let qemu_boot_s = boot_qemu(&initramfs, command_line);
            qemu_boots.push(qemu_boot_s);
            eprintln!(
                "    boot {boot_s:.3} s, QEMU's {qemu_boot_s:.3} s, restore {restore_s:.3} s"
            );
        }
        let [boot, qemu_boot, restore] = [boots, qemu_boots, restores].map(median);
        eprintln!(
            "    medians: boot {boot:.3} s, QEMU's microvm {qemu_boot:.3} s: {:.3}",
            boot / qemu_boot
        );
        eprintln!(
            "    medians: restore {restore:.3} s, of the boot: {:.4}",
            restore / boot
        );
    }
}

fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}

fn pack(place: &Path) {
    let program = Attributes::of_root(0o755);
    let mut initramfs = Initramfs::new();
    initramfs
        .add("init", program, Node::File(INIT.into()))
        .unwrap();
    initramfs
        .add_host_file("bin/busybox", program, Path::new("/bin/busybox"))
        .unwrap();
    initramfs
        .write_to(&mut File::create(place).unwrap())
        .unwrap();
}

/// Seconds from the start of a process to a line of it that has `marker` in it.
fn seconds_to(mut command: Command, marker: &str, input: &str) -> (Process, f64) {
    command.stdin(Stdio::piped());
    let begin = Instant::now();
    let mut process = Process::spawn(command);
    process.send(input);
    process.wait_for(marker, |process| {
        process.output().contains(marker).then_some(())
    });
    (process, begin.elapsed().as_secs_f64())
}

fn boot_and_restore(linux: &Linux, initramfs: &Path, command_line: &str) -> (f64, f64) {
    let snapshot = &linux.path("speed-snapshot");
    let memory = format!("{MEMORY_MIB}M");
    let kernel = KernelFile::Cloud.path();
    let socket = linux.path("speed-control");
    let words = [
        "run",
        "--kernel",
        text(&kernel),
        "--initrd",
        text(initramfs),
        "--cmdline",
        command_line,
        "--memory",
        &memory,
        "--control",
        text(&socket),
        "--snapshot-root",
        text(linux.directory.path()),
    ];
    let (guest, boot_s) = seconds_to(nvx(&arguments(words, [])), READY, "");
    run(&arguments(
        ["capture", text(snapshot), "--control"],
        [socket.as_path()],
    ))
    .expect_code(0);
    guest.end().expect_code(0);
    let (guest, restore_s) = seconds_to(nvx(&restore(snapshot, &[])), "PONG", "ping\n");
    drop(guest);
    std::fs::remove_dir_all(snapshot).unwrap();
    (boot_s, restore_s)
}

fn boot_qemu(initramfs: &Path, command_line: &str) -> f64 {
    let mut qemu = Command::new(QEMU);
    qemu.args([
        "-M",
        "microvm,accel=kvm",
        "-cpu",
        "host",
        "-nodefaults",
        "-no-user-config",
    ])
    .args([
        "-no-reboot",
        "-display",
        "none",
        "-serial",
        "stdio",
        "-smp",
        "1",
        "-m",
    ])
    .arg(format!("{MEMORY_MIB}M"))
    .arg("-kernel")
    .arg(KernelFile::Cloud.path())
    .arg("-initrd")
    .arg(initramfs)
    .args(["-append", command_line]);
    let (guest, boot_s) = seconds_to(qemu, READY, "");
    drop(guest);
    boot_s
}
