//! Files that `nvx bench` and `nvx perf` read.

use std::path::Path;

use nvx_bench::result::LifecycleResult;
use nvx_bench::validate::{Verdict, validate};
use nvx_perf::{
    CollectRequest, History, Hosts, ImportRequest, ImportResult, NameRule, collect, import,
};
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

/// What `nvx perf import` reads.
pub(crate) fn import_file(bytes: &[u8]) {
    temporary_file::with_content(bytes, |path| {
        let request = ImportRequest {
            source: path.to_owned(),
            history: None,
            platform: Some("linux-kvm-bare-metal".to_owned()),
            commit: Some("0123456789abcdef0123456789abcdef01234567".to_owned()),
        };
        match import(&request) {
            Ok(ImportResult::Lifecycle(imported)) => {
                let rows = History::parse(path, imported.csv.as_bytes(), NameRule::Rows)
                    .expect("rows that were imported can be read");
                assert_eq!(rows.row_count(), imported.rows);
            }
            Ok(ImportResult::Profile(imported)) => {
                assert!(!imported.records.is_empty());
                let samples = imported.phases.values().map(|phase| phase.samples_ms.len());
                assert_eq!(samples.sum::<usize>(), imported.records.len());
                for phase in imported.phases.values() {
                    assert!(phase.min_ms <= phase.p50_ms && phase.p50_ms <= phase.p95_ms);
                    assert!(phase.p95_ms <= phase.max_ms && phase.max_ms.is_finite());
                }
            }
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    });
}

/// The side file of a history.
pub(crate) fn hosts(bytes: &[u8]) {
    let Ok(hosts) = temporary_file::with_content(bytes, Hosts::read) else {
        return;
    };
    for entry in hosts.entries() {
        assert_eq!(hosts.fingerprint(&entry.commit), Some(&*entry.fingerprint));
    }
    let written = hosts.to_json_lines();
    let again = temporary_file::with_content(written.as_bytes(), Hosts::read);
    assert_eq!(again.expect("what was written can be read"), hosts);
}
