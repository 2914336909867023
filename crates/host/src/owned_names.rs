//! Names by which NVX recognises what its processes left behind.

use crate::FileKind;

/// Start of the name of a staging directory; 16 hexadecimal digits follow.
pub const STAGING_PREFIX: &str = ".nvx-staging-";
/// Start of the name of a RAM file that could not be made nameless; 16 hexadecimal digits follow.
pub const RAM_FILE_PREFIX: &str = ".nvx-ram-";
/// Start of the name of a file that is about to replace another one in its directory; 16 hexadecimal
/// digits follow.
pub const REPLACEMENT_PREFIX: &str = ".nvx-new-";

/// Length of the random part: 64 bits in hexadecimal.
pub(crate) const RANDOM_DIGITS: usize = 16;
/// A name that is taken, or removed at once, is not tried again this often.
pub(crate) const MAX_CREATE_ATTEMPTS: u32 = 16;
/// A scratch directory with more entries than this is somebody's mail folder.
pub(crate) const MAX_SCANNED_ENTRIES: usize = 16_384;
/// A staging directory holds three files; more than this is not ours.
pub(crate) const MAX_STAGING_FILES: usize = 8;

/// What an entry of this name is if it is NVX's; `None` for any other name.
pub(crate) fn owned_kind(name: &str) -> Option<FileKind> {
    let (digits, kind) = if let Some(digits) = name.strip_prefix(STAGING_PREFIX) {
        (digits, FileKind::Directory)
    } else {
        let file = [RAM_FILE_PREFIX, REPLACEMENT_PREFIX]
            .into_iter()
            .find_map(|prefix| name.strip_prefix(prefix));
        (file?, FileKind::Regular)
    };
    let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    (digits.len() == RANDOM_DIGITS && digits.bytes().all(is_digit)).then_some(kind)
}
