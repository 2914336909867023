//! The paravirtual clock.

use super::Case;
use super::machine::Machine;

pub fn guest_time_goes_on_from_what_was_set(case: &Case) {
    const HOUR_NS: u64 = 3_600_000_000_000;
    let machine = Machine::new(&*case.backend);
    // The clock is the vCPUs' time as well, so there is one.
    let _vcpu = machine.vcpu(&*case.backend, 0);
    let Some(clock) = machine.partition.clock() else {
        case.skip("this back end has no paravirtual clock");
        return;
    };
    // Forward, and back as on a host that was booted later than the guest.
    for set_ns in [24 * HOUR_NS, 1000 * HOUR_NS, HOUR_NS] {
        clock.set(set_ns).unwrap();
        let mut last_ns = set_ns;
        for _ in 0..100 {
            let now_ns = clock.get().unwrap();
            assert!(now_ns >= last_ns, "{now_ns} after {last_ns}");
            last_ns = now_ns;
        }
        assert!(
            last_ns < set_ns + HOUR_NS,
            "jumped from {set_ns} to {last_ns}"
        );
    }
}
