//! The Linux side: the init and the snapshot request.

mod control;
mod init;
mod mounts;
mod port;
mod reaper;
mod relay;
mod rendezvous;
mod repair;
mod snapshot;
mod terminal;

pub use init::{is_init, run_init};
pub use port::ask_port;
pub use snapshot::request_snapshot;
