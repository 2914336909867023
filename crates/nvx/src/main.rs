//! The `nvx` command line: run, capture and restore microVMs.
//!
//! Parsing ([`cli`]) is pure and opens no file; each command is one module of [`commands`] and has
//! no logic of its own beyond turning arguments into a request and a result into output.

#![forbid(unsafe_code)]

mod cli;
mod commands;
mod exit;
mod output;
mod size;

use std::process::ExitCode;

use nvx_profile::Profile;

fn main() -> ExitCode {
    // First of all, so that the process clock covers what follows.
    let profile = Profile::from_environment();
    let cli = match cli::parse() {
        Ok(cli) => cli,
        Err(error) => return exit::usage(&error),
    };
    match commands::run(cli, profile) {
        Ok(status) => status,
        Err(failure) => exit::report(&failure),
    }
}
