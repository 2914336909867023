//! Reads the command line of a plain start without declaring it to clap.
//!
//! Whoever starts a guest waits for the command line to be read. Declaring options to clap and matching
//! them touches some forty pages of program for a handful of words, in every sandbox that is started.
//! This reader knows the options of `run` and `restore` by heart and gives up on everything that is not
//! plainly right: a mistake, a wish for help, an option that is rarely used. Clap then reads the same
//! words, so that there is one place where mistakes are explained. Tests hold that whatever this reader
//! accepts, clap reads in the same way.

use std::ffi::OsString;
use std::path::PathBuf;

use nvx_hypervisor::BackendChoice;
use nvx_probe_guest::ProbeParams;

use super::{
    CaptureArgs, Clock, Command, Cpu, Guest, GuestContentsArgs, LinuxArgs, RamFileArgs,
    RestoreArgs, RunArgs,
};
use crate::size;

/// The command that the words after the program's name ask for; `None` if clap must read them.
pub fn read(words: impl IntoIterator<Item = OsString>) -> Option<Command> {
    let mut words = Words {
        rest: words.into_iter(),
        attached: None,
        seen: Vec::new(),
    };
    let command = words.rest.next()?;
    match command.to_str()? {
        "run" => read_run(words).map(Command::Run),
        "restore" => read_restore(words).map(Command::Restore),
        _ => None,
    }
}

fn read_run(mut words: Words<impl Iterator<Item = OsString>>) -> Option<RunArgs> {
    let mut args = RunArgs {
        guest: Guest::Probe,
        probe: ProbeParams::default(),
        linux: LinuxArgs::default(),
        contents: GuestContentsArgs::default(),
        memory: None,
        vcpus: 1,
        cpu: Cpu::default(),
        capture: no_capture(),
        scratch: None,
        ram_file: RamFileArgs::default(),
        backend: BackendChoice::default(),
        no_seccomp: false,
    };
    while let Some(word) = words.next()? {
        let Word::Option(name) = word else {
            return None;
        };
        match name.as_str() {
            "guest" => (words.text()? == "probe").then_some(())?,
            "probe" => args.probe = words.text()?.parse().ok()?,
            "memory" => args.memory = Some(size::parse(&words.text()?).ok()?),
            "vcpus" => args.vcpus = words.text()?.parse().ok()?,
            "scratch" => args.scratch = Some(words.path()?),
            "ram-file" => args.ram_file.ram_file = Some(words.text()?.parse().ok()?),
            "writeback" => args.ram_file.writeback = Some(words.text()?.parse().ok()?),
            "backend" => args.backend = words.text()?.parse().ok()?,
            _ => read_capture(&name, &mut words, &mut args.capture)?,
        }
    }
    is_complete(&args.capture).then_some(args)
}

fn read_restore(mut words: Words<impl Iterator<Item = OsString>>) -> Option<RestoreArgs> {
    let mut directory = None;
    let mut capture = no_capture();
    let mut backend = BackendChoice::default();
    let (mut verify, mut private_copy) = (false, false);
    while let Some(word) = words.next()? {
        match word {
            Word::Operand(path) if directory.is_none() => directory = Some(path),
            Word::Operand(_) => return None,
            Word::Option(name) => match name.as_str() {
                "backend" => backend = words.text()?.parse().ok()?,
                "verify" => verify = words.flag()?,
                "private-copy" => private_copy = words.flag()?,
                _ => read_capture(&name, &mut words, &mut capture)?,
            },
        }
    }
    is_complete(&capture).then_some(RestoreArgs {
        directory: directory?,
        capture,
        clock: Clock::default(),
        verify,
        private_copy,
        backend,
        no_seccomp: false,
    })
}

fn no_capture() -> CaptureArgs {
    CaptureArgs {
        snapshot: None,
        continue_after: false,
        digests: false,
        control: None,
        snapshot_roots: Vec::new(),
    }
}

fn read_capture(
    name: &str,
    words: &mut Words<impl Iterator<Item = OsString>>,
    capture: &mut CaptureArgs,
) -> Option<()> {
    match name {
        "snapshot" => capture.snapshot = Some(words.path()?),
        "continue" => capture.continue_after = words.flag()?,
        "digests" => capture.digests = words.flag()?,
        "control" => capture.control = Some(words.path()?),
        "snapshot-root" => {
            capture.snapshot_roots.push(words.path()?);
            words.may_come_again("snapshot-root");
        }
        _ => return None,
    }
    Some(())
}

/// Whether what an option requires is there too.
fn is_complete(capture: &CaptureArgs) -> bool {
    (!capture.continue_after || capture.snapshot.is_some())
        && (capture.snapshot_roots.is_empty() || capture.control.is_some())
}

enum Word {
    /// `--NAME`; what follows an equals sign is kept for the option to take.
    Option(String),
    Operand(PathBuf),
}

struct Words<I> {
    rest: I,
    /// What followed the equals sign of the option at hand and was not taken yet.
    attached: Option<OsString>,
    /// The options so far: a second time is a mistake for nearly all.
    seen: Vec<String>,
}

