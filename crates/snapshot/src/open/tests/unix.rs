//! Kinds of files that Unix has.

use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;

use nvx_host::FileKind;
use rustix::fs::{CWD, FileType, Mode};

use super::{FILES, published, refusal};
use crate::{OpenError, Snapshot};

#[test]
fn a_link_to_a_snapshot_directory_is_named() {
    let (temporary, path) = published();
    let root = temporary.path();
    symlink(&path, root.join("link")).unwrap();
    for link in [root.join("link"), root.join("link/")] {
        let error = Snapshot::open(&link).unwrap_err();
        assert!(
            matches!(
                error,
                OpenError::NotDirectory {
                    found: FileKind::Symlink,
                    ..
                }
            ),
            "{}",
            link.display()
        );
    }
}

#[test]
fn anything_but_a_regular_file_is_named() {
    for name in FILES {
        for kind in [FileKind::Symlink, FileKind::Fifo, FileKind::Socket] {
            let (_temporary, path) = published();
            let target = path.join(name);
            // The content is still right, for a link that leads to it.
            fs::rename(&target, path.join("moved")).unwrap();
            match kind {
                FileKind::Symlink => symlink("moved", &target).unwrap(),
                FileKind::Fifo => {
                    rustix::fs::mknodat(CWD, &target, FileType::Fifo, Mode::RUSR, 0).unwrap();
                }
                _ => drop(UnixListener::bind(&target).unwrap()),
            }
            let error = refusal(&path, name);
            assert!(
                matches!(error, OpenError::NotRegular { file, found, .. }
                    if file == name && found == kind),
                "{name} {kind}: {error}"
            );
        }
    }
}
