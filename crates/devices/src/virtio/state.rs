/// Saved state of one queue.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct QueueState {
    /// Entries, a power of two.
    #[prost(uint32, tag = "1")]
    pub(super) size: u32,
    /// The driver has made it ready.
    #[prost(bool, tag = "2")]
    pub(super) ready: bool,
    /// Guest address of the descriptor table.
    #[prost(uint64, tag = "3")]
    pub(super) descriptor_table: u64,
    /// Guest address of the ring of available chains.
    #[prost(uint64, tag = "4")]
    pub(super) available_ring: u64,
    /// Guest address of the ring of used chains.
    #[prost(uint64, tag = "5")]
    pub(super) used_ring: u64,
    /// Index of the next available entry that the device takes, 16 bits.
    #[prost(uint32, tag = "6")]
    pub(super) next_available: u32,
    /// Index of the next used entry that the device writes, 16 bits.
    #[prost(uint32, tag = "7")]
    pub(super) next_used: u32,
}

/// Saved state of the transport, version 1, whatever the device's kind.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct TransportState {
    /// Device status register.
    #[prost(uint32, tag = "1")]
    pub(super) status: u32,
    /// Which word of the device's features is shown.
    #[prost(uint32, tag = "2")]
    pub(super) device_features_word: u32,
    /// Which word of the driver's features is written.
    #[prost(uint32, tag = "3")]
    pub(super) driver_features_word: u32,
    /// Features that the driver has accepted.
    #[prost(uint64, tag = "4")]
    pub(super) driver_features: u64,
    /// Which queue the queue registers show.
    #[prost(uint32, tag = "5")]
    pub(super) selected_queue: u32,
    /// Interrupt status register.
    #[prost(uint32, tag = "6")]
    pub(super) interrupt_status: u32,
    /// The queues in order.
    #[prost(message, repeated, tag = "7")]
    pub(super) queues: Vec<QueueState>,
}
