//! Whether guest code runs on the processor or is interpreted, found by running some.
//!
//! A host can offer the whole interface of a hypervisor and yet execute guest instructions in
//! software; nothing that it publishes tells. What tells is speed: a guest runs a loop of four
//! instructions (`call`, `ret`, `dec`, `jne`), which a processor predicts perfectly and an emulator
//! must follow step by step. Seen on one host: 14 million instructions a millisecond natively on the
//! processor, 0.52 million in QEMU's translating emulator, 0.001 million where the kernel interprets
//! them one by one. [`HARDWARE_INSTRUCTIONS_PER_MS`] lies between.
//!
//! The trial is also the proof that the back end can make a machine and run it.

use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use nvx_memory::{
    AccessError, GuestAddress, GuestMemory, LayoutError, MapError, RamLayout, RamRange,
};

use crate::error::{CreateError, RunError, SystemError};
use crate::exit::VcpuExit;
use crate::registers::{Registers, SystemRegisters};
use crate::traits::{Hypervisor, PartitionOptions, Vcpu};

/// From this speed on, in instructions of the loop per millisecond, guest code is taken to run on
/// the processor: four times what the quickest emulator reached, half of what a slow processor
/// (2 GHz, two cycles a turn) does.
pub const HARDWARE_INSTRUCTIONS_PER_MS: u64 = 2_000_000;

/// Bounds the whole trial. A processor needs 0.1 s, an emulator of a million instructions a second
/// 0.1 s as well.
const TIME_LIMIT: Duration = Duration::from_secs(3);

const RAM_BYTES: u64 = 64 * 1024;
const CODE: u64 = 0x1000;
const STACK_END: u64 = 0x8000;
/// The guest reads from it how many turns it is to do next.
const PORT: u16 = 0x510;
const RFLAGS_RESET: u64 = 2;
/// `again: in eax, dx; mov ecx, eax; turn: call leaf; dec ecx; jne turn; jmp again; leaf: ret`
const LOOP: [u8; 14] = [
    0xed, 0x89, 0xc1, 0xe8, 0x05, 0, 0, 0, 0x49, 0x75, 0xf8, 0xeb, 0xf3, 0xc3,
];
const INSTRUCTIONS_PER_TURN: u64 = 4;

/// What carries out a guest's instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Execution {
    /// The processor.
    Hardware,
    /// Software; also where it cannot be told, since times measured there must not be mixed with
    /// those of a processor.
    Emulated,
}

/// How fast a guest ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExecutionSpeed {
    /// Instructions of the loop per millisecond, of the quickest round.
    pub instructions_per_ms: u64,
}

impl ExecutionSpeed {
    /// What the speed says.
    #[must_use]
    pub fn execution(self) -> Execution {
        if self.instructions_per_ms >= HARDWARE_INSTRUCTIONS_PER_MS {
            Execution::Hardware
        } else {
            Execution::Emulated
        }
    }
}

