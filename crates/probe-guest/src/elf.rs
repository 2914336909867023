//! Wraps the assembled bytes in an ELF file that any PVH loader takes.
//!
//! Field offsets follow the System V ABI's ELF-64 object file format.

/// Guest address at which the image is loaded.
pub(crate) const LOAD_ADDRESS: u32 = 1 << 20;

const EHDR_BYTES: u16 = 64;
const PHDR_BYTES: u16 = 56;
const NOTE_OFFSET: u64 = EHDR_BYTES as u64 + 2 * PHDR_BYTES as u64;
/// Note header, "Xen\0", 64-bit entry address.
const NOTE_BYTES: u64 = 12 + 4 + 8;
/// The segment begins on a page of the file, as `p_offset = p_vaddr` modulo `p_align` asks for.
const LOAD_OFFSET: u64 = 4096;

const EM_X86_64: u16 = 62;
const ET_EXEC: u16 = 2;
const PT_LOAD: u32 = 1;
const PT_NOTE: u32 = 4;
const PF_RWX: u32 = 7;
const PF_R: u32 = 4;
/// Physical address of the 32-bit entry point (Xen's public header `elfnote.h`).
const XEN_ELFNOTE_PHYS32_ENTRY: u32 = 18;

struct Segment {
    kind: u32,
    flags: u32,
    offset: u64,
    address: u64,
    file_bytes: u64,
    memory_bytes: u64,
    align: u64,
}

/// `loaded` goes to [`LOAD_ADDRESS`] and occupies `memory_bytes` there; execution begins at `entry`.
pub(crate) fn wrap(loaded: &[u8], memory_bytes: u64, entry: u32) -> Vec<u8> {
    let mut file = Vec::with_capacity(LOAD_OFFSET as usize + loaded.len());
    file.extend_from_slice(&[0x7f, b'E', b'L', b'F']);
    // 64-bit, little endian, version 1, System V.
    file.extend_from_slice(&[2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    file.extend_from_slice(&ET_EXEC.to_le_bytes());
    file.extend_from_slice(&EM_X86_64.to_le_bytes());
    file.extend_from_slice(&1u32.to_le_bytes());
    file.extend_from_slice(&u64::from(entry).to_le_bytes());
    file.extend_from_slice(&u64::from(EHDR_BYTES).to_le_bytes());
    file.extend_from_slice(&0u64.to_le_bytes()); // no section headers
    file.extend_from_slice(&0u32.to_le_bytes());
    for field in [EHDR_BYTES, PHDR_BYTES, 2, 64, 0, 0] {
        file.extend_from_slice(&field.to_le_bytes());
    }

    push_segment(
        &mut file,
        &Segment {
            kind: PT_LOAD,
            flags: PF_RWX,
            offset: LOAD_OFFSET,
            address: u64::from(LOAD_ADDRESS),
            file_bytes: loaded.len() as u64,
            memory_bytes,
            align: 4096,
        },
    );
    push_segment(
        &mut file,
        &Segment {
            kind: PT_NOTE,
            flags: PF_R,
            offset: NOTE_OFFSET,
            address: 0,
            file_bytes: NOTE_BYTES,
            memory_bytes: NOTE_BYTES,
            align: 4,
        },
    );

    file.extend_from_slice(&4u32.to_le_bytes());
    file.extend_from_slice(&8u32.to_le_bytes());
    file.extend_from_slice(&XEN_ELFNOTE_PHYS32_ENTRY.to_le_bytes());
    file.extend_from_slice(b"Xen\0");
    file.extend_from_slice(&u64::from(entry).to_le_bytes());

    file.resize(LOAD_OFFSET as usize, 0);
    file.extend_from_slice(loaded);
    file
}

fn push_segment(file: &mut Vec<u8>, segment: &Segment) {
    file.extend_from_slice(&segment.kind.to_le_bytes());
    file.extend_from_slice(&segment.flags.to_le_bytes());
    for field in [
        segment.offset,
        segment.address,
        segment.address,
        segment.file_bytes,
        segment.memory_bytes,
        segment.align,
    ] {
        file.extend_from_slice(&field.to_le_bytes());
    }
}
