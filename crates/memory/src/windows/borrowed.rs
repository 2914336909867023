//! Guest RAM that another part of the process has mapped.

#![expect(unsafe_code, reason = "the memory is known by its addresses only")]

use std::ptr::NonNull;

use super::RangeView;
use crate::guest_memory::{GuestMemory, Source};
use crate::layout::RamLayout;

impl GuestMemory {
    /// RAM over memory that somebody else has mapped, one address for each range of the layout. It counts
    /// as anonymous. For a hypervisor's stand-in, which is given RAM as a hypervisor is.
    ///
    /// # Safety
    /// There is an address for each range; it is page aligned, and as many bytes as the range has stay
    /// mapped writable there for as long as the value lives.
    pub unsafe fn borrowed(layout: RamLayout, starts: &[NonNull<u8>]) -> Self {
        let views = layout.ranges().iter().zip(starts);
        let views = views
            // SAFETY: as the caller promises.
            .map(|(range, start)| unsafe { RangeView::borrowed(*start, range.size_bytes as usize) })
            .collect();
        Self::of_views(layout, Source::Anonymous, views)
    }
}
