//! The user's side of a Linux guest's console: the terminal is raw while the guest uses it as one, and the
//! guest hears of its size.

use std::sync::Arc;
use std::thread::JoinHandle;

use anyhow::Context as _;
use nvx_host::{UserTerminal, Waker};
use nvx_machine::control_line::{ConsoleMode, ToGuest};
use nvx_vmm::GuestLine;

/// The terminal for as long as a guest runs. Dropped, it is what it was before.
pub struct GuestTerminal {
    line: GuestLine,
    /// None where standard input or output is no terminal.
    terminal: Option<Arc<UserTerminal>>,
    sizes: Option<Sizes>,
}

/// The thread that tells the guest of changed sizes.
struct Sizes {
    stop: Arc<Waker>,
    thread: JoinHandle<()>,
}

impl GuestTerminal {
    /// To be called before any thread is started.
    pub fn attach(line: GuestLine) -> anyhow::Result<Self> {
        let terminal = UserTerminal::attach().context("the terminal cannot be used")?;
        Ok(Self {
            line,
            terminal: terminal.map(Arc::new),
            sizes: None,
        })
    }

    /// The guest listens, and uses its console as `mode` says.
    pub fn guest_is_ready(&mut self, mode: ConsoleMode) {
        let Some(terminal) = &self.terminal else {
            return;
        };
        match mode {
            ConsoleMode::Terminal => {
                // A terminal that refuses still shows everything; keys come line by line.
                let _ = terminal.make_raw();
                send_size(&self.line, terminal);
                if self.sizes.is_none() {
                    // Without it the guest keeps the first size.
                    self.sizes = Sizes::start(self.line.clone(), Arc::clone(terminal)).ok();
                }
            }
            ConsoleMode::Stream => terminal.restore(),
        }
    }

    /// What ends a line on standard error: nothing turns a newline into a new line while the terminal is raw.
    pub fn is_raw(&self) -> bool {
        self.terminal
            .as_ref()
            .is_some_and(|terminal| terminal.is_raw())
    }
}

impl Drop for GuestTerminal {
    fn drop(&mut self) {
        if let Some(sizes) = self.sizes.take() {
            sizes.stop.raise();
            // It only waits and sends.
            let _ = sizes.thread.join();
        }
        if let Some(terminal) = &self.terminal {
            terminal.restore();
        }
    }
}

impl Sizes {
    fn start(line: GuestLine, terminal: Arc<UserTerminal>) -> std::io::Result<Self> {
        let stop = Arc::new(Waker::new()?);
        let stopped = Arc::clone(&stop);
        let thread = std::thread::Builder::new()
            .name("terminal size".to_owned())
            .spawn(move || {
                while terminal.wait_for_size_change(&*stopped) {
                    send_size(&line, &terminal);
                }
            })?;
        Ok(Self { stop, thread })
    }
}

fn send_size(line: &GuestLine, terminal: &UserTerminal) {
    if let Some((columns, rows)) = terminal.size() {
        // A guest that does not listen asks for it when it does, by being ready.
        line.send(&ToGuest::Size { columns, rows });
    }
}
