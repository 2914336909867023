//! Whether the file system of a file keeps a valid data length.

use std::fs::File;

use nvx_host::{AsFile, FileSystem, FileSystemKind};

use crate::choice::ValidData;

/// Whether all of the file's clusters are allocated. A file that cannot be inspected counts as sparse.
pub(crate) fn is_dense(file: &File) -> bool {
    match (nvx_host::allocated_bytes(file), file.metadata()) {
        (Ok(allocated_bytes), Ok(metadata)) => allocated_bytes >= metadata.len(),
        _ => false,
    }
}

/// What is known of the file system of `file`. NTFS, ReFS and exFAT keep a valid data length, each for
/// every file (Microsoft, "FILE_VALID_DATA_LENGTH_INFORMATION" and "SetFileValidData"); that ReFS stores
/// zeros below a mapped write behind it is assumed, not measured.
pub(crate) fn of(file: impl AsFile) -> ValidData {
    let file_system = match FileSystem::of(file) {
        Ok(file_system) => file_system,
        Err(error) => {
            return ValidData::Unknown {
                obstacle: format!("GetVolumeInformationByHandleW: {error}"),
            };
        }
    };
    let name = file_system.name().to_owned();
    match file_system.kind {
        FileSystemKind::Ntfs | FileSystemKind::Refs | FileSystemKind::Exfat => {
            ValidData::Kept { file_system: name }
        }
        FileSystemKind::Other => ValidData::Unknown {
            obstacle: "the volume's file system is not known to nvx".to_owned(),
        },
        _ => ValidData::NotKept { file_system: name },
    }
}
