//! The built-in guest on back end `soft`: every command, every outcome of a snapshot request, and
//! a capture at any instruction.
#![forbid(unsafe_code)]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking, also in its helper functions"
)]

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nvx_hypervisor::soft::Soft;
use nvx_hypervisor::{
    Hypervisor, Partition, PartitionOptions, Registers, SavedState, SystemRegisters, Vcpu,
    VcpuExit, VcpuState,
};
use nvx_memory::{GuestAddress, GuestMemory};
use nvx_probe_guest::{ProbeParams, SECTOR_BYTES, checksum, image, word};

const RAM_BYTES: u64 = 16 << 20;
/// More exits than any test needs.
const EXITS_MAX: u32 = 100_000;

/// Why [`Guest::run`] came back.
#[derive(Debug, PartialEq, Eq)]
enum Stop {
    /// The guest polls and has nothing to do.
    Idle,
    Exit(u8),
    Halted,
    Canceled,
}

/// The built-in guest and the ports that it uses.
struct Guest {
    vcpu: Box<dyn Vcpu>,
    _partition: Box<dyn Partition>,
    memory: Arc<GuestMemory>,
    input: VecDeque<u8>,
    output: Vec<u8>,
    snapshot_answers: VecDeque<u8>,
    snapshot_requests: u32,
    restored_untold: bool,
}

impl Guest {
    fn new(ram_bytes: u64) -> Self {
        let layout = nvx_machine::ram_layout(ram_bytes).unwrap();
        let memory = Arc::new(GuestMemory::anonymous(layout).unwrap());
        let partition = Soft::new()
            .create_partition(&memory, PartitionOptions::default())
            .unwrap();
        Self {
            vcpu: partition.create_vcpu(0).unwrap(),
            _partition: partition,
            memory,
            input: VecDeque::new(),
            output: Vec::new(),
            snapshot_answers: VecDeque::new(),
            snapshot_requests: 0,
            restored_untold: false,
        }
    }

    fn boot(params: &ProbeParams, ram_bytes: u64) -> Self {
        params.check(ram_bytes).unwrap();
        let mut guest = Self::new(ram_bytes);
        let image = image().unwrap();
        let entry = nvx_machine::load_pvh(&guest.memory, &image, &params.command_line()).unwrap();
        let model = Soft::new().cpu_model().unwrap();
        guest.vcpu.set_cpu_model(&model).unwrap();
        let (_, reset) = guest.vcpu.registers().unwrap();
        let registers = Registers {
            rip: entry.rip,
            rbx: entry.start_info.0,
            rflags: 2,
            ..Default::default()
        };
        guest
            .vcpu
            .set_registers(&registers, &SystemRegisters::protected_mode_entry(&reset))
            .unwrap();
        guest
    }

    /// What a capture keeps, through the bytes of a state file.
    fn capture(&mut self) -> (Vec<u8>, Vec<u8>) {
        let mut ram = vec![0; RAM_BYTES as usize];
        self.memory.read(GuestAddress(0), &mut ram).unwrap();
        (self.vcpu.save().unwrap().to_payload(), ram)
    }

    fn restore((state, ram): &(Vec<u8>, Vec<u8>)) -> Self {
        let mut guest = Self::new(RAM_BYTES);
        guest.memory.write(GuestAddress(0), ram).unwrap();
        let state = VcpuState::from_payload(state).unwrap();
        guest.vcpu.restore(&state).unwrap();
        guest
    }

    fn run(&mut self) -> Stop {
        // Two polls in a row: the single one at boot only asks whether there is a console.
        let mut idle_polls = 0;
        for _ in 0..EXITS_MAX {
            match self.vcpu.run().unwrap() {
                VcpuExit::PortRead { port, data, .. } => {
                    data[0] = match port {
                        0xe9 => self.input.pop_front().unwrap(),
                        0xea => {
                            u8::from(!self.input.is_empty()) | u8::from(self.restored_untold) << 1
                        }
                        0x605 => {
                            let answer = self.snapshot_answers.pop_front().unwrap();
                            self.restored_untold &= answer != 3;
                            answer
                        }
                        _ => panic!("read of port {port:#x}"),
                    };
                    idle_polls = if (port, data[0]) == (0xea, 0) {
                        idle_polls + 1
                    } else {
                        0
                    };
                    if idle_polls == 2 {
                        return Stop::Idle;
                    }
                }
                VcpuExit::PortWrite { port, data, .. } => match port {
                    0xe9 => {
                        idle_polls = 0;
                        self.output.extend_from_slice(data);
                    }
                    0x604 => return Stop::Exit(data[0]),
                    0x605 => self.snapshot_requests += 1,
                    _ => panic!("write to port {port:#x}"),
                },
                VcpuExit::Halted => return Stop::Halted,
                VcpuExit::Canceled => return Stop::Canceled,
                other => panic!("{other:?}"),
            }
        }
        panic!("the guest neither ends nor waits");
    }

