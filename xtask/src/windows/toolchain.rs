//! The folder with the Windows toolchain: Debian sid with Rust, the MinGW linker and Wine.
//!
//! Debian's Rust for Windows has no standard library, so Cargo builds it (`-Zbuild-std`) from the
//! source package, which lacks nothing but two start files of the target; they are compiled here once,
//! and Wine's registry and drive are set up. The folder takes about 3 GB and a few minutes, once per
//! machine.
//!
//! It is made under another name and gets its own when its last file, the mark, is in it: what was left
//! by a make that failed or was killed is removed by the next. Every step has a mount namespace of its own
//! (debootstrap mounts in the folder too), so nothing stays mounted and removing cannot lead out of it.

use std::fs::File;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};

use super::sandbox;

/// Written last. Another content is another recipe, and the folder is made anew.
const MARK: &str = "nvx-windows-toolchain";
const RECIPE: &str = "debian sid, recipe 2\n";

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

/// Nobody reads manuals there, and a folder that a power cut spoils is made again.
const DPKG_SETTINGS: &str = "force-unsafe-io
path-exclude=/usr/share/doc/*
path-exclude=/usr/share/man/*
path-exclude=/usr/share/locale/*
";

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
    let parent = directory
        .parent()
        .context("the cache directory has no parent")?;
    std::fs::create_dir_all(parent)
        .with_context(|| format!("cannot create {}", parent.display()))?;
    let lock_path = directory.with_extension("lock");
    let lock = File::create(&lock_path)
        .with_context(|| format!("cannot create {}", lock_path.display()))?;
    lock.lock()
        .with_context(|| format!("cannot lock {}", lock_path.display()))?;
    // Another process may have made it meanwhile.
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
    let mut debootstrap = sandbox::alone();
    debootstrap
        .args(["debootstrap", "--variant=minbase"])
        .args(["--include=ca-certificates", "sid"])
        .arg(part)
        .arg(MIRROR);
    step("Debian sid by debootstrap", &mut debootstrap)?;
    for file in HOST_FILES {
        take_over(Path::new(file), part)?;
    }
    for file in download_settings() {
        take_over(&file, part)?;
    }
    let dpkg_settings = part.join("etc/dpkg/dpkg.cfg.d/nvx");
    std::fs::write(&dpkg_settings, DPKG_SETTINGS)
        .with_context(|| format!("cannot write {}", dpkg_settings.display()))?;
    let packages = PACKAGES.join(" ");
    let install = format!(
        "apt-get update -q && apt-get install -q -y --no-install-recommends {packages} && apt-get clean"
    );
    step(
        &format!("packages {packages}"),
        in_folder(part, &install).env("DEBIAN_FRONTEND", "noninteractive"),
    )?;
    for object in ["rsbegin", "rsend"] {
        let compile = format!(
            "mkdir -p {LIBRARIES} && \
             RUSTC_BOOTSTRAP=1 rustc --edition 2021 --target x86_64-pc-windows-gnu --emit=obj \
             -o {LIBRARIES}/{object}.o /usr/lib/rustlib/src/rust/library/rtstartup/{object}.rs"
        );
        step(
            &format!("start file {object}.o of the target"),
            &mut in_folder(part, &compile),
        )?;
    }
    // Without .NET and HTML, which nothing here uses, Wine does not ask for their packages. Its server
    // writes the registry when it ends.
    let wine = format!(
        "mkdir -p {runtime} {prefix} && export WINEDEBUG=-all WINEPREFIX={prefix} XDG_RUNTIME_DIR={runtime} && \
         WINEDLLOVERRIDES='mscoree,mshtml=' wineboot --init && \
         $(dpkg -L wine64 | grep '/wineserver$') --wait",
        runtime = sandbox::RUNTIME_DIR,
        prefix = sandbox::WINE_PREFIX,
    );
    step(
        "Wine's drive and registry",
        in_folder(part, &wine).env("HOME", "/root"),
    )
}

/// Runs one step, and says how long it took.
fn step(what: &str, command: &mut Command) -> Result<()> {
    let start = Instant::now();
    run_quietly(command, what)?;
    println!("  {what}: {:.0} s", start.elapsed().as_secs_f64());
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
    bail!("the Windows toolchain could not be made: {name}; see above");
}

fn on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(program).is_file())
}
