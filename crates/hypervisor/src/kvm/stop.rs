//! Stopping a vCPU from another thread.
//!
//! A stop sets `immediate_exit` in the vCPU's shared page and then sends the running thread a
//! signal. If the thread is inside KVM_RUN the signal ends the call; if it is on its way in, the
//! kernel sees the flag; if it is on its way out, the flag holds it at the next entry. So no stop
//! is ever lost, also for a guest that never exits by itself.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use super::run_area::RunArea;
use crate::traits::StopHandle;

/// The stop handle of one vCPU, shared by the vCPU and those who may stop it.
pub(super) struct KvmStop {
    area: Arc<RunArea>,
    /// The kernel's id of the thread that runs the vCPU; 0 while there is none.
    thread_id: AtomicI32,
}

impl KvmStop {
    pub(super) fn new(area: Arc<RunArea>) -> Self {
        Self {
            area,
            thread_id: AtomicI32::new(0),
        }
    }

    pub(super) fn bind_to_this_thread(&self) {
        let thread_id = rustix::thread::gettid().as_raw_nonzero().get();
        self.thread_id.store(thread_id, Ordering::SeqCst);
    }
}

impl StopHandle for KvmStop {
    fn request_stop(&self) {
        self.area.set_immediate_exit(true);
        let thread_id = self.thread_id.load(Ordering::SeqCst);
        if thread_id != 0 {
            kick(thread_id);
        }
    }
}

/// The signal that ends KVM_RUN: the first real-time signal, which neither libc nor any default
/// action claims.
fn kick_signal() -> i32 {
    libc::SIGRTMIN()
}

extern "C" fn do_nothing(_signal: i32) {}

/// Gives the kick signal a handler that does nothing: its arrival alone interrupts a system
/// call. Without SA_RESTART, so that a console write that blocks ends as well.
pub(super) fn install_kick_handler() -> io::Result<()> {
    // SAFETY: `action` is a plain structure for which zeros are valid (no flags, empty mask), and
    // the handler touches nothing, so it is safe at any point of any thread.
    let result = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = do_nothing as extern "C" fn(i32) as usize;
        libc::sigaction(kick_signal(), &action, std::ptr::null_mut())
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

fn kick(thread_id: i32) {
    // A thread that has ended in the meantime is no error: then nothing is running.
    // SAFETY: tgkill takes plain numbers; the signal's handler does nothing, so even a thread
    // that came to reuse the id is not harmed.
    unsafe {
        libc::syscall(
            libc::SYS_tgkill,
            rustix::process::getpid().as_raw_nonzero().get(),
            thread_id,
            kick_signal(),
        );
    }
}
