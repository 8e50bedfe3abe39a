//! `peers`: several runs, such as this project's and PyTorch's, side by side.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::Args;

use crate::output::say;
use crate::report::markdown;
use crate::report::plots::{Axis, Series, bars, save};
use crate::report::table::{Table, number};
use crate::results::{Results, Row, RowKey, Status};

/// Options of `peers`.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// results.json of each run, or its directory; NAME=PATH names it. Runs of one name are told apart by commit or number
    #[arg(required = true, value_name = "[NAME=]PATH")]
    results: Vec<String>,
    /// Where peers.md and the plots go
    #[arg(long, value_name = "DIR", default_value = "target/bench/peers")]
    out: PathBuf,
}

/// Runs by name.
type Runs = Vec<(String, Results)>;

/// Prints one table and writes it with a plot for each pass.
pub(crate) fn run(options: &Options) -> anyhow::Result<ExitCode> {
    let runs: Runs = options
        .results
        .iter()
        .map(|argument| {
            let (name, path) = match argument.split_once('=') {
                Some((name, path)) => (Some(name.to_owned()), path),
                None => (None, argument.as_str()),
            };
            let results = Results::read(path.as_ref())?;
            Ok((name.unwrap_or_else(|| results.label.clone()), results))
        })
        .collect::<anyhow::Result<_>>()?;
    let runs = told_apart(runs);
    let merged = merge(&runs);
    for (number, (name, _)) in runs.iter().enumerate() {
        if !merged.run_of_column.contains(&number) {
            bail!("{name} has no measured row of a sweep");
        }
    }
    if merged.lines.is_empty() {
        bail!("no run has a measured row of a wavelet convolution");
    }
    let table = merged.table();
    say!("{}", table.to_text().trim_end());

    let mut text = String::from("# Side by side\n\nMilliseconds of a call, medians.\n\n");
    for (name, results) in &runs {
        text += &format!("* {name}: {}", markdown::machine(results));
    }
    text.push('\n');
    for (name, svg) in merged.plots()? {
        save(&options.out, &name, &svg)?;
        text += &format!("![{name}]({name}.svg)\n\n");
    }
    text += &table.to_markdown();
    for (name, results) in &runs {
        text += &format!("\n## How {name} was measured\n\n");
        for (field, words) in &results.method {
            text += &format!("* `{field}`: {words}.\n");
        }
    }
    std::fs::create_dir_all(&options.out).context("cannot make the directory of --out")?;
    let path = options.out.join("peers.md");
    std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    say!("written: {}", options.out.display());
    Ok(ExitCode::SUCCESS)
}

/// Gives runs of one name a name each: with the commit behind it, and with a number where that does not tell them apart.
fn told_apart(mut runs: Runs) -> Runs {
    let repeated = |runs: &Runs| -> Vec<bool> {
        let count = |name: &str| runs.iter().filter(|(other, _)| other == name).count();
        runs.iter().map(|(name, _)| count(name) > 1).collect()
    };
    let by_commit = repeated(&runs);
    for ((name, results), repeated) in runs.iter_mut().zip(by_commit) {
        if let (true, Some(commit)) = (repeated, &results.commit) {
            *name += &format!(" at {commit}");
        }
    }
    for (number, repeated) in repeated(&runs).into_iter().enumerate() {
        if repeated {
            runs[number].0 += &format!(" (run {})", number + 1);
        }
    }
    runs
}

/// The problems that every run has measured, one line each.
pub(crate) fn shared(runs: &[(String, Results)]) -> Table {
    let mut merged = merge(runs);
    let Merged { run_of_column, lines, .. } = &mut merged;
    lines.retain(|(_, medians)| {
        (0..runs.len())
            .all(|run| medians.iter().zip(&*run_of_column).any(|(median, of)| *of == run && median.is_some()))
    });
    merged.table()
}

/// One line a problem, one column a run and route.
struct Merged {
    columns: Vec<String>,
    run_of_column: Vec<usize>,
    /// The key of the problem, without a route, and the medians.
    lines: Vec<(RowKey, Vec<Option<f64>>)>,
}

fn merge(runs: &[(String, Results)]) -> Merged {
    let measured = |row: &&Row| row.status == Status::Measured && row.timing.is_some();
    let mut columns: Vec<(usize, String)> = Vec::new();
    let mut problems: Vec<RowKey> = Vec::new();
    for (run, (_, results)) in runs.iter().enumerate() {
        for row in results.rows.iter().filter(measured) {
            let column = (run, row.key.route.clone());
            if !columns.contains(&column) {
                columns.push(column);
            }
            let problem = RowKey { route: String::new(), ..row.key.clone() };
            if problem.levels > 0 && !problems.contains(&problem) {
                problems.push(problem);
            }
        }
    }
    let median = |problem: &RowKey, (run, route): &(usize, String)| {
        let row = runs[*run].1.rows.iter().filter(measured).find(|row| {
            let key = &row.key;
            let same_input = (key.shape, key.dtype, key.layout, key.pass)
                == (problem.shape, problem.dtype, problem.layout, problem.pass);
            // A depthwise convolution stands beside every level of its shape.
            let same_operator =
                key.levels == 0 || (key.levels, key.kernel_size) == (problem.levels, problem.kernel_size);
            same_input && same_operator && key.route == *route
        })?;
        Some(row.timing?.median_ms)
    };
    let lines = problems
        .into_iter()
        .map(|problem| {
            let medians = columns.iter().map(|column| median(&problem, column)).collect();
            (problem, medians)
        })
        .collect();
    let run_of_column = columns.iter().map(|(run, _)| *run).collect();
    let columns = columns.iter().map(|(run, route)| format!("{}: {route}", runs[*run].0)).collect();
    Merged { columns, run_of_column, lines }
}

