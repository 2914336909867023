//! Archives are listed and unpacked by the cpio of the system, where there is one, and read by a few
//! lines here in any case.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::Path;
use std::process::{Command, Stdio};

use proptest::prelude::*;
use tempfile::TempDir;

use super::*;

/// One entry, read back.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Read {
    inode: u32,
    mode: u32,
    uid: u32,
    names: u32,
    device: (u32, u32),
    bytes: Vec<u8>,
}

fn written(initramfs: &Initramfs) -> Vec<u8> {
    let mut archive = Vec::new();
    initramfs.write_to(&mut archive).expect("written");
    assert_eq!(archive.len() as u64, initramfs.size_bytes());
    archive
}

fn entries(initramfs: &Initramfs) -> Vec<(String, Read)> {
    let archive = written(initramfs);
    let mut rest = &archive[..];
    let mut entries = Vec::new();
    loop {
        assert_eq!(&rest[..6], b"070701");
        let field = |index: usize| {
            let digits = &rest[6 + 8 * index..14 + 8 * index];
            u32::from_str_radix(std::str::from_utf8(digits).expect("ASCII"), 16).expect("hex")
        };
        let name_end = 110 + field(11) as usize;
        let name = String::from_utf8(rest[110..name_end - 1].to_vec()).expect("a name");
        assert_eq!(rest[name_end - 1], 0);
        let start = name_end.next_multiple_of(4);
        let end = start + field(6) as usize;
        if name == "TRAILER!!!" {
            assert_eq!(rest.len(), end);
            return entries;
        }
        let read = Read {
            inode: field(0),
            mode: field(1),
            uid: field(2),
            names: field(4),
            device: (field(9), field(10)),
            bytes: rest[start..end].to_vec(),
        };
        entries.push((name, read));
        rest = &rest[end.next_multiple_of(4)..];
    }
}

fn by_name(initramfs: &Initramfs) -> BTreeMap<String, Read> {
    entries(initramfs).into_iter().collect()
}

/// What `cpio` with `arguments` makes of the archive, in `directory`; none where there is no cpio.
fn cpio(initramfs: &Initramfs, arguments: &[&str], directory: &Path) -> Option<String> {
    let archive = directory.join("archive.cpio");
    fs::write(&archive, written(initramfs)).expect("an archive");
    let output = Command::new("cpio")
        .args(arguments)
        .current_dir(directory)
        .stdin(fs::File::open(&archive).expect("the archive"))
        .output();
    let Ok(output) = output else {
        eprintln!("not compared with cpio: there is none here");
        return None;
    };
    let complaints = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{complaints}");
    assert!(
        complaints
            .lines()
            .all(|line| line.ends_with("blocks") || line.ends_with("block")),
        "{complaints}"
    );
    Some(String::from_utf8(output.stdout).expect("text"))
}

fn long_name() -> String {
    (0..12)
        .map(|_| "d".repeat(200))
        .collect::<Vec<_>>()
        .join("/")
        + "/file"
}

/// A tree with everything that an ordinary user can make.
fn sample_tree() -> TempDir {
    let tree = tempfile::tempdir().expect("a directory");
    let root = tree.path();
    fs::create_dir_all(root.join("etc/empty")).expect("directories");
    fs::write(root.join("etc/motd"), "hello\n").expect("a file");
    fs::write(root.join("none"), "").expect("a file");
    fs::set_permissions(root.join("none"), fs::Permissions::from_mode(0o4755)).expect("a mode");
    fs::hard_link(root.join("etc/motd"), root.join("a-link")).expect("a link");
    fs::hard_link(root.join("etc/motd"), root.join("z-link")).expect("a link");
    symlink("etc/motd", root.join("soft")).expect("a link");
    symlink("/nowhere/at/all", root.join("dangling")).expect("a link");
    let deep = root.join(long_name());
    fs::create_dir_all(deep.parent().expect("a parent")).expect("directories");
    fs::write(deep, vec![7; 5001]).expect("a file");
    let fifo = Command::new("mkfifo").arg(root.join("fifo")).status();
    assert!(fifo.expect("mkfifo").success());
    tree
}

