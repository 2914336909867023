//! Runs the probe guest on /dev/kvm and checks each of its answers.
#![cfg(target_os = "linux")]
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test harness fails by panicking, also in its helper functions"
)]

mod vm;

use std::time::Instant;

use nvx_probe_guest::{ProbeParams, SECTOR_BYTES, Span, checksum, image, word};
use vm::{Boot, RAM_BYTES, Stop, Vm, kvm, watchdog};

fn params(text: &str) -> ProbeParams {
    let params: ProbeParams = text.parse().unwrap();
    params.check(RAM_BYTES).unwrap();
    params
}

fn boot(text: &str) -> Option<Vm> {
    let line = params(text).command_line();
    Vm::boot(
        &image().unwrap(),
        &Boot {
            command_line: Some(&line),
            ..Boot::default()
        },
    )
}

/// Asserts that every sector of every page in `span` holds its word.
fn assert_filled(vm: &Vm, seed: u32, span: Span) {
    for page in span.pages() {
        for address in (page..page + 4096).step_by(SECTOR_BYTES as usize) {
            assert_eq!(
                vm.read_u32(address),
                word(seed, address),
                "word at {address:#x}"
            );
        }
    }
}

fn nonce(line: &str) -> String {
    let (_, rest) = line.split_once("nonce=").unwrap();
    let nonce = &rest[..16];
    assert!(nonce.bytes().all(|byte| byte.is_ascii_hexdigit()), "{line}");
    nonce.to_owned()
}

#[test]
fn answers_every_command() {
    let _limit = watchdog();
    let Some(mut vm) = boot("fill=top:16,seed=7") else {
        return;
    };
    let span = params("fill=top:16,seed=7").span(RAM_BYTES);
    assert_eq!(vm.run(), Stop::Idle);
    let ready = vm.take_output();
    let nonce = nonce(&ready);
    assert_eq!(ready, format!("PROBE-READY nonce={nonce} count=0\n"));
    assert_filled(&vm, 7, span);

    let expect = |vm: &mut Vm, input: &str, output: String| {
        vm.input.extend(input.bytes());
        assert_eq!(vm.run(), Stop::Idle);
        assert_eq!(vm.take_output(), output, "after {input:?}");
    };
    let ok = |seed, count| {
        let sum = checksum(seed, span);
        format!("PROBE-VERIFY ok checksum={sum:08x} seed={seed} count={count}\n")
    };
    let what = || "PROBE-WHAT\n".to_owned();
    expect(&mut vm, "v\n", ok(7, 1));
    expect(
        &mut vm,
        "d\r\n",
        "PROBE-DIRTIED seed=8 count=2\n".to_owned(),
    );
    assert_filled(&vm, 8, span);
    expect(&mut vm, "\n\r\n", String::new());
    expect(&mut vm, "v\nv\n", ok(8, 3) + &ok(8, 4));
    expect(&mut vm, "q\n", what());
    expect(&mut vm, "vv\n", what());
    expect(&mut vm, "0123456789abcdefg and more\n", what());
    expect(&mut vm, "x256\n", what());
    expect(&mut vm, "x1y\n", what());
    expect(&mut vm, "x99999999999\n", what());

    // The answers of the snapshot port, each after two polls without one.
    for (answer, output) in [
        (1, "PROBE-REFUSED\n".to_owned()),
        (2, format!("PROBE-CONTINUED nonce={nonce} count=12\n")),
        (3, format!("PROBE-RESTORED nonce={nonce} count=13\n")),
        (0xff, "PROBE-UNAVAILABLE\n".to_owned()),
    ] {
        vm.snapshot_answers.extend([0, 0, answer]);
        expect(&mut vm, "s\n", output);
    }
    assert_eq!(vm.snapshot_requests, 4);

    // Restored by the host's wish: told without a command, once.
    vm.restored_untold = true;
    vm.snapshot_answers.push_back(3);
    expect(
        &mut vm,
        "",
        format!("PROBE-RESTORED nonce={nonce} count=14\n"),
    );
    expect(&mut vm, "v\n", ok(8, 15));

    vm.input.extend(*b"x231\n");
    assert_eq!(vm.run(), Stop::Exit(231));
    assert_eq!(vm.run(), Stop::Halt);
}

#[test]
fn exits_with_zero_without_a_number() {
    let _limit = watchdog();
    let Some(mut vm) = boot("") else { return };
    vm.input.extend(*b"x\n");
    assert_eq!(vm.run(), Stop::Exit(0));
}

#[test]
fn fills_exactly_the_pages_of_its_span() {
    let _limit = watchdog();
    for text in [
        "fill=all,seed=3",
        "fill=alternate,seed=4294967295",
        "fill=top:5,seed=0",
        "fill=spread:3,seed=9",
        "fill=spread:1,seed=2",
    ] {
        let Some(mut vm) = boot(text) else { return };
        assert_eq!(vm.run(), Stop::Idle);
        let params = params(text);
        let span = params.span(RAM_BYTES);
        assert_filled(&vm, params.seed, span);
        let filled = (0x20_0000..RAM_BYTES as u32)
            .step_by(4096)
            .filter(|page| (0..4096).step_by(4).any(|at| vm.read_u32(page + at) != 0))
            .count();
        assert_eq!(filled, span.pages as usize, "{text}");
        vm.take_output();
        vm.input.extend(*b"v\n");
        assert_eq!(vm.run(), Stop::Idle);
        let sum = checksum(params.seed, span);
        assert_eq!(
            vm.take_output(),
            format!(
                "PROBE-VERIFY ok checksum={sum:08x} seed={} count=1\n",
                params.seed
            )
        );
    }
}

