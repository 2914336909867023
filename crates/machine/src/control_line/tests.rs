//! Both directions, and what a hostile guest may write.

use proptest::prelude::*;

use super::*;

fn to_guest() -> Vec<ToGuest> {
    vec![
        ToGuest::Restored {
            generation: std::array::from_fn(|index| index as u8),
            entropy: [0xfe; ENTROPY_BYTES],
            clock: Clock::Advance {
                realtime_ns: u64::MAX,
            },
        },
        ToGuest::Restored {
            generation: [0; GENERATION_BYTES],
            entropy: std::array::from_fn(|index| 255 - index as u8),
            clock: Clock::Freeze,
        },
        ToGuest::Size {
            columns: u16::MAX,
            rows: 0,
        },
        ToGuest::Signal { number: 15 },
        ToGuest::InputEnd { bytes: 0 },
        ToGuest::Snapshot { taken: true },
        ToGuest::Snapshot { taken: false },
    ]
}

fn from_guest() -> Vec<FromGuest> {
    vec![
        FromGuest::Ready {
            mode: ConsoleMode::Terminal,
        },
        FromGuest::Ready {
            mode: ConsoleMode::Stream,
        },
        FromGuest::Snapshot,
        FromGuest::Repaired { elapsed_us: 12 },
        FromGuest::Failed {
            reason: "cannot run /bin/a=b: no such file".to_owned(),
        },
        FromGuest::Notice {
            text: "slow".to_owned(),
        },
        FromGuest::Exit { status: 255 },
    ]
}

#[test]
fn messages_are_read_as_they_were_written() {
    for message in to_guest() {
        let line = message.to_string();
        assert!(line.len() <= 256, "{line}");
        assert_eq!(ToGuest::parse(line.as_bytes()), Ok(message));
    }
    for message in from_guest() {
        let line = message.to_string();
        assert_eq!(FromGuest::parse(line.as_bytes()), Ok(message));
    }
}

#[test]
fn the_wire_form_is_fixed() {
    let lines: Vec<_> = to_guest().iter().map(ToString::to_string).collect();
    let entropy = "fe".repeat(ENTROPY_BYTES);
    assert_eq!(
        lines[0],
        format!(
            "restored generation=000102030405060708090a0b0c0d0e0f entropy={entropy} \
             clock=advance realtime_ns=18446744073709551615\n"
        )
    );
    assert!(lines[1].ends_with(" clock=freeze\n"));
    assert_eq!(
        lines[2..],
        [
            "size cols=65535 rows=0\n",
            "signal number=15\n",
            "input-end bytes=0\n",
            "snapshot outcome=source\n",
            "snapshot outcome=refused\n"
        ]
    );
    let lines: Vec<_> = from_guest().iter().map(ToString::to_string).collect();
    assert_eq!(
        lines,
        [
            "ready mode=terminal\n",
            "ready mode=stream\n",
            "snapshot\n",
            "repaired elapsed_us=12\n",
            "failed reason=cannot run /bin/a=b: no such file\n",
            "notice text=slow\n",
            "exit status=255\n"
        ]
    );
}

#[test]
fn nonsense_is_named() {
    let of = |line: &str| FromGuest::parse(line.as_bytes());
    assert_eq!(of(""), Err(ParseError::Verb));
    assert_eq!(of("restored"), Err(ParseError::Verb));
    assert_eq!(of("exit"), Err(ParseError::Field("status")));
    assert_eq!(of("exit code=1"), Err(ParseError::Field("status")));
    for value in ["256", "-1", "+1", "", "0x1", "99999999999999999999999"] {
        assert_eq!(
            of(&format!("exit status={value}")),
            Err(ParseError::Value("status")),
            "{value:?}"
        );
    }
    assert!(matches!(of("exit status=1 "), Err(ParseError::Field(_))));
    assert!(matches!(
        of("exit status=1 and=more"),
        Err(ParseError::Field(_))
    ));
    assert_eq!(of("exit\tstatus=1"), Err(ParseError::NotALine));
    assert_eq!(of(&"x".repeat(513)), Err(ParseError::NotALine));
    let to = |line: &str| ToGuest::parse(line.as_bytes());
    assert_eq!(to("signal number=0"), Err(ParseError::Value("number")));
    assert_eq!(to("signal number=65"), Err(ParseError::Value("number")));
    assert_eq!(
        to("restored generation=00"),
        Err(ParseError::Value("generation"))
    );
}

#[test]
fn a_reason_is_made_printable_and_fits() {
    let reason = "\u{1b}[2J".to_owned() + &"ä\n".repeat(500);
    let line = FromGuest::Failed { reason }.to_string();
    assert!(line.len() <= MAX_LINE_BYTES, "{}", line.len());
    let Ok(FromGuest::Failed { reason }) = FromGuest::parse(line.as_bytes()) else {
        panic!("{line:?}");
    };
    assert!(reason.starts_with("?[2J??"), "{reason}");
}

#[test]
fn a_line_that_is_too_long_does_not_hold_up_the_next() {
    let mut buffer = LineBuffer::default();
    let mut lines = Vec::new();
    let bytes = "x".repeat(100_000) + "\nexit status=0\r\n\n" + &"y".repeat(511) + "\nz";
    for byte in bytes.bytes() {
        lines.extend(buffer.push(byte));
        assert!(buffer.unfinished().len() < MAX_LINE_BYTES);
    }
    assert_eq!(lines, [b"exit status=0".to_vec(), vec![b'y'; 511]]);
    assert_eq!(buffer.unfinished(), b"z");
}

proptest! {
    #[test]
    fn any_bytes_are_read_without_harm(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
        let _ = ToGuest::parse(&bytes);
        let _ = FromGuest::parse(&bytes);
        let mut buffer = LineBuffer::default();
        for byte in bytes {
            if let Some(line) = buffer.push(byte) {
                prop_assert!(line.len() < MAX_LINE_BYTES);
            }
        }
    }
}
