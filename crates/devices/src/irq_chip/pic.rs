//! Two 8259A interrupt controllers, the second on line 2 of the first (Intel 8259A data sheet), with the
//! registers that make single lines level-triggered (Intel 82371AB data sheet, ELCR1 and ELCR2).

use super::state::{self, PicState};
use crate::device::{RestoreError, UnitFormat};

const PRIMARY_COMMAND: u16 = 0x20;
const PRIMARY_DATA: u16 = 0x21;
const SECONDARY_COMMAND: u16 = 0xa0;
const SECONDARY_DATA: u16 = 0xa1;
const PRIMARY_TRIGGER: u16 = 0x4d0;
const SECONDARY_TRIGGER: u16 = 0x4d1;

/// Lines that can be made level-triggered; not those of the timer, the keyboard, the cascade, the clock
/// and the coprocessor.
const PRIMARY_TRIGGER_MASK: u8 = 0xf8;
const SECONDARY_TRIGGER_MASK: u8 = 0xde;

/// The line of the first that the second is on.
const CASCADE: u8 = 2;
/// What a controller gives that has nothing to give any more.
const SPURIOUS_LINE: u8 = 7;

/// Command words: the first initialization word, else the third operation word, else the second.
const IS_INITIALIZATION: u8 = 1 << 4;
const IS_OPERATION_3: u8 = 1 << 3;

/// [`PicState::modes`].
const MODE_FOURTH_WORD: u32 = 1 << 0;
const MODE_AUTO_END: u32 = 1 << 1;
const MODE_ROTATE_ON_AUTO_END: u32 = 1 << 2;
const MODE_SPECIAL_MASK: u32 = 1 << 3;
const MODE_SPECIAL_NESTED: u32 = 1 << 4;
const MODE_POLL: u32 = 1 << 5;
const MODE_READ_IN_SERVICE: u32 = 1 << 6;
const ALL_MODES: u32 = (1 << 7) - 1;

/// What the data port expects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Due {
    /// The controller has never been initialized, and interrupts nobody.
    #[default]
    FirstWord,
    SecondWord,
    ThirdWord,
    FourthWord,
    /// A mask: the controller works.
    Mask,
}

impl Due {
    fn number(self) -> u32 {
        match self {
            Self::Mask => 0,
            Self::SecondWord => 2,
            Self::ThirdWord => 3,
            Self::FourthWord => 4,
            Self::FirstWord => 5,
        }
    }

    fn from_number(number: u32) -> Option<Self> {
        [
            Self::Mask,
            Self::SecondWord,
            Self::ThirdWord,
            Self::FourthWord,
            Self::FirstWord,
        ]
        .into_iter()
        .find(|due| due.number() == number)
    }
}

/// One controller. Its bytes have a bit for each line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Pic {
    requests: u8,
    in_service: u8,
    masked: u8,
    lines: u8,
    level_triggered: u8,
    vector_base: u8,
    first_line: u8,
    due: Due,
    expects_fourth_word: bool,
    auto_end: bool,
    rotate_on_auto_end: bool,
    special_mask: bool,
    special_nested: bool,
    poll: bool,
    read_in_service: bool,
}

impl Pic {
    fn set_line(&mut self, line: u8, asserted: bool) {
        let bit = 1_u8 << line;
        let was_asserted = self.lines & bit != 0;
        self.lines = self.lines & !bit | u8::from(asserted) << line;
        if self.level_triggered & bit != 0 {
            self.requests = self.requests & !bit | self.lines & bit;
        } else if asserted && !was_asserted {
            self.requests |= bit;
        }
    }

    fn set_triggers(&mut self, level_triggered: u8) {
        self.level_triggered = level_triggered;
        self.requests = self.requests & !level_triggered | self.lines & level_triggered;
    }

    /// The line of `lines` that comes first, and how far behind [`Self::first_line`] it is; 8 if none.
    fn first_of(&self, lines: u8) -> (u8, u32) {
        let distance = lines
            .rotate_right(u32::from(self.first_line))
            .trailing_zeros();
        ((self.first_line + (distance as u8 & 7)) & 7, distance)
    }

    /// The line whose interrupt the processor should take now.
    fn pending(&self, is_primary: bool) -> Option<u8> {
        if self.due != Due::Mask {
            return None;
        }
        let mut in_service = self.in_service;
        if self.special_mask {
            in_service &= !self.masked;
        }
        if self.special_nested && is_primary {
            in_service &= !(1 << CASCADE);
        }
        let (line, distance) = self.first_of(self.requests & !self.masked);
        (distance < self.first_of(in_service).1).then_some(line)
    }

