use proptest::prelude::*;

use super::*;

const MS: u64 = 1_000_000;
/// Ticks of the timer's input take 838 ns.
const PERIOD_65536_NS: u64 = 54_925_402;

fn initialized() -> InterruptChip {
    let mut chip = InterruptChip::new(0);
    for (port, value) in [
        (0x20, 0x11),
        (0x21, 0x20),
        (0x21, 4),
        (0x21, 1),
        (0xa0, 0x11),
        (0xa1, 0x28),
        (0xa1, 2),
        (0xa1, 1),
        (0x21, 0),
        (0xa1, 0),
    ] {
        chip.write_port(port, value, 0);
    }
    chip
}

fn redirect(chip: &mut InterruptChip, line: u32, low: u32, high: u32) {
    chip.write_ioapic(0, 0x11 + 2 * line);
    chip.write_ioapic(0x10, high);
    chip.write_ioapic(0, 0x10 + 2 * line);
    chip.write_ioapic(0x10, low);
}

fn pulse(chip: &mut InterruptChip, line: u32) {
    chip.set_line(line, true);
    chip.set_line(line, false);
}

fn copy_of(chip: &InterruptChip, now_ns: u64, copy_now_ns: u64) -> InterruptChip {
    let mut copy = InterruptChip::new(copy_now_ns);
    copy.restore(&chip.save(now_ns), copy_now_ns).unwrap();
    copy
}

#[test]
fn pics_interrupt_nobody_before_they_are_initialized() {
    let mut chip = InterruptChip::new(0);
    pulse(&mut chip, 4);
    assert!(!chip.pic_output());
    assert!(chip.take_messages().is_empty());
}

#[test]
fn an_edge_is_taken_once() {
    let mut chip = initialized();
    pulse(&mut chip, 5);
    let mut copy = copy_of(&chip, 0, 7);
    for chip in [&mut chip, &mut copy] {
        assert!(chip.pic_output());
        assert_eq!(chip.acknowledge(), 0x25);
        assert!(!chip.pic_output());
        chip.write_port(0x20, 0x20, 0);
        assert!(!chip.pic_output());
    }
}

#[test]
fn a_level_interrupts_until_it_is_lowered() {
    let mut chip = initialized();
    chip.write_port(0x4d0, 1 << 5, 0);
    chip.set_line(5, true);
    for _ in 0..3 {
        assert_eq!(chip.acknowledge(), 0x25);
        assert!(!chip.pic_output(), "it is in service");
        chip.write_port(0x20, 0x20, 0);
        assert!(chip.pic_output());
        chip = copy_of(&chip, 0, 0);
    }
    chip.set_line(5, false);
    assert!(!chip.pic_output());
}

#[test]
fn the_second_controller_interrupts_through_the_first() {
    let mut chip = initialized();
    pulse(&mut chip, 12);
    assert_eq!(chip.acknowledge(), 0x2c);
    pulse(&mut chip, 9);
    assert!(!chip.pic_output(), "the cascade is in service");
    chip.write_port(0xa0, 0x20, 0);
    assert!(!chip.pic_output());
    chip.write_port(0x20, 0x20, 0);
    assert_eq!(chip.acknowledge(), 0x29);
}

#[test]
fn the_more_important_line_comes_first_and_nests() {
    let mut chip = initialized();
    pulse(&mut chip, 6);
    pulse(&mut chip, 3);
    assert_eq!(chip.acknowledge(), 0x23);
    assert!(!chip.pic_output());
    pulse(&mut chip, 1);
    assert_eq!(chip.acknowledge(), 0x21);
    chip.write_port(0x20, 0x0b, 0);
    assert_eq!(chip.read_port(0x20, 0), 1 << 1 | 1 << 3);
    // End with rotation: line 2 comes first now, which puts 1 last.
    chip.write_port(0x20, 0xa0, 0);
    chip.write_port(0x20, 0x63, 0);
    assert_eq!(chip.acknowledge(), 0x26);
}

#[test]
fn nothing_left_is_spurious() {
    let mut chip = initialized();
    chip.write_port(0x4d0, 1 << 5, 0);
    chip.set_line(5, true);
    chip.set_line(5, false);
    assert_eq!(chip.acknowledge(), 0x27);
    assert!(!chip.pic_output());
}

#[test]
fn polling_takes_a_line() {
    let mut chip = initialized();
    pulse(&mut chip, 4);
    chip.write_port(0x20, 0x0c, 0);
    assert_eq!(chip.read_port(0x20, 0), 0x84);
    assert!(!chip.pic_output());
    chip.write_port(0x20, 0x0c, 0);
    assert_eq!(chip.read_port(0x20, 0), 0);
}

