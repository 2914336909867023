//! `nvx.exe` as a user of Windows has it, on the back end whp: through the double of its library, which
//! the lane puts where Windows has the real one.

#![cfg(windows)]

const BACKEND: &str = "whp";

#[path = "suites/windows.rs"]
mod windows;

#[path = "windows_support/mod.rs"]
mod support;
