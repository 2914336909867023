//! Guest RAM.
//!
//! A [`RamLayout`] says where RAM lies, in the guest's addresses and in the RAM file.
//! [`GuestMemory`] maps it in one of three ways ([`ViewKind`]): a shared view of a [`RamFile`],
//! whose modified pages are brought to the file by *writeback* under a [`Strategy`]; a private
//! copy-on-write view of a snapshot's memory; or anonymous memory. RAM that is not itself the file
//! to be published is written to one by [`GuestMemory::copy_to`].
//!
//! The guest changes RAM at any moment. So there is no reference into it anywhere: bytes are copied
//! in and out by volatile accesses that are checked against the layout, and writes are noted in a
//! *dirty set* together with the hypervisor's own logs.

mod backing;
mod choice;
mod copy;
mod dirty;
mod extents;
mod fault_table;
mod guest_memory;
mod layout;
#[cfg(target_os = "linux")]
mod linux;
mod ram_file;
mod volatile;
#[cfg(windows)]
mod windows;
mod writeback;

#[cfg(target_os = "linux")]
use linux as os;
#[cfg(windows)]
use windows as os;

pub use choice::{
    ChosenStrategy, NoRamFile, RamFileChoice, StrategyReason, WritebackChoice, file_system_name,
};
pub use copy::{CopyError, CopyReport, Observer};
pub use dirty::{DirtyLogError, DirtySet};
pub use extents::{ExtentList, FileExtent};
pub use guest_memory::{AccessError, DiscardError, GuestMemory, HostRegion, MapError, ViewKind};
pub use layout::{
    FILE_OFFSET_ALIGNMENT_BYTES, GuestAddress, LayoutError, MAX_RANGES, PAGE_SIZE_BYTES, RamLayout,
    RamRange,
};
pub use os::storage::may_hold_data;
pub use ram_file::{RamFile, RamFileError, RamFileKind};
pub use writeback::{
    MAX_WORKERS, Plan, Strategy, UnknownStrategy, WorkerCount, WritebackError, WritebackReport,
};
