//! Files that `nvx bench` and `nvx perf` read.

use std::path::Path;

use nvx_bench::result::LifecycleResult;
use nvx_bench::validate::{Verdict, validate};
use nvx_perf::{CollectRequest, History, NameRule, collect};
use serde_json::Value;

use crate::temporary_file;

/// A history, and rows that were collected.
pub(crate) fn history(bytes: &[u8]) {
    let path = Path::new("linux-kvm-bare-metal-microvm-v2-1vcpu.csv");
    for rule in [NameRule::History, NameRule::Rows] {
        let Ok(history) = History::parse(path, bytes, rule) else {
            continue;
        };
        let written = history.to_csv();
        let again = History::parse(path, written.as_bytes(), rule)
            .unwrap_or_else(|error| panic!("what was written is refused: {error}\n{written}"));
        assert_eq!(again.to_csv(), written);
        assert_eq!(again.row_count(), history.row_count());
    }
}

/// A result, whatever the command that reads it.
pub(crate) fn lifecycle_result(bytes: &[u8]) {
    if let Ok(document) = serde_json::from_slice::<Value>(bytes) {
        let validation = validate(&document, None);
        assert!(!validation.reason.is_empty());
        assert!(!validation.acceptable || validation.verdict == Verdict::Valid);
    }
    if let Ok(result) = serde_json::from_slice::<LifecycleResult>(bytes) {
        let _ = nvx_bench::show::text(&result);
        let page = nvx_bench::html::page(&result);
        assert!(page.contains("</html>"));
    }
    temporary_file::with_content(bytes, |path| {
        let request = CollectRequest {
            result: path.to_owned(),
            history: None,
            platform: Some("linux-kvm-bare-metal".to_owned()),
            commit: None,
            provenance: None,
        };
        if let Ok(collected) = collect(&request) {
            let rows = History::parse(path, collected.csv.as_bytes(), NameRule::Rows);
            rows.expect("rows that were collected can be read");
        }
    });
}
