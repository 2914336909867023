//! A model of a file on a file system that keeps a valid data length.
//!
//! The file has an allocation size, a file size and a valid data length, all in pages. A page behind
//! the valid data length reads as zeros without being on the device. A write that starts behind the
//! valid data length first writes zeros from there up to itself; then the valid data length is the end
//! of the write. Every page that goes to the device is counted.
//!
//! The dirty pages are in a cache in front of the file, as a mapped file's are: a page that is filled
//! with zeros on the device keeps its content in the cache, and is written again when its turn comes.
//! That is the double writing that the model is about.

#![allow(dead_code, reason = "each test file uses a part")]

use nvx_memory::{PAGE_SIZE_BYTES, Plan};

/// The content of a page: a number, 0 for zeros.
pub type Content = u32;

/// The file as it is on the device, and the cache in front of it.
#[derive(Clone, Debug)]
pub struct ValidDataFile {
    allocation_pages: u64,
    valid_pages: u64,
    /// What is on the device, and what reads as zeros behind the valid data length. As long as the file.
    stored: Vec<Content>,
    /// How often each page was written to the device.
    writes: Vec<u32>,
    /// Modified pages that are not on the device.
    cache: Vec<Option<Content>>,
}

impl ValidDataFile {
    /// A new file: allocated, and nothing of it valid.
    pub fn new(file_pages: u64, allocation_pages: u64) -> Self {
        assert!(file_pages <= allocation_pages);
        let length = file_pages as usize;
        Self {
            allocation_pages,
            valid_pages: 0,
            stored: vec![0; length],
            writes: vec![0; length],
            cache: vec![None; length],
        }
    }

    /// A file that has been written in full before, with zeros.
    pub fn fully_valid(file_pages: u64) -> Self {
        Self {
            valid_pages: file_pages,
            ..Self::new(file_pages, file_pages)
        }
    }

    /// The guest stores.
    pub fn store(&mut self, page: u64, content: Content) {
        self.cache[page as usize] = Some(content);
    }

    /// What a reader sees: the cache, else the device.
    pub fn read(&self, page: u64) -> Content {
        self.cache[page as usize].unwrap_or(self.stored[page as usize])
    }

    /// All of the device's content.
    pub fn stored(&self) -> &[Content] {
        &self.stored
    }

    /// How often each page was written.
    pub fn writes(&self) -> &[u32] {
        &self.writes
    }

    /// Pages written altogether.
    pub fn total_writes(&self) -> u64 {
        self.writes.iter().map(|count| u64::from(*count)).sum()
    }

    /// Allocation size, file size and valid data length, in pages.
    pub fn sizes(&self) -> (u64, u64, u64) {
        (
            self.allocation_pages,
            self.stored.len() as u64,
            self.valid_pages,
        )
    }

    /// Marks every page modified, contents unchanged.
    pub fn mark_all(&mut self) {
        for page in 0..self.stored.len() as u64 {
            self.cache[page as usize] = Some(self.read(page));
        }
    }

    /// Writes a page of the cache to the device.
    fn write_out(&mut self, page: u64) {
        let Some(content) = self.cache[page as usize].take() else {
            return;
        };
        for gap in self.valid_pages..page {
            self.put(gap, 0);
        }
        self.put(page, content);
    }

    fn put(&mut self, page: u64, content: Content) {
        self.stored[page as usize] = content;
        self.writes[page as usize] += 1;
        self.valid_pages = self.valid_pages.max(page + 1);
        assert!(self.valid_pages <= self.allocation_pages);
    }

    /// Carries out a plan. `schedule` says which worker writes its next dirty page; it is taken modulo
    /// the number of workers that have something left, and is asked as often as there is.
    pub fn write_back(&mut self, plan: &Plan, mut schedule: impl FnMut() -> usize) {
        if plan.mark_every_page {
            self.mark_all();
        }
        let mut workers: Vec<_> = plan
            .workers
            .iter()
            .map(|flushes| {
                let pages = flushes.iter().flat_map(|extent| {
                    extent.offset_bytes / PAGE_SIZE_BYTES..extent.end_bytes() / PAGE_SIZE_BYTES
                });
                let dirty = pages.filter(|page| self.cache[*page as usize].is_some());
                dirty.collect::<std::collections::VecDeque<u64>>()
            })
            .collect();
        loop {
            workers.retain(|pages| !pages.is_empty());
            let Some(count) = std::num::NonZeroUsize::new(workers.len()) else {
                return;
            };
            if let Some(page) = workers[schedule() % count].pop_front() {
                self.write_out(page);
            }
        }
    }
}
