//! The control line: what the monitor and `nvx` inside a guest say to each other over COM2.
//!
//! Each message is one line of printable ASCII, at most [`MAX_LINE_BYTES`] with its newline: a verb,
//! then `key=value` fields in a fixed order, separated by single spaces. The line is the second 16550
//! ([`IO_PORT`], [`IRQ`]), which every stock kernel drives without a module.
//!
//! The exchange:
//! - [`FromGuest::Ready`] comes when the guest's init listens. Before it, and from a guest that has
//!   another init, nothing comes, and nothing may be sent that such a guest would have to take.
//! - The monitor then sends [`ToGuest::Size`] if its output is a terminal, now and whenever the size
//!   changes, [`ToGuest::Signal`] for each signal that it forwards, and [`ToGuest::InputEnd`] once its
//!   standard input has ended.
//! - After a restore the monitor sends [`ToGuest::Restored`] before anything else. The guest repairs
//!   what two copies must not share, and answers [`FromGuest::Repaired`] and then [`FromGuest::Ready`].
//! - [`FromGuest::Snapshot`] asks for a snapshot, as does a byte written to [`SNAPSHOT_PORT`]. The source, and a
//!   guest whose capture failed, are answered [`ToGuest::Snapshot`]; a copy knows itself by
//!   [`ToGuest::Restored`]. A request that has no destination is answered where it was made.
//! - [`FromGuest::Failed`] says why no command was run, [`FromGuest::Notice`] anything else that the
//!   user should know, [`FromGuest::Exit`] how the command ended. The
//!   guest has written all its output to the console before it, so the monitor ends the machine at once;
//!   under another monitor the guest then powers off.
//!
//! Both UARTs give the guest input only while it raises RTS (bit 1 of the modem control register), and
//! always report CTS, DSR and DCD: a tty has no other way to make its line wait, and drops what it has
//! no room for. The guest's init turns this flow control on (`CRTSCTS`).
//!
//! Both sides read with a [`LineBuffer`], which is bounded and drops what is no message: a guest is
//! not trusted, and a line that was cut by a capture or by another user of the port must not hold up
//! those that follow.

use std::fmt::{self, Display, Formatter, Write as _};

/// First I/O port of the line's 16550: COM2.
pub const IO_PORT: u16 = 0x2f8;
/// The interrupt of the line's 16550: COM2's.
pub const IRQ: u32 = 3;
/// The I/O port by which a guest asks for a snapshot as well: any byte written to it asks, a byte read from it tells what
/// became of the last request.
pub const SNAPSHOT_PORT: u16 = 0x605;
/// What [`SNAPSHOT_PORT`] reads after a request that was refused.
pub const SNAPSHOT_REFUSED: u8 = 1;
/// What it reads after one by which this machine was captured, and is the source.
pub const SNAPSHOT_SOURCE: u8 = 2;
/// Longest line, newline included. The longest message, [`ToGuest::Restored`], has 238 bytes.
pub const MAX_LINE_BYTES: usize = 512;
/// Fresh random bytes that a restored guest is given: the size of a seed that the kernel takes in
/// one `RNDADDENTROPY`, twice its generator's key.
pub const ENTROPY_BYTES: usize = 64;
/// Bytes of a VM generation ID (the 128-bit buffer of the Virtual Machine Generation ID specification).
pub const GENERATION_BYTES: usize = 16;
/// Longest text in [`FromGuest::Failed`] and [`FromGuest::Notice`]; what is longer is cut.
pub const MAX_TEXT_BYTES: usize = 400;

/// What a restored guest does with its wall clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// Set it to the host's.
    Advance {
        /// Nanoseconds since the Unix epoch, read from the host's clock when the message was written.
        realtime_ns: u64,
    },
    /// Leave it as it was when the guest was captured.
    Freeze,
}

/// How the guest uses its console.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConsoleMode {
    /// As a terminal: it edits, echoes and makes signals of keys itself, so the user's terminal is to
    /// be raw.
    Terminal,
    /// As a stream of bytes in each direction, like a pipe.
    Stream,
}

/// What the monitor tells the guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToGuest {
    /// This guest is a restored copy.
    Restored {
        /// The copy's VM generation ID.
        generation: [u8; GENERATION_BYTES],
        /// Fresh random bytes that no other copy is given.
        entropy: [u8; ENTROPY_BYTES],
        /// What to do with the wall clock.
        clock: Clock,
    },
    /// The size of the user's terminal.
    Size {
        /// Columns of characters.
        columns: u16,
        /// Rows of characters.
        rows: u16,
    },
    /// A signal for the guest's command.
    Signal {
        /// Its number on x86-64 Linux, 1 to 64.
        number: u8,
    },
    /// What became of the snapshot that the guest asked for. A restored copy is told
    /// [`ToGuest::Restored`] instead.
    Snapshot {
        /// Whether it was taken, and this guest is its source.
        taken: bool,
    },
    /// The console's input has ended.
    InputEnd {
        /// How many bytes of input the guest has taken from its UART since it was booted, captures
        /// and restores included. Bytes and messages take two ways, so a guest that has read fewer
        /// still waits for the rest.
        bytes: u64,
    },
}

