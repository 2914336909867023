/// Saved state of kind `nvx.port-console`, version 1.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct ConsoleState {}
