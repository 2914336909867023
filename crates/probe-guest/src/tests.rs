use std::collections::BTreeSet;
use std::time::Instant;

use iced_x86::{Decoder, DecoderOptions};

use super::*;

#[test]
fn the_image_is_an_elf_with_a_pvh_entry_inside_its_segment() {
    let file = image().unwrap();
    let elf = ::elf::ElfBytes::<::elf::endian::LittleEndian>::minimal_parse(&file).unwrap();
    let segments: Vec<_> = elf.segments().unwrap().iter().collect();
    let load = &segments[0];
    let note = &segments[1];
    assert_eq!((load.p_type, load.p_paddr), (::elf::abi::PT_LOAD, 1 << 20));
    assert_eq!(load.p_offset % load.p_align, load.p_paddr % load.p_align);
    assert_eq!(load.p_offset + load.p_filesz, file.len() as u64);
    assert!(load.p_filesz <= load.p_memsz);
    assert_eq!(note.p_type, ::elf::abi::PT_NOTE);
    let ::elf::note::Note::Unknown(pvh) = elf.segment_data_as_notes(note).unwrap().next().unwrap()
    else {
        panic!("not the note that was written");
    };
    assert_eq!((pvh.n_type, pvh.name), (18, &b"Xen\0"[..]));
    let entry = u64::from_le_bytes(pvh.desc.try_into().unwrap());
    assert_eq!(entry, elf.ehdr.e_entry);
    assert!((load.p_paddr..load.p_paddr + load.p_filesz).contains(&entry));
}

#[test]
fn the_program_keeps_to_the_documented_instructions() {
    let data = layout::Data::new();
    let code = code::assemble(&data).unwrap();
    let mut used = BTreeSet::new();
    for instruction in Decoder::with_ip(32, &code, u64::from(data.end()), DecoderOptions::NONE) {
        assert!(!instruction.is_invalid(), "at {:#x}", instruction.ip());
        assert!(!instruction.has_rep_prefix() && !instruction.has_lock_prefix());
        used.insert(format!("{:?}", instruction.mnemonic()).to_lowercase());
    }
    let documented: BTreeSet<String> = MNEMONICS.iter().map(ToString::to_string).collect();
    assert_eq!(used, documented);
    assert!(MNEMONICS.is_sorted());
}

#[test]
fn assembling_twice_gives_the_same_bytes() {
    assert_eq!(image().unwrap(), image().unwrap());
}

#[test]
fn the_ports_are_those_of_the_machine_contract() {
    use nvx_devices::numbers;
    assert_eq!(ports::CONSOLE, u32::from(numbers::CONSOLE));
    assert_eq!(ports::CONSOLE_STATUS, u32::from(numbers::CONSOLE_STATUS));
    assert_eq!(ports::SHUTDOWN, u32::from(numbers::SHUTDOWN));
    assert_eq!(ports::SNAPSHOT, u32::from(numbers::SNAPSHOT));
}

/// Run in a release build: `cargo test --release -p nvx-probe-guest -- --ignored --nocapture assembly_time`.
#[test]
#[ignore = "prints a measurement"]
fn assembly_time() {
    let start = Instant::now();
    let bytes = image().unwrap().len();
    let first = start.elapsed();
    let mut times: Vec<_> = (0..101)
        .map(|_| {
            let start = Instant::now();
            std::hint::black_box(image().unwrap());
            start.elapsed()
        })
        .collect();
    times.sort_unstable();
    println!(
        "first {first:?}, then median {:?}, {bytes} bytes",
        times[50]
    );
}

#[test]
fn the_prebuilt_image_is_the_assembled_one() {
    assert_eq!(crate::prebuilt(), crate::image().unwrap());
}
