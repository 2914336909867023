//! `WinHvPlatform.dll` and its functions.

use std::ffi::c_void;
use std::io;

use windows_sys::Win32::Foundation::{FreeLibrary, HMODULE};
use windows_sys::Win32::System::Hypervisor::{
    WHV_CAPABILITY_CODE, WHV_INTERRUPT_CONTROL, WHV_MAP_GPA_RANGE_FLAGS, WHV_PARTITION_HANDLE,
    WHV_PARTITION_PROPERTY_CODE, WHV_REGISTER_NAME, WHV_REGISTER_VALUE, WHV_TRANSLATE_GVA_FLAGS,
    WHV_TRANSLATE_GVA_RESULT, WHvCapabilityCodeHypervisorPresent,
};
use windows_sys::Win32::System::LibraryLoader::{
    GetProcAddress, LOAD_LIBRARY_SEARCH_SYSTEM32, LoadLibraryExW,
};
use windows_sys::core::{HRESULT, s, w};

use crate::error::{OpenError, SystemError};

/// `WHV_E_INSUFFICIENT_BUFFER` (winhverr.h).
pub(super) const INSUFFICIENT_BUFFER: HRESULT = 0x8037_0301_u32.cast_signed();

macro_rules! functions {
    ($($field:ident = $name:literal: fn($($argument:ident: $kind:ty),*);)*) => {
        /// The loaded library. Its functions may be called from any thread.
        pub(super) struct Library {
            module: HMODULE,
            $(pub(super) $field: unsafe extern "system" fn($($argument: $kind),*) -> HRESULT,)*
        }

        impl Library {
            /// Loads it from the system's own directory.
            pub(super) fn load() -> Result<Self, OpenError> {
                // SAFETY: the name ends with a zero. The library is Microsoft's, and is looked for
                // nowhere but in the system's directory, where only administrators put files.
                let module = unsafe {
                    LoadLibraryExW(
                        w!("WinHvPlatform.dll"),
                        std::ptr::null_mut(),
                        LOAD_LIBRARY_SEARCH_SYSTEM32,
                    )
                };
                if module.is_null() {
                    let source = io::Error::last_os_error();
                    return Err(OpenError::HypervisorLibrary { source });
                }
                $(
                    // SAFETY: the module is loaded, and the name ends with a zero.
                    let found = unsafe { GetProcAddress(module, s!($name)) };
                    let Some(found) = found else {
                        let source = io::Error::last_os_error();
                        // SAFETY: loaded above, and nothing of it is in use.
                        unsafe { FreeLibrary(module) };
                        let call = concat!("GetProcAddress(", $name, ")");
                        return Err(OpenError::System(SystemError { call, source }));
                    };
                    // SAFETY: the function of this name has this signature (WinHvPlatform.h).
                    let $field = unsafe {
                        std::mem::transmute::<
                            unsafe extern "system" fn() -> isize,
                            unsafe extern "system" fn($($argument: $kind),*) -> HRESULT,
                        >(found)
                    };
                )*
                Ok(Self { module, $($field),* })
            }
        }
    };
}