    fn take_output(&mut self) -> String {
        String::from_utf8(std::mem::take(&mut self.output)).unwrap()
    }

    /// Sends `input` and returns what the guest says to it.
    fn answer(&mut self, input: &str) -> String {
        self.input.extend(input.bytes());
        assert_eq!(self.run(), Stop::Idle);
        self.take_output()
    }
}

fn params(text: &str) -> ProbeParams {
    text.parse().unwrap()
}

fn nonce(line: &str) -> String {
    let (_, rest) = line.split_once("nonce=").unwrap();
    rest[..16].to_owned()
}

fn verified(params: &ProbeParams, seed: u32, count: u32) -> String {
    let sum = checksum(seed, params.span(RAM_BYTES));
    format!("PROBE-VERIFY ok checksum={sum:08x} seed={seed} count={count}\n")
}

#[test]
fn every_command_is_answered() {
    let params = params("fill=top:16,seed=7");
    let mut guest = Guest::boot(&params, RAM_BYTES);
    let ready = guest.answer("");
    let nonce = nonce(&ready);
    assert_eq!(ready, format!("PROBE-READY nonce={nonce} count=0\n"));
    for page in params.span(RAM_BYTES).pages() {
        for address in (page..page + 4096).step_by(SECTOR_BYTES as usize) {
            let found = guest.memory.read_u32(GuestAddress(u64::from(address)));
            assert_eq!(found.unwrap(), word(7, address), "word at {address:#x}");
        }
    }
    assert_eq!(guest.answer("v\n"), verified(&params, 7, 1));
    assert_eq!(guest.answer("d\r\n"), "PROBE-DIRTIED seed=8 count=2\n");
    assert_eq!(guest.answer("v\n"), verified(&params, 8, 3));
    for unknown in ["q\n", "x256\n", "x1y\n", "0123456789abcdefg and more\n"] {
        assert_eq!(guest.answer(unknown), "PROBE-WHAT\n", "{unknown:?}");
    }
    for (answer, said) in [
        (1, "PROBE-REFUSED\n".to_owned()),
        (2, format!("PROBE-CONTINUED nonce={nonce} count=9\n")),
        (3, format!("PROBE-RESTORED nonce={nonce} count=10\n")),
        (0xff, "PROBE-UNAVAILABLE\n".to_owned()),
    ] {
        guest.snapshot_answers.extend([0, 0, answer]);
        assert_eq!(guest.answer("s\n"), said);
    }
    assert_eq!(guest.snapshot_requests, 4);

    // A word that is wrong is found.
    let page = params.span(RAM_BYTES).pages().last().unwrap();
    let last = GuestAddress(u64::from(page + 7 * SECTOR_BYTES));
    guest.memory.write_u32(last, 0).unwrap();
    assert_eq!(
        guest.answer("v\n"),
        format!("PROBE-VERIFY bad address=0x{:08x}\n", last.0)
    );

    guest.input.extend(*b"x231\n");
    assert_eq!(guest.run(), Stop::Exit(231));
    assert_eq!(guest.run(), Stop::Halted);
    assert_eq!(guest.run(), Stop::Halted);
}

#[test]
fn every_kind_of_fill_verifies() {
    for text in [
        "fill=all,seed=3",
        "fill=alternate,seed=4294967295",
        "fill=spread:3,seed=9",
        "fill=spread:1,seed=2",
    ] {
        let params = params(text);
        let mut guest = Guest::boot(&params, RAM_BYTES);
        guest.answer("");
        assert_eq!(
            guest.answer("v\n"),
            verified(&params, params.seed, 1),
            "{text}"
        );
    }
}

