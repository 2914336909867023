//! The folder with the Windows toolchain: Debian sid with Rust, the MinGW linker and Wine.
//!
//! Debian's Rust for Windows has no standard library, so Cargo builds it (`-Zbuild-std`) from the
//! source package, which lacks nothing but two start files of the target; they are compiled here once.
//! The folder takes about 3 GB and a few minutes, once per machine; it is complete when its last file,
//! the mark, is there.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use super::sandbox;

/// Written last. Another content is another recipe, and the folder is made anew.
const MARK: &str = "nvx-windows-toolchain";
const RECIPE: &str = "debian sid, recipe 1\n";

/// Where the compiler looks for the target's files.
const LIBRARIES: &str = "/usr/lib/rustlib/x86_64-pc-windows-gnu/lib";
const MIRROR: &str = "http://deb.debian.org/debian";
const PACKAGES: [&str; 6] = [
    "rustc",
    "cargo",
    "rust-src",
    "gcc-mingw-w64-x86-64",
    "wine64",
    "wine",
];

/// What is taken over from this machine, if it has it: how it reaches Debian's mirror and crates.io.
const HOST_FILES: [&str; 5] = [
    "/etc/apt/apt.conf",
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/resolv.conf",
    "/etc/hosts",
    "/etc/localtime",
];

/// Why there can be no toolchain here; `None` if there is one or one can be made.
pub fn obstacle() -> Option<String> {
    let root = std::fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0);
    if !root {
        return Some("entering the toolchain folder needs root (chroot and mounts)".to_owned());
    }
    let made = directory().is_ok_and(|directory| is_complete(&directory));
    if !made && !on_path("debootstrap") {
        return Some("the toolchain folder is made by debootstrap (Debian package)".to_owned());
    }
    None
}

/// The folder, made if it is not there.
pub fn ensure() -> Result<PathBuf> {
    let directory = directory()?;
    if is_complete(&directory) {
        return Ok(directory);
    }
    println!(
        "making the Windows toolchain in {} (once per machine: about 3 GB, 3 to 6 minutes)",
        directory.display()
    );
    let part = directory.with_extension("part");
    for left in [&directory, &part] {
        if left.exists() {
            std::fs::remove_dir_all(left)
                .with_context(|| format!("cannot remove {}", left.display()))?;
        }
    }
    make(&part)?;
    std::fs::write(part.join(MARK), RECIPE).context("cannot write the toolchain's mark")?;
    std::fs::rename(&part, &directory).context("cannot give the toolchain folder its name")?;
    Ok(directory)
}

fn is_complete(directory: &Path) -> bool {
    std::fs::read_to_string(directory.join(MARK)).is_ok_and(|text| text == RECIPE)
}

fn directory() -> Result<PathBuf> {
    let cache = match std::env::var_os("XDG_CACHE_HOME") {
        Some(cache) if !cache.is_empty() => PathBuf::from(cache),
        _ => Path::new(&std::env::var_os("HOME").context("HOME is not set")?).join(".cache"),
    };
    Ok(cache.join("nvx").join("windows-toolchain"))
}

fn make(part: &Path) -> Result<()> {
    let parent = part.parent().context("the cache directory has no parent")?;
    std::fs::create_dir_all(parent)
        .with_context(|| format!("cannot create {}", parent.display()))?;
    println!("  Debian sid by debootstrap");
    let mut debootstrap = Command::new("debootstrap");
    debootstrap
        .args(["--variant=minbase", "--include=ca-certificates", "sid"])
        .arg(part)
        .arg(MIRROR);
    run_quietly(&mut debootstrap, "debootstrap")?;
    for file in HOST_FILES {
        take_over(Path::new(file), part)?;
    }
    for file in download_settings() {
        take_over(&file, part)?;
    }
    println!("  packages {}", PACKAGES.join(", "));
    let install = format!(
        "apt-get update -q && apt-get install -q -y --no-install-recommends {} && apt-get clean",
        PACKAGES.join(" ")
    );
    run_quietly(
        in_folder(part, &install).env("DEBIAN_FRONTEND", "noninteractive"),
        "apt-get",
    )?;
    println!("  start files of the target");
    for object in ["rsbegin", "rsend"] {
        let compile = format!(
            "mkdir -p {LIBRARIES} && \
             RUSTC_BOOTSTRAP=1 rustc --edition 2021 --target x86_64-pc-windows-gnu --emit=obj \
             -o {LIBRARIES}/{object}.o /usr/lib/rustlib/src/rust/library/rtstartup/{object}.rs"
        );
        run_quietly(&mut in_folder(part, &compile), "rustc")?;
    }
    Ok(())
}

fn in_folder(root: &Path, script: &str) -> Command {
    let mut command = sandbox::enter(root, &[]);
    command.args(["sh", "-ec", script]);
    command.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
    command
}

/// Copies a file of this machine into the folder; one that is not there is not needed.
fn take_over(file: &Path, root: &Path) -> Result<()> {
    if !file.is_file() {
        return Ok(());
    }
    let target = root.join(file.strip_prefix("/").unwrap_or(file));
    let copied = std::fs::read(file).and_then(|content| {
        // A symbolic link there would lead out of the folder.
        let _ = std::fs::remove_file(&target);
        std::fs::write(&target, content)
    });
    copied.with_context(|| format!("cannot copy {} to {}", file.display(), target.display()))
}

/// The files of apt's configuration that say how packages are downloaded (proxies, checks); not those
/// that have apt do something to this machine.
fn download_settings() -> Vec<PathBuf> {
    let entries = std::fs::read_dir("/etc/apt/apt.conf.d");
    let files = entries.into_iter().flatten().flatten();
    files
        .map(|entry| entry.path())
        .filter(|path| {
            let text = std::fs::read_to_string(path).unwrap_or_default();
            text.lines().any(|line| line.starts_with("Acquire::"))
        })
        .collect()
}

/// Runs a step; its output is shown only if it fails.
fn run_quietly(command: &mut Command, name: &str) -> Result<()> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot run {name}"))?;
    if output.status.success() {
        return Ok(());
    }
    println!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    bail!("{name} failed while the Windows toolchain was made; see above");
}

fn on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(program).is_file())
}
