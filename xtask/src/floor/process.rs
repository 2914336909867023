//! A monitor as a child process: its guest's lines with the time of each, and its end. Every wait is bounded.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};

/// Longest wait for a line or for the end of a process.
const LIMIT: Duration = Duration::from_secs(20);

/// A running monitor. Killed when dropped.
pub struct Monitor {
    child: Child,
    started: Instant,
    lines: Receiver<(Instant, String)>,
    complaints: Option<JoinHandle<String>>,
}

impl Monitor {
    /// Starts `command`; the clock starts just before.
    pub fn spawn(command: &mut Command) -> Result<Self> {
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let started = Instant::now();
        let mut child = command
            .spawn()
            .with_context(|| format!("cannot start {}", command.get_program().display()))?;
        let (sender, lines) = mpsc::channel();
        let output = child.stdout.take().context("no standard output")?;
        let mut errors = child.stderr.take().context("no standard error")?;
        thread::spawn(move || {
            let mut output = BufReader::new(output);
            let mut line = Vec::new();
            // The time is taken here, where the line arrives, not where it is waited for.
            while output
                .read_until(b'\n', &mut line)
                .is_ok_and(|bytes| bytes > 0)
            {
                let now = Instant::now();
                let text = String::from_utf8_lossy(&line).trim_end().to_owned();
                if sender.send((now, text)).is_err() {
                    return;
                }
                line.clear();
            }
        });
        let complaints = thread::spawn(move || {
            let mut bytes = Vec::new();
            // What could be read before an error is as good as there is.
            let _ = errors.read_to_end(&mut bytes);
            String::from_utf8_lossy(&bytes).into_owned()
        });
        Ok(Self {
            child,
            started,
            lines,
            complaints: Some(complaints),
        })
    }

    /// Waits for a line that begins with `prefix`; gives the time since the start.
    pub fn wait_for(&mut self, prefix: &str) -> Result<Duration> {
        match self.wait_for_any(&[prefix])? {
            Some((_, elapsed)) => Ok(elapsed),
            None => {
                let said = self.end()?;
                Err(anyhow!("ended before {prefix}: {}", said.trim()))
            }
        }
    }

    /// Waits for a line that begins with one of `prefixes`, and says which; `None` at the end of output.
    pub fn wait_for_any(&mut self, prefixes: &[&str]) -> Result<Option<(usize, Duration)>> {
        let deadline = Instant::now() + LIMIT;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                Ok((at, line)) => {
                    let found = prefixes.iter().position(|prefix| line.starts_with(prefix));
                    if let Some(index) = found {
                        return Ok(Some((index, at.duration_since(self.started))));
                    }
                }
                Err(RecvTimeoutError::Disconnected) => return Ok(None),
                Err(RecvTimeoutError::Timeout) => {
                    bail!("no {} within {} s", prefixes.join(" or "), LIMIT.as_secs())
                }
            }
        }
    }

    /// Types `text` on the guest's console.
    pub fn send(&mut self, text: &str) -> Result<()> {
        let input = self.child.stdin.as_mut().context("no standard input")?;
        input
            .write_all(text.as_bytes())
            .context("cannot write to the guest's console")
    }

    /// Peak resident memory so far, in MiB.
    pub fn peak_rss_mib(&self) -> Result<f64> {
        let path = format!("/proc/{}/status", self.child.id());
        let status =
            std::fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
        high_water_mib(&status).with_context(|| format!("no VmHWM in {path}"))
    }

    /// Closes the console, waits for a successful end, and gives what was written to standard error.
    pub fn finish(mut self) -> Result<String> {
        drop(self.child.stdin.take());
        let said = self.end()?;
        let status = self.child.wait().context("cannot wait")?;
        if !status.success() {
            bail!("ended with {status}: {}", said.trim());
        }
        Ok(said)
    }

    fn end(&mut self) -> Result<String> {
        let deadline = Instant::now() + LIMIT;
        while self.child.try_wait().context("cannot wait")?.is_none() {
            if Instant::now() > deadline {
                bail!("did not end within {} s", LIMIT.as_secs());
            }
            thread::sleep(Duration::from_millis(1));
        }
        let said = self.complaints.take().map(JoinHandle::join);
        Ok(said.and_then(Result::ok).unwrap_or_default())
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        // Both fail only if it has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// `VmHWM` of a /proc status text, which is in KiB.
fn high_water_mib(status: &str) -> Option<f64> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: f64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kib / 1024.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Monitor {
        Monitor::spawn(Command::new("/bin/sh").args(["-c", script])).unwrap()
    }

    #[test]
    fn lines_input_and_end() {
        let mut monitor = shell("echo noise; echo READY 1; read x; echo GOT $x; echo why >&2");
        monitor.wait_for("READY").unwrap();
        assert!(monitor.peak_rss_mib().unwrap() > 0.0);
        monitor.send("s\n").unwrap();
        monitor.wait_for("GOT s").unwrap();
        assert_eq!(monitor.finish().unwrap(), "why\n");
    }

    #[test]
    fn an_early_end_says_why() {
        let error = shell("echo broken >&2; exit 3")
            .wait_for("READY")
            .unwrap_err();
        assert_eq!(error.to_string(), "ended before READY: broken");
        let error = shell("echo bad >&2; exit 3").finish().unwrap_err();
        assert!(error.to_string().ends_with("3: bad"), "{error}");
    }

    #[test]
    fn high_water_mark_is_read() {
        assert_eq!(high_water_mib("Name:\tx\nVmHWM:\t    2048 kB\n"), Some(2.0));
        assert_eq!(high_water_mib("Name:\tx\n"), None);
    }
}
