//! What a process that is about to run untrusted code keeps, and why giving up the rest may fail.

use std::error::Error as StdError;
use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

/// What a thread does, which decides the system calls that remain to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfinedThread {
    /// Serves the host and captures; it may also run a vCPU.
    Monitor,
    /// Runs a vCPU and its devices, and nothing else.
    Vcpu,
}

/// What a process keeps.
#[derive(Debug, Default)]
pub struct Confinement<'a> {
    /// Beneath these, files can be read, made, renamed and removed.
    pub directories: Vec<&'a Path>,
    /// In these, files can be removed: where a socket of this process lies.
    pub removable_in: Vec<&'a Path>,
    /// Only the system calls that a machine needs remain.
    pub filter_system_calls: bool,
}

/// What was given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Confined {
    /// Paths are confined; `false`: the kernel has no Landlock.
    pub paths: bool,
    /// System calls are filtered.
    pub system_calls: bool,
}

/// Why privileges could not be given up.
#[derive(Debug, Error)]
pub enum ConfineError {
    /// A declared directory cannot be opened.
    #[error("cannot confine paths to {}", path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// What was wrong.
        source: Box<dyn StdError + Send + Sync>,
    },
    /// The kernel refuses the rules for paths.
    #[error("the kernel refuses to confine paths")]
    Paths(#[source] Box<dyn StdError + Send + Sync>),
    /// The kernel refuses the filter of system calls.
    #[error("the kernel refuses the filter of system calls")]
    SystemCalls(#[source] io::Error),
    /// A limit or a process attribute cannot be set.
    #[error("cannot give up {what}")]
    Attribute {
        /// What was to be given up.
        what: &'static str,
        /// What was wrong.
        source: io::Error,
    },
}
