//! The zero-fill story on a real NTFS driver, told by counted bytes.
//!
//! A file whose initialized size (NTFS's name for the valid data length) is 0 can be made on Linux only
//! beside a mounted file system: `ntfsfallocate` on the unmounted volume. Through the mount it would be
//! imitated by writing. The volume lies on a loop device, whose own counter says what was written, and
//! which nobody else uses.
//!
//! ntfs-3g by default may hold only one percent of the machine's dirty pages, so the kernel writes most
//! of a guest's pages, ascending, before any flush. Where that limit can be lifted the tests do so, for
//! the flush to meet all dirty pages.
//!
//! Whatever way a test ends, nothing stays: the image has no name, the loop device detaches when its last
//! user goes, and a watcher process unmounts the volume once the test's end of a pipe is closed. A
//! namespace would not do: a FUSE server that is killed with its namespace waits for itself in the unmount.

#![cfg(unix)]
#![allow(
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a skipped test says why, and one that is to be killed what it mounted"
)]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking, also in its helper functions"
)]

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

const MIB: f64 = 1_048_576.0;
const RAM_BYTES: u64 = 128 << 20;
/// Five RAM files, a snapshot, and the file system's own records.
const VOLUME_BYTES: u64 = 1200 << 20;
const PATTERNS: [&str; 5] = ["all", "alternate", "top:16", "spread:256", "random:25"];

fn skip(test: &str, reason: &str) {
    eprintln!("SKIP: {test}: {reason}");
    if let Some(path) = std::env::var_os("NVX_TEST_SKIPS") {
        let mut file = std::fs::OpenOptions::new().append(true).open(path).unwrap();
        file.write_all(format!("{test}: {reason}\n").as_bytes())
            .unwrap();
    }
}

fn obstacle() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("mounting needs root".to_owned());
    }
    for device in ["/dev/fuse", "/dev/loop-control"] {
        if let Err(error) = File::open(device) {
            return Some(format!("{device} cannot be opened ({error})"));
        }
    }
    for tool in ["mkntfs", "ntfsfallocate", "ntfsinfo", "ntfs-3g"] {
        if Command::new(tool).arg("--help").output().is_err() {
            return Some(format!("{tool} is missing; it is in the package ntfs-3g"));
        }
    }
    for tool in ["losetup", "umount", "setsid", "pgrep"] {
        if Command::new(tool).arg("--help").output().is_err() {
            return Some(format!("{tool} is missing"));
        }
    }
    None
}

/// Whether the test can run here; tells why not.
fn begin(test: &str) -> bool {
    match obstacle() {
        Some(reason) => {
            skip(test, &reason);
            false
        }
        None => true,
    }
}

fn tool(name: &str, arguments: &[&str]) -> String {
    let output = Command::new(name).args(arguments).output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name} {arguments:?}: {told}");
    String::from_utf8(output.stdout).unwrap()
}

/// Unmounts `$1` and removes it when standard input ends.
const WATCHER: &str = r#"cat; umount --lazy "$1"; rmdir "$1""#;

/// An NTFS volume on a loop device.
struct Volume {
    device: String,
    /// Keeps the device attached while nothing is mounted.
    _user: File,
    _image: File,
    mount: PathBuf,
    watcher: Child,
}

impl Volume {
    fn new() -> Self {
        let image = tempfile::tempfile_in("/dev/shm").unwrap();
        image.set_len(VOLUME_BYTES).unwrap();
        let path = format!("/proc/{}/fd/{}", std::process::id(), image.as_raw_fd());
        let device = tool("losetup", &["--find", "--show", &path]);
        let device = device.trim().to_owned();
        let user = File::open(&device).unwrap();
        // While it has a user, this makes the device detach itself once it has none.
        tool("losetup", &["--detach", &device]);
        tool("mkntfs", &["-F", "-Q", "-c", "4096", &device]);
        let mount = tempfile::tempdir().unwrap().keep();
        // In a session of its own: who kills the test kills its process group.
        let watcher = Command::new("setsid")
            .args(["sh", "-c", WATCHER, "watcher"])
            .arg(&mount)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self {
            device,
            _user: user,
            _image: image,
            mount,
            watcher,
        }
    }

    fn mount(&self) {
        tool("ntfs-3g", &[&self.device, self.mount.to_str().unwrap()]);
    }

