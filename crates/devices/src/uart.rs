//! Serial port: a 16550A (National Semiconductor, PC16550D data sheet), as every stock kernel drives it.
//!
//! The transmitter is never busy: a byte written goes to the back end at once, so the guest never waits
//! for it. The receiver is the back end's queue; a byte is in the receive buffer from when the back end has
//! one until the guest reads it.
//!
//! The receiver holds bytes back in two cases, so that none is lost on the way to a program in the guest:
//! - while the guest has not enabled the receive interrupt: an opening driver clears the receiver by
//!   reading from it, which would swallow the first bytes of input that was there before the guest;
//! - while the guest does not request to send (RTS): a driver with hardware flow control (`stty crtscts`)
//!   drops RTS when its reader falls behind.
//!
//! There is no second clock: line errors, breaks and modem changes do not happen.

mod state;

use std::collections::VecDeque;

use crate::device::{Device, Effect, PortDevice, RestoreError, SavedUnit, UnitFormat};
use crate::interrupt::InterruptLine;
use crate::numbers::FLOATING;
use state::UartState;

/// Bound of a saved state in bytes.
const MAX_STATE_BYTES: usize = 256;
/// Kind of the saved state.
const KIND: &str = "nvx.uart-16550";
/// Bytes of the receive FIFO, which bound what a loop-back keeps.
const FIFO_BYTES: usize = 16;

/// Receive buffer (read) and transmit buffer (write); divisor, low byte, while DLAB is set.
const DATA: u16 = 0;
/// Interrupt enable; divisor, high byte, while DLAB is set.
const INTERRUPT_ENABLE: u16 = 1;
/// Interrupt identification (read) and FIFO control (write).
const INTERRUPT_ID: u16 = 2;
const LINE_CONTROL: u16 = 3;
const MODEM_CONTROL: u16 = 4;
const LINE_STATUS: u16 = 5;
const MODEM_STATUS: u16 = 6;
const SCRATCH: u16 = 7;

const ENABLE_RECEIVED: u8 = 1 << 0;
const ENABLE_TRANSMITTER_EMPTY: u8 = 1 << 1;
const ENABLE_BITS: u8 = 0x0f;

const ID_NONE: u8 = 0x01;
const ID_TRANSMITTER_EMPTY: u8 = 0x02;
const ID_RECEIVED: u8 = 0x04;
const ID_FIFOS_ON: u8 = 0xc0;

const FIFO_ENABLE: u8 = 1 << 0;
const FIFO_CLEAR_RECEIVER: u8 = 1 << 1;

const LINE_CONTROL_DLAB: u8 = 1 << 7;

const MODEM_CONTROL_RTS: u8 = 1 << 1;
const MODEM_CONTROL_LOOP: u8 = 1 << 4;
const MODEM_CONTROL_BITS: u8 = 0x1f;

const STATUS_DATA_READY: u8 = 1 << 0;
/// Transmit buffer and shift register are empty.
const STATUS_TRANSMITTER_EMPTY: u8 = 0x60;

/// Carrier, data set ready and clear to send: the other side is always there.
const MODEM_READY: u8 = 0xb0;

/// 9600 baud from 1.8432 MHz: what firmware usually leaves behind.
const RESET_DIVISOR: u16 = 12;

/// Where a serial port's bytes come from and go to. No call may block.
pub trait SerialIo: Send {
    /// Whether [`take_input`](Self::take_input) has a byte.
    fn input_pending(&mut self) -> bool;
    /// Takes the next byte of input.
    fn take_input(&mut self) -> Option<u8>;
    /// Takes output of the guest.
    fn write_output(&mut self, bytes: &[u8]);
    /// The guest has written what it had to write for now.
    fn output_pauses(&mut self);
}

/// A serial port.
pub struct Uart {
    format: UnitFormat,
    base_port: u16,
    io: Box<dyn SerialIo>,
    line: Box<dyn InterruptLine>,
    interrupt_enable: u8,
    fifos_on: bool,
    line_control: u8,
    modem_control: u8,
    scratch: u8,
    divisor: u16,
    /// The transmitter became empty, and the guest has not been told yet.
    transmitter_news: bool,
    /// Bytes that the guest sent to itself in loop-back.
    looped_back: VecDeque<u8>,
    /// Bytes of input that the guest has read.
    received_bytes: u64,
    /// Level of the interrupt line.
    asserted: bool,
}

