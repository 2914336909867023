//! Files for the shell and for `man`, made from the declaration of the command line.

use std::path::PathBuf;

use clap::Args;
use clap_complete::Shell;

/// Print a completion script for a shell
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  nvx completions bash > ~/.local/share/bash-completion/completions/nvx"
)]
pub struct CompletionsArgs {
    /// The shell
    #[arg(value_enum)]
    pub shell: Shell,
}

/// Write a man page for each command, for those who make packages
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  nvx man ./man1")]
pub struct ManArgs {
    /// The directory to write to; made if it does not exist
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,
}
