//! Names of metrics, and which of two prefixes a file uses.
//!
//! The lifecycle metrics have the same endings in the public histories (`openvmm_cold_start`) and in
//! ours (`nvx_cold_start`). A file keeps the names that it has; both prefixes for one ending in one
//! file would be two series of one thing, and are an error.

use serde::{Deserialize, Serialize};

/// The prefix of lifecycle metrics in a history file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Prefix {
    /// `nvx_`: results of this project's own monitor.
    Nvx,
    /// `openvmm_`: the public histories.
    Openvmm,
}

impl Prefix {
    /// The text before a lifecycle metric's ending.
    pub fn text(self) -> &'static str {
        match self {
            Prefix::Nvx => "nvx_",
            Prefix::Openvmm => "openvmm_",
        }
    }

    /// The other of the two.
    pub fn other(self) -> Self {
        match self {
            Prefix::Nvx => Prefix::Openvmm,
            Prefix::Openvmm => Prefix::Nvx,
        }
    }

    /// The prefix of a metric's name and its ending.
    pub fn split(name: &str) -> Option<(Self, &str)> {
        [Prefix::Nvx, Prefix::Openvmm]
            .into_iter()
            .find_map(|prefix| Some((prefix, name.strip_prefix(prefix.text())?)))
    }

    /// The prefix that the names of a file use; `None` where none of them has one.
    pub fn used_by<'a>(names: impl IntoIterator<Item = &'a str>) -> Option<Self> {
        names
            .into_iter()
            .find_map(|name| Self::split(name).map(|(prefix, _)| prefix))
    }

    /// The name with this prefix in place of the other one; unchanged where it has none.
    pub fn apply(self, name: &str) -> String {
        match Self::split(name) {
            Some((_, ending)) => format!("{}{ending}", self.text()),
            None => name.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_prefixed_names_change() {
        assert_eq!(Prefix::Nvx.apply("openvmm_cold_start"), "nvx_cold_start");
        assert_eq!(Prefix::Nvx.apply("nvx_cold_start"), "nvx_cold_start");
        assert_eq!(
            Prefix::Openvmm.apply("virtfs_live_read"),
            "virtfs_live_read"
        );
    }

    #[test]
    fn a_file_s_prefix_is_that_of_its_first_prefixed_name() {
        assert_eq!(Prefix::used_by(["a", "openvmm_b"]), Some(Prefix::Openvmm));
        assert_eq!(Prefix::used_by(["a"]), None);
    }
}
