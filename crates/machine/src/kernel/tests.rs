use super::*;
use crate::ram_layout;

#[test]
fn an_elf_file_is_recognised_and_its_extent_known() {
    let image = nvx_probe_guest::image().unwrap();
    let kernel = Kernel::parse(&image).unwrap();
    assert_eq!(kernel.format(), KernelFormat::Elf);
    assert_eq!(kernel.lowest_address(), GuestAddress(1 << 20));
    let last = kernel.segments().last().unwrap();
    assert_eq!(kernel.end_address().0, last.start.0 + last.memory_bytes);
    let KernelEntry::Pvh32 { entry } = *kernel.entry() else {
        panic!("{:?}", kernel.entry());
    };
    assert!((1 << 20..kernel.end_address().0).contains(&u64::from(entry)));
}

#[test]
fn what_is_no_kernel_is_described() {
    for (image, words) in [
        (&b""[..], "it is empty"),
        (b"070701", "a cpio archive"),
        (b"\x28\xb5\x2f\xfd", "Zstandard data"),
        (b"hello\n", "it looks like text"),
    ] {
        let error = Kernel::parse(image).unwrap_err().to_string();
        assert!(
            error.starts_with("the guest image is no ELF file, bzImage or libkrunfw"),
            "{error}"
        );
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn a_file_is_read_and_named_in_errors() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("vmlinux");
    std::fs::write(&path, nvx_probe_guest::image().unwrap()).unwrap();
    assert_eq!(read_kernel(&path).unwrap().format(), KernelFormat::Elf);
    std::fs::write(&path, "#!/bin/sh\n").unwrap();
    let error = read_kernel(&path).unwrap_err();
    assert!(
        error.to_string().contains("vmlinux: is no kernel"),
        "{error}"
    );
    let source = std::error::Error::source(&error).unwrap().to_string();
    assert!(source.contains("a script"), "{source}");
    std::fs::remove_file(&path).unwrap();
    assert!(read_kernel(&path).is_err());
}

#[test]
fn room_in_ram_is_checked_before_anything_is_written() {
    let kernel = Kernel::parse(nvx_probe_guest::image().unwrap()).unwrap();
    kernel.check_room(&ram_layout(4 << 20).unwrap()).unwrap();
    let mut tall = nvx_probe_guest::image().unwrap();
    tall[64 + 40..64 + 48].copy_from_slice(&(4u64 << 20).to_le_bytes());
    let tall = Kernel::parse(tall).unwrap();
    let memory = GuestMemory::anonymous(ram_layout(4 << 20).unwrap()).unwrap();
    let error = tall.load(&memory).unwrap_err().to_string();
    assert!(error.contains("are not all guest RAM"), "{error}");
    assert!(memory.dirty().is_empty());
}
