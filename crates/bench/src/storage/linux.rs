//! Reading the counters from Linux's `/proc` and `/sys`.

use std::time::Instant;

use super::StorageReading;
use crate::host::BlockDevice;

/// Reads everything at once; what is missing is absent.
pub(super) fn read(device: Option<&BlockDevice>, began: Instant) -> StorageReading {
    let file = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let memory = file("/proc/meminfo");
    let counters = device.and_then(BlockDevice::counters);
    StorageReading {
        elapsed_us: began.elapsed().as_micros() as u64,
        device_read_bytes: counters.map(|counters| counters.read_bytes),
        device_written_bytes: counters.map(|counters| counters.written_bytes),
        device_busy_ms: counters.map(|counters| counters.busy_ms),
        dirty_bytes: kib_line(&memory, "Dirty:"),
        writeback_bytes: kib_line(&memory, "Writeback:"),
        own_written_bytes: plain_line(&file("/proc/self/io"), "write_bytes:"),
        cpu_pressure_us: pressure_us(&file("/proc/pressure/cpu")),
    }
}

fn kib_line(text: &str, name: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = value.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

fn plain_line(text: &str, name: &str) -> Option<u64> {
    text.lines()
        .find_map(|line| line.strip_prefix(name))?
        .trim()
        .parse()
        .ok()
}

/// The total of the line `some` (Linux, Documentation/accounting/psi.rst).
fn pressure_us(text: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.starts_with("some "))?;
    line.rsplit_once("total=")?.1.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_found() {
        assert_eq!(
            kib_line("MemFree: 1 kB\nDirty:   3 kB\n", "Dirty:"),
            Some(3072)
        );
        assert_eq!(kib_line("", "Dirty:"), None);
        assert_eq!(
            plain_line("rchar: 1\nwrite_bytes: 77\n", "write_bytes:"),
            Some(77)
        );
        let pressure = "some avg10=1.00 avg60=0 avg300=0 total=42\nfull avg10=0 total=7\n";
        assert_eq!(pressure_us(pressure), Some(42));
        assert_eq!(pressure_us(""), None);
    }
}
