//! `cargo xtask soak`: random lives of VMs for a given time, on every back end of this host.
//!
//! Each round is one VM's life as a seed has it: it is booted, dirtied, captured, restored, killed and
//! stopped at random moments, and is refused captures and damaged snapshots. After every step the guest must
//! be what it was (its nonce, its count of lines, and every word of its RAM, by the checksum that the host
//! computes on its own), and the monitor must have no more descriptors, threads and memory than it may. After
//! every round nothing may be left in its directory. Besides, one VM per back end lives through all rounds
//! and is captured in each, so that what leaks slowly shows.
//!
//! A round depends on nothing but its seed and the timing of the host, so `--seed` with `--rounds 1` tries it
//! again.

mod leaks;
mod random;
mod round;
mod vm;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::dist;
use crate::workspace::Workspace;
use leaks::Veteran;
use random::Random;
use round::{Figures, Round};

/// How long and on what.
#[derive(clap::Args)]
// The name of the type would be that of the build options too.
#[group(id = "soak")]
#[command(after_help = "Examples:\n  \
    cargo xtask soak --minutes 30\n  \
    cargo xtask soak --backend soft --seed 0x1d2c --rounds 1     one round again")]
pub struct Options {
    /// How long new rounds begin.
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..))]
    minutes: u32,
    /// End after so many rounds.
    #[arg(long, value_name = "N")]
    rounds: Option<u64>,
    /// Seed of the first round, in decimal or as 0x...; each further round adds one [default: the time]
    #[arg(long, value_parser = parse_seed)]
    seed: Option<u64>,
    /// Back ends to take turns, kvm and soft [default: all that this host has]
    #[arg(long, value_name = "BACKEND", value_parser = ["kvm", "soft"])]
    backend: Vec<String>,
    /// Program to try, instead of one that is built here.
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
    /// Where VMs put their files [default: the directory for temporary files]
    #[arg(long, value_name = "DIR")]
    scratch: Option<PathBuf>,
    #[command(flatten)]
    build: dist::Options,
}

fn parse_seed(text: &str) -> Result<u64, std::num::ParseIntError> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    }
}

/// Back ends of this host.
fn backends() -> Vec<String> {
    let kvm = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/kvm");
    let names = kvm.is_ok().then_some("kvm").into_iter().chain(["soft"]);
    names.map(str::to_owned).collect()
}

/// Runs rounds; the exit code is 1 if one failed.
pub fn run(workspace: &Workspace, options: &Options) -> Result<ExitCode> {
    let program = match &options.program {
        Some(program) => std::path::absolute(program)?,
        None => dist::build(workspace, &options.build)?,
    };
    let scratch = options.scratch.clone().unwrap_or_else(std::env::temp_dir);
    let place = scratch.join(format!("nvx-soak-{}", std::process::id()));
    std::fs::create_dir(&place).with_context(|| format!("cannot make {}", place.display()))?;
    let ended = all_rounds(&program, &place, options);
    match ended {
        Ok(()) => {
            std::fs::remove_dir_all(&place)
                .with_context(|| format!("cannot remove {}", place.display()))?;
            Ok(ExitCode::SUCCESS)
        }
        Err(error) => {
            println!("FAILED: {error:#}\nfiles are left in {}", place.display());
            Ok(ExitCode::FAILURE)
        }
    }
}

fn all_rounds(program: &Path, place: &Path, options: &Options) -> Result<()> {
    let backends = if options.backend.is_empty() {
        backends()
    } else {
        options.backend.clone()
    };
    let first_seed = match options.seed {
        Some(seed) => seed,
        None => std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .context("the clock is before 1970")?
            .as_secs(),
    };
    println!(
        "back ends {}, first seed {first_seed:#x}, in {}",
        backends.join(" and "),
        place.display()
    );
    let mut veterans = Vec::new();
    let mut figures = Vec::new();
    for backend in &backends {
        veterans.push(Veteran::start(program, backend, place)?);
        figures.push(Figures::default());
    }
    let end = Instant::now() + Duration::from_secs(60 * u64::from(options.minutes));
    for number in 0..options.rounds.unwrap_or(u64::MAX) {
        if Instant::now() >= end {
            break;
        }
        let seed = first_seed.wrapping_add(number);
        let turn = (number % backends.len() as u64) as usize;
        let (backend, figures) = (&backends[turn], &mut figures[turn]);
        let started = Instant::now();
        let random = Random::new(seed);
        let outcome = Round::new(program, backend, place, random, figures)
            .and_then(Round::run)
            .and_then(|log| veterans[turn].serve().map(|()| log));
        match outcome {
            Ok(log) => println!(
                "{number:>5} {backend:<4} {seed:#x} {:>5.1} s  {log}",
                started.elapsed().as_secs_f64()
            ),
            Err(error) => {
                let again =
                    format!("cargo xtask soak --backend {backend} --seed {seed:#x} --rounds 1");
                return Err(error.context(format!("round {number}; again: {again}")));
            }
        }
    }
    for veteran in veterans {
        println!("{}", veteran.finish()?);
    }
    for (backend, figures) in backends.iter().zip(&figures) {
        println!("{backend}: {figures}");
    }
    let left: Vec<_> = std::fs::read_dir(place)?.collect::<Result<_, _>>()?;
    if let Some(left) = left.first() {
        bail!("{} is left", left.path().display());
    }
    Ok(())
}
