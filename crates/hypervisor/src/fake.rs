//! A back end without guest code: each vCPU replays a script of exits. For unit tests of what
//! stands above the traits.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use nvx_memory::{GuestAddress, GuestMemory};

use crate::MAX_VCPUS;
use crate::cpu::{CpuModel, CpuidEntry};
use crate::error::{CreateError, RunError, StateError, SystemError};
use crate::exit::VcpuExit;
use crate::registers::{Registers, SystemRegisters};
use crate::state::VcpuState;
use crate::traits::{Hypervisor, Partition, PartitionOptions, StopHandle, Vcpu};

/// One step of a fake vCPU's script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Writes bytes to a port.
    PortWrite(u16, Vec<u8>),
    /// Reads one byte from a port; what comes back is kept in RAX.
    PortRead(u16),
    /// Stores a word to guest RAM, as guest code would.
    Store(GuestAddress, u32),
    /// Touches an address that no slot backs.
    MmioWrite(GuestAddress, Vec<u8>),
    /// Runs until a stop is asked for, as a guest that spins.
    Spin,
    /// Does not heed a stop until the latch is opened, as a vCPU that is stuck in the kernel.
    Deaf(Latch),
    /// Triple fault.
    Shutdown,
    /// The hypervisor cannot reach a page.
    MemoryFault(Option<GuestAddress>),
    /// The call that runs the guest fails.
    Fail,
}

/// What a vCPU at [`Step::Deaf`] waits for. Clones are one and the same.
#[derive(Clone, Debug, Default)]
pub struct Latch(Arc<(Mutex<LatchState>, Condvar)>);

#[derive(Debug, Default)]
struct LatchState {
    reached: bool,
    open: bool,
}

impl Latch {
    /// Waits until a vCPU has come to the latch; false if `timeout` passed before.
    pub fn wait_until_reached(&self, timeout: Duration) -> bool {
        let (state, changed) = &*self.0;
        let guard = state.lock().unwrap_or_else(PoisonError::into_inner);
        let (guard, _) = changed
            .wait_timeout_while(guard, timeout, |state| !state.reached)
            .unwrap_or_else(PoisonError::into_inner);
        guard.reached
    }

    /// Lets the vCPU that waits go on, and any that comes later.
    pub fn open(&self) {
        self.change(|state| state.open = true);
    }

    fn pass(&self) {
        let (state, changed) = &*self.0;
        self.change(|state| state.reached = true);
        let guard = state.lock().unwrap_or_else(PoisonError::into_inner);
        let passed = changed.wait_while(guard, |state| !state.open);
        drop(passed.unwrap_or_else(PoisonError::into_inner));
    }

    fn change(&self, change: impl FnOnce(&mut LatchState)) {
        let (state, changed) = &*self.0;
        change(&mut state.lock().unwrap_or_else(PoisonError::into_inner));
        changed.notify_all();
    }
}

impl PartialEq for Latch {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Latch {}

/// The fake back end. vCPU n of every partition replays the n-th script; a restored vCPU goes on
/// in its script where the saved one stopped.
#[derive(Clone, Debug, Default)]
pub struct Fake {
    scripts: Vec<Vec<Step>>,
}

impl Fake {
    /// A back end whose vCPUs replay `scripts`; a vCPU without a script spins.
    pub fn new(scripts: Vec<Vec<Step>>) -> Self {
        Self { scripts }
    }
}

impl Hypervisor for Fake {
    fn name(&self) -> &'static str {
        "fake"
    }

    fn cpu_model(&self) -> Result<CpuModel, SystemError> {
        let vendor = |text: &[u8; 4]| u32::from_le_bytes(*text);
        Ok(CpuModel {
            entries: vec![CpuidEntry {
                leaf: 0,
                subleaf: 0,
                has_subleaf: false,
                eax: 1,
                ebx: vendor(b"Fake"),
                ecx: vendor(b"NVX "),
                edx: vendor(b"CPU "),
            }],
        })
    }

    fn create_partition(
        &self,
        memory: &Arc<GuestMemory>,
        _options: PartitionOptions,
    ) -> Result<Box<dyn Partition>, CreateError> {
        Ok(Box::new(FakePartition {
            scripts: self.scripts.clone(),
            memory: Arc::clone(memory),
        }))
    }
}

struct FakePartition {
    scripts: Vec<Vec<Step>>,
    memory: Arc<GuestMemory>,
}

impl Partition for FakePartition {
    fn stores_through_accessor(&self) -> bool {
        true
    }

    fn create_vcpu(&self, index: u8) -> Result<Box<dyn Vcpu>, CreateError> {
        if index >= MAX_VCPUS {
            return Err(CreateError::TooManyVcpus {
                index,
                limit: MAX_VCPUS,
            });
        }
        let script = self.scripts.get(usize::from(index)).cloned();
        Ok(Box::new(FakeVcpu {
            index,
            script: script.unwrap_or_else(|| vec![Step::Spin]).into(),
            memory: Arc::clone(&self.memory),
            registers: Registers::default(),
            system: SystemRegisters::default(),
            stop: Arc::new(FakeStop::default()),
            buffer: Vec::new(),
            read_pending: false,
        }))
    }
}

