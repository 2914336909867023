//! Modules made here: an ELF file with nothing but a `.modinfo`.

use std::io::Write as _;

use tempfile::TempDir;

use super::*;

/// A relocatable ELF file with the given `.modinfo`.
fn module(info: &str) -> Vec<u8> {
    let names = b"\0.modinfo\0.shstrtab\0";
    let info: Vec<u8> = info.replace('\n', "\0").into_bytes();
    let info_at = 64;
    let names_at = info_at + info.len();
    let sections_at = (names_at + names.len()).next_multiple_of(8);
    let mut file = b"\x7fELF\x02\x01\x01".to_vec();
    file.resize(16, 0);
    // e_type ET_REL, e_machine EM_X86_64, e_version.
    file.extend([1u16, 62].map(u16::to_le_bytes).concat());
    file.extend(1u32.to_le_bytes());
    file.extend([0u64, 0, sections_at as u64].map(u64::to_le_bytes).concat());
    file.extend(0u32.to_le_bytes());
    // e_ehsize, e_phentsize, e_phnum, e_shentsize, e_shnum, e_shstrndx.
    file.extend([64u16, 0, 0, 64, 3, 2].map(u16::to_le_bytes).concat());
    file.extend(&info);
    file.extend(names);
    file.resize(sections_at + 64, 0);
    for (name, kind, at, bytes) in [
        (1u32, 1u32, info_at, info.len()),
        (10, 3, names_at, names.len()),
    ] {
        file.extend([name, kind].map(u32::to_le_bytes).concat());
        let fields = [0, 0, at as u64, bytes as u64, 0, 1, 0];
        let mut section = fields.map(u64::to_le_bytes).concat();
        section.resize(56, 0);
        file.extend(section);
    }
    file
}

/// A kernel's package: `boot/vmlinuz-6.0-test` and modules that depend on each other.
fn package() -> TempDir {
    let package = tempfile::tempdir().expect("a directory");
    let boot = package.path().join("boot");
    fs::create_dir(&boot).expect("a directory");
    fs::write(boot.join("vmlinuz-6.0-test"), "no header").expect("a kernel");
    let tree = package.path().join("lib/modules/6.0-test");
    let drivers = tree.join("kernel/drivers");
    fs::create_dir_all(&drivers).expect("directories");
    fs::write(
        tree.join("modules.builtin"),
        "kernel/drivers/base/builtin-one.ko\n",
    )
    .expect("a list");
    for (file, info) in [
        (
            "top-level.ko",
            "name=top_level\ndepends=middle,builtin_one,base\nvermagic=6.0-test SMP mod_unload \n",
        ),
        (
            "middle.ko",
            "name=middle\ndepends=base\nvermagic=6.0-test SMP \n",
        ),
        ("base.ko", "name=base\ndepends=\nvermagic=6.0-test SMP \n"),
        ("lost.ko", "name=lost\ndepends=nowhere\n"),
        ("circle_a.ko", "name=circle_a\ndepends=circle_b\n"),
        ("circle_b.ko", "name=circle_b\ndepends=circle_a\n"),
        ("old.ko", "name=old\ndepends=\nvermagic=5.0 SMP \n"),
    ] {
        fs::write(drivers.join(file), module(info)).expect("a module");
    }
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder
        .write_all(&module("name=packed\ndepends=base\n"))
        .expect("compressed");
    fs::write(
        drivers.join("packed.ko.gz"),
        encoder.finish().expect("compressed"),
    )
    .expect("a module");
    package
}

fn names(package: &TempDir, wanted: &[&str]) -> Result<Vec<String>, ModuleError> {
    let wanted: Vec<_> = wanted.iter().map(ToString::to_string).collect();
    let kernel = package.path().join("boot/vmlinuz-6.0-test");
    Ok(resolve(&wanted, &kernel)?
        .into_iter()
        .map(|module| module.name)
        .collect())
}

