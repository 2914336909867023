//! Requests of the console to end this process, as readable events.
#![expect(unsafe_code, reason = "the console calls a function of this process")]

use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use windows_sys::Win32::System::Console::{
    CTRL_BREAK_EVENT, CTRL_C_EVENT, CTRL_CLOSE_EVENT, CTRL_LOGOFF_EVENT, CTRL_SHUTDOWN_EVENT,
    SetConsoleCtrlHandler,
};
use windows_sys::core::BOOL;

use super::event::Event;
use super::wait::{WaitSource, Waitable};

/// Exit codes by which Linux shells report the signals that these requests stand for: 128 and SIGINT
/// (2), SIGTERM (15) or SIGHUP (1). The same here, so that scripts need not know the system.
const REQUESTS: [(u32, &str, u8); 5] = [
    (CTRL_C_EVENT, "Ctrl-C", 130),
    (CTRL_BREAK_EVENT, "Ctrl-Break", 143),
    (CTRL_CLOSE_EVENT, "the closing of the console", 129),
    (CTRL_LOGOFF_EVENT, "the end of the session", 143),
    (CTRL_SHUTDOWN_EVENT, "the shutdown of the system", 143),
];

/// Longer than the system waits for a process that its console closes (5 s by default).
const CLOSING_PATIENCE: Duration = Duration::from_secs(30);

/// Bit n: request n has arrived and was not taken.
static ARRIVED: AtomicU32 = AtomicU32::new(0);
/// Raised while a request waits.
static WAITING: OnceLock<Event> = OnceLock::new();

/// A request to end that has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Termination {
    request: u32,
}

impl Termination {
    fn row(self) -> Option<&'static (u32, &'static str, u8)> {
        REQUESTS
            .iter()
            .find(|(request, ..)| *request == self.request)
    }

    /// The request's name, such as `Ctrl-C`.
    pub fn name(self) -> &'static str {
        self.row().map_or("the console", |(_, name, _)| name)
    }

    /// The exit code by which this end is reported: that of the signal which it stands for.
    pub fn exit_code(self) -> u8 {
        self.row().map_or(143, |(.., code)| *code)
    }
}

/// Requests to end this process, kept until they are taken. Once taken over the requests do not end the
/// process by themselves.
pub struct TerminationSignals {
    waiting: Event,
}

impl TerminationSignals {
    /// Takes the requests over, except Ctrl-C where this process was started to ignore it.
    ///
    /// # Errors
    /// The system refuses the handler or has no handle left.
    pub fn take_over() -> io::Result<Self> {
        let waiting = match WAITING.get() {
            Some(event) => event.clone(),
            None => {
                let event = Event::new(false)?;
                WAITING.get_or_init(|| event).clone()
            }
        };
        // SAFETY: the handler has the signature that the call asks for and is never unloaded. Adding it
        // twice would do no harm: the first one that is asked answers.
        if unsafe { SetConsoleCtrlHandler(Some(on_request), 1) } == 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { waiting })
    }

    /// A second handle to the same requests: each is taken once.
    ///
    /// # Errors
    /// None; as on other systems.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self {
            waiting: self.waiting.clone(),
        })
    }

    /// Takes one request that has arrived, if any. Never blocks.
    pub fn take(&self) -> Option<Termination> {
        // Lowered first: what arrives from here on raises it again.
        self.waiting.lower();
        let arrived = ARRIVED.load(Ordering::SeqCst);
        let taken = REQUESTS
            .iter()
            .map(|(request, ..)| *request)
            .find(|request| arrived & (1 << request) != 0);
        if let Some(request) = taken {
            ARRIVED.fetch_and(!(1 << request), Ordering::SeqCst);
        }
        if ARRIVED.load(Ordering::SeqCst) != 0 {
            self.waiting.raise();
        }
        taken.map(|request| Termination { request })
    }
}

/// Readable while a request waits.
impl Waitable for TerminationSignals {
    fn source(&self) -> WaitSource<'_> {
        WaitSource::of(&self.waiting)
    }
}

/// Runs in a thread that the system makes for it.
///
/// # Safety
/// None is asked of the caller; the system's type of such a function is unsafe.
unsafe extern "system" fn on_request(request: u32) -> BOOL {
    if request >= u32::BITS {
        return 0;
    }
    ARRIVED.fetch_or(1 << request, Ordering::SeqCst);
    if let Some(waiting) = WAITING.get() {
        waiting.raise();
    }
    if ![CTRL_C_EVENT, CTRL_BREAK_EVENT].contains(&request) {
        // The process is ended as soon as this returns: it gets the time to end in order.
        std::thread::sleep(CLOSING_PATIENCE);
    }
    1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Interest;
    use crate::windows::wait::wait_any;

    /// The system's call, made by the test; all of it in one test, since what arrived is the process's.
    #[test]
    fn requests_are_kept_until_each_is_taken() {
        let signals = TerminationSignals::take_over().unwrap();
        let other = signals.try_clone().unwrap();
        assert_eq!(signals.take(), None);
        for request in [CTRL_BREAK_EVENT, CTRL_C_EVENT, CTRL_C_EVENT] {
            // SAFETY: it asks nothing of its caller.
            assert_eq!(unsafe { on_request(request) }, 1);
        }
        let none = Some(Duration::ZERO);
        assert!(wait_any([(signals.source(), Interest::Readable)], none).unwrap()[0]);
        let first = signals.take().unwrap();
        assert_eq!((first.name(), first.exit_code()), ("Ctrl-C", 130));
        assert!(wait_any([(other.source(), Interest::Readable)], none).unwrap()[0]);
        let second = other.take().unwrap();
        assert_eq!((second.name(), second.exit_code()), ("Ctrl-Break", 143));
        assert_eq!(signals.take(), None);
        assert!(!wait_any([(signals.source(), Interest::Readable)], none).unwrap()[0]);
        // What the system may add one day is left to it.
        // SAFETY: as above.
        assert_eq!(unsafe { on_request(u32::BITS) }, 0);
    }

    #[test]
    fn each_request_has_the_code_of_its_signal() {
        let codes = REQUESTS.map(|(request, ..)| Termination { request }.exit_code());
        assert_eq!(codes, [130, 143, 129, 143, 143]);
    }
}
