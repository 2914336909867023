//! Tests of the state envelope.

use proptest::prelude::*;

use super::*;
use crate::sample::{UNITS, state};

fn parse_error(file: &[u8]) -> StateError {
    StateReader::parse(file).unwrap_err()
}

/// Offset of table entry `index`.
fn entry(index: usize) -> usize {
    HEADER_BYTES + index * ENTRY_BYTES
}

#[test]
fn what_is_put_in_comes_out() {
    let file = state();
    let mut reader = StateReader::parse(&file).unwrap();
    let found: Vec<_> = reader
        .payloads()
        .iter()
        .map(|payload| (payload.unit, payload.kind, payload.version, payload.bytes))
        .collect();
    assert_eq!(found, UNITS);
    // In another order than the file's.
    for (unit, kind, version, bytes) in UNITS.iter().rev() {
        let payload = reader.take(unit).unwrap();
        assert_eq!(payload.require(kind, 0..=*version).unwrap(), *bytes);
    }
    reader.finish().unwrap();
}

#[test]
fn an_empty_state_is_a_state() {
    let file = StateWriter::new().finish();
    assert_eq!(file.len(), HEADER_BYTES);
    StateReader::parse(&file).unwrap().finish().unwrap();
}

#[test]
fn every_payload_must_be_taken_and_only_once() {
    let file = state();
    let mut reader = StateReader::parse(&file).unwrap();
    reader.take("serial0").unwrap();
    let missing = |unit: &str| StateError::Missing {
        unit: unit.to_owned(),
    };
    assert_eq!(reader.take("serial0"), Err(missing("serial0")));
    assert_eq!(reader.take("rtc"), Err(missing("rtc")));
    let error = reader.finish().unwrap_err();
    assert_eq!(
        error,
        StateError::Unconsumed {
            units: vec!["vcpu0".to_owned(), "empty".to_owned()]
        }
    );
    assert_eq!(error.to_string(), "no unit takes: vcpu0, empty");
}

#[test]
fn a_payload_is_for_one_kind_and_some_versions() {
    let file = state();
    let payload = StateReader::parse(&file).unwrap().take("serial0").unwrap();
    assert_eq!(
        payload.require("rtc", 1..=2).unwrap_err().to_string(),
        "unit serial0: kind uart16550, this machine has rtc"
    );
    assert_eq!(
        payload.require("uart16550", 3..=4).unwrap_err().to_string(),
        "unit serial0: version 2, this build reads 3 to 4"
    );
}

#[test]
fn the_writer_refuses_what_a_reader_would() {
    let mut writer = StateWriter::new();
    for bad in ["", "Upper", "a b", "a/b", "é", "a\0", &"x".repeat(65)] {
        let name = |field| StateError::Name { index: 0, field };
        assert_eq!(writer.put(bad, "k", 1, b""), Err(name("unit name")));
        assert_eq!(writer.put("u", bad, 1, b""), Err(name("kind")));
    }
    let longest = "a._-0".repeat(12) + "zzzz";
    writer.put(&longest, &longest, u32::MAX, b"x").unwrap();
    assert_eq!(
        writer.put(&longest, "k", 1, b""),
        Err(StateError::Duplicate {
            unit: longest.clone()
        })
    );
    assert!(matches!(
        writer.put("big", "k", 1, &vec![0; MAX_STATE_BYTES]),
        Err(StateError::TooLong { .. })
    ));
    for index in 1..MAX_STATE_UNITS {
        writer.put(&format!("u{index}"), "k", 1, b"").unwrap();
    }
    assert_eq!(
        writer.put("last", "k", 1, b""),
        Err(StateError::TooManyUnits { count: 257 })
    );
    let file = writer.finish();
    assert_eq!(
        StateReader::parse(&file).unwrap().payloads().len(),
        MAX_STATE_UNITS
    );
}

#[test]
fn the_largest_state_is_exactly_the_limit() {
    let mut writer = StateWriter::new();
    let room = MAX_STATE_BYTES - HEADER_BYTES - ENTRY_BYTES;
    assert!(writer.put("u", "k", 1, &vec![0; room + 1]).is_err());
    writer.put("u", "k", 1, &vec![0; room]).unwrap();
    let mut file = writer.finish();
    assert_eq!(file.len(), MAX_STATE_BYTES);
    StateReader::parse(&file).unwrap();
    file.push(0);
    assert!(matches!(parse_error(&file), StateError::TooLong { .. }));
}

