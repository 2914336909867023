/// Saved state of kind `nvx.uart-16550`, version 1.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct UartState {
    /// Interrupt enable register, 4 bits.
    #[prost(uint32, tag = "1")]
    pub(super) interrupt_enable: u32,
    /// The FIFOs are switched on.
    #[prost(bool, tag = "2")]
    pub(super) fifos_on: bool,
    /// Line control register.
    #[prost(uint32, tag = "3")]
    pub(super) line_control: u32,
    /// Modem control register, 5 bits.
    #[prost(uint32, tag = "4")]
    pub(super) modem_control: u32,
    /// Scratch register.
    #[prost(uint32, tag = "5")]
    pub(super) scratch: u32,
    /// Divisor of the clock, 16 bits.
    #[prost(uint32, tag = "6")]
    pub(super) divisor: u32,
    /// The guest has still to be told that the transmitter is empty.
    #[prost(bool, tag = "7")]
    pub(super) transmitter_news: bool,
    /// Bytes that came back in loop-back and were not read, at most 16.
    #[prost(bytes = "vec", tag = "8")]
    pub(super) looped_back: Vec<u8>,
    /// Bytes of input that the guest has read since power-on.
    #[prost(uint64, tag = "9")]
    pub(super) received_bytes: u64,
}
