//! The two formats of a snapshot.

use nvx_hypervisor::{ClockState, IrqChipState, SavedState, VcpuState};
use nvx_snapshot::{DIGEST_BYTES, Digest, MAX_NAME_BYTES, Manifest, StateReader};

use crate::devices::Machine;

/// `manifest.json`, as it is and with a right checksum.
pub(crate) fn manifest(bytes: &[u8]) {
    check_manifest(bytes);
    check_manifest(&sealed(bytes));
}

fn check_manifest(bytes: &[u8]) {
    let Ok(manifest) = Manifest::decode(bytes) else {
        return;
    };
    manifest
        .ram_layout()
        .expect("what decodes has a layout of RAM");
    let encoded = manifest.encode().expect("what decodes can be encoded");
    let again = Manifest::decode(&encoded).expect("what was encoded can be decoded");
    assert_eq!(again, manifest);
}

/// `bytes` as a document whose last member is the checksum of what stands before it.
fn sealed(bytes: &[u8]) -> Vec<u8> {
    const CHECKSUM: &[u8] = b",\n  \"checksum\": \"";
    let end = bytes
        .windows(CHECKSUM.len())
        .position(|window| window == CHECKSUM)
        .unwrap_or(bytes.len());
    let members = &bytes[..end];
    let digest = Digest::of(members).to_string();
    [members, CHECKSUM, digest.as_bytes(), b"\"\n}\n"].concat()
}

/// `state.bin`, as it is and with right lengths and digests.
pub(crate) fn state_file(bytes: &[u8]) {
    check_state(bytes);
    check_state(&repaired(bytes));
}

fn check_state(bytes: &[u8]) {
    let Ok(mut reader) = StateReader::parse(bytes) else {
        return;
    };
    let mut machine = Machine::new();
    let payloads = reader.payloads().to_vec();
    for payload in payloads {
        let taken = reader.take(payload.unit).expect("a payload that is there");
        assert_eq!(taken.bytes, payload.bytes);
        let name = payload.unit.strip_prefix("device.").unwrap_or(payload.unit);
        // Whether it is refused is the device's matter.
        let _ = machine
            .ports
            .restore(name, payload.kind, payload.version, payload.bytes);
        let _ = VcpuState::from_payload(payload.bytes);
        let _ = IrqChipState::from_payload(payload.bytes);
        let _ = ClockState::from_payload(payload.bytes);
    }
    reader.finish().expect("every payload was taken");
}

/// `bytes` with the header's magic, version and length and each payload's digest set right, as far as
/// the table reaches.
fn repaired(bytes: &[u8]) -> Vec<u8> {
    const HEADER_BYTES: usize = 24;
    const LENGTH_AT: usize = 2 * MAX_NAME_BYTES + 4;
    const DIGEST_AT: usize = LENGTH_AT + 4;
    const ENTRY_BYTES: usize = DIGEST_AT + DIGEST_BYTES;
    let mut file = bytes.to_vec();
    if file.len() < HEADER_BYTES {
        return file;
    }
    file[..8].copy_from_slice(b"NVXSTATE");
    file[8..12].copy_from_slice(&1u32.to_le_bytes());
    let length = (file.len() as u64).to_le_bytes();
    file[16..24].copy_from_slice(&length);
    // No more entries than there is room for.
    let count = usize::from(file[12]).min((file.len() - HEADER_BYTES) / ENTRY_BYTES);
    file[12..16].copy_from_slice(&(count as u32).to_le_bytes());
    let mut start = HEADER_BYTES + count * ENTRY_BYTES;
    for index in 0..count {
        let entry = HEADER_BYTES + index * ENTRY_BYTES;
        let left = file.len() - start;
        let wanted = if index + 1 == count {
            left
        } else {
            usize::from(file[entry + LENGTH_AT]).min(left)
        };
        let digest = Digest::of(&file[start..start + wanted]);
        file[entry + LENGTH_AT..entry + DIGEST_AT].copy_from_slice(&(wanted as u32).to_le_bytes());
        file[entry + DIGEST_AT..entry + ENTRY_BYTES].copy_from_slice(digest.as_bytes());
        start += wanted;
    }
    file
}