#[test]
fn a_tree_is_packed_as_it_is() {
    let tree = sample_tree();
    let owner = fs::metadata(tree.path()).expect("metadata").uid();
    let mut initramfs = Initramfs::new();
    initramfs.add_tree(tree.path(), None).expect("packed");
    let entries = by_name(&initramfs);
    assert_eq!(
        entries["etc"].mode,
        0o040_000 | fs::metadata(tree.path().join("etc")).unwrap().mode() & 0o7777
    );
    assert_eq!(entries["none"].mode, 0o104_755);
    assert_eq!(entries["none"].uid, owner);
    assert_eq!(entries["soft"].bytes, b"etc/motd");
    assert_eq!(entries["soft"].mode & 0o170_000, 0o120_000);
    assert_eq!(entries["dangling"].bytes, b"/nowhere/at/all");
    assert_eq!(entries["fifo"].mode & 0o170_000, 0o010_000);
    assert_eq!(entries[&long_name()].bytes, vec![7; 5001]);
    // Three names of one file: its bytes are there once.
    let linked = ["a-link", "etc/motd", "z-link"].map(|name| &entries[name]);
    assert!(
        linked
            .iter()
            .all(|entry| entry.names == 3 && entry.inode == linked[0].inode)
    );
    let bytes: Vec<_> = linked.iter().map(|entry| &entry.bytes[..]).collect();
    assert_eq!(bytes, [&b"hello\n"[..], b"", b""]);
}

#[test]
fn the_same_tree_gives_the_same_archive() {
    let tree = sample_tree();
    let pack = || {
        let mut initramfs = Initramfs::new();
        initramfs.add_tree(tree.path(), None).expect("packed");
        written(&initramfs)
    };
    assert!(pack() == pack());
}

#[test]
fn the_cpio_of_the_system_unpacks_it() {
    let tree = sample_tree();
    let mut initramfs = Initramfs::new();
    initramfs.add_tree(tree.path(), None).expect("packed");
    let unpacked = tempfile::tempdir().expect("a directory");
    if cpio(&initramfs, &["-i", "-d", "-m"], unpacked.path()).is_none() {
        return;
    }
    fs::remove_file(unpacked.path().join("archive.cpio")).expect("removed");
    let difference = Command::new("diff")
        .args(["-r", "--no-dereference"])
        .args(["--exclude", "fifo"])
        .args([tree.path(), unpacked.path()])
        .output()
        .expect("diff");
    assert!(
        difference.status.success(),
        "{}",
        String::from_utf8_lossy(&difference.stdout)
    );
    let inode = |name| {
        fs::metadata(unpacked.path().join(name))
            .expect("metadata")
            .ino()
    };
    assert_eq!(inode("a-link"), inode("etc/motd"));
    assert_eq!(inode("z-link"), inode("etc/motd"));
    let mode = fs::metadata(unpacked.path().join("none"))
        .expect("metadata")
        .mode();
    assert_eq!(mode & 0o7777, 0o4755);
}

#[test]
fn the_cpio_of_the_system_lists_devices() {
    let mut initramfs = Initramfs::new();
    let attributes = Attributes::of_root(0o600);
    let device = |major, minor| DeviceNumber { major, minor };
    let nodes = [
        ("dev/console", Node::CharacterDevice(device(5, 1))),
        ("dev/disk", Node::BlockDevice(device(259, 70_000))),
        ("run/pipe", Node::Fifo),
        ("run/socket", Node::Socket),
        ("sbin/init", Node::SymbolicLink(b"../bin/busybox".to_vec())),
    ];
    for (name, node) in nodes {
        initramfs.add(name, attributes, node).expect("added");
    }
    let directory = tempfile::tempdir().expect("a directory");
    let Some(list) = cpio(&initramfs, &["-t", "-v"], directory.path()) else {
        return;
    };
    let line = |name: &str| {
        let line = list.lines().find(|line| line.contains(name));
        line.unwrap_or_else(|| panic!("{name} in {list}"))
            .to_owned()
    };
    assert!(line("dev/console").starts_with("crw-------"), "{list}");
    assert!(line("dev/console").contains("5,   1"), "{list}");
    assert!(line("dev/disk").starts_with("brw-------"), "{list}");
    assert!(line("dev/disk").contains("259, 70000"), "{list}");
    assert!(line("run/pipe").starts_with('p'), "{list}");
    assert!(line("run/socket").starts_with('s'), "{list}");
    assert!(
        line("sbin/init -> ../bin/busybox").starts_with('l'),
        "{list}"
    );
    assert!(
        list.lines()
            .any(|line| line.starts_with("drwxr-xr-x") && line.ends_with(" dev"))
    );
}

#[test]
fn files_of_the_user_become_roots() {
    let tree = sample_tree();
    let metadata = fs::metadata(tree.path()).expect("metadata");
    let mut initramfs = Initramfs::new();
    let owner = Some((metadata.uid(), metadata.gid()));
    initramfs.add_tree(tree.path(), owner).expect("packed");
    assert!(entries(&initramfs).iter().all(|(_, entry)| entry.uid == 0));
}