#[test]
fn names_the_first_bad_address() {
    let _limit = watchdog();
    let Some(mut vm) = boot("fill=spread:4,seed=1") else {
        return;
    };
    assert_eq!(vm.run(), Stop::Idle);
    vm.take_output();
    let pages: Vec<u32> = params("fill=spread:4").span(RAM_BYTES).pages().collect();
    // From the last to the first, so that each corruption is the new first one.
    for page in pages.into_iter().rev() {
        for sector in (0..8).rev() {
            let address = page + sector * SECTOR_BYTES;
            vm.write_u32(address, if sector % 2 == 0 { 0 } else { word(2, address) });
            vm.input.extend(*b"v\n");
            assert_eq!(vm.run(), Stop::Idle);
            assert_eq!(
                vm.take_output(),
                format!("PROBE-VERIFY bad address=0x{address:08x}\n")
            );
        }
    }
    vm.input.extend(*b"d\nv\n");
    assert_eq!(vm.run(), Stop::Idle);
    assert!(vm.take_output().contains("PROBE-VERIFY ok"));
}

#[test]
fn uses_the_serial_line_where_there_is_no_port_console() {
    let _limit = watchdog();
    let image = image().unwrap();
    let boot = Boot {
        command_line: Some("console=ttyS0 refill=all fill=top:2 seed=12 quiet"),
        port_console: false,
        ..Boot::default()
    };
    let Some(mut vm) = Vm::boot(&image, &boot) else {
        return;
    };
    assert_eq!(vm.run(), Stop::Idle);
    let output = vm.take_output();
    assert!(output.starts_with("PROBE-READY nonce="), "{output}");
    assert_eq!(String::from_utf8_lossy(&vm.serial), output);
    let span = params("fill=top:2").span(RAM_BYTES);
    assert_filled(&vm, 12, span);

    vm.serial.clear();
    vm.input.extend(*b"v\r\n");
    assert_eq!(vm.run(), Stop::Idle);
    let sum = checksum(12, span);
    assert_eq!(
        String::from_utf8_lossy(&vm.serial),
        format!("PROBE-VERIFY ok checksum={sum:08x} seed=12 count=1\n")
    );
    vm.input.extend(*b"x3\n");
    assert_eq!(vm.run(), Stop::Exit(3));
}

#[test]
fn halts_where_nothing_can_be_typed() {
    let _limit = watchdog();
    let boot = Boot {
        port_console: false,
        serial_line: false,
        ..Boot::default()
    };
    let Some(mut vm) = Vm::boot(&image().unwrap(), &boot) else {
        return;
    };
    assert_eq!(vm.run(), Stop::Halt);
    assert!(vm.take_output().starts_with("PROBE-READY nonce="));
}

#[test]
fn takes_defaults_and_refuses_a_machine_without_a_memory_map() {
    let _limit = watchdog();
    let image = image().unwrap();
    let Some(mut vm) = Vm::boot(&image, &Boot::default()) else {
        return;
    };
    assert_eq!(vm.run(), Stop::Idle);
    assert_filled(&vm, 1, ProbeParams::default().span(RAM_BYTES));

    for boot in [
        Boot {
            memory_map: &[],
            ..Boot::default()
        },
        // Reserved, or RAM that does not hold the image.
        Boot {
            memory_map: &[
                (0, RAM_BYTES, 2),
                (0, 0x10_0000, 1),
                (0x20_0000, RAM_BYTES, 1),
                (1 << 32, 1 << 30, 1),
            ],
            ..Boot::default()
        },
        Boot {
            start_info_version: 0,
            ..Boot::default()
        },
        Boot {
            magic: 0x336e_c579,
            ..Boot::default()
        },
    ] {
        let mut vm = Vm::boot(&image, &boot).unwrap();
        assert_eq!(vm.run(), Stop::Exit(1));
        assert_eq!(vm.take_output(), "PROBE-FAILED no usable PVH memory map\n");
    }
}

#[test]
fn a_nonce_is_drawn_at_each_boot() {
    let _limit = watchdog();
    let mut nonces = Vec::new();
    for _ in 0..4 {
        let Some(mut vm) = Vm::boot(&image().unwrap(), &Boot::default()) else {
            return;
        };
        assert_eq!(vm.run(), Stop::Idle);
        nonces.push(nonce(&vm.take_output()));
    }
    nonces.sort_unstable();
    nonces.dedup();
    assert_eq!(nonces.len(), 4);
}

/// `cargo test --release -p nvx-probe-guest --test on_kvm -- --ignored --nocapture`
#[test]
#[ignore = "prints a measurement"]
fn time_to_ready() {
    let _limit = watchdog();
    let image = image().unwrap();
    if kvm().is_none() {
        return;
    }
    for command_line in [
        "fill=top:1 seed=7",
        "fill=top:256 seed=7",
        "fill=spread:256 seed=7",
    ] {
        let mut times = Vec::new();
        for _ in 0..15 {
            let boot = Boot {
                command_line: Some(command_line),
                ..Boot::default()
            };
            let mut vm = Vm::boot(&image, &boot).unwrap();
            let start = Instant::now();
            assert_eq!(vm.run(), Stop::Idle);
            let ready = start.elapsed();
            vm.input.extend(*b"v\n");
            let start = Instant::now();
            assert_eq!(vm.run(), Stop::Idle);
            times.push((ready, vm.first_output_after(), start.elapsed()));
        }
        times.sort_unstable();
        println!(
            "{command_line}: (ready, first byte, verify) median {:?}",
            times[7]
        );
    }
}
