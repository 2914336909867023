//! `nvx bench`: one subcommand per thing that can be measured, each with a file of its own.

mod compare;
mod digests;
mod lifecycle;
mod peers;
mod writeback;

use clap::{Args, Subcommand};

pub use compare::{CompareArgs, MergeArgs};
pub use digests::DigestsArgs;
pub use lifecycle::{Cache, DisturbArgs, LifecycleArgs, LinuxSubjectArgs, ShowArgs, SubjectArgs};
pub use peers::PeersArgs;
pub use writeback::WritebackArgs;

/// Measure
#[derive(Debug, Args)]
pub struct BenchArgs {
    #[command(subcommand)]
    pub command: BenchCommand,
}

#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    Lifecycle(LifecycleArgs),
    Show(ShowArgs),
    Compare(CompareArgs),
    Merge(MergeArgs),
    Peers(PeersArgs),
    Disturb(DisturbArgs),
    Writeback(WritebackArgs),
    Digests(DigestsArgs),
}
