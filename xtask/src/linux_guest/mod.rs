//! Lane `linux-guest`: stock Linux guests on a complete `/dev/kvm`, on any machine.
//!
//! QEMU's software emulation offers AMD SVM with nested paging, so a Debian kernel inside it has a full KVM. That
//! *outer machine* is booted with an initramfs that carries the static nvx, the test binary of
//! `crates/nvx/tests/linux_guest`, and the kernels that the guests run. Times there are good as ratios only.
//!
//! The emulator now and then breaks the outer machine's kernel: after the exit of a guest it goes on with the guest's
//! GS base (seen with QEMU 7.2). That is told, and the tests that have no result yet run again. For the same reason a
//! test that failed runs once more, alone in a fresh outer machine: a fault of NVX fails twice. That is told as well.
//!
//! The kernels come from Debian packages, which are kept unpacked in `~/.cache/nvx/linux-guest` (or below
//! `XDG_CACHE_HOME`); remove that directory to fetch newer ones. Nothing is installed, and nothing needs root.

mod boot64;
mod outer;
mod packages;

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nvx_machine::initramfs::{Attributes, Initramfs, Node};
use nvx_machine::kernel::read_kernel;
use serde_json::Value;

use self::packages::{Packages, Suite};
use crate::dist;
use crate::workspace::{Workspace, cargo};

/// The test binary, an integration test of package `nvx`.
const TEST_BINARY: &str = "linux_guest";
/// Names the kernels for the test of `nvx-machine` that unpacks them.
const KERNELS_VARIABLE: &str = "NVX_TEST_KERNELS";
/// Tests that run at once in the outer machine, which has two processors.
const TEST_THREADS: &str = "2";
/// Module of the test binary that holds the speed table.
const SPEED: &str = "speed";
/// Samples of which the speed table has the median.
const SPEED_ROUNDS: u32 = 3;
/// Ends a lane that hangs. Far above what the tests that every change runs take on an idle machine of two processors.
const LIMIT: Duration = Duration::from_secs(45 * 60);
/// The same with `--long`.
const LONG_LIMIT: Duration = Duration::from_secs(120 * 60);
/// How often the outer machine is started before its crashes break the lane. Each start goes on where the last ended.
const ATTEMPTS: u32 = 10;
/// More failures than this are no accident, and do not run again.
const MOST_REPEATED: usize = 6;
/// What tests and the place of their programs find in the environment.
const ENVIRONMENT: &str =
    "export NVX_LINUX_GUEST_LANE=1 NVX_KERNELS=/kernels NVX_BINARY=/bin/nvx RUST_BACKTRACE=0\n";
/// Directories of the kernel's modules that guests are given, below `kernel`.
const MODULE_DIRECTORIES: [&str; 4] = [
    "drivers/virtio",
    "drivers/char/hw_random",
    "drivers/net",
    "net/core",
];

/// What to run.
pub struct Options {
    /// Also the tests that take long.
    pub long: bool,
    /// Only tests whose name contains one of these; all, if there are none.
    pub filters: Vec<String>,
}

/// How the lane went.
#[derive(Debug, Default)]
pub struct Outcome {
    /// What the test binaries printed.
    pub output: String,
    /// Failures in the output that do not count, since their tests ran again; that result is in the output too.
    pub repeated: usize,
    /// Why the output is not the whole.
    pub broken: Option<String>,
}

/// Why the lane cannot run here; `None` if it can.
pub fn obstacle() -> Option<String> {
    let missing: Vec<&str> = [outer::QEMU, "apt-get", "dpkg-deb"]
        .into_iter()
        .filter(|program| !is_on_path(program))
        .collect();
    (!missing.is_empty()).then(|| {
        format!(
            "needs {} (a Debian machine with the package qemu-system-x86)",
            missing.join(" and ")
        )
    })
}

fn is_on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(program).is_file())
}

