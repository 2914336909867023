//! Randomness of the system.
#![expect(unsafe_code, reason = "the generator fills a buffer by its address")]

use std::io;

use windows_sys::Win32::Security::Cryptography::{
    BCRYPT_USE_SYSTEM_PREFERRED_RNG, BCryptGenRandom,
};

/// 64 random bits.
pub(super) fn random_u64() -> io::Result<u64> {
    let mut bytes = [0_u8; 8];
    random_bytes(&mut bytes)?;
    Ok(u64::from_ne_bytes(bytes))
}

/// Fills `target` with bytes that nobody can predict.
///
/// # Errors
///
/// The operating system's, if it has no randomness to give.
pub fn random_bytes(target: &mut [u8]) -> io::Result<()> {
    let length = u32::try_from(target.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: the buffer has the length that is given; no algorithm handle is needed with this flag.
    let status = unsafe {
        BCryptGenRandom(
            std::ptr::null_mut(),
            target.as_mut_ptr(),
            length,
            BCRYPT_USE_SYSTEM_PREFERRED_RNG,
        )
    };
    if status < 0 {
        return Err(super::nt::error_of(status));
    }
    Ok(())
}