impl<I: Iterator<Item = OsString>> Words<I> {
    /// The next word, or `Some(None)` at the end; `None` if it is beyond this reader.
    fn next(&mut self) -> Option<Option<Word>> {
        if self.attached.is_some() {
            return None;
        }
        let Some(word) = self.rest.next() else {
            return Some(None);
        };
        if !word.as_encoded_bytes().starts_with(b"-") {
            let operand = (!word.is_empty()).then(|| Word::Operand(word.into()))?;
            return Some(Some(operand));
        }
        let option = word.to_str()?.strip_prefix("--")?;
        let name = match option.split_once('=') {
            Some((name, value)) => {
                self.attached = Some(value.into());
                name
            }
            None => option,
        };
        if self.seen.iter().any(|seen| seen == name) {
            return None;
        }
        self.seen.push(name.to_owned());
        Some(Some(Word::Option(name.to_owned())))
    }

    /// The option at hand as one without a value.
    fn flag(&mut self) -> Option<bool> {
        self.attached.is_none().then_some(true)
    }

    fn value(&mut self) -> Option<OsString> {
        let value = match self.attached.take() {
            Some(value) => value,
            None => self
                .rest
                .next()
                .filter(|word| !word.as_encoded_bytes().starts_with(b"-"))?,
        };
        (!value.is_empty()).then_some(value)
    }

    fn text(&mut self) -> Option<String> {
        self.value()?.into_string().ok()
    }

    fn path(&mut self) -> Option<PathBuf> {
        self.value().map(PathBuf::from)
    }

    fn may_come_again(&mut self, name: &str) {
        self.seen.retain(|seen| seen != name);
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use proptest::prelude::*;

    use super::*;
    use crate::cli::Cli;

    fn by_clap(words: &[&str]) -> Result<String, String> {
        Cli::try_parse_from(["nvx"].iter().chain(words))
            .map(|cli| format!("{:?}", cli.command))
            .map_err(|error| error.to_string())
    }

    fn plainly(words: &[&str]) -> Option<String> {
        read(words.iter().map(OsString::from)).map(|command| format!("{command:?}"))
    }

    #[test]
    fn what_is_left_out_has_the_same_default() {
        for words in [&["run"][..], &["restore", "snap"]] {
            assert_eq!(plainly(words), by_clap(words).ok(), "{words:?}");
        }
    }

    /// Otherwise every start would quietly be slow again.
    #[test]
    fn starts_as_they_are_measured_are_plain() {
        for words in [
            "run --guest probe --probe fill=top:256,seed=7 --memory 128M --vcpus 1 --snapshot s --scratch d",
            "run --backend kvm --control c --snapshot-root a --snapshot-root=b --snapshot s --continue",
            "run --ram-file sparse --writeback ranges:4",
            "restore snap",
            "restore snap --backend soft --snapshot next",
            "restore --control=c --snapshot-root r snap",
            "restore snap --verify --private-copy --snapshot next --digests",
        ] {
            let words: Vec<&str> = words.split(' ').collect();
            let plain = plainly(&words);
            assert!(plain.is_some(), "{words:?}");
            assert_eq!(plain, by_clap(&words).ok());
        }
    }

    #[test]
    fn mistakes_and_wishes_for_help_are_left_to_clap() {
        for words in [
            "run --help",
            "run -h",
            "run extra",
            "run --memory",
            "run --memory 1 --memory 2",
            "run --memory 12Q",
            "run --continue",
            "run --snapshot s --continue=yes",
            "run --snapshot-root r",
            "run --scratch -x",
            "run --scratch=",
            "run --probe fill=none",
            "run --backend qemu",
            "run --writeback twice",
            "run --",
            "restore",
            "restore a b",
            "restore --backend",
            "inspect snap",
        ] {
            let words: Vec<&str> = words.split(' ').collect();
            assert_eq!(plainly(&words), None, "{words:?}");
        }
    }

    fn word() -> impl Strategy<Value = String> {
        prop::sample::select(vec![
            "--guest",
            "--guest=probe",
            "probe",
            "--probe",
            "fill=all",
            "seed=3",
            "--memory",
            "64M",
            "--memory=1G",
            "4096",
            "--vcpus",
            "2",
            "+2",
            "0",
            "300",
            "--snapshot",
            "--snapshot=s",
            "s",
            "--continue",
            "--continue=true",
            "--digests",
            "--verify",
            "--verify=yes",
            "--private-copy",
            "--control",
            "--control=c",
            "--snapshot-root",
            "--snapshot-root=r",
            "--scratch",
            "--scratch=-",
            "--scratch=",
            "-",
            "--",
            "-h",
            "--backend",
            "soft",
            "--backend=auto",
            "--mem",
            "",
            "a=b",
            "--snapshot=--continue",
        ])
        .prop_map(str::to_owned)
    }

    proptest! {
        #[test]
        fn whatever_is_accepted_clap_reads_in_the_same_way(
            restore in any::<bool>(),
            rest in prop::collection::vec(word(), 0..7),
        ) {
            let mut words = vec![if restore { "restore" } else { "run" }];
            words.extend(rest.iter().map(String::as_str));
            if let Some(command) = plainly(&words) {
                prop_assert_eq!(Ok(command), by_clap(&words));
            }
        }
    }
}
