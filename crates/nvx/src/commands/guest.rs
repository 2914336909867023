//! `nvx guest`.

use crate::exit::ExitCode;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::Path;

use anyhow::Context as _;

use crate::cli::{GuestArgs, GuestCommand};
use crate::exit::Failure;

/// Carries out a subcommand of `nvx guest`.
pub fn run(args: GuestArgs) -> Result<ExitCode, Failure> {
    match args.command {
        GuestCommand::Export(args) => export(&args.file).map_err(Failure::input)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn export(file: &Path) -> anyhow::Result<()> {
    let image = nvx_probe_guest::image()?;
    let mut out = OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(file)
        .with_context(|| format!("cannot create {}", file.display()))?;
    if let Err(error) = out.write_all(&image) {
        // Half a guest would only mislead.
        let _ = std::fs::remove_file(file);
        return Err(error).with_context(|| format!("cannot write {}", file.display()));
    }
    Ok(())
}
