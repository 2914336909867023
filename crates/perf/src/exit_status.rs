//! The exit codes of the measuring commands.

use serde::{Deserialize, Serialize};

/// How a command of `nvx perf` ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ExitStatus {
    /// Nothing is wrong.
    Good,
    /// A regression was found.
    Regression,
    /// Arguments or input are wrong.
    BadInput,
    /// Nothing can be said: measured on another kind of host than what it is compared with.
    Incomparable,
    /// Nothing is certain: measure again.
    Suspect,
}

impl ExitStatus {
    /// The process's exit code: 0, 1, 2, 3 or 75.
    pub fn code(self) -> u8 {
        match self {
            ExitStatus::Good => 0,
            ExitStatus::Regression => 1,
            ExitStatus::BadInput => 2,
            ExitStatus::Incomparable => 3,
            ExitStatus::Suspect => 75,
        }
    }

    /// The status of two verdicts together: bad input before any regression, a regression before any
    /// suspect, a suspect before what cannot be compared.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        let rank = |status| match status {
            ExitStatus::Good => 0,
            ExitStatus::Incomparable => 1,
            ExitStatus::Suspect => 2,
            ExitStatus::Regression => 3,
            ExitStatus::BadInput => 4,
        };
        if rank(other) > rank(self) {
            other
        } else {
            self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::ExitStatus::{BadInput, Good, Incomparable, Regression, Suspect};

    #[test]
    fn the_worse_verdict_wins_in_either_order() {
        for (left, right, both, code) in [
            (Good, Good, Good, 0),
            (Good, Incomparable, Incomparable, 3),
            (Incomparable, Suspect, Suspect, 75),
            (Suspect, Regression, Regression, 1),
            (Regression, BadInput, BadInput, 2),
        ] {
            assert_eq!(left.and(right), both);
            assert_eq!(right.and(left), both);
            assert_eq!(both.code(), code);
        }
    }
}
