//! An 8254 interval timer (Intel 8254 data sheet), with the port that gates its third channel and shows
//! its output (Intel 82371AB data sheet, NMI status and control register).
//!
//! Nothing here counts: what a channel has counted and how often its output has risen follow from the
//! time since its count was written.

use super::state::{self, ChannelState, PitState};
use crate::device::RestoreError;

const FIRST_PORT: u16 = 0x40;
const CONTROL: u16 = 0x43;
const SPEAKER: u16 = 0x61;

/// Input frequency.
const HZ: u128 = 1_193_182;
const NS_PER_SECOND: u128 = 1_000_000_000;

/// Longer than any machine runs: a hundred years.
const AGE_MAX_NS: u64 = 100 * 366 * 86_400 * 1_000_000_000;

/// Bits of the speaker's port: the gate of channel 2, the speaker, a bit that toggles with each refresh
/// of memory (every 15 us), the output of channel 2.
const SPEAKER_GATE: u8 = 1;
const SPEAKER_DATA: u8 = 1 << 1;
const SPEAKER_REFRESH: u8 = 1 << 4;
const SPEAKER_OUTPUT: u8 = 1 << 5;
const REFRESH_NS: u64 = 15_085;

/// The control word's command that latches, by what follows.
const READ_BACK: u8 = 3;
const ACCESS_LOW: u8 = 1;
const ACCESS_HIGH: u8 = 2;
const ACCESS_BOTH: u8 = 3;
const STATUS_OUTPUT: u8 = 1 << 7;
const STATUS_NULL_COUNT: u8 = 1 << 6;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Channel {
    /// As it was written; 0 stands for the largest.
    count: u16,
    mode: u8,
    access: u8,
    is_decimal: bool,
    /// A count has been written since the mode was.
    is_loaded: bool,
    low_byte: Option<u8>,
    high_byte_is_next: bool,
    latched_count: Option<u16>,
    latched_status: Option<u8>,
    gate: bool,
    /// Since when it counts; while the gate is shut, for how long it has.
    counts_since: Since,
    edges_taken: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Since {
    /// Before the clock's own beginning, where a restored machine has counted for longer.
    Time {
        ns: i64,
    },
    Stopped {
        age_ns: u64,
    },
}

impl Channel {
    fn new(now_ns: u64, gate: bool) -> Self {
        Self {
            count: 0,
            mode: 0,
            access: ACCESS_BOTH,
            is_decimal: false,
            is_loaded: false,
            low_byte: None,
            high_byte_is_next: false,
            latched_count: None,
            latched_status: None,
            gate,
            counts_since: began(now_ns, 0),
            edges_taken: 0,
        }
    }

    fn age_ns(&self, now_ns: u64) -> u64 {
        match self.counts_since {
            Since::Time { ns } => now_ns.saturating_sub_signed(ns),
            Since::Stopped { age_ns } => age_ns,
        }
    }

    /// Periods of the input that it has counted.
    fn ticks(&self, now_ns: u64) -> u64 {
        (u128::from(self.age_ns(now_ns)) * HZ / NS_PER_SECOND) as u64
    }

    /// Periods from the count to zero.
    fn length(&self) -> u64 {
        match (self.count, self.is_decimal) {
            (0, false) => 0x1_0000,
            (0, true) => 10_000,
            (count, false) => u64::from(count),
            (count, true) => from_decimal(count).max(1),
        }
    }

    /// Modes 2 and 3 begin anew by themselves.
    fn is_periodic(&self) -> bool {
        matches!(self.mode, 2 | 3)
    }

    fn output(&self, now_ns: u64) -> bool {
        if !self.is_loaded {
            return self.mode != 0;
        }
        let (ticks, length) = (self.ticks(now_ns), self.length());
        match self.mode {
            0 | 1 => ticks >= length,
            2 => ticks % length != length - 1,
            3 => ticks % length < length.div_ceil(2),
            _ => ticks != length,
        }
    }

    /// How often the output has risen since the count was written.
    fn edges(&self, now_ns: u64) -> u64 {
        if !self.is_loaded {
            return 0;
        }
        let (ticks, length) = (self.ticks(now_ns), self.length());
        match self.mode {
            0 | 1 => u64::from(ticks >= length),
            2 | 3 => ticks / length,
            _ => u64::from(ticks > length),
        }
    }

    fn next_edge_ns(&self) -> Option<u64> {
        let Since::Time { ns } = self.counts_since else {
            return None;
        };
        if !self.is_loaded || !self.is_periodic() && self.edges_taken > 0 {
            return None;
        }
        let ticks = match self.mode {
            0 | 1 => self.length(),
            2 | 3 => self
                .length()
                .checked_mul(self.edges_taken.checked_add(1)?)?,
            _ => self.length() + 1,
        };
        let after_ns = (u128::from(ticks) * NS_PER_SECOND).div_ceil(HZ);
        u64::try_from(after_ns).ok()?.checked_add_signed(ns)
    }

    /// The count as a guest reads it.
    fn current_count(&self, now_ns: u64) -> u16 {
        let (ticks, length) = (self.ticks(now_ns), self.length());
        let turn = if self.is_decimal { 10_000 } else { 0x1_0000 };
        let left = match self.mode {
            _ if !self.is_loaded => length,
            2 => length - ticks % length,
            3 => length - (2 * (ticks % length)) % length,
            _ => (length + turn - ticks % turn) % turn,
        };
        if self.is_decimal {
            to_decimal(left % turn)
        } else {
            left as u16
        }
    }

    fn load(&mut self, count: u16, now_ns: u64) {
        self.count = count;
        self.is_loaded = true;
        self.edges_taken = 0;
        self.counts_since = if self.gate {
            began(now_ns, 0)
        } else {
            Since::Stopped { age_ns: 0 }
        };
    }

    fn write(&mut self, value: u8, now_ns: u64) {
        match (self.access, self.low_byte.take()) {
            (ACCESS_LOW, _) => self.load(u16::from(value), now_ns),
            (ACCESS_HIGH, _) => self.load(u16::from(value) << 8, now_ns),
            (_, None) => self.low_byte = Some(value),
            (_, Some(low)) => self.load(u16::from_le_bytes([low, value]), now_ns),
        }
    }

    fn read(&mut self, now_ns: u64) -> u8 {
        if let Some(status) = self.latched_status.take() {
            return status;
        }
        let count = self
            .latched_count
            .unwrap_or_else(|| self.current_count(now_ns));
        let [low, high] = count.to_le_bytes();
        let reads_high = match self.access {
            ACCESS_LOW => false,
            ACCESS_HIGH => true,
            _ => {
                self.high_byte_is_next = !self.high_byte_is_next;
                !self.high_byte_is_next
            }
        };
        if self.access != ACCESS_BOTH || reads_high {
            self.latched_count = None;
        }
        if reads_high { high } else { low }
    }

    fn latch_count(&mut self, now_ns: u64) {
        if self.latched_count.is_none() {
            self.latched_count = Some(self.current_count(now_ns));
        }
    }

    fn latch_status(&mut self, now_ns: u64) {
        let flags = [
            (self.output(now_ns), STATUS_OUTPUT),
            (!self.is_loaded, STATUS_NULL_COUNT),
            (self.is_decimal, 1),
        ];
        let status = self.access << 4 | self.mode << 1;
        let status = flags
            .into_iter()
            .filter(|(is_set, _)| *is_set)
            .fold(status, |status, (_, bit)| status | bit);
        self.latched_status.get_or_insert(status);
    }

    fn set_mode(&mut self, control: u8, now_ns: u64) {
        let mode = match control >> 1 & 7 {
            // The upper bit of modes 2 and 3 does not matter.
            mode @ 6..=7 => mode - 4,
            mode => mode,
        };
        *self = Self {
            mode,
            access: control >> 4 & 3,
            is_decimal: control & 1 != 0,
            ..Self::new(now_ns, self.gate)
        };
    }

    fn set_gate(&mut self, gate: bool, now_ns: u64) {
        if gate == self.gate {
            return;
        }
        self.gate = gate;
        if !gate {
            self.counts_since = Since::Stopped {
                age_ns: self.age_ns(now_ns),
            };
            return;
        }
        // In modes 0 and 4 the gate lets the count go on, in the others it begins it.
        let age_ns = match self.mode {
            0 | 4 => self.age_ns(now_ns),
            _ => 0,
        };
        self.counts_since = began(now_ns, age_ns);
    }

    fn save(&self, now_ns: u64) -> ChannelState {
        let Self {
            count,
            mode,
            access,
            is_decimal,
            is_loaded,
            low_byte,
            high_byte_is_next,
            latched_count,
            latched_status,
            gate,
            counts_since: _,
            edges_taken,
        } = *self;
        ChannelState {
            count: count.into(),
            mode: mode.into(),
            access: access.into(),
            is_decimal,
            is_loaded,
            low_byte: low_byte.map(u32::from),
            high_byte_is_next,
            latched_count: latched_count.map(u32::from),
            latched_status: latched_status.map(u32::from),
            gate,
            // What is not loaded does not count.
            age_ns: if is_loaded { self.age_ns(now_ns) } else { 0 },
            edges_taken,
        }
    }

    fn restored(state: &ChannelState, now_ns: u64) -> Result<Self, RestoreError> {
        let format = &state::PIT;
        let ChannelState {
            count,
            mode,
            access,
            is_decimal,
            is_loaded,
            low_byte,
            high_byte_is_next,
            latched_count,
            latched_status,
            gate,
            age_ns,
            edges_taken,
        } = *state;
        let word = |field, value: u32| {
            u16::try_from(value).map_err(|_| format.impossible(field, value.into()))
        };
        let byte =
            |field, value: Option<u32>| value.map(|value| format.byte(field, value)).transpose();
        if mode > 5 {
            return Err(format.impossible("mode", mode.into()));
        }
        if !matches!(access, 1..=3) {
            return Err(format.impossible("access", access.into()));
        }
        let mut channel = Self {
            count: word("count", count)?,
            mode: format.byte("mode", mode)?,
            access: format.byte("access", access)?,
            is_decimal,
            is_loaded,
            low_byte: byte("low_byte", low_byte)?,
            high_byte_is_next,
            latched_count: latched_count
                .map(|count| word("latched_count", count))
                .transpose()?,
            latched_status: byte("latched_status", latched_status)?,
            gate,
            counts_since: Since::Stopped { age_ns },
            edges_taken,
        };
        if age_ns > AGE_MAX_NS {
            return Err(format.impossible("age_ns", age_ns));
        }
        if edges_taken > channel.edges(now_ns) {
            return Err(format.impossible("edges_taken", edges_taken));
        }
        if gate {
            channel.counts_since = began(now_ns, age_ns);
        }
        Ok(channel)
    }
}

/// What has counted for `age_ns` at `now_ns`.
fn began(now_ns: u64, age_ns: u64) -> Since {
    Since::Time {
        ns: now_ns.cast_signed().saturating_sub_unsigned(age_ns),
    }
}

fn from_decimal(count: u16) -> u64 {
    [12, 8, 4, 0].iter().fold(0, |number, shift| {
        10 * number + u64::from(count >> shift & 0xf)
    })
}

fn to_decimal(number: u64) -> u16 {
    [1000, 100, 10, 1]
        .iter()
        .fold(0, |count, unit| count << 4 | (number / unit % 10) as u16)
}

/// The timer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pit {
    channels: [Channel; 3],
    has_speaker: bool,
}

