/// Saved state of kind `nvx.snapshot-port`, version 1.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct SnapshotPortState {
    /// Value that a read of the port gives, 0 to 3.
    #[prost(uint32, tag = "1")]
    pub(super) outcome: u32,
    /// The guest was restored before and has not read so yet.
    #[prost(bool, tag = "2")]
    pub(super) notice_pending: bool,
}
