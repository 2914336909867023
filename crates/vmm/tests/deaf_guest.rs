//! A guest that does not come to rest: a capture is refused at its deadline, and the guest runs on.

#![cfg(target_os = "linux")]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests fail by panicking"
)]

use std::path::Path;
use std::thread;
use std::time::Duration;

use nvx_devices::numbers;
use nvx_host::{ConsoleOutput, ControlListener, TerminationSignals};
use nvx_hypervisor::fake::{Fake, Latch, Step};
use nvx_profile::Profile;
use nvx_vmm::control::client::Client;
use nvx_vmm::control::protocol::{ErrorCode, ResponseResult, WireRequest};
use nvx_vmm::{
    BootGuest, BootRequest, CaptureError, CapturePolicy, Captured, Console, CpuChoice, Observer,
    Outcome, RamRequest, Vm, VmOptions, boot,
};

/// Nothing happens that an observer hears of.
struct Nothing;

impl Observer for Nothing {
    fn capture_failed(&mut self, error: &CaptureError) {
        panic!("{error}");
    }

    fn paths_not_confined(&mut self) {
        panic!("nothing was to be confined");
    }

    fn captured_and_continues(&mut self, captured: &Captured) {
        panic!("{captured:?}");
    }
}

/// A VM whose first vCPU spins and whose second one replays `script`, with its control socket and its RAM file in `directory`.
fn machine(script: Vec<Step>, directory: &Path) -> Vm {
    let request = BootRequest {
        layout: nvx_machine::ram_layout(16 << 20).unwrap(),
        vcpus: 2,
        guest: BootGuest::Plain {
            image: nvx_probe_guest::prebuilt().into(),
            command_line: String::new(),
        },
        cpu: CpuChoice::Host,
        ram: RamRequest {
            scratch: Some(directory.to_owned()),
            ..RamRequest::default()
        },
        options: VmOptions {
            capture: CapturePolicy {
                roots: vec![directory.canonicalize().unwrap()],
                ..Default::default()
            },
            control: Some(ControlListener::bind(&directory.join("control")).unwrap()),
            ..VmOptions::default()
        },
    };
    let console = Console {
        input: None,
        output: ConsoleOutput::stdout().unwrap(),
    };
    let open = |_: Option<&str>| Ok(Box::new(Fake::new(vec![vec![Step::Spin], script])) as Box<_>);
    boot(request, console, open, Profile::start(false)).unwrap()
}

fn ask(socket: &Path, command: &str, destination: Option<&Path>) -> ResponseResult {
    let request = WireRequest {
        command: command.to_owned(),
        destination: destination.map(Path::to_owned),
        continue_after: destination.map(|_| true),
        ..Default::default()
    };
    Client::connect(socket).unwrap().ask(request).unwrap()
}

#[test]
fn a_capture_is_refused_at_its_deadline_and_the_guest_runs_on() {
    let directory = tempfile::tempdir().unwrap();
    let signals = TerminationSignals::take_over().unwrap();
    let latch = Latch::default();
    let script = vec![
        Step::Deaf(latch.clone()),
        Step::PortWrite(numbers::SHUTDOWN, vec![7]),
    ];
    let vm = machine(script, directory.path());
    let (socket, snapshot) = (
        directory.path().join("control"),
        directory.path().join("snap"),
    );
    let client = thread::spawn(move || {
        assert!(latch.wait_until_reached(Duration::from_secs(60)));
        let refused = ask(&socket, "capture", Some(&snapshot));
        let status = ask(&socket, "status", None);
        let left: Vec<_> = std::fs::read_dir(snapshot.parent().unwrap())
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        // Only now may the VM end: the answers were those of a running one.
        latch.open();
        (refused, status, left)
    });
    let outcome = vm.run(&signals, &mut Nothing).unwrap();
    let (refused, status, left) = client.join().unwrap();
    let ResponseResult::Error { code, message } = refused else {
        panic!("{refused:?}");
    };
    assert_eq!(code, ErrorCode::CaptureFailed);
    assert_eq!(message, "the vCPUs did not stop within 5 s");
    let ResponseResult::Status(status) = status else {
        panic!("{status:?}");
    };
    assert_eq!((status.state.as_str(), status.captures), ("running", 0));
    assert_eq!(left, ["control"]);
    assert!(
        matches!(outcome, Outcome::GuestExit { status: 7 }),
        "{outcome:?}"
    );
}