/// What the guest tells the monitor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FromGuest {
    /// The guest's init listens.
    Ready {
        /// How the console is used from here on.
        mode: ConsoleMode,
    },
    /// A restored copy no longer shares its random numbers or its clock with any other.
    Repaired {
        /// Microseconds from taking [`ToGuest::Restored`] to the end of the repair, on the guest's clock.
        elapsed_us: u64,
    },
    /// The guest asks for a snapshot of itself.
    Snapshot,
    /// The guest's init could not run the command; [`FromGuest::Exit`] follows.
    Failed {
        /// Why, in printable ASCII.
        reason: String,
    },
    /// Something that the user should know; the guest goes on.
    Notice {
        /// What, in printable ASCII.
        text: String,
    },
    /// The command ended.
    Exit {
        /// Its exit status, or 128 plus the number of the signal that ended it.
        status: u8,
    },
}

/// A line that is no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// The line is longer than any message, or has bytes that are not printable ASCII.
    #[error("not a line of at most {MAX_LINE_BYTES} bytes of printable ASCII")]
    NotALine,
    /// The first word says nothing.
    #[error("unknown verb")]
    Verb,
    /// A field is missing, misnamed or superfluous.
    #[error("field {0} is missing, or something else is there")]
    Field(&'static str),
    /// A field's value is malformed or out of range.
    #[error("field {0} has no valid value")]
    Value(&'static str),
}

impl ToGuest {
    /// Reads one line, with or without its newline.
    ///
    /// # Errors
    /// The line is no such message.
    pub fn parse(line: &[u8]) -> Result<Self, ParseError> {
        let mut fields = Fields::of(line)?;
        let message = match fields.verb {
            "restored" => Self::Restored {
                generation: fields.bytes("generation")?,
                entropy: fields.bytes("entropy")?,
                clock: match fields.text("clock")? {
                    "advance" => Clock::Advance {
                        realtime_ns: fields.number("realtime_ns")?,
                    },
                    "freeze" => Clock::Freeze,
                    _ => return Err(ParseError::Value("clock")),
                },
            },
            "size" => Self::Size {
                columns: fields.number("cols")?,
                rows: fields.number("rows")?,
            },
            "signal" => Self::Signal {
                number: match fields.number("number")? {
                    number @ 1..=64 => number,
                    _ => return Err(ParseError::Value("number")),
                },
            },
            "snapshot" => Self::Snapshot {
                taken: match fields.text("outcome")? {
                    "source" => true,
                    "refused" => false,
                    _ => return Err(ParseError::Value("outcome")),
                },
            },
            "input-end" => Self::InputEnd {
                bytes: fields.number("bytes")?,
            },
            _ => return Err(ParseError::Verb),
        };
        fields.end()?;
        Ok(message)
    }
}

/// The line that carries the message, newline included.
impl Display for ToGuest {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Restored {
                generation,
                entropy,
                clock,
            } => {
                f.write_str("restored generation=")?;
                write_hex(f, generation)?;
                f.write_str(" entropy=")?;
                write_hex(f, entropy)?;
                match clock {
                    Clock::Advance { realtime_ns } => {
                        writeln!(f, " clock=advance realtime_ns={realtime_ns}")
                    }
                    Clock::Freeze => f.write_str(" clock=freeze\n"),
                }
            }
            Self::Size { columns, rows } => writeln!(f, "size cols={columns} rows={rows}"),
            Self::Signal { number } => writeln!(f, "signal number={number}"),
            Self::Snapshot { taken: true } => f.write_str("snapshot outcome=source\n"),
            Self::Snapshot { taken: false } => f.write_str("snapshot outcome=refused\n"),
            Self::InputEnd { bytes } => writeln!(f, "input-end bytes={bytes}"),
        }
    }
}

impl FromGuest {
    /// Reads one line, with or without its newline.
    ///
    /// # Errors
    /// The line is no such message.
    pub fn parse(line: &[u8]) -> Result<Self, ParseError> {
        let mut fields = Fields::of(line)?;
        let message = match fields.verb {
            "ready" => Self::Ready {
                mode: match fields.text("mode")? {
                    "terminal" => ConsoleMode::Terminal,
                    "stream" => ConsoleMode::Stream,
                    _ => return Err(ParseError::Value("mode")),
                },
            },
            "snapshot" => Self::Snapshot,
            "repaired" => Self::Repaired {
                elapsed_us: fields.number("elapsed_us")?,
            },
            "failed" => Self::Failed {
                reason: fields.remainder("reason")?.to_owned(),
            },
            "notice" => Self::Notice {
                text: fields.remainder("text")?.to_owned(),
            },
            "exit" => Self::Exit {
                status: fields.number("status")?,
            },
            _ => return Err(ParseError::Verb),
        };
        fields.end()?;
        Ok(message)
    }
}

