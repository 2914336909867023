//! Dependencies between the workspace's crates point downwards only.

use anyhow::Result;

use super::Finding;
use crate::workspace::{Package, Workspace};

/// The floor of every crate. A crate may use crates of lower floors, never of its own or a higher one;
/// tests may use anything. A crate that is not listed here is an error.
const FLOORS: &[(&str, u8)] = &[
    ("nvx-profile", 0),
    ("nvx-host", 0),
    ("nvx-memory", 1),
    ("nvx-probe-guest", 1),
    ("nvx-devices", 2),
    ("nvx-hypervisor", 3),
    ("nvx-snapshot", 3),
    // For tests only.
    ("nvx-whp-double", 4),
    ("nvx-machine", 4),
    ("nvx-guest", 5),
    ("nvx-vmm", 5),
    ("nvx-bench", 6),
    ("nvx-perf", 7),
    ("nvx-fuzz-targets", 8),
    ("nvx", 8),
    ("xtask", 9),
];

pub fn check(workspace: &Workspace) -> Result<Vec<Finding>> {
    Ok(findings(&workspace.packages))
}

fn floor(name: &str) -> Option<u8> {
    FLOORS
        .iter()
        .find(|(crate_name, _)| *crate_name == name)
        .map(|&(_, floor)| floor)
}

fn findings(packages: &[Package]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for package in packages {
        let name = &package.name;
        let Some(own) = floor(name) else {
            let message = format!("crate {name} has no floor in xtask/src/verify/layers.rs");
            findings.push(Finding::new(&package.manifest, 0, message));
            continue;
        };
        for dependency in package.dependencies.iter().filter(|one| !one.dev) {
            // Crates of others are not in the table; undeclared crates of ours are reported above.
            let Some(other) = floor(&dependency.name) else {
                continue;
            };
            if other >= own {
                let message = format!(
                    "crate {name} (floor {own}) may not depend on {} (floor {other})",
                    dependency.name
                );
                findings.push(Finding::new(&package.manifest, 0, message));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace::Dependency;

    fn package(name: &str, dependencies: &[(&str, bool)]) -> Package {
        Package {
            name: name.to_owned(),
            manifest: "Cargo.toml".into(),
            roots: Vec::new(),
            dependencies: dependencies
                .iter()
                .map(|&(name, dev)| Dependency {
                    name: name.to_owned(),
                    dev,
                })
                .collect(),
        }
    }

    #[test]
    fn downwards_and_tests_pass() {
        let packages = [package(
            "nvx-snapshot",
            &[("nvx-memory", false), ("serde", false), ("nvx-vmm", true)],
        )];
        assert_eq!(findings(&packages), []);
    }

    #[test]
    fn upwards_sideways_and_undeclared_fail() {
        let packages = [
            package("nvx-memory", &[("nvx-vmm", false)]),
            package("nvx-devices", &[("nvx-snapshot", false)]),
            package("nvx-new", &[]),
        ];
        let found = findings(&packages);
        assert_eq!(found.len(), 3);
        assert!(found[0].message.contains("may not depend on nvx-vmm"));
        assert!(found[1].message.contains("may not depend on nvx-snapshot"));
        assert!(found[2].message.contains("nvx-new has no floor"));
    }
}
