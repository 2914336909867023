//! The `nvx` command line: run, capture and restore microVMs.
//!
//! Parsing ([`cli`]) is pure and opens no file; each command is one module of [`commands`] and has
//! no logic of its own beyond turning arguments into a request and a result into output.
//!
//! The same program is packed into Linux guests, where it is process 1 and reads no command line.

#![forbid(unsafe_code)]
#![cfg_attr(all(target_os = "linux", not(test)), no_main)]

mod cli;
mod commands;
mod exit;
mod output;
mod size;

use exit::ExitCode;
use nvx_profile::Profile;

#[cfg(not(test))]
nvx_host::program!(start);

#[cfg_attr(
    test,
    allow(dead_code, reason = "the test harness has the entry point")
)]
fn start() -> u8 {
    // First of all, so that the process clock covers what follows.
    let profile = Profile::from_environment();
    if nvx_guest::is_init() {
        return nvx_guest::run_init();
    }
    answer(profile).number()
}

fn answer(profile: Profile) -> ExitCode {
    let cli = match cli::parse() {
        Ok(cli) => cli,
        Err(error) => return exit::usage(&error),
    };
    match commands::run(cli, profile) {
        Ok(status) => status,
        Err(failure) => exit::report(&failure),
    }
}
