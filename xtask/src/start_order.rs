//! `cargo xtask start-order`: finds out which functions a start executes, for the linker to place together.
//!
//! The kernel maps program text in aligned windows of 64 KiB around each page that is touched. What a start
//! executes is some hundred kilobytes; scattered over the whole program it made more than two megabytes
//! resident, at the price of as many page faults. So the start of a guest, its capture and its restore are
//! run here one instruction at a time, and the input sections that were executed are written to
//! `crates/nvx/start-order.ld`, a linker script that `cargo xtask build` uses. Names of functions end in
//! hashes that change with the code; the script leaves them open. A function that is missing from it
//! is merely placed elsewhere: the script never makes a build wrong, only less compact with time.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, bail};

use crate::dist;
use crate::workspace::Workspace;

const SCRIPT: &str = "crates/nvx/start-order.ld";

/// A section of an object file, as the linker's map tells where it was placed.
#[derive(Debug, PartialEq, Eq)]
struct InputSection {
    first: u64,
    end: u64,
    /// File such as `crt1.o` or archive member such as `libc.a:malloc.o`; `None` for the program's own object.
    file: Option<String>,
    name: String,
}

/// Builds, runs, and rewrites the script.
pub fn run(workspace: &Workspace) -> Result<ExitCode> {
    let directory = workspace.target_dir.join("start-order");
    fs::create_dir_all(&directory).context("cannot make the work directory")?;
    let map = directory.join("nvx.map");
    let binary = dist::build_with_map(workspace, &map)?;
    let text = fs::read_to_string(&map).context("cannot read the linker's map")?;
    let sections = text_sections(&text);
    let (Some(first), Some(end)) = (
        sections.iter().map(|section| section.first).min(),
        sections.iter().map(|section| section.end).max(),
    ) else {
        bail!("{} names no text: is the linker lld?", map.display());
    };
    let stepper = Stepper {
        program: compile_stepper(workspace, &directory)?,
        binary,
        first,
        end,
        directory: directory.clone(),
    };
    let executed = stepper.life()?;
    let script = script(&sections, &executed);
    fs::write(workspace.root.join(SCRIPT), script)
        .with_context(|| format!("cannot write {SCRIPT}"))?;
    println!(
        "{SCRIPT}: {} instructions were executed in two processes",
        executed.len()
    );
    Ok(ExitCode::SUCCESS)
}

fn compile_stepper(workspace: &Workspace, directory: &Path) -> Result<PathBuf> {
    let program = directory.join("step");
    let status = Command::new("cc")
        .args(["-O1", "-Wall", "-Wextra", "-o"])
        .arg(&program)
        .arg(workspace.root.join("xtask/start-order/step.c"))
        .status()
        .context("cannot run cc")?;
    if !status.success() {
        bail!("cc failed on step.c");
    }
    Ok(program)
}

struct Stepper {
    program: PathBuf,
    binary: PathBuf,
    first: u64,
    end: u64,
    directory: PathBuf,
}

impl Stepper {
    /// Boots a guest, captures it, restores it, and captures what was restored; the addresses that were executed, as
    /// they first were in each process.
    fn life(&self) -> Result<Vec<u64>> {
        let snapshot = self.directory.join("snapshot");
        if snapshot.exists() {
            fs::remove_dir_all(&snapshot).context("cannot remove the last snapshot")?;
        }
        let place = snapshot.display().to_string();
        let scratch = self.directory.display().to_string();
        let mut executed = self.step(
            &[
                "run",
                "--memory",
                "128M",
                "--snapshot",
                &place,
                "--scratch",
                &scratch,
            ],
            "s\n",
        )?;
        executed.extend(self.step(&["restore", &place], "x0\n")?);
        // Its memory is a private view, which is written in another way than the file of a first start.
        let again = self.directory.join("snapshot-again");
        if again.exists() {
            fs::remove_dir_all(&again).context("cannot remove the last snapshot")?;
        }
        let place_again = again.display().to_string();
        let arguments = ["restore", &place, "--snapshot", &place_again];
        executed.extend(self.step(&arguments, "d\ns\n")?);
        for snapshot in [&snapshot, &again] {
            fs::remove_dir_all(snapshot).context("cannot remove the snapshot")?;
        }
        Ok(executed)
    }