/// Runs the lane.
pub fn run(workspace: &Workspace, options: &Options) -> Result<Outcome> {
    let kernels = Kernels::fetch()?;
    let nvx = dist::build(workspace, &dist::Options::default())?;
    let tests = build_tests(workspace)?;
    let loaders = test_loaders(workspace, &kernels)?;

    let work = workspace.target_dir.join("linux-guest");
    std::fs::create_dir_all(&work).with_context(|| format!("cannot create {}", work.display()))?;
    let machine = OuterMachine {
        initrd: work.join("outer.cpio"),
        console: work.join("outer-console.log"),
        end: Instant::now() + if options.long { LONG_LIMIT } else { LIMIT },
        kernels: &kernels,
        nvx: &nvx,
        tests: &tests,
    };
    let mut outcome = machine.run_until_whole(options)?;
    if outcome.broken.is_none() {
        machine.repeat_failures(&mut outcome)?;
    }
    outcome.output.insert_str(0, &loaders);
    Ok(outcome)
}

/// What the outer machine is made of.
struct OuterMachine<'a> {
    initrd: PathBuf,
    console: PathBuf,
    /// When what still runs is ended.
    end: Instant,
    kernels: &'a Kernels,
    nvx: &'a Path,
    tests: &'a Path,
}

impl OuterMachine<'_> {
    /// Runs the tests, those that a crash left without a result again.
    fn run_until_whole(&self, options: &Options) -> Result<Outcome> {
        let mut outcome = Outcome::default();
        let mut finished = Vec::new();
        let mut attempt = 0;
        loop {
            attempt += 1;
            let run = self.run(&commands(options, &finished))?;
            outcome.output.push_str(&run.output);
            let Some(failure) = run.failure else {
                outcome.broken = unexpected(run.status);
                return Ok(outcome);
            };
            let results = results(&run.output);
            if !run.output.contains("test result: ") {
                outcome.output.push_str(&summary(&results));
            }
            if !run.crashed || attempt == ATTEMPTS {
                outcome.broken = Some(failure);
                return Ok(outcome);
            }
            finished.extend(results.into_iter().map(|(test, _)| test));
            println!("the outer machine's kernel crashed; the tests without a result run again");
        }
    }

    /// Runs the tests that failed once more, each alone.
    fn repeat_failures(&self, outcome: &mut Outcome) -> Result<()> {
        let failed: Vec<String> = results(&outcome.output)
            .into_iter()
            .filter_map(|(test, passed)| (!passed).then_some(test))
            .collect();
        if failed.is_empty() || failed.len() > MOST_REPEATED {
            return Ok(());
        }
        println!("run again, each alone: {}", failed.join(", "));
        let run = self.run(&repeat_commands(&failed))?;
        outcome.output.push_str(&run.output);
        if let Some(failure) = run.failure {
            outcome.broken = Some(failure);
            return Ok(());
        }
        outcome.broken = unexpected(run.status);
        let results = results(&run.output);
        outcome.repeated = results.len();
        for (test, passed) in results {
            let result = if passed { "passed" } else { "failed again" };
            println!("{test}: failed among others, {result} alone");
        }
        Ok(())
    }

    fn run(&self, commands: &str) -> Result<outer::Run> {
        pack(&self.initrd, self.kernels, self.nvx, self.tests, commands)?;
        println!("the outer machine starts; it prints:");
        let limit = self.end.saturating_duration_since(Instant::now());
        let run = outer::run(&self.kernels.cloud, &self.initrd, &self.console, limit)?;
        std::fs::remove_file(&self.initrd)
            .with_context(|| format!("cannot remove {}", self.initrd.display()))?;
        Ok(run)
    }
}

/// What is wrong with the status that the tests ended with. Their harness ends with 101 when a test failed, which
/// its counts tell.
fn unexpected(status: Option<i32>) -> Option<String> {
    let status = status.filter(|status| ![0, 101].contains(status))?;
    Some(format!("the tests ended with status {status}"))
}

