//! Work on large pieces of memory that takes as many processors as there are: a guest waits for its kernel.

use std::sync::{Mutex, PoisonError};

/// More threads would wait for memory and not for processors.
const MAX_THREADS: usize = 4;

/// Does `work` on every piece, in no particular order, in this thread and others that have ended afterwards; false if
/// it was false for one, and then not every piece need have been worked on.
pub(crate) fn do_at_once<Piece, Pieces>(pieces: Pieces, work: impl Fn(Piece) -> bool + Sync) -> bool
where
    Pieces: ExactSizeIterator<Item = Piece> + Send,
{
    let threads = match pieces.len() {
        0 | 1 => 1,
        count => std::thread::available_parallelism()
            .map_or(1, usize::from)
            .min(count)
            .min(MAX_THREADS),
    };
    let pieces = Mutex::new(pieces);
    let next = || pieces.lock().unwrap_or_else(PoisonError::into_inner).next();
    let take_pieces = || {
        while let Some(piece) = next() {
            if !work(piece) {
                return false;
            }
        }
        true
    };
    std::thread::scope(|scope| {
        let helpers: Vec<_> = (1..threads)
            // One that cannot be started is not needed either.
            .filter_map(|_| {
                std::thread::Builder::new()
                    .spawn_scoped(scope, take_pieces)
                    .ok()
            })
            .collect();
        let mut good = take_pieces();
        for helper in helpers {
            good &= helper.join().unwrap_or(false);
        }
        good
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn each_piece_is_worked_on_once() {
        let mut bytes = vec![0_u8; 1000];
        let worked = AtomicUsize::new(0);
        assert!(do_at_once(bytes.chunks_mut(7), |chunk| {
            chunk.iter_mut().for_each(|byte| *byte += 1);
            worked.fetch_add(1, Ordering::Relaxed);
            true
        }));
        assert!(bytes.iter().all(|byte| *byte == 1));
        assert_eq!(worked.into_inner(), 1000_usize.div_ceil(7));
        assert!(do_at_once([0; 0].into_iter(), |_| false));
    }

    #[test]
    fn one_failure_is_a_failure() {
        for bad in [0, 5, 99] {
            assert!(!do_at_once(0..100, |piece| piece != bad));
        }
    }
}
