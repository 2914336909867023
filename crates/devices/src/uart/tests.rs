use std::sync::{Arc, Mutex};

use super::*;
use crate::device::restore;
use crate::interrupt::recorded::RecordedLine;
use crate::numbers::SERIAL_CONSOLE as BASE;

#[derive(Clone, Default)]
struct Io {
    input: Arc<Mutex<VecDeque<u8>>>,
    output: Arc<Mutex<Vec<u8>>>,
}

impl Io {
    fn push(&self, bytes: &[u8]) {
        self.input.lock().unwrap().extend(bytes);
    }

    fn output(&self) -> String {
        String::from_utf8(self.output.lock().unwrap().clone()).unwrap()
    }
}

impl SerialIo for Io {
    fn input_pending(&mut self) -> bool {
        !self.input.lock().unwrap().is_empty()
    }
    fn take_input(&mut self) -> Option<u8> {
        self.input.lock().unwrap().pop_front()
    }
    fn write_output(&mut self, bytes: &[u8]) {
        self.output.lock().unwrap().extend_from_slice(bytes);
    }
    fn output_pauses(&mut self) {
        self.output.lock().unwrap().push(b'|');
    }
}

struct Bench {
    uart: Uart,
    io: Io,
    line: RecordedLine,
}

impl Bench {
    fn new() -> Self {
        let (io, line) = (Io::default(), RecordedLine::default());
        Self {
            uart: Uart::new(
                "serial-console",
                BASE,
                Box::new(io.clone()),
                Box::new(line.clone()),
            ),
            io,
            line,
        }
    }

    fn read(&mut self, register: u16) -> u8 {
        self.uart.read(BASE + register)
    }

    fn write(&mut self, register: u16, value: u8) {
        assert_eq!(self.uart.write(BASE + register, value), Effect::None);
    }

    /// As an opening driver leaves it: DTR, RTS and OUT2, receive interrupts on.
    fn open(&mut self) {
        self.write(MODEM_CONTROL, 0x0b);
        self.write(INTERRUPT_ENABLE, 0x05);
    }
}

#[test]
fn it_is_recognized_as_a_16550a() {
    let mut bench = Bench::new();
    assert_eq!(bench.read(LINE_STATUS), 0x60);
    assert_eq!(bench.read(MODEM_STATUS), 0xb0);
    // The interrupt enable register has four bits, no more.
    bench.write(INTERRUPT_ENABLE, 0xff);
    assert_eq!(bench.read(INTERRUPT_ENABLE), 0x0f);
    bench.write(INTERRUPT_ENABLE, 0);
    // Loop-back: OUT2 and RTS come back as DCD and CTS.
    bench.write(MODEM_CONTROL, 0x1a);
    assert_eq!(bench.read(MODEM_STATUS), 0x90);
    bench.write(MODEM_CONTROL, 0);
    bench.write(INTERRUPT_ID, 0x01);
    assert_eq!(bench.read(INTERRUPT_ID), 0xc1);
    bench.write(SCRATCH, 0x5a);
    assert_eq!(bench.read(SCRATCH), 0x5a);
}

#[test]
fn the_divisor_hides_data_and_interrupt_enable() {
    let mut bench = Bench::new();
    bench.write(LINE_CONTROL, 0x83);
    bench.write(DATA, 0x01);
    bench.write(INTERRUPT_ENABLE, 0x02);
    assert_eq!(
        (bench.read(DATA), bench.read(INTERRUPT_ENABLE)),
        (0x01, 0x02)
    );
    bench.write(LINE_CONTROL, 0x03);
    assert_eq!(bench.read(INTERRUPT_ENABLE), 0);
    assert_eq!(bench.io.output(), "", "no byte was sent");
}

