//! Which system calls a running machine needs.
//!
//! Kept as short as the tests allow: they run with the filter on, and a call that is missing ends the process
//! with its name.

use syscalls::Sysno;

use crate::confinement::ConfinedThread;

/// What becomes of a system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// It is carried out.
    Allow,
    /// It is carried out if its arguments pass.
    AllowIf(Check),
    /// It fails as on a kernel that does not know it.
    Unknown,
}

/// What the arguments of a call must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Check {
    /// ioctl: of KVM, of a terminal except typing into it, or one of few others.
    Request,
    /// mmap, mprotect: memory that cannot be executed.
    NotExecutable,
    /// clone: a thread, no process.
    NewThread,
    /// prctl: the name of a thread or of a mapping.
    Naming,
    /// tgkill: to a thread of this process.
    OwnThread,
    /// prlimit64: asks and does not set.
    NoNewLimit,
}

/// The calls of a thread, in any order.
pub(super) fn answers(thread: ConfinedThread) -> impl Iterator<Item = (Sysno, Answer)> {
    let further = match thread {
        ConfinedThread::Monitor => FILES_AND_CLIENTS,
        ConfinedThread::Vcpu => &[],
    };
    let threads = match thread {
        ConfinedThread::Monitor => NEW_THREADS,
        ConfinedThread::Vcpu => &[],
    };
    EVERY_THREAD
        .iter()
        .chain(further)
        .map(|call| (*call, Answer::Allow))
        .chain(CHECKED.iter().chain(threads).copied())
}

/// Of every thread: memory, time, waiting, and what a C library does by itself.
const EVERY_THREAD: &[Sysno] = &[
    Sysno::brk,
    Sysno::clock_gettime,
    Sysno::clock_nanosleep,
    Sysno::close,
    Sysno::epoll_ctl,
    Sysno::epoll_pwait,
    Sysno::epoll_wait,
    Sysno::exit,
    Sysno::exit_group,
    Sysno::futex,
    Sysno::getpid,
    Sysno::getrandom,
    Sysno::gettid,
    Sysno::gettimeofday,
    Sysno::madvise,
    Sysno::mremap,
    Sysno::munmap,
    Sysno::nanosleep,
    Sysno::poll,
    Sysno::ppoll,
    Sysno::read,
    Sysno::restart_syscall,
    Sysno::rseq,
    Sysno::rt_sigaction,
    Sysno::rt_sigprocmask,
    Sysno::rt_sigreturn,
    Sysno::sched_getaffinity,
    Sysno::sched_yield,
    Sysno::set_robust_list,
    Sysno::sigaltstack,
    Sysno::write,
    Sysno::writev,
];

const CHECKED: &[(Sysno, Answer)] = &[
    (Sysno::ioctl, Answer::AllowIf(Check::Request)),
    (Sysno::mmap, Answer::AllowIf(Check::NotExecutable)),
    (Sysno::mprotect, Answer::AllowIf(Check::NotExecutable)),
    (Sysno::prctl, Answer::AllowIf(Check::Naming)),
    (Sysno::tgkill, Answer::AllowIf(Check::OwnThread)),
];

const NEW_THREADS: &[(Sysno, Answer)] = &[
    (Sysno::clone, Answer::AllowIf(Check::NewThread)),
    // Its arguments lie in memory, where a filter cannot look; the C library then calls clone.
    (Sysno::clone3, Answer::Unknown),
    (Sysno::prlimit64, Answer::AllowIf(Check::NoNewLimit)),
];

/// Of the monitor: files beneath the declared directories, control clients, and narrower filters.
const FILES_AND_CLIENTS: &[Sysno] = &[
    Sysno::accept,
    Sysno::accept4,
    Sysno::cachestat,
    Sysno::copy_file_range,
    Sysno::dup,
    Sysno::epoll_create1,
    Sysno::eventfd2,
    Sysno::faccessat,
    Sysno::faccessat2,
    Sysno::fadvise64,
    Sysno::fallocate,
    Sysno::fchmod,
    Sysno::fcntl,
    Sysno::fdatasync,
    Sysno::flock,
    Sysno::fstat,
    Sysno::fstatfs,
    Sysno::fsync,
    Sysno::ftruncate,
    Sysno::getcwd,
    Sysno::getdents64,
    Sysno::getrusage,
    Sysno::getsockopt,
    Sysno::linkat,
    Sysno::lseek,
    Sysno::lstat,
    Sysno::mincore,
    Sysno::mkdir,
    Sysno::mkdirat,
    Sysno::msync,
    Sysno::newfstatat,
    Sysno::open,
    Sysno::openat,
    Sysno::pread64,
    Sysno::preadv,
    Sysno::pwrite64,
    Sysno::pwritev,
    Sysno::readlink,
    Sysno::readlinkat,
    Sysno::readv,
    Sysno::recvfrom,
    Sysno::recvmsg,
    Sysno::rename,
    Sysno::renameat,
    Sysno::renameat2,
    Sysno::rmdir,
    Sysno::seccomp,
    Sysno::sendmsg,
    Sysno::sendto,
    Sysno::shutdown,
    Sysno::stat,
    Sysno::statfs,
    Sysno::statx,
    Sysno::sync_file_range,
    Sysno::sysinfo,
    Sysno::uname,
    Sysno::unlink,
    Sysno::unlinkat,
];
