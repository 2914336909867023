//! Modes, which Unix has.

use std::os::unix::fs::MetadataExt as _;

use super::{MANIFEST_FILE, published, seal};

#[test]
fn a_sealed_manifest_is_its_owners_alone() {
    let (_directory, path) = published();
    seal(&path).unwrap();
    let metadata = path.join(MANIFEST_FILE).metadata().unwrap();
    assert_eq!(metadata.mode() & 0o777, 0o600);
}
