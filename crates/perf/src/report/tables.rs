//! Histories as Markdown tables.

use super::chart::number;
use super::{HistoryReport, Report};
use crate::adaptive::findings::short;
use crate::gate::escaped;

pub(super) fn markdown(report: &Report) -> String {
    report.histories.iter().map(history).collect()
}

fn history(history: &HistoryReport) -> String {
    let mut text = format!(
        "### {}\n\n{} commits, newest {}\n\n| metric | p50 | expected | verdict | last finding |\n\
         | --- | ---: | ---: | --- | --- |\n",
        escaped(&history.identity.to_string()),
        history.commits.len(),
        history
            .commits
            .last()
            .map_or("none", |commit| short(commit))
    );
    for series in &history.series {
        let unit = escaped(&series.metric.unit);
        let value = |value: f64| format!("{} {unit}", number(value));
        let newest = series.points.last().map(|(at, _)| *at);
        let expected = series
            .band
            .last()
            .filter(|(at, _, _)| Some(*at) == newest)
            .map(|(_, low, high)| format!("{} to {}", number(*low), value(*high)));
        text.push_str(&format!(
            "| {} | {} | {} | {} | {} |\n",
            escaped(&series.metric.name),
            series.newest().map_or_else(|| "-".to_owned(), value),
            expected.unwrap_or_else(|| "-".to_owned()),
            series.verdict,
            series.marks.last().map_or_else(
                || "-".to_owned(),
                |mark| escaped(&mark.to_text(&history.commits))
            )
        ));
    }
    text.push('\n');
    text
}
