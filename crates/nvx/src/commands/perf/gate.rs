//! `nvx perf gate`.

use crate::exit::ExitCode;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::Path;

use anyhow::{Context as _, anyhow};
use nvx_perf::{
    ExitStatus, FixedRule, GateRequest, GateResult, GateRules, ReplayRequest, ReplayResult, gate,
    replay,
};

use super::show;
use crate::cli::{GateArgs, RulesName};
use crate::exit::Failure;

/// Judges a candidate or replays histories.
pub fn run(args: GateArgs) -> Result<ExitCode, Failure> {
    let fixed = fixed_rule(&args).map_err(Failure::input)?;
    let status = match (args.base, args.candidate) {
        (Some(base), Some(candidate)) => {
            let result = gate(&GateRequest {
                base,
                candidate,
                candidate_history: args.candidate_history,
                allow_reset: args.allow_reset,
                rules: fixed.map_or(
                    GateRules::Adaptive {
                        again: args.again,
                        compare: args.compare,
                    },
                    GateRules::Fixed,
                ),
            })
            .map_err(Failure::input)?;
            append(args.summary.as_deref(), || result.to_markdown())?;
            show(&result, args.json, GateResult::to_text)?;
            result.status
        }
        _ => {
            let files = args.replay;
            let result = replay(&ReplayRequest { files, fixed }).map_err(Failure::input)?;
            append(args.summary.as_deref(), || result.to_markdown())?;
            show(&result, args.json, ReplayResult::to_text)?;
            result.status
        }
    };
    Ok(exit_code(status))
}

fn exit_code(status: ExitStatus) -> ExitCode {
    ExitCode::from(status.code())
}

/// The fixed rule that is asked for; an option of the other rules is an error, so that no one
/// believes it to have been heard.
fn fixed_rule(args: &GateArgs) -> anyhow::Result<Option<FixedRule>> {
    let of_fixed = [
        ("--window", args.window.is_some()),
        ("--minimum-history", args.minimum_history.is_some()),
        ("--threshold", args.threshold.is_some()),
        (
            "--absolute-tolerance-ms",
            args.absolute_tolerance_ms.is_some(),
        ),
    ];
    let of_adaptive = [
        ("--again", args.again.is_some()),
        ("--compare", args.compare.is_some()),
    ];
    let given =
        |options: &[(&'static str, bool)]| options.iter().find(|one| one.1).map(|one| one.0);
    match args.rules {
        RulesName::Adaptive => match given(&of_fixed) {
            Some(option) => Err(anyhow!("{option} belongs to --rules fixed")),
            None => Ok(None),
        },
        RulesName::Fixed => {
            if let Some(option) = given(&of_adaptive) {
                return Err(anyhow!("{option} belongs to --rules adaptive"));
            }
            let standard = FixedRule::default();
            let rows =
                |given: Option<u32>, otherwise| given.map_or(otherwise, |rows| rows as usize);
            Ok(Some(FixedRule {
                window: rows(args.window, standard.window),
                minimum_history: rows(args.minimum_history, standard.minimum_history),
                threshold_percent: args.threshold.unwrap_or(standard.threshold_percent),
                absolute_tolerance_ms: args
                    .absolute_tolerance_ms
                    .unwrap_or(standard.absolute_tolerance_ms),
            }))
        }
    }
}

/// Appends to the summary, before anything is printed: a summary that cannot be written is bad input.
fn append(summary: Option<&Path>, markdown: impl FnOnce() -> String) -> Result<(), Failure> {
    let Some(path) = summary else {
        return Ok(());
    };
    let append = || -> std::io::Result<()> {
        let mut file = OpenOptions::new().create(true).append(true).open(path)?;
        file.write_all(markdown().as_bytes())
    };
    append()
        .with_context(|| format!("{}: cannot append the summary", path.display()))
        .map_err(Failure::input)
}
