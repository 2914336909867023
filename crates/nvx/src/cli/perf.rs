//! `nvx perf`: one subcommand per thing that is done with a performance history, each with a file of
//! its own. The user page is doc/performance-history.md.

mod collect;
mod evaluate;
mod gate;
mod import;
mod persist;
mod provenance;
mod report;
mod validate;

use clap::{Args, Subcommand};

pub use collect::CollectArgs;
pub use evaluate::EvaluateArgs;
pub use gate::{GateArgs, RulesName};
pub use import::ImportArgs;
pub use persist::PersistArgs;
pub use provenance::ProvenanceArgs;
pub use report::ReportArgs;
pub use validate::ValidateArgs;

/// Remember, judge and show performance
#[derive(Debug, Args)]
pub struct PerfArgs {
    #[command(subcommand)]
    pub command: PerfCommand,
}

#[derive(Debug, Subcommand)]
pub enum PerfCommand {
    Validate(ValidateArgs),
    Collect(CollectArgs),
    Import(ImportArgs),
    Persist(PersistArgs),
    Gate(GateArgs),
    Evaluate(EvaluateArgs),
    Report(ReportArgs),
    Provenance(ProvenanceArgs),
}
