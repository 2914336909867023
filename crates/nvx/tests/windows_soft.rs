//! `nvx.exe` as a user of Windows has it, on the back end soft.

#![cfg(windows)]

const BACKEND: &str = "soft";

#[path = "suites/windows.rs"]
mod windows;

#[path = "suites/windows_refusals.rs"]
mod windows_refusals;

#[path = "windows_support/mod.rs"]
mod support;
