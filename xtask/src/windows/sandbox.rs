//! Running a command inside the toolchain folder.
//!
//! Each command has mount and process namespaces of its own (`unshare`): the mounts that it needs are
//! seen by nobody else and end with it, also when it is killed, and so does everything that it started,
//! Wine's server among it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::workspace::Workspace;

/// Where things stand in the sandbox.
const WORKSPACE_DIR: &str = "/nvx/workspace";
pub const TARGET_DIR: &str = "/nvx/target";
const CARGO_HOME: &str = "/nvx/cargo";
pub const WINE_PREFIX: &str = "/nvx/wine";
pub const RUNTIME_DIR: &str = "/nvx/run";

/// The toolchain folder with the workspace in it.
pub struct Sandbox {
    root: PathBuf,
    /// Outside and inside paths of what is mounted.
    mounts: Vec<(PathBuf, &'static str)>,
}

impl Sandbox {
    /// Prepares to run commands on `workspace` in the folder `root`. What is built stays in a directory
    /// of its own in the workspace's target directory.
    pub fn new(root: &Path, workspace: &Workspace) -> Result<Self> {
        let target = workspace.target_dir.join("windows");
        let registry = cargo_home()?.join("registry");
        for directory in [&target, &registry] {
            std::fs::create_dir_all(directory)
                .with_context(|| format!("cannot create {}", directory.display()))?;
        }
        let sandbox = Self {
            root: root.to_owned(),
            mounts: vec![
                (workspace.root.clone(), WORKSPACE_DIR),
                (target, TARGET_DIR),
                (registry, "/nvx/cargo/registry"),
            ],
        };
        let inside = sandbox.mounts.iter().map(|(_, inside)| *inside);
        for directory in inside.chain([WINE_PREFIX, RUNTIME_DIR]) {
            let outside = root.join(directory.trim_start_matches('/'));
            std::fs::create_dir_all(&outside)
                .with_context(|| format!("cannot create {}", outside.display()))?;
        }
        Ok(sandbox)
    }

    /// Runs the folder's Cargo; gives its standard output.
    pub fn cargo(&self, arguments: &[String]) -> Result<String> {
        let mut command = self.command(&self.mounts, "exec cargo \"$@\"");
        command.args(arguments);
        let output = command
            .stderr(Stdio::inherit())
            .output()
            .context("cannot run setpriv and unshare")?;
        if !output.status.success() {
            bail!(
                "cargo {} failed for Windows; see above",
                arguments.join(" ")
            );
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Runs a shell script, shows its output as it comes, and gives it.
    pub fn script(&self, script: &str) -> Result<String> {
        let mut command = self.command(&self.mounts, script);
        let mut child = command
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot run setpriv and unshare")?;
        let mut text = String::new();
        if let Some(output) = child.stdout.take() {
            use std::io::{BufRead as _, BufReader};
            let mut lines = BufReader::new(output);
            let mut line = Vec::new();
            while lines
                .read_until(b'\n', &mut line)
                .context("output of Wine")?
                > 0
            {
                let shown = String::from_utf8_lossy(&line).replace('\r', "");
                print!("{shown}");
                text.push_str(&shown);
                line.clear();
            }
        }
        child.wait().context("cannot wait for unshare")?;
        Ok(text)
    }

    fn command(&self, mounts: &[(PathBuf, &'static str)], script: &str) -> Command {
        let mut command = enter(&self.root, mounts);
        command.args(["sh", "-c", &format!("cd {WORKSPACE_DIR} && {script}"), "sh"]);
        command.env_clear();
        command.envs(environment());
        command
    }
}

/// What commands in the sandbox see of the environment.
fn environment() -> Vec<(&'static str, OsString)> {
    let mut all: Vec<(&'static str, OsString)> = vec![
        ("PATH", "/usr/sbin:/usr/bin:/sbin:/bin".into()),
        ("HOME", "/root".into()),
        ("LANG", "C.UTF-8".into()),
        ("CARGO_HOME", CARGO_HOME.into()),
        ("CARGO_TARGET_DIR", TARGET_DIR.into()),
        // Debian's stable compiler builds a standard library for Windows only with this.
        ("RUSTC_BOOTSTRAP", "1".into()),
        ("WINEDEBUG", "-all".into()),
        ("WINEPREFIX", WINE_PREFIX.into()),
        ("XDG_RUNTIME_DIR", RUNTIME_DIR.into()),
        ("DEBIAN_FRONTEND", "noninteractive".into()),
    ];
    // Nobody looks at these programs in a debugger, and a machine of CI builds once.
    let is_ci = std::env::var_os("CI").is_some();
    for (name, value) in [
        ("CARGO_PROFILE_DEV_DEBUG", "0"),
        ("CARGO_PROFILE_TEST_DEBUG", "0"),
        ("CARGO_INCREMENTAL", if is_ci { "0" } else { "1" }),
    ] {
        all.push((name, value.into()));
    }
    for name in ["CI", "CARGO_BUILD_JOBS", "CARGO_TERM_COLOR"] {
        if let Some(value) = std::env::var_os(name) {
            all.push((name, value));
        }
    }
    all
}

/// A command line whose mounts are its own, and whose processes end with it, as it does with this process,
/// however that ends; the program and its arguments are to be added.
pub fn alone() -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "unshare"]).args([
        "--mount",
        "--pid",
        "--fork",
        "--kill-child",
        "--",
    ]);
    command
}

/// A command line that enters the folder `root`; the program and its arguments are to be added.
pub fn enter(root: &Path, mounts: &[(PathBuf, &'static str)]) -> Command {
    let mut command = alone();
    command
        .args(["sh", "-ec", ENTER, "enter"])
        .arg(root)
        .arg(mounts.len().to_string());
    for (outside, inside) in mounts {
        command.arg(outside).arg(inside);
    }
    command
}

/// Arguments: the root, the number of mounts, a pair of paths for each, then the command.
const ENTER: &str = r#"
root=$1; count=$2; shift 2
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
while [ "$count" -gt 0 ]; do
    mount --bind "$1" "$root$2"
    shift 2; count=$((count - 1))
done
exec chroot "$root" "$@"
"#;

fn cargo_home() -> Result<PathBuf> {
    if let Some(home) = std::env::var_os("CARGO_HOME") {
        return Ok(home.into());
    }
    let home = std::env::var_os("HOME").context("neither CARGO_HOME nor HOME is set")?;
    Ok(Path::new(&home).join(".cargo"))
}
