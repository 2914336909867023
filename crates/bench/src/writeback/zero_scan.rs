//! How fast pages of zeros are recognised, beside reading the same amount of memory.
//!
//! A copy of guest RAM looks at each page for something other than zero, by accesses that allow for a
//! guest that writes at the same time. The yardstick is a plain scan of ordinary memory of the same
//! size and content, which the compiler may vectorise as it likes.

use std::hint::black_box;
use std::time::{Duration, Instant};

use nvx_memory::{GuestAddress, GuestMemory, PAGE_SIZE_BYTES};

use super::WritebackBenchError;

/// The two rates are measured in turns, this often.
const ROUNDS: usize = 9;
/// More memory shows nothing else, and takes longer.
const MAX_BYTES: u64 = 128 << 20;

/// Durations of one scan each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZeroScan {
    /// Bytes scanned each time.
    pub bytes: u64,
    /// Recognising zero pages of guest RAM.
    pub detection: Vec<Duration>,
    /// Reading ordinary memory.
    pub plain: Vec<Duration>,
}

/// Scans `size_bytes` bytes of zeros, or 128 MiB if that is less, both ways in turns.
///
/// # Errors
/// [`WritebackBenchError`]: there is not as much memory.
pub(super) fn measure(size_bytes: u64) -> Result<ZeroScan, WritebackBenchError> {
    let bytes = size_bytes.min(MAX_BYTES);
    let memory = GuestMemory::anonymous(super::layout(bytes)?)?;
    // Each page is given memory of its own: untouched ones would all be one page of zeros.
    touch(&memory, bytes)?;
    let plain_memory: Vec<u64> = (0..bytes / 8).map(|_| black_box(0)).collect();
    let mut scan = ZeroScan {
        bytes,
        detection: Vec::with_capacity(ROUNDS),
        plain: Vec::with_capacity(ROUNDS),
    };
    for _ in 0..ROUNDS {
        let started = Instant::now();
        black_box(memory.count_zero_pages());
        scan.detection.push(started.elapsed());
        let started = Instant::now();
        black_box(plain_memory.iter().fold(0, |bits, word| bits | word));
        scan.plain.push(started.elapsed());
    }
    Ok(scan)
}

fn touch(memory: &GuestMemory, bytes: u64) -> Result<(), WritebackBenchError> {
    for page in 0..bytes / PAGE_SIZE_BYTES {
        memory.write(GuestAddress(page * PAGE_SIZE_BYTES), &[0])?;
    }
    Ok(())
}
