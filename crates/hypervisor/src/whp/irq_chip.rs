//! The interrupt chip: the models of crate `nvx-devices`, which deliver to WHP's local APICs.
//!
//! WHP gives each vCPU a local APIC. What the IOAPIC model sends goes there by `WHvRequestInterrupt`, and
//! a local APIC that ends a level-triggered interrupt is an exit of its vCPU. For the PICs, whose output
//! goes past the local APICs, vCPU 0 asks the hypervisor for the moment at which it can take an
//! interrupt ([`super::vcpu`]). A thread drives the timer's line, from the first time that the timer runs.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nvx_devices::{
    ApicMessage, DeliveryMode, IRQ_LINES, InterruptChip, InterruptChipState, RestoreError,
};
use windows_sys::Win32::System::Hypervisor::{
    WHV_INTERRUPT_CONTROL, WHvX64InterruptDestinationModeLogical,
    WHvX64InterruptDestinationModePhysical, WHvX64InterruptTriggerModeEdge,
    WHvX64InterruptTriggerModeLevel, WHvX64InterruptTypeFixed, WHvX64InterruptTypeInit,
    WHvX64InterruptTypeLowestPriority, WHvX64InterruptTypeNmi,
};

use super::library::checked;
use super::partition::Machine;
use crate::error::{StateError, SystemError};
use crate::state::IrqChipState;
use crate::traits::IrqChip;

/// [`IrqChipState::layout`] of this back end: the payloads of [`InterruptChip`], version 1 each.
const LAYOUT: &str = "nvx-1";
/// The vCPU that the PICs interrupt.
const PIC_VCPU: u32 = 0;
/// A guest cannot have the timer's line driven more often.
const SHORTEST_TICK: Duration = Duration::from_micros(50);

/// `WHV_INTERRUPT_CONTROL`: where its fields begin, in bits.
const DESTINATION_MODE_SHIFT: u32 = 8;
const TRIGGER_MODE_SHIFT: u32 = 12;

/// The chip of one partition. The timer's thread ends with it.
pub(super) struct WhpIrqChip {
    wiring: Arc<Wiring>,
    timer: Mutex<Option<JoinHandle<()>>>,
}

struct Wiring {
    machine: Arc<Machine>,
    power_on: Instant,
    board: Mutex<Board>,
    /// The timer's thread has to look again.
    changed: Condvar,
    /// [`PIC_VCPU`] is there.
    has_pic_vcpu: AtomicBool,
    /// What [`InterruptChip::pic_output`] said last, to be looked at without a lock.
    pic_output: AtomicBool,
}

