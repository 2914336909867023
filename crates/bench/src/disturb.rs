//! Disturbances on purpose: what a validator must notice.
//!
//! A disturbance runs in a process of its own, so that its work is nobody's but an outsider's, and ends
//! when its standard input does: whoever started it cannot leave it behind.

use std::fmt;
use std::io::{self, Read as _, Seek as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// So many write at the same time: a device serves requests in turn, and a single one that waits for each of
/// its pieces would get a small share of it.
const WRITERS: u64 = 4;
/// A writer begins its file anew after so much, so that it needs no more room than this.
const WRITER_FILE_BYTES: u64 = 64 << 20;
const WRITER_PIECE_BYTES: usize = 4 << 20;
/// How much the page cache is flooded with in one turn.
const CACHE_FILE_BYTES: u64 = 1 << 30;

/// What disturbs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DisturbanceKind {
    /// Writes to the scratch volume and syncs, as fast as it is told to.
    Writer,
    /// Keeps every processor busy.
    Cpu,
    /// Fills the page cache.
    Cache,
}

impl DisturbanceKind {
    /// Every kind.
    pub const ALL: [Self; 3] = [Self::Writer, Self::Cpu, Self::Cache];

    /// The word on the command line.
    pub fn word(self) -> &'static str {
        match self {
            Self::Writer => "writer",
            Self::Cpu => "cpu",
            Self::Cache => "cache",
        }
    }
}

impl FromStr for DisturbanceKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|kind| kind.word() == text)
            .ok_or_else(|| format!("'{text}' is no disturbance; there are writer, cpu and cache"))
    }
}

/// A disturbance from a capture on, as in `writer@7` or `writer@7:200` (MiB a second).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Disturbance {
    /// What disturbs.
    pub kind: DisturbanceKind,
    /// From which capture on, counted from 1, until the captures are over.
    pub from_sample: u32,
    /// Of a writer: how many MiB it writes a second; none: as fast as it can.
    pub mib_per_second: Option<u64>,
}

impl fmt::Display for Disturbance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.kind.word(), self.from_sample)?;
        match self.mib_per_second {
            Some(rate) => write!(f, ":{rate}"),
            None => Ok(()),
        }
    }
}

impl FromStr for Disturbance {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong =
            || format!("'{text}' is no disturbance; examples: writer@7, writer@7:200, cpu@4");
        let (kind, rest) = text.split_once('@').ok_or_else(wrong)?;
        let (from, rate) = match rest.split_once(':') {
            Some((from, rate)) => (from, Some(rate.parse().map_err(|_| wrong())?)),
            None => (rest, None),
        };
        let from_sample = from.parse().map_err(|_| wrong())?;
        if from_sample == 0 || rate == Some(0) {
            return Err(wrong());
        }
        Ok(Self {
            kind: kind.parse()?,
            from_sample,
            mib_per_second: rate,
        })
    }
}

/// A disturbance in a process of its own; ended when dropped.
#[derive(Debug)]
pub struct Disturber {
    child: Child,
}

impl Disturber {
    /// Starts `program bench disturb`.
    ///
    /// # Errors
    /// The program cannot be started.
    pub fn start(program: &Path, disturbance: Disturbance, directory: &Path) -> io::Result<Self> {
        let mut command = Command::new(program);
        command
            .args(["bench", "disturb", disturbance.kind.word(), "--dir"])
            .arg(directory)
            .stdin(Stdio::piped())
            .stdout(Stdio::null());
        if let Some(rate) = disturbance.mib_per_second {
            command.args(["--rate", &rate.to_string()]);
        }
        Ok(Self {
            child: command.spawn()?,
        })
    }
}