impl Merged {
    fn table(&self) -> Table {
        let problem = ["shape", "L", "K", "dtype", "layout", "pass"].map(str::to_owned);
        let columns = self.columns.iter().map(|name| format!("{name}, ms"));
        let mut table = Table::new(problem.into_iter().chain(columns));
        for (key, medians) in &self.lines {
            let mut cells = vec![
                key.shape.to_string(),
                key.levels.to_string(),
                key.kernel_size.to_string(),
                key.dtype.to_string(),
                key.layout.to_string(),
                key.pass.to_string(),
            ];
            cells.extend(medians.iter().map(|median| number(*median)));
            table.push(cells);
        }
        table
    }

    /// A plot for each pass.
    fn plots(&self) -> anyhow::Result<Vec<(String, String)>> {
        let mut passes = Vec::new();
        for (key, _) in &self.lines {
            if !passes.contains(&key.pass) {
                passes.push(key.pass);
            }
        }
        let mut plots = Vec::new();
        for pass in passes {
            let lines: Vec<_> = self.lines.iter().filter(|(key, _)| key.pass == pass).collect();
            let labels: Vec<String> = lines
                .iter()
                .map(|(key, _)| format!("{} L{} {} {}", key.shape, key.levels, key.dtype, key.layout))
                .collect();
            let series: Vec<Series> = self
                .columns
                .iter()
                .enumerate()
                .map(|(column, name)| Series {
                    name: name.clone(),
                    values: lines.iter().map(|(_, medians)| medians[column].map(|ms| ms * 1e3)).collect(),
                })
                .collect();
            let title = format!("Time of a call, {pass}");
            plots.extend(
                bars(&title, "microseconds", Axis::Decades, &labels, &series)?
                    .map(|svg| (format!("peers-{pass}"), svg)),
            );
        }
        Ok(plots)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cases::Pass;
    use crate::results::samples::{results, row};

    #[test]
    fn runs_stand_side_by_side_and_depthwise_beside_every_level() {
        let ours = results(vec![row("fused", 2, Pass::Forward, 1.0), row("fused", 3, Pass::Forward, 2.0)]);
        let mut conv = row("cudnn-7x7", 0, Pass::Forward, 7.0);
        conv.key.kernel_size = 7;
        let theirs = results(vec![conv, row("reference", 3, Pass::Forward, 9.0)]);
        let runs = [("ours".to_owned(), ours), ("PyTorch".to_owned(), theirs)];
        let merged = merge(&runs);
        assert_eq!(merged.columns, ["ours: fused", "PyTorch: cudnn-7x7", "PyTorch: reference"]);
        let medians: Vec<_> =
            merged.lines.iter().map(|(key, medians)| (key.levels, medians.clone())).collect();
        assert_eq!(
            medians,
            [(2, vec![Some(1.0), Some(7.0), None]), (3, vec![Some(2.0), Some(7.0), Some(9.0)])]
        );
        assert_eq!(merged.plots().unwrap().len(), 1);
        assert!(merged.table().to_text().contains("PyTorch: cudnn-7x7, ms"));
        assert_eq!(shared(&runs).len(), 2);
        let alone = results(vec![row("fused", 5, Pass::Train, 1.0)]);
        let runs = [runs[0].clone(), ("alone".to_owned(), alone)];
        assert_eq!(shared(&runs).len(), 0, "no problem is in both");
    }

    #[test]
    fn a_run_without_rows_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        results(vec![row("fused", 2, Pass::Forward, 1.0)]).write(&path("sweep")).unwrap();
        results(Vec::new()).write(&path("models")).unwrap();
        let results = ["sweep", "models"].map(|name| format!("{name}={}", path(name).display())).to_vec();
        let error = run(&Options { results, out: path("out") }).unwrap_err().to_string();
        assert_eq!(error, "models has no measured row of a sweep");
        assert!(!path("out").exists());
    }

    #[test]
    fn runs_of_one_name_are_told_apart() {
        let run = |name: &str, commit: Option<&str>| {
            let run = Results { commit: commit.map(str::to_owned), ..results(Vec::new()) };
            (name.to_owned(), run)
        };
        let names = |runs: Runs| told_apart(runs).into_iter().map(|(name, _)| name).collect::<Vec<_>>();
        assert_eq!(names(vec![run("a", Some("1")), run("b", Some("1"))]), ["a", "b"]);
        assert_eq!(names(vec![run("a", Some("1")), run("a", Some("2"))]), ["a at 1", "a at 2"]);
        let alike = vec![run("a", None), run("b", None), run("a", None)];
        assert_eq!(names(alike), ["a (run 1)", "b", "a (run 3)"]);
        let alike = vec![run("a", Some("1")), run("a", Some("1"))];
        assert_eq!(names(alike), ["a at 1 (run 1)", "a at 1 (run 2)"]);
    }
}
