//! `readme`: writes the marked sections of a README from recorded runs, or checks that they are in step.
//!
//! ```text
//! <!-- bench:SECTION:RECORD begin -->
//! ...
//! <!-- bench:SECTION:RECORD end -->
//! ```
//!
//! RECORD is a directory below that of the records. SECTION is `machine`, `times`, `rows`, `models`, or `plot-NAME` for a
//! picture of the record; `kernels` for what a profiler has found of a model, which lies beside the record as `kernels.json`; or
//! `peers`, with a RECORD of the form `NAME=RECORD+NAME=RECORD`, for what all of them have measured.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail, ensure};
use clap::Args;
use serde::Deserialize;

use crate::cases::Pass;
use crate::output::say;
use crate::peers;
use crate::report::markdown::machine;
use crate::report::table::{self, Table, error, mebibytes, number};
use crate::results::{Results, Row, Status};

/// Options of `readme`.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// The file whose marked sections are written
    #[arg(long, default_value = "README.md")]
    readme: PathBuf,
    /// Recorded runs: DIR/NAME/results.json; links to pictures are written as given here
    #[arg(long, value_name = "DIR", default_value = "benches/record")]
    record: PathBuf,
    /// Change nothing; exit status 1 if a section is not what the records say
    #[arg(long)]
    check: bool,
}

/// Writes or checks.
pub(crate) fn run(options: &Options) -> anyhow::Result<ExitCode> {
    let path = options.readme.display();
    let text = std::fs::read_to_string(&options.readme).with_context(|| format!("cannot read {path}"))?;
    let regenerated = regenerate(&text, &mut |section, record| content(section, record, &options.record))
        .with_context(|| format!("in {path}"))?;
    let sections = regenerated.sections;
    if regenerated.text == text {
        say!("{path}: {sections} sections in step with the records");
        return Ok(ExitCode::SUCCESS);
    }
    if options.check {
        say!("{path} is not in step with the records: run `cargo xtask bench readme`");
        for name in &regenerated.changed {
            say!("  {name}");
        }
        return Ok(ExitCode::FAILURE);
    }
    std::fs::write(&options.readme, &regenerated.text).with_context(|| format!("cannot write {path}"))?;
    say!("{path}: {} of {sections} sections rewritten", regenerated.changed.len());
    Ok(ExitCode::SUCCESS)
}

struct Regenerated {
    text: String,
    sections: usize,
    /// Sections that were out of step.
    changed: Vec<String>,
}

/// Replaces what lies between the marks by what `content` says of section and record.
fn regenerate(
    text: &str,
    content: &mut dyn FnMut(&str, &str) -> anyhow::Result<String>,
) -> anyhow::Result<Regenerated> {
    let mut regenerated = Regenerated { text: String::new(), sections: 0, changed: Vec::new() };
    let mut lines = text.split_inclusive('\n');
    while let Some(line) = lines.next() {
        regenerated.text += line;
        let Some(name) = mark(line, "begin") else {
            if let Some(name) = mark(line, "end") {
                bail!("section {name:?} ends and does not begin");
            }
            continue;
        };
        let Some((section, record)) = name.split_once(':') else {
            bail!("expected <!-- bench:SECTION:RECORD begin -->, got {:?}", line.trim());
        };
        let mut old = String::new();
        let end = loop {
            let Some(line) = lines.next() else { bail!("section {name:?} does not end") };
            if mark(line, "end").is_some_and(|end| end == name) {
                break line;
            }
            ensure!(mark(line, "begin").is_none(), "a section begins within section {name:?}");
            old += line;
        };
        let new = content(section, record).with_context(|| format!("section {name:?}"))?;
        regenerated.sections += 1;
        if new != old {
            regenerated.changed.push(name.to_owned());
        }
        regenerated.text += &new;
        regenerated.text += end;
    }
    Ok(regenerated)
}

/// The name in `<!-- bench:NAME WHICH -->`.
fn mark<'a>(line: &'a str, which: &str) -> Option<&'a str> {
    line.trim()
        .strip_prefix("<!-- bench:")?
        .strip_suffix("-->")?
        .trim_end()
        .strip_suffix(which)?
        .strip_suffix(' ')
}