#[test]
fn auto_end_leaves_nothing_in_service() {
    let mut chip = initialized();
    for (port, value) in [(0x20, 0x11), (0x21, 0x20), (0x21, 4), (0x21, 3)] {
        chip.write_port(port, value, 0);
    }
    for _ in 0..2 {
        pulse(&mut chip, 4);
        assert_eq!(chip.acknowledge(), 0x24);
    }
}

#[test]
fn an_edge_sends_once_and_is_lost_while_masked() {
    let mut chip = InterruptChip::new(0);
    pulse(&mut chip, 5);
    redirect(&mut chip, 5, 0x50, 3 << 24);
    assert_eq!(chip.take_messages(), []);
    chip.set_line(5, true);
    chip.set_line(5, true);
    let expected = ApicMessage {
        vector: 0x50,
        delivery: DeliveryMode::Fixed,
        destination: 3,
        is_logical: false,
        is_level: false,
    };
    assert_eq!(chip.take_messages(), [expected]);
}

#[test]
fn a_level_sends_again_after_its_end() {
    let mut chip = InterruptChip::new(0);
    redirect(&mut chip, 20, 0x60 | 1 << 15 | 1 << 11, 1 << 24);
    chip.set_line(20, true);
    let sent = chip.take_messages();
    assert_eq!(sent.len(), 1);
    assert!(sent[0].is_level && sent[0].is_logical);
    chip.set_line(20, false);
    chip.set_line(20, true);
    assert_eq!(chip.take_messages(), [], "the last one has not ended");
    // A copy has nothing to send either: what is on its way is in its local APICs.
    let mut copy = copy_of(&chip, 0, 0);
    for chip in [&mut chip, &mut copy] {
        chip.end_of_interrupt(0x61);
        assert_eq!(chip.take_messages(), [], "another vector");
        chip.end_of_interrupt(0x60);
        assert_eq!(chip.take_messages(), sent);
        chip.set_line(20, false);
        chip.end_of_interrupt(0x60);
        assert_eq!(chip.take_messages(), []);
    }
}

#[test]
fn a_level_that_was_masked_sends_when_it_is_not() {
    let mut chip = InterruptChip::new(0);
    redirect(&mut chip, 9, 0x70 | 1 << 15 | 1 << 16, 0);
    chip.set_line(9, true);
    assert_eq!(chip.take_messages(), []);
    redirect(&mut chip, 9, 0x70 | 1 << 15, 0);
    assert_eq!(chip.take_messages().len(), 1);
    // Linux frees a stuck input by making it edge-triggered for a moment.
    chip.write_ioapic(0x10, 0x70 | 1 << 16);
    chip.write_ioapic(0x10, 0x70 | 1 << 15);
    assert_eq!(chip.take_messages().len(), 1);
}

#[test]
fn what_has_no_vector_is_sent_once_whatever_its_trigger() {
    let mut chip = InterruptChip::new(0);
    redirect(&mut chip, 8, 4 << 8 | 1 << 15, 0);
    chip.set_line(8, true);
    let sent = chip.take_messages();
    assert_eq!(sent.len(), 1);
    assert_eq!(
        (sent[0].delivery, sent[0].is_level),
        (DeliveryMode::Nmi, false)
    );
    chip.write_ioapic(0, 0);
    assert_eq!(copy_of(&chip, 0, 0).take_messages(), []);
}

#[test]
fn registers_of_the_ioapic_read_back() {
    let mut chip = InterruptChip::new(0);
    chip.write_ioapic(0, 1);
    assert_eq!(chip.read_ioapic(0x10), 0x0017_0011);
    redirect(&mut chip, 3, u32::MAX, u32::MAX);
    assert_eq!(chip.read_ioapic(0x10), 0x0001_afff);
    chip.write_ioapic(0, 0x17);
    assert_eq!(chip.read_ioapic(0x10), 0xff00_0000);
    chip.write_ioapic(0, 0xff);
    chip.write_ioapic(0x10, 1);
    assert_eq!(chip.read_ioapic(0x10), 0);
}

#[test]
fn messages_are_taken_apart() {
    let message = ApicMessage::from_msi(0xfee0_5004, 0x4150).unwrap();
    let expected = ApicMessage {
        vector: 0x50,
        delivery: DeliveryMode::LowestPriority,
        destination: 5,
        is_logical: true,
        is_level: false,
    };
    assert_eq!(message, expected);
    assert_eq!(ApicMessage::from_msi(0xfed0_0000, 0x50), None);
    assert_eq!(ApicMessage::from_msi(0x1_fee0_0000, 0x50), None);
    assert_eq!(ApicMessage::from_msi(0xfee0_0000, 0x350), None);
}

