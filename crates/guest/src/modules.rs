//! Kernel modules for a guest: where they are on the host, and what each of them needs.
//!
//! A module file says itself what it depends on, in its section `.modinfo`. So nothing is asked of
//! `modules.dep`, which `depmod` makes on an installed system and which an unpacked package has not.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use elf::ElfBytes;
use elf::endian::LittleEndian;
use nvx_machine::decompress_up_to;
use nvx_machine::kernel::Compression;

/// Largest module in bytes, uncompressed: several times what the largest drivers have.
pub const MAX_MODULE_BYTES: u64 = 128 << 20;
/// How a module's file may be called.
const SUFFIXES: [&str; 4] = [".ko", ".ko.xz", ".ko.zst", ".ko.gz"];
/// Deepest directory that is looked into.
const MAX_DEPTH: u32 = 16;

/// Why a module cannot be packed.
#[derive(Debug, thiserror::Error)]
pub enum ModuleError {
    /// A file or directory cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// Which one.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file is no kernel module.
    #[error("{} is no kernel module: {what}", path.display())]
    NotAModule {
        /// Which one.
        path: PathBuf,
        /// Why not.
        what: String,
    },
    /// The file cannot be unpacked.
    #[error("{} cannot be decompressed", path.display())]
    Compressed {
        /// Which one.
        path: PathBuf,
        /// What the decompressor said.
        source: io::Error,
    },
    /// There is no such module for the guest's kernel.
    #[error("there is no kernel module {name} {place}", place = Place(searched))]
    NotFound {
        /// The name asked for.
        name: String,
        /// Where it was looked for.
        searched: Vec<PathBuf>,
    },
    /// A module needs another one, which is not there.
    #[error("the kernel module {needed_by} needs {name}, which is not there {place}", place = Place(searched))]
    DependencyNotFound {
        /// The one that is missing.
        name: String,
        /// The one that needs it.
        needed_by: String,
        /// Where it was looked for.
        searched: Vec<PathBuf>,
    },
    /// The module was built for another kernel.
    #[error("{} is for kernel {module}, and the guest's is {kernel}", path.display())]
    OtherKernel {
        /// The module's file.
        path: PathBuf,
        /// The release that it was built for.
        module: String,
        /// The guest's release.
        kernel: String,
    },
}

/// The directories that were searched, as the end of a sentence.
struct Place<'a>(&'a [PathBuf]);

impl std::fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.0.is_empty() {
            return f.write_str("(no directory with modules of this kernel was found)");
        }
        for (index, path) in self.0.iter().enumerate() {
            let separator = if index == 0 { "in" } else { "or" };
            write!(f, "{separator} {}", path.display())?;
            if index + 1 < self.0.len() {
                f.write_str(" ")?;
            }
        }
        Ok(())
    }
}

/// A module that is to be loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Module {
    /// Its name, as the kernel has it.
    pub name: String,
    /// Its bytes, uncompressed.
    pub bytes: Vec<u8>,
}

/// The modules of one directory, by name.
struct Tree {
    directory: PathBuf,
    files: HashMap<String, PathBuf>,
    built_in: HashSet<String>,
}

/// Finds the modules that `wanted` names, and all that they depend on, in the order in which they can be
/// loaded. Each of `wanted` is a module's name or the path of its file; a name is looked for where the
/// modules of `kernel` are. What is built into the kernel needs no loading and is left out.
///
/// # Errors
/// A module or one that it needs is not there, cannot be read, or is for another kernel.
pub fn resolve(wanted: &[String], kernel: &Path) -> Result<Vec<Module>, ModuleError> {
    if wanted.is_empty() {
        return Ok(Vec::new());
    }
    let release = kernel_release(kernel);
    let mut resolver = Resolver {
        trees: Vec::new(),
        release: release.clone(),
        visited: HashSet::new(),
        modules: Vec::new(),
    };
    let kernel_directories = module_directories(kernel, release.as_deref());
    for one in wanted {
        if is_path(one) {
            resolver.add_tree(&tree_of(Path::new(one)))?;
        }
    }
    for directory in &kernel_directories {
        resolver.add_tree(directory)?;
    }
    for one in wanted {
        if is_path(one) {
            resolver.file(Path::new(one))?;
        } else {
            resolver.name(one, None)?;
        }
    }
    Ok(resolver.modules)
}

struct Resolver {
    trees: Vec<Tree>,
    release: Option<String>,
    visited: HashSet<String>,
    modules: Vec<Module>,
}