/// The tests in what a harness has printed so far, and whether they passed.
fn results(output: &str) -> Vec<(String, bool)> {
    output
        .lines()
        .filter_map(|line| {
            let (test, result) = line.strip_prefix("test ")?.rsplit_once(" ... ")?;
            let passed = match result {
                "ok" => true,
                "FAILED" => false,
                _ => return None,
            };
            Some((test.to_owned(), passed))
        })
        .collect()
}

/// The last line of a harness that did not come to print it.
fn summary(results: &[(String, bool)]) -> String {
    let passed = results.iter().filter(|(_, passed)| *passed).count();
    let failed = results.len() - passed;
    format!("test result: cut short. {passed} passed; {failed} failed\n")
}

/// Kernels in the cache, and the packages that they came in.
struct Kernels {
    /// Debian's kernel for clouds as bzImage; the outer machine runs it too.
    cloud: PathBuf,
    /// The same, unpacked.
    cloud_elf: PathBuf,
    /// Its modules, a directory named as its version.
    cloud_modules: PathBuf,
    /// The same as bzImage without its PVH entry; `None` if this version's cannot be taken out.
    cloud_boot64: Option<PathBuf>,
    /// Debian's generic kernel as bzImage.
    generic: PathBuf,
    /// A libkrunfw; `None` if it cannot be had.
    krunfw: Option<PathBuf>,
    busybox: PathBuf,
}

impl Kernels {
    fn fetch() -> Result<Self> {
        let packages = Packages::in_user_cache()?;
        let cloud_package = packages.fetch_dependency("linux-image-cloud-amd64", "linux-image-")?;
        let generic_package = packages.fetch_dependency("linux-image-amd64", "linux-image-")?;
        let busybox = packages.fetch(Suite::Own, "busybox-static")?;
        let krunfw = match packages.fetch(Suite::Sid, "libkrunfw5") {
            Ok(package) => Some(find_krunfw(&package)?),
            Err(error) => {
                println!("no libkrunfw, its tests are skipped: {error:#}");
                None
            }
        };
        let cloud = only_entry(&cloud_package.join("boot"), "vmlinuz-")?;
        let cloud_elf = unpacked(&cloud, packages.directory())?;
        let cloud_boot64 = match without_pvh(&cloud, packages.directory()) {
            Ok(kernel) => Some(kernel),
            Err(error) => {
                println!("no kernel without a PVH entry, its test is skipped: {error:#}");
                None
            }
        };
        Ok(Self {
            cloud,
            cloud_elf,
            cloud_boot64,
            cloud_modules: only_entry(&cloud_package.join("lib/modules"), "")?,
            generic: only_entry(&generic_package.join("boot"), "vmlinuz-")?,
            krunfw,
            busybox: busybox.join("bin/busybox"),
        })
    }
}

/// The entry of `directory` whose name begins with `prefix`.
fn only_entry(directory: &Path, prefix: &str) -> Result<PathBuf> {
    let entries = std::fs::read_dir(directory)
        .with_context(|| format!("cannot read {}", directory.display()))?;
    for entry in entries {
        let entry = entry.with_context(|| format!("cannot read {}", directory.display()))?;
        if entry.file_name().to_string_lossy().starts_with(prefix) {
            return Ok(entry.path());
        }
    }
    bail!("no {prefix}* in {}", directory.display())
}

/// The library itself in the unpacked package, not a link to it.
fn find_krunfw(package: &Path) -> Result<PathBuf> {
    let library = only_entry(&package.join("usr/lib/x86_64-linux-gnu"), "libkrunfw.so")?;
    library
        .canonicalize()
        .with_context(|| format!("cannot find {}", library.display()))
}

/// The ELF file in `kernel`, a bzImage, written once beside the packages.
fn unpacked(kernel: &Path, cache: &Path) -> Result<PathBuf> {
    let name = kernel.file_name().unwrap_or_default().to_string_lossy();
    let place = cache.join(name.replace("vmlinuz", "vmlinux"));
    if !place.exists() {
        let staging = cache.join("vmlinux.new");
        let kernel = read_kernel(kernel)?;
        std::fs::write(&staging, kernel.image())
            .with_context(|| format!("cannot write {}", staging.display()))?;
        std::fs::rename(&staging, &place)
            .with_context(|| format!("cannot rename {}", staging.display()))?;
    }
    Ok(place)
}

