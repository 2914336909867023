//! An IOAPIC with 24 inputs (Intel 82093AA data sheet).
//!
//! A level-triggered input sends while it is asserted, but not again before the local APIC has ended the
//! last one (*remote IRR*). An edge on a masked input is lost. The polarity of an input is the board's
//! business: a line here is asserted or it is not.

use super::state::{self, IoapicState};
use super::{ApicMessage, DeliveryMode, IRQ_LINES};
use crate::device::RestoreError;

/// Offsets in the window.
const SELECT: u64 = 0x00;
const WINDOW: u64 = 0x10;

/// Registers.
const ID: u8 = 0;
const VERSION: u8 = 1;
const ARBITRATION: u8 = 2;
const REDIRECTIONS: u8 = 0x10;
/// Version 0x11, and the number of the last entry.
const VERSION_VALUE: u32 = 0x11 | (IRQ_LINES - 1) << 16;

/// Fields of an entry.
const DELIVERY_SHIFT: u32 = 8;
const IS_LOGICAL: u64 = 1 << 11;
const REMOTE_IRR: u64 = 1 << 14;
const IS_LEVEL: u64 = 1 << 15;
const IS_MASKED: u64 = 1 << 16;
const DESTINATION_SHIFT: u32 = 56;
/// What a guest can write: not the delivery status (which is never *pending* here) and not remote IRR.
const WRITABLE: u64 = 0xff00_0000_0001_afff;
const POSSIBLE: u64 = WRITABLE | REMOTE_IRR;

/// The IOAPIC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ioapic {
    id: u8,
    selected: u8,
    lines: u32,
    redirections: [u64; IRQ_LINES as usize],
}

impl Default for Ioapic {
    fn default() -> Self {
        Self {
            id: 0,
            selected: 0,
            lines: 0,
            redirections: [IS_MASKED; IRQ_LINES as usize],
        }
    }
}

/// Whether an input with this entry waits for the end of what it sends. What has no vector (NMI, INIT) is
/// edge-triggered, whatever the entry says.
fn is_level(entry: u64) -> bool {
    entry & IS_LEVEL != 0
        && DeliveryMode::from_bits(entry >> DELIVERY_SHIFT).is_some_and(DeliveryMode::has_vector)
}

impl Ioapic {
    /// What input `line` sends, if it may.
    fn send(&mut self, line: usize) -> Option<ApicMessage> {
        let entry = self.redirections.get_mut(line)?;
        if *entry & IS_MASKED != 0 {
            return None;
        }
        let delivery = DeliveryMode::from_bits(*entry >> DELIVERY_SHIFT)?;
        let is_level = is_level(*entry);
        if is_level {
            *entry |= REMOTE_IRR;
        }
        Some(ApicMessage {
            vector: *entry as u8,
            delivery,
            destination: (*entry >> DESTINATION_SHIFT) as u8,
            is_logical: *entry & IS_LOGICAL != 0,
            is_level,
        })
    }

    /// What input `line` sends if it is level-triggered, asserted, and has nothing on its way.
    fn send_level(&mut self, line: usize) -> Option<ApicMessage> {
        let entry = *self.redirections.get(line)?;
        let is_due = self.lines >> line & 1 != 0 && is_level(entry) && entry & REMOTE_IRR == 0;
        is_due.then(|| self.send(line)).flatten()
    }

    pub(super) fn set_line(&mut self, line: u32, asserted: bool) -> Option<ApicMessage> {
        let bit = 1_u32.checked_shl(line)?;
        let was_asserted = self.lines & bit != 0;
        self.lines = self.lines & !bit | u32::from(asserted) << line;
        if !asserted || was_asserted {
            return None;
        }
        let entry = *self.redirections.get(line as usize)?;
        if is_level(entry) {
            self.send_level(line as usize)
        } else {
            self.send(line as usize)
        }
    }

    pub(super) fn end_of_interrupt(&mut self, vector: u8) -> Vec<ApicMessage> {
        for entry in &mut self.redirections {
            if *entry as u8 == vector && *entry & IS_LEVEL != 0 {
                *entry &= !REMOTE_IRR;
            }
        }
        self.resume()
    }

    /// What all inputs send that have waited.
    pub(super) fn resume(&mut self) -> Vec<ApicMessage> {
        (0..self.redirections.len())
            .filter_map(|line| self.send_level(line))
            .collect()
    }

    /// The entry that register `register` is a half of, and whether it is the upper one.
    fn entry_of(register: u8) -> Option<(usize, bool)> {
        let index = register.checked_sub(REDIRECTIONS)?;
        (u32::from(index) < 2 * IRQ_LINES).then_some((usize::from(index / 2), index % 2 != 0))
    }

    pub(super) fn read(&self, offset: u64) -> u32 {
        match offset {
            SELECT => u32::from(self.selected),
            WINDOW => match self.selected {
                ID | ARBITRATION => u32::from(self.id) << 24,
                VERSION => VERSION_VALUE,
                register => match Self::entry_of(register) {
                    Some((line, is_upper)) => {
                        let entry = self.redirections.get(line).copied().unwrap_or_default();
                        (entry >> if is_upper { 32 } else { 0 }) as u32
                    }
                    None => 0,
                },
            },
            _ => 0,
        }
    }

    pub(super) fn write(&mut self, offset: u64, value: u32) -> Option<ApicMessage> {
        match offset {
            SELECT => self.selected = value as u8,
            WINDOW if self.selected == ID => self.id = (value >> 24) as u8 & 0xf,
            WINDOW => {
                let (line, is_upper) = Self::entry_of(self.selected)?;
                let entry = self.redirections.get_mut(line)?;
                let (shift, half) = if is_upper {
                    (32, u64::from(u32::MAX) << 32)
                } else {
                    (0, u64::from(u32::MAX))
                };
                let changed = half & WRITABLE;
                *entry = *entry & !changed | u64::from(value) << shift & changed;
                if !is_level(*entry) {
                    // An edge-triggered input waits for nobody.
                    *entry &= !REMOTE_IRR;
                }
                return self.send_level(line);
            }
            _ => {}
        }
        None
    }

    pub(super) fn save(&self) -> Vec<u8> {
        let Self {
            id,
            selected,
            lines,
            redirections,
        } = self;
        let state = IoapicState {
            id: (*id).into(),
            selected: (*selected).into(),
            lines: *lines,
            redirections: redirections.to_vec(),
        };
        state::IOAPIC.encode(&state).bytes
    }

    pub(super) fn restored(bytes: &[u8]) -> Result<Self, RestoreError> {
        let format = &state::IOAPIC;
        let IoapicState {
            id,
            selected,
            lines,
            redirections,
        } = state::decode(format, bytes)?;
        if lines >> IRQ_LINES != 0 {
            return Err(format.impossible("lines", lines.into()));
        }
        let count = redirections.len() as u64;
        let redirections: [u64; IRQ_LINES as usize] = redirections
            .try_into()
            .map_err(|_| format.impossible("redirections", count))?;
        let is_possible =
            |entry: &u64| *entry & !POSSIBLE == 0 && (*entry & REMOTE_IRR == 0 || is_level(*entry));
        if let Some(entry) = redirections.iter().find(|entry| !is_possible(entry)) {
            return Err(format.impossible("redirections", *entry));
        }
        Ok(Self {
            id: format.bits("id", id, 0xf)?,
            selected: format.byte("selected", selected)?,
            lines,
            redirections,
        })
    }
}
