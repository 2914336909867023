//! The exported functions: pointers become values here and nowhere else.

use std::ffi::c_void;
use std::slice;

use windows_sys::Win32::System::Hypervisor::{
    WHV_CAPABILITY_CODE, WHV_INTERRUPT_CONTROL, WHV_MAP_GPA_RANGE_FLAGS, WHV_PARTITION_HANDLE,
    WHV_PARTITION_PROPERTY_CODE, WHV_REGISTER_NAME, WHV_REGISTER_VALUE, WHV_RUN_VP_EXIT_CONTEXT,
    WHV_TRANSLATE_GVA_FLAGS, WHV_TRANSLATE_GVA_RESULT, WHvCapabilityCodeFeatures,
    WHvCapabilityCodeHypervisorPresent, WHvCapabilityCodeProcessorClockFrequency,
    WHvTranslateGvaResultGpaUnmapped, WHvTranslateGvaResultSuccess,
};
use windows_sys::core::HRESULT;

use crate::partition::{self, Range};
use crate::refuse;

const OK: HRESULT = 0;
/// `WHV_CAPABILITY_FEATURES`: partial unmap, local APIC, XSAVE, dirty pages.
const FEATURES: u64 = 0xf;
/// The software CPU's time-stamp counter counts nanoseconds.
const CLOCK_HZ: u64 = 1_000_000_000;

/// Writes a value to a buffer that must have its size exactly.
///
/// # Safety
/// `buffer` is null or has `size` bytes, and `written` is null or to a number.
unsafe fn put<T>(call: &str, buffer: *mut c_void, size: u32, written: *mut u32, value: T) {
    if size as usize != size_of::<T>() || buffer.is_null() || written.is_null() {
        refuse(call, &format!("a buffer of {size} bytes"));
    }
    // SAFETY: the caller's buffer has the size of a `T`; it need not be aligned.
    unsafe {
        buffer.cast::<T>().write_unaligned(value);
        written.write(size);
    }
}

// SAFETY: the contract is that of Microsoft's function of this name, as for every export here.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn WHvGetCapability(
    code: WHV_CAPABILITY_CODE,
    buffer: *mut c_void,
    size: u32,
    written: *mut u32,
) -> HRESULT {
    const CALL: &str = "WHvGetCapability";
    // SAFETY: the caller's buffer has the size that it says.
    unsafe {
        match code {
            WHvCapabilityCodeHypervisorPresent => put(CALL, buffer, size, written, 1_u32),
            WHvCapabilityCodeFeatures => put(CALL, buffer, size, written, FEATURES),
            WHvCapabilityCodeProcessorClockFrequency => put(CALL, buffer, size, written, CLOCK_HZ),
            other => refuse(CALL, &format!("capability {other:#x}")),
        }
    }
    OK
}

// SAFETY: see WHvGetCapability.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn WHvCreatePartition(handle: *mut WHV_PARTITION_HANDLE) -> HRESULT {
    // SAFETY: the caller's pointer is to a handle.
    unsafe { handle.write(partition::create()) };
    OK
}

// SAFETY: see WHvGetCapability.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn WHvSetupPartition(handle: WHV_PARTITION_HANDLE) -> HRESULT {
    partition::find("WHvSetupPartition", handle).set_up();
    OK
}

// SAFETY: see WHvGetCapability.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn WHvDeletePartition(handle: WHV_PARTITION_HANDLE) -> HRESULT {
    partition::delete(handle);
    OK
}

// SAFETY: see WHvGetCapability.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn WHvSetPartitionProperty(
    handle: WHV_PARTITION_HANDLE,
    code: WHV_PARTITION_PROPERTY_CODE,
    buffer: *const c_void,
    size: u32,
) -> HRESULT {
    // SAFETY: the caller's buffer has the size that it says.
    let bytes = unsafe { slice::from_raw_parts(buffer.cast::<u8>(), size as usize) };
    partition::find("WHvSetPartitionProperty", handle).set_property(code, bytes);
    OK
}

// SAFETY: see WHvGetCapability.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn WHvMapGpaRange(
    handle: WHV_PARTITION_HANDLE,
    source: *const c_void,
    guest: u64,
    size_bytes: u64,
    flags: WHV_MAP_GPA_RANGE_FLAGS,
) -> HRESULT {
    partition::find("WHvMapGpaRange", handle).map(Range {
        guest,
        host: source.expose_provenance(),
        size_bytes,
        flags,
    });
    OK
}

