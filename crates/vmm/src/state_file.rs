//! A machine's state as the units of `state.bin`, in inventory order.

use std::path::Path;

use nvx_hypervisor::{ClockState, IrqChipState, Partition, SavedState, Vcpu, VcpuState};
use nvx_snapshot::{Device, StateError, StateReader, StateWriter};

use crate::control_line::{ControlLine, ControlLineState};
use crate::error::{CaptureError, RestoreError, UnitError};
use crate::vcpu_thread::lock_vcpu;
use crate::vm::Vm;

/// Unit name of the interrupt chip.
const IRQ_CHIP: &str = "irq-chip";
/// Unit name of the monitor's end of the control line.
const CONTROL_LINE: &str = "control-line";
/// Unit name of the guest clock.
const CLOCK: &str = "guest-clock";

fn vcpu_unit(index: usize) -> String {
    format!("vcpu.{index}")
}

fn device_unit(name: &str) -> String {
    format!("device.{name}")
}

/// What a capture saves.
pub(crate) struct SavedMachine {
    /// The content of `state.bin`.
    pub(crate) state: Vec<u8>,
    /// The devices in inventory order, for the manifest.
    pub(crate) devices: Vec<Device>,
    /// CPUID of the vCPU that boots, for the manifest.
    pub(crate) cpu: nvx_hypervisor::CpuModel,
}

/// Saves partition, vCPU and device state of a stopped machine.
pub(crate) fn save(vm: &mut Vm) -> Result<SavedMachine, CaptureError> {
    let mut writer = StateWriter::new();
    let first = save_vcpu(&mut *vm.first_vcpu, &mut writer)?;
    for cell in &vm.other_vcpus {
        save_vcpu(&mut **lock_vcpu(cell), &mut writer)?;
    }
    if let Some(irq_chip) = vm.partition.irq_chip() {
        let state = irq_chip.save().map_err(failed(IRQ_CHIP))?;
        put(&mut writer, IRQ_CHIP, &state)?;
    }
    let mut devices = Vec::new();
    for (name, saved) in vm.shared.ports().save() {
        writer.put(&device_unit(name), saved.kind, saved.version, &saved.bytes)?;
        devices.push(Device {
            name: name.to_owned(),
            kind: saved.kind.to_owned(),
            version: saved.version,
        });
    }
    if let Some(line) = &vm.shared.control_line {
        put(&mut writer, CONTROL_LINE, &line.save())?;
    }
    // The clock last: guest time is what has passed until here.
    if let Some(clock) = vm.partition.clock() {
        let guest_ns = clock.get().map_err(failed(CLOCK))?;
        put(&mut writer, CLOCK, &ClockState { guest_ns })?;
    }
    Ok(SavedMachine {
        state: writer.finish(),
        devices,
        cpu: nvx_hypervisor::CpuModel {
            entries: first.cpuid,
        },
    })
}

fn save_vcpu(vcpu: &mut dyn Vcpu, writer: &mut StateWriter) -> Result<VcpuState, CaptureError> {
    let unit = vcpu_unit(usize::from(vcpu.index()));
    let state = vcpu.save().map_err(failed(&unit))?;
    put(writer, &unit, &state)?;
    Ok(state)
}

fn failed<E: Into<UnitError>>(unit: &str) -> impl Fn(E) -> CaptureError + '_ {
    move |error| CaptureError::Save {
        unit: unit.to_owned(),
        source: error.into(),
    }
}

fn put<S: SavedState>(writer: &mut StateWriter, unit: &str, state: &S) -> Result<(), StateError> {
    writer.put(unit, S::KIND, S::VERSION, &state.to_payload())
}

/// Reads units and gives refusals the snapshot's and the unit's name.
pub(crate) struct Units<'a> {
    snapshot: &'a Path,
    reader: StateReader<'a>,
}

impl<'a> Units<'a> {
    pub(crate) fn new(snapshot: &'a Path, reader: StateReader<'a>) -> Self {
        Self { snapshot, reader }
    }

    fn envelope_error(&self) -> impl Fn(StateError) -> RestoreError + use<> {
        let snapshot = self.snapshot.to_owned();
        move |source| RestoreError::State {
            snapshot: snapshot.clone(),
            source,
        }
    }

    fn unit_error<E: Into<UnitError>>(&self, unit: &str) -> impl Fn(E) -> RestoreError + use<E> {
        let snapshot = self.snapshot.to_owned();
        let unit = unit.to_owned();
        move |error| RestoreError::Unit {
            snapshot: snapshot.clone(),
            unit: unit.clone(),
            source: error.into(),
        }
    }

    fn take<S: SavedState>(&mut self, unit: &str) -> Result<S, RestoreError> {
        let payload = self.reader.take(unit).map_err(self.envelope_error())?;
        let bytes = payload
            .require(S::KIND, S::VERSION..=S::VERSION)
            .map_err(self.envelope_error())?;
        S::from_payload(bytes).map_err(self.unit_error(unit))
    }

    /// Restores vCPU `index`.
    pub(crate) fn restore_vcpu(
        &mut self,
        index: usize,
        vcpu: &mut dyn Vcpu,
    ) -> Result<(), RestoreError> {
        let unit = vcpu_unit(index);
        let state: VcpuState = self.take(&unit)?;
        vcpu.restore(&state).map_err(self.unit_error(&unit))
    }

    /// Restores the interrupt chip, if the back end has one. After every vCPU.
    pub(crate) fn restore_irq_chip(
        &mut self,
        partition: &dyn Partition,
    ) -> Result<(), RestoreError> {
        let Some(irq_chip) = partition.irq_chip() else {
            return Ok(());
        };
        let state: IrqChipState = self.take(IRQ_CHIP)?;
        irq_chip.restore(&state).map_err(self.unit_error(IRQ_CHIP))
    }

    /// Restores every device, in inventory order.
    pub(crate) fn restore_devices(
        &mut self,
        ports: &mut nvx_devices::Ports,
    ) -> Result<(), RestoreError> {
        let names: Vec<_> = ports.names().collect();
        for name in names {
            let unit = device_unit(name);
            let payload = self.reader.take(&unit).map_err(self.envelope_error())?;
            ports
                .restore(name, payload.kind, payload.version, payload.bytes)
                .map_err(self.unit_error(&unit))?;
        }
        Ok(())
    }

    /// Restores the monitor's end of the control line.
    pub(crate) fn restore_control_line(&mut self, line: &ControlLine) -> Result<(), RestoreError> {
        let state: ControlLineState = self.take(CONTROL_LINE)?;
        line.restore(&state).map_err(self.unit_error(CONTROL_LINE))
    }

    /// Sets the guest clock, if the back end has one, and makes sure that nothing is left over.
    /// The last step before the guest runs: time passes from here on.
    pub(crate) fn restore_clock(mut self, partition: &dyn Partition) -> Result<(), RestoreError> {
        let clock: Option<ClockState> = match partition.clock() {
            Some(_) => Some(self.take(CLOCK)?),
            None => None,
        };
        let (envelope_error, clock_error) = (self.envelope_error(), self.unit_error(CLOCK));
        self.reader.finish().map_err(envelope_error)?;
        match (partition.clock(), clock) {
            (Some(clock), Some(state)) => clock.set(state.guest_ns).map_err(clock_error),
            _ => Ok(()),
        }
    }
}
