//! Bounds and consistency of a manifest, member by member.

use super::limits::{
    MAX_CHUNKS, MAX_DEVICES, MAX_EXTENTS, MAX_FALLBACKS, MAX_FEATURE_WORDS, MAX_LABEL_BYTES,
    MAX_MEMORY_BYTES, MAX_RAM_RANGES, MAX_TEXT_BYTES, MAX_UNIX_MS, MAX_VCPUS, MIN_CHUNK_BYTES,
};
use super::{
    CaptureFacts, ChunkDigests, Cpu, CpuFeatureWord, Device, Extent, Manifest, ManifestError,
    MemoryLayer, SCHEMA_VERSION, StateFile,
};
use crate::state::MAX_STATE_BYTES;
use crate::{MEMORY_FILE, is_name};

type Checked = Result<(), ManifestError>;

impl Manifest {
    /// Checks every member.
    ///
    /// # Errors
    ///
    /// [`ManifestError::Value`] or [`ManifestError::Ram`], naming the member.
    pub fn validate(&self) -> Checked {
        // Exhaustive, so that a new member cannot be forgotten here.
        let Self {
            schema_version,
            producer,
            created_unix_ms,
            machine_contract,
            backend,
            cpu,
            vcpus,
            ram,
            devices,
            memory,
            state,
            capture,
        } = self;
        number(
            "schema_version",
            u64::from(*schema_version),
            u64::from(SCHEMA_VERSION),
            u64::from(SCHEMA_VERSION),
        )?;
        label("producer", producer)?;
        number("created_unix_ms", *created_unix_ms, 0, MAX_UNIX_MS)?;
        number(
            "machine_contract",
            u64::from(*machine_contract),
            1,
            u64::from(u32::MAX),
        )?;
        name("backend", backend)?;
        check_cpu(cpu)?;
        number("vcpus", u64::from(*vcpus), 1, u64::from(MAX_VCPUS))?;
        count("ram", ram.len(), 1, MAX_RAM_RANGES)?;
        let ram_bytes = self.ram_layout()?.file_len_bytes();
        check_devices(devices)?;
        count("memory", memory.len(), 1, 1)?;
        for (index, layer) in memory.iter().enumerate() {
            check_layer(&format!("memory[{index}]"), layer, ram_bytes)?;
        }
        check_state(state)?;
        check_capture(capture)
    }
}

fn check_cpu(cpu: &Cpu) -> Checked {
    let Cpu {
        vendor,
        features,
        captured_on: _,
    } = cpu;
    label("cpu.vendor", vendor)?;
    count("cpu.features", features.len(), 0, MAX_FEATURE_WORDS)?;
    for (index, word) in features.iter().enumerate() {
        let place = (word.leaf, word.subleaf, word.register);
        let is_same = |w: &CpuFeatureWord| (w.leaf, w.subleaf, w.register) == place;
        if features[..index].iter().any(is_same) {
            return refuse(
                format!("cpu.features[{index}]"),
                "the same leaf, subleaf and register as an earlier word",
            );
        }
    }
    Ok(())
}

fn check_devices(devices: &[Device]) -> Checked {
    count("devices", devices.len(), 0, MAX_DEVICES)?;
    for (index, device) in devices.iter().enumerate() {
        let Device {
            name: device_name,
            kind,
            version: _,
        } = device;
        let member = |field: &str| format!("devices[{index}].{field}");
        name(&member("name"), device_name)?;
        name(&member("kind"), kind)?;
        if devices[..index].iter().any(|d| d.name == *device_name) {
            return refuse(member("name"), "the same as an earlier device's");
        }
    }
    Ok(())
}

fn check_layer(place: &str, layer: &MemoryLayer, ram_bytes: u64) -> Checked {
    let MemoryLayer {
        file,
        length_bytes,
        extents,
        parent,
        digests,
    } = layer;
    if file != MEMORY_FILE {
        return refuse(format!("{place}.file"), &format!("must be {MEMORY_FILE}"));
    }
    if parent.is_some() {
        return refuse(
            format!("{place}.parent"),
            &format!("not possible in schema version {SCHEMA_VERSION}"),
        );
    }
    let member = format!("{place}.length_bytes");
    number(&member, *length_bytes, 1, MAX_MEMORY_BYTES)?;
    if *length_bytes != ram_bytes {
        return refuse(
            member,
            &format!("{length_bytes}, the RAM ranges need {ram_bytes}"),
        );
    }
    if let Some(extents) = extents {
        check_extents(&format!("{place}.extents"), extents, *length_bytes)?;
    }
    if let Some(digests) = digests {
        check_chunks(&format!("{place}.digests"), digests, *length_bytes)?;
    }
    Ok(())
}