fn content(section: &str, record: &str, records: &Path) -> anyhow::Result<String> {
    if section == "peers" {
        let run = |part: &str| {
            let (name, record) = part
                .split_once('=')
                .with_context(|| format!("expected NAME=RECORD+NAME=RECORD, got {record:?}"))?;
            Ok((name.to_owned(), Results::read(&records.join(record))?))
        };
        let runs = record.split('+').map(run).collect::<anyhow::Result<Vec<_>>>()?;
        return Ok(peers::shared(&runs).to_markdown());
    }
    let directory = records.join(record);
    let results = Results::read(&directory)?;
    if let Some(plot) = section.strip_prefix("plot-") {
        let picture = directory.join(format!("{plot}.svg"));
        ensure!(picture.is_file(), "there is no {}", picture.display());
        return Ok(format!("![{plot}]({})\n", picture.display()));
    }
    match section {
        "machine" => Ok(machine(&results)),
        "times" => Ok(times(&results).without(&[]).to_markdown()),
        "rows" => Ok(table::rows(&results).without(&["p10", "p90", "first ms", "MB moved"]).to_markdown()),
        "models" => Ok(table::models(&results).to_markdown()),
        "kernels" => Ok(Kernels::read(&directory)?.table().to_markdown()),
        _ => bail!("expected machine, times, rows, models, kernels, peers or plot-NAME, got {section:?}"),
    }
}

/// What the kernels of a model take by a profiler.
#[derive(Deserialize)]
struct Kernels {
    kinds: Vec<KernelKind>,
}

#[derive(Deserialize)]
struct KernelKind {
    kind: String,
    /// How many of the kind there are.
    kernels: usize,
    /// What they take together.
    ms: f64,
}

impl Kernels {
    fn read(directory: &Path) -> anyhow::Result<Self> {
        let path = directory.join("kernels.json");
        let text = std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        serde_json::from_slice(&text).with_context(|| format!("in {}", path.display()))
    }

    fn table(&self) -> Table {
        let mut table = Table::new(["kernels", "number", "ms", "share"]);
        let total: f64 = self.kinds.iter().map(|kind| kind.ms).sum();
        for KernelKind { kind, kernels, ms } in &self.kinds {
            table.push(vec![kind.clone(), kernels.to_string(), number(Some(*ms)), number(Some(ms / total))]);
        }
        table
    }
}

