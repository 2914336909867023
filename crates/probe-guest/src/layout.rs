//! Where the image keeps its texts and variables.
//!
//! The loaded part begins with data (texts, and variables with a first value), then comes the code; one more
//! page that the file does not carry holds the line buffer and the stack. All addresses are known before
//! assembly, so the code needs no relocation.

use crate::code::hostile::target_words;
use crate::elf::LOAD_ADDRESS;

/// Page of variables that begin as zero, and of the stack that grows down from its end.
const ZEROED_ADDRESS: u32 = LOAD_ADDRESS + 0x1000;
pub(crate) const LINE: u32 = ZEROED_ADDRESS;
/// Longest command line in bytes, without its end.
pub(crate) const LINE_BYTES: u32 = 16;
pub(crate) const LINE_LEN: u32 = ZEROED_ADDRESS + 0x20;
pub(crate) const COUNT: u32 = ZEROED_ADDRESS + 0x24;
/// Not zero when the monitor has no paravirtual console.
pub(crate) const SERIAL: u32 = ZEROED_ADDRESS + 0x28;
pub(crate) const FIRST: u32 = ZEROED_ADDRESS + 0x30;
pub(crate) const STRIDE: u32 = ZEROED_ADDRESS + 0x34;
pub(crate) const PAGES: u32 = ZEROED_ADDRESS + 0x38;
/// Turns of the endless loop.
pub(crate) const TURNS: u32 = ZEROED_ADDRESS + 0x3c;
/// State of the generator behind random accesses.
pub(crate) const RANDOM: u32 = ZEROED_ADDRESS + 0x40;
pub(crate) const STACK_TOP: u32 = ZEROED_ADDRESS + 0x1000;
/// Bytes that the loaded image occupies in guest RAM.
pub(crate) const MEMORY_BYTES: u64 = (STACK_TOP - LOAD_ADDRESS) as u64;
/// Bytes that data and code may have together.
pub(crate) const LOADED_BYTES_MAX: usize = (ZEROED_ADDRESS - LOAD_ADDRESS) as usize;

/// Values of the variable `fill_kind`.
pub(crate) const FILL_ALL: u32 = 0;
pub(crate) const FILL_ALTERNATE: u32 = 1;
pub(crate) const FILL_TOP: u32 = 2;
pub(crate) const FILL_SPREAD: u32 = 3;

/// Room for eight hexadecimal digits, which the guest writes into a text in place.
const HEX8: &str = "00000000";

/// A text in guest RAM.
#[derive(Clone, Copy)]
pub(crate) struct Text {
    pub(crate) address: u32,
    pub(crate) len: u32,
}

/// A text with hexadecimal digits to be filled in at `digits`.
#[derive(Clone, Copy)]
pub(crate) struct HexText {
    pub(crate) text: Text,
    pub(crate) digits: u32,
}

/// The data part of the image and the addresses in it.
pub(crate) struct Data {
    pub(crate) bytes: Vec<u8>,
    pub(crate) fill_kind: u32,
    pub(crate) fill_pages: u32,
    pub(crate) seed: u32,
    /// Ports that random accesses go to, a word each.
    pub(crate) hammer_ports: u32,
    pub(crate) hex_digits: u32,
    /// End of the room for decimal digits; a line feed stands there.
    pub(crate) decimal_end: u32,
    pub(crate) ready: Text,
    pub(crate) continued: Text,
    pub(crate) restored: Text,
    /// ` nonce=<16 digits> count=`: the nonce lives here and nowhere else.
    pub(crate) nonce_count: HexText,
    pub(crate) verify_ok: HexText,
    pub(crate) verify_bad: HexText,
    pub(crate) dirtied: Text,
    pub(crate) looping: Text,
    pub(crate) hammered: Text,
    pub(crate) flood: Text,
    pub(crate) pestering: Text,
    pub(crate) count: Text,
    pub(crate) refused: Text,
    pub(crate) unavailable: Text,
    pub(crate) what: Text,
    pub(crate) failed: Text,
}

impl Data {
    pub(crate) fn new() -> Self {
        let mut bytes = Vec::with_capacity(LOADED_BYTES_MAX);
        // Words first, so that they are aligned.
        let fill_kind = word(&mut bytes, FILL_TOP);
        let fill_pages = word(&mut bytes, 256);
        let seed = word(&mut bytes, 1);
        let hammer_ports = LOAD_ADDRESS + bytes.len() as u32;
        for port in target_words() {
            word(&mut bytes, port);
        }
        let hex_digits = text(&mut bytes, "0123456789abcdef").address;
        let decimal = text(&mut bytes, "0000000000\n");
        Self {
            fill_kind,
            fill_pages,
            seed,
            hammer_ports,
            hex_digits,
            decimal_end: decimal.address + decimal.len - 1,
            ready: text(&mut bytes, "PROBE-READY"),
            continued: text(&mut bytes, "PROBE-CONTINUED"),
            restored: text(&mut bytes, "PROBE-RESTORED"),
            nonce_count: hex_text(&mut bytes, " nonce=", 2, " count="),
            verify_ok: hex_text(&mut bytes, "PROBE-VERIFY ok checksum=", 1, " seed="),
            verify_bad: hex_text(&mut bytes, "PROBE-VERIFY bad address=0x", 1, "\n"),
            dirtied: text(&mut bytes, "PROBE-DIRTIED seed="),
            looping: text(&mut bytes, "PROBE-LOOPING count="),
            hammered: text(&mut bytes, "\nPROBE-HAMMERED count="),
            flood: text(&mut bytes, "PROBE-FLOOD\n"),
            pestering: text(&mut bytes, "PROBE-PESTERING count="),
            count: text(&mut bytes, " count="),
            refused: text(&mut bytes, "PROBE-REFUSED\n"),
            unavailable: text(&mut bytes, "PROBE-UNAVAILABLE\n"),
            what: text(&mut bytes, "PROBE-WHAT\n"),
            failed: text(&mut bytes, "PROBE-FAILED no usable PVH memory map\n"),
            bytes,
        }
    }

    /// Address of the first byte after the data: the entry point.
    pub(crate) fn end(&self) -> u32 {
        LOAD_ADDRESS + self.bytes.len() as u32
    }
}

fn word(bytes: &mut Vec<u8>, value: u32) -> u32 {
    let address = LOAD_ADDRESS + bytes.len() as u32;
    bytes.extend_from_slice(&value.to_le_bytes());
    address
}

fn text(bytes: &mut Vec<u8>, text: &str) -> Text {
    let address = LOAD_ADDRESS + bytes.len() as u32;
    bytes.extend_from_slice(text.as_bytes());
    Text {
        address,
        len: text.len() as u32,
    }
}

fn hex_text(bytes: &mut Vec<u8>, before: &str, words: u32, after: &str) -> HexText {
    let mut whole = text(bytes, before);
    let digits = whole.address + whole.len;
    for _ in 0..words {
        whole.len += text(bytes, HEX8).len;
    }
    whole.len += text(bytes, after).len;
    HexText {
        text: whole,
        digits,
    }
}
