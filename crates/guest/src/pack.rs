//! Packing a guest: the initramfs with the user's root, the init and what the init is to do.

use std::io;
use std::path::{Path, PathBuf};

use nvx_machine::initramfs::{AddError, Attributes, DeviceNumber, Initramfs, Node};

use crate::config::{self, InitConfig, ModuleLoad};
use crate::modules::{self, ModuleError};

/// The console's device number: major 5, minor 1 (`Documentation/admin-guide/devices.txt`).
const CONSOLE: DeviceNumber = DeviceNumber { major: 5, minor: 1 };

/// What a guest is made of.
#[derive(Clone, Debug)]
pub struct PackRequest {
    /// The guest's kernel, whose modules are meant.
    pub kernel: PathBuf,
    /// The root file system: a directory or a tar archive. None: nothing but `nvx` itself.
    pub root: Option<PathBuf>,
    /// User and group whose files in a directory become root's.
    pub owner: Option<(u32, u32)>,
    /// Names or files of kernel modules.
    pub modules: Vec<String>,
    /// The program that is the init: this one, statically linked.
    pub program: PathBuf,
    /// What the init does; its modules are filled in here.
    pub init: InitConfig,
}

/// Why a guest cannot be packed.
#[derive(Debug, thiserror::Error)]
pub enum PackError {
    /// Something cannot be put into the initramfs.
    #[error(transparent)]
    Add(#[from] AddError),
    /// A kernel module cannot be had.
    #[error(transparent)]
    Module(#[from] ModuleError),
    /// The root cannot be looked at.
    #[error("the root {} cannot be used", path.display())]
    Root {
        /// What was given.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The program cannot be read.
    #[error("{}, which is to be the guest's init, cannot be read", path.display())]
    Program {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: io::Error,
    },
    /// The program would need libraries that a guest has not.
    #[error(
        "{} is to be the guest's init, but is linked to shared libraries; build nvx statically \
         (cargo xtask build)",
        path.display()
    )]
    DynamicProgram {
        /// The file.
        path: PathBuf,
    },
    /// The configuration cannot be written down.
    #[error("the guest's configuration cannot be encoded")]
    Config(#[source] serde_json::Error),
}

/// Plans the initramfs. Nothing of the root is read but names, until it is written.
///
/// # Errors
/// Something that belongs into it is not there or does not fit.
pub fn pack(request: PackRequest) -> Result<Initramfs, PackError> {
    let PackRequest {
        kernel,
        root,
        owner,
        modules,
        program,
        mut init,
    } = request;
    require_static(&program)?;
    let mut initramfs = Initramfs::reserving(config::DIRECTORY);
    if let Some(root) = root {
        add_root(&mut initramfs, &root, owner)?;
    }
    // The kernel opens it for the init before there is a devtmpfs.
    initramfs.add(
        "dev/console",
        Attributes::of_root(0o600),
        Node::CharacterDevice(CONSOLE),
    )?;
    let executable = Attributes::of_root(0o755);
    initramfs.add_host_file(config::PROGRAM, executable, &program)?;
    let readable = Attributes::of_root(0o600);
    for (index, module) in modules::resolve(&modules, &kernel)?.into_iter().enumerate() {
        let name = format!("{}/{index:03}-{}.ko", config::MODULES, module.name);
        init.modules.push(ModuleLoad {
            file: format!("/{name}"),
        });
        initramfs.add(&name, readable, Node::File(module.bytes))?;
    }
    let text = serde_json::to_vec_pretty(&init).map_err(PackError::Config)?;
    initramfs.add(config::CONFIG, readable, Node::File(text))?;
    Ok(initramfs)
}

fn add_root(
    initramfs: &mut Initramfs,
    root: &Path,
    owner: Option<(u32, u32)>,
) -> Result<(), PackError> {
    let metadata = std::fs::metadata(root).map_err(|source| PackError::Root {
        path: root.to_owned(),
        source,
    })?;
    if metadata.is_dir() {
        initramfs.add_tree(root, owner)?;
    } else {
        initramfs.add_tar(root)?;
    }
    Ok(())
}

/// Refuses a program with an interpreter (a dynamic loader): a guest's root need not have it.
fn require_static(program: &Path) -> Result<(), PackError> {
    let read_error = |source| PackError::Program {
        path: program.to_owned(),
        source,
    };
    let file = std::fs::File::open(program).map_err(read_error)?;
    let elf = elf::ElfStream::<elf::endian::LittleEndian, _>::open_stream(file)
        .map_err(|error| read_error(io::Error::other(error)))?;
    let is_dynamic = elf
        .segments()
        .iter()
        .any(|segment| segment.p_type == elf::abi::PT_INTERP);
    if is_dynamic {
        return Err(PackError::DynamicProgram {
            path: program.to_owned(),
        });
    }
    Ok(())
}