fn check_extents(place: &str, extents: &[Extent], length_bytes: u64) -> Checked {
    count(place, extents.len(), 0, MAX_EXTENTS)?;
    let mut end = 0;
    for (index, extent) in extents.iter().enumerate() {
        let next_end = extent.offset_bytes.checked_add(extent.length_bytes);
        match next_end {
            Some(next_end)
                if extent.length_bytes > 0
                    && extent.offset_bytes >= end
                    && next_end <= length_bytes =>
            {
                end = next_end;
            }
            _ => {
                return refuse(
                    format!("{place}[{index}]"),
                    "empty, out of order, or beyond the end of the file",
                );
            }
        }
    }
    Ok(())
}

fn check_chunks(place: &str, digests: &ChunkDigests, length_bytes: u64) -> Checked {
    let ChunkDigests {
        chunk_bytes,
        chunks,
    } = digests;
    let member = format!("{place}.chunk_bytes");
    number(&member, *chunk_bytes, MIN_CHUNK_BYTES, MAX_MEMORY_BYTES)?;
    if !chunk_bytes.is_power_of_two() {
        return refuse(member, "not a power of two");
    }
    let member = format!("{place}.chunks");
    count(&member, chunks.len(), 1, MAX_CHUNKS)?;
    let needed = length_bytes.div_ceil(*chunk_bytes);
    if chunks.len() as u64 != needed {
        let problem = format!("{} digests, the file has {needed} chunks", chunks.len());
        return refuse(member, &problem);
    }
    Ok(())
}

fn check_state(state: &StateFile) -> Checked {
    let StateFile {
        length_bytes,
        digest: _,
    } = state;
    number(
        "state.length_bytes",
        *length_bytes,
        1,
        MAX_STATE_BYTES as u64,
    )
}

fn check_capture(capture: &CaptureFacts) -> Checked {
    let CaptureFacts {
        publication: _,
        publication_reason,
        ram_backing,
        ram_backing_reason,
        strategy,
        // Facts about the past have no bounds of their own: nothing is computed or allocated by them.
        pages: _,
        bytes: _,
        calls: _,
        background_bytes: _,
        fallbacks,
    } = capture;
    text("capture.publication_reason", publication_reason)?;
    name("capture.ram_backing", ram_backing)?;
    text("capture.ram_backing_reason", ram_backing_reason)?;
    text("capture.strategy", strategy)?;
    if strategy.is_empty() {
        return refuse("capture.strategy", "is empty");
    }
    count("capture.fallbacks", fallbacks.len(), 0, MAX_FALLBACKS)?;
    for (index, fallback) in fallbacks.iter().enumerate() {
        text(&format!("capture.fallbacks[{index}]"), fallback)?;
    }
    Ok(())
}

fn refuse(member: impl Into<String>, problem: &str) -> Checked {
    Err(ManifestError::Value {
        member: member.into(),
        problem: problem.to_owned(),
    })
}

fn number(member: &str, value: u64, lowest: u64, highest: u64) -> Checked {
    if (lowest..=highest).contains(&value) {
        return Ok(());
    }
    refuse(member, &format!("{value} is not in {lowest}..={highest}"))
}

fn count(member: &str, entries: usize, fewest: usize, most: usize) -> Checked {
    if (fewest..=most).contains(&entries) {
        return Ok(());
    }
    refuse(
        member,
        &format!("{entries} entries, allowed are {fewest} to {most}"),
    )
}

fn name(member: &str, value: &str) -> Checked {
    if is_name(value) {
        return Ok(());
    }
    refuse(member, "not 1 to 64 characters of [a-z0-9._-]")
}

/// A short text that is never empty: printable ASCII.
fn label(member: &str, value: &str) -> Checked {
    let printable = |byte: u8| byte == b' ' || byte.is_ascii_graphic();
    if (1..=MAX_LABEL_BYTES).contains(&value.len()) && value.bytes().all(printable) {
        return Ok(());
    }
    refuse(
        member,
        &format!("not 1 to {MAX_LABEL_BYTES} printable ASCII characters"),
    )
}

/// A text for people, which may name a path: bounded, and without control characters.
fn text(member: &str, value: &str) -> Checked {
    if value.len() <= MAX_TEXT_BYTES && !value.chars().any(char::is_control) {
        return Ok(());
    }
    refuse(
        member,
        &format!("longer than {MAX_TEXT_BYTES} bytes, or with control characters"),
    )
}