struct Board {
    chip: InterruptChip,
    is_closing: bool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Wiring {
    fn now_ns(&self) -> u64 {
        u64::try_from(self.power_on.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Sends what the chip wants to send.
    fn deliver(&self, chip: &mut InterruptChip) -> Result<(), SystemError> {
        let output = chip.pic_output();
        let rises = output && !self.pic_output.swap(output, Ordering::SeqCst);
        if !output {
            self.pic_output.store(false, Ordering::SeqCst);
        }
        if rises && self.has_pic_vcpu.load(Ordering::SeqCst) {
            // It looks at the output before each run.
            self.machine.cancel(PIC_VCPU);
        }
        for message in chip.take_messages() {
            self.request(&message)?;
        }
        Ok(())
    }

    fn request(&self, message: &ApicMessage) -> Result<(), SystemError> {
        let kind = match message.delivery {
            DeliveryMode::Fixed => WHvX64InterruptTypeFixed,
            DeliveryMode::LowestPriority => WHvX64InterruptTypeLowestPriority,
            DeliveryMode::Nmi => WHvX64InterruptTypeNmi,
            DeliveryMode::Init => WHvX64InterruptTypeInit,
        };
        let destination = match message.is_logical {
            true => WHvX64InterruptDestinationModeLogical,
            false => WHvX64InterruptDestinationModePhysical,
        };
        let trigger = match message.is_level {
            true => WHvX64InterruptTriggerModeLevel,
            false => WHvX64InterruptTriggerModeEdge,
        };
        let bits = |value: i32, shift: u32| u64::from(value.cast_unsigned()) << shift;
        let control = WHV_INTERRUPT_CONTROL {
            _bitfield: bits(kind, 0)
                | bits(destination, DESTINATION_MODE_SHIFT)
                | bits(trigger, TRIGGER_MODE_SHIFT),
            Destination: u32::from(message.destination),
            Vector: u32::from(message.vector),
        };
        self.machine.request_interrupt(&control)
    }

    /// Drives the timer's line until the chip goes.
    fn drive_timer(&self) {
        let mut board = lock(&self.board);
        while !board.is_closing {
            board.chip.tick(self.now_ns());
            // An interrupt that the hypervisor refuses is one that the guest set up wrongly.
            let _ = self.deliver(&mut board.chip);
            board = match board.chip.next_tick_ns() {
                None => self
                    .changed
                    .wait(board)
                    .unwrap_or_else(PoisonError::into_inner),
                Some(at_ns) => {
                    let wait = Duration::from_nanos(at_ns.saturating_sub(self.now_ns()));
                    let waited = self.changed.wait_timeout(board, wait.max(SHORTEST_TICK));
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }
}

impl WhpIrqChip {
    pub(super) fn new(machine: Arc<Machine>) -> Self {
        let wiring = Wiring {
            machine,
            power_on: Instant::now(),
            board: Mutex::new(Board {
                chip: InterruptChip::new(0),
                is_closing: false,
            }),
            changed: Condvar::new(),
            has_pic_vcpu: AtomicBool::new(false),
            pic_output: AtomicBool::new(false),
        };
        Self {
            wiring: Arc::new(wiring),
            timer: Mutex::new(None),
        }
    }

    /// vCPU `index` is there, or is about to go.
    pub(super) fn set_present(&self, index: u32, is_present: bool) {
        if index == PIC_VCPU {
            self.wiring.has_pic_vcpu.store(is_present, Ordering::SeqCst);
        }
    }

    /// Does something with the chip, and what follows from it.
    fn with<R>(&self, act: impl FnOnce(&mut InterruptChip, u64) -> R) -> Result<R, SystemError> {
        let mut board = lock(&self.wiring.board);
        let before = board.chip.next_tick_ns();
        let result = act(&mut board.chip, self.wiring.now_ns());
        let delivered = self.wiring.deliver(&mut board.chip);
        let next = board.chip.next_tick_ns();
        drop(board);
        if next.is_some() && next != before {
            self.start_timer()?;
        }
        delivered.map(|()| result)
    }

    fn start_timer(&self) -> Result<(), SystemError> {
        let mut timer = lock(&self.timer);
        if timer.is_none() {
            let wiring = Arc::clone(&self.wiring);
            let spawned = std::thread::Builder::new()
                .name("pit".to_owned())
                .spawn(move || wiring.drive_timer());
            *timer = Some(spawned.map_err(|source| SystemError {
                call: "start of the timer's thread",
                source,
            })?);
        }
        self.wiring.changed.notify_all();
        Ok(())
    }

    pub(super) fn read_port(&self, port: u16) -> Result<u8, SystemError> {
        self.with(|chip, now_ns| chip.read_port(port, now_ns))
    }

    pub(super) fn write_port(&self, port: u16, value: u8) -> Result<(), SystemError> {
        self.with(|chip, now_ns| chip.write_port(port, value, now_ns))
    }

    pub(super) fn read_ioapic(&self, offset: u64) -> Result<u32, SystemError> {
        self.with(|chip, _| chip.read_ioapic(offset))
    }

    pub(super) fn write_ioapic(&self, offset: u64, value: u32) -> Result<(), SystemError> {
        self.with(|chip, _| chip.write_ioapic(offset, value))
    }

    pub(super) fn end_of_interrupt(&self, vector: u8) -> Result<(), SystemError> {
        self.with(|chip, _| chip.end_of_interrupt(vector))
    }

    /// Whether the PICs want to interrupt [`PIC_VCPU`].
    pub(super) fn pic_output(&self, vcpu: u32) -> bool {
        vcpu == PIC_VCPU && self.wiring.pic_output.load(Ordering::SeqCst)
    }

    /// The vector of the PICs' interrupt, which is in service from now on; `None` if they want none any
    /// more.
    pub(super) fn acknowledge(&self) -> Result<Option<u8>, SystemError> {
        self.with(|chip, _| chip.pic_output().then(|| chip.acknowledge()))
    }
}

impl Drop for WhpIrqChip {
    fn drop(&mut self) {
        lock(&self.wiring.board).is_closing = true;
        self.wiring.changed.notify_all();
        if let Some(timer) = lock(&self.timer).take() {
            // It has nothing to say.
            let _ = timer.join();
        }
    }
}

impl IrqChip for WhpIrqChip {
    fn set_line(&self, gsi: u32, asserted: bool) -> Result<(), SystemError> {
        if gsi >= IRQ_LINES {
            return Err(no_such("interrupt line"));
        }
        self.with(|chip, _| chip.set_line(gsi, asserted))
    }

    fn msi(&self, address: u64, data: u32) -> Result<(), SystemError> {
        let message = ApicMessage::from_msi(address, data);
        self.wiring
            .request(&message.ok_or_else(|| no_such("message-signalled interrupt"))?)
    }

    fn save(&self) -> Result<IrqChipState, StateError> {
        let board = lock(&self.wiring.board);
        let InterruptChipState {
            pic_primary,
            pic_secondary,
            ioapic,
            pit,
        } = board.chip.save(self.wiring.now_ns());
        Ok(IrqChipState {
            layout: LAYOUT.to_owned(),
            pic_primary,
            pic_secondary,
            ioapic,
            pit,
        })
    }

    fn restore(&self, state: &IrqChipState) -> Result<(), StateError> {
        let IrqChipState {
            layout,
            pic_primary,
            pic_secondary,
            ioapic,
            pit,
        } = state;
        if layout != LAYOUT {
            return Err(StateError::Incompatible {
                element: "interrupt chip",
                what: format!("layout '{layout}' is not this back end's, '{LAYOUT}'"),
            });
        }
        let parts = InterruptChipState {
            pic_primary: pic_primary.clone(),
            pic_secondary: pic_secondary.clone(),
            ioapic: ioapic.clone(),
            pit: pit.clone(),
        };
        self.with(|chip, now_ns| chip.restore(&parts, now_ns))
            .map_err(|source| StateError::Element {
                operation: "restore",
                element: "interrupt chip",
                source,
            })?
            .map_err(|error| malformed(&error))
    }
}

fn no_such(call: &'static str) -> SystemError {
    SystemError {
        call,
        source: std::io::ErrorKind::InvalidInput.into(),
    }
}

fn malformed(error: &RestoreError) -> StateError {
    StateError::Incompatible {
        element: error.device().unwrap_or("interrupt chip"),
        what: error.to_string(),
    }
}

impl Machine {
    /// Gives an interrupt to the local APICs that it names.
    fn request_interrupt(&self, control: &WHV_INTERRUPT_CONTROL) -> Result<(), SystemError> {
        // SAFETY: the structure has the size that is given, and lives until the call returns.
        let result = unsafe {
            (self.library.request_interrupt)(
                self.handle,
                control,
                size_of::<WHV_INTERRUPT_CONTROL>() as u32,
            )
        };
        checked("WHvRequestInterrupt", result)
    }
}