fn arm(chip: &mut InterruptChip, mode: u8, count: u16, now_ns: u64) {
    let [low, high] = count.to_le_bytes();
    chip.write_port(0x43, 0x30 | mode << 1, now_ns);
    chip.write_port(0x40, low, now_ns);
    chip.write_port(0x40, high, now_ns);
}

#[test]
fn a_periodic_timer_goes_on_in_a_copy() {
    let mut chip = initialized();
    arm(&mut chip, 2, 0, 100 * MS);
    let first_ns = chip.next_tick_ns().unwrap();
    assert!(first_ns.abs_diff(100 * MS + PERIOD_65536_NS) < 1000);
    chip.tick(first_ns - 1000);
    assert!(!chip.pic_output());
    chip.tick(first_ns);
    assert_eq!(chip.acknowledge(), 0x20);
    chip.write_port(0x20, 0x20, 0);
    // 10 ms into the second period, in a machine whose time has begun just now.
    let mut copy = copy_of(&chip, first_ns + 10 * MS, 11 * MS);
    let next_ns = copy.next_tick_ns().unwrap();
    assert!(next_ns.abs_diff(11 * MS + PERIOD_65536_NS - 10 * MS) < 2000);
    copy.tick(next_ns);
    assert!(copy.pic_output());
}

#[test]
fn many_periods_that_passed_are_one_interrupt() {
    let mut chip = initialized();
    arm(&mut chip, 3, 1000, 0);
    chip.tick(500 * MS);
    assert_eq!(chip.acknowledge(), 0x20);
    chip.write_port(0x20, 0x20, 0);
    chip.tick(500 * MS);
    assert!(!chip.pic_output());
    let next_ns = chip.next_tick_ns().unwrap();
    assert!(next_ns > 500 * MS && next_ns < 501 * MS);
}

#[test]
fn a_single_shot_ends_once() {
    for mode in [0, 4] {
        let mut chip = initialized();
        arm(&mut chip, mode, 11932, 0);
        assert!(chip.next_tick_ns().unwrap().abs_diff(10 * MS) < 2000);
        chip.tick(20 * MS);
        assert!(chip.pic_output());
        assert_eq!(chip.next_tick_ns(), None);
        let copy = copy_of(&chip, 30 * MS, 0);
        assert_eq!(copy.next_tick_ns(), None);
    }
}

#[test]
fn counts_are_latched_and_read_in_halves() {
    let mut chip = InterruptChip::new(0);
    arm(&mut chip, 2, 0, 0);
    // 11932 ticks have passed after 10 ms.
    chip.write_port(0x43, 0, 10 * MS);
    let low = chip.read_port(0x40, 30 * MS);
    let high = chip.read_port(0x40, 40 * MS);
    let left = u16::from_le_bytes([low, high]);
    assert!(left.abs_diff(0xffff - 11_931) < 3, "{left}");
    // Read back the status of channel 0: output high, count loaded, both bytes, mode 2.
    chip.write_port(0x43, 0xe2, 50 * MS);
    assert_eq!(chip.read_port(0x40, 50 * MS), 0xb4);
}

#[test]
fn decimal_counts_are_decimal() {
    let mut chip = InterruptChip::new(0);
    chip.write_port(0x43, 0x35, 0);
    chip.write_port(0x40, 0x00, 0);
    chip.write_port(0x40, 0x10, 0);
    // 1000 ticks.
    assert!(chip.next_tick_ns().unwrap().abs_diff(838_095) < 1000);
    // After 100 of them, 900 are left.
    let [low, high] = [(); 2].map(|()| chip.read_port(0x40, 84_000));
    assert_eq!(u16::from_le_bytes([low, high]), 0x0900);
}

#[test]
fn the_third_channel_counts_while_its_gate_is_open() {
    const OUTPUT: u8 = 1 << 5;
    let mut chip = InterruptChip::new(0);
    chip.write_port(0x61, 1, 0);
    // Mode 0, 11932 ticks: 10 ms.
    chip.write_port(0x43, 0xb0, 0);
    chip.write_port(0x42, 0x9c, 0);
    chip.write_port(0x42, 0x2e, 0);
    assert_eq!(chip.read_port(0x61, 9 * MS) & OUTPUT, 0);
    chip.write_port(0x61, 0, 9 * MS);
    assert_eq!(chip.read_port(0x61, 90 * MS) & OUTPUT, 0);
    let mut copy = copy_of(&chip, 90 * MS, 0);
    copy.write_port(0x61, 1, MS);
    assert_eq!(copy.read_port(0x61, MS + MS / 2) & OUTPUT, 0);
    assert_eq!(copy.read_port(0x61, 3 * MS) & OUTPUT, OUTPUT);
}

