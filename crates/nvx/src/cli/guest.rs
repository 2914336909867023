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
    Probe(GuestProbeArgs),
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
pub struct GuestSnapshotArgs {
    /// Be the process that asks at the I/O port and nothing else
    #[arg(long, hide = true)]
    pub ask_port: bool,
}

/// Inside a guest: answer nvx bench, which measures it, on standard input and output
#[derive(Debug, Args)]
#[command(
    after_help = "Lines:\n  s   ask for a snapshot\n  xN  end with status N\n\nExample:\n  \
nvx run --kernel /boot/vmlinuz --snapshot ./snap -- /.nvx/bin/nvx guest probe"
)]
pub struct GuestProbeArgs {}

/// What a Linux guest has in it, and what it does.
#[derive(Debug, Default, Args)]
pub struct GuestContentsArgs {
    /// Root file system: directory or tar archive [default: only nvx]
    #[arg(long, value_name = "DIR|TAR")]
    pub root: Option<PathBuf>,
    /// Kernel module to load, with what it needs: name or file; repeatable
    #[arg(long = "module", value_name = "NAME|FILE")]
    pub modules: Vec<String>,
    /// Environment variable; a name alone takes its value here; repeatable
    #[arg(long = "env", value_name = "NAME=VALUE")]
    pub environment: Vec<String>,
    /// Directory that the command begins in [default: /]
    #[arg(long = "workdir", value_name = "DIR")]
    pub working_directory: Option<String>,
    /// Shell command that each restored copy runs first
    #[arg(long, value_name = "COMMAND")]
    pub on_restore: Option<String>,
    /// The guest's host name [default: nvx]
    #[arg(long, value_name = "NAME")]
    pub hostname: Option<String>,
    /// Command to run in the guest; its exit status is nvx's
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}

impl GuestContentsArgs {
    /// Whether anything is said of what a guest has in it.
    pub fn is_empty(&self) -> bool {
        let Self {
            root,
            modules,
            environment,
            working_directory,
            on_restore,
            hostname,
            command,
        } = self;
        let lists = [modules, environment, command];
        let texts = [working_directory, on_restore, hostname];
        root.is_none()
            && lists.iter().all(|list| list.is_empty())
            && texts.iter().all(|text| text.is_none())
    }
}