/// The line that carries the message, newline included.
impl Display for FromGuest {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ready { mode } => f.write_str(match mode {
                ConsoleMode::Terminal => "ready mode=terminal\n",
                ConsoleMode::Stream => "ready mode=stream\n",
            }),
            Self::Snapshot => f.write_str("snapshot\n"),
            Self::Repaired { elapsed_us } => writeln!(f, "repaired elapsed_us={elapsed_us}"),
            Self::Failed { reason } => {
                f.write_str("failed reason=")?;
                write_text(f, reason)
            }
            Self::Notice { text } => {
                f.write_str("notice text=")?;
                write_text(f, text)
            }
            Self::Exit { status } => writeln!(f, "exit status={status}"),
        }
    }
}

fn write_hex(f: &mut Formatter<'_>, bytes: &[u8]) -> fmt::Result {
    bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
}

/// Writes the last field of a line, which is any text.
fn write_text(f: &mut Formatter<'_>, text: &str) -> fmt::Result {
    for character in text.chars().take(MAX_TEXT_BYTES) {
        f.write_char(match character {
            ' '..='~' => character,
            _ => '?',
        })?;
    }
    f.write_char('\n')
}

/// A line being taken apart, field by field.
struct Fields<'a> {
    verb: &'a str,
    /// What follows the verb and the fields taken, without the space before it; none at the end.
    rest: Option<&'a str>,
}

impl<'a> Fields<'a> {
    fn of(line: &'a [u8]) -> Result<Self, ParseError> {
        if line.len() > MAX_LINE_BYTES {
            return Err(ParseError::NotALine);
        }
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        let is_printable = line.iter().all(|byte| matches!(byte, b' '..=b'~'));
        let line = std::str::from_utf8(line).map_err(|_| ParseError::NotALine)?;
        if !is_printable {
            return Err(ParseError::NotALine);
        }
        let (verb, rest) = split_word(line);
        Ok(Self { verb, rest })
    }

    fn text(&mut self, name: &'static str) -> Result<&'a str, ParseError> {
        let rest = self.rest.ok_or(ParseError::Field(name))?;
        let (field, rest) = split_word(rest);
        self.rest = rest;
        value_of(field, name)
    }

    /// The value of the last field, which may have spaces.
    fn remainder(&mut self, name: &'static str) -> Result<&'a str, ParseError> {
        let rest = self.rest.take().ok_or(ParseError::Field(name))?;
        value_of(rest, name)
    }

    fn number<T: std::str::FromStr>(&mut self, name: &'static str) -> Result<T, ParseError> {
        let text = self.text(name)?;
        // Digits alone: no sign, which the standard library would take.
        if !text.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(ParseError::Value(name));
        }
        text.parse().map_err(|_| ParseError::Value(name))
    }

    fn bytes<const N: usize>(&mut self, name: &'static str) -> Result<[u8; N], ParseError> {
        let text = self.text(name)?.as_bytes();
        let mut bytes = [0; N];
        if text.len() != 2 * N {
            return Err(ParseError::Value(name));
        }
        for (byte, digits) in bytes.iter_mut().zip(text.chunks_exact(2)) {
            let mut value = 0;
            for digit in digits {
                let digit = (*digit as char).to_digit(16);
                value = value << 4 | digit.ok_or(ParseError::Value(name))? as u8;
            }
            *byte = value;
        }
        Ok(bytes)
    }

    fn end(self) -> Result<(), ParseError> {
        match self.rest {
            None => Ok(()),
            Some(_) => Err(ParseError::Field("after the last one")),
        }
    }
}

fn split_word(text: &str) -> (&str, Option<&str>) {
    match text.split_once(' ') {
        Some((word, rest)) => (word, Some(rest)),
        None => (text, None),
    }
}

fn value_of<'a>(field: &'a str, name: &'static str) -> Result<&'a str, ParseError> {
    field
        .strip_prefix(name)
        .and_then(|field| field.strip_prefix('='))
        .ok_or(ParseError::Field(name))
}

/// Bytes on their way to becoming lines.
///
/// Holds at most [`MAX_LINE_BYTES`]. What has no newline within them is dropped up to the next one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LineBuffer {
    bytes: Vec<u8>,
    overlong: bool,
}

impl LineBuffer {
    /// Adds one byte, and gives the line that it completes, without its end. A carriage return counts
    /// as an end, so that a terminal driver that translates newlines does no harm; empty lines do not
    /// count at all.
    pub fn push(&mut self, byte: u8) -> Option<Vec<u8>> {
        if matches!(byte, b'\n' | b'\r') {
            let line = std::mem::take(&mut self.bytes);
            let overlong = std::mem::take(&mut self.overlong);
            return (!overlong && !line.is_empty()).then_some(line);
        }
        if self.bytes.len() < MAX_LINE_BYTES - 1 {
            self.bytes.push(byte);
        } else {
            self.overlong = true;
        }
        None
    }

    /// The unfinished line. A capture may fall into one, so it is part of a saved state.
    pub fn unfinished(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests;
