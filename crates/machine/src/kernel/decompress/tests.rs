use proptest::prelude::*;

use super::*;

// The same text, packed by the programs gzip, xz (with the x86 filter, as Linux's build does), zstd and lz4.
const GZIP: &[u8] = include_bytes!("fixtures/text.gz");
const XZ: &[u8] = include_bytes!("fixtures/text.xz");
const ZSTD: &[u8] = include_bytes!("fixtures/text.zst");
const LZ4: &[u8] = include_bytes!("fixtures/text.lz4");

const ALL: [(Compression, &[u8]); 4] = [
    (Compression::Gzip, GZIP),
    (Compression::Xz, XZ),
    (Compression::Zstd, ZSTD),
    (Compression::Lz4Legacy, LZ4),
];

/// What the fixtures hold: numbered lines, 10000 of them.
fn text() -> Vec<u8> {
    let lines: String = (0..10_000).map(|line| format!("line {line}\n")).collect();
    lines.into_bytes()
}

#[test]
fn each_compression_is_recognised_and_unpacked() {
    let text = text();
    for (compression, packed) in ALL {
        assert_eq!(Compression::of(packed), Some(compression));
        let unpacked = decompress(compression, packed, text.len() as u64).unwrap();
        assert!(unpacked == text, "{compression}");
    }
    assert_eq!(Compression::of(b"BZh9"), None);
    assert_eq!(Compression::of(b""), None);
}

#[test]
fn an_lz4_payload_of_several_blocks_and_frames_is_unpacked() {
    // 8 MiB and a bit, so two blocks; then a second frame.
    let whole: Vec<u8> = (0..(8 << 20) + 77)
        .map(|at: u32| (at >> 12) as u8)
        .collect();
    let mut packed = Vec::new();
    for frame in [&whole[..], b"the second frame"] {
        packed.extend(LZ4_LEGACY_MAGIC);
        for block in frame.chunks(LZ4_LEGACY_BLOCK_BYTES) {
            let block = lz4_flex::block::compress(block);
            packed.extend((block.len() as u32).to_le_bytes());
            packed.extend(block);
        }
    }
    let expected = [&whole[..], b"the second frame"].concat();
    let unpacked = decompress(Compression::Lz4Legacy, &packed, expected.len() as u64).unwrap();
    assert!(unpacked == expected);
}

#[test]
fn the_length_must_be_exact() {
    let length = text().len() as u64;
    for (compression, packed) in ALL {
        let error = |bytes| decompress(compression, packed, bytes).unwrap_err();
        let short = error(length - 1).to_string();
        if compression != Compression::Lz4Legacy {
            assert!(
                short.contains("unpacks to more than"),
                "{compression}: {short}"
            );
        }
        assert!(
            matches!(error(length + 1), DecompressError::Damaged { .. }),
            "{compression}"
        );
        let mut more = packed.to_vec();
        more.truncate(packed.len() / 2);
        let error = decompress(compression, &more, length).unwrap_err();
        assert!(
            matches!(error, DecompressError::Damaged { .. }),
            "{compression}"
        );
    }
}

#[test]
fn a_size_beyond_any_kernel_is_refused_before_decoding() {
    for (compression, packed) in ALL {
        let error = decompress(compression, packed, IMAGE_MAX_BYTES + 1).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the payload would unpack to 536870913 bytes; at most 536870912 are possible"
        );
    }
}

#[test]
fn a_history_beyond_the_bound_is_refused() {
    // A Zstandard frame header that asks for 256 MiB (window descriptor 18 << 3), then an empty last block.
    let zstd = [0x28, 0xb5, 0x2f, 0xfd, 0, 18 << 3, 1, 0, 0];
    let error = decompress(Compression::Zstd, &zstd, 1).unwrap_err();
    assert!(matches!(error, DecompressError::Damaged { .. }), "{error}");
    // An xz block header ("The .xz File Format", 3.1) with LZMA2 of 4 GiB - 1 (property 40).
    let mut header = vec![2, 0, 0x21, 1, 40, 0, 0, 0];
    let mut crc = flate2::Crc::new();
    crc.update(&header);
    header.extend(crc.sum().to_le_bytes());
    let mut xz = XZ[..12].to_vec();
    xz.extend(header);
    xz.extend([0; 16]);
    let error = decompress(Compression::Xz, &xz, 1).unwrap_err();
    let source = std::error::Error::source(&error).unwrap().to_string();
    assert!(source.contains("mem"), "{source}");
}

proptest! {
    #[test]
    fn damaged_payloads_end(which in 0..ALL.len(), at: prop::sample::Index, byte: u8) {
        let (compression, packed) = ALL[which];
        let mut packed = packed.to_vec();
        let at = at.index(packed.len());
        packed[at] = byte;
        if let Ok(unpacked) = decompress(compression, &packed, 98_890) {
            prop_assert_eq!(unpacked.len(), 98_890);
        }
    }

    #[test]
    fn any_bytes_end(which in 0..ALL.len(), bytes in prop::collection::vec(any::<u8>(), 0..256)) {
        let (compression, packed) = ALL[which];
        let payload = [&packed[..8], &bytes].concat();
        let _ = decompress(compression, &payload, 4096);
    }
}
