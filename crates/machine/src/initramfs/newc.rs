//! The "newc" format: a header of hexadecimal digits, the name, the bytes, each padded to four bytes.

use std::io::{self, Write};

use super::DeviceNumber;

/// Bytes of a header: the magic and thirteen fields of eight digits.
const HEADER_BYTES: u64 = 6 + 13 * 8;
/// Name of the entry that ends an archive.
const TRAILER_NAME: &[u8] = b"TRAILER!!!";

/// What an entry says of itself.
pub(super) struct Header {
    /// Entries with the same number, if `names` is more than one, are the same file.
    pub(super) inode: u32,
    pub(super) mode: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) names: u32,
    pub(super) modified_s: u32,
    pub(super) device: DeviceNumber,
    pub(super) file_bytes: u32,
}

impl Header {
    /// Writes header, name, and the padding up to the file's bytes.
    pub(super) fn write_to(&self, name: &[u8], out: &mut dyn Write) -> io::Result<()> {
        let name_bytes = name.len() as u32 + 1;
        let fields = [
            self.inode,
            self.mode,
            self.uid,
            self.gid,
            self.names,
            self.modified_s,
            self.file_bytes,
            0, // device that the file was on, major and minor number
            0,
            self.device.major,
            self.device.minor,
            name_bytes,
            0, // checksum, of another variant of the format
        ];
        let mut header = Vec::with_capacity(HEADER_BYTES as usize + name.len() + 4);
        header.extend(b"070701");
        for field in fields {
            write!(header, "{field:08x}")?;
        }
        header.extend(name);
        header.push(0);
        header.resize(header.len().next_multiple_of(4), 0);
        out.write_all(&header)
    }
}

/// The bytes of a whole entry.
pub(super) fn entry_bytes(name_bytes: usize, file_bytes: u32) -> u64 {
    let header_and_name = HEADER_BYTES + name_bytes as u64 + 1;
    header_and_name.next_multiple_of(4) + u64::from(file_bytes).next_multiple_of(4)
}

/// The bytes of the entry that ends the archive.
pub(super) fn trailer_bytes() -> u64 {
    entry_bytes(TRAILER_NAME.len(), 0)
}

/// Ends the archive.
pub(super) fn write_trailer(out: &mut dyn Write) -> io::Result<()> {
    let header = Header {
        inode: 0,
        mode: 0,
        uid: 0,
        gid: 0,
        names: 1,
        modified_s: 0,
        device: DeviceNumber::default(),
        file_bytes: 0,
    };
    header.write_to(TRAILER_NAME, out)
}

/// Pads after `file_bytes` bytes of a file.
pub(super) fn write_padding(file_bytes: u64, out: &mut dyn Write) -> io::Result<()> {
    let padding = file_bytes.next_multiple_of(4) - file_bytes;
    out.write_all(&[0; 3][..padding as usize])
}
