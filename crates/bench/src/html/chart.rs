//! The pictures, as SVG.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use maud::{Markup, PreEscaped, html};

use crate::result::{PhaseRecord, ProfileSection, TimeSeries};
use crate::storage::{StorageReading, StorageTelemetry};
use crate::warnings::is_part;

const WIDTH: f64 = 900.0;
const HEIGHT: f64 = 160.0;
/// Room for the labels of the axes, and around the picture.
const LEFT: f64 = 90.0;
const BOTTOM: f64 = 24.0;
const EDGE: f64 = 14.0;
/// At most so many samples have their number below them.
const MAX_NUMBERS: usize = 25;
/// At most so many points of a time line are drawn.
const MAX_POINTS: usize = 2000;
/// Told apart by most eyes, on light and on dark ground; no suite has more phases.
const COLOURS: [&str; 14] = [
    "#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#999999", "#ee8866",
    "#44bb99", "#bbcc33", "#b07aa1", "#9c755f", "#8cd17d", "#d4a6c8",
];

/// A scale from `low..=high` to the picture's height; higher values are further up.
struct Vertical {
    low: f64,
    high: f64,
}

impl Vertical {
    fn y(&self, value: f64) -> f64 {
        let span = (self.high - self.low).max(f64::MIN_POSITIVE);
        HEIGHT - BOTTOM - (value - self.low) / span * (HEIGHT - BOTTOM - EDGE)
    }

    fn labels(&self, unit: &str) -> Markup {
        html! {
            @for value in [self.low, self.high] {
                text x="2" y=(format!("{:.1}", self.y(value) + 4.0)) { (format!("{value:.3} {unit}")) }
                line.axis x1=(LEFT) x2=(WIDTH - EDGE) y1=(format!("{:.1}", self.y(value)))
                    y2=(format!("{:.1}", self.y(value))) {}
            }
        }
    }
}

fn picture(label: &str, content: &Markup) -> Markup {
    html! {
        div.scroll {
            svg xmlns="http://www.w3.org/2000/svg" viewBox=(format!("0 0 {WIDTH} {HEIGHT}")) role="img"
                aria-label=(label) { title { (label) } (content) }
        }
    }
}

/// The numbers of the samples, below them.
fn numbers(of: usize) -> Markup {
    html! {
        @for index in (0..of).step_by(of.div_ceil(MAX_NUMBERS).max(1)) {
            text.number x=(format!("{:.1}", x(index, of))) y=(HEIGHT - 6.0) { (index + 1) }
        }
    }
}

fn x(index: usize, of: usize) -> f64 {
    LEFT + (index as f64 + 0.5) / of.max(1) as f64 * (WIDTH - LEFT - EDGE)
}

/// A point per sample, in order, with the median as a line.
pub(super) fn strip(name: &str, series: &TimeSeries) -> Markup {
    let (Some(low), Some(high), Some(median)) = (series.min_ms, series.max_ms, series.p50_ms)
    else {
        return html! { p { "No samples." } };
    };
    let scale = Vertical { low, high };
    let n = series.samples_ms.len();
    let label = format!("{name}: {n} samples from {low:.3} to {high:.3} ms, median {median:.3} ms");
    let at_median = format!("{:.1}", scale.y(median));
    picture(
        &label,
        &html! {
            (scale.labels("ms"))
            (numbers(n))
            line.median x1=(LEFT) x2=(WIDTH - EDGE) y1=(at_median) y2=(at_median) {}
            @for (index, sample) in series.samples_ms.iter().enumerate() {
                circle.point cx=(format!("{:.1}", x(index, n))) cy=(format!("{:.1}", scale.y(*sample))) r="4" {
                    title { (format!("sample {}: {sample:.3} ms", index + 1)) }
                }
            }
        },
    )
}

/// A colour for each phase that is part of the metric, the longest first.
pub(super) fn phase_colours(profile: &ProfileSection) -> Vec<(String, &'static str)> {
    let mut totals_ms: BTreeMap<&str, f64> = BTreeMap::new();
    for sample in &profile.raw_samples {
        for record in is_part(&sample.records) {
            *totals_ms.entry(&record.phase).or_default() += milliseconds(record);
        }
    }
    let mut phases: Vec<(&str, f64)> = totals_ms.into_iter().collect();
    phases.sort_by(|(_, one), (_, other)| other.total_cmp(one));
    phases
        .into_iter()
        .zip(COLOURS.into_iter().cycle())
        .map(|((phase, _), colour)| (phase.to_owned(), colour))
        .collect()
}

