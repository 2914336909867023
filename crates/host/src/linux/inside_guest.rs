//! What `nvx` asks of the kernel when it runs inside a guest, beyond what libraries wrap.
#![expect(
    unsafe_code,
    reason = "the random generator's and the network's ioctls, I/O ports, and what a child does before \
              it runs its program have no safe wrapper in the libraries in use"
)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

/// `RNDADDENTROPY`: `_IOW('R', 3, int[2])` (random(4)).
const ADD_ENTROPY: libc::Ioctl = 0x4008_5203_u32 as libc::Ioctl;
/// `RNDRESEEDCRNG`: `_IO('R', 7)` (linux/random.h).
const RESEED: libc::Ioctl = 0x5207;

/// Mixes `bytes` into the kernel's random pool, all of their bits counted as random, and makes the
/// generator take its next key from the pool at once.
///
/// # Errors
/// The process may not do that (`CAP_SYS_ADMIN`), or `bytes` are more than 64 KiB.
pub fn reseed_random_generator(bytes: &[u8]) -> io::Result<()> {
    let length = i32::from(u16::try_from(bytes.len()).map_err(io::Error::other)?);
    // struct rand_pool_info: bits, bytes, and the bytes.
    let mut request = Vec::with_capacity(8 + bytes.len());
    request.extend((length * 8).to_ne_bytes());
    request.extend(length.to_ne_bytes());
    request.extend(bytes);
    let random = File::options().write(true).open("/dev/random")?;
    // SAFETY: the kernel reads the two numbers and as many bytes after them as the second one says, all
    // within `request`.
    if unsafe { libc::ioctl(random.as_raw_fd(), ADD_ENTROPY, request.as_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: this request has no argument.
    if unsafe { libc::ioctl(random.as_raw_fd(), RESEED) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Writes `value` to I/O port `port`, calls `written`, and reads the port. A processor or hypervisor that refuses
/// ports to programs whatever the kernel says ends the process by SIGSEGV, before or after `written`: to be called
/// in a process that does nothing else.
///
/// # Errors
/// The kernel does not give this process the port (`CAP_SYS_RAWIO`, `CONFIG_X86_IOPL_IOPERM`, lockdown).
pub fn ask_port(port: u16, value: u8, written: impl FnOnce()) -> io::Result<u8> {
    // SAFETY: the call changes which ports this thread may use, and no memory.
    if unsafe { libc::ioperm(port.into(), 1, 1) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: neither memory nor flags are touched; the thread may use the port.
    unsafe {
        std::arch::asm!("out dx, al", in("dx") port, in("al") value,
            options(nomem, nostack, preserves_flags));
    }
    written();
    let answer: u8;
    // SAFETY: as above.
    unsafe {
        std::arch::asm!("in al, dx", in("dx") port, out("al") answer,
            options(nomem, nostack, preserves_flags));
    }
    Ok(answer)
}

/// Makes `command` the leader of a session of its own. With `terminal`, its standard input becomes the
/// session's terminal.
pub fn lead_session(command: &mut Command, terminal: bool) {
    let prepare = move || {
        rustix::process::setsid()?;
        if terminal {
            rustix::process::ioctl_tiocsctty(rustix::stdio::stdin())?;
        }
        Ok(())
    };
    // SAFETY: between fork and exec the closure makes two system calls and neither allocates nor takes
    // a lock.
    unsafe {
        command.pre_exec(prepare);
    }
}

/// Brings the loopback interface up, which a new kernel leaves down.
///
/// # Errors
/// The kernel has no IPv4 network, or the process may not change it.
pub fn bring_loopback_up() -> io::Result<()> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
    let socket = socket_with(
        AddressFamily::INET,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    // SAFETY: all zeros is a valid `ifreq`; the name fits with the NUL after it; the kernel reads the
    // name and the flags, which are the union's field that is set.
    let result = unsafe {
        let mut request: libc::ifreq = std::mem::zeroed();
        for (to, from) in request.ifr_name.iter_mut().zip(*b"lo") {
            *to = from as libc::c_char;
        }
        request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
        libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &request)
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_leader_is_one() {
        let mut command = Command::new("sh");
        // Field 6 of /proc/PID/stat is the session (proc(5)).
        command.args(["-c", "test $(cut -d' ' -f6 /proc/$$/stat) = $$"]);
        lead_session(&mut command, false);
        assert!(command.status().expect("a shell").success());
    }

    #[test]
    fn a_session_needs_a_terminal_to_have_one() {
        let mut command = Command::new("true");
        command.stdin(std::process::Stdio::null());
        lead_session(&mut command, true);
        let error = command.spawn().expect_err("no terminal");
        assert_eq!(error.raw_os_error(), Some(libc::ENOTTY));
    }

    #[test]
    fn more_random_bytes_than_the_kernel_takes_are_refused() {
        assert!(reseed_random_generator(&[0; 70_000]).is_err());
    }
}