/// `kernel`, a bzImage, without its PVH entry, written once beside the packages.
fn without_pvh(kernel: &Path, cache: &Path) -> Result<PathBuf> {
    let name = kernel.file_name().unwrap_or_default().to_string_lossy();
    let place = cache.join(name.replace("vmlinuz", "boot64"));
    if !place.exists() {
        let staging = cache.join("boot64.new");
        let image =
            std::fs::read(kernel).with_context(|| format!("cannot read {}", kernel.display()))?;
        std::fs::write(&staging, boot64::without_pvh(&image)?)
            .with_context(|| format!("cannot write {}", staging.display()))?;
        std::fs::rename(&staging, &place)
            .with_context(|| format!("cannot rename {}", staging.display()))?;
    }
    Ok(place)
}

/// Builds the test binary as nextest does in the other lanes, so that nothing is built twice, and returns its
/// path. It is dynamic; only what is under test must be as it is shipped.
fn build_tests(workspace: &Workspace) -> Result<PathBuf> {
    let output = cargo()
        .args(["test", "--no-run", "--locked", "--workspace", "--test"])
        .args([TEST_BINARY, "--message-format", "json-render-diagnostics"])
        .current_dir(&workspace.root)
        .stderr(Stdio::inherit())
        .output()
        .context("cannot run cargo test --no-run")?;
    if !output.status.success() {
        bail!("the tests could not be built");
    }
    executable(&String::from_utf8_lossy(&output.stdout))
        .context("cargo did not say where the test binary is")
}

/// Adds `program` of this machine as `name`, and the libraries that it needs at their own places.
fn add_dynamic(root: &mut Initramfs, name: &str, program: &Path) -> Result<()> {
    let attributes = Attributes::of_root(0o755);
    root.add_host_file(name, attributes, program)?;
    let output = Command::new("ldd")
        .arg(program)
        .output()
        .context("cannot run ldd")?;
    for library in libraries(&String::from_utf8_lossy(&output.stdout)) {
        if !root.contains(library.trim_start_matches('/')) {
            root.add_host_file(library, attributes, Path::new(library))?;
        }
    }
    Ok(())
}

/// QEMU and the firmware of its microvm machine, which the speed table has beside nvx.
fn add_qemu(root: &mut Initramfs) -> Result<()> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut places = std::env::split_paths(&path).map(|directory| directory.join(outer::QEMU));
    let qemu = places
        .find(|place| place.is_file())
        .with_context(|| format!("no {}", outer::QEMU))?;
    add_dynamic(root, "usr/bin/qemu-system-x86_64", &qemu)?;
    for firmware in ["bios-microvm.bin", "linuxboot_dma.bin", "kvmvapic.bin"] {
        let file = Path::new("/usr/share/qemu").join(firmware);
        let name = format!("usr/share/qemu/{firmware}");
        root.add_host_file(&name, Attributes::of_root(0o644), &file)?;
    }
    Ok(())
}

/// Paths in the output of ldd: `name => path (address)` or `path (address)`.
fn libraries(text: &str) -> Vec<&str> {
    text.lines()
        .filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')))
        .collect()
}

/// The test's executable in Cargo's messages, one JSON object a line.
fn executable(messages: &str) -> Option<PathBuf> {
    messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|message| message["target"]["name"] == TEST_BINARY)
        .find_map(|message| message["executable"].as_str().map(PathBuf::from))
}

