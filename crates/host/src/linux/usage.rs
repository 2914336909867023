//! What processes and files take of the machine.

use std::fs::File;
use std::io;
use std::path::Path;

/// The unit of `st_blocks` on every file system (stat(2)).
const STAT_BLOCK_BYTES: u64 = 512;

/// The largest resident set that the process `pid` has had so far, in bytes; `None` if there is no
/// such process or the system does not tell.
pub fn process_peak_rss_bytes(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    peak_rss_bytes_in(&status)
}

/// The `VmHWM` line of a process's status (proc_pid_status(5)). It is in KiB, whatever it says.
fn peak_rss_bytes_in(status: &str) -> Option<u64> {
    let value = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = value.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// Bytes of files' pages that this process has modified so far, in units of pages and each time anew
/// that a page had been stored in between; `None` where the system does not tell. Pages of files in
/// memory are not among them.
pub fn modified_file_bytes() -> Option<u64> {
    let counts = std::fs::read_to_string("/proc/self/io").ok()?;
    modified_file_bytes_in(&counts)
}

/// Those counted by `write_bytes` without those given up by truncation (proc_pid_io(5)).
fn modified_file_bytes_in(counts: &str) -> Option<u64> {
    let count = |name: &str| -> Option<u64> {
        let line = counts.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().parse().ok()
    };
    Some(count("write_bytes:")?.saturating_sub(count("cancelled_write_bytes:")?))
}

/// The space that a file takes on its file system, in bytes: less than its length if it has holes.
///
/// # Errors
///
/// The operating system's.
pub fn allocated_bytes(file: &File) -> io::Result<u64> {
    let blocks = rustix::fs::fstat(file)?.st_blocks;
    Ok(blocks.cast_unsigned().saturating_mul(STAT_BLOCK_BYTES))
}

/// Bytes that an unprivileged user may still write to the file system of a directory.
///
/// # Errors
///
/// The operating system's.
pub fn available_bytes(directory: &Path) -> io::Result<u64> {
    let about = rustix::fs::statvfs(directory)?;
    Ok(about.f_bavail.saturating_mul(about.f_frsize))
}

/// Whether this process may execute the file.
///
/// # Errors
///
/// The operating system's reason why not.
pub fn check_executable(program: &Path) -> io::Result<()> {
    Ok(rustix::fs::access(program, rustix::fs::Access::EXEC_OK)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    #[test]
    fn the_peak_is_read_from_its_line_only() {
        let status = "Name:\tVmHWM: 3 kB\nVmPeak:\t  900 kB\nVmHWM:\t     812 kB\nVmRSS:\t  1 kB\n";
        assert_eq!(peak_rss_bytes_in(status), Some(812 * 1024));
        assert_eq!(peak_rss_bytes_in("VmRSS:\t 1 kB\n"), None);
        assert_eq!(peak_rss_bytes_in("VmHWM:\t much\n"), None);
        assert_eq!(
            peak_rss_bytes_in("VmHWM:\t 18446744073709551615 kB\n"),
            None
        );
        let own = process_peak_rss_bytes(std::process::id());
        assert!(own.is_some_and(|bytes| bytes > 64 << 10), "{own:?}");
        // Above the largest process number (PID_MAX_LIMIT, 2^22).
        assert_eq!(process_peak_rss_bytes(u32::MAX), None);
    }

    #[test]
    fn modified_bytes_are_those_not_given_up() {
        let counts = "wchar: 9\nread_bytes: 1\nwrite_bytes: 12288\ncancelled_write_bytes: 4096\n";
        assert_eq!(modified_file_bytes_in(counts), Some(8192));
        assert_eq!(modified_file_bytes_in("write_bytes: 1\n"), None);
        assert_eq!(modified_file_bytes_in("write_bytes: -\n"), None);
    }

    #[test]
    fn holes_take_no_space() {
        let mut file = tempfile::tempfile_in("/dev/shm").expect("a file");
        file.set_len(1 << 20).expect("a length");
        assert_eq!(allocated_bytes(&file).expect("an answer"), 0);
        file.write_all(&[1; 8192]).expect("data");
        assert_eq!(allocated_bytes(&file).expect("an answer"), 8192);
    }
}
