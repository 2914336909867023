//! Test support: changes that another process makes to files, seen, refused or cut off from outside.
//!
//! [`faults`](crate::faults) reaches what runs in a test's own thread. This reaches the program as it is
//! shipped, confined and with a guest in it: its main thread, which makes all captures, is traced
//! (ptrace(2)), and each of its system calls that changes a file beneath one directory is a [`FileCall`]. A test
//! decides what becomes of it. Signals go through untouched, and other threads of the process are not traced.
//!
//! A call is refused by taking its descriptor and its name away, so that the kernel has nothing to act on, and by
//! putting the wanted error in place of the kernel's. To skip it would not do: a system call filter, which
//! looks after the tracer, would see the number of no call.
#![expect(unsafe_code, reason = "there is no safe wrapper of ptrace")]

use std::fs::{self, File};
use std::io;
use std::mem::{MaybeUninit, zeroed};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::ptr;
use std::time::{Duration, Instant};

/// The longest that the process may take between two looks at the caller's condition.
const LIMIT: Duration = Duration::from_secs(60);
/// How often a wait looks.
const LOOK: Duration = Duration::from_micros(200);
/// A stop of a system call, with `PTRACE_O_TRACESYSGOOD` (ptrace(2)).
const SYSCALL_STOP: i32 = libc::SIGTRAP | 0x80;
/// `FICLONE` (ioctl_ficlone(2)).
const FICLONE: u64 = 0x4004_9409;
/// Longest name that is read from the process.
const MAX_NAME_BYTES: usize = 256;

/// A system call that changes a file, a directory, or what is known to be on the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileCall {
    /// Its name, as in syscalls(2).
    pub name: &'static str,
    /// What it changes; a new name if it gives one.
    pub path: PathBuf,
}

/// What becomes of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It happens.
    Pass,
    /// It does not happen, and fails with this error number.
    Refuse(i32),
    /// It happens, and fails with this error number all the same, as a call over a network may.
    LoseAnswer(i32),
    /// If it writes, it writes half of what it was to.
    Halve,
    /// The process is killed before it.
    KillBefore,
}

/// How a trace ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Traced {
    /// The calls in their order, with those that were refused.
    pub calls: Vec<FileCall>,
    /// The process has ended; its parent can wait for it.
    pub has_ended: bool,
}

/// Traces the main thread of process `pid`. Once it is traced `begin` is called; then each call that
/// concerns a file beneath `root` is put to `decide`, with its number, until `is_done` or the process
/// ends. Afterwards it runs on by itself. While it is traced nobody else may wait for it.
///
/// # Errors
///
/// Tracing is not permitted, or the process does neither anything nor what is waited for.
pub fn trace(
    pid: u32,
    root: &Path,
    begin: impl FnOnce(),
    mut decide: impl FnMut(usize, &FileCall) -> Outcome,
    mut is_done: impl FnMut() -> bool,
) -> io::Result<Traced> {
    let tracer = Tracer::attach(pid)?;
    begin();
    let mut calls = Vec::new();
    tracer.go_on(0)?;
    let has_ended = loop {
        let status = match tracer.wait(&mut is_done)? {
            Event::Ended => break true,
            Event::Done => {
                tracer.detach()?;
                break false;
            }
            Event::Stopped(status) => status,
        };
        let signal = libc::WSTOPSIG(status);
        if signal != SYSCALL_STOP {
            // Above the signal stands an event, which is none of the process's signals.
            tracer.go_on(if status >> 16 == 0 { signal } else { 0 })?;
            continue;
        }
        if let Some(registers) = tracer.registers_at_entry()?
            && let Some((call, place)) = tracer.file_call(&registers)
            && call.path.starts_with(root)
        {
            let outcome = decide(calls.len(), &call);
            calls.push(call);
            if !tracer.carry_out(outcome, registers, place)? {
                break true;
            }
        }
        tracer.go_on(0)?;
    };
    Ok(Traced { calls, has_ended })
}

/// Where a call has what.
#[derive(Clone, Copy)]
struct Place {
    /// The argument that is a descriptor, from 0.
    descriptor: usize,
    /// The argument that is a name relative to it.
    name: Option<usize>,
    /// The argument that is the number of bytes to write.
    length: Option<usize>,
}

enum Event {
    Ended,
    Done,
    Stopped(i32),
}

struct Tracer {
    pid: libc::pid_t,
    memory: File,
}

impl Tracer {
    fn attach(pid: u32) -> io::Result<Self> {
        let memory = File::open(format!("/proc/{pid}/mem"))?;
        let tracer = Self {
            pid: pid as libc::pid_t,
            memory,
        };
        tracer.request(libc::PTRACE_SEIZE, libc::PTRACE_O_TRACESYSGOOD as usize)?;
        tracer.request(libc::PTRACE_INTERRUPT, 0)?;
        match tracer.wait(&mut || false)? {
            Event::Stopped(_) => Ok(tracer),
            Event::Ended | Event::Done => Err(io::ErrorKind::NotFound.into()),
        }
    }

