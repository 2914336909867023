//! What a VM's process gives up before its guest runs.

use std::path::{Path, PathBuf};

use nvx_host::{ConfineError, Confined, Confinement};

use crate::control::ControlServer;
use crate::ram::VmRam;
use crate::vm::CapturePolicy;

/// How far a VM's process is confined before its guest runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Privileges {
    /// The process keeps what it has: it is not the VM's alone.
    #[default]
    Keep,
    /// Everything is given up but system calls.
    KeepSystemCalls,
    /// Only what the VM needs is kept.
    Least,
}

impl Privileges {
    /// Whether threads have a filter of system calls.
    pub(crate) fn filters_system_calls(self) -> bool {
        self == Self::Least
    }

    /// Gives up what is not kept; `None` if that is nothing. To be called before there is a second thread.
    ///
    /// # Errors
    /// See [`nvx_host::confine`].
    pub(crate) fn drop_rest(
        self,
        policy: &CapturePolicy,
        ram: &VmRam,
        control: Option<&ControlServer>,
    ) -> Result<Option<Confined>, ConfineError> {
        if self == Self::Keep {
            return Ok(None);
        }
        // Looks at the device behind the RAM file, which cannot be opened afterwards.
        ram.writeback.strategy(&ram.memory);
        let destination = policy
            .destination
            .as_ref()
            .map(|place| parent(place.path()));
        let directories = destination
            .into_iter()
            .chain(ram.place.directory())
            .chain(policy.roots.iter().map(PathBuf::as_path))
            .collect();
        let removable_in = control
            .map(|control| parent(control.path()))
            .into_iter()
            .collect();
        nvx_host::confine(&Confinement {
            directories,
            removable_in,
            filter_system_calls: self.filters_system_calls(),
        })
        .map(Some)
    }
}

fn parent(path: &Path) -> &Path {
    nvx_snapshot::parent_of(path)
}