#[test]
fn malformed_parts_are_named() {
    type Part = fn(&mut InterruptChipState) -> &mut Vec<u8>;
    let parts: [(&str, Part); 4] = [
        ("primary PIC", |state| &mut state.pic_primary),
        ("secondary PIC", |state| &mut state.pic_secondary),
        ("IOAPIC", |state| &mut state.ioapic),
        ("PIT", |state| &mut state.pit),
    ];
    for (name, part) in parts {
        for spoil in [Vec::clear as fn(&mut Vec<u8>), |bytes| bytes.push(0)] {
            let mut chip = initialized();
            let mut state = chip.save(0);
            spoil(part(&mut state));
            let error = chip.restore(&state, 0).unwrap_err();
            assert!(error.to_string().contains(name), "{error}");
        }
    }
}

/// What a guest and its devices do to the chip.
#[derive(Clone, Debug)]
enum Action {
    Line(u32, bool),
    Write(u16, u8),
    Read(u16),
    Ioapic(u64, u32),
    End(u8),
    Acknowledge,
    Wait(u64),
}

fn action() -> impl Strategy<Value = Action> {
    let port = prop::sample::select(vec![
        0x20_u16, 0x21, 0xa0, 0xa1, 0x4d0, 0x4d1, 0x40, 0x41, 0x42, 0x43, 0x61,
    ]);
    prop_oneof![
        (0..30_u32, any::<bool>()).prop_map(|(line, level)| Action::Line(line, level)),
        (port.clone(), any::<u8>()).prop_map(|(port, value)| Action::Write(port, value)),
        port.prop_map(Action::Read),
        (prop::sample::select(vec![0_u64, 0x10, 0x40]), any::<u32>())
            .prop_map(|(offset, value)| Action::Ioapic(offset, value)),
        (0..64_u32).prop_map(|register| Action::Ioapic(0, register)),
        any::<u8>().prop_map(Action::End),
        Just(Action::Acknowledge),
        (0..200 * MS).prop_map(Action::Wait),
    ]
}

fn act(chip: &mut InterruptChip, action: &Action, now_ns: &mut u64) -> (u32, Vec<ApicMessage>) {
    let mut value = 0;
    match *action {
        Action::Line(line, level) => chip.set_line(line, level),
        Action::Write(port, byte) => chip.write_port(port, byte, *now_ns),
        Action::Read(port) => value = chip.read_port(port, *now_ns).into(),
        Action::Ioapic(offset, word) => {
            value = chip.read_ioapic(offset);
            chip.write_ioapic(offset, word);
        }
        Action::End(vector) => chip.end_of_interrupt(vector),
        Action::Acknowledge if chip.pic_output() => value = chip.acknowledge().into(),
        Action::Acknowledge => {}
        Action::Wait(ns) => {
            *now_ns += ns;
            chip.tick(*now_ns);
        }
    }
    (value, chip.take_messages())
}

proptest! {
    #[test]
    fn a_copy_at_any_time_goes_on_as_the_original(
        before in prop::collection::vec(action(), 0..60),
        after in prop::collection::vec(action(), 0..30),
    ) {
        let mut now_ns = 0;
        let mut chip = InterruptChip::new(0);
        for action in &before {
            act(&mut chip, action, &mut now_ns);
        }
        let saved = chip.save(now_ns);
        let mut copy = InterruptChip::new(now_ns);
        copy.restore(&saved, now_ns).unwrap();
        prop_assert_eq!(copy.save(now_ns), saved);
        // Asserted level lines that wait for nothing have sent already.
        prop_assert_eq!(copy.take_messages(), vec![]);
        for action in &after {
            let mut copy_now_ns = now_ns;
            let of_copy = act(&mut copy, action, &mut copy_now_ns);
            prop_assert_eq!(act(&mut chip, action, &mut now_ns), of_copy);
            prop_assert_eq!(chip.pic_output(), copy.pic_output());
            prop_assert_eq!(chip.next_tick_ns(), copy.next_tick_ns());
        }
    }

    #[test]
    fn bytes_of_no_chip_do_no_harm(
        parts in prop::array::uniform4(prop::collection::vec(any::<u8>(), 0..80)),
        actions in prop::collection::vec(action(), 0..20),
    ) {
        let [pic_primary, pic_secondary, ioapic, pit] = parts;
        let valid = initialized().save(0);
        for state in [
            InterruptChipState { pic_primary, ..valid.clone() },
            InterruptChipState { pic_secondary, ..valid.clone() },
            InterruptChipState { ioapic, ..valid.clone() },
            InterruptChipState { pit, ..valid.clone() },
        ] {
            let mut chip = InterruptChip::new(0);
            let mut now_ns = 0;
            if chip.restore(&state, now_ns).is_ok() {
                for action in &actions {
                    act(&mut chip, action, &mut now_ns);
                }
            }
        }
    }
}