/// Runs the loaders' test on the fetched kernels, outside the machine, where it is quick.
fn test_loaders(workspace: &Workspace, kernels: &Kernels) -> Result<String> {
    let files = [&kernels.cloud, &kernels.cloud_elf, &kernels.generic];
    let files = files.into_iter().chain(&kernels.krunfw);
    let list = std::env::join_paths(files).context("a path of the cache")?;
    let output = cargo()
        .args(["test", "--locked", "--workspace", "--test", "linux_kernels"])
        .args(["--", "--nocapture"])
        .env(KERNELS_VARIABLE, list)
        .current_dir(&workspace.root)
        .stderr(Stdio::inherit())
        .output()
        .context("cannot run cargo test")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    print!("{text}");
    if !output.status.success() && !text.contains("test result:") {
        bail!("the loaders' test could not be built");
    }
    Ok(text)
}

/// Packs the outer machine's root file system.
fn pack(place: &Path, kernels: &Kernels, nvx: &Path, tests: &Path, commands: &str) -> Result<()> {
    let program = Attributes::of_root(0o755);
    let data = Attributes::of_root(0o644);
    let mut root = Initramfs::new();
    let init = include_bytes!("outer-init").to_vec();
    root.add("init", program, Node::File(init))?;
    root.add("lane/run", data, Node::File(commands.into()))?;
    root.add_host_file("bin/busybox", program, &kernels.busybox)?;
    root.add_host_file("bin/nvx", program, nvx)?;
    add_dynamic(&mut root, "lane/tests", tests)?;
    add_qemu(&mut root)?;
    root.add_host_file("kernels/vmlinuz", data, &kernels.cloud)?;
    root.add_host_file("kernels/vmlinux", data, &kernels.cloud_elf)?;
    root.add_host_file("kernels/vmlinuz-generic", data, &kernels.generic)?;
    if let Some(boot64) = &kernels.cloud_boot64 {
        root.add_host_file("kernels/vmlinuz-boot64", data, boot64)?;
    }
    if let Some(krunfw) = &kernels.krunfw {
        root.add_host_file("kernels/libkrunfw.so", data, krunfw)?;
    }
    add_modules(&mut root, &kernels.cloud_modules)?;

    let file = File::create(place).with_context(|| format!("cannot create {}", place.display()))?;
    let mut out = BufWriter::new(file);
    root.write_to(&mut out)?;
    out.flush()
        .with_context(|| format!("cannot write {}", place.display()))
}

/// KVM's modules for the outer machine, and those that guests load.
fn add_modules(root: &mut Initramfs, modules: &Path) -> Result<()> {
    let data = Attributes::of_root(0o644);
    for (name, file) in [
        ("irqbypass", "kernel/virt/lib/irqbypass.ko"),
        ("kvm", "kernel/arch/x86/kvm/kvm.ko"),
        ("kvm-amd", "kernel/arch/x86/kvm/kvm-amd.ko"),
    ] {
        root.add_host_file(&format!("lane/{name}.ko"), data, &modules.join(file))?;
    }
    let version = modules.file_name().unwrap_or_default().to_string_lossy();
    let lists = [
        "modules.order",
        "modules.builtin",
        "modules.builtin.modinfo",
    ];
    for list in lists {
        let name = format!("lib/modules/{version}/{list}");
        root.add_host_file(&name, data, &modules.join(list))?;
    }
    for directory in MODULE_DIRECTORIES {
        let source = modules.join("kernel").join(directory);
        let entries = std::fs::read_dir(&source)
            .with_context(|| format!("cannot read {}", source.display()))?;
        for entry in entries {
            let path = entry?.path();
            if path.is_file() {
                let file = path.file_name().unwrap_or_default().to_string_lossy();
                let name = format!("lib/modules/{version}/kernel/{directory}/{file}");
                root.add_host_file(&name, data, &path)?;
            }
        }
    }
    Ok(())
}