    fn step(&self, arguments: &[&str], input: &str) -> Result<Vec<u64>> {
        let output = self.directory.join("executed");
        println!("stepping through nvx {} (about a minute)", arguments[0]);
        let mut child = Command::new(&self.program)
            .arg(&output)
            .args([format!("{:x}", self.first), format!("{:x}", self.end)])
            .arg(&self.binary)
            .args(arguments)
            .stdin(Stdio::piped())
            .spawn()
            .context("cannot run the stepper")?;
        if let Some(mut console) = child.stdin.take() {
            console
                .write_all(input.as_bytes())
                .context("cannot write to the guest")?;
        }
        let status = child.wait().context("cannot wait for the stepper")?;
        if !status.success() {
            bail!(
                "nvx {} ended with {status} while it was stepped",
                arguments[0]
            );
        }
        fs::read_to_string(&output)
            .context("cannot read the addresses")?
            .lines()
            .map(|line| u64::from_str_radix(line, 16).with_context(|| format!("address {line:?}")))
            .collect()
    }
}

/// Reads lld's map: columns VMA, LMA, size, alignment, then `FILE:(SECTION)` for an input section.
fn text_sections(map: &str) -> Vec<InputSection> {
    let mut sections: Vec<InputSection> = map.lines().filter_map(text_section).collect();
    sections.sort_by_key(|section| section.first);
    sections
}

fn text_section(line: &str) -> Option<InputSection> {
    let mut columns = line.split_ascii_whitespace();
    let first = u64::from_str_radix(columns.next()?, 16).ok()?;
    let size = u64::from_str_radix(columns.nth(1)?, 16).ok()?;
    columns.next()?;
    let (file, section) = columns.next()?.rsplit_once(":(")?;
    let name = section.strip_suffix(')')?;
    if !name.starts_with(".text") || size == 0 {
        return None;
    }
    let file = file.rsplit('/').next()?;
    Some(InputSection {
        first,
        end: first + size,
        file: match file
            .strip_suffix(')')
            .and_then(|member| member.split_once('('))
        {
            Some((archive, object)) => Some(format!("{archive}:{object}")),
            // The compiler's own objects have names that change, but sections that name the function.
            None if file.contains(".rcgu.") => None,
            None => Some(file.to_owned()),
        },
        name: name.to_owned(),
    })
}

/// Sections in the order in which they are first executed: what only a capture needs comes after what every
/// start needs.
fn script(sections: &[InputSection], executed: &[u64]) -> String {
    let mut seen = BTreeSet::new();
    let patterns = executed
        .iter()
        .filter_map(|&address| section_at(sections, address))
        .map(|section| match &section.file {
            Some(file) => format!("*{file}({})", section.name),
            None => format!("*({})", without_hashes(&section.name)),
        })
        .filter(|pattern| seen.insert(pattern.clone()));
    let mut script = String::from(
        "/* What the start of a guest, its capture and its restore execute, placed together.\n   \
         Written by `cargo xtask start-order`; used by `cargo xtask build`. */\n\
         SECTIONS {\n  .text.start : {\n",
    );
    for pattern in patterns {
        script.push_str("    ");
        script.push_str(&pattern);
        script.push('\n');
    }
    script.push_str("  }\n} INSERT BEFORE .text;\n");
    script
}

fn section_at(sections: &[InputSection], address: u64) -> Option<&InputSection> {
    let after = sections.partition_point(|section| section.first <= address);
    sections
        .get(after.checked_sub(1)?)
        .filter(|section| address < section.end)
}

