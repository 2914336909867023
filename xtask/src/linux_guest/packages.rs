//! Debian packages, fetched into a cache and unpacked there; nothing is installed.
//!
//! apt works with a state directory of its own below the cache, so an ordinary user can do it, the machine's own
//! package lists stay as they are, and the suite `sid` can be asked although the machine does not have it.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// Where the machine's own package sources are described.
const SOURCES_LIST: &str = "/etc/apt/sources.list";
const SOURCES_DIRECTORY: &str = "/etc/apt/sources.list.d";

/// Which of Debian's suites to ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Suite {
    /// What the machine has.
    Own,
    /// Unstable, from the machine's own Debian mirror.
    Sid,
}

/// Unpacked packages in one directory.
pub struct Packages {
    cache: PathBuf,
}

impl Packages {
    /// Below `XDG_CACHE_HOME`, else `~/.cache`.
    pub fn in_user_cache() -> Result<Self> {
        let base = std::env::var_os("XDG_CACHE_HOME")
            .filter(|path| !path.is_empty())
            .map(PathBuf::from)
            .or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")))
            .context("neither XDG_CACHE_HOME nor HOME is set")?;
        let cache = base.join("nvx/linux-guest");
        std::fs::create_dir_all(&cache)
            .with_context(|| format!("cannot create {}", cache.display()))?;
        Ok(Self { cache })
    }

    /// Directory of the cache.
    pub fn directory(&self) -> &Path {
        &self.cache
    }

    /// The directory that `package` is unpacked in. Fetched if it is not there yet.
    pub fn fetch(&self, suite: Suite, package: &str) -> Result<PathBuf> {
        let place = self.cache.join(package);
        if place.is_dir() {
            return Ok(place);
        }
        println!("fetching {package}");
        let apt = Apt::new(&self.cache, suite)?;
        let archive = apt.download(package)?;
        // Unpacked beside its place, so that a half unpacked one is never taken for the whole.
        let staging = self.cache.join(format!("{package}.new"));
        if staging.exists() {
            std::fs::remove_dir_all(&staging)
                .with_context(|| format!("cannot remove {}", staging.display()))?;
        }
        let status = Command::new("dpkg-deb")
            .arg("--extract")
            .arg(&archive)
            .arg(&staging)
            .status()
            .context("cannot run dpkg-deb")?;
        if !status.success() {
            bail!("dpkg-deb could not unpack {}", archive.display());
        }
        std::fs::remove_file(&archive)
            .with_context(|| format!("cannot remove {}", archive.display()))?;
        std::fs::rename(&staging, &place)
            .with_context(|| format!("cannot rename {}", staging.display()))?;
        Ok(place)
    }

    /// Like [`Self::fetch`] for the package that `package`, an empty one, depends on and whose name begins with
    /// `prefix`.
    pub fn fetch_dependency(&self, package: &str, prefix: &str) -> Result<PathBuf> {
        let name_file = self.cache.join(format!("{package}.depends"));
        if let Ok(name) = std::fs::read_to_string(&name_file) {
            return self.fetch(Suite::Own, &name);
        }
        let name = Apt::new(&self.cache, Suite::Own)?.dependency(package, prefix)?;
        let place = self.fetch(Suite::Own, &name)?;
        std::fs::write(&name_file, &name)
            .with_context(|| format!("cannot write {}", name_file.display()))?;
        Ok(place)
    }
}

/// apt with a state directory of its own.
struct Apt {
    state: PathBuf,
    options: Vec<String>,
}

impl Apt {
    fn new(cache: &Path, suite: Suite) -> Result<Self> {
        let state = cache.join(match suite {
            Suite::Own => "apt-own",
            Suite::Sid => "apt-sid",
        });
        for directory in ["lists/partial", "archives/partial"] {
            let directory = state.join(directory);
            std::fs::create_dir_all(&directory)
                .with_context(|| format!("cannot create {}", directory.display()))?;
        }
        let directory = state.display();
        let mut options = vec![
            format!("Dir::State::Lists={directory}/lists"),
            format!("Dir::Cache={directory}"),
            // What is downloaded belongs to the user who runs this.
            "APT::Sandbox::User=".to_owned(),
        ];
        if suite == Suite::Sid {
            let sources = state.join("sid.sources");
            std::fs::write(&sources, sid_sources(&own_sources())?)
                .with_context(|| format!("cannot write {}", sources.display()))?;
            options.push(format!("Dir::Etc::SourceList={}", sources.display()));
            options.push("Dir::Etc::SourceParts=/dev/null".to_owned());
        }
        let apt = Self { state, options };
        apt.update()?;
        Ok(apt)
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        for option in &self.options {
            command.arg("-o").arg(option);
        }
        // Messages that are read here.
        command.env("LC_ALL", "C").current_dir(&self.state);
        command
    }

    fn update(&self) -> Result<()> {
        let output = self
            .command("apt-get")
            .args(["update", "-q"])
            .output()
            .context("cannot run apt-get")?;
        if !output.status.success() {
            bail!(
                "apt-get update failed: {}",
                String::from_utf8_lossy(&output.stderr).trim()
            );
        }
        Ok(())
    }

