//! Protocols of lines.

use nvx_machine::control_line::{FromGuest, LineBuffer, MAX_LINE_BYTES, ToGuest};
use nvx_vmm::control::protocol::{Response, parse_request, response_line};

/// Takes bytes from the front.
pub(crate) struct Words<'a> {
    rest: &'a [u8],
}

impl<'a> Words<'a> {
    pub(crate) fn of(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    pub(crate) fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(*first)
    }

    /// `N` bytes, the last of which may be missing and are then zero.
    pub(crate) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let mut array = [0; N];
        array[0] = self.byte()?;
        for byte in &mut array[1..] {
            *byte = self.byte().unwrap_or(0);
        }
        Some(array)
    }

    pub(crate) fn rest(self) -> &'a [u8] {
        self.rest
    }
}

/// Requests as the monitor reads them, and responses as a client does.
pub(crate) fn control_protocol(bytes: &[u8]) {
    for line in bytes.split(|byte| *byte == b'\n') {
        match parse_request(line) {
            Ok((id, _)) => assert!(id.is_none_or(|id| id.len() <= 64)),
            Err(refused) => {
                assert!(refused.id.is_none_or(|id| id.len() <= 64));
                assert!(!refused.message.is_empty());
            }
        }
        if let Ok(response) = serde_json::from_slice::<Response>(line) {
            let written = response_line(&response);
            let ends = written.iter().filter(|byte| **byte == b'\n').count();
            assert_eq!(ends, 1, "a response is one line");
            serde_json::from_slice::<Response>(&written).expect("what is written can be read");
        }
    }
}

/// Both directions of the line between monitor and guest.
pub(crate) fn control_line(bytes: &[u8]) {
    let mut buffer = LineBuffer::default();
    for byte in bytes {
        if let Some(line) = buffer.push(*byte) {
            assert!(line.len() < MAX_LINE_BYTES);
            check_control_message(&line);
        }
        assert!(buffer.unfinished().len() < MAX_LINE_BYTES);
    }
    check_control_message(bytes);
}

fn check_control_message(line: &[u8]) {
    if let Ok(message) = ToGuest::parse(line) {
        let written = message.to_string();
        assert!(written.len() <= MAX_LINE_BYTES && written.ends_with('\n'));
        assert_eq!(ToGuest::parse(written.as_bytes()), Ok(message));
    }
    if let Ok(message) = FromGuest::parse(line) {
        let written = message.to_string();
        assert!(written.len() <= MAX_LINE_BYTES && written.ends_with('\n'));
        // Text that is too long is cut, the rest of a message comes back as it was.
        FromGuest::parse(written.as_bytes()).expect("what is written can be read");
    }
}

/// Profile records.
pub(crate) fn profile(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    for line in text.lines() {
        match nvx_profile::parse_line(line) {
            Ok(Some(record)) => {
                assert!(line.starts_with(nvx_profile::LINE_PREFIX));
                assert!(!record.operation.is_empty() && !record.phase.is_empty());
            }
            Ok(None) => {}
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
}