/// A pattern for the name of a function's section, whatever the hashes in its mangled name: `17h` and 16
/// hexadecimal digits at the end of a legacy name, `Cs` and base-62 digits before `_` in a v0 name.
fn without_hashes(section: &str) -> String {
    const LEGACY_HASH_CHARACTERS: usize = 20;
    // A dollar sign would begin a name of the script's own.
    let section = section.replace('$', "?");
    if section.contains("._ZN") && section.len() > LEGACY_HASH_CHARACTERS {
        let (name, hash) = section.split_at(section.len() - LEGACY_HASH_CHARACTERS);
        if hash.starts_with("17h") && hash.ends_with('E') {
            return format!("{name}17h*");
        }
    }
    let mut pattern = String::new();
    let mut rest = section.as_str();
    while let Some(at) = rest.find("Cs") {
        let (before, after) = rest.split_at(at + 2);
        pattern.push_str(before);
        let digits = after
            .find(|character: char| !character.is_ascii_alphanumeric())
            .unwrap_or(after.len());
        if digits > 0 && after[digits..].starts_with('_') {
            pattern.push('*');
            rest = &after[digits..];
        } else {
            rest = after;
        }
    }
    pattern + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAP: &str = "\
             VMA              LMA     Size Align Out     In      Symbol
          2adf7c           2adf7c       28     4         /usr/lib/libc.a(malloc.o):(.rodata)
          300240           300240   4374d8    64 .text
          300240           300240       26    16         /usr/lib/crt1.o:(.text)
          660930           660930      49f    16         /t/nvx.rcgu.o:(.text._ZN3nvx7restore5check17h4e79ac000885a80eE)
          660930           660930      49f     1                 nvx::restore::check::h4e79ac000885a80e
          6f3ab0           6f3ab0     5c56    16         /usr/lib/x/../libc.a(malloc.o):(.text)
";

    #[test]
    fn the_map_tells_where_text_was_placed() {
        let sections = text_sections(MAP);
        assert_eq!(sections.len(), 3);
        assert_eq!(sections[0].file.as_deref(), Some("crt1.o"));
        assert_eq!(sections[1].file, None);
        assert_eq!(sections[1].end, 0x660930 + 0x49f);
        assert_eq!(sections[2].file.as_deref(), Some("libc.a:malloc.o"));
    }

    #[test]
    fn the_script_names_what_was_executed_and_nothing_else() {
        let sections = text_sections(MAP);
        let script = script(
            &sections,
            &[0x6f3ab0, 0x300240, 0x660dce, 0x6f3ab1, 0x6f3aaf],
        );
        // Without its file's name the section would stand for the text of every C object.
        assert!(script.contains("    *crt1.o(.text)\n"));
        assert!(script.contains("    *(.text._ZN3nvx7restore5check17h*)\n"));
        assert!(script.contains("    *libc.a:malloc.o(.text)\n"));
        assert_eq!(script.matches("    *").count(), 3);
        assert!(script.find("malloc.o") < script.find("crt1.o"));
        assert!(script.ends_with("} INSERT BEFORE .text;\n"));
    }

    #[test]
    fn hashes_are_left_open() {
        for (section, pattern) in [
            (
                ".text._ZN4core3fmt9Formatter3pad17h0123456789abcdefE",
                ".text._ZN4core3fmt9Formatter3pad17h*",
            ),
            (
                ".text._RNvMs_NtCsgEmfK2I1SDS_4core3fmtNtB4_9Formatter3pad",
                ".text._RNvMs_NtCs*_4core3fmtNtB4_9Formatter3pad",
            ),
            (
                ".text._ZN9_$LT$T$GT$1f17h0123456789abcdefE",
                ".text._ZN9_?LT?T?GT?1f17h*",
            ),
            (".text.unlikely.main", ".text.unlikely.main"),
            (".text.Css", ".text.Css"),
        ] {
            assert_eq!(without_hashes(section), pattern);
        }
    }
}
