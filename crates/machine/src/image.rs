//! Reading a guest image, and telling what a file is that cannot be one.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// The largest guest image in bytes (512 MiB); a Linux kernel with all its sections has some 50 MiB.
pub const IMAGE_MAX_BYTES: u64 = 512 << 20;

/// Why a guest image cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ImageReadError {
    /// The system refused.
    #[error("{}: cannot be read", path.display())]
    Io {
        /// The image.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// It is no regular file.
    #[error("{}: is {found}, not a regular file", path.display())]
    NotAFile {
        /// The image.
        path: PathBuf,
        /// What it is instead, with its article.
        found: &'static str,
    },
    /// It is larger than any guest image.
    #[error("{}: is larger than {IMAGE_MAX_BYTES} bytes", path.display())]
    TooLarge {
        /// The image.
        path: PathBuf,
    },
}

/// Reads the guest image at `path`, which may be a symbolic link to a regular file.
///
/// # Errors
/// [`ImageReadError`] when it is missing, unreadable, no regular file, or larger than [`IMAGE_MAX_BYTES`].
pub fn read_image(path: &Path) -> Result<Vec<u8>, ImageReadError> {
    let failed = |source| ImageReadError::Io {
        path: path.to_owned(),
        source,
    };
    let too_large = || ImageReadError::TooLarge {
        path: path.to_owned(),
    };
    // Looked at before it is opened: opening a FIFO would wait for a writer.
    let metadata = std::fs::metadata(path).map_err(failed)?;
    if !metadata.is_file() {
        return Err(ImageReadError::NotAFile {
            path: path.to_owned(),
            found: if metadata.is_dir() {
                "a directory"
            } else {
                "a device, pipe or socket"
            },
        });
    }
    if metadata.len() > IMAGE_MAX_BYTES {
        return Err(too_large());
    }
    let file = File::open(path).map_err(failed)?;
    let mut bytes = Vec::with_capacity(usize::try_from(metadata.len()).unwrap_or(0));
    // The file may have grown since: read one byte past the bound to notice.
    file.take(IMAGE_MAX_BYTES + 1)
        .read_to_end(&mut bytes)
        .map_err(failed)?;
    if bytes.len() as u64 > IMAGE_MAX_BYTES {
        return Err(too_large());
    }
    Ok(bytes)
}

/// What an image that is no ELF file looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImageFormat {
    /// Nothing at all.
    Empty,
    /// A Linux kernel with its boot code, usually compressed.
    BzImage,
    /// A Windows or EFI program.
    Pe,
    /// gzip data.
    Gzip,
    /// xz data.
    Xz,
    /// Zstandard data.
    Zstd,
    /// LZ4 data.
    Lz4,
    /// bzip2 data.
    Bzip2,
    /// A cpio archive, such as an initramfs.
    Cpio,
    /// A script that names its interpreter.
    Script,
    /// Readable text.
    Text,
    /// None of these.
    Unknown,
}

impl ImageFormat {
    /// Tells by the first bytes.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        // Linux boot protocol: boot sector signature at 0x1fe, "HdrS" at 0x202.
        if bytes.get(0x1fe..0x200) == Some(&[0x55, 0xaa])
            && bytes.get(0x202..0x206) == Some(b"HdrS")
        {
            return Self::BzImage;
        }
        let magics: [(&[u8], Self); 10] = [
            (b"MZ", Self::Pe),
            (&[0x1f, 0x8b], Self::Gzip),
            (&[0xfd, b'7', b'z', b'X', b'Z', 0], Self::Xz),
            (&[0x28, 0xb5, 0x2f, 0xfd], Self::Zstd),
            (&[0x02, 0x21, 0x4c, 0x18], Self::Lz4),
            (&[0x04, 0x22, 0x4d, 0x18], Self::Lz4),
            (b"BZh", Self::Bzip2),
            (b"070701", Self::Cpio),
            (b"070702", Self::Cpio),
            (b"#!", Self::Script),
        ];
        if let Some((_, format)) = magics.iter().find(|(magic, _)| bytes.starts_with(magic)) {
            return *format;
        }
        let start = &bytes[..bytes.len().min(512)];
        let readable = |byte: &u8| byte.is_ascii_graphic() || byte.is_ascii_whitespace();
        match start {
            [] => Self::Empty,
            _ if start.iter().all(readable) => Self::Text,
            _ => Self::Unknown,
        }
    }
}

impl fmt::Display for ImageFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Empty => "it is empty",
            Self::BzImage => "it looks like a bzImage (a compressed Linux kernel)",
            Self::Pe => "it looks like a Windows or EFI program",
            Self::Gzip => "it looks like gzip data",
            Self::Xz => "it looks like xz data",
            Self::Zstd => "it looks like Zstandard data",
            Self::Lz4 => "it looks like LZ4 data",
            Self::Bzip2 => "it looks like bzip2 data",
            Self::Cpio => "it looks like a cpio archive (an initramfs)",
            Self::Script => "it looks like a script",
            Self::Text => "it looks like text",
            Self::Unknown => "its format is unknown",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_regular_file_is_read_and_others_are_named() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("image");
        std::fs::write(&path, b"bytes").unwrap();
        assert_eq!(read_image(&path).unwrap(), b"bytes");

        let refused = |path: &Path| read_image(path).unwrap_err().to_string();
        assert!(refused(directory.path()).ends_with("is a directory, not a regular file"));
        let missing = directory.path().join("missing");
        assert!(refused(&missing).contains("missing: cannot be read"));
        File::create(&path)
            .unwrap()
            .set_len(IMAGE_MAX_BYTES + 1)
            .unwrap();
        assert!(refused(&path).contains("is larger than 536870912 bytes"));
    }

    #[cfg(unix)]
    #[test]
    fn a_device_is_refused() {
        let error = read_image(Path::new("/dev/null")).unwrap_err().to_string();
        assert!(error.contains("is a device, pipe or socket"), "{error}");
    }

    #[test]
    fn formats_are_told_apart() {
        let mut bz_image = vec![0u8; 0x300];
        bz_image[..2].copy_from_slice(b"MZ");
        bz_image[0x1fe..0x200].copy_from_slice(&[0x55, 0xaa]);
        bz_image[0x202..0x206].copy_from_slice(b"HdrS");
        for (bytes, format) in [
            (&bz_image[..], ImageFormat::BzImage),
            (&bz_image[..0x205], ImageFormat::Pe),
            (b"", ImageFormat::Empty),
            (b"\x1f\x8b\x08", ImageFormat::Gzip),
            (b"\xfd7zXZ\0", ImageFormat::Xz),
            (b"\x28\xb5\x2f\xfd", ImageFormat::Zstd),
            (b"\x02\x21\x4c\x18", ImageFormat::Lz4),
            (b"BZh9", ImageFormat::Bzip2),
            (b"070701", ImageFormat::Cpio),
            (b"#!/bin/sh\n", ImageFormat::Script),
            (b"hello\n", ImageFormat::Text),
            (b"\0\0\0\0", ImageFormat::Unknown),
        ] {
            assert_eq!(ImageFormat::of(bytes), format);
        }
    }
}