#[test]
fn a_reserved_name_is_kept() {
    let tree = tempfile::tempdir().expect("a directory");
    fs::create_dir(tree.path().join(".nvx")).expect("a directory");
    fs::write(tree.path().join(".nvx/init"), "theirs").expect("a file");
    let mut initramfs = Initramfs::reserving(".nvx");
    let node = Node::File(b"ours".to_vec());
    initramfs
        .add(".nvx/init", Attributes::of_root(0o755), node)
        .expect("added");
    initramfs.add_tree(tree.path(), None).expect("packed");
    assert_eq!(by_name(&initramfs)[".nvx/init"].bytes, b"ours");
}

#[test]
fn a_tree_that_changes_is_noticed() {
    let tree = tempfile::tempdir().expect("a directory");
    let file = tree.path().join("file");
    fs::write(&file, "four").expect("a file");
    let mut initramfs = Initramfs::new();
    initramfs.add_tree(tree.path(), None).expect("packed");
    fs::write(&file, "4").expect("a shorter one");
    let error = initramfs.write_to(&mut Vec::new()).expect_err("changed");
    assert!(
        matches!(&error, WriteError::Changed { name } if name == "file"),
        "{error}"
    );
    fs::remove_file(&file).expect("removed");
    symlink("/etc/passwd", &file).expect("a link in its place");
    let error = initramfs.write_to(&mut Vec::new()).expect_err("replaced");
    assert!(matches!(error, WriteError::Changed { .. }), "{error}");
}

/// Makes an archive by the `tar` of the system, with `options`, of `tree`; none where its compressor is missing.
fn tar(tree: &Path, options: &[&str]) -> Option<Vec<u8>> {
    let compressor = ["xz", "zstd"]
        .into_iter()
        .find(|name| options.contains(&&*format!("--{name}")));
    if let Some(name) = compressor
        && Command::new(name).arg("--version").output().is_err()
    {
        eprintln!("not tried: there is no {name} here");
        return None;
    }
    let output = Command::new("tar")
        .args(options)
        .args(["-c", "-f", "-", "-C"])
        .arg(tree)
        .arg(".")
        .stderr(Stdio::inherit())
        .output()
        .expect("tar");
    assert!(output.status.success());
    Some(output.stdout)
}

fn of_tar(archive: &[u8]) -> Result<Initramfs, AddError> {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("root.tar");
    fs::write(&path, archive).expect("an archive");
    let mut initramfs = Initramfs::reserving(".nvx");
    initramfs.add_tar(&path).map(|()| initramfs)
}

#[test]
fn a_tar_archive_gives_what_its_tree_gives() {
    let tree = sample_tree();
    let mut expected = Initramfs::new();
    expected.add_tree(tree.path(), None).expect("packed");
    let expected = by_name(&expected);
    for options in [
        &["--format=gnu"][..],
        &["--format=pax"],
        &["--format=gnu", "--gzip"],
        &["--format=pax", "--sort=name", "--gzip"],
        &["--format=gnu", "--xz"],
        &["--format=gnu", "--zstd"],
    ] {
        let Some(archive) = tar(tree.path(), options) else {
            continue;
        };
        let initramfs = of_tar(&archive).expect("unpacked");
        let mut found = by_name(&initramfs);
        assert!(found.keys().eq(expected.keys()), "{options:?}");
        // Which of a file's names is the first, and so has its bytes, is tar's choice.
        let linked =
            ["a-link", "etc/motd", "z-link"].map(|name| found.remove(name).expect("listed"));
        assert_eq!(
            linked
                .iter()
                .filter(|entry| entry.bytes == b"hello\n")
                .count(),
            1
        );
        assert!(
            linked
                .iter()
                .all(|entry| entry.names == 3 && entry.inode == linked[0].inode)
        );
        for (name, entry) in found {
            let expected = &expected[&name];
            assert_eq!(
                (entry.mode, entry.uid),
                (expected.mode, expected.uid),
                "{name}"
            );
            assert!(entry.bytes == expected.bytes, "{name}");
        }
    }
}

