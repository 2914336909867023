//! The page: one file that loads nothing and needs no script.

use std::collections::BTreeMap;

use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::chart::{number, svg};
use super::{HistoryReport, Report, SeriesReport};
use crate::adaptive::findings::{Finding, short};

/// Points that all charts of a page may have together, so that the page stays small.
const PAGE_POINTS: usize = 60_000;
/// Points of one chart: more than its width can show, and enough to show a shape.
const CHART_POINTS: std::ops::RangeInclusive<usize> = 60..=800;
/// Shared findings that are listed above the charts.
const LISTED_COMMON: usize = 50;
/// Metrics that need a look and are listed above the charts.
const LISTED_METRICS: usize = 50;

const STYLE: &str = "
:root{color-scheme:light dark;--back:#fff;--card:#f6f8fa;--text:#1b1f24;--faint:#57606a;--edge:#d0d7de;--line:#0969da;--band:#0969da26;--bad:#cf222e;--warn:#9a6700;--good:#1a7f37}
@media (prefers-color-scheme:dark){:root{--back:#0d1117;--card:#161b22;--text:#e6edf3;--faint:#9198a1;--edge:#30363d;--line:#58a6ff;--band:#58a6ff33;--bad:#ff7b72;--warn:#e3b341;--good:#56d364}}
*{box-sizing:border-box}
body{margin:0 auto;padding:1rem;max-width:90rem;background:var(--back);color:var(--text);font:1rem/1.45 system-ui,sans-serif;overflow-wrap:anywhere}
h1{font-size:1.5rem;margin:.5rem 0}h2{font-size:1.2rem;margin:1.8rem 0 .3rem}a{color:var(--line)}h3{font-size:.95rem;margin:0;font-family:ui-monospace,monospace}
p{margin:.2rem 0}small,.faint{color:var(--faint)}
fieldset{border:1px solid var(--edge);border-radius:.4rem;display:flex;flex-wrap:wrap;gap:.3rem 1rem;margin:0;min-width:0}
label{display:flex;gap:.4rem;align-items:center;min-width:0}
.grid{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,21rem),1fr));gap:.75rem}
figure{margin:0;padding:.6rem;background:var(--card);border:1px solid var(--edge);border-radius:.4rem;min-width:0}
svg{display:block;width:100%;height:auto}
.band{fill:var(--band)}.line{fill:none;stroke:var(--line);stroke-width:1.5}.dot{fill:var(--line)}
.shift{stroke:var(--faint);stroke-dasharray:3 3}.label{fill:var(--faint);font-size:13px}
.m-regression{fill:var(--bad)}.m-suspect{fill:var(--warn)}.m-improvement{fill:var(--good)}.m-other{fill:var(--faint)}
.v{display:inline-block;padding:0 .5em;border:1px solid currentColor;border-radius:1em;font-size:.8rem;color:var(--faint)}
.v-passed,.v-improvement,.v-cleared{color:var(--good)}.v-regression{color:var(--bad);font-weight:600}.v-suspect{color:var(--warn);font-weight:600}
.key{display:flex;flex-wrap:wrap;gap:.1rem 1rem;margin:.4rem 0 .8rem;color:var(--faint);font-size:.85rem}.key span::before{content:\"\";display:inline-block;width:.65em;height:.65em;margin-right:.35em;border-radius:50%;background:var(--mark)}
.k-bad{--mark:var(--bad)}.k-warn{--mark:var(--warn)}.k-good{--mark:var(--good)}.k-other{--mark:var(--faint)}
details{margin:.3rem 0 .7rem}summary{cursor:pointer}ul{margin:.3rem 0;padding-left:1.2rem;font-size:.85rem}li{margin:.15rem 0}
";

pub(super) fn page(report: &Report) -> String {
    let series: usize = report
        .histories
        .iter()
        .map(|history| history.series.len())
        .sum();
    let most = (PAGE_POINTS / series.max(1)).clamp(*CHART_POINTS.start(), *CHART_POINTS.end());
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { "Performance history" }
                style { (PreEscaped(STYLE)) (PreEscaped(filter_style(report.histories.len()))) }
            }
            body {
                h1 { "Performance history" }
                p.faint {
                    "Every chart shows the medians of accepted runs, oldest on the left. The band is \
                     where noise leaves the next one; a dashed line is a level shift; a dot is a finding."
                }
                (key())
                (filter(report))
                @for (index, history) in report.histories.iter().enumerate() {
                    (section(index, history, most))
                }
            }
        }
    }
    .into_string()
}

