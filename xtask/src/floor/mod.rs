//! `cargo xtask floor`: how far nvx is from what the kernel interface demands.
//!
//! The *floor* is a small C program (`xtask/floor/`) that boots, captures and restores the same probe
//! guest and does nothing else. Floor and nvx run in turn, in fresh processes, in rounds that visit every
//! row; the first round warms up and is thrown away. A row compares medians: as a ratio to the floor, as
//! an absolute figure, or as the growth over the same work with less RAM, whatever its target speaks of.
//!
//! This command judges nothing by its exit code; it prints "reached" or "missed". It fails only if
//! something could not be measured.

mod contender;
mod process;
mod profile;
mod report;
mod rows;
mod work_dir;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};

use self::contender::{Contender, Sample};
use self::report::{Cell, Report};
use self::rows::{ROWS, Row};
use self::work_dir::WorkDirs;
use crate::dist;
use crate::workspace::Workspace;

/// Fewer samples than this give an orientation, not a verdict.
const SAMPLES_FOR_A_VERDICT: usize = 15;

/// What to measure and how to say it.
#[derive(clap::Args)]
pub struct Options {
    /// Samples per row and program; fewer than 15 give no verdict.
    #[arg(long, default_value_t = SAMPLES_FOR_A_VERDICT, value_name = "N")]
    samples: usize,
    /// Also boot the probe guest in this QEMU (microvm machine).
    #[arg(long, value_name = "PATH")]
    qemu: Option<PathBuf>,
    /// Use this nvx instead of building the static one.
    #[arg(long, value_name = "PATH", conflicts_with = "floor_only")]
    nvx: Option<PathBuf>,
    /// Measure only the floor; needs --probe.
    #[arg(long, requires = "probe")]
    floor_only: bool,
    /// Boot this ELF file instead of the one that nvx exports.
    #[arg(long, value_name = "FILE")]
    probe: Option<PathBuf>,
    /// Only rows whose name contains this text; repeatable.
    #[arg(long = "only", value_name = "TEXT")]
    only: Vec<String>,
    /// Directory on the disk to measure; a folder of the target directory by default.
    #[arg(long, value_name = "DIR")]
    disk: Option<PathBuf>,
    /// Print the medians of each capture's phases too.
    #[arg(long)]
    phases: bool,
    /// Print JSON with every sample instead of the table.
    #[arg(long)]
    json: bool,
}

/// Measures and prints.
pub fn run(workspace: &Workspace, options: &Options) -> Result<ExitCode> {
    if options.samples == 0 {
        bail!("--samples must be at least 1");
    }
    let disk = options
        .disk
        .clone()
        .unwrap_or_else(|| workspace.target_dir.join("xtask"));
    let dirs = WorkDirs::create(&disk)?;
    let contenders = contenders(workspace, options)?;
    let probe = match &options.probe {
        Some(probe) => probe.clone(),
        None => export_probe(&contenders, &dirs)?,
    };
    let rows: Vec<&Row> = ROWS
        .iter()
        .filter(|row| {
            options.only.is_empty() || options.only.iter().any(|text| row.name.contains(text))
        })
        .collect();
    let bench = Bench {
        contenders,
        probe,
        dirs,
    };
    let cells = bench.measure_all(&rows, options.samples);
    let report = Report {
        rows,
        contenders: bench.contenders.iter().map(Contender::name).collect(),
        cells,
        samples: options.samples,
        disk_file_system: bench.dirs.disk_file_system().to_owned(),
    };
    if options.json {
        println!("{}", serde_json::to_string_pretty(&report.json())?);
    } else {
        print!("{}", report.table(options.phases));
    }
    Ok(if report.complete() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Compiles the floor program, statically, as nvx is.
fn build_floor(workspace: &Workspace) -> Result<PathBuf> {
    let directory = workspace.target_dir.join("xtask");
    std::fs::create_dir_all(&directory)
        .with_context(|| format!("cannot create {}", directory.display()))?;
    let program = directory.join("floor");
    let source = workspace.root.join("xtask/floor");
    let files = ["floor.c", "machine.c", "publish.c", "state.c"];
    let status = Command::new("cc")
        .args(["-O2", "-Wall", "-Wextra", "-Werror", "-static", "-o"])
        .arg(&program)
        .args(files.map(|file| source.join(file)))
        .status()
        .context("cannot run the C compiler `cc`")?;
    if !status.success() {
        bail!("the floor program did not compile");
    }
    Ok(program)
}

fn contenders(workspace: &Workspace, options: &Options) -> Result<Vec<Contender>> {
    let mut contenders = vec![Contender::Floor(build_floor(workspace)?)];
    if !options.floor_only {
        let nvx = match &options.nvx {
            Some(nvx) => nvx.clone(),
            None => dist::build(workspace, &dist::Options::default())?,
        };
        contenders.push(Contender::Nvx(nvx));
    }
    contenders.extend(options.qemu.clone().map(Contender::Qemu));
    Ok(contenders)
}

/// Has nvx write the probe guest to a file, so that all programs boot the same bytes.
fn export_probe(contenders: &[Contender], dirs: &WorkDirs) -> Result<PathBuf> {
    let nvx = contenders.iter().find_map(|contender| match contender {
        Contender::Nvx(nvx) => Some(nvx),
        _ => None,
    });
    let nvx = nvx.context("no nvx to export the probe guest")?;
    let probe = dirs.disk().join("probe.elf");
    let output = Command::new(nvx)
        .args(["guest", "export"])
        .arg(&probe)
        .output()
        .with_context(|| format!("cannot run {}", nvx.display()))?;
    if !output.status.success() {
        bail!(
            "nvx guest export failed: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(probe)
}

/// All that a measurement needs.
struct Bench {
    contenders: Vec<Contender>,
    probe: PathBuf,
    dirs: WorkDirs,
}

impl Bench {
    /// One cell per row and contender, in that order.
    fn measure_all(&self, rows: &[&Row], samples: usize) -> Vec<Vec<Cell>> {
        let mut cells: Vec<Vec<Cell>> = rows
            .iter()
            .map(|row| {
                self.contenders
                    .iter()
                    .map(|one| Cell::new(one, row))
                    .collect()
            })
            .collect();
        for round in 0..=samples {
            eprint!("\rround {round} of {samples}");
            self.settle(rows);
            for (row, cells) in rows.iter().zip(&mut cells) {
                for turn in 0..self.contenders.len() {
                    // Whoever goes first changes with the round.
                    let index = (turn + round) % self.contenders.len();
                    let cell = &mut cells[index];
                    if cell.applies() {
                        let sample = self.sample(&self.contenders[index], row);
                        cell.add(sample, round == 0);
                    }
                }
            }
        }
        eprintln!();
        cells
    }

    /// Gives every round's first row what the others find: a disk that has finished with the round before,
    /// and a kernel that has just run a machine (the first one after a pause costs milliseconds more).
    fn settle(&self, rows: &[&Row]) {
        // Should one of these fail, the first row is noisier, or says itself what is wrong.
        let _ = Command::new("sync").status();
        for contender in &self.contenders {
            if let Some(row) = rows.iter().find(|row| contender.can(row.work)) {
                let _ = self.sample(contender, row);
            }
        }
    }

    fn sample(&self, contender: &Contender, row: &Row) -> Result<Sample> {
        let scratch = self.dirs.scratch(row.place)?;
        let sample = contender.sample(row, &self.probe, scratch.path());
        sample.with_context(|| format!("{}: {}", contender.name(), row.name))
    }
}

/// Shows a path in a message.
fn shown(path: &Path) -> String {
    path.display().to_string()
}