/// The layer's rows, one line a problem.
fn times(results: &Results) -> Table {
    let mut table = Table::new([
        "shape",
        "L",
        "K",
        "dtype",
        "layout",
        "forward ms",
        "backward ms",
        "train ms",
        "copy ms",
        "train x tensor ops",
        "train x conv2d 7x7",
        "train x depthwise 7x7",
        "peak MiB",
        "error",
    ]);
    let measured: Vec<&Row> = results.rows.iter().filter(|row| row.status == Status::Measured).collect();
    let fused = measured.iter().any(|row| row.key.route == "fused");
    let route = if fused { "fused" } else { "tensor-ops" };
    let mut done = Vec::new();
    for row in measured.iter().filter(|row| row.key.route == route) {
        let problem = crate::results::RowKey { pass: Pass::Forward, ..row.key.clone() };
        if done.contains(&problem) {
            continue;
        }
        let of = |pass| {
            let key = crate::results::RowKey { pass, ..problem.clone() };
            measured.iter().copied().find(|row| row.key == key)
        };
        let passes = [of(Pass::Forward), of(Pass::Backward), of(Pass::Train)];
        let train = of(Pass::Train);
        let mut cells = vec![
            problem.shape.to_string(),
            problem.levels.to_string(),
            problem.kernel_size.to_string(),
            problem.dtype.to_string(),
            problem.layout.to_string(),
        ];
        cells.extend(passes.map(|row| number(row.and_then(|row| Some(row.timing?.median_ms)))));
        let errors = passes.into_iter().flatten().filter_map(Row::error);
        cells.extend([
            number(row.copy.map(|copy| copy.median_ms)),
            number(train.and_then(|row| row.over_tensor_ops)),
            number(train.and_then(|row| row.over_conv2d_7x7)),
            number(train.and_then(|row| row.over_depthwise_7x7)),
            mebibytes(train.and_then(|row| row.peak_memory_bytes)),
            error(errors.max_by(f64::total_cmp)),
        ]);
        table.push(cells);
        done.push(problem);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::compare_routes;
    use crate::results::samples::{results, row};

    const README: &str = "# A\n<!-- bench:times:gpu begin -->\nold\n<!-- bench:times:gpu end -->\nb\n<!-- bench:machine:gpu begin -->\n<!-- bench:machine:gpu end -->\n";

    #[test]
    fn sections_are_replaced_and_nothing_else() {
        let mut content = |section: &str, record: &str| anyhow::Ok(format!("the {section} of {record}\n"));
        let regenerated = regenerate(README, &mut content).unwrap();
        assert_eq!(
            regenerated.text,
            "# A\n<!-- bench:times:gpu begin -->\nthe times of gpu\n<!-- bench:times:gpu end -->\nb\n\
             <!-- bench:machine:gpu begin -->\nthe machine of gpu\n<!-- bench:machine:gpu end -->\n"
        );
        assert_eq!(regenerated.changed, ["times:gpu", "machine:gpu"]);
        let again = regenerate(&regenerated.text, &mut content).unwrap();
        assert_eq!((again.text, again.sections), (regenerated.text, 2));
        assert!(again.changed.is_empty());
    }

    #[test]
    fn broken_marks_are_told() {
        let error = |text: &str| {
            let result = regenerate(text, &mut |_, _| Ok(String::new()));
            result.err().map(|error| format!("{error:#}")).unwrap_or_default()
        };
        assert!(error("<!-- bench:times:gpu begin -->\n").contains("does not end"));
        assert!(error("<!-- bench:times:gpu end -->\n").contains("does not begin"));
        assert!(error("<!-- bench:times begin -->\n").contains("SECTION:RECORD"));
    }

    #[test]
    fn a_readme_out_of_step_fails_the_check_until_it_is_written() {
        let directory = tempfile::tempdir().unwrap();
        let (readme, record) = (directory.path().join("README.md"), directory.path().join("record"));
        let mut rows = vec![row("tensor-ops", 2, Pass::Train, 8.0), row("fused", 2, Pass::Train, 2.0)];
        compare_routes(&mut rows);
        results(rows).write(&record.join("gpu")).unwrap();
        std::fs::write(&readme, README).unwrap();
        let options = |check| Options { readme: readme.clone(), record: record.clone(), check };
        let failure = format!("{:?}", ExitCode::FAILURE);
        let status = |check| format!("{:?}", run(&options(check)).unwrap());
        assert_eq!(status(true), failure);
        assert_eq!(std::fs::read_to_string(&readme).unwrap(), README, "a check changes nothing");
        assert_ne!(status(false), failure);
        assert_ne!(status(true), failure);
        let text = std::fs::read_to_string(&readme).unwrap();
        assert!(text.contains("| 2x8x16x16 | 2 | 5 | f32 | nchw | 2.00 | 0.500 | 4.00 |"), "{text}");
    }

    #[test]
    fn kernels_have_their_shares_of_all() {
        let directory = tempfile::tempdir().unwrap();
        let record = directory.path().join("gpu");
        results(Vec::new()).write(&record).unwrap();
        let error = format!("{:#}", content("kernels", "gpu", directory.path()).unwrap_err());
        assert!(error.contains("kernels.json"), "{error}");
        let kinds =
            r#"{"kinds": [{"kind": "a", "kernels": 3, "ms": 1.5}, {"kind": "b", "kernels": 1, "ms": 4.5}]}"#;
        std::fs::write(record.join("kernels.json"), kinds).unwrap();
        let table = content("kernels", "gpu", directory.path()).unwrap();
        assert!(table.contains("| a | 3 | 1.50 | 0.250 |\n| b | 1 | 4.50 | 0.750 |\n"), "{table}");
    }

    #[test]
    fn an_unknown_record_or_section_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        assert!(content("times", "nowhere", directory.path()).is_err());
        results(Vec::new()).write(&directory.path().join("gpu")).unwrap();
        let error = content("speed", "gpu", directory.path()).unwrap_err().to_string();
        assert!(error.contains("\"speed\""), "{error}");
        assert!(content("plot-none", "gpu", directory.path()).is_err());
        let error = content("peers", "gpu", directory.path()).unwrap_err().to_string();
        assert!(error.contains("NAME=RECORD"), "{error}");
        assert!(content("peers", "a=gpu+b=gpu", directory.path()).is_ok());
    }
}