#[derive(Default)]
struct FakeStop {
    requested: AtomicBool,
    lock: Mutex<()>,
    wake: Condvar,
}

impl StopHandle for FakeStop {
    fn request_stop(&self) {
        let _guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        self.requested.store(true, Ordering::SeqCst);
        self.wake.notify_all();
    }
}

struct FakeVcpu {
    index: u8,
    script: VecDeque<Step>,
    memory: Arc<GuestMemory>,
    registers: Registers,
    system: SystemRegisters,
    stop: Arc<FakeStop>,
    buffer: Vec<u8>,
    /// The last exit was a port read whose result is not in RAX yet.
    read_pending: bool,
}

impl FakeVcpu {
    /// As on hardware, the instruction pointer says how far the guest has come.
    fn advance(&mut self) {
        self.script.pop_front();
        self.registers.rip += 1;
    }

    fn spin(&mut self) -> VcpuExit<'_> {
        let mut guard = self
            .stop
            .lock
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        while !self.stop.requested.load(Ordering::SeqCst) {
            guard = self
                .stop
                .wake
                .wait(guard)
                .unwrap_or_else(PoisonError::into_inner);
        }
        VcpuExit::Canceled
    }
}

impl Vcpu for FakeVcpu {
    fn index(&self) -> u8 {
        self.index
    }

    fn set_cpu_model(&mut self, _model: &CpuModel) -> Result<(), SystemError> {
        Ok(())
    }

    fn registers(&self) -> Result<(Registers, SystemRegisters), SystemError> {
        Ok((self.registers.clone(), self.system.clone()))
    }

    fn set_registers(
        &mut self,
        registers: &Registers,
        system: &SystemRegisters,
    ) -> Result<(), SystemError> {
        // The script's position lives in RIP, so an entry point is kept out of it.
        self.registers = Registers {
            rip: self.registers.rip,
            ..registers.clone()
        };
        self.system = system.clone();
        Ok(())
    }

    fn bind_to_this_thread(&mut self) {}

    fn run(&mut self) -> Result<VcpuExit<'_>, RunError> {
        if self.read_pending {
            self.registers.rax = self.buffer.first().copied().map_or(0, u64::from);
            self.read_pending = false;
        }
        loop {
            if self.stop.requested.load(Ordering::SeqCst) {
                return Ok(VcpuExit::Canceled);
            }
            let Some(step) = self.script.front().cloned() else {
                return Ok(self.spin());
            };
            if step != Step::Spin {
                self.advance();
            }
            match step {
                Step::Store(address, value) => {
                    if self.memory.write(address, &value.to_le_bytes()).is_err() {
                        return Ok(VcpuExit::MemoryFault {
                            address: Some(address),
                        });
                    }
                }
                Step::Spin => return Ok(self.spin()),
                Step::Deaf(latch) => latch.pass(),
                Step::PortWrite(port, data) => {
                    self.buffer = data;
                    return Ok(VcpuExit::PortWrite {
                        port,
                        width: 1,
                        data: &self.buffer,
                    });
                }
                Step::PortRead(port) => {
                    self.buffer = vec![0xff];
                    self.read_pending = true;
                    return Ok(VcpuExit::PortRead {
                        port,
                        width: 1,
                        data: &mut self.buffer,
                    });
                }
                Step::MmioWrite(address, data) => {
                    self.buffer = data;
                    return Ok(VcpuExit::MmioWrite {
                        address,
                        data: &self.buffer,
                    });
                }
                Step::Shutdown => return Ok(VcpuExit::Shutdown),
                Step::MemoryFault(address) => return Ok(VcpuExit::MemoryFault { address }),
                Step::Fail => {
                    return Err(RunError::System {
                        vcpu: self.index,
                        source: SystemError {
                            call: "fake run",
                            source: std::io::ErrorKind::Other.into(),
                        },
                    });
                }
            }
        }
    }

    fn stop_handle(&self) -> Arc<dyn StopHandle> {
        Arc::clone(&self.stop) as Arc<dyn StopHandle>
    }

    fn hold(&mut self) {
        self.stop.request_stop();
    }

    fn clear_stop(&mut self) {
        self.stop.requested.store(false, Ordering::SeqCst);
    }

    fn save(&mut self) -> Result<VcpuState, StateError> {
        Ok(VcpuState {
            registers: Some(self.registers.clone()),
            system_registers: Some(self.system.clone()),
            ..Default::default()
        })
    }

    fn restore(&mut self, state: &VcpuState) -> Result<(), StateError> {
        self.registers = state.registers.clone().ok_or(StateError::Missing {
            element: "general registers",
        })?;
        self.system = state.system_registers.clone().unwrap_or_default();
        let done = usize::try_from(self.registers.rip).unwrap_or(usize::MAX);
        self.script.drain(..done.min(self.script.len()));
        Ok(())
    }
}
