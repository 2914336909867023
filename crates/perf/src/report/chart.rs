//! The chart of one series, as SVG.

use super::SeriesReport;
use crate::adaptive::findings::FindingKind;
use crate::csv::format_p50;

/// Size of a chart in its own units.
const WIDTH: f64 = 400.0;
const HEIGHT: f64 = 136.0;
/// Room around the plot: labels stand above and below it.
const SIDE: f64 = 6.0;
const TOP: f64 = 19.0;
const BOTTOM: f64 = 19.0;

/// Colours of a picture of its own; on the page they are the page's.
const PICTURE_STYLE: &str = "<style>svg{background:#fff;color:#57606a;font:13px sans-serif}\
.band{fill:#0969da26}.line{fill:none;stroke:#0969da;stroke-width:1.5}.shift{stroke:#6e7781;stroke-dasharray:3 3}\
.m-regression{fill:#cf222e}.m-suspect{fill:#bf8700}.m-improvement{fill:#1a7f37}.m-other{fill:#6e7781}\
.label{fill:currentColor;font-size:13px}</style>";

/// A value with four significant digits.
pub(super) fn number(value: f64) -> String {
    format_p50(format!("{value:.3e}").parse().unwrap_or(value))
}

/// Text inside of XML.
pub(super) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

/// Where values lie on the chart.
struct Scale {
    last: f64,
    low: f64,
    high: f64,
}

impl Scale {
    fn of(series: &SeriesReport, commits: usize) -> Self {
        let (low, high) = series.range();
        let (low, high) = series
            .band
            .iter()
            .fold((low, high), |(low, high), (_, below, above)| {
                // A band that is much wider than the values would flatten them.
                (
                    low.min(below.max(0.5 * low)),
                    high.max(above.min(2.0 * high)),
                )
            });
        let room = (0.05 * (high - low)).max(0.01 * high);
        Self {
            last: commits.saturating_sub(1).max(1) as f64,
            low: low - room,
            high: high + room,
        }
    }

    fn x(&self, at: usize) -> f64 {
        SIDE + at as f64 / self.last * (WIDTH - 2.0 * SIDE)
    }

    fn y(&self, value: f64) -> f64 {
        let part = ((value - self.low) / (self.high - self.low)).clamp(0.0, 1.0);
        HEIGHT - BOTTOM - part * (HEIGHT - TOP - BOTTOM)
    }
}

/// A picture of its own.
pub(super) fn picture(series: &SeriesReport, commits: &[String]) -> String {
    let name = escaped(&series.metric.name);
    svg(
        series,
        commits,
        usize::MAX,
        "c",
        &format!("{PICTURE_STYLE}<!-- {} -->", name.replace("--", "- -")),
    )
}

/// The chart; `identifier` is unique on the page, `most_points` bounds what is drawn.
pub(super) fn svg(
    series: &SeriesReport,
    commits: &[String],
    most_points: usize,
    identifier: &str,
    style: &str,
) -> String {
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" \
         aria-labelledby=\"{identifier}t {identifier}d\"><title id=\"{identifier}t\">{}</title>\
         <desc id=\"{identifier}d\">{}</desc>{style}",
        escaped(&series.metric.name),
        escaped(&series.description(commits))
    );
    if !series.points.is_empty() {
        let scale = Scale::of(series, commits.len());
        let marked: Vec<usize> = series.marks.iter().map(|mark| mark.since).collect();
        text.push_str(&band(series, &scale, most_points));
        text.push_str(&line(
            &thinned(&series.points, &marked, most_points),
            &scale,
        ));
        text.push_str(&marks(series, commits, &scale));
        text.push_str(&labels(series, &scale));
    }
    text.push_str("</svg>");
    text
}

/// Commits without a band that it is drawn across: a metric may miss a few. Longer gaps are levels that
/// have just begun, about which nothing is known yet.
const BAND_GAP: usize = 3;

fn band(series: &SeriesReport, scale: &Scale, most_points: usize) -> String {
    let step = series.band.len().div_ceil((most_points / 4).max(1)).max(1);
    series
        .band
        .chunk_by(|one, next| next.0 - one.0 <= BAND_GAP)
        .map(|run| band_run(run, scale, step))
        .collect()
}