impl Resolver {
    fn add_tree(&mut self, directory: &Path) -> Result<(), ModuleError> {
        if self.trees.iter().all(|tree| tree.directory != directory) {
            self.trees.push(Tree::read(directory)?);
        }
        Ok(())
    }

    fn name(&mut self, name: &str, needed_by: Option<&str>) -> Result<(), ModuleError> {
        let name = canonical(name);
        if self.visited.contains(&name) {
            return Ok(());
        }
        let file = self.trees.iter().find_map(|tree| tree.files.get(&name));
        if let Some(file) = file.cloned() {
            return self.file(&file);
        }
        if self.trees.iter().any(|tree| tree.built_in.contains(&name)) {
            return Ok(());
        }
        let searched = self
            .trees
            .iter()
            .map(|tree| tree.directory.clone())
            .collect();
        Err(match needed_by {
            None => ModuleError::NotFound { name, searched },
            Some(needed_by) => ModuleError::DependencyNotFound {
                name,
                needed_by: needed_by.to_owned(),
                searched,
            },
        })
    }

    fn file(&mut self, path: &Path) -> Result<(), ModuleError> {
        let bytes = read_module(path)?;
        let info = ModuleInfo::of(&bytes).map_err(|what| ModuleError::NotAModule {
            path: path.to_owned(),
            what,
        })?;
        let name = match info.name {
            Some(name) => canonical(&name),
            None => name_of_file(path).unwrap_or_else(|| path.display().to_string()),
        };
        // Before what it depends on, so that a circle ends.
        if !self.visited.insert(name.clone()) {
            return Ok(());
        }
        if let (Some(kernel), Some(module)) = (&self.release, &info.release)
            && kernel != module
        {
            return Err(ModuleError::OtherKernel {
                path: path.to_owned(),
                module: module.clone(),
                kernel: kernel.clone(),
            });
        }
        for dependency in &info.depends {
            self.name(dependency, Some(&name))?;
        }
        self.modules.push(Module { name, bytes });
        Ok(())
    }
}

impl Tree {
    fn read(directory: &Path) -> Result<Self, ModuleError> {
        let mut files = HashMap::new();
        collect(directory, MAX_DEPTH, &mut files)?;
        let built_in = match fs::read_to_string(directory.join("modules.builtin")) {
            Ok(list) => list
                .lines()
                .filter_map(|line| name_of_file(Path::new(line)))
                .collect(),
            Err(_) => HashSet::new(),
        };
        Ok(Self {
            directory: directory.to_owned(),
            files,
            built_in,
        })
    }
}

fn collect(
    directory: &Path,
    depth: u32,
    files: &mut HashMap<String, PathBuf>,
) -> Result<(), ModuleError> {
    let read_error = |source| ModuleError::Read {
        path: directory.to_owned(),
        source,
    };
    for entry in fs::read_dir(directory).map_err(read_error)? {
        let entry = entry.map_err(read_error)?;
        // Not followed: `build` and `source` lead to whole kernel sources.
        let file_type = entry.file_type().map_err(read_error)?;
        let path = entry.path();
        if file_type.is_dir() && depth > 0 {
            collect(&path, depth - 1, files)?;
        } else if !file_type.is_dir()
            && let Some(name) = name_of_file(&path)
        {
            files.insert(name, path);
        }
    }
    Ok(())
}

/// Whether a module is given by its file rather than by its name.
fn is_path(wanted: &str) -> bool {
    wanted.contains('/') || SUFFIXES.iter().any(|suffix| wanted.ends_with(suffix))
}

/// The directory that has what a module's file depends on: the one with all modules of its kernel, if the
/// file is in such a one, else its own.
fn tree_of(file: &Path) -> PathBuf {
    let parent = match file.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let root = parent.ancestors().find(|directory| {
        let above = directory.parent().and_then(Path::file_name);
        above.is_some_and(|name| name == "modules")
    });
    root.unwrap_or(parent).to_owned()
}

/// The name of a module as the kernel has it: `-` and `_` are the same.
fn canonical(name: &str) -> String {
    name.replace('-', "_")
}

fn name_of_file(path: &Path) -> Option<String> {
    let name = path.file_name()?.to_str()?;
    let suffix = SUFFIXES.iter().find(|suffix| name.ends_with(**suffix))?;
    Some(canonical(name.strip_suffix(suffix)?))
}

