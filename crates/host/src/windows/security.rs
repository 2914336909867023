//! Who may use what this process makes.
#![expect(
    unsafe_code,
    reason = "security descriptors are made and freed by raw pointers"
)]

use std::io;
use std::os::windows::io::{AsRawHandle as _, FromRawHandle as _, OwnedHandle};
use std::sync::OnceLock;

use windows_sys::Win32::Foundation::LocalFree;
use windows_sys::Win32::Security::Authorization::{
    ConvertSidToStringSidW, ConvertStringSecurityDescriptorToSecurityDescriptorW, SDDL_REVISION_1,
};
use windows_sys::Win32::Security::{
    GetTokenInformation, PSECURITY_DESCRIPTOR, SECURITY_ATTRIBUTES, SECURITY_DESCRIPTOR,
    TOKEN_QUERY, TOKEN_USER, TokenUser,
};
use windows_sys::Win32::System::Threading::{GetCurrentProcess, OpenProcessToken};

/// Room for a token's user: the structure and the longest SID (68 bytes), of words for the alignment.
const USER_WORDS: usize = 32;

/// Attributes by which only this process's user, and the system, may open an object.
pub(super) struct OwnerOnly {
    attributes: Box<SECURITY_ATTRIBUTES>,
    descriptor: PSECURITY_DESCRIPTOR,
}

// SAFETY: the descriptor is only read after it was made, until it is freed with its only owner.
unsafe impl Send for OwnerOnly {}
// SAFETY: as above.
unsafe impl Sync for OwnerOnly {}

impl OwnerOnly {
    pub(super) fn new() -> io::Result<Self> {
        // A protected list, so that nothing is inherited from above: all rights for the user and for the
        // system, here and below.
        let mut text: Vec<u16> = format!("D:P(A;OICI;GA;;;{})(A;OICI;GA;;;SY)", own_sid()?)
            .encode_utf16()
            .collect();
        text.push(0);
        let mut descriptor: PSECURITY_DESCRIPTOR = std::ptr::null_mut();
        // SAFETY: the text ends with a zero, and the pointer to the result lives until the call returns.
        let done = unsafe {
            ConvertStringSecurityDescriptorToSecurityDescriptorW(
                text.as_ptr(),
                SDDL_REVISION_1,
                &raw mut descriptor,
                std::ptr::null_mut(),
            )
        };
        if done == 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self {
            attributes: Box::new(SECURITY_ATTRIBUTES {
                nLength: size_of::<SECURITY_ATTRIBUTES>() as u32,
                lpSecurityDescriptor: descriptor,
                bInheritHandle: 0,
            }),
            descriptor,
        })
    }

    /// The descriptor of this process's user, for as long as the process lives; `None` if the system does
    /// not tell who that is.
    pub(super) fn descriptor_of_this_user() -> Option<*const SECURITY_DESCRIPTOR> {
        static OWN: OnceLock<Option<OwnerOnly>> = OnceLock::new();
        let own = OWN.get_or_init(|| Self::new().ok()).as_ref()?;
        Some(own.descriptor.cast_const().cast())
    }

    /// To be handed to a call that makes an object; lives as long as this.
    pub(super) fn attributes(&self) -> *const SECURITY_ATTRIBUTES {
        &raw const *self.attributes
    }
}

impl Drop for OwnerOnly {
    fn drop(&mut self) {
        // SAFETY: the descriptor was allocated by the system for this value alone.
        unsafe { LocalFree(self.descriptor) };
    }
}

/// The security identifier of this process's user, as text.
fn own_sid() -> io::Result<String> {
    let mut token = std::ptr::null_mut();
    // SAFETY: the pointer lives until the call returns; the pseudo handle needs no closing.
    let token = unsafe {
        if OpenProcessToken(GetCurrentProcess(), TOKEN_QUERY, &raw mut token) == 0 {
            return Err(io::Error::last_os_error());
        }
        OwnedHandle::from_raw_handle(token)
    };
    let mut user = [0_u64; USER_WORDS];
    let mut length = 0;
    // SAFETY: the buffer has the length that is given and the alignment of TOKEN_USER.
    let done = unsafe {
        GetTokenInformation(
            token.as_raw_handle(),
            TokenUser,
            user.as_mut_ptr().cast(),
            size_of_val(&user) as u32,
            &raw mut length,
        )
    };
    if done == 0 {
        return Err(io::Error::last_os_error());
    }
    let mut text: *mut u16 = std::ptr::null_mut();
    // SAFETY: the call above has filled a TOKEN_USER, whose SID lies in the same buffer; the text that
    // the call gives ends with a zero and is freed once, after it was copied.
    unsafe {
        let sid = (*user.as_ptr().cast::<TOKEN_USER>()).User.Sid;
        if ConvertSidToStringSidW(sid, &raw mut text) == 0 {
            return Err(io::Error::last_os_error());
        }
        let length = (0..).take_while(|at| *text.add(*at) != 0).count();
        let copied = String::from_utf16_lossy(std::slice::from_raw_parts(text, length));
        LocalFree(text.cast());
        Ok(copied)
    }
}