#[test]
fn the_transmitter_interrupts_when_enabled_and_after_each_byte() {
    let mut bench = Bench::new();
    bench.write(DATA, b'a');
    assert!(!bench.line.level(), "not enabled");
    bench.write(INTERRUPT_ENABLE, 0x02);
    assert!(bench.line.level());
    assert_eq!(bench.read(INTERRUPT_ID), 0x02);
    assert!(!bench.line.level(), "reading the register takes it");
    assert_eq!(bench.read(INTERRUPT_ID), 0x01);
    // A driver that does not trust the chip enables it again and expects it again.
    bench.write(INTERRUPT_ENABLE, 0);
    bench.write(INTERRUPT_ENABLE, 0x02);
    assert_eq!(bench.read(INTERRUPT_ID), 0x02);
    bench.write(DATA, b'b');
    assert_eq!((bench.line.level(), bench.line.rises()), (true, 3));
    assert_eq!(bench.io.output(), "a|||b");
}

#[test]
fn input_interrupts_until_it_is_read() {
    let mut bench = Bench::new();
    bench.open();
    bench.io.push(b"xy");
    bench.uart.input_arrived();
    assert!(bench.line.level());
    assert_eq!(bench.read(INTERRUPT_ID), 0x04);
    assert_eq!(bench.read(LINE_STATUS), 0x61);
    assert_eq!(bench.read(DATA), b'x');
    assert!(bench.line.level());
    assert_eq!(bench.read(DATA), b'y');
    assert!(!bench.line.level());
    assert_eq!(bench.read(LINE_STATUS), 0x60);
    assert_eq!(bench.read(DATA), 0);
}

#[test]
fn input_waits_for_the_driver_and_for_rts() {
    let mut bench = Bench::new();
    bench.io.push(b"in");
    bench.uart.input_arrived();
    // What a driver does to clear the receiver when it opens the port.
    bench.write(INTERRUPT_ID, 0x07);
    assert_eq!((bench.read(LINE_STATUS), bench.read(DATA)), (0x60, 0));
    bench.open();
    assert_eq!((bench.line.level(), bench.read(DATA)), (true, b'i'));
    bench.write(MODEM_CONTROL, 0x09);
    assert_eq!((bench.read(LINE_STATUS), bench.line.level()), (0x60, false));
    bench.write(MODEM_CONTROL, 0x0b);
    assert_eq!((bench.line.level(), bench.read(DATA)), (true, b'n'));
}

#[test]
fn loop_back_returns_bytes_and_reaches_nobody() {
    let mut bench = Bench::new();
    bench.write(MODEM_CONTROL, 0x10);
    for byte in 0..20 {
        bench.write(DATA, byte);
    }
    let back: Vec<u8> = (0..16).map(|_| bench.read(DATA)).collect();
    assert!(back.into_iter().eq(0..16));
    assert_eq!(bench.read(LINE_STATUS), 0x60);
    assert_eq!(bench.io.output(), "");
}

#[test]
fn a_copy_goes_on_with_its_interrupt() {
    let mut bench = Bench::new();
    bench.open();
    bench.write(INTERRUPT_ENABLE, 0x07);
    assert!(bench.line.level());
    let saved = bench.uart.save();

    let mut copy = Bench::new();
    restore(&mut copy.uart, &saved).unwrap();
    assert!(!copy.line.level());
    copy.uart.assert_line_again();
    assert!(copy.line.level());
    assert_eq!(copy.read(INTERRUPT_ID), 0x02);
    assert_eq!(copy.read(MODEM_CONTROL), 0x0b);
    copy.io.push(b"z");
    assert_eq!((copy.read(DATA), copy.uart.received_bytes()), (b'z', 1));
}

#[test]
fn impossible_states_are_refused_by_field() {
    let mut bench = Bench::new();
    let good = UartState {
        divisor: 1,
        ..UartState::default()
    };
    let with = |change: fn(&mut UartState)| {
        let mut state = good.clone();
        change(&mut state);
        bench.uart.format.encode(&state)
    };
    let states = [
        (
            with(|state| state.interrupt_enable = 0x10),
            "interrupt_enable",
        ),
        (with(|state| state.line_control = 0x100), "line_control"),
        (with(|state| state.modem_control = 0x20), "modem_control"),
        (with(|state| state.divisor = 0x1_0000), "divisor"),
        (with(|state| state.looped_back = vec![0; 17]), "looped_back"),
    ];
    for (state, field) in states {
        let error = restore(&mut bench.uart, &state).unwrap_err();
        assert!(error.to_string().contains(field), "{error}");
    }
}
