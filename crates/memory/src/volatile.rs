//! Access to memory that the guest changes at the same time.
//!
//! A Rust reference into guest RAM would promise the compiler that nobody else writes there; the
//! guest breaks that promise at any moment. So no reference is ever made: bytes are copied by
//! volatile loads and stores of plain integers, each of which sees some value that was there.
//! Nothing read here may be read a second time and expected to be the same.

#![expect(
    unsafe_code,
    reason = "guest RAM can only be reached through raw pointers"
)]

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::layout::PAGE_SIZE_BYTES;

const WORD: usize = size_of::<u64>();
/// A zero page is given up after the first part of this length that is not zero.
const ZERO_STEP_BYTES: usize = 256;

/// Bytes that others may change, at a fixed place in this process.
#[derive(Debug)]
pub(crate) struct VolatileBytes {
    start: NonNull<u8>,
    size_bytes: usize,
}

// SAFETY: the bytes are only touched by volatile or atomic operations, which need no exclusive
// access, and the pointer is not tied to a thread.
unsafe impl Send for VolatileBytes {}
// SAFETY: as above; concurrent stores are what this type is made for.
unsafe impl Sync for VolatileBytes {}

impl VolatileBytes {
    /// # Safety
    /// `start` is page aligned and `size_bytes` bytes from it are mapped readable for as long as
    /// the value lives; they are mapped writable if `write` or `mark_modified` is called.
    pub(crate) unsafe fn new(start: NonNull<u8>, size_bytes: usize) -> Self {
        Self { start, size_bytes }
    }

    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    pub(crate) fn size_bytes(&self) -> usize {
        self.size_bytes
    }

    /// The address of `size_bytes` bytes at `offset`, if all of them are inside.
    pub(crate) fn pointer(&self, offset: u64, size_bytes: usize) -> Option<*mut u8> {
        let offset = usize::try_from(offset).ok()?;
        let end = offset.checked_add(size_bytes)?;
        // SAFETY: `offset` is at most the length of the mapping.
        (end <= self.size_bytes).then(|| unsafe { self.start.as_ptr().add(offset) })
    }

    /// Copies bytes out; `None` if they are not all inside.
    pub(crate) fn read(&self, offset: u64, target: &mut [u8]) -> Option<()> {
        let mut source = self.pointer(offset, target.len())?.cast_const();
        let (head, rest) = target.split_at_mut(bytes_to_alignment(source).min(target.len()));
        let mut words = rest.chunks_exact_mut(WORD);
        // SAFETY: `pointer` has checked that as many bytes as `target` has are mapped at `source`,
        // and the three loops together advance it by exactly that much; the word loads start at an
        // aligned address.
        unsafe {
            for byte in head {
                *byte = source.read_volatile();
                source = source.add(1);
            }
            for word in &mut words {
                word.copy_from_slice(&source.cast::<u64>().read_volatile().to_ne_bytes());
                source = source.add(WORD);
            }
            for byte in words.into_remainder() {
                *byte = source.read_volatile();
                source = source.add(1);
            }
        }
        Some(())
    }

    /// Copies bytes in; `None` if they do not all fit.
    pub(crate) fn write(&self, offset: u64, source: &[u8]) -> Option<()> {
        let mut target = self.pointer(offset, source.len())?;
        let (head, rest) = source.split_at(bytes_to_alignment(target).min(source.len()));
        let (words, tail) = rest.as_chunks::<WORD>();
        // SAFETY: as in `read`, with `target` as the mapped side; the caller of `new` has promised
        // that a mapping that is written to is writable.
        unsafe {
            for &byte in head {
                target.write_volatile(byte);
                target = target.add(1);
            }
            for &word in words {
                target
                    .cast::<u64>()
                    .write_volatile(u64::from_ne_bytes(word));
                target = target.add(WORD);
            }
            for &byte in tail {
                target.write_volatile(byte);
                target = target.add(1);
            }
        }
        Some(())
    }

    /// Loads a `u16` in one access; `None` if it is not inside, or not aligned in this process.
    pub(crate) fn load_u16(&self, offset: u64) -> Option<u16> {
        let source = self.aligned_u16(offset)?;
        // SAFETY: `aligned_u16` has checked that two mapped bytes are there, and their alignment.
        Some(unsafe { source.cast_const().read_volatile() })
    }

    /// Stores a `u16` in one access; `None` if it does not fit, or is not aligned in this process.
    pub(crate) fn store_u16(&self, offset: u64, value: u16) -> Option<()> {
        let target = self.aligned_u16(offset)?;
        // SAFETY: as in `load_u16`; the caller of `new` has promised that a mapping that is written
        // to is writable.
        unsafe { target.write_volatile(value) };
        Some(())
    }

    fn aligned_u16(&self, offset: u64) -> Option<*mut u16> {
        let pointer = self.pointer(offset, size_of::<u16>())?;
        pointer
            .addr()
            .is_multiple_of(align_of::<u16>())
            .then(|| pointer.cast())
    }