// SAFETY: see WHvGetCapability.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn WHvQueryGpaRangeDirtyBitmap(
    handle: WHV_PARTITION_HANDLE,
    guest: u64,
    size_bytes: u64,
    bitmap: *mut u64,
    bitmap_bytes: u32,
) -> HRESULT {
    // SAFETY: the caller's bitmap has the size that it says.
    let words = unsafe { slice::from_raw_parts_mut(bitmap, bitmap_bytes as usize / 8) };
    partition::find("WHvQueryGpaRangeDirtyBitmap", handle).dirty_pages(guest, size_bytes, words);
    OK
}

// SAFETY: see WHvGetCapability.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn WHvCreateVirtualProcessor(
    handle: WHV_PARTITION_HANDLE,
    index: u32,
    flags: u32,
) -> HRESULT {
    if flags != 0 {
        refuse("WHvCreateVirtualProcessor", "flags");
    }
    partition::find("WHvCreateVirtualProcessor", handle).create_vcpu(index);
    OK
}

// SAFETY: see WHvGetCapability.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn WHvDeleteVirtualProcessor(
    handle: WHV_PARTITION_HANDLE,
    index: u32,
) -> HRESULT {
    partition::find("WHvDeleteVirtualProcessor", handle).delete_vcpu(index);
    OK
}

// SAFETY: see WHvGetCapability.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn WHvRunVirtualProcessor(
    handle: WHV_PARTITION_HANDLE,
    index: u32,
    exit: *mut c_void,
    size: u32,
) -> HRESULT {
    const CALL: &str = "WHvRunVirtualProcessor";
    if size as usize != size_of::<WHV_RUN_VP_EXIT_CONTEXT>() {
        refuse(CALL, &format!("an exit context of {size} bytes"));
    }
    let context = partition::find(CALL, handle).vcpu(CALL, index).run();
    // SAFETY: the caller's buffer has the size of the structure.
    unsafe { exit.cast::<WHV_RUN_VP_EXIT_CONTEXT>().write(context) };
    OK
}

// SAFETY: see WHvGetCapability.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn WHvCancelRunVirtualProcessor(
    handle: WHV_PARTITION_HANDLE,
    index: u32,
    flags: u32,
) -> HRESULT {
    const CALL: &str = "WHvCancelRunVirtualProcessor";
    if flags != 0 {
        refuse(CALL, "flags");
    }
    partition::find(CALL, handle).vcpu(CALL, index).cancel();
    OK
}

// SAFETY: see WHvGetCapability.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn WHvGetVirtualProcessorRegisters(
    handle: WHV_PARTITION_HANDLE,
    index: u32,
    names: *const WHV_REGISTER_NAME,
    count: u32,
    values: *mut WHV_REGISTER_VALUE,
) -> HRESULT {
    const CALL: &str = "WHvGetVirtualProcessorRegisters";
    // SAFETY: the caller's arrays have the length that it says.
    let (names, values) = unsafe {
        (
            slice::from_raw_parts(names, count as usize),
            slice::from_raw_parts_mut(values, count as usize),
        )
    };
    let vcpu = partition::find(CALL, handle).vcpu(CALL, index);
    for (name, value) in names.iter().zip(values) {
        *value = vcpu.get(*name);
    }
    OK
}

// SAFETY: see WHvGetCapability.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn WHvSetVirtualProcessorRegisters(
    handle: WHV_PARTITION_HANDLE,
    index: u32,
    names: *const WHV_REGISTER_NAME,
    count: u32,
    values: *const WHV_REGISTER_VALUE,
) -> HRESULT {
    const CALL: &str = "WHvSetVirtualProcessorRegisters";
    // SAFETY: the caller's arrays have the length that it says.
    let (names, values) = unsafe {
        (
            slice::from_raw_parts(names, count as usize),
            slice::from_raw_parts(values, count as usize),
        )
    };
    let vcpu = partition::find(CALL, handle).vcpu(CALL, index);
    for (name, value) in names.iter().zip(values) {
        vcpu.set(*name, value);
    }
    OK
}

// SAFETY: see WHvGetCapability.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn WHvRequestInterrupt(
    handle: WHV_PARTITION_HANDLE,
    interrupt: *const WHV_INTERRUPT_CONTROL,
    size: u32,
) -> HRESULT {
    const CALL: &str = "WHvRequestInterrupt";
    if size as usize != size_of::<WHV_INTERRUPT_CONTROL>() {
        refuse(CALL, &format!("a structure of {size} bytes"));
    }
    // SAFETY: the caller's structure has the size that it says.
    let control = unsafe { interrupt.read() };
    // The type (fixed or lowest priority), the destination mode (physical), the trigger mode.
    let is_level = match control._bitfield {
        0 | 1 => false,
        0x1000 | 0x1001 => true,
        other => refuse(CALL, &format!("type and modes {other:#x}")),
    };
    let Ok(vector) = u8::try_from(control.Vector) else {
        refuse(CALL, &format!("vector {:#x}", control.Vector));
    };
    partition::find(CALL, handle).request_interrupt(control.Destination, vector, is_level);
    OK
}