/// Why the trial did not come to a result.
#[derive(Debug, thiserror::Error)]
pub enum TrialError {
    /// The trial's guest RAM has no valid layout.
    #[error("cannot lay out {RAM_BYTES} bytes of guest RAM")]
    Layout(#[from] LayoutError),
    /// The trial's guest RAM cannot be mapped.
    #[error("cannot map {RAM_BYTES} bytes of guest RAM")]
    Map(#[from] MapError),
    /// The trial's code cannot be written into guest RAM.
    #[error("cannot write the trial's code")]
    Load(#[from] AccessError),
    /// No machine can be made.
    #[error("cannot make a machine for a trial")]
    Create(#[from] CreateError),
    /// The vCPU cannot be set up.
    #[error("cannot set up the trial's vCPU")]
    SetUp(#[from] SystemError),
    /// The vCPU cannot run.
    #[error("cannot run the trial's guest")]
    Run(#[from] RunError),
    /// The guest left its loop.
    #[error("the trial's guest stopped: {exit}")]
    Exit {
        /// How.
        exit: String,
    },
    /// The guest did not answer in time.
    #[error("the trial's guest was still running after {} s", TIME_LIMIT.as_secs())]
    TimedOut,
}

/// Makes a small machine and measures how fast its guest runs.
///
/// # Errors
/// The back end cannot make the machine, or its guest does not get through the loop.
pub fn measure_execution(backend: &dyn Hypervisor) -> Result<ExecutionSpeed, TrialError> {
    let layout = RamLayout::new(vec![RamRange {
        start: GuestAddress(0),
        size_bytes: RAM_BYTES,
        file_offset_bytes: 0,
    }])?;
    let memory = Arc::new(GuestMemory::anonymous(layout)?);
    memory.write(GuestAddress(CODE), &LOOP)?;
    let partition = backend.create_partition(&memory, PartitionOptions::default())?;
    let mut vcpu = partition.create_vcpu(0)?;
    vcpu.set_cpu_model(&backend.cpu_model()?.for_vcpu(0))?;
    let (_, reset) = vcpu.registers()?;
    let registers = Registers {
        rip: CODE,
        rsp: STACK_END,
        rdx: u64::from(PORT),
        rflags: RFLAGS_RESET,
        ..Default::default()
    };
    vcpu.set_registers(&registers, &SystemRegisters::protected_mode_entry(&reset))?;
    vcpu.bind_to_this_thread();
    bounded(vcpu.as_mut(), TIME_LIMIT)
}

/// Runs the rounds, and stops the vCPU if they take longer than `limit`.
fn bounded(vcpu: &mut dyn Vcpu, limit: Duration) -> Result<ExecutionSpeed, TrialError> {
    let stop = vcpu.stop_handle();
    let (alive, ended) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            if ended.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
                stop.request_stop();
            }
        });
        let result = rounds(vcpu);
        drop(alive);
        result
    })
}

fn rounds(vcpu: &mut dyn Vcpu) -> Result<ExecutionSpeed, TrialError> {
    let mut plan = Plan::default();
    let mut began: Option<Instant> = None;
    loop {
        match vcpu.run()? {
            VcpuExit::PortRead {
                port: PORT, data, ..
            } => {
                let Some(turns) = plan.next(began.map(|began| began.elapsed())) else {
                    return Ok(plan.speed());
                };
                let answer = turns.to_le_bytes();
                let Some(answer) = answer.get(..data.len()) else {
                    return Err(unexpected(&VcpuExit::Shutdown));
                };
                data.copy_from_slice(answer);
                began = Some(Instant::now());
            }
            VcpuExit::Canceled => return Err(TrialError::TimedOut),
            exit => return Err(unexpected(&exit)),
        }
    }
}

fn unexpected(exit: &VcpuExit<'_>) -> TrialError {
    TrialError::Exit {
        exit: match exit {
            VcpuExit::Unsupported(what) => what.clone(),
            other => format!("{other:?}"),
        },
    }
}

/// How many turns the rounds have: more and more until one takes long enough to be measured, then
/// the same again a few times. The quickest counts, since everything else on the host only slows.
#[derive(Debug)]
struct Plan {
    turns: u32,
    rounds_left: u32,
    best: Option<Duration>,
}

/// Below it, entering and leaving the guest would be a good part of what is measured.
const ROUND_AT_LEAST: Duration = Duration::from_millis(4);
const FIRST_TURNS: u32 = 500;
const GROWTH: u32 = 8;
/// 16 ms at a cycle a turn and 1 GHz.
const MAX_TURNS: u32 = FIRST_TURNS * GROWTH.pow(5);
const ROUNDS: u32 = 4;

impl Default for Plan {
    fn default() -> Self {
        Self {
            turns: FIRST_TURNS,
            rounds_left: ROUNDS,
            best: None,
        }
    }
}

impl Plan {
    /// Turns of the next round, after one of [`Plan::turns`] took `last`; `None` at the end.
    fn next(&mut self, last: Option<Duration>) -> Option<u32> {
        let Some(last) = last else {
            return Some(self.turns);
        };
        if self.best.is_none() && last < ROUND_AT_LEAST && self.turns < MAX_TURNS {
            self.turns *= GROWTH;
            return Some(self.turns);
        }
        self.best = Some(self.best.map_or(last, |best| best.min(last)));
        self.rounds_left = self.rounds_left.saturating_sub(1);
        (self.rounds_left > 0).then_some(self.turns)
    }

