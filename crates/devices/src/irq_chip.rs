//! The interrupt controllers and the timer of a PC, for a hypervisor that gives a guest local APICs and
//! nothing else: two 8259A ([`Pics`]), an IOAPIC ([`Ioapic`]) and an 8254 ([`Pit`]).
//!
//! A line leads to the PIC and the IOAPIC input of its number, as with the kernel's chip on KVM; the
//! timer drives line 0. What the IOAPIC sends is collected as [`ApicMessage`]s, which whoever owns the
//! chip takes and delivers; what the PICs want is one output ([`InterruptChip::pic_output`]), answered by
//! [`InterruptChip::acknowledge`]. Time comes from outside, in nanoseconds that never go back.

mod ioapic;
mod pic;
mod pit;
mod state;

pub use ioapic::Ioapic;
pub use pic::Pics;
pub use pit::Pit;

use crate::device::RestoreError;

/// Lines of the chip: inputs of the IOAPIC, of which the first 16 are those of the PICs too.
pub const IRQ_LINES: u32 = 24;
/// Where the IOAPIC's registers are in guest memory (Intel 82093AA data sheet, section 3.0).
pub const IOAPIC_ADDRESS: u64 = 0xfec0_0000;
/// Size of their window.
pub const IOAPIC_WINDOW_BYTES: u64 = 0x1000;

/// The line of the timer's channel 0.
const TIMER_LINE: u32 = 0;

/// How a local APIC takes an interrupt (Intel SDM volume 3, table 12-4), as far as it can be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeliveryMode {
    /// To all that are named.
    Fixed,
    /// To the one of those that are named which does the least important work.
    LowestPriority,
    /// As a non-maskable interrupt.
    Nmi,
    /// As INIT.
    Init,
}

impl DeliveryMode {
    /// From the three bits that stand for it; `None` for system management, which no guest here has, for
    /// external interrupts, which come from the PICs by a line of their own, and for reserved values.
    fn from_bits(bits: u64) -> Option<Self> {
        match bits & 7 {
            0 => Some(Self::Fixed),
            1 => Some(Self::LowestPriority),
            4 => Some(Self::Nmi),
            5 => Some(Self::Init),
            _ => None,
        }
    }

    /// Whether the vector and the trigger mode mean something.
    fn has_vector(self) -> bool {
        matches!(self, Self::Fixed | Self::LowestPriority)
    }
}

/// An interrupt on its way to local APICs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ApicMessage {
    /// Its vector.
    pub vector: u8,
    /// How it is taken.
    pub delivery: DeliveryMode,
    /// Whom it is for: an APIC id, or a set.
    pub destination: u8,
    /// The destination is a set of logical ids.
    pub is_logical: bool,
    /// It is level-triggered: its end is to be told to [`InterruptChip::end_of_interrupt`].
    pub is_level: bool,
}

impl ApicMessage {
    /// A message-signalled interrupt (Intel SDM volume 3, section 12.11); `None` if the address or the
    /// data are not of one that can be sent.
    #[must_use]
    pub fn from_msi(address: u64, data: u32) -> Option<Self> {
        const PREFIX: u64 = 0xfee;
        const IS_LOGICAL: u64 = 1 << 2;
        const IS_LEVEL: u32 = 1 << 15;
        if address >> 20 != PREFIX {
            return None;
        }
        Some(Self {
            vector: data as u8,
            delivery: DeliveryMode::from_bits(u64::from(data >> 8))?,
            destination: (address >> 12) as u8,
            is_logical: address & IS_LOGICAL != 0,
            is_level: data & IS_LEVEL != 0,
        })
    }
}

/// The saved state of a chip: one payload for each part, which need not be looked into.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InterruptChipState {
    /// The first PIC.
    pub pic_primary: Vec<u8>,
    /// The second PIC.
    pub pic_secondary: Vec<u8>,
    /// The IOAPIC.
    pub ioapic: Vec<u8>,
    /// The timer.
    pub pit: Vec<u8>,
}

/// All of them, connected.
#[derive(Clone, Debug)]
pub struct InterruptChip {
    pics: Pics,
    ioapic: Ioapic,
    pit: Pit,
    messages: Vec<ApicMessage>,
}

