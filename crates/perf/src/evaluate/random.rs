//! Seeded random numbers: the same draws on every machine.

/// SplitMix64, as published by Steele, Lea and Flood ("Fast splittable pseudorandom number
/// generators", 2014).
pub(crate) struct SplitMix64 {
    state: u64,
}

impl SplitMix64 {
    pub(crate) fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`; zero for a bound of zero.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        // The bias of a remainder is below 2^-50 for the small bounds here.
        (self.next() % (bound.max(1) as u64)) as usize
    }
}
