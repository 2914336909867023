//! `cargo xtask man`: a man page for nvx and one for each of its commands.
//!
//! The pages are made from the declaration of the command line by nvx itself, so this crate stays
//! buildable when the monitor is not, and a packager who has only the binary can make them as well.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::workspace::{Workspace, cargo};

/// Where the pages go.
#[derive(clap::Args)]
pub struct Options {
    /// Directory to write to [default: man1 in the target directory]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

/// Builds nvx, lets it write the pages, and returns their directory.
pub fn write(workspace: &Workspace, options: &Options) -> Result<PathBuf> {
    let directory = match &options.dir {
        Some(directory) => directory.clone(),
        None => workspace.target_dir.join("man1"),
    };
    let status = cargo()
        .args(["build", "--locked", "--package", "nvx"])
        .current_dir(&workspace.root)
        .status()
        .context("cannot run cargo build")?;
    if !status.success() {
        bail!("cargo build of nvx failed");
    }
    let binary = workspace.target_dir.join("debug").join("nvx");
    let status = Command::new(&binary)
        .arg("man")
        .arg(&directory)
        .status()
        .with_context(|| format!("cannot run {}", binary.display()))?;
    if !status.success() {
        bail!("nvx man ended with {status}");
    }
    Ok(directory)
}
