//! The files of a guest: the probe guest that a build brings along (every build has its own, so it is asked
//! for it), and the initramfs that it packs.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Name of the exported file in a run's work directory.
const EXPORTED_FILE: &str = "probe.elf";

/// Why a build's guest is not known.
#[derive(Debug, thiserror::Error)]
pub enum GuestImageError {
    /// The build cannot be run.
    #[error("cannot start {}", program.display())]
    Start {
        /// The program.
        program: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// It does not give its guest.
    #[error("{} guest {command} ended with {status}: {said}", program.display())]
    Refused {
        /// The program.
        program: PathBuf,
        /// What it was asked for.
        command: &'static str,
        /// How it ended.
        status: String,
        /// What it said.
        said: String,
    },
    /// A file of the guest that was named cannot be used.
    #[error("{option} {}", path.display())]
    Input {
        /// The option that named it.
        option: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The exported file cannot be used.
    #[error("{}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
}

/// The ELF file of the probe guest that `program` runs; `work` is a directory that may be written to.
pub(crate) fn probe_image(program: &Path, work: &Path) -> Result<Vec<u8>, GuestImageError> {
    let path = work.join(EXPORTED_FILE);
    ask(program, "export", &[path.clone().into()])?;
    let read = std::fs::read(&path).and_then(|image| {
        std::fs::remove_file(&path)?;
        Ok(image)
    });
    read.map_err(|source| GuestImageError::File { path, source })
}

/// Has `program` write the initramfs of a guest with this kernel to `file`; `contents` are further arguments of
/// `nvx guest pack`.
pub(crate) fn pack_initramfs(
    program: &Path,
    file: &Path,
    kernel: &Path,
    contents: &[OsString],
) -> Result<(), GuestImageError> {
    let mut arguments: Vec<OsString> = vec![file.into(), "--kernel".into(), kernel.into()];
    arguments.extend_from_slice(contents);
    ask(program, "pack", &arguments)
}

/// Runs `program guest command` to its end.
fn ask(
    program: &Path,
    command: &'static str,
    arguments: &[OsString],
) -> Result<(), GuestImageError> {
    let output = Command::new(program)
        .args(["guest", command])
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .map_err(|source| GuestImageError::Start {
            program: program.to_owned(),
            source,
        })?;
    if !output.status.success() {
        return Err(GuestImageError::Refused {
            program: program.to_owned(),
            command,
            status: output.status.to_string(),
            said: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        });
    }
    Ok(())
}

/// Reads a file of the guest that the user named by `option`.
pub(crate) fn read_input(option: &'static str, path: &Path) -> Result<Vec<u8>, GuestImageError> {
    std::fs::read(path).map_err(|source| GuestImageError::Input {
        option,
        path: path.to_owned(),
        source,
    })
}

/// BLAKE3 of a file's content, hexadecimal.
pub(crate) fn digest(content: &[u8]) -> String {
    blake3::hash(content).to_hex().to_string()
}

#[cfg(test)]
#[cfg(unix)]
pub(crate) mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    /// A program of this text in `directory`.
    pub(crate) fn script(directory: &Path, text: &str) -> PathBuf {
        let path = directory.join("build");
        std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).expect("space");
        let executable = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(&path, executable).expect("ours");
        path
    }

    #[test]
    fn a_build_is_asked_for_its_own_guest() {
        let directory = tempfile::tempdir().expect("a directory");
        let build = script(directory.path(), "printf guest > \"$3\"");
        let image = probe_image(&build, directory.path()).expect("a guest");
        assert_eq!(image, b"guest");
        let again = probe_image(&build, directory.path()).expect("the file was removed");
        assert_eq!(digest(&again), blake3::hash(b"guest").to_hex().as_str());
    }

    #[test]
    fn a_build_without_a_guest_is_named() {
        let directory = tempfile::tempdir().expect("a directory");
        let build = script(directory.path(), "echo no guest >&2; exit 3");
        let error = probe_image(&build, directory.path()).expect_err("none");
        assert!(error.to_string().ends_with("no guest"), "{error}");
        let error = probe_image(&directory.path().join("none"), directory.path());
        assert!(matches!(error, Err(GuestImageError::Start { .. })));
    }
}
