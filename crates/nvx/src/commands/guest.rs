//! `nvx guest`.

use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Write};
use std::path::Path;

use anyhow::Context as _;

use super::guest_contents;
use crate::cli::{GuestArgs, GuestCommand, GuestPackArgs};
use crate::exit::{ExitCode, Failure};

/// Carries out a subcommand of `nvx guest`.
pub fn run(args: GuestArgs) -> Result<ExitCode, Failure> {
    match args.command {
        GuestCommand::Export(args) => export(&args.file).map_err(Failure::input)?,
        GuestCommand::Pack(args) => pack(args).map_err(Failure::input)?,
        GuestCommand::Snapshot(args) if args.ask_port => {
            return Ok(ExitCode::from(nvx_guest::ask_port()));
        }
        GuestCommand::Snapshot(_) => {
            let outcome = nvx_guest::request_snapshot().map_err(Failure::input)?;
            return Ok(ExitCode::from(outcome.exit_code()));
        }
        GuestCommand::Probe(_) => {
            let status = probe().map_err(Failure::input)?;
            return Ok(ExitCode::from(status));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn probe() -> anyhow::Result<u8> {
    let mut nonce = [0; 8];
    nvx_host::random_bytes(&mut nonce).context("cannot get random bytes")?;
    let (input, output) = (std::io::stdin().lock(), std::io::stdout().lock());
    let nonce = u64::from_le_bytes(nonce);
    let status = nvx_guest::serve_probe(nonce, input, output, nvx_guest::request_snapshot)?;
    Ok(status)
}

fn export(file: &Path) -> anyhow::Result<()> {
    let image = nvx_probe_guest::image()?;
    create(file, |out| Ok(out.write_all(&image)?))
}

fn pack(args: GuestPackArgs) -> anyhow::Result<()> {
    let kernel = match args.kernel {
        Some(kernel) => kernel,
        None => guest_contents::host_kernel()?,
    };
    let initramfs = guest_contents::plan(&kernel, args.contents)?;
    create(&args.file, |out| {
        let mut out = BufWriter::with_capacity(1 << 20, out);
        initramfs.write_to(&mut out)?;
        Ok(out.flush()?)
    })
}

/// Makes a new file; if it cannot be written, it is removed: half of one would only mislead.
fn create(file: &Path, write: impl FnOnce(&mut File) -> anyhow::Result<()>) -> anyhow::Result<()> {
    let mut out = OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(file)
        .with_context(|| format!("cannot create {}", file.display()))?;
    if let Err(error) = write(&mut out) {
        let _ = std::fs::remove_file(file);
        return Err(error).with_context(|| format!("cannot write {}", file.display()));
    }
    Ok(())
}