    /// Whether the page at `offset` holds only zeros; `false` also if it is not inside.
    pub(crate) fn is_zero_page(&self, offset: u64) -> bool {
        let Some(page) = self.pointer(offset, PAGE_SIZE_BYTES as usize) else {
            return false;
        };
        if !page.addr().is_multiple_of(WORD) {
            return false;
        }
        let words = page.cast::<u64>().cast_const();
        for step in 0..PAGE_SIZE_BYTES as usize / ZERO_STEP_BYTES {
            let mut bits = [0_u64; 4];
            let first = step * ZERO_STEP_BYTES / WORD;
            for quad in 0..ZERO_STEP_BYTES / WORD / 4 {
                for (lane, bit) in bits.iter_mut().enumerate() {
                    // SAFETY: the word lies in the page that `pointer` has checked, and is aligned.
                    *bit |= unsafe { words.add(first + quad * 4 + lane).read_volatile() };
                }
            }
            if bits.iter().any(|&bit| bit != 0) {
                return false;
            }
        }
        true
    }

    /// Makes the system see the page at `offset` as modified, without changing it.
    pub(crate) fn mark_modified(&self, offset: u64) -> Option<()> {
        let byte = self.pointer(offset, 1)?;
        // SAFETY: the byte is mapped writable (see `new`), alignment of a byte is always right, and
        // every other access to it is volatile or atomic.
        let byte = unsafe { AtomicU8::from_ptr(byte) };
        let seen = byte.load(Ordering::Relaxed);
        // Not `fetch_or(0)`: the compiler turns a read-modify-write that can be proved idempotent
        // into a fence and a load, which dirties nothing. When the exchange fails, somebody else
        // has stored since the load, and that store has dirtied the page.
        let _ = byte.compare_exchange(seen, seen, Ordering::Relaxed, Ordering::Relaxed);
        Some(())
    }
}

/// How many bytes lie between `pointer` and the next word boundary.
fn bytes_to_alignment(pointer: *const u8) -> usize {
    pointer.addr().wrapping_neg() % WORD
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Page-aligned test memory.
    #[repr(C, align(4096))]
    struct Pages([u8; 2 * 4096]);

    fn with_pages(test: impl FnOnce(&VolatileBytes)) {
        let mut pages = Box::new(Pages([0; 2 * 4096]));
        let start = NonNull::from(&mut pages.0).cast();
        // SAFETY: the box outlives the value and is not touched otherwise.
        let bytes = unsafe { VolatileBytes::new(start, 2 * 4096) };
        test(&bytes);
    }

    #[test]
    fn every_alignment_and_length_round_trips() {
        with_pages(|bytes| {
            for offset in 0..17_u64 {
                for length in 0..40_usize {
                    let data: Vec<u8> = (0..length).map(|n| (n as u8) ^ 0x5a).collect();
                    bytes.write(4096 - 8 + offset, &data).unwrap();
                    let mut back = vec![0; length];
                    bytes.read(4096 - 8 + offset, &mut back).unwrap();
                    assert_eq!(back, data);
                }
            }
        });
    }

    #[test]
    fn a_write_touches_nothing_beside_it() {
        with_pages(|bytes| {
            bytes.write(0, &[0xff; 64]).unwrap();
            bytes.write(3, &[1; 21]).unwrap();
            let mut back = [0; 64];
            bytes.read(0, &mut back).unwrap();
            let expected: Vec<u8> = (0..64)
                .map(|n| if (3..24).contains(&n) { 1 } else { 0xff })
                .collect();
            assert_eq!(back.as_slice(), expected);
        });
    }

    #[test]
    fn bounds_hold_at_the_end_and_against_overflow() {
        with_pages(|bytes| {
            let mut buffer = [0; 16];
            assert!(bytes.read(2 * 4096 - 16, &mut buffer).is_some());
            assert!(bytes.read(2 * 4096 - 15, &mut buffer).is_none());
            assert!(bytes.write(2 * 4096 - 15, &buffer).is_none());
            assert!(bytes.write(u64::MAX, &buffer).is_none());
            assert!(bytes.mark_modified(2 * 4096).is_none());
            assert!(!bytes.is_zero_page(4097));
        });
    }

    #[test]
    fn one_bit_anywhere_makes_a_page_not_zero() {
        with_pages(|bytes| {
            assert!(bytes.is_zero_page(0));
            assert!(bytes.is_zero_page(4096));
            for offset in 0..4096 {
                bytes.write(offset, &[0x80]).unwrap();
                assert!(!bytes.is_zero_page(0), "byte {offset}");
                assert!(bytes.is_zero_page(4096));
                bytes.write(offset, &[0]).unwrap();
            }
            assert!(bytes.is_zero_page(0));
        });
    }

    #[test]
    fn marking_keeps_the_contents() {
        with_pages(|bytes| {
            bytes.write(4096, &[7, 8, 9]).unwrap();
            bytes.mark_modified(4096).unwrap();
            let mut back = [0; 3];
            bytes.read(4096, &mut back).unwrap();
            assert_eq!(back, [7, 8, 9]);
        });
    }
}
