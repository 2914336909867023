//! Arguments that say which RAM file a guest has and how it is written back.

use clap::Args;
use nvx_memory::{RamFileChoice, WritebackChoice};

/// Which RAM file, and how a capture writes it back.
#[derive(Clone, Debug, Default, Args)]
pub struct RamFileArgs {
    /// RAM file: auto, dense, sparse, or a file of zeros that you prepared [default: auto]
    #[arg(long, value_name = "FILE", value_parser = parse::<RamFileChoice>)]
    pub ram_file: Option<RamFileChoice>,
    /// How it is written: auto, ascending, ascending-marked or ranges:N [default: auto]
    #[arg(long, value_name = "HOW", value_parser = parse::<WritebackChoice>)]
    pub writeback: Option<WritebackChoice>,
}

/// Reads a choice; why it is none is what clap tells.
pub(super) fn parse<T>(text: &str) -> Result<T, String>
where
    T: std::str::FromStr,
    T::Err: std::fmt::Display,
{
    text.parse().map_err(|error: T::Err| error.to_string())
}
