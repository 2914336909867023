//! Random bytes of the kernel.

use std::io;

use rustix::rand::GetRandomFlags;

/// Fills `target` with bytes that nobody can predict.
///
/// # Errors
///
/// The operating system's, if it has no randomness to give.
pub fn random_bytes(mut target: &mut [u8]) -> io::Result<()> {
    while !target.is_empty() {
        // A signal may cut long requests short.
        let filled = match rustix::rand::getrandom(&mut *target, GetRandomFlags::empty()) {
            Ok(filled) => filled,
            Err(rustix::io::Errno::INTR) => 0,
            Err(error) => return Err(error.into()),
        };
        target = target.split_at_mut(filled).1;
    }
    Ok(())
}
