//! What a guest has in it: roots of each kind, modules by path, and what its init sees to.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use crate::guest::{KernelFile, Linux};
use crate::support::text;

/// Where the lane has the modules of its kernel.
const MODULES: &str = "/lib/modules";

/// Runs a program of the machine that the tests run in.
fn host(program: &str, arguments: &[&str]) {
    let status = Command::new(program).args(arguments).status().unwrap();
    assert!(status.success(), "{program} {arguments:?}: {status}");
}

/// Puts files of each kind into `root`: a hard link, a symbolic link, a device, one with rights of its own.
fn add_special_files(root: &Path) {
    let at = |name: &str| root.join(name);
    std::fs::write(at("one"), "the same\n").unwrap();
    std::fs::hard_link(at("one"), at("two")).unwrap();
    symlink("two", at("three")).unwrap();
    std::fs::write(at("setuid"), "").unwrap();
    host("chmod", &["4751", text(&at("setuid"))]);
    host("mknod", &[text(&at("null")), "c", "1", "3"]);
}

/// Looks at them in the guest.
const LOOK: &str = "stat -c %h /one; cat /three; echo more >> /one; cat /two; stat -c %a /setuid; \
     stat -c '%F %t:%T' /null; echo gone > /null; ls -ld /setuid | cut -d ' ' -f 1";
const SEEN: [&str; 7] = [
    "2",
    "the same",
    "the same",
    "more",
    "4751",
    "character special file 1:3",
    "-rwsr-x--x",
];

#[test]
fn a_root_is_packed_from_a_directory_with_files_of_each_kind() {
    let Some(linux) = Linux::begin("contents::directory", KernelFile::Cloud) else {
        return;
    };
    add_special_files(&linux.root);
    let done = linux.run(LOOK).expect_code(0);
    assert_eq!(done.output.lines().collect::<Vec<_>>(), SEEN);
}

#[test]
fn a_root_is_packed_from_an_archive_with_files_of_each_kind() {
    let Some(mut linux) = Linux::begin("contents::archive", KernelFile::Cloud) else {
        return;
    };
    add_special_files(&linux.root);
    let archive = linux.path("root.tar.gz");
    host(
        "tar",
        &["-czf", text(&archive), "-C", text(&linux.root), "."],
    );
    linux.root = archive;
    let done = linux.run(LOOK).expect_code(0);
    assert_eq!(done.output.lines().collect::<Vec<_>>(), SEEN);
}

#[test]
fn a_module_is_loaded_by_its_path_with_what_it_needs() {
    let Some(mut linux) = Linux::begin("contents::module_path", KernelFile::Cloud) else {
        return;
    };
    let release = std::fs::read_dir(MODULES).unwrap().next().unwrap().unwrap();
    // Needs net_failover, which needs failover.
    let module = release.path().join("kernel/drivers/net/virtio_net.ko");
    if !module.exists() {
        panic!("no {} in the lane", module.display());
    }
    linux.contents = vec!["--module".to_owned(), text(&module).to_owned()];
    let done = linux
        .run("cut -d ' ' -f 1 /proc/modules | sort")
        .expect_code(0);
    let loaded: Vec<&str> = done.output.lines().collect();
    for module in ["failover", "net_failover", "virtio_net"] {
        assert!(loaded.contains(&module), "{loaded:?}");
    }
}

#[test]
fn orphans_are_reaped_and_commands_that_are_not_there_have_their_status() {
    let Some(mut linux) = Linux::begin("contents::orphans", KernelFile::Cloud) else {
        return;
    };
    linux.contents = vec!["--hostname".to_owned(), "somewhere".to_owned()];
    let orphans = "for i in 1 2 3 4 5; do (sleep 0.1 & ); done; sleep 2; \
         cat /proc/[0-9]*/status 2>/dev/null | grep -c '^State:.Z'; hostname";
    let done = linux.run(orphans).expect_code(0);
    assert_eq!(done.output.lines().collect::<Vec<_>>(), ["0", "somewhere"]);
    let mut command = linux.command("");
    let at = command.iter().position(|word| word == "--").unwrap();
    command.truncate(at + 1);
    command.push("/bin/nothing".into());
    let done = crate::support::run(&command).expect_code(127);
    done.assert_said("in the guest: /bin/nothing cannot be run");
}
