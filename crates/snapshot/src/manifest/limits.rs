//! Bounds of everything in a manifest.
//!
//! They are far above what a machine needs and exist so that no file can make a reader work or
//! allocate without end.

/// Largest manifest, in bytes.
pub const MAX_MANIFEST_BYTES: usize = 1 << 20;
/// Most virtual processors.
pub const MAX_VCPUS: u8 = 8;
/// Longest `producer` or `cpu.vendor`, in bytes.
pub const MAX_LABEL_BYTES: usize = 64;
/// Longest reason or fallback, in bytes.
pub const MAX_TEXT_BYTES: usize = 512;
/// Most feature words.
pub const MAX_FEATURE_WORDS: usize = 256;
/// Most ranges of guest RAM.
pub const MAX_RAM_RANGES: usize = 16;
/// Most devices.
pub const MAX_DEVICES: usize = 64;
/// Most fallbacks.
pub const MAX_FALLBACKS: usize = 32;
/// Most extents of a layer.
pub const MAX_EXTENTS: usize = 4096;
/// Most chunk digests of a layer.
pub const MAX_CHUNKS: usize = 4096;
/// Smallest chunk that has a digest of its own, in bytes.
pub const MIN_CHUNK_BYTES: u64 = 64 << 10;
/// Longest memory file, in bytes: 1 TiB.
pub const MAX_MEMORY_BYTES: u64 = 1 << 40;
/// Latest time stamp, in milliseconds since 1970: the end of the year 9999.
pub const MAX_UNIX_MS: u64 = 253_402_300_799_999;

const _: () = {
    const SEE: &str =
        "the manifest format changed: see doc/design/snapshot.md before changing this";
    assert!(super::SCHEMA_VERSION == 1, "{}", SEE);
    assert!(MAX_MANIFEST_BYTES == 1024 * 1024, "{}", SEE);
    assert!(MAX_VCPUS == 8, "{}", SEE);
    // What memory can lay out a manifest must be able to say, and the reverse.
    assert!(MAX_RAM_RANGES == nvx_memory::MAX_RANGES, "{}", SEE);
};