    /// What the command line of the file system's server has in it, and no other process's.
    fn server(&self) -> String {
        format!("ntfs-3g {} ", self.device)
    }

    fn unmount(&self) {
        tool("umount", &[self.mount.to_str().unwrap()]);
        // The server writes its last records after the unmount has returned.
        let server = self.server();
        let serves = || {
            let found = Command::new("pgrep").args(["-f", &server]).output();
            found.is_ok_and(|output| output.status.success())
        };
        wait_until("ntfs-3g has ended", || !serves());
    }

    /// Mounts the volume with `count` new RAM files of initialized size 0, and nothing else.
    fn with_new_files(&self, count: usize) -> Vec<PathBuf> {
        let names: Vec<String> = (0..count).map(|n| format!("ram{n}")).collect();
        self.mount();
        for name in &names {
            let path = self.mount.join(name);
            let _ = std::fs::remove_file(&path);
            File::create_new(&path).unwrap();
        }
        self.unmount();
        let length = RAM_BYTES.to_string();
        for name in &names {
            tool("ntfsfallocate", &["-l", &length, &self.device, name]);
            let about = tool("ntfsinfo", &["-f", "-F", name, &self.device]);
            assert_eq!(initialized_size(&about), Some(0), "{about}");
        }
        self.mount();
        names.iter().map(|name| self.mount.join(name)).collect()
    }

    /// Bytes that the device has written since it was attached.
    fn written_bytes(&self) -> u64 {
        let name = self.device.trim_start_matches("/dev/");
        let stat = std::fs::read_to_string(format!("/sys/block/{name}/stat")).unwrap();
        // The seventh field counts sectors of 512 bytes (Linux, Documentation/block/stat.rst).
        let sectors = stat.split_ascii_whitespace().nth(6).unwrap();
        sectors.parse::<u64>().unwrap() * 512
    }

    /// Lets the file system hold as many dirty pages as any other; `false` where the kernel cannot.
    fn lift_dirty_limit(&self) -> bool {
        let name = self.device.trim_start_matches("/dev/");
        let number = std::fs::read_to_string(format!("/sys/block/{name}/dev")).unwrap();
        let limits = PathBuf::from(format!("/sys/class/bdi/{}-fuseblk", number.trim()));
        std::fs::write(limits.join("strict_limit"), "0").is_ok()
            && std::fs::write(limits.join("max_ratio"), "100").is_ok()
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        // The watcher does the work, here as after a kill.
        drop(self.watcher.stdin.take());
        let _ = self.watcher.wait();
    }
}

/// The number in the last line `Initialized size: 0 (0x0)`: that of the unnamed data stream.
fn initialized_size(about: &str) -> Option<u64> {
    let line = about
        .lines()
        .rfind(|line| line.contains("Initialized size:"))?;
    line.split_ascii_whitespace().nth(2)?.parse().ok()
}

fn wait_until(what: &str, done: impl Fn() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(
            start.elapsed() < Duration::from_secs(20),
            "waiting until {what}"
        );
        thread::sleep(Duration::from_millis(20));
    }
}

/// Runs `nvx bench writeback` on prepared files and returns its JSON.
fn bench(files: &[PathBuf], options: &[&str]) -> Value {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nvx"));
    command.args(["bench", "writeback", "--json", "--memory"]);
    command.arg(RAM_BYTES.to_string()).args(options);
    for file in files {
        command.arg("--ram-file").arg(file);
    }
    let output = command.output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn samples(report: &Value) -> impl Iterator<Item = &Value> {
    let cells = report["cells"].as_array().unwrap().iter();
    cells.flat_map(|cell| cell["samples"].as_array().unwrap())
}

/// What the device wrote in a sample, in MiB.
fn device_mib(sample: &Value) -> f64 {
    sample["device_bytes"]
        .as_f64()
        .expect("a loop device counts")
        / MIB
}

#[test]
fn one_ascending_pass_writes_each_page_once() {
    if !begin("one_ascending_pass_writes_each_page_once") {
        return;
    }
    let volume = Volume::new();
    let mut by_pattern = [(); PATTERNS.len()].map(|()| Vec::new());
    for _ in 0..5 {
        let files = volume.with_new_files(PATTERNS.len());
        volume.lift_dirty_limit();
        let report = bench(&files, &["--writeback", "auto", "--samples", "1"]);
        assert_eq!(report["file_system"], "ntfs (by FUSE)");
        for (sample, all) in samples(&report).zip(&mut by_pattern) {
            assert_eq!(sample["strategy"], "ascending-marked", "{sample}");
            assert!(
                sample["reason"]
                    .as_str()
                    .unwrap()
                    .contains("valid data length")
            );
            all.push(device_mib(sample));
        }
        volume.unmount();
    }
    for (pattern, written) in PATTERNS.iter().zip(&by_pattern) {
        eprintln!("{pattern}: {written:.2?} MiB");
        assert_eq!(written.len(), 5);
        let (least, most) = (smallest(written), -smallest(&negated(written)));
        assert!((128.0..=129.0).contains(&least), "{pattern}: {written:?}");
        assert!((128.0..=129.0).contains(&most), "{pattern}: {written:?}");
        assert!(most - least <= 0.5, "{pattern}: {written:?}");
    }
}

fn smallest(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::INFINITY, f64::min)
}