/// What the outer machine's init runs: all tests but those that have `finished`.
fn commands(options: &Options, finished: &[String]) -> String {
    let ignored = if options.long {
        " --include-ignored"
    } else {
        ""
    };
    // In single quotes nothing but a quote is special to the shell.
    let filters: String = options
        .filters
        .iter()
        .map(|filter| format!(" '{}'", filter.replace('\'', "")))
        .collect();
    // Names of tests have no character that is special to the shell.
    let skip: String = finished
        .iter()
        .map(|test| format!(" --skip {test}"))
        .collect();
    // The speed table is measured when nothing else runs, and printed.
    let is_speed_wanted = |filter: &String| filter.starts_with(SPEED);
    let speed = if options.filters.is_empty() || options.filters.iter().any(is_speed_wanted) {
        format!(
            "NVX_SPEED_ROUNDS={SPEED_ROUNDS} /lane/tests --exact {SPEED}::table --include-ignored --nocapture || status=$?\n"
        )
    } else {
        String::new()
    };
    format!(
        "{ENVIRONMENT}status=0\n\
         /lane/tests --test-threads {TEST_THREADS} --skip {SPEED}::table{ignored}{skip}{filters} || status=$?\n\
         {speed}"
    )
}

/// What the outer machine's init runs: these tests, one after the other.
fn repeat_commands(tests: &[String]) -> String {
    let mut commands = format!("{ENVIRONMENT}status=0\n");
    for test in tests {
        commands.push_str(&format!(
            "/lane/tests --exact {test} --include-ignored || status=$?\n"
        ));
    }
    commands
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_run_again_one_by_one() {
        let commands = repeat_commands(&["a::b".to_owned(), "c".to_owned()]);
        assert!(commands.starts_with("export NVX_LINUX_GUEST_LANE=1 "));
        assert!(commands.ends_with(
            "status=0\n/lane/tests --exact a::b --include-ignored || status=$?\n\
             /lane/tests --exact c --include-ignored || status=$?\n"
        ));
    }

    #[test]
    fn the_test_binary_is_found_in_cargos_messages() {
        let messages = "{\"target\":{\"name\":\"nvx\"},\"executable\":\"/t/nvx\"}\nnoise\n\
                        {\"target\":{\"name\":\"linux_guest\"},\"executable\":\"/t/linux_guest-1\"}\n";
        assert_eq!(
            executable(messages),
            Some(PathBuf::from("/t/linux_guest-1"))
        );
        assert_eq!(executable(""), None);
    }

    #[test]
    fn results_are_counted_without_the_harness_last_line() {
        let output = "running 4 tests\ntest a::b ... ok\ntest c has been running for over 60 seconds\n\
                      test d ... FAILED\ntest e ... ignored, long\n";
        let results = results(output);
        assert_eq!(
            results,
            [("a::b".to_owned(), true), ("d".to_owned(), false)]
        );
        assert_eq!(crate::test::test_result_counts(&summary(&results)), (1, 1));
        assert_eq!(unexpected(Some(101)), None);
        assert!(unexpected(Some(139)).is_some());
    }

    #[test]
    fn libraries_are_found_in_what_ldd_says() {
        let text = "\tlinux-vdso.so.1 (0x7ff)\n\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x7f)\n\
                    \t/lib64/ld-linux-x86-64.so.2 (0x7f)\n";
        assert_eq!(
            libraries(text),
            [
                "/lib/x86_64-linux-gnu/libc.so.6",
                "/lib64/ld-linux-x86-64.so.2"
            ]
        );
        assert!(libraries("\tnot a dynamic executable\n").is_empty());
    }

    #[test]
    fn the_commands_say_what_to_run() {
        let commands = |long, filters: &[&str]| {
            let filters = filters.iter().map(|filter| (*filter).to_owned()).collect();
            commands(&Options { long, filters }, &["a::b".to_owned()])
        };
        assert!(commands(false, &[]).contains("NVX_SPEED_ROUNDS=3 /lane/tests"));
        assert!(commands(false, &["x", "speed"]).contains("NVX_SPEED_ROUNDS=3 /lane/tests"));
        let filtered = commands(true, &["a'b", "c"]);
        assert!(
            filtered.ends_with(" --include-ignored --skip a::b 'ab' 'c' || status=$?\n"),
            "{filtered}"
        );
    }
}
