//! The developer's one door: checks, test lanes, the shipped binary, and the speed floor.
//!
//! `cargo xtask verify` runs every static check, `cargo xtask test` runs the lanes, `cargo xtask build`
//! makes the static binary in the order that `cargo xtask start-order` recorded, `cargo xtask man` writes the man pages, and `cargo xtask floor` measures nvx
//! against a C program that does only what the kernel interface demands. `cargo xtask fuzz` runs the fuzz
//! targets, `cargo xtask soak` random lives of VMs. Each command is one module; this file only parses arguments.
#![forbid(unsafe_code)]
#![expect(
    clippy::print_stdout,
    reason = "this program's product is what it prints"
)]

mod dist;
mod floor;
mod fuzz;
mod linux_guest;
mod man;
mod rust_text;
mod soak;
mod start_order;
mod test;
mod verify;
mod windows;
mod workspace;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

use crate::workspace::Workspace;

/// Developer commands of the nvx workspace.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run every static check and report each with one line.
    Verify,
    /// Run the test lanes and print one table.
    Test(test::Options),
    /// Build the statically linked nvx binary and print its path.
    #[command(visible_alias = "dist")]
    Build(dist::Options),
    /// Write a man page for each nvx command and print their directory.
    Man(man::Options),
    /// Record which functions a start executes, for `build` to place together (needs /dev/kvm).
    StartOrder,
    /// Measure nvx against the speed floor.
    Floor(floor::Options),
    /// Fuzz what reads untrusted bytes and what a guest drives.
    Fuzz(fuzz::Options),
    /// Live random VMs' lives for a given time, and look for what is lost or leaks.
    Soak(soak::Options),
}

fn main() -> ExitCode {
    match run(&Arguments::parse().command) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: &Command) -> Result<ExitCode> {
    let workspace = Workspace::load()?;
    match command {
        Command::Verify => verify::run(&workspace),
        Command::Test(options) => test::run(&workspace, options),
        Command::Build(options) => {
            let binary = dist::build(&workspace, options)?;
            println!("{}", binary.display());
            Ok(ExitCode::SUCCESS)
        }
        Command::Man(options) => {
            let directory = man::write(&workspace, options)?;
            println!("{}", directory.display());
            Ok(ExitCode::SUCCESS)
        }
        Command::StartOrder => start_order::run(&workspace),
        Command::Floor(options) => floor::run(&workspace, options),
        Command::Fuzz(options) => fuzz::run(&workspace, options),
        Command::Soak(options) => soak::run(&workspace, options),
    }
}