/// A header of the oldest kind, with its checksum.
fn header(name: &str, type_flag: u8, link: &str, bytes: usize) -> Vec<u8> {
    let mut block = vec![0; 512];
    block[..name.len()].copy_from_slice(name.as_bytes());
    block[100..107].copy_from_slice(b"0000644");
    block[124..135].copy_from_slice(format!("{bytes:011o}").as_bytes());
    block[156] = type_flag;
    block[157..157 + link.len()].copy_from_slice(link.as_bytes());
    block[148..156].fill(b' ');
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    block[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
    block
}

fn file(name: &str, text: &str) -> Vec<u8> {
    let mut entry = header(name, b'0', "", text.len());
    entry.extend(text.as_bytes());
    entry.resize(entry.len().next_multiple_of(512), 0);
    entry
}

#[test]
fn names_in_a_tar_archive_stay_inside() {
    let archive = [
        file("/absolute", "1"),
        file("../../above", "2"),
        file("a/../../b/./c", "3"),
        header("lib", b'2', "usr/lib", 0),
        header("out", b'2', "/etc/../..", 0),
        file("lib/deep/er", "4"),
        file("out/passwd", "5"),
        file(".nvx/init", "6"),
        header("mine", b'2', ".nvx", 0),
        file("mine/init", "7"),
        file("./", ""),
    ]
    .concat();
    let initramfs = of_tar(&archive).expect("unpacked");
    let entries = by_name(&initramfs);
    let bytes = |name: &str| String::from_utf8_lossy(&entries[name].bytes).into_owned();
    assert_eq!(bytes("absolute"), "1");
    assert_eq!(bytes("above"), "2");
    assert_eq!(bytes("b/c"), "3");
    assert_eq!(bytes("usr/lib/deep/er"), "4");
    assert_eq!(bytes("passwd"), "5");
    assert_eq!(entries["usr/lib/deep"].mode, 0o040_755);
    assert!(!entries.contains_key(".nvx/init"));
    assert!(
        entries
            .keys()
            .all(|name| !name.starts_with('/') && !name.split('/').any(|part| part == ".."))
    );
    // A directory comes before what is in it: the kernel makes none by itself.
    for (name, _) in self::entries(&initramfs) {
        if let Some((parent, _)) = name.rsplit_once('/') {
            assert!(entries.contains_key(parent), "{name}");
        }
    }
}

#[test]
fn the_last_of_two_files_with_a_name_counts() {
    let archive = [
        file("a", "old"),
        header("b", b'1', "a", 0),
        file("a", "new"),
        header("c", b'1', "a", 0),
    ]
    .concat();
    let entries = by_name(&of_tar(&archive).expect("unpacked"));
    assert_eq!(entries["a"].bytes, b"new");
    assert_eq!(entries["b"].bytes, b"old");
    assert_eq!(entries["b"].names, 1);
    assert_eq!(
        (entries["c"].inode, entries["c"].names),
        (entries["a"].inode, 2)
    );
}

#[test]
fn damage_is_named() {
    let chain = |error: AddError| {
        let source = std::error::Error::source(&error).map(ToString::to_string);
        source.unwrap_or_else(|| error.to_string())
    };
    let of = |archive: &[u8]| chain(of_tar(archive).expect_err("refused"));
    assert!(of(b"").contains("it is empty"));
    assert!(of(&[b'x'; 600]).contains("not a tar archive"));
    assert!(of(&[&b"BZh9"[..], &[1; 600]].concat()).contains("bzip2"));
    let whole = [file("first", "1"), file("second", &"2".repeat(2000))].concat();
    assert!(of(&whole[..2000]).contains("second goes on"));
    let mut damaged = whole.clone();
    damaged[1024] ^= 1;
    assert!(of(&damaged).contains("no header at byte 1024"));
    let missing = header("link", b'1', "nowhere", 0);
    assert!(of(&missing).contains("link is a hard link to nowhere"));
    assert!(of(&header("sparse", b'S', "", 0)).contains("sparse"));
    assert!(of(&[file("a", ""), file("a/b", "")].concat()).contains("a is to be a directory"));
    let circle = [
        header("a", b'2', "b", 0),
        header("b", b'2', "a", 0),
        file("a/c", ""),
    ]
    .concat();
    assert!(of(&circle).contains("too many symbolic links"));
    let huge = header("huge", b'x', "", 1 << 30);
    assert!(of(&huge).contains("size of the header at byte 0"));
    // To the kernel this name is `.nvx`, which is reserved.
    let cut_by_nul = [
        header("pax", b'x', "", 19),
        b"19 path=.nvx\0/init\n".to_vec(),
        vec![0; 493],
        file("init", ""),
    ]
    .concat();
    assert!(of(&cut_by_nul).contains("extended record of the header at byte 0"));
}

proptest! {
    #[test]
    fn a_damaged_archive_is_unpacked_or_refused(
        position in 0usize..6000,
        value in any::<u8>(),
        cut in 0usize..6000,
    ) {
        let mut archive = [
            file("first", "1"),
            header("link", b'1', "first", 0),
            header("pax", b'x', "", 30),
            b"20 path=some/where\n\n\n".iter().copied().chain([0; 491]).collect(),
            file("second", &"2".repeat(2000)),
        ].concat();
        archive.truncate(cut.max(1));
        if let Some(byte) = archive.get_mut(position) {
            *byte = value;
        }
        if let Ok(initramfs) = of_tar(&archive) {
            let _ = initramfs.write_to(&mut std::io::sink());
        }
    }
}