impl InterruptChip {
    /// The chip after power-on, at `now_ns`.
    #[must_use]
    pub fn new(now_ns: u64) -> Self {
        Self {
            pics: Pics::default(),
            ioapic: Ioapic::default(),
            pit: Pit::new(now_ns),
            messages: Vec::new(),
        }
    }

    /// Whether the chip answers at `port`.
    #[must_use]
    pub fn owns_port(port: u16) -> bool {
        Pics::owns_port(port) || Pit::owns_port(port)
    }

    /// The offset in the IOAPIC's window of an access to `address`, if it is one.
    #[must_use]
    pub fn ioapic_offset(address: u64) -> Option<u64> {
        let offset = address.checked_sub(IOAPIC_ADDRESS)?;
        (offset < IOAPIC_WINDOW_BYTES).then_some(offset)
    }

    /// Sets the level of a line; a line that there is not is ignored.
    pub fn set_line(&mut self, line: u32, asserted: bool) {
        if line >= IRQ_LINES {
            return;
        }
        self.pics.set_line(line, asserted);
        self.messages.extend(self.ioapic.set_line(line, asserted));
    }

    /// Reads one of the chip's ports.
    pub fn read_port(&mut self, port: u16, now_ns: u64) -> u8 {
        if Pit::owns_port(port) {
            self.pit.read(port, now_ns)
        } else {
            self.pics.read(port)
        }
    }

    /// Writes one of the chip's ports.
    pub fn write_port(&mut self, port: u16, value: u8, now_ns: u64) {
        if Pit::owns_port(port) {
            self.pit.write(port, value, now_ns);
        } else {
            self.pics.write(port, value);
        }
    }

    /// Reads a register of the IOAPIC.
    #[must_use]
    pub fn read_ioapic(&self, offset: u64) -> u32 {
        self.ioapic.read(offset)
    }

    /// Writes a register of the IOAPIC.
    pub fn write_ioapic(&mut self, offset: u64, value: u32) {
        self.messages.extend(self.ioapic.write(offset, value));
    }

    /// A local APIC has ended the level-triggered interrupt `vector`.
    pub fn end_of_interrupt(&mut self, vector: u8) {
        self.messages.extend(self.ioapic.end_of_interrupt(vector));
    }

    /// The time that the timer's line changes next, if it does.
    #[must_use]
    pub fn next_tick_ns(&self) -> Option<u64> {
        self.pit.next_edge_ns()
    }

    /// Lets the timer drive its line, once for however many periods have passed.
    pub fn tick(&mut self, now_ns: u64) {
        if self.pit.take_edges(now_ns) > 0 {
            self.set_line(TIMER_LINE, true);
            self.set_line(TIMER_LINE, false);
        }
    }

    /// What is to be delivered to local APICs, each once.
    pub fn take_messages(&mut self) -> Vec<ApicMessage> {
        std::mem::take(&mut self.messages)
    }

    /// Whether the PICs want to interrupt the processor.
    #[must_use]
    pub fn pic_output(&self) -> bool {
        self.pics.output()
    }

    /// The vector of the PICs' interrupt, which is in service from now on.
    pub fn acknowledge(&mut self) -> u8 {
        self.pics.acknowledge()
    }

    /// The state at `now_ns`. No message may be waiting.
    #[must_use]
    pub fn save(&self, now_ns: u64) -> InterruptChipState {
        let [pic_primary, pic_secondary] = self.pics.save();
        InterruptChipState {
            pic_primary,
            pic_secondary,
            ioapic: self.ioapic.save(),
            pit: self.pit.save(now_ns),
        }
    }

    /// Takes over a saved state: time goes on from `now_ns`, and a level-triggered line that is asserted
    /// and has nothing on its way sends.
    ///
    /// # Errors
    /// A part is malformed; it is named, and the chip is unchanged.
    pub fn restore(&mut self, state: &InterruptChipState, now_ns: u64) -> Result<(), RestoreError> {
        let InterruptChipState {
            pic_primary,
            pic_secondary,
            ioapic,
            pit,
        } = state;
        let pics = Pics::restored(pic_primary, pic_secondary)?;
        let mut ioapic = Ioapic::restored(ioapic)?;
        let pit = Pit::restored(pit, now_ns)?;
        *self = Self {
            messages: ioapic.resume(),
            pics,
            ioapic,
            pit,
        };
        Ok(())
    }
}

#[cfg(test)]
mod tests;