fn band_run(run: &[(usize, f64, f64)], scale: &Scale, step: usize) -> String {
    let mut kept: Vec<&(usize, f64, f64)> = run.iter().step_by(step).collect();
    if let Some(last) = run.last()
        && kept.last() != Some(&last)
    {
        kept.push(last);
    }
    if kept.len() < 2 {
        return String::new();
    }
    let above = kept
        .iter()
        .map(|(at, _, high)| place(scale.x(*at), scale.y(*high)));
    let below = kept
        .iter()
        .rev()
        .map(|(at, low, _)| place(scale.x(*at), scale.y(*low)));
    let places: Vec<String> = above.chain(below).collect();
    format!("<polygon class=\"band\" points=\"{}\"/>", places.join(" "))
}

fn line(points: &[(usize, f64)], scale: &Scale) -> String {
    let places: Vec<String> = points
        .iter()
        .map(|(at, value)| place(scale.x(*at), scale.y(*value)))
        .collect();
    if let [only] = places.as_slice() {
        let (x, y) = only.split_once(',').unwrap_or_default();
        return format!("<circle class=\"dot\" cx=\"{x}\" cy=\"{y}\" r=\"2\"/>");
    }
    format!("<polyline class=\"line\" points=\"{}\"/>", places.join(" "))
}

fn place(x: f64, y: f64) -> String {
    format!("{x:.1},{y:.1}")
}

fn marks(series: &SeriesReport, commits: &[String], scale: &Scale) -> String {
    let mut text = String::new();
    for mark in &series.marks {
        let x = scale.x(mark.since);
        let title = escaped(&mark.to_text(commits));
        let class = match mark.kind {
            FindingKind::Regression => "m-regression",
            FindingKind::Suspect => "m-suspect",
            FindingKind::Improvement => "m-improvement",
            _ => "m-other",
        };
        if mark.kind != FindingKind::Suspect {
            text.push_str(&format!(
                "<line class=\"shift\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{TOP}\" y2=\"{:.1}\"/>",
                HEIGHT - BOTTOM
            ));
        }
        let value = series.points.iter().find(|(at, _)| *at >= mark.since);
        let y = value.map_or(TOP, |(_, value)| scale.y(*value));
        text.push_str(&format!(
            "<circle class=\"{class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.5\"><title>{title}</title></circle>"
        ));
    }
    text
}

fn labels(series: &SeriesReport, scale: &Scale) -> String {
    let unit = escaped(&series.metric.unit);
    let label = |x: f64, y: f64, anchor: &str, text: &str| {
        format!("<text class=\"label\" x=\"{x}\" y=\"{y}\" text-anchor=\"{anchor}\">{text}</text>")
    };
    label(
        SIDE,
        TOP - 4.0,
        "start",
        &format!("{} {unit}", number(scale.high)),
    ) + &label(
        SIDE,
        HEIGHT - 4.0,
        "start",
        &format!("{} {unit}", number(scale.low.max(0.0))),
    ) + &label(WIDTH - SIDE, HEIGHT - 4.0, "end", "newest")
}

/// At most about `most` points that look like all of them: per strip the first, smallest, largest and
/// last, and every marked one.
pub(super) fn thinned(points: &[(usize, f64)], marked: &[usize], most: usize) -> Vec<(usize, f64)> {
    if points.len() <= most {
        return points.to_vec();
    }
    let strips = (most / 4).max(1);
    let size = points.len().div_ceil(strips);
    let mut kept = Vec::new();
    for strip in points.chunks(size) {
        let by_value = |left: &&(usize, f64), right: &&(usize, f64)| left.1.total_cmp(&right.1);
        let mut places: Vec<(usize, f64)> = strip
            .iter()
            .filter(|(at, _)| marked.contains(at))
            .chain(strip.first())
            .chain(strip.last())
            .chain(strip.iter().min_by(by_value))
            .chain(strip.iter().max_by(by_value))
            .copied()
            .collect();
        places.sort_by_key(|(at, _)| *at);
        places.dedup_by_key(|(at, _)| *at);
        kept.extend(places);
    }
    kept
}
