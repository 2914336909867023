//! A guest's life without a capture: its command, its input and output, and how it ends.

use crate::guest::{KernelFile, Linux};
use crate::support::{Process, nvx};

/// What a guest that asks for a reset ends with (doc/exit-codes.md).
const GUEST_RESET: i32 = 123;
/// What a guest ends with that cannot go on (doc/exit-codes.md).
const CRASHED: i32 = 125;

#[test]
fn the_commands_status_is_the_processes_own() {
    let Some(linux) = Linux::begin("boot::status", KernelFile::Cloud) else {
        return;
    };
    linux.run("exit 7").expect_code(7);
    let done = linux.run("echo to the output; echo to the messages >&2; kill -9 $$");
    let done = done.expect_code(128 + 9);
    assert_eq!(done.line("to the output").trim_end(), "to the output");
}

#[test]
fn input_and_output_are_pipes() {
    let Some(linux) = Linux::begin("boot::pipes", KernelFile::Cloud) else {
        return;
    };
    let command = nvx(&linux.command("echo READY; tr a-z A-Z; echo end of input"));
    let mut guest = Process::spawn(command);
    guest.line("READY");
    // More than a serial port's buffers, with bytes that a terminal would not pass on.
    for line in 0..200 {
        guest.send(&format!("line {line}: \u{e4} \t \u{1} tail\n"));
    }
    guest.close_input();
    let done = guest.end().expect_code(0);
    let lines: Vec<&str> = done.output.lines().skip(1).collect();
    assert_eq!(lines.len(), 201, "{done:?}");
    assert_eq!(lines[199], "LINE 199: \u{e4} \t \u{1} TAIL");
    assert_eq!(lines[200], "end of input");
}

#[test]
fn environment_and_directory_are_as_asked_for() {
    let Some(mut linux) = Linux::begin("boot::environment", KernelFile::Cloud) else {
        return;
    };
    for word in ["--env", "COLOUR=blue and green", "--workdir", "/tmp"] {
        linux.contents.push(word.to_owned());
    }
    let done = linux
        .run("echo \"$COLOUR\"; pwd; ls -d /proc/1 /sys/class /dev/null")
        .expect_code(0);
    assert_eq!(
        done.output.lines().collect::<Vec<_>>(),
        [
            "blue and green",
            "/tmp",
            "/dev/null",
            "/proc/1",
            "/sys/class"
        ]
    );
}

#[test]
fn a_power_off_a_reboot_and_a_panic_end_the_process() {
    let Some(linux) = Linux::begin("boot::endings", KernelFile::Cloud) else {
        return;
    };
    linux.run("poweroff -f; sleep 100").expect_code(0);
    linux.run("reboot -f; sleep 100").expect_code(GUEST_RESET);
    linux
        .run("echo c > /proc/sysrq-trigger")
        .expect_code(GUEST_RESET);
}

/// By the keyboard controller, by ACPI, and by a triple fault, which no guest survives and nvx takes for a crash.
#[test]
fn each_way_of_rebooting_ends_the_process() {
    let Some(mut linux) = Linux::begin("boot::reboots", KernelFile::Cloud) else {
        return;
    };
    for (way, code) in [("k", GUEST_RESET), ("a", GUEST_RESET), ("t", CRASHED)] {
        let command_line = format!("console=ttyS0 quiet loglevel=3 panic=-1 reboot={way}");
        linux.options = vec!["--cmdline".to_owned(), command_line];
        let done = linux.run("reboot -f; sleep 100");
        assert_eq!(done.status.code(), Some(code), "reboot={way}: {done:?}");
    }
}

#[test]
fn a_module_is_loaded_and_its_device_works() {
    let Some(mut linux) = Linux::begin("boot::module", KernelFile::Cloud) else {
        return;
    };
    for module in ["virtio_mmio", "virtio-rng"] {
        linux
            .contents
            .extend(["--module".to_owned(), module.to_owned()]);
    }
    let script = "cat /sys/class/misc/hw_random/rng_current; dd if=/dev/hwrng bs=64 count=1 2>/dev/null | wc -c";
    let done = linux.run(script).expect_code(0);
    let lines: Vec<&str> = done.output.lines().collect();
    assert_eq!(lines, ["virtio_rng.0", "64"]);
}
