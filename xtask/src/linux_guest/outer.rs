//! The outer machine: QEMU's software emulation of a processor with nested virtualization (AMD SVM), in which a
//! Debian kernel offers a complete `/dev/kvm`.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// QEMU's program for x86.
pub const QEMU: &str = "qemu-system-x86_64";

/// What init prints when the tests have ended.
const END_PREFIX: &str = "outer: ended with status ";
/// Guests' RAM files and everything else that is written lie in memory too.
const MEMORY_MIB: u32 = 4096;
/// The kernel's tick is periodic: QEMU 7.2 now and then loses a timer's interrupt when a guest stops, and a kernel that
/// waits for that one alone waits for good.
const COMMAND_LINE: &str = "console=ttyS0 quiet loglevel=4 panic=-1 nohz=off highres=off";
/// Last lines of the kernel's messages that are shown when the machine did not end well.
const CONSOLE_LINES: usize = 40;
/// What a kernel says at its end.
const PANIC: &str = "Kernel panic - not syncing";

/// How a run of the outer machine ended.
#[derive(Debug)]
pub struct Run {
    /// All that the tests printed, without carriage returns.
    pub output: String,
    /// Status of the commands; `None` if the machine ended without telling.
    pub status: Option<i32>,
    /// Why the machine ended without telling.
    pub failure: Option<String>,
    /// Whether the outer machine's own kernel crashed, which no test can make it do.
    pub crashed: bool,
}

/// An outer machine.
pub struct Machine<'a> {
    /// Stands before each line that is printed.
    pub name: &'a str,
    pub processors: u32,
    pub kernel: &'a Path,
    pub initrd: &'a Path,
    /// Where the kernel's messages go.
    pub console: &'a Path,
}

/// Boots the machine, prints what it prints, and ends it after `limit`.
pub fn run(machine: &Machine<'_>, limit: Duration) -> Result<Run> {
    let mut qemu = Command::new(QEMU)
        .args(["-accel", "tcg,thread=multi", "-cpu", "max,+svm,+npt"])
        .args(["-smp", &machine.processors.to_string()])
        .args(["-m", &MEMORY_MIB.to_string()])
        .args(["-nodefaults", "-display", "none", "-monitor", "none"])
        .args(["-no-reboot", "-serial"])
        .arg(format!("file:{}", machine.console.display()))
        .args(["-serial", "stdio"])
        .arg("-kernel")
        .arg(machine.kernel)
        .arg("-initrd")
        .arg(machine.initrd)
        .args(["-append", COMMAND_LINE])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .with_context(|| format!("cannot run {QEMU}"))?;
    let stdout = qemu.stdout.take().context("no output of QEMU")?;
    let (output, timed_out) = stream(machine.name, stdout, limit);
    let ending = end(&mut qemu, timed_out)?;
    let status = status(&output);
    let failure = match (status, timed_out) {
        (Some(_), false) => None,
        (_, true) => Some(format!(
            "the outer machine did not end within {} s",
            limit.as_secs()
        )),
        (None, false) => Some(format!("the outer machine ended early: QEMU's {ending}")),
    };
    let mut crashed = false;
    if failure.is_some() {
        let messages = std::fs::read(machine.console).unwrap_or_default();
        let messages = String::from_utf8_lossy(&messages);
        crashed = messages.contains(PANIC);
        show_end(machine.name, &messages);
    }
    Ok(Run {
        output,
        status,
        failure,
        crashed,
    })
}

/// Prints each line as it comes; true if the limit passed before the end.
fn stream(name: &str, stdout: impl Read + Send + 'static, limit: Duration) -> (String, bool) {
    let (sender, lines) = mpsc::channel();
    // Ends with QEMU, which `end` sees to.
    std::thread::spawn(move || {
        let mut reader = BufReader::new(stdout);
        let mut line = Vec::new();
        while reader
            .read_until(b'\n', &mut line)
            .is_ok_and(|bytes| bytes > 0)
        {
            let text = String::from_utf8_lossy(&line).replace('\r', "");
            line.clear();
            if sender.send(text).is_err() {
                break;
            }
        }
    });
    let end = Instant::now() + limit;
    let mut output = String::new();
    loop {
        match lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
            Ok(line) => {
                print!("  {name}{line}");
                output.push_str(&line);
            }
            Err(RecvTimeoutError::Disconnected) => return (output, false),
            Err(RecvTimeoutError::Timeout) => return (output, true),
        }
    }
}

fn end(qemu: &mut Child, timed_out: bool) -> Result<std::process::ExitStatus> {
    if timed_out {
        qemu.kill().context("cannot end QEMU")?;
    }
    qemu.wait().context("cannot wait for QEMU")
}

/// What init says at the end.
fn status(output: &str) -> Option<i32> {
    let line = output
        .lines()
        .rev()
        .find_map(|line| line.strip_prefix(END_PREFIX))?;
    line.split(' ').next()?.parse().ok()
}

fn show_end(name: &str, messages: &str) {
    let lines: Vec<&str> = messages.lines().collect();
    println!("{name}the outer machine's last kernel messages:");
    for line in &lines[lines.len().saturating_sub(CONSOLE_LINES)..] {
        println!("  {name}{line}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_is_read_from_the_last_such_line() {
        let output = "x\nouter: ended with status 1 after 3.5 s\nouter: ended with status 101 after 20.11 s\n";
        assert_eq!(status(output), Some(101));
        assert_eq!(status("outer: ended with"), None);
    }

    #[test]
    fn lines_are_streamed_until_the_end_or_the_limit() {
        let (output, timed_out) = stream("", &b"one\r\ntwo"[..], Duration::from_secs(60));
        assert_eq!((output.as_str(), timed_out), ("one\ntwo", false));
        let (reader, _writer) = std::io::pipe().unwrap();
        let (output, timed_out) = stream("", reader, Duration::from_millis(1));
        assert_eq!((output.as_str(), timed_out), ("", true));
    }
}
