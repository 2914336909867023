/// Saved state of kind `nvx.shutdown`, version 1.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct ShutdownState {}