    /// A request whose third argument is not used.
    fn request(&self, request: libc::c_uint, data: usize) -> io::Result<()> {
        let none: *mut libc::c_void = ptr::null_mut();
        // SAFETY: None of the requests that are made here lets the kernel write to this process.
        let result = unsafe { libc::ptrace(request, self.pid, none, data) };
        if result == -1 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }

    /// Lets the process go on to its next stop, with this signal if it is not 0.
    fn go_on(&self, signal: i32) -> io::Result<()> {
        match self.request(libc::PTRACE_SYSCALL, signal as usize) {
            // Killed meanwhile: the next wait tells.
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(()),
            other => other,
        }
    }

    /// Waits for a stop, for the end, which is left to the parent to take, or for the condition.
    fn wait(&self, is_done: &mut dyn FnMut() -> bool) -> io::Result<Event> {
        let deadline = Instant::now() + LIMIT;
        loop {
            let options = libc::WEXITED | libc::WSTOPPED | libc::WNOHANG | libc::WNOWAIT;
            // SAFETY: All zeros are a value of this plain record.
            let mut found: libc::siginfo_t = unsafe { zeroed() };
            // SAFETY: The record is of the type that the kernel fills.
            let result = unsafe {
                libc::waitid(
                    libc::P_PID,
                    self.pid as libc::id_t,
                    &mut found,
                    options | libc::__WALL,
                )
            };
            if result == -1 {
                return Err(io::Error::last_os_error());
            }
            match found.si_code {
                libc::CLD_EXITED | libc::CLD_KILLED | libc::CLD_DUMPED => return Ok(Event::Ended),
                0 => {}
                _ => return self.take_stop().map(Event::Stopped),
            }
            if is_done() {
                return Ok(Event::Done);
            }
            if Instant::now() > deadline {
                return Err(io::ErrorKind::TimedOut.into());
            }
            std::thread::sleep(LOOK);
        }
    }

    fn take_stop(&self) -> io::Result<i32> {
        let mut status = 0;
        // SAFETY: `status` is the integer that the kernel fills.
        let result = unsafe { libc::waitpid(self.pid, &mut status, libc::__WALL) };
        if result == -1 {
            return Err(io::Error::last_os_error());
        }
        Ok(status)
    }

    fn detach(&self) -> io::Result<()> {
        self.request(libc::PTRACE_INTERRUPT, 0)?;
        match self.wait(&mut || false)? {
            Event::Stopped(status) => {
                let signal = libc::WSTOPSIG(status);
                let is_signal = status >> 16 == 0 && signal != SYSCALL_STOP;
                let signal = if is_signal { signal } else { 0 };
                self.request(libc::PTRACE_DETACH, signal as usize)
            }
            Event::Ended | Event::Done => Ok(()),
        }
    }

    fn registers(&self) -> io::Result<libc::user_regs_struct> {
        let mut registers = MaybeUninit::<libc::user_regs_struct>::uninit();
        let none: *mut libc::c_void = ptr::null_mut();
        // SAFETY: The record is of the type that the kernel fills.
        let result =
            unsafe { libc::ptrace(libc::PTRACE_GETREGS, self.pid, none, registers.as_mut_ptr()) };
        if result == -1 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: The request succeeded, so the kernel filled it.
        Ok(unsafe { registers.assume_init() })
    }

    fn set_registers(&self, registers: &libc::user_regs_struct) -> io::Result<()> {
        let none: *mut libc::c_void = ptr::null_mut();
        // SAFETY: The kernel reads a record of this type.
        let result = unsafe {
            libc::ptrace(
                libc::PTRACE_SETREGS,
                self.pid,
                none,
                ptr::from_ref(registers),
            )
        };
        if result == -1 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }

    /// The registers, if the process is at the beginning of a system call and not at its end.
    fn registers_at_entry(&self) -> io::Result<Option<libc::user_regs_struct>> {
        let registers = self.registers()?;
        // Until a call has an answer, this stands in for one (ptrace(2), x86-64).
        let unanswered = (-i64::from(libc::ENOSYS)) as u64;
        Ok((registers.rax == unanswered).then_some(registers))
    }