impl Uart {
    /// A serial port at `base_port` with `name` in the device inventory, as it is after power-on.
    #[must_use]
    pub fn new(
        name: &'static str,
        base_port: u16,
        io: Box<dyn SerialIo>,
        line: Box<dyn InterruptLine>,
    ) -> Self {
        Self {
            format: UnitFormat {
                name,
                kind: KIND,
                version: 1,
                max_bytes: MAX_STATE_BYTES,
            },
            base_port,
            io,
            line,
            interrupt_enable: 0,
            fifos_on: false,
            line_control: 0,
            modem_control: 0,
            scratch: 0,
            divisor: RESET_DIVISOR,
            transmitter_news: false,
            looped_back: VecDeque::new(),
            received_bytes: 0,
            asserted: false,
        }
    }

    /// Tells the guest about input, if the back end has some. To be called when it may have come.
    pub fn input_arrived(&mut self) {
        self.update_line();
    }

    /// Bytes of input that the guest has read since power-on, captures and restores included.
    #[must_use]
    pub fn received_bytes(&self) -> u64 {
        self.received_bytes
    }

    /// Sets the interrupt line's level again: a restored interrupt chip has forgotten it.
    pub fn assert_line_again(&mut self) {
        self.asserted = false;
        self.update_line();
    }

    fn loops_back(&self) -> bool {
        self.modem_control & MODEM_CONTROL_LOOP != 0
    }

    fn receives(&self) -> bool {
        self.interrupt_enable & ENABLE_RECEIVED != 0 && self.modem_control & MODEM_CONTROL_RTS != 0
    }

    fn data_ready(&mut self) -> bool {
        if self.loops_back() {
            !self.looped_back.is_empty()
        } else {
            self.receives() && self.io.input_pending()
        }
    }

    fn interrupt_id(&mut self) -> u8 {
        if self.interrupt_enable & ENABLE_RECEIVED != 0 && self.data_ready() {
            ID_RECEIVED
        } else if self.interrupt_enable & ENABLE_TRANSMITTER_EMPTY != 0 && self.transmitter_news {
            ID_TRANSMITTER_EMPTY
        } else {
            ID_NONE
        }
    }

    fn update_line(&mut self) {
        let wanted = self.interrupt_id() != ID_NONE;
        if wanted != self.asserted {
            self.asserted = wanted;
            self.line.set(wanted);
        }
    }

    fn divisor_is_accessed(&self) -> bool {
        self.line_control & LINE_CONTROL_DLAB != 0
    }

    fn receive(&mut self) -> u8 {
        let byte = if self.loops_back() {
            self.looped_back.pop_front()
        } else if self.receives() {
            let taken = self.io.take_input();
            self.received_bytes += u64::from(taken.is_some());
            taken
        } else {
            None
        };
        self.update_line();
        byte.unwrap_or(0)
    }

    fn transmit(&mut self, byte: u8) {
        if self.loops_back() {
            if self.looped_back.len() < FIFO_BYTES {
                self.looped_back.push_back(byte);
            }
        } else {
            self.io.write_output(&[byte]);
        }
        self.transmitter_news = true;
        self.update_line();
    }

    fn identify_interrupt(&mut self) -> u8 {
        let id = self.interrupt_id();
        if id == ID_TRANSMITTER_EMPTY {
            // Reading the register is how the guest takes this one.
            self.transmitter_news = false;
            self.update_line();
        }
        id | if self.fifos_on { ID_FIFOS_ON } else { 0 }
    }

    fn set_interrupt_enable(&mut self, value: u8) {
        let value = value & ENABLE_BITS;
        let newly_enabled = value & !self.interrupt_enable;
        self.interrupt_enable = value;
        if newly_enabled & ENABLE_TRANSMITTER_EMPTY != 0 {
            self.transmitter_news = true;
        }
        self.update_line();
        // A driver changes this register when it begins and when it has done.
        self.io.output_pauses();
    }

    fn control_fifos(&mut self, value: u8) {
        self.fifos_on = value & FIFO_ENABLE != 0;
        if value & FIFO_CLEAR_RECEIVER != 0 {
            self.looped_back.clear();
        }
        self.update_line();
    }

    fn modem_status(&self) -> u8 {
        if !self.loops_back() {
            return MODEM_READY;
        }
        // DTR, RTS, OUT1 and OUT2 come back as DSR, CTS, RI and DCD.
        let outputs = self.modem_control;
        (outputs & 0x0c) << 4 | (outputs & 0x02) << 3 | (outputs & 0x01) << 5
    }
}

