//! What a run is turned into for people: a table in the terminal, plots, `report.md`.

pub(crate) mod markdown;
pub(crate) mod plots;
pub(crate) mod table;

use std::path::Path;

use anyhow::Context;

use crate::output::say;
use crate::results::Results;

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
