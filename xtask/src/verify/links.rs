//! Every relative link and anchor in the repository's Markdown leads somewhere.
//!
//! Targets are looked up among the repository's files, not on the disk, so a link to something that is
//! built or ignored fails. Anchors follow GitHub's rules. Links with a scheme are not followed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use anyhow::Result;

use self::markdown::Page;
use super::Finding;
use crate::workspace::Workspace;

mod markdown;

pub fn check(workspace: &Workspace) -> Result<Vec<Finding>> {
    let mut site = Site::default();
    for file in workspace.files()? {
        if file.extension().is_some_and(|extension| extension == "md") {
            site.pages
                .insert(file.clone(), Page::parse(&workspace.read(&file)?));
        }
        site.add(file);
    }
    Ok(site.findings(|file| workspace.read(file).ok().map(|text| text.lines().count())))
}

/// All that a link can lead to.
#[derive(Default)]
struct Site {
    /// Every file and every folder that holds one.
    places: BTreeSet<PathBuf>,
    pages: BTreeMap<PathBuf, Page>,
}

impl Site {
    fn add(&mut self, file: PathBuf) {
        for folder in file.ancestors().skip(1) {
            self.places.insert(folder.to_owned());
        }
        self.places.insert(file);
    }

    /// `count_lines` gives the length of a text file, for links to a line of source.
    fn findings(&self, count_lines: impl Fn(&Path) -> Option<usize>) -> Vec<Finding> {
        let mut findings = Vec::new();
        for (file, page) in &self.pages {
            for label in &page.undefined_labels {
                let message = format!("no definition of link label [{}]", label.text);
                findings.push(Finding::new(file, label.line, message));
            }
            for link in &page.links {
                if let Err(problem) = self.follow(file, &link.text, &count_lines) {
                    let message = format!("link `{}`: {problem}", link.text);
                    findings.push(Finding::new(file, link.line, message));
                }
            }
        }
        findings
    }

    fn follow(
        &self,
        from: &Path,
        destination: &str,
        count_lines: &impl Fn(&Path) -> Option<usize>,
    ) -> Result<(), String> {
        if destination.is_empty() {
            return Err("is empty".to_owned());
        }
        if is_external(destination) {
            return Ok(());
        }
        let (path, anchor) = match destination.split_once('#') {
            Some((path, anchor)) => (path, Some(percent_decode(anchor))),
            None => (destination, None),
        };
        let path = percent_decode(path.split('?').next().unwrap_or_default());
        let target = if path.is_empty() {
            from.to_owned()
        } else {
            resolve(from, &path).ok_or("leaves the repository")?
        };
        if !self.places.contains(&target) {
            return Err(format!("{} is not in the repository", target.display()));
        }
        match (anchor, self.pages.get(&target)) {
            (None, _) => Ok(()),
            (Some(anchor), Some(page)) if page.anchors.contains(&anchor) => Ok(()),
            (Some(anchor), Some(_)) => {
                Err(format!("{} has no heading #{anchor}", target.display()))
            }
            (Some(anchor), None) => {
                let lines = count_lines(&target).unwrap_or(0);
                match last_line(&anchor) {
                    Some(line) if (1..=lines).contains(&line) => Ok(()),
                    Some(line) => Err(format!("{} has no line {line}", target.display())),
                    None => Err(format!("{} has no anchors", target.display())),
                }
            }
        }
    }
}

fn is_external(destination: &str) -> bool {
    let scheme = destination.split_once(':').is_some_and(|(scheme, _)| {
        scheme.starts_with(|c: char| c.is_ascii_alphabetic())
            && scheme
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.'))
    });
    scheme || destination.starts_with("//")
}

/// The path that `path`, in a page at `from`, means; `None` if it climbs out of the repository.
fn resolve(from: &Path, path: &str) -> Option<PathBuf> {
    let start = if path.starts_with('/') {
        PathBuf::new()
    } else {
        from.parent()?.to_owned()
    };
    let mut resolved = start;
    for component in Path::new(path).components() {
        match component {
            Component::Normal(name) => resolved.push(name),
            Component::ParentDir if !resolved.pop() => return None,
            _ => {}
        }
    }
    Some(resolved)
}

/// For `L10` and `L10-L20`: the last line that is named.
fn last_line(anchor: &str) -> Option<usize> {
    anchor.rsplit('-').next()?.strip_prefix('L')?.parse().ok()
}

fn percent_decode(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let hex = text
            .get(at + 1..at + 3)
            .and_then(|hex| u8::from_str_radix(hex, 16).ok());
        match (bytes[at], hex) {
            (b'%', Some(byte)) => {
                decoded.push(byte);
                at += 3;
            }
            (byte, _) => {
                decoded.push(byte);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&decoded).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn site(pages: &[(&str, &str)], files: &[&str]) -> Site {
        let mut site = Site::default();
        for (name, text) in pages {
            site.pages.insert(name.into(), Page::parse(text));
            site.add(name.into());
        }
        for file in files {
            site.add(file.into());
        }
        site
    }

    fn messages(pages: &[(&str, &str)]) -> Vec<String> {
        site(pages, &["src/main.rs", "doc/pic 1.png"])
            .findings(|_| Some(20))
            .iter()
            .map(ToString::to_string)
            .collect()
    }

    #[test]
    fn good_links_pass() {
        let page = "# One\n[a](../README.md#top) [b](#one) [c](/src/main.rs) [d](../src)\n\
                    [e](https://x.org/y#z) [f](mailto:a@b) ![g](pic%201.png) ![h](<pic 1.png> \"t\")\n\
                    [i](../src/main.rs#L3-L20) [j](../src/) [k](b.md?plain=1)\n";
        let pages = [
            ("doc/a.md", page),
            ("README.md", "# Top\n"),
            ("doc/b.md", ""),
        ];
        assert_eq!(messages(&pages), Vec::<String>::new());
    }

    #[test]
    fn broken_links_are_named() {
        let page = "[a](gone.md)\n[b](#gone)\n[c](../README.md#gone)\n[d](../../x)\n[e]()\n\
                    [f](../src/main.rs#L21)\n[g](../src/main.rs#main)\n[h][gone]\n\n[i]: gone.png\n";
        let pages = [("doc/a.md", page), ("README.md", "# Top\n")];
        assert_eq!(
            messages(&pages),
            [
                "doc/a.md:8: no definition of link label [gone]",
                "doc/a.md:1: link `gone.md`: doc/gone.md is not in the repository",
                "doc/a.md:2: link `#gone`: doc/a.md has no heading #gone",
                "doc/a.md:3: link `../README.md#gone`: README.md has no heading #gone",
                "doc/a.md:4: link `../../x`: leaves the repository",
                "doc/a.md:5: link ``: is empty",
                "doc/a.md:6: link `../src/main.rs#L21`: src/main.rs has no line 21",
                "doc/a.md:7: link `../src/main.rs#main`: src/main.rs has no anchors",
                "doc/a.md:10: link `gone.png`: doc/gone.png is not in the repository",
            ]
        );
    }
}
