//! The adaptive rules.

pub(crate) mod judge;
pub(crate) mod model;
pub(crate) mod panel;
pub(crate) mod robust;
pub(crate) mod rule;
