//! The guest that is measured: the built-in probe guest, or a Linux kernel with an initramfs.
//!
//! Whichever it is, it speaks the probe guest's lines on its console: it says [`crate::READY_MARKER`], asks for
//! a snapshot when it reads `s`, says [`crate::RESTORED_MARKER`] in the copy, and ends when it reads `x0`. In an
//! initramfs that is packed for it, `nvx guest probe` does that.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use nvx_probe_guest::ProbeParams;

use crate::guest_image::{GuestImageError, digest, pack_initramfs, probe_image, read_input};

/// Name of the packed initramfs in a run's work directory.
const PACKED_FILE: &str = "initramfs.cpio";

/// What is run in the VM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Guest {
    /// The probe guest that the program brings along.
    Probe(ProbeParams),
    /// A Linux kernel.
    Linux(LinuxGuest),
}

/// A Linux kernel and what it starts with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinuxGuest {
    /// The kernel's file.
    pub kernel: PathBuf,
    /// Its initramfs.
    pub initramfs: InitramfsChoice,
    /// Its command line.
    pub command_line: String,
}

/// Where an initramfs comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InitramfsChoice {
    /// A file as it is.
    File(PathBuf),
    /// The program packs it once, before anything is measured; these are arguments of `nvx guest pack`.
    Packed(Vec<OsString>),
}

impl LinuxGuest {
    /// The initramfs's file, unless it is packed.
    pub(crate) fn initrd(&self) -> Option<&Path> {
        match &self.initramfs {
            InitramfsChoice::File(file) => Some(file),
            InitramfsChoice::Packed(_) => None,
        }
    }

    /// What is packed, for people.
    pub(crate) fn contents(&self) -> Vec<String> {
        match &self.initramfs {
            InitramfsChoice::File(_) => Vec::new(),
            InitramfsChoice::Packed(words) => words
                .iter()
                .map(|word| word.to_string_lossy().into_owned())
                .collect(),
        }
    }
}

impl Guest {
    /// `probe` or `linux`.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Probe(_) => "probe",
            Self::Linux(_) => "linux",
        }
    }

    /// What the kernel, or the probe guest, is told by its command line.
    pub fn command_line(&self) -> String {
        match self {
            Self::Probe(probe) => probe.command_line(),
            Self::Linux(linux) => linux.command_line.clone(),
        }
    }

    /// What the probe guest is asked to do, as users write it; empty for another guest.
    pub fn probe_text(&self) -> String {
        match self {
            Self::Probe(probe) => probe.to_string(),
            Self::Linux(_) => String::new(),
        }
    }

    /// The Linux guest, if it is one.
    pub(crate) fn linux(&self) -> Option<&LinuxGuest> {
        match self {
            Self::Probe(_) => None,
            Self::Linux(linux) => Some(linux),
        }
    }

    /// The arguments of `nvx run` that start it.
    pub(crate) fn arguments(&self) -> Vec<OsString> {
        match self {
            Self::Probe(probe) => vec![
                "--guest".into(),
                "probe".into(),
                "--probe".into(),
                probe.to_string().into(),
            ],
            Self::Linux(linux) => {
                let mut arguments: Vec<OsString> = vec![
                    "--kernel".into(),
                    linux.kernel.clone().into(),
                    "--cmdline".into(),
                    linux.command_line.clone().into(),
                ];
                if let Some(file) = linux.initrd() {
                    arguments.extend(["--initrd".into(), file.into()]);
                }
                arguments
            }
        }
    }
}

/// A guest whose files are all there, and what they are.
#[derive(Debug)]
pub(crate) struct PreparedGuest {
    /// The guest; its initramfs is a file.
    pub(crate) guest: Guest,
    /// BLAKE3 of its kernel, hexadecimal; of the probe guest it is the ELF file.
    pub(crate) kernel_blake3: String,
    /// BLAKE3 of its initramfs.
    pub(crate) initramfs_blake3: Option<String>,
}

