//! From arguments to a packed Linux guest, for `nvx run` and `nvx guest pack`.

use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use nvx_guest::config::{self, InitConfig};
use nvx_guest::pack::{PackRequest, pack};
use nvx_machine::initramfs::Initramfs;

use crate::cli::GuestContentsArgs;

/// The kernel that a guest gets where none is named: the host's own.
pub fn host_kernel() -> anyhow::Result<PathBuf> {
    const HOW: &str = "name one with --kernel, such as /boot/vmlinuz-* of Debian's package \
                       linux-image-cloud-amd64, /lib/modules/*/vmlinuz of Fedora's package kernel-core, or \
                       /boot/vmlinuz-linux of Arch's package linux";
    let Some(release) = nvx_host::kernel_release() else {
        bail!("a guest needs a Linux kernel; {HOW}");
    };
    // As Debian and Fedora have it, then Fedora and Arch beside the modules.
    let candidates = [
        PathBuf::from(format!("/boot/vmlinuz-{release}")),
        PathBuf::from(format!("/usr/lib/modules/{release}/vmlinuz")),
    ];
    match candidates.iter().find(|path| path.is_file()) {
        Some(found) => Ok(found.clone()),
        None => bail!(
            "this host's own kernel is not there for the guest ({} is missing); {HOW}",
            candidates[0].display()
        ),
    }
}

/// Plans the guest's initramfs.
pub fn plan(kernel: &Path, args: GuestContentsArgs) -> anyhow::Result<Initramfs> {
    let GuestContentsArgs {
        root,
        modules,
        environment,
        working_directory,
        on_restore,
        hostname,
        command,
    } = args;
    if command.is_empty() {
        bail!("no command for the guest; put it after --, as in: -- /bin/sh");
    }
    let working_directory = working_directory.unwrap_or_else(|| "/".to_owned());
    if !working_directory.starts_with('/') {
        bail!("--workdir {working_directory} must begin with /");
    }
    // Like a shell's pipe, one end alone makes it no terminal.
    let terminal = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
    let init = InitConfig {
        version: config::VERSION,
        modules: Vec::new(),
        command,
        environment: environment_of(&environment, terminal)?,
        working_directory,
        terminal,
        on_restore,
        host_name: hostname.unwrap_or_else(|| "nvx".to_owned()),
    };
    let request = PackRequest {
        kernel: kernel.to_owned(),
        root,
        owner: nvx_host::unprivileged_owner(),
        modules,
        program: std::env::current_exe().context("this program's own file cannot be found")?,
        init,
    };
    Ok(pack(request)?)
}

/// What every program expects, then what the user says.
fn environment_of(wanted: &[String], terminal: bool) -> anyhow::Result<Vec<(String, String)>> {
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let mut environment = vec![pair("PATH", config::DEFAULT_PATH), pair("HOME", "/root")];
    if terminal {
        let kind = std::env::var("TERM").unwrap_or_else(|_| "linux".to_owned());
        environment.push(pair("TERM", &kind));
    }
    for one in wanted {
        let (name, value) = match one.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (one.as_str(), std::env::var(one).ok()),
        };
        if name.is_empty() || one.contains('\0') {
            bail!("--env {one:?} has no name");
        }
        // A variable that is not set here is not set there.
        environment.extend(value.map(|value| pair(name, &value)));
    }
    Ok(environment)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_users_variables_come_last() {
        let wanted = ["PATH=/mine", "EMPTY=", "NVX_TEST_IS_NOT_SET", "A=b=c"].map(str::to_owned);
        let environment = environment_of(&wanted, false).expect("variables");
        let names: Vec<_> = environment.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["PATH", "HOME", "PATH", "EMPTY", "A"]);
        assert_eq!(environment[4].1, "b=c");
        assert!(environment_of(&["=value".to_owned()], false).is_err());
    }
}
