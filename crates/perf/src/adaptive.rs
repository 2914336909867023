//! The adaptive rules: every series is judged by its own noise, and what all share is told apart
//! from what one did.
//!
//! [`panel`] turns a history into logarithms, [`model`] learns what the last commits say, [`judge`]
//! takes one commit after the other and calls events and suspects by the constants in [`rule`], and
//! [`findings`] puts them into words. doc/design/history-gate.md has the method, the constants with
//! their reasons, and the measured figures.

pub(crate) mod findings;
pub(crate) mod judge;
pub(crate) mod model;
pub(crate) mod panel;
pub(crate) mod robust;
pub(crate) mod rule;
