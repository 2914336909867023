//! A snapshot's manifest in the hands of somebody who can write its checksum: whatever it says, opening
//! gives an answer that names the file, and never panics, hangs or allocates without end.

#![allow(clippy::unwrap_used, reason = "a failing preparation fails the test")]
#![allow(clippy::panic, reason = "helpers of tests fail by panicking")]

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};

use nvx_snapshot::{
    Digest, MANIFEST_FILE, MEMORY_FILE, Manifest, OpenError, STATE_FILE, Snapshot, limits,
};
use serde_json::{Value, json};
use tempfile::TempDir;

const GOLDENS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/goldens/v1");

/// A copy of the golden snapshot, its path, and its manifest without the checksum.
fn golden() -> (TempDir, PathBuf, Value) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().to_owned();
    for name in [MANIFEST_FILE, STATE_FILE] {
        fs::copy(Path::new(GOLDENS).join(name), path.join(name)).unwrap();
    }
    let bytes = fs::read(path.join(MANIFEST_FILE)).unwrap();
    let manifest = Manifest::decode(&bytes).unwrap();
    let memory = fs::File::create(path.join(MEMORY_FILE)).unwrap();
    memory.set_len(manifest.memory[0].length_bytes).unwrap();
    // Windows opens no snapshot that somebody can write to.
    drop(memory);
    let document = serde_json::to_value(&manifest).unwrap();
    Snapshot::open(&path).unwrap();
    (directory, path, document)
}

/// Text of a manifest without its closing brace, as a file with the right checksum.
fn with_checksum(members: &str) -> Vec<u8> {
    let digest = Digest::of(members.as_bytes());
    format!("{members},\n  \"checksum\": \"{digest}\"\n}}\n").into_bytes()
}

fn file_of(document: &Value) -> Vec<u8> {
    let text = serde_json::to_string_pretty(document).unwrap();
    with_checksum(text.strip_suffix("\n}").unwrap())
}

fn chain(error: &dyn Error) -> String {
    match error.source() {
        Some(source) => format!("{error}: {}", chain(source)),
        None => error.to_string(),
    }
}

/// Opens what may or may not open; a refusal must name one of the snapshot's files.
fn open(path: &Path, what: &str) -> Result<Snapshot, String> {
    Snapshot::open(path).map_err(|error| {
        let text = chain(&error);
        let named = [MANIFEST_FILE, STATE_FILE, MEMORY_FILE]
            .iter()
            .any(|file| text.starts_with(&format!("{}: ", path.join(file).display())));
        assert!(named, "{what}: {text}");
        text
    })
}

/// Paths (JSON pointers) of all values in a document.
fn places(value: &Value, place: String, all: &mut Vec<String>) {
    match value {
        Value::Object(members) => {
            for (name, member) in members {
                places(member, format!("{place}/{name}"), all);
            }
        }
        Value::Array(entries) => {
            for (index, entry) in entries.iter().enumerate() {
                places(entry, format!("{place}/{index}"), all);
            }
        }
        _ => {}
    }
    if !place.is_empty() {
        all.push(place);
    }
}

fn edges() -> Vec<Value> {
    let mut edges: Vec<Value> = [
        0,
        1,
        7,
        8,
        9,
        4095,
        4096,
        65_535,
        65_536,
        u64::from(u32::MAX),
        1 << 32,
        1 << 40,
        (1 << 40) + 4096,
        1 << 52,
        i64::MAX as u64,
        1 << 63,
        u64::MAX - 4095,
        u64::MAX,
    ]
    .map(Value::from)
    .into();
    edges.extend([
        json!(-1),
        json!(i64::MIN),
        json!(0.5),
        json!(1e308),
        json!(null),
        json!(true),
        json!([]),
        json!({}),
        json!([[]]),
        json!({"": 0}),
    ]);
    let long = "x".repeat(100_000);
    for text in [
        "",
        ".",
        "..",
        "../x",
        "../memory.bin",
        "/etc/passwd",
        "memory.bin/..",
        "a\0b",
        "\u{1b}[2J",
        "\u{202e}",
        &long,
        "blake3:",
        "kvm",
    ] {
        edges.push(json!(text));
    }
    edges
}

