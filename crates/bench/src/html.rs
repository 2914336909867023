//! A result as one self-contained page: no script, nothing loaded, light and dark.
//!
//! Every series is a strip of points in the order of the samples, since a disturbance shows in the order
//! first; the phases of each sample are a stacked bar below it; the device's throughput over the run's
//! time comes last. Each picture has a text that says what it shows.

mod chart;

use maud::{DOCTYPE, Markup, PreEscaped, html};

use crate::result::{LifecycleResult, TimeSeries};
use crate::show::{metrics, profiles, resident_sets};
use chart::{phase_colours, stacked_phases, strip, throughput};

const STYLE: &str = "
:root{--ink:#1b1f24;--paper:#fff;--soft:#8a939c;--line:#d8dde2;--mark:#0b62c4}
@media(prefers-color-scheme:dark){:root{--ink:#e6e9ec;--paper:#15181b;--soft:#8a939c;--line:#343a40;--mark:#6cb2ff}}
body{margin:0 auto;padding:1rem;max-width:76rem;color:var(--ink);background:var(--paper);font:15px/1.45 system-ui,sans-serif}
h1{font-size:1.4rem}h2{font-size:1.1rem;margin:2rem 0 .3rem}
svg{width:100%;min-width:44rem;height:auto;display:block}svg text{fill:var(--ink);font-size:13px}
svg .number{font-size:11px;text-anchor:middle;fill:var(--soft)}
.scroll{overflow-x:auto}table{border-collapse:collapse;margin-bottom:1rem;font-variant-numeric:tabular-nums}
td,th{padding:.15rem .6rem;border-bottom:1px solid var(--line);text-align:right}
td:first-child,th:first-child{text-align:left}
.warning{border-left:4px solid #c77700;padding:.2rem .6rem}
.key span{display:inline-block;margin-right:1rem}.key i{display:inline-block;width:.8em;height:.8em;margin-right:.3em}
.axis{stroke:var(--line)}.median{stroke:var(--soft);stroke-dasharray:4 3}.point{fill:var(--mark)}.curve{stroke:var(--mark);fill:none}
";

/// The page.
pub fn page(result: &LifecycleResult) -> String {
    let controls = &result.controls;
    let title = format!(
        "Lifecycle of {} MiB on {}",
        controls.memory_mib, controls.platform
    );
    let document = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { (title) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                h1 { (title) }
                (about(result))
                @for warning in &result.warnings { p.warning { (warning) } }
                @if !controls.complete {
                    p.warning { "Incomplete: the run was interrupted." }
                }
                h2 { "Series" }
                (table(&metrics(result)))
                (resident_set_table(result))
                @for (name, series) in metrics(result) {
                    h2 { (name) ", in the order of the samples" }
                    (strip(&name, &series))
                }
                @for (name, profile) in profiles(result) {
                    h2 { "Phases of " (name) ", per sample" }
                    @let colours = phase_colours(profile);
                    p.key {
                        @for (phase, colour) in &colours {
                            span { i style=(format!("background:{colour}")) {} (phase) }
                        }
                    }
                    (stacked_phases(name, profile, &colours))
                }
                h2 { "Writes to the scratch volume's device" }
                (device(result))
            }
        }
    };
    document.into_string()
}

fn about(result: &LifecycleResult) -> Markup {
    let (controls, host) = (&result.controls, &result.host);
    html! {
        p {
            (result.timestamp_utc) ", " (controls.runs) " samples after " (controls.warmups)
            " warm-up, " (controls.processors) " vCPU, " (crate::show::guest(result)) ". "
            (host.cpu_model) ", " (host.logical_processors) " processors, kernel " (host.kernel)
            ". Scratch on " (host.scratch.file_system)
            @if let Some(device) = &host.scratch.device { " (" (device) ")" }
            ". Monitor " code { (result.build.program_blake3.get(..16).unwrap_or_default()) }
            ", host " code { (host.fingerprint.get(..16).unwrap_or_default()) } "."
        }
    }
}

fn resident_set_table(result: &LifecycleResult) -> Markup {
    let mib = |bytes: Option<u64>| match bytes {
        Some(bytes) => format!("{:.3}", bytes as f64 / f64::from(1 << 20)),
        None => "-".to_owned(),
    };
    html! {
        div.scroll {
            table {
                thead { tr { @for name in ["MiB", "n", "p50", "min", "max"] { th scope="col" { (name) } } } }
                tbody {
                    @for (name, rss) in resident_sets(result) {
                        tr {
                            td { (name) } td { (rss.peak_rss_samples_bytes.len()) }
                            td { (mib(rss.peak_rss_p50_bytes)) } td { (mib(rss.peak_rss_min_bytes)) }
                            td { (mib(rss.peak_rss_max_bytes)) }
                        }
                    }
                }
            }
        }
    }
}

fn table(series: &[(String, TimeSeries)]) -> Markup {
    let cell = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.3}"));
    html! {
        div.scroll {
            table {
                thead { tr {
                    @for name in ["ms", "n", "p50", "p25", "p95", "min", "max", "sigma"] {
                        th scope="col" { (name) }
                    }
                } }
                tbody {
                    @for (name, series) in series {
                        tr {
                            td { (name) }
                            td { (series.samples_ms.len()) }
                            @for value in [
                                series.p50_ms, series.p25_ms, series.p95_ms, series.min_ms,
                                series.max_ms, series.sigma_ms,
                            ] {
                                td { (cell(value)) }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn device(result: &LifecycleResult) -> Markup {
    let Some(telemetry) = &result.storage_telemetry else {
        return html! { p { "Nothing was recorded." } };
    };
    html! {
        @match &telemetry.device {
            Some(device) => p { (device) ". " (telemetry.estimate) "." },
            None => p { "The scratch directory is on no block device." },
        }
        (throughput(telemetry))
    }
}

#[cfg(test)]
mod tests;
