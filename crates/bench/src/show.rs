//! A result as a table for people.

use std::fmt::Write as _;

use crate::result::{LifecycleResult, PeakRss, ProfileSection, Teardown, TimeSeries};

/// The whole result as text: metrics, then the phases of each.
pub fn text(result: &LifecycleResult) -> String {
    let mut text = heading(result);
    let _ = writeln!(
        text,
        "\n{:<34}{:>5}{:>11}{:>11}{:>11}{:>11}{:>11}{:>10}",
        "ms", "n", "p50", "p25", "p95", "min", "max", "sigma"
    );
    for (name, series) in metrics(result) {
        let _ = writeln!(text, "{}", row(&name, &series));
    }
    let _ = writeln!(
        text,
        "\n{:<34}{:>5}{:>11}{:>22}{:>11}",
        "MiB", "n", "p50", "min", "max"
    );
    for (name, rss) in resident_sets(result) {
        let mib = |bytes: Option<u64>| cell(bytes.map(|bytes| bytes as f64 / f64::from(1 << 20)));
        let _ = writeln!(
            text,
            "{name:<34}{:>5}{:>11}{:>22}{:>11}",
            rss.peak_rss_samples_bytes.len(),
            mib(rss.peak_rss_p50_bytes),
            mib(rss.peak_rss_min_bytes),
            mib(rss.peak_rss_max_bytes)
        );
    }
    for (name, profile) in profiles(result) {
        let _ = writeln!(text, "\nphases of {name} (* contains others)");
        for (phase, series) in &profile.phases {
            let mark = if series.exclusive { ' ' } else { '*' };
            let _ = writeln!(text, "{}", row(&format!(" {mark}{phase}"), &series.time));
        }
    }
    for warning in &result.warnings {
        let _ = writeln!(text, "\nwarning: {warning}");
    }
    text
}

fn heading(result: &LifecycleResult) -> String {
    let (controls, host) = (&result.controls, &result.host);
    let mut text = format!(
        "{}, {} MiB, {} vCPU, {} ({}), {}\n{} ({} processors), kernel {}\nscratch {} ({}{})",
        guest(result),
        controls.memory_mib,
        controls.processors,
        controls.backend,
        controls.platform,
        result.timestamp_utc,
        host.cpu_model,
        host.logical_processors,
        host.kernel,
        host.scratch.directory.display(),
        host.scratch.file_system,
        host.scratch
            .device
            .as_ref()
            .map_or(String::new(), |device| format!(" on {device}")),
    );
    text.push('\n');
    if !controls.complete {
        text.push_str("INCOMPLETE: the run was interrupted; go on with --resume\n");
    }
    text
}

/// Which guest it was, for people.
pub(crate) fn guest(result: &LifecycleResult) -> String {
    /// So much of a digest tells files apart.
    const SHOWN_DIGITS: usize = 12;
    let controls = &result.controls;
    let Some(kernel) = &controls.kernel else {
        return format!("{} {}", controls.guest, controls.probe);
    };
    let short = |digest: &str| digest.get(..SHOWN_DIGITS).unwrap_or(digest).to_owned();
    let initramfs = match &controls.initrd {
        Some(file) => format!("initramfs {}", file.display()),
        None => "packed initramfs".to_owned(),
    };
    let digest = result.build.initramfs_blake3.as_deref().map(short);
    format!(
        "{} kernel {} ({}), {initramfs} ({})",
        controls.guest,
        kernel.display(),
        short(&result.build.kernel_blake3),
        digest.unwrap_or_default()
    )
}

/// The timing series of a result, by the metrics' names.
pub(crate) fn metrics(result: &LifecycleResult) -> Vec<(String, TimeSeries)> {
    let mut all = Vec::new();
    let teardown =
        |teardown: &Teardown| TimeSeries::of(teardown.teardown_completed_samples_ms.clone());
    for start in result.backends.values() {
        all.push(("cold start".to_owned(), start.time.clone()));
        all.push(("cold start, teardown".to_owned(), teardown(&start.teardown)));
    }
    for capture in result.snapshot_capture.values() {
        all.push(("snapshot generation".to_owned(), capture.time.clone()));
    }
    for start in result.snapshot_restore.values() {
        all.push(("snapshot restore".to_owned(), start.time.clone()));
        all.push((
            "snapshot restore, teardown".to_owned(),
            teardown(&start.teardown),
        ));
    }
    for cell in &result.restore_matrix {
        let name = format!(
            "restore of {} MiB, {} cache",
            cell.memory_mib, cell.cache_state
        );
        all.push((name, cell.result.time.clone()));
    }
    all
}

/// The resident sets of a result's suites.
pub(crate) fn resident_sets(result: &LifecycleResult) -> Vec<(&'static str, &PeakRss)> {
    let starts = result
        .backends
        .values()
        .map(|start| ("cold start, peak RSS", &start.peak_rss));
    let captures = result
        .snapshot_capture
        .values()
        .map(|capture| ("snapshot generation, peak RSS", &capture.peak_rss));
    let restores = result
        .snapshot_restore
        .values()
        .map(|start| ("snapshot restore, peak RSS", &start.peak_rss));
    starts.chain(captures).chain(restores).collect()
}

/// The phases of a result's suites.
pub(crate) fn profiles(result: &LifecycleResult) -> Vec<(&'static str, &ProfileSection)> {
    let starts = result
        .backends
        .values()
        .map(|start| ("cold start", &start.profile));
    let captures = result
        .snapshot_capture
        .values()
        .map(|capture| ("snapshot generation", &capture.profile));
    let restores = result
        .snapshot_restore
        .values()
        .map(|start| ("snapshot restore", &start.profile));
    starts.chain(captures).chain(restores).collect()
}

fn row(name: &str, series: &TimeSeries) -> String {
    format!(
        "{name:<34}{:>5}{:>11}{:>11}{:>11}{:>11}{:>11}{:>10}",
        series.samples_ms.len(),
        cell(series.p50_ms),
        cell(series.p25_ms),
        cell(series.p95_ms),
        cell(series.min_ms),
        cell(series.max_ms),
        cell(series.sigma_ms)
    )
}

fn cell(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.3}"))
}
