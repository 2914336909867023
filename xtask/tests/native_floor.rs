//! The floor program on this machine.
#[test]
fn a() {}
