//! The privileges tests on the back end soft, which every machine has.

mod support;

#[path = "suites/privileges.rs"]
mod privileges;