/// Gets everything of a guest that `program` is to run, and its digests. What has to be made goes into `work`
/// and is needed as long as the guest is started.
pub(crate) fn prepare(
    guest: &Guest,
    program: &Path,
    work: &Path,
) -> Result<PreparedGuest, GuestImageError> {
    let linux = match guest {
        Guest::Probe(_) => {
            return Ok(PreparedGuest {
                guest: guest.clone(),
                kernel_blake3: digest(&probe_image(program, work)?),
                initramfs_blake3: None,
            });
        }
        Guest::Linux(linux) => linux,
    };
    let kernel = read_input("--kernel", &linux.kernel)?;
    let file = match &linux.initramfs {
        InitramfsChoice::File(file) => file.clone(),
        InitramfsChoice::Packed(contents) => {
            let file = work.join(PACKED_FILE);
            pack_initramfs(program, &file, &linux.kernel, contents)?;
            file
        }
    };
    let initramfs = read_input("--initrd", &file)?;
    Ok(PreparedGuest {
        guest: Guest::Linux(LinuxGuest {
            initramfs: InitramfsChoice::File(file),
            ..linux.clone()
        }),
        kernel_blake3: digest(&kernel),
        initramfs_blake3: Some(digest(&initramfs)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn linux(initramfs: InitramfsChoice) -> Guest {
        Guest::Linux(LinuxGuest {
            kernel: "vmlinuz".into(),
            initramfs,
            command_line: "console=ttyS0 quiet".to_owned(),
        })
    }

    #[test]
    fn a_linux_guest_is_started_with_its_files() {
        let guest = linux(InitramfsChoice::File("root.cpio".into()));
        let words = [
            "--kernel",
            "vmlinuz",
            "--cmdline",
            "console=ttyS0 quiet",
            "--initrd",
            "root.cpio",
        ];
        assert_eq!(guest.arguments(), words.map(OsString::from));
        assert_eq!((guest.kind(), guest.probe_text().as_str()), ("linux", ""));
        let probe = Guest::Probe(ProbeParams::default());
        assert_eq!(probe.arguments()[..2], ["--guest", "probe"]);
    }

    #[test]
    fn a_file_that_is_not_there_is_named_by_its_option() {
        let directory = tempfile::tempdir().expect("a directory");
        let kernel = directory.path().join("vmlinuz");
        std::fs::write(&kernel, "kernel").expect("space");
        let missing = directory.path().join("missing");
        let program = Path::new("never started");
        let prepared = |kernel: &Path, initrd: &Path| {
            let guest = Guest::Linux(LinuxGuest {
                kernel: kernel.to_owned(),
                initramfs: InitramfsChoice::File(initrd.to_owned()),
                command_line: String::new(),
            });
            prepare(&guest, program, directory.path())
        };
        for (kernel, initrd, option) in [
            (&missing, &kernel, "--kernel"),
            (&kernel, &missing, "--initrd"),
        ] {
            let error = prepared(kernel, initrd).expect_err("missing");
            assert!(error.to_string().starts_with(option), "{error}");
        }
        let whole = prepared(&kernel, &kernel).expect("both are there");
        assert_eq!(whole.kernel_blake3, digest(b"kernel"));
        assert_eq!(whole.initramfs_blake3, Some(digest(b"kernel")));
    }

    #[cfg(unix)]
    #[test]
    fn an_initramfs_is_packed_by_the_program_that_is_measured() {
        let directory = tempfile::tempdir().expect("a directory");
        let kernel = directory.path().join("vmlinuz");
        std::fs::write(&kernel, "kernel").expect("space");
        let script = "shift 2; to=$1; shift; echo \"$@\" > \"$to\"";
        let program = crate::guest_image::tests::script(directory.path(), script);
        let guest = Guest::Linux(LinuxGuest {
            kernel: kernel.clone(),
            initramfs: InitramfsChoice::Packed(vec!["--".into(), "probe".into()]),
            command_line: String::new(),
        });
        let prepared = prepare(&guest, &program, directory.path()).expect("packed");
        let packed = directory.path().join(PACKED_FILE);
        let text = std::fs::read_to_string(&packed).expect("packed");
        assert_eq!(text, format!("--kernel {} -- probe\n", kernel.display()));
        assert_eq!(prepared.initramfs_blake3, Some(digest(text.as_bytes())));
        let last = prepared.guest.arguments().pop();
        assert_eq!(last, Some(packed.into()));
    }
}
