//! A guest that has the user's terminal.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt as _;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

use rustix::process::Signal;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

use crate::guest::{KernelFile, Linux};
use crate::support::{Process, nvx};

/// A terminal: what the user types goes in, what is shown comes out.
struct Terminal {
    user: OwnedFd,
    /// The side of programs. Kept open, so that its mode can be looked at.
    line: File,
    shown: Arc<Mutex<String>>,
}

impl Terminal {
    fn new() -> Self {
        let user = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&user).unwrap();
        unlockpt(&user).unwrap();
        let name = ptsname(&user, Vec::new()).unwrap().into_string().unwrap();
        let line = File::options()
            .read(true)
            .write(true)
            .custom_flags(rustix::fs::OFlags::NOCTTY.bits() as i32)
            .open(name)
            .unwrap();
        let shown = Arc::new(Mutex::new(String::new()));
        let (mut reader, text) = (File::from(user.try_clone().unwrap()), Arc::clone(&shown));
        // Ends when the last program has left the terminal.
        std::thread::spawn(move || {
            let mut bytes = [0; 1024];
            while let Ok(length @ 1..) = reader.read(&mut bytes) {
                let bytes = String::from_utf8_lossy(&bytes[..length]);
                text.lock().unwrap().push_str(&bytes);
            }
        });
        Self { user, line, shown }
    }

    fn resize(&self, columns: u16, rows: u16) {
        let size = Winsize {
            ws_col: columns,
            ws_row: rows,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&self.user, size).unwrap();
    }

    fn start(&self, mut command: Command) -> Process {
        let clone = || Stdio::from(self.line.try_clone().unwrap());
        command.stdin(clone());
        Process::spawn_to(command, clone())
    }

    fn press(&self, keys: &str) {
        File::from(self.user.try_clone().unwrap())
            .write_all(keys.as_bytes())
            .unwrap();
    }

    /// Waits until `part` is shown.
    fn see(&self, process: &mut Process, part: &str) {
        let shown = &self.shown;
        process.wait_for(part, |_| shown.lock().unwrap().contains(part).then_some(()));
    }

    /// Whether the line discipline edits lines, as it does for a user's shell.
    fn edits_lines(&self) -> bool {
        let mode = tcgetattr(&self.line).unwrap();
        mode.local_modes.contains(LocalModes::ICANON)
    }
}

#[test]
fn keys_size_and_mode_of_a_terminal_are_the_guests() {
    let Some(linux) = Linux::begin("terminal::keys", KernelFile::Cloud) else {
        return;
    };
    let terminal = Terminal::new();
    terminal.resize(97, 31);
    assert!(terminal.edits_lines());
    let script = "trap 'hit=yes; echo INTERRUPTED' INT; until [ \"$(stty size)\" = '31 97' ]; do sleep 0.1; done; echo SIZED; read line; echo \"GOT <$line>\"; \
         while [ \"$(stty size)\" != '40 120' ]; do sleep 0.1; done; echo RESIZED; \
         until [ $hit ]; do sleep 0.1; done; exit 5";
    let mut guest = terminal.start(nvx(&linux.command(script)));
    terminal.see(&mut guest, "SIZED");
    assert!(!terminal.edits_lines(), "the terminal is not raw");
    terminal.press("with a typp\u{7f}o\r");
    terminal.see(&mut guest, "GOT <with a typo>");
    terminal.resize(120, 40);
    // The kernel tells only whose controlling terminal it is.
    guest.signal(Signal::WINCH);
    terminal.see(&mut guest, "RESIZED");
    // Ctrl-C is the guest's: nvx lives on, and the guest's shell hears it.
    terminal.press("\u{3}");
    terminal.see(&mut guest, "INTERRUPTED");
    guest.end().expect_code(5);
    assert!(terminal.edits_lines(), "the terminal has stayed raw");
}

#[test]
fn three_escapes_end_a_guest_that_hears_nothing() {
    let Some(linux) = Linux::begin("terminal::escape", KernelFile::Cloud) else {
        return;
    };
    let terminal = Terminal::new();
    let script = "stty raw -echo; echo DEAF; exec sleep 1000";
    let mut guest = terminal.start(nvx(&linux.command(script)));
    terminal.see(&mut guest, "DEAF");
    terminal.press("\u{1d}\u{1d}a\u{1d}\u{3}");
    std::thread::sleep(std::time::Duration::from_millis(500));
    guest.assert_alive();
    terminal.press("\u{1d}\u{1d}\u{1d}");
    let done = guest.end().expect_code(130);
    done.assert_said("nvx: ended from the keyboard");
    assert!(terminal.edits_lines(), "the terminal has stayed raw");
}