fn negated(values: &[f64]) -> Vec<f64> {
    values.iter().map(|value| -value).collect()
}

#[test]
fn eight_ranges_write_alternate_pages_more_than_once() {
    const TEST: &str = "eight_ranges_write_alternate_pages_more_than_once";
    if !begin(TEST) {
        return;
    }
    let volume = Volume::new();
    let files = volume.with_new_files(5);
    if !volume.lift_dirty_limit() {
        skip(
            TEST,
            "this kernel cannot lift the limit of dirty pages of FUSE (Linux 6.2 can)",
        );
        return;
    }
    let options = [
        "--writeback",
        "ranges:8",
        "--pattern",
        "alternate",
        "--samples",
        "5",
    ];
    let report = bench(&files, &options);
    let written: Vec<f64> = samples(&report).map(device_mib).collect();
    eprintln!("ranges:8, alternate: {written:.2?} MiB");
    let median = report["cells"][0]["device_bytes"]["p50"].as_f64().unwrap() / MIB;
    assert!(median > 131.0, "{written:?}");
}

#[test]
fn a_fully_initialized_file_is_written_where_it_is_dirty() {
    if !begin("a_fully_initialized_file_is_written_where_it_is_dirty") {
        return;
    }
    let volume = Volume::new();
    let files = volume.with_new_files(1);
    std::fs::write(&files[0], vec![0; RAM_BYTES as usize]).unwrap();
    File::open(&files[0]).unwrap().sync_all().unwrap();
    volume.lift_dirty_limit();
    let options = [
        "--writeback",
        "ascending",
        "--writeback",
        "ranges:8",
        "--pattern",
        "alternate",
        "--samples",
        "3",
    ];
    let report = bench(&files, &options);
    for sample in samples(&report) {
        let written = device_mib(sample);
        eprintln!("{}: {written:.2} MiB", sample["strategy"]);
        assert!((63.9..=66.0).contains(&written), "{sample}");
    }
}

/// Runs `nvx demo`, which captures a guest and restores it; returns what it found.
fn demo(volume: &Volume, options: &[&str]) -> Value {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nvx"));
    command.args(["demo", "--json", "--dir"]).arg(&volume.mount);
    let output = command.args(options).output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}");
    let result: Value = serde_json::from_slice(&output.stdout).unwrap();
    eprintln!("{}", result["capture"]);
    // No-replace renames are what ntfs-3g lacks in any case.
    let fallbacks = result["capture"]["fallbacks"].to_string();
    assert!(fallbacks.contains("RENAME_NOREPLACE"), "{result}");
    let snapshot = Path::new(result["snapshot"].as_str().unwrap());
    let left = std::fs::read_dir(&volume.mount).unwrap();
    let left: Vec<_> = left.map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(
        left,
        [snapshot.file_name().unwrap()],
        "the RAM file's own name is gone"
    );
    result
}

#[test]
fn a_guest_is_captured_and_restored_on_ntfs() {
    if !begin("a_guest_is_captured_and_restored_on_ntfs") {
        return;
    }
    let volume = Volume::new();
    volume.mount();
    let result = demo(&volume, &["--memory", "64M", "--fill", "spread:64"]);
    let capture = &result["capture"];
    let fallbacks = capture["fallbacks"].to_string();
    assert!(fallbacks.contains("nameless"), "{capture}");
    assert_eq!(capture["strategy"], "ascending (sparse file)");
}