    /// Path of the downloaded package.
    fn download(&self, package: &str) -> Result<PathBuf> {
        let output = self
            .command("apt-get")
            .args(["download", "-q", package])
            .output()
            .context("cannot run apt-get")?;
        if !output.status.success() {
            bail!(
                "apt-get could not download {package}: {}",
                String::from_utf8_lossy(&output.stderr).trim()
            );
        }
        let prefix = format!("{package}_");
        let entries = std::fs::read_dir(&self.state)
            .with_context(|| format!("cannot read {}", self.state.display()))?;
        for entry in entries {
            let name = entry.context("cannot read the cache")?.file_name();
            let name = name.to_string_lossy();
            if name.starts_with(&prefix) && name.ends_with(".deb") {
                return Ok(self.state.join(&*name));
            }
        }
        bail!("apt-get downloaded {package} to an unknown place")
    }

    fn dependency(&self, package: &str, prefix: &str) -> Result<String> {
        let output = self
            .command("apt-cache")
            .args(["depends", package])
            .output()
            .context("cannot run apt-cache")?;
        find_dependency(&String::from_utf8_lossy(&output.stdout), prefix)
            .with_context(|| format!("{package} depends on no package {prefix}..."))
    }
}

/// A package in the output of `apt-cache depends`.
fn find_dependency(text: &str, prefix: &str) -> Option<String> {
    text.lines()
        .filter_map(|line| line.trim().strip_prefix("Depends: "))
        .find(|name| name.starts_with(prefix))
        .map(str::to_owned)
}

/// The machine's package sources as text, one file after the other.
fn own_sources() -> String {
    let mut files = vec![PathBuf::from(SOURCES_LIST)];
    let entries = std::fs::read_dir(SOURCES_DIRECTORY).into_iter().flatten();
    files.extend(entries.flatten().map(|entry| entry.path()));
    files.sort();
    let known = |file: &&PathBuf| {
        file.extension()
            .is_some_and(|extension| extension == "list" || extension == "sources")
    };
    files
        .iter()
        .filter(known)
        .filter_map(|file| std::fs::read_to_string(file).ok())
        .collect::<Vec<_>>()
        .join("\n\n")
}

/// A description of suite `sid` at the first Debian mirror in `sources`, with the same key.
fn sid_sources(sources: &str) -> Result<String> {
    let is_mirror = |uri: &str| {
        let uri = uri.trim_end_matches('/');
        uri.contains("://") && uri.ends_with("/debian")
    };
    // One-line style: deb [options] URI suite components.
    for line in sources.lines() {
        if let Some(rest) = line.trim().strip_prefix("deb ")
            && let Some(uri) = rest.split_whitespace().find(|word| is_mirror(word))
        {
            let options = rest
                .split_once('[')
                .and_then(|(_, rest)| rest.split_once(']'));
            let key = options
                .and_then(|(options, _)| {
                    options
                        .split_whitespace()
                        .find_map(|option| option.strip_prefix("signed-by="))
                })
                .map_or(String::new(), |key| format!("Signed-By: {key}\n"));
            return Ok(deb822(uri, &key));
        }
    }
    for stanza in sources.split("\n\n") {
        let value = |key: &str| {
            stanza
                .lines()
                .find_map(|line| line.strip_prefix(key))
                .map(str::trim)
        };
        if let Some(uris) = value("URIs:")
            && let Some(uri) = uris.split_whitespace().find(|uri| is_mirror(uri))
        {
            let key =
                value("Signed-By:").map_or(String::new(), |key| format!("Signed-By: {key}\n"));
            return Ok(deb822(uri, &key));
        }
    }
    bail!("no Debian mirror in {SOURCES_LIST} or {SOURCES_DIRECTORY}")
}

fn deb822(uri: &str, key: &str) -> String {
    format!("Types: deb\nURIs: {uri}\nSuites: sid\nComponents: main\n{key}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mirror_is_found_in_both_styles() {
        let stanzas = "Types: deb\nURIs: http://deb.debian.org/debian-security\nSuites: x\n\n\
                       # a comment\nTypes: deb\nURIs: http://mirror.example/debian/\nSuites: bookworm\n\
                       Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg\n";
        assert_eq!(
            sid_sources(stanzas).unwrap(),
            "Types: deb\nURIs: http://mirror.example/debian/\nSuites: sid\nComponents: main\n\
             Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg\n"
        );
        let line = "# deb x\ndeb [arch=amd64 signed-by=/k.gpg] https://mirror.example/debian trixie main\n";
        assert_eq!(
            sid_sources(line).unwrap(),
            "Types: deb\nURIs: https://mirror.example/debian\nSuites: sid\nComponents: main\n\
             Signed-By: /k.gpg\n"
        );
        assert!(sid_sources("deb http://archive.ubuntu.com/ubuntu noble main").is_err());
    }

    #[test]
    fn the_dependency_is_found() {
        let text = "linux-image-cloud-amd64\n  Depends: linux-image-6.1.0-57-cloud-amd64\n";
        assert_eq!(
            find_dependency(text, "linux-image-").as_deref(),
            Some("linux-image-6.1.0-57-cloud-amd64")
        );
        assert_eq!(find_dependency("N: no package\n", "linux-image-"), None);
    }
}
