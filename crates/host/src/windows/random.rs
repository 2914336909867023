//! Randomness of the system.
#![expect(unsafe_code, reason = "the generator fills a buffer by its address")]

use std::io;

use windows_sys::Win32::Security::Cryptography::{
    BCRYPT_USE_SYSTEM_PREFERRED_RNG, BCryptGenRandom,
};

/// 64 random bits.
pub(super) fn random_u64() -> io::Result<u64> {
    let mut bytes = [0_u8; 8];
    // SAFETY: the buffer has the length that is given; no algorithm handle is needed with this flag.
    let status = unsafe {
        BCryptGenRandom(
            std::ptr::null_mut(),
            bytes.as_mut_ptr(),
            bytes.len() as u32,
            BCRYPT_USE_SYSTEM_PREFERRED_RNG,
        )
    };
    if status < 0 {
        return Err(super::nt::error_of(status));
    }
    Ok(u64::from_ne_bytes(bytes))
}