    fn speed(&self) -> ExecutionSpeed {
        let best_ns = self.best.unwrap_or(Duration::MAX).as_nanos().max(1);
        let instructions = u128::from(self.turns) * u128::from(INSTRUCTIONS_PER_TURN);
        let per_ms = instructions * 1_000_000 / best_ns;
        ExecutionSpeed {
            instructions_per_ms: u64::try_from(per_ms).unwrap_or(u64::MAX),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::soft::Soft;

    /// Drives a plan on a guest that does `turns_per_ms`.
    fn drive(turns_per_ms: f64) -> (Vec<u32>, ExecutionSpeed) {
        let mut plan = Plan::default();
        let mut last = None;
        let mut asked = Vec::new();
        while let Some(turns) = plan.next(last) {
            asked.push(turns);
            last = Some(Duration::from_secs_f64(
                f64::from(turns) / turns_per_ms / 1e3,
            ));
            assert!(asked.len() < 20, "{asked:?}");
        }
        (asked, plan.speed())
    }

    #[test]
    fn a_slow_guest_does_few_turns_and_a_quick_one_many() {
        let (asked, speed) = drive(250.0);
        assert_eq!(asked, [500, 4000, 4000, 4000, 4000]);
        assert_eq!(speed.execution(), Execution::Emulated);
        assert!((999..=1001).contains(&speed.instructions_per_ms));

        let (asked, speed) = drive(3_500_000.0);
        assert_eq!(asked.last(), Some(&MAX_TURNS));
        assert_eq!(speed.execution(), Execution::Hardware);
        // Slow hardware and the quickest emulator are on their sides of the line.
        assert_eq!(drive(1_000_000.0).1.execution(), Execution::Hardware);
        assert_eq!(drive(130_000.0).1.execution(), Execution::Emulated);
    }

    #[test]
    fn the_quickest_round_counts() {
        let mut plan = Plan::default();
        let ms = Duration::from_millis;
        assert_eq!(plan.next(None), Some(500));
        assert_eq!(plan.next(Some(ms(20))), Some(500));
        // A round that is quicker than the bound does not start the growth again.
        assert_eq!(plan.next(Some(ms(2))), Some(500));
        assert_eq!(plan.next(Some(ms(30))), Some(500));
        assert_eq!(plan.next(Some(ms(30))), None);
        assert_eq!(plan.speed().instructions_per_ms, 1000);
    }

    #[test]
    fn software_gets_through_the_loop_and_is_told_from_hardware() {
        let speed = measure_execution(&Soft::new()).expect("the loop is of the guest's subset");
        assert!(speed.instructions_per_ms > 0);
        // A debug build interprets a few thousand, a release build a few hundred thousand.
        assert_eq!(speed.execution(), Execution::Emulated);
    }

    #[test]
    fn a_guest_that_never_asks_is_stopped() {
        let backend = Soft::new();
        let layout = RamLayout::new(vec![RamRange {
            start: GuestAddress(0),
            size_bytes: RAM_BYTES,
            file_offset_bytes: 0,
        }])
        .expect("a layout");
        let memory = Arc::new(GuestMemory::anonymous(layout).expect("RAM"));
        // jmp to itself
        memory
            .write(GuestAddress(CODE), &[0xeb, 0xfe])
            .expect("in RAM");
        let partition = backend
            .create_partition(&memory, PartitionOptions::default())
            .expect("a partition");
        let mut vcpu = partition.create_vcpu(0).expect("a vCPU");
        let (_, reset) = vcpu.registers().expect("registers");
        let registers = Registers {
            rip: CODE,
            rflags: RFLAGS_RESET,
            ..Default::default()
        };
        vcpu.set_registers(&registers, &SystemRegisters::protected_mode_entry(&reset))
            .expect("a mode that it has");
        vcpu.bind_to_this_thread();
        let error = bounded(vcpu.as_mut(), Duration::from_millis(20)).expect_err("no answer");
        assert!(matches!(error, TrialError::TimedOut), "{error:?}");
    }
}