impl Pit {
    pub(super) fn new(now_ns: u64) -> Self {
        Self {
            channels: [true, true, false].map(|gate| Channel::new(now_ns, gate)),
            has_speaker: false,
        }
    }

    pub(super) fn owns_port(port: u16) -> bool {
        matches!(port, FIRST_PORT..=CONTROL | SPEAKER)
    }

    fn speaker_channel(&mut self) -> &mut Channel {
        let [_, _, channel] = &mut self.channels;
        channel
    }

    pub(super) fn read(&mut self, port: u16, now_ns: u64) -> u8 {
        if port == SPEAKER {
            let has_speaker = self.has_speaker;
            let channel = self.speaker_channel();
            let flags = [
                (channel.gate, SPEAKER_GATE),
                (has_speaker, SPEAKER_DATA),
                (!(now_ns / REFRESH_NS).is_multiple_of(2), SPEAKER_REFRESH),
                (channel.output(now_ns), SPEAKER_OUTPUT),
            ];
            return flags
                .into_iter()
                .filter(|(is_set, _)| *is_set)
                .fold(0, |all, (_, bit)| all | bit);
        }
        let index = usize::from(port.wrapping_sub(FIRST_PORT));
        match self.channels.get_mut(index) {
            Some(channel) => channel.read(now_ns),
            // The control port can only be written.
            None => crate::numbers::FLOATING,
        }
    }