#[test]
fn a_truncated_or_extended_file_is_refused_at_every_length() {
    let file = state();
    for length in 0..file.len() {
        let error = parse_error(&file[..length]);
        assert!(
            matches!(
                error,
                StateError::TooShort { .. } | StateError::Length { .. }
            ),
            "{length}: {error}"
        );
    }
    let mut longer = file;
    longer.push(0);
    assert!(matches!(parse_error(&longer), StateError::Length { .. }));
}

#[test]
fn each_refusal_of_a_file_has_its_name() {
    let good = state();
    let altered = |offset: usize, bytes: &[u8]| {
        let mut file = good.clone();
        file[offset..offset + bytes.len()].copy_from_slice(bytes);
        parse_error(&file)
    };
    assert_eq!(parse_error(b"ELF"), StateError::Magic);
    assert_eq!(altered(0, b"X"), StateError::Magic);
    assert_eq!(
        altered(8, &2u32.to_le_bytes()),
        StateError::HeaderVersion { found: 2 }
    );
    assert_eq!(
        altered(12, &257u32.to_le_bytes()),
        StateError::TooManyUnits { count: 257 }
    );
    assert!(matches!(
        altered(12, &256u32.to_le_bytes()),
        StateError::TooShort { part: "table", .. }
    ));
    assert!(matches!(
        altered(12, &2u32.to_le_bytes()),
        StateError::Length {
            source_of_length: "table",
            ..
        }
    ));
    assert!(matches!(
        altered(16, &u64::MAX.to_le_bytes()),
        StateError::Length {
            source_of_length: "header",
            ..
        }
    ));
    let name = |index, field| StateError::Name { index, field };
    assert_eq!(altered(entry(1), b"\0"), name(1, "unit name"));
    assert_eq!(altered(entry(1) + 63, b"x"), name(1, "unit name"));
    assert_eq!(altered(entry(1), b"\xff"), name(1, "unit name"));
    assert_eq!(altered(entry(2) + 64, b"N"), name(2, "kind"));
    let lengths = entry(0) + 2 * MAX_NAME_BYTES + 4;
    for wrong in [u32::MAX, 1000, 8] {
        assert!(matches!(
            altered(lengths, &wrong.to_le_bytes()),
            StateError::Length {
                source_of_length: "table",
                ..
            }
        ));
    }
    assert_eq!(
        altered(entry(1), b"vcpu0\0\0"),
        StateError::Duplicate {
            unit: "vcpu0".to_owned()
        }
    );
    let digest = |unit: &str| StateError::PayloadDigest {
        unit: unit.to_owned(),
    };
    assert_eq!(altered(good.len() - 1, b"x"), digest("serial0"));
    assert_eq!(altered(entry(3) - 1, b"x"), digest("empty"));
}

proptest! {
    #[test]
    fn any_bytes_are_an_answer(bytes in prop::collection::vec(any::<u8>(), 0..2048)) {
        let _ = StateReader::parse(&bytes);
        let mut with_header = state();
        with_header.truncate(HEADER_BYTES);
        with_header.extend_from_slice(&bytes);
        let length = with_header.len() as u64;
        with_header[16..24].copy_from_slice(&length.to_le_bytes());
        let _ = StateReader::parse(&with_header);
    }

    #[test]
    fn any_units_round_trip(units in prop::collection::btree_map(
        "[a-z0-9._-]{1,64}",
        ("[a-z0-9._-]{1,64}", any::<u32>(), prop::collection::vec(any::<u8>(), 0..300)),
        0..20,
    )) {
        let mut writer = StateWriter::new();
        for (unit, (kind, version, payload)) in &units {
            writer.put(unit, kind, *version, payload).unwrap();
        }
        let file = writer.finish();
        let mut reader = StateReader::parse(&file).unwrap();
        for (unit, (kind, version, payload)) in &units {
            let found = reader.take(unit).unwrap();
            prop_assert_eq!(found.require(kind, *version..=*version).unwrap(), &payload[..]);
        }
        reader.finish().unwrap();
    }
}