fn read_module(path: &Path) -> Result<Vec<u8>, ModuleError> {
    let read_error = |source| ModuleError::Read {
        path: path.to_owned(),
        source,
    };
    let file = File::open(path).map_err(read_error)?;
    let mut bytes = Vec::new();
    file.take(MAX_MODULE_BYTES + 1)
        .read_to_end(&mut bytes)
        .map_err(read_error)?;
    let bytes =
        match Compression::of(&bytes) {
            None => bytes,
            Some(compression) => decompress_up_to(compression, &bytes, MAX_MODULE_BYTES + 1)
                .map_err(|source| ModuleError::Compressed {
                    path: path.to_owned(),
                    source,
                })?,
        };
    if bytes.len() as u64 > MAX_MODULE_BYTES {
        return Err(ModuleError::NotAModule {
            path: path.to_owned(),
            what: format!("it has more than {MAX_MODULE_BYTES} bytes"),
        });
    }
    Ok(bytes)
}

/// What a module says of itself.
#[derive(Debug, Default, PartialEq, Eq)]
struct ModuleInfo {
    name: Option<String>,
    depends: Vec<String>,
    /// The release of its kernel: the first word of `vermagic`.
    release: Option<String>,
}

impl ModuleInfo {
    fn of(bytes: &[u8]) -> Result<Self, String> {
        let file =
            ElfBytes::<LittleEndian>::minimal_parse(bytes).map_err(|error| error.to_string())?;
        let section = file
            .section_header_by_name(".modinfo")
            .map_err(|error| error.to_string())?
            .ok_or("it has no section .modinfo")?;
        let (data, _) = file
            .section_data(&section)
            .map_err(|error| error.to_string())?;
        let mut info = Self::default();
        for field in data.split(|byte| *byte == 0) {
            let Ok(field) = std::str::from_utf8(field) else {
                continue;
            };
            match field.split_once('=') {
                Some(("name", name)) => info.name = Some(name.to_owned()),
                Some(("depends", names)) => {
                    let names = names.split(',').filter(|name| !name.is_empty());
                    info.depends.extend(names.map(str::to_owned));
                }
                Some(("vermagic", magic)) => {
                    info.release = magic.split(' ').next().map(str::to_owned);
                }
                _ => {}
            }
        }
        Ok(info)
    }
}

/// The release of a kernel's file, if it can be told: from a bzImage's header (at 0x20e stands where the
/// version is, less 0x200: `Documentation/arch/x86/boot.rst`), or from the name that distributions give it.
#[must_use]
pub fn kernel_release(kernel: &Path) -> Option<String> {
    release_in_header(kernel).or_else(|| {
        let kernel = fs::canonicalize(kernel).ok()?;
        let name = kernel.file_name()?.to_str()?;
        let (kind, release) = name.split_once('-')?;
        matches!(kind, "vmlinuz" | "vmlinux" | "bzImage").then(|| release.to_owned())
    })
}

fn release_in_header(kernel: &Path) -> Option<String> {
    let mut start = Vec::new();
    // The setup code, of which the version is a part, has at most 64 sectors and the boot sector.
    let file = File::open(kernel).ok()?;
    file.take(65 * 512).read_to_end(&mut start).ok()?;
    if start.get(0x202..0x206)? != b"HdrS" {
        return None;
    }
    let pointer: [u8; 2] = start.get(0x20e..0x210)?.try_into().ok()?;
    let version = start.get(usize::from(u16::from_le_bytes(pointer)) + 0x200..)?;
    let release = version.split(|byte| matches!(byte, 0 | b' ')).next()?;
    let release = std::str::from_utf8(release).ok()?;
    (!release.is_empty() && !release.contains('/')).then(|| release.to_owned())
}

/// Where the modules of a kernel may be: beside it, as in its package, and where the host has its own.
fn module_directories(kernel: &Path, release: Option<&str>) -> Vec<PathBuf> {
    let mut directories = Vec::new();
    let Ok(kernel) = fs::canonicalize(kernel) else {
        return directories;
    };
    let parent = kernel.parent().unwrap_or(Path::new("/"));
    // /lib/modules/RELEASE/vmlinuz, as some distributions have it.
    let holds_kernel = parent.join("kernel").is_dir();
    directories.extend(holds_kernel.then(|| parent.to_owned()));
    if let Some(release) = release {
        let roots = [parent.parent(), Some(Path::new("/"))];
        for root in roots.into_iter().flatten() {
            for modules in ["lib/modules", "usr/lib/modules"] {
                let directory = root.join(modules).join(release);
                if directory.is_dir() {
                    // A merged /usr has the same one under both names.
                    let directory = fs::canonicalize(&directory).unwrap_or(directory);
                    if !directories.contains(&directory) {
                        directories.push(directory);
                    }
                }
            }
        }
    }
    directories
}

#[cfg(test)]
mod tests;
