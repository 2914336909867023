/// Saved state of kind `nvx.cmos-rtc`, version 1.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct RtcState {
    /// Last byte written to the index port, NMI bit included.
    #[prost(uint32, tag = "1")]
    pub(super) index: u32,
    /// Status register B.
    #[prost(uint32, tag = "2")]
    pub(super) status_b: u32,
    /// All 128 bytes of CMOS memory; those of time and status registers are zero.
    #[prost(bytes = "vec", tag = "3")]
    pub(super) memory: Vec<u8>,
}