    fn acknowledge(&mut self, line: u8) {
        let bit = 1 << line;
        if self.level_triggered & bit == 0 {
            self.requests &= !bit;
        }
        if !self.auto_end {
            self.in_service |= bit;
        } else if self.rotate_on_auto_end {
            self.first_line = (line + 1) & 7;
        }
    }

    fn write_command(&mut self, value: u8) {
        if value & IS_INITIALIZATION != 0 {
            *self = Self {
                lines: self.lines,
                level_triggered: self.level_triggered,
                // Edges are forgotten, levels are what they are.
                requests: self.lines & self.level_triggered,
                vector_base: self.vector_base,
                due: Due::SecondWord,
                expects_fourth_word: value & 1 != 0,
                ..Self::default()
            };
        } else if value & IS_OPERATION_3 != 0 {
            self.poll = value & 4 != 0;
            if value & 2 != 0 {
                self.read_in_service = value & 1 != 0;
            }
            if value & 0x40 != 0 {
                self.special_mask = value & 0x20 != 0;
            }
        } else {
            self.end_or_rotate(value);
        }
    }

    /// The second operation word.
    fn end_or_rotate(&mut self, value: u8) {
        let rotates = value & 0x80 != 0;
        let named = value & 7;
        match value >> 5 & 3 {
            0 => self.rotate_on_auto_end = rotates,
            1 => {
                let (line, distance) = self.first_of(self.in_service);
                if distance < 8 {
                    self.in_service &= !(1 << line);
                    if rotates {
                        self.first_line = (line + 1) & 7;
                    }
                }
            }
            2 if rotates => self.first_line = (named + 1) & 7,
            3 => {
                self.in_service &= !(1 << named);
                if rotates {
                    self.first_line = (named + 1) & 7;
                }
            }
            _ => {}
        }
    }

    fn write_data(&mut self, value: u8) {
        self.due = match self.due {
            Due::FirstWord | Due::Mask => {
                self.masked = value;
                return;
            }
            Due::SecondWord => {
                self.vector_base = value & 0xf8;
                Due::ThirdWord
            }
            Due::ThirdWord if self.expects_fourth_word => Due::FourthWord,
            Due::ThirdWord => Due::Mask,
            Due::FourthWord => {
                self.special_nested = value & 0x10 != 0;
                self.auto_end = value & 2 != 0;
                Due::Mask
            }
        };
    }

    /// Reads a port; of the poll command, the line that it has taken is the second value.
    fn read(&mut self, is_data: bool, is_primary: bool) -> (u8, Option<u8>) {
        if std::mem::take(&mut self.poll) {
            return match self.pending(is_primary) {
                Some(line) => {
                    self.acknowledge(line);
                    (0x80 | line, Some(line))
                }
                None => (0, None),
            };
        }
        let value = if is_data {
            self.masked
        } else if self.read_in_service {
            self.in_service
        } else {
            self.requests
        };
        (value, None)
    }

    fn save(&self, format: &UnitFormat) -> Vec<u8> {
        let Self {
            requests,
            in_service,
            masked,
            lines,
            level_triggered,
            vector_base,
            first_line,
            due,
            expects_fourth_word,
            auto_end,
            rotate_on_auto_end,
            special_mask,
            special_nested,
            poll,
            read_in_service,
        } = *self;
        let modes = [
            (expects_fourth_word, MODE_FOURTH_WORD),
            (auto_end, MODE_AUTO_END),
            (rotate_on_auto_end, MODE_ROTATE_ON_AUTO_END),
            (special_mask, MODE_SPECIAL_MASK),
            (special_nested, MODE_SPECIAL_NESTED),
            (poll, MODE_POLL),
            (read_in_service, MODE_READ_IN_SERVICE),
        ];
        let state = PicState {
            requests: requests.into(),
            in_service: in_service.into(),
            masked: masked.into(),
            lines: lines.into(),
            level_triggered: level_triggered.into(),
            vector_base: vector_base.into(),
            first_line: first_line.into(),
            due_word: due.number(),
            modes: modes
                .into_iter()
                .filter(|(is_on, _)| *is_on)
                .fold(0, |all, (_, bit)| all | bit),
        };
        format_bytes(format, &state)
    }

