//! `nvx completions` and `nvx man`.

use crate::exit::ExitCode;

use anyhow::Context as _;
use clap::CommandFactory as _;

use crate::cli::{Cli, CompletionsArgs, ManArgs};
use crate::exit::Failure;
use crate::output;

/// The program's name in scripts and pages.
const NAME: &str = "nvx";

/// Prints a completion script.
pub fn completions(args: CompletionsArgs) -> Result<ExitCode, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), NAME, &mut script);
    output::result(&String::from_utf8_lossy(&script));
    Ok(ExitCode::SUCCESS)
}

/// Writes a page for the program and one for each command that is not hidden.
pub fn man(args: ManArgs) -> Result<ExitCode, Failure> {
    let directory = args.directory;
    std::fs::create_dir_all(&directory)
        .with_context(|| format!("cannot make the directory {}", directory.display()))
        .map_err(Failure::input)?;
    // Without the `help` command, which repeats every other.
    let command = Cli::command().disable_help_subcommand(true);
    clap_mangen::generate_to(command, &directory)
        .with_context(|| format!("cannot write man pages to {}", directory.display()))
        .map_err(Failure::input)?;
    Ok(ExitCode::SUCCESS)
}
