//! What the guest's init is told to do, by a file in the initramfs.
//!
//! All that is ours in a guest's root is below [`DIRECTORY`], which no tree of a user can have.

use serde::{Deserialize, Serialize};

/// The directory of the guest's root that is ours.
pub const DIRECTORY: &str = ".nvx";
/// The init, as a name of the initramfs; the kernel is told to run `/` and this (`rdinit=`).
pub const PROGRAM: &str = ".nvx/bin/nvx";
/// The directory of [`PROGRAM`], as the guest has it: the last one of `PATH`.
pub const PROGRAM_DIRECTORY: &str = "/.nvx/bin";
/// The configuration, as a name of the initramfs.
pub const CONFIG: &str = ".nvx/config.json";
/// Where kernel modules are, as a name of the initramfs.
pub const MODULES: &str = ".nvx/modules";
/// `PATH` of the command where none is given.
pub const DEFAULT_PATH: &str =
    "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/.nvx/bin";
/// Largest configuration in bytes.
pub const MAX_BYTES: u64 = 1 << 20;

/// Version of [`InitConfig`]. Program and configuration come from one build, so there is only one.
pub const VERSION: u32 = 1;

/// What the init does.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InitConfig {
    /// [`VERSION`].
    pub version: u32,
    /// Kernel modules, in the order in which they are loaded.
    pub modules: Vec<ModuleLoad>,
    /// The program to run and its arguments; not empty.
    pub command: Vec<String>,
    /// Its environment, all of it.
    pub environment: Vec<(String, String)>,
    /// The directory that it begins in.
    pub working_directory: String,
    /// The console is a terminal for the command; else it sees pipes.
    pub terminal: bool,
    /// What `/bin/sh -c` is given in each restored copy.
    pub on_restore: Option<String>,
    /// The machine's name.
    pub host_name: String,
}

/// One kernel module.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModuleLoad {
    /// The module's file, as the guest has it: an absolute path. Not compressed.
    pub file: String,
}