/// What the colours of dots mean.
fn key() -> Markup {
    html! {
        div.key {
            span.k-bad { "regression" }
            span.k-warn { "suspect" }
            span.k-good { "improvement" }
            span.k-other { "change of the host" }
        }
    }
}

/// Radio buttons and style rules show one platform; without support for them all are shown.
fn filter(report: &Report) -> Markup {
    html! {
        fieldset {
            legend { "Platform" }
            label { input type="radio" name="platform" id="all" checked; "all" }
            @for (index, history) in report.histories.iter().enumerate() {
                label {
                    input type="radio" name="platform" id=(format!("only{index}"));
                    (history.identity)
                }
            }
        }
    }
}

fn filter_style(histories: usize) -> String {
    (0..histories)
        .map(|index| {
            format!("body:has(#only{index}:checked) section:not(#h{index}){{display:none}}\n")
        })
        .collect()
}

fn section(index: usize, history: &HistoryReport, most: usize) -> Markup {
    let newest = history.commits.last().map_or("", |commit| short(commit));
    html! {
        section id=(format!("h{index}")) {
            h2 { (history.identity) }
            p.faint {
                (history.commits.len()) " commits, " (history.series.len()) " metrics, newest " (newest)
            }
            (verdicts(index, history))
            (common(&history.common))
            div.grid {
                @for (place, series) in history.series.iter().enumerate() {
                    (figure(&identifier(index, place), series, &history.commits, most))
                }
            }
        }
    }
}

fn identifier(history: usize, series: usize) -> String {
    format!("h{history}s{series}")
}

/// How many metrics have which verdict at the newest commit, and which of them need a look.
fn verdicts(index: usize, history: &HistoryReport) -> Markup {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for series in &history.series {
        *counts.entry(series.verdict).or_default() += 1;
    }
    let to_look_at = || {
        let looked = |series: &SeriesReport| ["regression", "suspect"].contains(&series.verdict);
        history
            .series
            .iter()
            .enumerate()
            .filter(move |(_, series)| looked(series))
    };
    html! {
        p {
            @for (verdict, count) in counts {
                span class=(verdict_class(verdict)) { (count) " " (verdict) } " "
            }
        }
        @if to_look_at().next().is_some() {
            ul {
                @for (place, series) in to_look_at().take(LISTED_METRICS) {
                    li {
                        a href=(format!("#{}", identifier(index, place))) { (series.metric.name) }
                        ": " (series.verdict)
                    }
                }
            }
        }
    }
}

fn verdict_class(verdict: &str) -> String {
    format!("v v-{}", verdict.replace(' ', "-"))
}

fn common(findings: &[Finding]) -> Markup {
    let first = findings.len().saturating_sub(LISTED_COMMON);
    html! {
        @if !findings.is_empty() {
            details {
                summary { "What metrics shared: " (findings.len()) " findings" }
                @if first > 0 { p.faint { (first) " older ones are left off" } }
                ul { @for finding in &findings[first..] { li { (finding.to_text()) } } }
            }
        }
    }
}

fn figure(identifier: &str, series: &SeriesReport, commits: &[String], most: usize) -> Markup {
    html! {
        figure id=(identifier) {
            figcaption {
                h3 {
                    // A long name breaks where its words do.
                    @for word in series.metric.name.split_inclusive('_') { (word) wbr; }
                }
                p {
                    @if let Some(newest) = series.newest() {
                        b { (number(newest)) " " (series.metric.unit) } " "
                    }
                    small { (series.direction_text()) } " "
                    span class=(verdict_class(series.verdict)) { (series.verdict) }
                }
            }
            (PreEscaped(svg(series, commits, most, identifier, "")))
            @if let Some(last) = series.marks.last() {
                p { small { (last.to_text(commits)) } }
            }
        }
    }
}
