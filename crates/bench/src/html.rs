//! A result as one self-contained page.

use crate::result::LifecycleResult;

/// The page.
pub fn page(result: &LifecycleResult) -> String {
    crate::show::text(result)
}
