//! What a run is turned into for people: a table in the terminal, plots, `report.md`.

pub(crate) mod markdown;
pub(crate) mod plots;
pub(crate) mod table;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, ensure};
use clap::Args;

use crate::output::say;
use crate::results::{FILE, Results};

/// Options of `report`.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Directories of runs, with their results.json
    #[arg(required = true, value_name = "DIR")]
    runs: Vec<PathBuf>,
}

/// Draws recorded runs again; their results.json stay as they are.
pub(crate) fn run(options: &Options) -> anyhow::Result<ExitCode> {
    for directory in &options.runs {
        ensure!(directory.is_dir(), "expected the directory of a {FILE}, got {}", directory.display());
        draw(&Results::read(directory)?, directory)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints the table and writes all files into `directory`.
///
/// # Errors
///
/// If a file cannot be written.
pub(crate) fn write(results: &Results, directory: &Path) -> anyhow::Result<()> {
    // Before all else: what was measured cannot be had again as a picture can.
    results.write(directory)?;
    if !results.rows.is_empty() {
        // A terminal has no room for all of it; report.md has.
        let wide = ["first ms", "GB/s", "MB moved", "paper", "reference"];
        say!("{}", table::rows(results).without(&wide).to_text().trim_end());
    }
    if !results.models.is_empty() {
        say!("{}", table::models(results).without(&[]).to_text().trim_end());
    }
    draw(results, directory)
}

/// Writes what is drawn of `results` into `directory`: the pictures and `report.md`.
fn draw(results: &Results, directory: &Path) -> anyhow::Result<()> {
    let plots = plots::of_results(results)?;
    plots::remove_stale(directory)?;
    for (name, svg) in &plots {
        plots::save(directory, name, svg)?;
    }
    let names: Vec<&str> = plots.iter().map(|(name, _)| name.as_str()).collect();
    let path = directory.join("report.md");
    std::fs::write(&path, markdown::report(results, &names))
        .with_context(|| format!("cannot write {}", path.display()))?;
    say!("written: {}", directory.display());
    Ok(())
}
