//! What Cargo and git know about the workspace: its root, packages and files.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// The workspace as `cargo metadata` describes it.
pub struct Workspace {
    /// Directory of the root Cargo.toml.
    pub root: PathBuf,
    /// Where Cargo puts what it builds.
    pub target_dir: PathBuf,
    /// Every member package, in Cargo's order.
    pub packages: Vec<Package>,
}

/// One member package.
pub struct Package {
    /// Package name, such as `nvx-memory`.
    pub name: String,
    /// Path of its Cargo.toml.
    pub manifest: PathBuf,
    /// Root source files of its library and binaries (not of tests, benches, examples or build scripts).
    pub roots: Vec<PathBuf>,
    /// Declared dependencies, of every kind.
    pub dependencies: Vec<Dependency>,
}

/// One declared dependency.
pub struct Dependency {
    /// Name of the package that is depended on.
    pub name: String,
    /// True for `[dev-dependencies]`.
    pub dev: bool,
}

impl Workspace {
    /// Asks Cargo. `--locked`, so a Cargo.lock that is out of date is an error here.
    pub fn load() -> Result<Self> {
        let output = cargo()
            .args([
                "metadata",
                "--no-deps",
                "--locked",
                "--format-version",
                "1",
                "--manifest-path",
            ])
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../Cargo.toml"))
            .output()
            .context("cannot run cargo metadata")?;
        if !output.status.success() {
            bail!(
                "cargo metadata failed: {}",
                String::from_utf8_lossy(&output.stderr).trim()
            );
        }
        let metadata = serde_json::from_slice(&output.stdout).context("cargo metadata's JSON")?;
        Self::from_metadata(&metadata)
    }

    fn from_metadata(metadata: &Value) -> Result<Self> {
        Ok(Self {
            root: text(metadata, "workspace_root")?.into(),
            target_dir: text(metadata, "target_directory")?.into(),
            packages: list(metadata, "packages")?
                .iter()
                .map(package)
                .collect::<Result<_>>()?,
        })
    }

    /// The repository's files, relative to the root, as git lists them: tracked or new, not ignored.
    pub fn files(&self) -> Result<Vec<PathBuf>> {
        let output = Command::new("git")
            .arg("-C")
            .arg(&self.root)
            .args([
                "ls-files",
                "-z",
                "--cached",
                "--others",
                "--exclude-standard",
            ])
            .output()
            .context("cannot run git ls-files")?;
        if !output.status.success() {
            bail!(
                "git ls-files failed: {}",
                String::from_utf8_lossy(&output.stderr).trim()
            );
        }
        let listing = String::from_utf8(output.stdout).context("a file name is not UTF-8")?;
        let mut files: Vec<PathBuf> = listing
            .split('\0')
            .filter(|name| !name.is_empty())
            .map(PathBuf::from)
            // A tracked file may be deleted in the working tree.
            .filter(|file| self.root.join(file).is_file())
            .collect();
        files.sort();
        files.dedup();
        Ok(files)
    }

    /// Reads one of [`Self::files`].
    pub fn read(&self, file: &Path) -> Result<String> {
        std::fs::read_to_string(self.root.join(file))
            .with_context(|| format!("cannot read {}", file.display()))
    }
}

/// The Cargo that started this program, or the one on the path.
pub fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

fn package(value: &Value) -> Result<Package> {
    let mut roots = Vec::new();
    for target in list(value, "targets")? {
        let shipped = list(target, "kind")?
            .iter()
            .any(|kind| matches!(kind.as_str(), Some("lib" | "bin" | "proc-macro")));
        if shipped {
            roots.push(text(target, "src_path")?.into());
        }
    }
    let dependencies = list(value, "dependencies")?
        .iter()
        .map(|dependency| {
            Ok(Dependency {
                name: text(dependency, "name")?.to_owned(),
                dev: dependency["kind"] == "dev",
            })
        })
        .collect::<Result<_>>()?;
    Ok(Package {
        name: text(value, "name")?.to_owned(),
        manifest: text(value, "manifest_path")?.into(),
        roots,
        dependencies,
    })
}

fn text<'a>(value: &'a Value, key: &str) -> Result<&'a str> {
    value[key]
        .as_str()
        .with_context(|| format!("cargo metadata has no text `{key}`"))
}

fn list<'a>(value: &'a Value, key: &str) -> Result<&'a Vec<Value>> {
    value[key]
        .as_array()
        .with_context(|| format!("cargo metadata has no list `{key}`"))
}
