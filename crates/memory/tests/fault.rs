//! A page of a RAM file that cannot be had ends the process with 125 and a line naming the file.
//!
//! Each case runs in a process of its own: this test binary, started again for one ignored test.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a failing preparation fails the test")]

mod support;

use std::fs::File;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output};

use nvx_memory::{GuestAddress, GuestMemory};
use support::{SmallDisk, flat_layout};

const RAM_BYTES: u64 = 1 << 20;

fn command(case: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([
        "--exact",
        case,
        "--ignored",
        "--nocapture",
        "--test-threads",
        "1",
    ]);
    command
}

fn run(case: &str) -> Output {
    command(case).output().unwrap()
}

fn assert_reported(output: &Output, name: &str) {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(125), "{stderr}");
    let line = format!(
        "nvx: RAM file {name}: a page could not be read or stored \
         (file truncated, or its file system is full)\n"
    );
    assert!(stderr.contains(&line), "{stderr}");
}

fn file(directory: &tempfile::TempDir) -> File {
    let path = directory.path().join("ram");
    let file = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(path)
        .unwrap();
    file.set_len(RAM_BYTES).unwrap();
    file
}

#[test]
#[ignore = "ends its process"]
fn case_read_of_a_truncated_file() {
    let directory = tempfile::tempdir().unwrap();
    let file = file(&directory);
    let other = GuestMemory::shared_file(
        flat_layout(RAM_BYTES),
        file.try_clone().unwrap(),
        Path::new("other"),
    );
    let view = file.try_clone().unwrap();
    let memory = GuestMemory::private_file(
        flat_layout(RAM_BYTES),
        view,
        Path::new("/some where/the-ram"),
    );
    drop(other);
    drop(directory);
    file.set_len(4096).unwrap();
    let _ = memory.unwrap().read_u64(GuestAddress(8192));
}

#[test]
fn a_truncated_file_is_named() {
    assert_reported(&run("case_read_of_a_truncated_file"), "/some where/the-ram");
}

#[test]
#[ignore = "ends its process"]
fn case_write_with_a_long_name_from_another_thread() {
    let directory = tempfile::tempdir().unwrap();
    let file = file(&directory);
    let name = "x".repeat(300) + "end";
    let view = file.try_clone().unwrap();
    let memory = GuestMemory::shared_file(flat_layout(RAM_BYTES), view, Path::new(&name)).unwrap();
    drop(directory);
    file.set_len(0).unwrap();
    let _ = std::thread::spawn(move || memory.write_u64(GuestAddress(0), 1)).join();
}

#[test]
fn of_a_long_name_the_end_is_printed() {
    let name = "x".repeat(253) + "end";
    assert_reported(
        &run("case_write_with_a_long_name_from_another_thread"),
        &name,
    );
}

#[test]
#[ignore = "ends its process"]
fn case_store_to_a_full_file_system() {
    let place = std::env::var_os("NVX_TEST_PLACE").unwrap();
    let (memory, _file) = support::shared(&flat_layout(RAM_BYTES), Path::new(&place));
    let _ = memory.write(GuestAddress(0), &vec![1; RAM_BYTES as usize]);
}

#[test]
fn a_file_whose_file_system_is_full_is_named() {
    let Some(disk) = SmallDisk::mount(c"size=256k") else {
        return;
    };
    let output = command("case_store_to_a_full_file_system")
        .env("NVX_TEST_PLACE", disk.path())
        .output()
        .unwrap();
    let name = disk.path().join("(nameless)");
    assert_reported(&output, name.to_str().unwrap());
}

#[test]
#[ignore = "ends its process"]
fn case_signal_from_a_process() {
    let directory = tempfile::tempdir().unwrap();
    let view = file(&directory);
    let _memory = GuestMemory::shared_file(flat_layout(RAM_BYTES), view, Path::new("ram")).unwrap();
    drop(directory);
    let own = rustix::process::getpid();
    rustix::process::kill_process(own, rustix::process::Signal::BUS).unwrap();
    std::thread::sleep(std::time::Duration::from_secs(20));
}

#[test]
fn a_signal_that_is_not_about_ram_keeps_its_meaning() {
    let output = run("case_signal_from_a_process");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.signal(), Some(7), "{stderr}");
    assert!(!stderr.contains("RAM file"), "{stderr}");
}
