/// Saved state of kind `nvx.generation-id`, version 1.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct GenerationIdState {
    /// The ID at capture, 16 bytes.
    #[prost(bytes = "vec", tag = "1")]
    pub(super) id: Vec<u8>,
}