impl Drop for Disturber {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        // It ends by itself within a piece of its work; a process that hangs must not stay.
        let deadline = Instant::now() + Duration::from_secs(10);
        while Instant::now() < deadline {
            match self.child.try_wait() {
                Ok(None) => std::thread::sleep(Duration::from_millis(5)),
                _ => return,
            }
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Disturbs until `stop` is set.
///
/// # Errors
/// A file cannot be written.
pub fn disturb(
    kind: DisturbanceKind,
    directory: &Path,
    mib_per_second: Option<u64>,
    stop: &AtomicBool,
) -> io::Result<()> {
    match kind {
        DisturbanceKind::Writer => write_much(directory, mib_per_second, stop),
        DisturbanceKind::Cpu => spin(stop),
        DisturbanceKind::Cache => fill_cache(directory, stop),
    }
}

/// A flag that is set when standard input ends or the time is over.
pub fn stop_at_end_of_input(after: Option<Duration>) -> Arc<AtomicBool> {
    let stop = Arc::new(AtomicBool::new(false));
    let by_input = Arc::clone(&stop);
    std::thread::spawn(move || {
        let mut rest = Vec::new();
        // An error is an end as well.
        let _ = io::stdin().lock().read_to_end(&mut rest);
        by_input.store(true, Ordering::Relaxed);
    });
    if let Some(after) = after {
        let by_time = Arc::clone(&stop);
        std::thread::spawn(move || {
            std::thread::sleep(after);
            by_time.store(true, Ordering::Relaxed);
        });
    }
    stop
}

fn write_much(directory: &Path, mib_per_second: Option<u64>, stop: &AtomicBool) -> io::Result<()> {
    let share = mib_per_second.map(|rate| rate as f64 * f64::from(1 << 20) / WRITERS as f64);
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|_| scope.spawn(|| write_share(directory, share, stop)))
            .collect();
        let failed = |_| Err(io::Error::other("a writer failed"));
        let mut writers = writers.into_iter();
        writers.try_for_each(|writer| writer.join().unwrap_or_else(failed))
    })
}

/// Writes and syncs, `bytes_per_second` or as fast as it can.
fn write_share(
    directory: &Path,
    bytes_per_second: Option<f64>,
    stop: &AtomicBool,
) -> io::Result<()> {
    let file = OwnFile::create(directory)?;
    let piece = vec![0xa5; WRITER_PIECE_BYTES];
    let began = Instant::now();
    let (mut written, mut place) = (0u64, 0);
    while !stop.load(Ordering::Relaxed) {
        (&file.file).write_all(&piece)?;
        file.file.sync_data()?;
        written += piece.len() as u64;
        place += piece.len() as u64;
        if place >= WRITER_FILE_BYTES {
            (&file.file).rewind()?;
            place = 0;
        }
        if let Some(rate) = bytes_per_second {
            let due = Duration::from_secs_f64(written as f64 / rate);
            // In short pieces, so that a stop is noticed.
            while began.elapsed() < due && !stop.load(Ordering::Relaxed) {
                std::thread::sleep((due - began.elapsed().min(due)).min(Duration::from_millis(20)));
            }
        }
    }
    Ok(())
}

fn spin(stop: &AtomicBool) -> io::Result<()> {
    let processors = std::thread::available_parallelism()?.get();
    std::thread::scope(|scope| {
        for _ in 0..processors {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
    });
    Ok(())
}

fn fill_cache(directory: &Path, stop: &AtomicBool) -> io::Result<()> {
    let file = OwnFile::create(directory)?;
    // A hole takes no room on the volume, and its pages are cached like any others.
    file.file.set_len(CACHE_FILE_BYTES)?;
    let mut piece = vec![0; WRITER_PIECE_BYTES];
    while !stop.load(Ordering::Relaxed) {
        if (&file.file).read(&mut piece)? == 0 {
            (&file.file).rewind()?;
        }
    }
    Ok(())
}

/// A file that is removed when dropped.
struct OwnFile {
    file: std::fs::File,
    path: PathBuf,
}

impl OwnFile {
    fn create(directory: &Path) -> io::Result<Self> {
        let path = directory.join(nvx_host::random_name(".nvx-disturb-")?);
        let file = std::fs::OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .open(&path)?;
        Ok(Self { file, path })
    }
}

impl Drop for OwnFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disturbances_are_read_and_written() {
        for text in ["writer@7", "writer@7:200", "cpu@1", "cache@10"] {
            let disturbance: Disturbance = text.parse().expect(text);
            assert_eq!(disturbance.to_string(), text);
        }
        for text in [
            "writer",
            "writer@",
            "writer@0",
            "writer@7:0",
            "writer@7:x",
            "noise@7",
            "@7",
        ] {
            let error = text.parse::<Disturbance>().expect_err(text);
            assert!(error.contains("disturbance"), "{error}");
        }
    }

    #[test]
    fn every_kind_ends_when_told_and_leaves_nothing() {
        let directory = tempfile::tempdir().expect("a directory");
        for kind in DisturbanceKind::ALL {
            let stop = AtomicBool::new(false);
            std::thread::scope(|scope| {
                let work = scope.spawn(|| disturb(kind, directory.path(), Some(50), &stop));
                std::thread::sleep(Duration::from_millis(30));
                stop.store(true, Ordering::Relaxed);
                work.join().expect("no panic").expect("space");
            });
        }
        assert_eq!(
            std::fs::read_dir(directory.path())
                .expect("entries")
                .count(),
            0
        );
    }
}
