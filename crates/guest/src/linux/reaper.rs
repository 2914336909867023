//! Taking note of processes that end: process 1 inherits every orphan, and what it does not reap stays
//! as a zombie.

use std::io;
use std::process::Command;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::io::Errno;
use rustix::process::{Pid, WaitId, WaitIdOptions, WaitOptions};

use super::init::Event;

/// Starts processes and reaps them.
pub(super) struct Reaper {
    /// Held while a process is started: the standard library reaps one whose program cannot be run, and
    /// must find it.
    starting: Arc<Mutex<()>>,
}

impl Reaper {
    /// A reaper that does not reap yet.
    pub(super) fn new() -> Self {
        Self {
            starting: Arc::default(),
        }
    }

    /// Starts a process. Its end is posted as an event once [`Self::run`] was called.
    pub(super) fn start(&self, command: &mut Command) -> io::Result<Pid> {
        let _starting = self.starting.lock().unwrap_or_else(PoisonError::into_inner);
        let child = command.spawn()?;
        i32::try_from(child.id())
            .ok()
            .and_then(Pid::from_raw)
            .ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// A thread that posts the end of every process, until there is none left.
    pub(super) fn run(&self, events: Sender<Event>) -> io::Result<()> {
        let starting = Arc::clone(&self.starting);
        std::thread::Builder::new()
            .name("reaper".to_owned())
            .spawn(move || reap(&starting, &events))?;
        Ok(())
    }
}

fn reap(starting: &Mutex<()>, events: &Sender<Event>) {
    loop {
        // Only looks, so that a process which is being started stays to be reaped.
        let look = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        match rustix::process::waitid(WaitId::All, look) {
            Ok(_) | Err(Errno::INTR) => {}
            // No process is left, and none can come but by the one who started the last.
            Err(_) => return,
        }
        let _starting = starting.lock().unwrap_or_else(PoisonError::into_inner);
        while let Ok(Some((pid, status))) = rustix::process::wait(WaitOptions::NOHANG) {
            let status = match (status.exit_status(), status.terminating_signal()) {
                (Some(status), _) => status as u8,
                (None, Some(signal)) => 128 | signal as u8,
                (None, None) => continue,
            };
            if events.send(Event::Ended { pid, status }).is_err() {
                return;
            }
        }
    }
}