#[test]
fn what_is_needed_comes_first() {
    let package = package();
    assert_eq!(
        names(&package, &["top-level"]).expect("found"),
        ["base", "middle", "top_level"]
    );
    assert_eq!(
        names(&package, &["middle", "top_level", "base"]).expect("found"),
        ["base", "middle", "top_level"]
    );
    assert_eq!(names(&package, &["builtin-one"]).expect("found"), [""; 0]);
    assert_eq!(names(&package, &[]).expect("nothing"), [""; 0]);
}

#[test]
fn a_file_finds_its_tree() {
    let package = package();
    let file = package
        .path()
        .join("lib/modules/6.0-test/kernel/drivers/middle.ko");
    let file = file.to_str().expect("text");
    assert_eq!(names(&package, &[file]).expect("found"), ["base", "middle"]);
    // Copied out of its tree, with what it needs beside it.
    let place = tempfile::tempdir().expect("a directory");
    let copy = place.path().join("middle.ko");
    fs::copy(file, &copy).expect("copied");
    fs::write(place.path().join("base.ko"), module("name=base\n")).expect("a module");
    let kernel = package.path().join("boot/vmlinuz-6.0-test");
    fs::remove_dir_all(package.path().join("lib")).expect("removed");
    let wanted = [copy.to_str().expect("text").to_owned()];
    let modules = resolve(&wanted, &kernel).expect("found");
    assert_eq!(modules.len(), 2);
    assert_eq!(modules[0].bytes, module("name=base\n"));
}

#[test]
fn a_compressed_module_is_unpacked() {
    let package = package();
    let kernel = package.path().join("boot/vmlinuz-6.0-test");
    let modules = resolve(&["packed".to_owned()], &kernel).expect("found");
    assert_eq!(modules[1].bytes, module("name=packed\ndepends=base\n"));
}

#[test]
fn circles_end() {
    assert_eq!(
        names(&package(), &["circle_a"]).expect("found"),
        ["circle_b", "circle_a"]
    );
}

#[test]
#[cfg(unix)]
fn what_cannot_be_loaded_is_named() {
    let package = package();
    let of = |wanted: &str| names(&package, &[wanted]).expect_err("refused").to_string();
    assert!(
        of("absent").contains("no kernel module absent in "),
        "{}",
        of("absent")
    );
    assert!(
        of("absent").contains("lib/modules/6.0-test"),
        "{}",
        of("absent")
    );
    assert!(of("lost").contains("lost needs nowhere"), "{}", of("lost"));
    assert!(
        of("old").contains("is for kernel 5.0, and the guest's is 6.0-test"),
        "{}",
        of("old")
    );
    assert!(
        of("/nowhere/at-all.ko").contains("cannot read /nowhere"),
        "{}",
        of("/nowhere/at-all.ko")
    );
    let file = package.path().join("boot/vmlinuz-6.0-test");
    let file = file.to_str().expect("text");
    assert!(of(file).contains("is no kernel module"), "{}", of(file));
    fs::remove_dir_all(package.path().join("lib")).expect("removed");
    assert!(
        of("absent").contains("no directory with modules"),
        "{}",
        of("absent")
    );
}

#[test]
fn the_header_of_a_kernel_says_its_release() {
    let directory = tempfile::tempdir().expect("a directory");
    let kernel = directory.path().join("kernel");
    let mut bytes = vec![0; 0x1000];
    bytes[0x202..0x206].copy_from_slice(b"HdrS");
    bytes[0x20e..0x210].copy_from_slice(&0x300u16.to_le_bytes());
    bytes[0x500..0x513].copy_from_slice(b"6.1.0-57-x (builder");
    fs::write(&kernel, &bytes).expect("a kernel");
    assert_eq!(kernel_release(&kernel).as_deref(), Some("6.1.0-57-x"));
    bytes[0x20e..0x210].copy_from_slice(&u16::MAX.to_le_bytes());
    fs::write(&kernel, &bytes).expect("a kernel");
    assert_eq!(kernel_release(&kernel), None);
}