    pub(super) fn write(&mut self, port: u16, value: u8, now_ns: u64) {
        match port {
            SPEAKER => {
                self.has_speaker = value & SPEAKER_DATA != 0;
                self.speaker_channel()
                    .set_gate(value & SPEAKER_GATE != 0, now_ns);
            }
            CONTROL => self.control(value, now_ns),
            _ => {
                let index = usize::from(port.wrapping_sub(FIRST_PORT));
                if let Some(channel) = self.channels.get_mut(index) {
                    channel.write(value, now_ns);
                }
            }
        }
    }

    fn control(&mut self, value: u8, now_ns: u64) {
        let chosen = value >> 6;
        if chosen == READ_BACK {
            for (index, channel) in self.channels.iter_mut().enumerate() {
                if value >> (index + 1) & 1 == 0 {
                    continue;
                }
                if value & 0x20 == 0 {
                    channel.latch_count(now_ns);
                }
                if value & 0x10 == 0 {
                    channel.latch_status(now_ns);
                }
            }
            return;
        }
        if let Some(channel) = self.channels.get_mut(usize::from(chosen)) {
            match value >> 4 & 3 {
                0 => channel.latch_count(now_ns),
                _ => channel.set_mode(value, now_ns),
            }
        }
    }

    /// When channel 0's output rises next.
    pub(super) fn next_edge_ns(&self) -> Option<u64> {
        self.channels[0].next_edge_ns()
    }

    /// How often channel 0's output has risen since the last call.
    pub(super) fn take_edges(&mut self, now_ns: u64) -> u64 {
        let [channel, ..] = &mut self.channels;
        let edges = channel.edges(now_ns);
        edges.saturating_sub(std::mem::replace(&mut channel.edges_taken, edges))
    }

    pub(super) fn save(&self, now_ns: u64) -> Vec<u8> {
        let Self {
            channels,
            has_speaker,
        } = self;
        let state = PitState {
            channels: channels
                .iter()
                .map(|channel| channel.save(now_ns))
                .collect(),
            has_speaker: *has_speaker,
        };
        state::PIT.encode(&state).bytes
    }

    pub(super) fn restored(bytes: &[u8], now_ns: u64) -> Result<Self, RestoreError> {
        let format = &state::PIT;
        let PitState {
            channels,
            has_speaker,
        } = state::decode(format, bytes)?;
        let [first, second, third] = channels.as_slice() else {
            return Err(format.impossible("channels", channels.len() as u64));
        };
        let restored = |state| Channel::restored(state, now_ns);
        Ok(Self {
            channels: [restored(first)?, restored(second)?, restored(third)?],
            has_speaker,
        })
    }
}
