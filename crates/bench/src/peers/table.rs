//! Peers as text for people.

use std::fmt::Write as _;

use super::{PeerMetric, PeerResult, PeersResult};

/// A comparison with peers as a table: medians, standard deviations, and the ratio to NVX.
pub fn text(result: &PeersResult) -> String {
    let mut text = format!(
        "{} MiB, {} vCPU, probe {}, {}\n{} ({} processors), kernel {}\nscratch {} ({})\n",
        result.memory_mib,
        result.processors,
        result.probe,
        result.timestamp_utc,
        result.host.cpu_model,
        result.host.logical_processors,
        result.host.kernel,
        result.host.scratch.directory.display(),
        result.host.scratch.file_system
    );
    for peer in &result.peers {
        let _ = writeln!(text, "{}: {}", peer.name, peer.version);
    }
    let _ = write!(text, "\n{:<30}", "p50 (sigma) x nvx");
    for peer in &result.peers {
        let _ = write!(text, "{:>30}", peer.name);
    }
    text.push('\n');
    for metric in PeerMetric::ALL {
        let _ = write!(text, "{:<30}", metric.words());
        for peer in &result.peers {
            let _ = write!(text, "{:>30}", cell(result, peer, metric));
        }
        text.push('\n');
    }
    text.push_str("\nA capture is synced by the observer where the monitor has not done so.\n");
    if result.emulated {
        text.push_str("Guest code was emulated: good for ratios on this host only.\n");
    }
    text
}

fn cell(result: &PeersResult, peer: &PeerResult, metric: PeerMetric) -> String {
    let Some(series) = peer.metrics.get(&metric) else {
        return "-".to_owned();
    };
    let mut cell = format!("{:.2}", series.p50);
    if let Some(sigma) = series.sigma {
        let _ = write!(cell, " ({sigma:.2})");
    }
    let nvx = result
        .peers
        .first()
        .and_then(|nvx| nvx.metrics.get(&metric));
    let ratio = nvx.map(|nvx| series.p50 / nvx.p50);
    let is_other = result
        .peers
        .first()
        .is_some_and(|nvx| nvx.name != peer.name);
    match ratio {
        Some(ratio) if is_other && ratio.is_finite() => {
            let _ = write!(cell, " x {ratio:.2}");
        }
        _ => {}
    }
    cell
}

/// The exact commands of each monitor.
pub fn explanation(peers: &[PeerResult]) -> String {
    let mut text = String::new();
    for peer in peers {
        let _ = writeln!(text, "{} ({})", peer.name, peer.version);
        for command in &peer.commands {
            let _ = writeln!(text, "  {}:\n    {}", command.step, command.command);
        }
        text.push('\n');
    }
    text.push_str(
        "probe.elf is the file that `nvx guest export` writes. Each monitor's guest is asked to compare its\n\
         RAM (v) once it is ready and again once it is restored; the times do not contain that.\n",
    );
    text
}