// SAFETY: see WHvGetCapability.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn WHvTranslateGva(
    handle: WHV_PARTITION_HANDLE,
    index: u32,
    linear: u64,
    flags: WHV_TRANSLATE_GVA_FLAGS,
    result: *mut WHV_TRANSLATE_GVA_RESULT,
    physical: *mut u64,
) -> HRESULT {
    const CALL: &str = "WHvTranslateGva";
    let partition = partition::find(CALL, handle);
    partition.vcpu(CALL, index);
    // For reading or for writing, and the page tables' bits are set.
    if !matches!(flags, 0x11 | 0x12) {
        refuse(CALL, &format!("flags {flags:#x}"));
    }
    // Guests here have no paging.
    let code = match partition.is_mapped(linear) {
        true => WHvTranslateGvaResultSuccess,
        false => WHvTranslateGvaResultGpaUnmapped,
    };
    // SAFETY: the caller's pointers are to a structure and a number.
    unsafe {
        result.write(WHV_TRANSLATE_GVA_RESULT {
            ResultCode: code,
            Reserved: 0,
        });
        physical.write(linear);
    }
    OK
}

/// Copies an area out; one that does not fit is not an error but tells its size.
///
/// # Safety
/// `buffer` has `size` bytes, and `written` is to a number.
unsafe fn get_area(area: &[u8], buffer: *mut c_void, size: u32, written: *mut u32) -> HRESULT {
    /// `WHV_E_INSUFFICIENT_BUFFER`.
    const INSUFFICIENT_BUFFER: HRESULT = 0x8037_0301_u32.cast_signed();
    // SAFETY: the caller's buffer has the size that it says.
    unsafe {
        written.write(area.len() as u32);
        if (size as usize) < area.len() {
            return INSUFFICIENT_BUFFER;
        }
        buffer
            .cast::<u8>()
            .copy_from_nonoverlapping(area.as_ptr(), area.len());
    }
    OK
}

// SAFETY: see WHvGetCapability.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn WHvGetVirtualProcessorXsaveState(
    handle: WHV_PARTITION_HANDLE,
    index: u32,
    buffer: *mut c_void,
    size: u32,
    written: *mut u32,
) -> HRESULT {
    const CALL: &str = "WHvGetVirtualProcessorXsaveState";
    let area = partition::find(CALL, handle).vcpu(CALL, index).xsave();
    // SAFETY: as the caller promises.
    unsafe { get_area(&area, buffer, size, written) }
}

// SAFETY: see WHvGetCapability.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn WHvSetVirtualProcessorXsaveState(
    handle: WHV_PARTITION_HANDLE,
    index: u32,
    buffer: *const c_void,
    size: u32,
) -> HRESULT {
    const CALL: &str = "WHvSetVirtualProcessorXsaveState";
    // SAFETY: the caller's buffer has the size that it says.
    let bytes = unsafe { slice::from_raw_parts(buffer.cast::<u8>(), size as usize) };
    partition::find(CALL, handle)
        .vcpu(CALL, index)
        .set_xsave(bytes);
    OK
}

// SAFETY: see WHvGetCapability.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn WHvGetVirtualProcessorInterruptControllerState2(
    handle: WHV_PARTITION_HANDLE,
    index: u32,
    buffer: *mut c_void,
    size: u32,
    written: *mut u32,
) -> HRESULT {
    const CALL: &str = "WHvGetVirtualProcessorInterruptControllerState2";
    let area = partition::find(CALL, handle).vcpu(CALL, index).apic();
    // SAFETY: as the caller promises.
    unsafe { get_area(&area, buffer, size, written) }
}

// SAFETY: see WHvGetCapability.
#[unsafe(no_mangle)]
pub unsafe extern "system" fn WHvSetVirtualProcessorInterruptControllerState2(
    handle: WHV_PARTITION_HANDLE,
    index: u32,
    buffer: *const c_void,
    size: u32,
) -> HRESULT {
    const CALL: &str = "WHvSetVirtualProcessorInterruptControllerState2";
    // SAFETY: the caller's buffer has the size that it says.
    let bytes = unsafe { slice::from_raw_parts(buffer.cast::<u8>(), size as usize) };
    partition::find(CALL, handle)
        .vcpu(CALL, index)
        .set_apic(bytes);
    OK
}