    /// The call that is about to be made, if it changes a file.
    fn file_call(&self, registers: &libc::user_regs_struct) -> Option<(FileCall, Place)> {
        let place = |descriptor, name, length| Place {
            descriptor,
            name,
            length,
        };
        let number = registers.orig_rax as i64;
        let (name, place) = match number {
            libc::SYS_mkdirat => ("mkdirat", place(0, Some(1), None)),
            libc::SYS_openat if registers.rdx & libc::O_CREAT as u64 != 0 => {
                ("openat", place(0, Some(1), None))
            }
            libc::SYS_write => ("write", place(0, None, Some(2))),
            libc::SYS_pwrite64 => ("pwrite64", place(0, None, Some(2))),
            libc::SYS_writev => ("writev", place(0, None, None)),
            libc::SYS_pwritev => ("pwritev", place(0, None, None)),
            libc::SYS_pwritev2 => ("pwritev2", place(0, None, None)),
            libc::SYS_copy_file_range => ("copy_file_range", place(2, None, Some(4))),
            libc::SYS_ioctl if registers.rsi == FICLONE => ("ioctl", place(0, None, None)),
            libc::SYS_ftruncate => ("ftruncate", place(0, None, None)),
            libc::SYS_fallocate => ("fallocate", place(0, None, None)),
            libc::SYS_linkat => ("linkat", place(2, Some(3), None)),
            libc::SYS_fsync => ("fsync", place(0, None, None)),
            libc::SYS_fdatasync => ("fdatasync", place(0, None, None)),
            libc::SYS_sync_file_range => ("sync_file_range", place(0, None, None)),
            libc::SYS_syncfs => ("syncfs", place(0, None, None)),
            libc::SYS_flock => ("flock", place(0, None, None)),
            libc::SYS_renameat => ("renameat", place(2, Some(3), None)),
            libc::SYS_renameat2 => ("renameat2", place(2, Some(3), None)),
            libc::SYS_unlinkat => ("unlinkat", place(0, Some(1), None)),
            _ => return None,
        };
        let descriptor = argument(registers, place.descriptor) as i32;
        let mut path =
            fs::read_link(format!("/proc/{}/fd/{descriptor}", self.pid)).unwrap_or_default();
        if let Some(index) = place.name {
            path.push(self.name_at(argument(registers, index)));
        }
        Some((FileCall { name, path }, place))
    }

    /// The name that the process has at this address.
    fn name_at(&self, address: u64) -> PathBuf {
        let mut bytes = [0; MAX_NAME_BYTES];
        let mut length = 0;
        // One by one, since what follows it may not be readable.
        while length < MAX_NAME_BYTES
            && self
                .memory
                .read_exact_at(&mut bytes[length..=length], address + length as u64)
                .is_ok()
            && bytes[length] != 0
        {
            length += 1;
        }
        Path::new(std::ffi::OsStr::from_bytes(&bytes[..length])).to_owned()
    }

    /// Does to the call what was decided; false if the process is no more.
    fn carry_out(
        &self,
        outcome: Outcome,
        mut registers: libc::user_regs_struct,
        place: Place,
    ) -> io::Result<bool> {
        let error = match outcome {
            Outcome::Pass => return Ok(true),
            Outcome::KillBefore => {
                // SAFETY: A plain call; the process is a child that nobody has waited for.
                unsafe { libc::kill(self.pid, libc::SIGKILL) };
                return Ok(false);
            }
            Outcome::Halve => {
                if let Some(index) = place.length {
                    let length = argument(&registers, index);
                    set_argument(&mut registers, index, length.div_ceil(2));
                    self.set_registers(&registers)?;
                }
                return Ok(true);
            }
            Outcome::Refuse(error) => {
                set_argument(&mut registers, place.descriptor, u64::MAX);
                if let Some(index) = place.name {
                    set_argument(&mut registers, index, 0);
                }
                self.set_registers(&registers)?;
                error
            }
            Outcome::LoseAnswer(error) => error,
        };
        // On to the end of the call; a stop for anything else does not come between.
        self.go_on(0)?;
        match self.wait(&mut || false)? {
            Event::Stopped(_) => {}
            Event::Ended | Event::Done => return Ok(false),
        }
        let mut registers = self.registers()?;
        registers.rax = (-i64::from(error)) as u64;
        self.set_registers(&registers)?;
        Ok(true)
    }
}

fn argument(registers: &libc::user_regs_struct, index: usize) -> u64 {
    let all = [
        registers.rdi,
        registers.rsi,
        registers.rdx,
        registers.r10,
        registers.r8,
        registers.r9,
    ];
    all[index]
}

fn set_argument(registers: &mut libc::user_regs_struct, index: usize, value: u64) {
    let place = match index {
        0 => &mut registers.rdi,
        1 => &mut registers.rsi,
        2 => &mut registers.rdx,
        3 => &mut registers.r10,
        4 => &mut registers.r8,
        _ => &mut registers.r9,
    };
    *place = value;
}