#[test]
fn every_member_at_its_edges_is_an_answer() {
    let (_directory, path, document) = golden();
    let mut all = Vec::new();
    places(&document, String::new(), &mut all);
    assert!(all.len() > 40, "{all:?}");
    let (mut opened, mut refused) = (0, 0);
    for place in &all {
        for edge in edges() {
            let mut changed = document.clone();
            *changed.pointer_mut(place).unwrap() = edge.clone();
            fs::write(path.join(MANIFEST_FILE), file_of(&changed)).unwrap();
            let shown: String = edge.to_string().chars().take(40).collect();
            match open(&path, &format!("{place} = {shown}")) {
                // What opened is within all bounds: it can be written again.
                Ok(snapshot) => {
                    snapshot.manifest().encode().unwrap();
                    opened += 1;
                }
                Err(_) => refused += 1,
            }
        }
    }
    // Facts for people take any number; all that a machine is built from does not.
    assert!(
        opened > 50 && refused > 10 * all.len(),
        "{opened} {refused}"
    );
}

#[test]
fn members_that_are_missing_repeated_or_unknown_are_refused() {
    let (_directory, path, document) = golden();
    let Value::Object(members) = &document else {
        panic!("no object");
    };
    let text = serde_json::to_string_pretty(&document).unwrap();
    let inner = text.strip_suffix("\n}").unwrap();
    for name in members.keys() {
        let mut without = document.clone();
        without.as_object_mut().unwrap().remove(name);
        fs::write(path.join(MANIFEST_FILE), file_of(&without)).unwrap();
        let refusal = open(&path, name).unwrap_err();
        assert!(refusal.contains(name.as_str()), "{name}: {refusal}");
        let twice = format!("{inner},\n  \"{name}\": {}", members[name]);
        fs::write(path.join(MANIFEST_FILE), with_checksum(&twice)).unwrap();
        let refusal = open(&path, name).unwrap_err();
        assert!(refusal.contains(name.as_str()), "{name}: {refusal}");
    }
    for unknown in ["checksum", "parent", "__proto__", ""] {
        let more = format!("{inner},\n  \"{unknown}\": 1");
        fs::write(path.join(MANIFEST_FILE), with_checksum(&more)).unwrap();
        open(&path, unknown).unwrap_err();
    }
}

#[test]
fn deep_and_wide_documents_are_refused_within_bounds() {
    let (_directory, path, document) = golden();
    let text = serde_json::to_string_pretty(&document).unwrap();
    let inner = text.strip_suffix("\n}").unwrap();
    let room = limits::MAX_MANIFEST_BYTES - inner.len() - 200;
    let deep = |open: &str, close: &str| {
        let depth = room / (open.len() + close.len() + 1);
        format!("{}0{}", open.repeat(depth), close.repeat(depth))
    };
    let values = [
        deep("[", "]"),
        deep("{\"a\":", "}"),
        "[".repeat(room),
        format!("[{}0]", "0,".repeat(room / 2 - 10)),
        format!("\"{}\"", "\\u0000".repeat(room / 6 - 10)),
        "9".repeat(room),
        format!("0.{}", "9".repeat(room - 10)),
    ];
    for value in &values {
        for name in ["producer", "schema_version", "cpu", "ram", "devices", "zzz"] {
            // In front, so that a reader that stops at the first mistake meets this one.
            let members = inner.replacen('{', &format!("{{\n  \"{name}\": {value},"), 1);
            let file = with_checksum(&members);
            fs::write(path.join(MANIFEST_FILE), file).unwrap();
            let shown: String = value.chars().take(8).collect();
            open(&path, &format!("{name} {shown}")).unwrap_err();
        }
    }
}