#[test]
fn a_guest_in_a_new_dense_file_is_written_once() {
    if !begin("a_guest_in_a_new_dense_file_is_written_once") {
        return;
    }
    let volume = Volume::new();
    for fill in ["alternate", "spread:256"] {
        let files = volume.with_new_files(1);
        volume.lift_dirty_limit();
        let before = volume.written_bytes();
        let file = files[0].to_str().unwrap();
        let options = ["--memory", "128M", "--fill", fill, "--ram-file", file];
        let result = demo(&volume, &options);
        let snapshot = PathBuf::from(result["snapshot"].as_str().unwrap());
        volume.unmount();
        let written = (volume.written_bytes() - before) as f64 / MIB;
        eprintln!("{fill}: {written:.2} MiB for a whole capture and restore");
        assert!((128.0..=130.0).contains(&written), "{fill}: {written} MiB");
        let capture = &result["capture"];
        assert_eq!(capture["publication"], "link", "{capture}");
        assert_eq!(capture["ram_backing"], "prepared-file");
        assert_eq!(
            capture["strategy"],
            "ascending-marked (dense file on ntfs (by FUSE), which has a valid data length)"
        );
        // What is on the device now is the snapshot, not what a cache still knew.
        volume.mount();
        restore(&snapshot);
        std::fs::remove_dir_all(&snapshot).unwrap();
        volume.unmount();
    }
}

/// Restores a snapshot of the probe guest and has it verify its RAM.
fn restore(snapshot: &Path) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_nvx"))
        .arg("restore")
        .arg(snapshot)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"v\nx0\n").unwrap();
    let output = child.wait_with_output().unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{told}");
    assert!(told.contains("PROBE-VERIFY ok"), "{told}");
}

#[test]
fn a_device_that_vanishes_keeps_what_was_measured() {
    if !begin("a_device_that_vanishes_keeps_what_was_measured") {
        return;
    }
    const RUN_BYTES: u64 = 16 << 20;
    let volume = Volume::new();
    volume.mount();
    let start = volume.written_bytes();
    let mut command = Command::new(env!("CARGO_BIN_EXE_nvx"));
    command
        .args(["bench", "writeback", "--json", "--memory", "16M", "--dir"])
        .arg(&volume.mount)
        .args(["--warmups", "0", "--samples", "999", "--pattern", "all"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    wait_until("two runs have ended", || {
        volume.written_bytes() - start > 2 * RUN_BYTES + RUN_BYTES / 2
    });
    // Without its server the file system answers nothing any more.
    let server = tool("pgrep", &["-f", &volume.server()]);
    let server = rustix::process::Pid::from_raw(server.trim().parse().unwrap()).unwrap();
    rustix::process::kill_process(server, rustix::process::Signal::KILL).unwrap();
    let output = child.wait_with_output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(75), "{told}");
    assert!(told.contains("incomplete: run "), "{told}");
    eprintln!("{told}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["complete"], false);
    assert!(samples(&report).count() >= 2, "{report}");
}

#[test]
fn nothing_is_left_of_a_test_that_is_killed() {
    if !begin("nothing_is_left_of_a_test_that_is_killed") {
        return;
    }
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "wait_to_be_killed", "--ignored", "--nocapture"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let device = announced_device(&mut child);
    let attached = format!("/sys/block/{device}/loop/backing_file");
    assert!(Path::new(&attached).exists());
    child.kill().unwrap();
    child.wait().unwrap();
    wait_until("the loop device is detached", || {
        !Path::new(&attached).exists()
    });
}

/// Reads the child's output up to the line that names its loop device.
fn announced_device(child: &mut Child) -> String {
    let mut output = child.stdout.take().unwrap();
    let mut text = String::new();
    let mut buffer = [0; 256];
    loop {
        let count = output.read(&mut buffer).unwrap();
        assert_ne!(count, 0, "ended early: {text}");
        text.push_str(&String::from_utf8_lossy(&buffer[..count]));
        let line = text
            .lines()
            .find_map(|line| line.split_once("MOUNTED /dev/"));
        if let Some((_, device)) = line
            && text.ends_with('\n')
        {
            return device.to_owned();
        }
    }
}

#[test]
#[ignore = "waits to be killed: started by nothing_is_left_of_a_test_that_is_killed"]
fn wait_to_be_killed() {
    let volume = Volume::new();
    volume.mount();
    println!("MOUNTED {}", volume.device);
    thread::sleep(Duration::from_secs(60));
}
