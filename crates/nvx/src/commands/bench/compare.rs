//! `nvx bench compare` and `merge`.

use crate::exit::ExitCode;

use anyhow::Context as _;
use nvx_bench::compare::{
    CompareError, ComparePlan, MetricKind, NamedBuild, TestPlan, merge, run_comparison, text,
};
use nvx_bench::{DocumentError, read_comparison};
use nvx_host::TerminationSignals;

use super::lifecycle::check_output;
use super::subject::{guest, subject};
use super::turns::{Turns, keep};
use crate::cli::{CompareArgs, MergeArgs};
use crate::exit::Failure;
use crate::output;

/// Results that cannot be compared.
const INCOMPARABLE: u8 = 3;

/// Measures and compares.
pub fn run(args: &CompareArgs) -> Result<ExitCode, Failure> {
    // Before any thread is started: they inherit the mask.
    let signals = TerminationSignals::take_over()
        .context("cannot take over signals")
        .map_err(Failure::monitor)?;
    if let Some(path) = &args.output {
        check_output(path).map_err(Failure::input)?;
    }
    let plan = plan(args).map_err(Failure::input)?;
    let mut turns = Turns::begin(&signals);
    let outcome = run_comparison(&plan, &mut |done, total| turns.go_on(done, total));
    let result = match (outcome, turns.end()) {
        (Ok(result), _) => result,
        (Err(error @ (CompareError::Interrupted | CompareError::Sample { .. })), Some(signal)) => {
            output::message(&error.to_string());
            return Ok(ExitCode::from(signal.exit_code()));
        }
        (Err(error @ CompareError::OtherGuest { .. }), _) => {
            return Err(Failure {
                code: INCOMPARABLE,
                error: error.into(),
            });
        }
        (Err(error), _) => return Err(Failure::input(error)),
    };
    keep(args.output.as_deref(), &result)?;
    if args.json {
        output::json(&result).map_err(Failure::monitor)?;
    } else {
        output::result(&text(&result));
    }
    Ok(ExitCode::from(result.exit_code()))
}

fn plan(args: &CompareArgs) -> anyhow::Result<ComparePlan> {
    let mut builds: Vec<NamedBuild> = args
        .builds
        .iter()
        .map(|(name, program)| NamedBuild {
            name: name.clone(),
            program: program.into(),
            commit: args
                .commits
                .iter()
                .find(|(of, _)| of == name)
                .map(|(_, commit)| commit.clone()),
        })
        .collect();
    if let Some((unknown, _)) = args
        .commits
        .iter()
        .find(|(of, _)| builds.iter().all(|build| build.name != *of))
    {
        anyhow::bail!("--commit: there is no build {unknown}");
    }
    if let (true, [build]) = (args.aa, builds.as_slice()) {
        let again = NamedBuild {
            name: format!("{}-again", build.name),
            ..build.clone()
        };
        builds.push(again);
    }
    let secondaries = MetricKind::ALL
        .into_iter()
        .filter(|metric| !args.primary_only && *metric != args.primary)
        .collect();
    // The program is each build's own.
    let guest = guest(&args.subject, &args.linux)?;
    let (request, execution) = subject(&args.subject, guest, std::path::PathBuf::new())?;
    Ok(ComparePlan {
        builds,
        request,
        warmups: args.subject.warmups,
        samples: args.samples,
        aa: args.aa,
        tests: TestPlan {
            primary: args.primary,
            secondaries,
            margin_percent: args.margin,
        },
        execution,
    })
}

/// Shows several results in one table.
pub fn run_merge(args: &MergeArgs) -> Result<ExitCode, Failure> {
    let results = args
        .results
        .iter()
        .map(|path| Ok((path.display().to_string(), read_comparison(path)?)))
        .collect::<Result<Vec<_>, DocumentError>>()
        .map_err(Failure::input)?;
    match merge(&results) {
        Ok(table) => output::result(&table),
        Err(error) => {
            return Err(Failure {
                code: INCOMPARABLE,
                error: error.into(),
            });
        }
    }
    Ok(ExitCode::SUCCESS)
}
