//! A Linux guest of the lane: which kernel, what is in its root, and talking to a shell in it.

use std::ffi::OsString;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::support::{self, Finished, Process, run, skip, start, text};

/// Reads commands and carries them out one after the other. After each it says what its status was.
pub const SHELL: &str = "echo GUEST-READY; \
     while read -r line; do eval \"$line\"; echo \"GUEST-DONE $?\"; done";
/// What [`SHELL`] says at first.
pub const READY: &str = "GUEST-READY";

/// What a kernel says of processors and processes that hang.
const STALLS: &str = "stall|soft lockup|blocked for more than";

/// Kernels that the lane has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelFile {
    /// Debian's kernel for clouds, a bzImage.
    Cloud,
    /// The same, unpacked to its ELF file.
    CloudElf,
    /// The bzImage without its PVH entry.
    CloudBoot64,
    /// Debian's generic kernel, a bzImage.
    Generic,
    /// The small kernel in a libkrunfw.
    Krunfw,
}

impl KernelFile {
    pub fn path(self) -> PathBuf {
        let directory = std::env::var_os("NVX_KERNELS").map_or("/kernels".into(), PathBuf::from);
        directory.join(match self {
            Self::Cloud => "vmlinuz",
            Self::CloudElf => "vmlinux",
            Self::CloudBoot64 => "vmlinuz-boot64",
            Self::Generic => "vmlinuz-generic",
            Self::Krunfw => "libkrunfw.so",
        })
    }
}

/// A guest to be started.
pub struct Linux {
    pub kernel: KernelFile,
    pub vcpus: u8,
    pub memory_mib: u32,
    /// Root file system, a directory or an archive.
    pub root: PathBuf,
    /// Arguments of `nvx run` about the guest's contents, such as `--module`.
    pub contents: Vec<String>,
    /// Further arguments of `nvx run`.
    pub options: Vec<String>,
    /// Roots, snapshots and sockets of the test.
    pub directory: TempDir,
}

impl Linux {
    /// A guest with one vCPU; `None`, with the reason told, outside of the lane or without the kernel.
    pub fn begin(test: &str, kernel: KernelFile) -> Option<Self> {
        let directory = support::begin(test)?;
        if !kernel.path().exists() {
            skip(test, &format!("no {} in the lane", kernel.path().display()));
            return None;
        }
        make_root(&directory.path().join("root"));
        Some(Self {
            kernel,
            vcpus: 1,
            memory_mib: 192,
            root: directory.path().join("root"),
            contents: Vec::new(),
            options: Vec::new(),
            directory,
        })
    }

    /// A path in the test's directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// `nvx run` of this guest with `script` for its shell.
    pub fn command(&self, script: &str) -> Vec<OsString> {
        let kernel = self.kernel.path();
        let memory = format!("{}M", self.memory_mib);
        let vcpus = self.vcpus.to_string();
        let words = [
            "run",
            "--kernel",
            text(&kernel),
            "--root",
            text(&self.root),
            "--memory",
            &memory,
            "--vcpus",
            &vcpus,
        ];
        let mut all: Vec<OsString> = words.iter().map(Into::into).collect();
        all.extend(self.contents.iter().map(Into::into));
        all.extend(self.options.iter().map(Into::into));
        all.extend(["--", "/bin/sh", "-c", script].iter().map(Into::into));
        all
    }

    /// Runs `script` to its end, without input.
    pub fn run(&self, script: &str) -> Finished {
        run(&self.command(script))
    }

    /// Starts [`SHELL`] and waits until it is ready.
    pub fn shell(&self) -> Shell {
        let mut guest = start(&self.command(SHELL));
        guest.line(READY);
        Shell(guest)
    }

    /// Starts [`SHELL`] in a VM under control that may be captured into the test's directory, and waits
    /// until it is ready. Returns its socket too.
    pub fn controlled_shell(&mut self) -> (Shell, PathBuf) {
        let socket = self.path("control");
        self.options = control_options(&socket, self.directory.path());
        (self.shell(), socket)
    }
}

/// Arguments of `nvx run` and `nvx restore` for a VM that may be captured into `directory`.
pub fn control_options(socket: &Path, directory: &Path) -> Vec<String> {
    [
        "--control",
        text(socket),
        "--snapshot-root",
        text(directory),
    ]
    .map(str::to_owned)
    .into()
}

/// A shell in a guest.
pub struct Shell(pub Process);

impl Shell {
    /// Carries out `command` and returns its words, joined by single spaces.
    pub fn ask(&mut self, command: &str) -> String {
        self.0.send(&format!("echo ANSWER $({command})\n"));
        let line = self.0.line("ANSWER ");
        self.0.line("GUEST-DONE 0");
        line.trim_start_matches("ANSWER ").to_owned()
    }

    /// Carries out `command`, whose output is not looked at; asserts its status.
    pub fn order(&mut self, command: &str) {
        self.0.send(&format!("{command}\n"));
        let done = self.0.line("GUEST-DONE ");
        assert_eq!(done, "GUEST-DONE 0", "{command}");
    }

    /// How often the kernel complained of processors or processes that hang.
    pub fn stalls(&mut self) -> u32 {
        self.ask(&format!("dmesg | grep -c -E '{STALLS}' || true"))
            .parse()
            .unwrap()
    }

    /// What it said then, in one line.
    pub fn stall_messages(&mut self) -> String {
        self.ask(&format!("dmesg | grep -E '{STALLS}'"))
    }

    /// Ends the guest with this status.
    pub fn exit(mut self, status: i32) -> Finished {
        self.0.send(&format!("exit {status}\n"));
        self.0.end().expect_code(status)
    }
}

/// Restores `snapshot` with further arguments; its shell goes on where it was.
pub fn restored_shell(snapshot: &Path, rest: &[String]) -> Shell {
    let rest: Vec<&str> = rest.iter().map(String::as_str).collect();
    Shell(start(&support::restore(snapshot, &rest)))
}

/// A root file system: busybox under the names that tests use.
fn make_root(root: &Path) {
    let bin = root.join("bin");
    std::fs::create_dir_all(&bin).unwrap();
    std::fs::copy("/bin/busybox", bin.join("busybox")).unwrap();
    let applets = [
        "sh",
        "cat",
        "cut",
        "date",
        "dd",
        "dmesg",
        "echo",
        "env",
        "grep",
        "head",
        "hostname",
        "kill",
        "ls",
        "mkdir",
        "mount",
        "nproc",
        "od",
        "poweroff",
        "pwd",
        "readlink",
        "reboot",
        "seq",
        "stat",
        "sha256sum",
        "sleep",
        "sort",
        "stty",
        "tail",
        "test",
        "touch",
        "tr",
        "true",
        "uname",
        "wc",
    ];
    for applet in applets {
        symlink("busybox", bin.join(applet)).unwrap();
    }
}
