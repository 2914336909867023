//! `nvx guest`, and what `nvx run` says of a Linux guest's contents as well.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// Make files for guests; inside a guest, ask for a snapshot
#[derive(Debug, Args)]
pub struct GuestArgs {
    #[command(subcommand)]
    pub command: GuestCommand,
}

#[derive(Debug, Subcommand)]
pub enum GuestCommand {
    Export(GuestExportArgs),
    Pack(GuestPackArgs),
    Snapshot(GuestSnapshotArgs),
}

/// Write the probe guest as an ELF file with a PVH entry, which other monitors boot as well
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  nvx guest export probe.elf")]
pub struct GuestExportArgs {
    /// The file to make; must not exist yet
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
}

/// Write the initramfs that `nvx run` would give to a Linux guest
#[derive(Debug, Args)]
#[command(
    after_help = "The kernel must be told rdinit=/.nvx/bin/nvx, which nvx run does by itself.\n\n\
Example:\n  nvx guest pack guest.cpio --root ./rootfs -- /bin/sh -c 'echo hello'"
)]
pub struct GuestPackArgs {
    /// The file to make; must not exist yet
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// The guest's kernel, for its modules [default: the host's own]
    #[arg(long, value_name = "FILE")]
    pub kernel: Option<PathBuf>,
    #[command(flatten)]
    pub contents: GuestContentsArgs,
}

/// Inside a guest: ask the monitor for a snapshot of it
#[derive(Debug, Args)]
#[command(
    after_help = "Exit codes:\n  0   this is a restored copy; its clock and random numbers are its own\n  \
10  refused: nothing was captured\n  11  captured, and this is still the source\n  \
2   it cannot be asked for here\n\nExample (in a guest of nvx run --snapshot ./snap):\n  \
nvx guest snapshot && echo restored"
)]
pub struct GuestSnapshotArgs {}

/// What a Linux guest has in it, and what it does.
#[derive(Debug, Args)]
pub struct GuestContentsArgs {
    /// Root file system: a directory or a tar archive (also .tar.gz) [default: nothing but nvx]
    #[arg(long, value_name = "DIR|TAR")]
    pub root: Option<PathBuf>,
    /// Kernel module to load, with what it depends on: a name or a file; repeatable
    #[arg(long = "module", value_name = "NAME|FILE")]
    pub modules: Vec<String>,
    /// Variable of the command's environment; a name alone takes the value here; repeatable
    #[arg(long = "env", value_name = "NAME=VALUE")]
    pub environment: Vec<String>,
    /// Directory that the command begins in
    #[arg(long = "workdir", value_name = "DIR", default_value = "/")]
    pub working_directory: String,
    /// Shell command that every restored copy runs before it goes on, such as to set a host name
    #[arg(long, value_name = "COMMAND")]
    pub on_restore: Option<String>,
    /// The guest's host name
    #[arg(long, value_name = "NAME", default_value = "nvx")]
    pub hostname: String,
    /// Command to run in the guest; its exit status is nvx's
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}