fn milliseconds(record: &PhaseRecord) -> f64 {
    record.duration_ns as f64 / 1e6
}

/// The phases of each sample on top of one another.
pub(super) fn stacked_phases(
    name: &str,
    profile: &ProfileSection,
    colours: &[(String, &'static str)],
) -> Markup {
    let bars: Vec<Vec<(usize, f64)>> = profile
        .raw_samples
        .iter()
        .map(|sample| {
            let length_ms = |phase: &str| -> f64 {
                let records = is_part(&sample.records).filter(|record| record.phase == phase);
                records.map(milliseconds).sum()
            };
            let phases = colours.iter().enumerate();
            phases
                .map(|(index, (phase, _))| (index, length_ms(phase)))
                .collect()
        })
        .collect();
    let totals: Vec<f64> = bars
        .iter()
        .map(|bar| bar.iter().map(|(_, ms)| ms).sum())
        .collect();
    let high = totals.iter().copied().fold(0.0, f64::max);
    if high <= 0.0 {
        return html! { p { "No phases." } };
    }
    let scale = Vertical { low: 0.0, high };
    let wide = ((WIDTH - LEFT - EDGE) / bars.len() as f64 * 0.7).min(40.0);
    let mut boxes = String::new();
    for (sample, bar) in bars.iter().enumerate() {
        let mut below = 0.0;
        for (phase, ms) in bar.iter().filter(|(_, ms)| *ms > 0.0) {
            let (top, bottom) = (scale.y(below + ms), scale.y(below));
            let (name, colour) = &colours[*phase];
            let _ = write!(
                boxes,
                "<rect x=\"{:.1}\" y=\"{top:.1}\" width=\"{wide:.1}\" height=\"{:.1}\" fill=\"{colour}\">\
                 <title>sample {}: {} {ms:.3} ms</title></rect>",
                x(sample, bars.len()) - wide / 2.0,
                bottom - top,
                sample + 1,
                html! { (name) }.into_string()
            );
            below += ms;
        }
    }
    let label = format!(
        "{name}: the phases of {} samples, up to {high:.3} ms together",
        bars.len()
    );
    picture(
        &label,
        &html! { (scale.labels("ms")) (numbers(bars.len())) (PreEscaped(boxes)) },
    )
}

/// The device's written bytes per second between neighbouring readings.
pub(super) fn throughput(telemetry: &StorageTelemetry) -> Markup {
    let every = telemetry.time_line.len().div_ceil(MAX_POINTS).max(1);
    let readings: Vec<&StorageReading> = telemetry.time_line.iter().step_by(every).collect();
    let rates: Vec<(f64, f64)> = readings
        .windows(2)
        .filter_map(|two| {
            let (from, to) = (two[0].device_written_bytes?, two[1].device_written_bytes?);
            let seconds = two[1].elapsed_us.checked_sub(two[0].elapsed_us)? as f64 / 1e6;
            let mib = to.saturating_sub(from) as f64 / f64::from(1 << 20);
            (seconds > 0.0).then(|| (two[1].elapsed_us as f64 / 1e6, mib / seconds))
        })
        .collect();
    let Some((end, _)) = rates.last().copied() else {
        return html! { p { "Too short: there are no two readings." } };
    };
    let high = rates.iter().map(|(_, rate)| *rate).fold(1.0, f64::max);
    let scale = Vertical { low: 0.0, high };
    let across = |seconds: f64| LEFT + seconds / end.max(1e-9) * (WIDTH - LEFT - EDGE);
    let points: String = rates
        .iter()
        .map(|(seconds, rate)| format!("{:.1},{:.1} ", across(*seconds), scale.y(*rate)))
        .collect();
    let label = format!("device writes over {end:.1} s of the run, up to {high:.1} MiB/s");
    picture(
        &label,
        &html! {
            (scale.labels("MiB/s"))
            @for sample in telemetry.samples.iter().filter(|sample| sample.suite == "generation") {
                @let (begin, end) = (sample.before.elapsed_us as f64 / 1e6, sample.after.elapsed_us as f64 / 1e6);
                rect x=(format!("{:.1}", across(begin))) y=(EDGE)
                    width=(format!("{:.1}", (across(end) - across(begin)).max(1.0)))
                    height=(HEIGHT - BOTTOM - EDGE) fill="#888" fill-opacity="0.25" {
                    title { (format!("capture {}", sample.index + 1)) }
                }
            }
            polyline.curve points=(points) {}
        },
    )
}
