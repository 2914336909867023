//! One module per command.

mod bench;
mod ctl;
mod demo;
mod doctor;
mod generate;
mod guest;
mod guest_contents;
mod guest_terminal;
mod inspect;
mod perf;
mod restore;
mod run;
mod session;

use crate::exit::ExitCode;

use nvx_profile::Profile;

use crate::cli::{Cli, Command};
use crate::exit::Failure;

/// Carries out what the command line asks for.
pub fn run(cli: Cli, profile: Profile) -> Result<ExitCode, Failure> {
    match cli.command {
        Command::Demo(args) => demo::run(args),
        Command::Run(args) => run::run(args, profile),
        Command::Restore(args) => restore::run(args, profile),
        Command::Capture(args) => ctl::capture(args),
        Command::Ctl(args) => ctl::run(args),
        Command::Inspect(args) => inspect::run(args),
        Command::Guest(args) => guest::run(args),
        Command::Bench(args) => bench::run(args),
        Command::Perf(args) => perf::run(args),
        Command::Doctor(args) => doctor::run(args),
        Command::Completions(args) => generate::completions(args),
        Command::Man(args) => generate::man(args),
    }
}