functions! {
    get_capability = "WHvGetCapability":
        fn(code: WHV_CAPABILITY_CODE, buffer: *mut c_void, size: u32, written: *mut u32);
    create_partition = "WHvCreatePartition": fn(partition: *mut WHV_PARTITION_HANDLE);
    setup_partition = "WHvSetupPartition": fn(partition: WHV_PARTITION_HANDLE);
    delete_partition = "WHvDeletePartition": fn(partition: WHV_PARTITION_HANDLE);
    set_partition_property = "WHvSetPartitionProperty":
        fn(partition: WHV_PARTITION_HANDLE, code: WHV_PARTITION_PROPERTY_CODE,
           buffer: *const c_void, size: u32);
    map_gpa_range = "WHvMapGpaRange":
        fn(partition: WHV_PARTITION_HANDLE, source: *const c_void, guest: u64, size: u64,
           flags: WHV_MAP_GPA_RANGE_FLAGS);
    query_dirty_bitmap = "WHvQueryGpaRangeDirtyBitmap":
        fn(partition: WHV_PARTITION_HANDLE, guest: u64, size: u64, bitmap: *mut u64,
           bitmap_size: u32);
    create_vcpu = "WHvCreateVirtualProcessor":
        fn(partition: WHV_PARTITION_HANDLE, index: u32, flags: u32);
    delete_vcpu = "WHvDeleteVirtualProcessor": fn(partition: WHV_PARTITION_HANDLE, index: u32);
    run_vcpu = "WHvRunVirtualProcessor":
        fn(partition: WHV_PARTITION_HANDLE, index: u32, exit: *mut c_void, size: u32);
    cancel_run = "WHvCancelRunVirtualProcessor":
        fn(partition: WHV_PARTITION_HANDLE, index: u32, flags: u32);
    request_interrupt = "WHvRequestInterrupt":
        fn(partition: WHV_PARTITION_HANDLE, interrupt: *const WHV_INTERRUPT_CONTROL, size: u32);
    translate = "WHvTranslateGva":
        fn(partition: WHV_PARTITION_HANDLE, index: u32, linear: u64,
           flags: WHV_TRANSLATE_GVA_FLAGS, result: *mut WHV_TRANSLATE_GVA_RESULT,
           physical: *mut u64);
    get_registers = "WHvGetVirtualProcessorRegisters":
        fn(partition: WHV_PARTITION_HANDLE, index: u32, names: *const WHV_REGISTER_NAME,
           count: u32, values: *mut WHV_REGISTER_VALUE);
    set_registers = "WHvSetVirtualProcessorRegisters":
        fn(partition: WHV_PARTITION_HANDLE, index: u32, names: *const WHV_REGISTER_NAME,
           count: u32, values: *const WHV_REGISTER_VALUE);
    get_xsave = "WHvGetVirtualProcessorXsaveState":
        fn(partition: WHV_PARTITION_HANDLE, index: u32, buffer: *mut c_void, size: u32,
           written: *mut u32);
    set_xsave = "WHvSetVirtualProcessorXsaveState":
        fn(partition: WHV_PARTITION_HANDLE, index: u32, buffer: *const c_void, size: u32);
    get_apic = "WHvGetVirtualProcessorInterruptControllerState2":
        fn(partition: WHV_PARTITION_HANDLE, index: u32, buffer: *mut c_void, size: u32,
           written: *mut u32);
    set_apic = "WHvSetVirtualProcessorInterruptControllerState2":
        fn(partition: WHV_PARTITION_HANDLE, index: u32, buffer: *const c_void, size: u32);
}

// SAFETY: the module handle is only used to unload the library, and the functions may be called from
// any thread.
unsafe impl Send for Library {}
// SAFETY: as above.
unsafe impl Sync for Library {}

impl Library {
    /// Whether the hypervisor runs.
    pub(super) fn hypervisor_present(&self) -> Result<bool, SystemError> {
        Ok(self.capability::<u32>(WHvCapabilityCodeHypervisorPresent)? != 0)
    }

    /// A capability that is a number.
    pub(super) fn capability<T: Default>(
        &self,
        code: WHV_CAPABILITY_CODE,
    ) -> Result<T, SystemError> {
        let mut value = T::default();
        let mut written = 0;
        // SAFETY: the buffer has the size that is given, and lives until the call returns.
        let result = unsafe {
            (self.get_capability)(
                code,
                (&raw mut value).cast(),
                size_of::<T>() as u32,
                &raw mut written,
            )
        };
        checked("WHvGetCapability", result)?;
        Ok(value)
    }
}

impl Drop for Library {
    fn drop(&mut self) {
        // SAFETY: whoever uses its functions holds this value.
        unsafe { FreeLibrary(self.module) };
    }
}

/// The failure that a call reported, if it did. An HRESULT made of a Win32 code becomes that code.
pub(super) fn checked(call: &'static str, result: HRESULT) -> Result<(), SystemError> {
    const WIN32: u32 = 0x8007_0000;
    if result >= 0 {
        return Ok(());
    }
    let bits = result.cast_unsigned();
    let code = match bits & 0xffff_0000 {
        WIN32 => (bits & 0xffff).cast_signed(),
        _ => result,
    };
    Err(SystemError {
        call,
        source: io::Error::from_raw_os_error(code),
    })
}