#[test]
fn ram_that_overlaps_overflows_or_is_out_of_order_is_refused() {
    let (_directory, path, document) = golden();
    let range = |start: u64, size_bytes: u64, file_offset_bytes: u64| json!({"start": start, "size_bytes": size_bytes, "file_offset_bytes": file_offset_bytes});
    const TOP: u64 = u64::MAX - 0xffff;
    let layouts = [
        vec![],
        vec![range(0, 0, 0)],
        vec![range(0, 65_536, 0), range(0, 65_536, 65_536)],
        vec![range(0, 65_536, 0), range(4096, 65_536, 65_536)],
        vec![range(0, 65_536, 0), range(65_536, 65_536, 0)],
        vec![range(0, 65_536, 65_536), range(65_536, 65_536, 0)],
        vec![range(65_536, 65_536, 0), range(0, 65_536, 65_536)],
        vec![range(TOP, 131_072, 0)],
        vec![range(0, u64::MAX - 4095, 0)],
        vec![range(0, 65_536, TOP)],
        vec![range(0, 131_072, TOP)],
        vec![range(0, 4095, 0)],
        vec![range(1, 4096, 0)],
        vec![range(0, 65_536, 4096)],
        vec![range(0, 1 << 63, 0), range(1 << 63, 1 << 63, 1 << 63)],
    ];
    for layout in layouts {
        let mut changed = document.clone();
        changed["ram"] = json!(layout);
        fs::write(path.join(MANIFEST_FILE), file_of(&changed)).unwrap();
        let refusal = open(&path, "ram").unwrap_err();
        assert!(
            refusal.contains("ram") || refusal.contains("memory[0]"),
            "{layout:?}: {refusal}"
        );
    }
}

#[test]
fn a_hard_link_to_another_file_is_that_file_and_no_more() {
    let (_directory, path, _) = golden();
    let other = path.join("other");
    fs::write(&other, vec![b'{'; 4096]).unwrap();
    for name in [MANIFEST_FILE, STATE_FILE, MEMORY_FILE] {
        let target = path.join(name);
        let kept = path.join("kept");
        fs::rename(&target, &kept).unwrap();
        fs::hard_link(&other, &target).unwrap();
        let refusal = open(&path, name).unwrap_err();
        assert!(refusal.contains(name), "{refusal}");
        fs::rename(&kept, &target).unwrap();
    }
    assert_eq!(fs::read(&other).unwrap(), vec![b'{'; 4096]);
    open(&path, "whole again").unwrap();
}

#[test]
fn files_in_each_other_s_place_are_named() {
    let (_directory, path, _) = golden();
    for (one, other) in [
        (MANIFEST_FILE, STATE_FILE),
        (STATE_FILE, MEMORY_FILE),
        (MEMORY_FILE, MANIFEST_FILE),
    ] {
        let swap = || {
            fs::rename(path.join(one), path.join("swap")).unwrap();
            fs::rename(path.join(other), path.join(one)).unwrap();
            fs::rename(path.join("swap"), path.join(other)).unwrap();
        };
        swap();
        open(&path, one).unwrap_err();
        swap();
    }
    open(&path, "whole again").unwrap();
}

#[test]
fn a_giant_of_holes_is_refused_by_its_length() {
    let (_directory, path, _) = golden();
    for name in [MANIFEST_FILE, STATE_FILE, MEMORY_FILE] {
        let target = path.join(name);
        let whole = fs::metadata(&target).unwrap().len();
        let set_length = |length| {
            let file = fs::OpenOptions::new().write(true).open(&target).unwrap();
            file.set_len(length)
        };
        for length in [1 << 30, 1 << 40, 1 << 43] {
            // A file system may have a lower limit of its own.
            if set_length(length).is_ok() {
                let error = Snapshot::open(&path).unwrap_err();
                assert!(
                    matches!(
                        error,
                        OpenError::TooLarge { length_bytes, .. } | OpenError::Length { length_bytes, .. }
                            if length_bytes == length
                    ),
                    "{error}"
                );
            }
        }
        set_length(whole).unwrap();
    }
    open(&path, "whole again").unwrap();
}