    fn restored(format: &UnitFormat, bytes: &[u8], trigger_mask: u8) -> Result<Self, RestoreError> {
        let PicState {
            requests,
            in_service,
            masked,
            lines,
            level_triggered,
            vector_base,
            first_line,
            due_word,
            modes,
        } = state::decode(format, bytes)?;
        if modes & !ALL_MODES != 0 {
            return Err(format.impossible("modes", modes.into()));
        }
        let has = |mode: u32| modes & mode != 0;
        Ok(Self {
            requests: format.byte("requests", requests)?,
            in_service: format.byte("in_service", in_service)?,
            masked: format.byte("masked", masked)?,
            lines: format.byte("lines", lines)?,
            level_triggered: format.bits("level_triggered", level_triggered, trigger_mask)?,
            vector_base: format.bits("vector_base", vector_base, 0xf8)?,
            first_line: format.bits("first_line", first_line, 7)?,
            due: Due::from_number(due_word)
                .ok_or_else(|| format.impossible("due_word", due_word.into()))?,
            expects_fourth_word: has(MODE_FOURTH_WORD),
            auto_end: has(MODE_AUTO_END),
            rotate_on_auto_end: has(MODE_ROTATE_ON_AUTO_END),
            special_mask: has(MODE_SPECIAL_MASK),
            special_nested: has(MODE_SPECIAL_NESTED),
            poll: has(MODE_POLL),
            read_in_service: has(MODE_READ_IN_SERVICE),
        })
    }
}

fn format_bytes(format: &UnitFormat, state: &PicState) -> Vec<u8> {
    format.encode(state).bytes
}

/// Both controllers. After power-on they interrupt nobody until they are initialized.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pics {
    primary: Pic,
    secondary: Pic,
}

impl Pics {
    pub(super) fn owns_port(port: u16) -> bool {
        matches!(
            port,
            PRIMARY_COMMAND
                | PRIMARY_DATA
                | SECONDARY_COMMAND
                | SECONDARY_DATA
                | PRIMARY_TRIGGER
                | SECONDARY_TRIGGER
        )
    }

    /// The second controller's output is a line of the first, and what it wants may have changed.
    fn connect(&mut self) {
        let output = self.secondary.pending(false).is_some();
        let bit = 1 << CASCADE;
        self.primary.requests = self.primary.requests & !bit | u8::from(output) << CASCADE;
    }

    pub(super) fn set_line(&mut self, line: u32, asserted: bool) {
        match line {
            0..8 if line != u32::from(CASCADE) => self.primary.set_line(line as u8, asserted),
            8..16 => self.secondary.set_line(line as u8 - 8, asserted),
            _ => {}
        }
        self.connect();
    }

    pub(super) fn output(&self) -> bool {
        self.primary.pending(true).is_some()
    }

    pub(super) fn acknowledge(&mut self) -> u8 {
        let vector = match self.primary.pending(true) {
            Some(CASCADE) => {
                self.primary.acknowledge(CASCADE);
                let line = self.secondary.pending(false);
                if let Some(line) = line {
                    self.secondary.acknowledge(line);
                }
                self.secondary.vector_base | line.unwrap_or(SPURIOUS_LINE)
            }
            Some(line) => {
                self.primary.acknowledge(line);
                self.primary.vector_base | line
            }
            None => self.primary.vector_base | SPURIOUS_LINE,
        };
        self.connect();
        vector
    }

    pub(super) fn read(&mut self, port: u16) -> u8 {
        let (value, polled) = match port {
            PRIMARY_TRIGGER => (self.primary.level_triggered, None),
            SECONDARY_TRIGGER => (self.secondary.level_triggered, None),
            PRIMARY_COMMAND | PRIMARY_DATA => self.primary.read(port & 1 != 0, true),
            _ => self.secondary.read(port & 1 != 0, false),
        };
        if polled.is_some() {
            self.connect();
        }
        value
    }

    pub(super) fn write(&mut self, port: u16, value: u8) {
        match port {
            PRIMARY_COMMAND => self.primary.write_command(value),
            PRIMARY_DATA => self.primary.write_data(value),
            PRIMARY_TRIGGER => self.primary.set_triggers(value & PRIMARY_TRIGGER_MASK),
            SECONDARY_COMMAND => self.secondary.write_command(value),
            SECONDARY_DATA => self.secondary.write_data(value),
            _ => self.secondary.set_triggers(value & SECONDARY_TRIGGER_MASK),
        }
        self.connect();
    }

    pub(super) fn save(&self) -> [Vec<u8>; 2] {
        [
            self.primary.save(&state::PIC_PRIMARY),
            self.secondary.save(&state::PIC_SECONDARY),
        ]
    }

    pub(super) fn restored(primary: &[u8], secondary: &[u8]) -> Result<Self, RestoreError> {
        let mut pics = Self {
            primary: Pic::restored(&state::PIC_PRIMARY, primary, PRIMARY_TRIGGER_MASK)?,
            secondary: Pic::restored(&state::PIC_SECONDARY, secondary, SECONDARY_TRIGGER_MASK)?,
        };
        pics.connect();
        Ok(pics)
    }
}