impl Device for Uart {
    fn name(&self) -> &'static str {
        self.format.name
    }

    fn save(&self) -> SavedUnit {
        let Self {
            format,
            base_port: _,
            io: _,
            line: _,
            interrupt_enable,
            fifos_on,
            line_control,
            modem_control,
            scratch,
            divisor,
            transmitter_news,
            looped_back,
            received_bytes,
            // Follows from the rest.
            asserted: _,
        } = self;
        format.encode(&UartState {
            interrupt_enable: u32::from(*interrupt_enable),
            fifos_on: *fifos_on,
            line_control: u32::from(*line_control),
            modem_control: u32::from(*modem_control),
            scratch: u32::from(*scratch),
            divisor: u32::from(*divisor),
            transmitter_news: *transmitter_news,
            looped_back: looped_back.iter().copied().collect(),
            received_bytes: *received_bytes,
        })
    }

    fn restore(&mut self, kind: &str, version: u32, bytes: &[u8]) -> Result<(), RestoreError> {
        let format = &self.format;
        let UartState {
            interrupt_enable,
            fifos_on,
            line_control,
            modem_control,
            scratch,
            divisor,
            transmitter_news,
            looped_back,
            received_bytes,
        } = format.decode(kind, version, bytes)?;
        let interrupt_enable = format.bits("interrupt_enable", interrupt_enable, ENABLE_BITS)?;
        let line_control = format.byte("line_control", line_control)?;
        let modem_control = format.bits("modem_control", modem_control, MODEM_CONTROL_BITS)?;
        let scratch = format.byte("scratch", scratch)?;
        let divisor =
            u16::try_from(divisor).map_err(|_| format.impossible("divisor", u64::from(divisor)))?;
        if looped_back.len() > FIFO_BYTES {
            return Err(format.impossible("looped_back", looped_back.len() as u64));
        }
        self.interrupt_enable = interrupt_enable;
        self.fifos_on = fifos_on;
        self.line_control = line_control;
        self.modem_control = modem_control;
        self.scratch = scratch;
        self.divisor = divisor;
        self.transmitter_news = transmitter_news;
        self.looped_back = looped_back.into();
        self.received_bytes = received_bytes;
        Ok(())
    }
}

impl PortDevice for Uart {
    fn read(&mut self, port: u16) -> u8 {
        let [divisor_low, divisor_high] = self.divisor.to_le_bytes();
        match port.wrapping_sub(self.base_port) {
            DATA if self.divisor_is_accessed() => divisor_low,
            INTERRUPT_ENABLE if self.divisor_is_accessed() => divisor_high,
            DATA => self.receive(),
            INTERRUPT_ENABLE => self.interrupt_enable,
            INTERRUPT_ID => self.identify_interrupt(),
            LINE_CONTROL => self.line_control,
            MODEM_CONTROL => self.modem_control,
            LINE_STATUS if self.data_ready() => STATUS_TRANSMITTER_EMPTY | STATUS_DATA_READY,
            LINE_STATUS => STATUS_TRANSMITTER_EMPTY,
            MODEM_STATUS => self.modem_status(),
            SCRATCH => self.scratch,
            _ => FLOATING,
        }
    }

    fn write(&mut self, port: u16, value: u8) -> Effect {
        let [divisor_low, divisor_high] = self.divisor.to_le_bytes();
        match port.wrapping_sub(self.base_port) {
            DATA if self.divisor_is_accessed() => {
                self.divisor = u16::from_le_bytes([value, divisor_high]);
            }
            INTERRUPT_ENABLE if self.divisor_is_accessed() => {
                self.divisor = u16::from_le_bytes([divisor_low, value]);
            }
            DATA => self.transmit(value),
            INTERRUPT_ENABLE => self.set_interrupt_enable(value),
            INTERRUPT_ID => self.control_fifos(value),
            LINE_CONTROL => self.line_control = value,
            MODEM_CONTROL => {
                self.modem_control = value & MODEM_CONTROL_BITS;
                // Input that was held back may come now.
                self.update_line();
            }
            SCRATCH => self.scratch = value,
            // Both status registers can only be read.
            _ => {}
        }
        Effect::None
    }
}

#[cfg(test)]
mod tests;
