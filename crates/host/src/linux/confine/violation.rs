//! What happens at a system call that the filter does not let through: a message that names it, and the end.

#![expect(
    unsafe_code,
    reason = "signal handlers have no safe wrapper in the libraries in use"
)]

use std::io;

use syscalls::Sysno;

/// The exit code of a monitor that failed (doc/exit-codes.md).
const FAILED: i32 = 125;

/// Lets such a call end the process with a message. It was not carried out, and nothing is after it.
pub(super) fn report_by_signal() -> io::Result<()> {
    // SAFETY: all zeros is a valid sigaction, whose fields are then set; the handler does only what may be
    // done in a signal handler.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handle as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER;
        if libc::sigaction(libc::SIGSYS, &action, std::ptr::null_mut()) != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

extern "C" fn handle(_signal: i32, information: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    // The kernel's siginfo of SIGSYS: after three numbers and padding, the call's address, then its number
    // (asm-generic/siginfo.h, `_sigsys`).
    const NUMBER_OFFSET_BYTES: usize = 24;
    // SAFETY: the kernel gives a siginfo_t, which is 128 bytes long.
    let number = unsafe {
        information
            .cast::<u8>()
            .add(NUMBER_OFFSET_BYTES)
            .cast::<i32>()
            .read_unaligned()
    };
    let mut message = Message::default();
    message.push(b"nvx: system call ");
    message.push_number(number.unsigned_abs());
    if let Some(call) = usize::try_from(number).ok().and_then(Sysno::new) {
        message.push(b" (");
        message.push(call.name().as_bytes());
        message.push(b")");
    }
    message.push(
        b" was refused: a running machine has no use for it. The process ends; if this was no attack it \
          is a defect of nvx, and --no-seccomp runs without the filter\n",
    );
    // SAFETY: writes initialized bytes; both calls may be made in a signal handler.
    unsafe {
        libc::write(2, message.bytes.as_ptr().cast(), message.length);
        libc::_exit(FAILED);
    }
}

/// Text of a bounded length, since a signal handler must not allocate.
struct Message {
    bytes: [u8; 256],
    length: usize,
}

impl Default for Message {
    fn default() -> Self {
        Self {
            bytes: [0; 256],
            length: 0,
        }
    }
}

impl Message {
    fn push(&mut self, text: &[u8]) {
        for (place, byte) in self.bytes.iter_mut().skip(self.length).zip(text) {
            *place = *byte;
            self.length += 1;
        }
    }

    fn push_number(&mut self, number: u32) {
        let mut divisor = 1_000_000_000;
        while divisor > 1 && number / divisor == 0 {
            divisor /= 10;
        }
        while divisor > 0 {
            self.push(&[b'0' + (number / divisor % 10) as u8]);
            divisor /= 10;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_in_full() {
        for number in [0, 9, 10, 101, 435, 4_294_967_295] {
            let mut message = Message::default();
            message.push_number(number);
            assert_eq!(
                &message.bytes[..message.length],
                number.to_string().as_bytes()
            );
        }
    }

    #[test]
    fn a_message_that_is_too_long_is_cut() {
        let mut message = Message::default();
        message.push(&[b'x'; 300]);
        message.push(b"more");
        assert_eq!(message.length, 256);
    }
}