#[test]
fn a_guest_stopped_anywhere_goes_on_in_a_restored_machine() {
    let params = params("fill=all,seed=5");
    let mut guest = Guest::boot(&params, RAM_BYTES);
    let nonce = nonce(&guest.answer(""));
    guest.input.extend(*b"d\n");
    // Stops while the guest fills. How far it comes each time is up to this machine; what it says
    // in the end is not.
    for turn in 0..20 {
        let handle = guest.vcpu.stop_handle();
        let stop = std::thread::scope(|scope| {
            scope.spawn(move || {
                std::thread::sleep(Duration::from_micros(100 * turn));
                handle.request_stop();
            });
            let stop = guest.run();
            // The guest may have come to its end before the stop.
            if stop != Stop::Canceled {
                finish(&mut guest);
            }
            stop
        });
        let mut next = Guest::restore(&guest.capture());
        next.input = std::mem::take(&mut guest.input);
        next.output = std::mem::take(&mut guest.output);
        guest = next;
        if stop != Stop::Canceled {
            break;
        }
    }
    guest.restored_untold = true;
    guest.snapshot_answers.push_back(3);
    let said = guest.answer("");
    assert_eq!(
        said,
        format!("PROBE-DIRTIED seed=6 count=1\nPROBE-RESTORED nonce={nonce} count=1\n")
    );
    assert_eq!(guest.answer("v\n"), verified(&params, 6, 2));
}

/// Finishes the last exit without executing anything more.
fn finish(guest: &mut Guest) {
    guest.vcpu.stop_handle().request_stop();
    assert_eq!(guest.run(), Stop::Canceled);
}

#[test]
fn a_nonce_is_drawn_at_each_boot() {
    let mut nonces: Vec<String> = (0..8)
        .map(|_| nonce(&Guest::boot(&params("fill=top:1"), RAM_BYTES).answer("")))
        .collect();
    nonces.sort_unstable();
    nonces.dedup();
    assert_eq!(nonces.len(), 8);
}

/// `cargo test --release -p nvx-hypervisor --test soft_probe -- --ignored --nocapture`
#[test]
#[ignore = "prints a measurement"]
fn instructions_per_second() {
    for (text, ram_bytes) in [("fill=top:256", RAM_BYTES), ("fill=all", 128 << 20)] {
        let params = params(text);
        // Of the loop over pages: first word, seven times next word, eight stores, next page.
        let instructions = f64::from(params.span(ram_bytes).pages) * 21.0;
        let mut guest = Guest::boot(&params, ram_bytes);
        let start = Instant::now();
        guest.answer("");
        let ready = start.elapsed();
        guest.input.extend(*b"d\n");
        let start = Instant::now();
        guest.answer("");
        let again = start.elapsed();
        println!(
            "{text} of {} MiB: ready after {ready:.2?}; filled again in {again:.2?}, {:.0} million \
             instructions/s",
            ram_bytes >> 20,
            instructions / again.as_secs_f64() / 1e6
        );
    }
    println!(
        "{:.0} million instructions/s in registers",
        spin_rate() / 1e6
    );
}

/// Instructions per second of a loop that touches no memory.
fn spin_rate() -> f64 {
    const ROUNDS: u32 = 20_000_000;
    let mut guest = Guest::new(RAM_BYTES);
    // INC EAX; DEC ECX; JNE to the start; HLT.
    let code = [0x40, 0x49, 0x75, 0xfc, 0xf4];
    guest.memory.write(GuestAddress(0x1000), &code).unwrap();
    let (_, reset) = guest.vcpu.registers().unwrap();
    let registers = Registers {
        rip: 0x1000,
        rcx: u64::from(ROUNDS),
        rflags: 2,
        ..Default::default()
    };
    let system = SystemRegisters::protected_mode_entry(&reset);
    guest.vcpu.set_registers(&registers, &system).unwrap();
    let start = Instant::now();
    assert_eq!(guest.run(), Stop::Halted);
    f64::from(ROUNDS) * 3.0 / start.elapsed().as_secs_f64()
}
