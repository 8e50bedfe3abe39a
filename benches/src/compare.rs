//! `compare`: what became slower or bigger between two runs, beyond the spread of both.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, ensure};
use clap::Args;

use crate::output::say;
use crate::report::table::{Table, ending, mebibytes, number};
use crate::results::{ModelRow, Results, Row, RowKey, Status};
use crate::statistics::Timing;

/// Options of `compare`.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// results.json of the run to compare with, or its directory
    old: PathBuf,
    /// results.json of the run to judge, or its directory
    new: PathBuf,
    /// What counts as slower or bigger: 5% or 0.05
    #[arg(long, default_value = "5%", value_parser = share)]
    threshold: f64,
}

/// Memory that differs by less is not bigger: allocators round.
const MEMORY_SLACK: u64 = 1 << 20;

fn share(text: &str) -> anyhow::Result<f64> {
    let share = match text.strip_suffix('%') {
        Some(percent) => percent.trim().parse::<f64>().map(|percent| percent / 100.0),
        None => text.parse(),
    };
    let share = share.with_context(|| format!("expected a share such as 5% or 0.05, got {text:?}"))?;
    ensure!(share >= 0.0 && share.is_finite(), "expected a share of at least 0, got {text:?}");
    ensure!(text.ends_with('%') || share < 1.0, "expected a share below 1, got {text:?}; is {text}% meant?");
    Ok(share)
}

/// Prints what changed; exit status 1 if something became worse. Fails if the runs have no row and no model in common.
pub(crate) fn run(options: &Options) -> anyhow::Result<ExitCode> {
    let (old, new) = (Results::read(&options.old)?, Results::read(&options.new)?);
    let differences = old.machine.differences(&new.machine);
    if !differences.is_empty() {
        say!("the machines differ: {}", differences.join("; "));
    }
    let [old_rows, new_rows] = [&old, &new].map(|run| run.rows.iter().map(Entry::of_row).collect::<Vec<_>>());
    let [old_models, new_models] =
        [&old, &new].map(|run| run.models.iter().map(Entry::of_model).collect::<Vec<_>>());
    let rows = compare(&old_rows, &new_rows, options.threshold);
    let models = compare(&old_models, &new_models, options.threshold);
    ensure!(
        rows.both + models.both > 0,
        "nothing to compare: no row of the {} of the old run and the {} of the new one was measured in both, and no model \
         of {} and {}",
        old_rows.len(),
        new_rows.len(),
        old_models.len(),
        new_models.len()
    );
    rows.say("rows", &["shape", "L", "K", "dtype", "layout", "pass", "route"], options.threshold);
    models.say("models", &["model", "dtype", "mode", "batch", "size"], options.threshold);
    let worse = rows.worse() + models.worse();
    Ok(if worse == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What is compared of a row or of a model.
#[derive(Clone, Debug)]
struct Entry<'a> {
    /// What identifies it, in the cells of a table.
    key: Vec<String>,
    status: Status,
    reason: Option<&'a str>,
    timing: Option<Timing>,
    peak_memory_bytes: Option<u64>,
}

impl<'a> Entry<'a> {
    fn of_row(row: &'a Row) -> Self {
        let RowKey { shape, levels, kernel_size, dtype, layout, pass, route } = &row.key;
        let key = [
            shape.to_string(),
            levels.to_string(),
            kernel_size.to_string(),
            dtype.to_string(),
            layout.to_string(),
            pass.to_string(),
            route.clone(),
        ];
        Self {
            key: key.to_vec(),
            status: row.status,
            reason: row.reason.as_deref(),
            timing: row.timing,
            peak_memory_bytes: row.peak_memory_bytes,
        }
    }

    fn of_model(row: &'a ModelRow) -> Self {
        let ModelRow { model, dtype, mode, batch, size, .. } = row;
        Self {
            key: vec![model.clone(), dtype.to_string(), mode.clone(), batch.to_string(), size.to_string()],
            status: row.status,
            reason: row.reason.as_deref(),
            timing: row.timing,
            peak_memory_bytes: row.peak_memory_bytes,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Slower,
    Faster,
    Bigger,
    Smaller,
    /// Measured before, and refused, failed or wrong now.
    Broken,
}

impl Kind {
    fn is_worse(self) -> bool {
        matches!(self, Self::Slower | Self::Bigger | Self::Broken)
    }

    fn word(self) -> &'static str {
        match self {
            Self::Slower => "SLOWER",
            Self::Faster => "faster",
            Self::Bigger => "BIGGER",
            Self::Smaller => "smaller",
            Self::Broken => "BROKEN",
        }
    }
}

#[derive(Clone, Debug)]
struct Change<'a> {
    kind: Kind,
    old: &'a Entry<'a>,
    new: &'a Entry<'a>,
}

impl Change<'_> {
    fn cells(&self) -> Vec<String> {
        let Self { kind, old, new } = self;
        let median = |entry: &Entry| entry.timing.map(|timing| timing.median_ms);
        let bytes = |entry: &Entry| entry.peak_memory_bytes.map(|bytes| bytes as f64);
        let ratio = |old: Option<f64>, new: Option<f64>| number(new.zip(old).map(|(new, old)| new / old));
        let [before, now, ratio] = match kind {
            Kind::Slower | Kind::Faster => {
                let [old, new] = [median(old), median(new)];
                [format!("{} ms", number(old)), format!("{} ms", number(new)), ratio(old, new)]
            }
            Kind::Bigger | Kind::Smaller => [
                format!("{} MiB", mebibytes(old.peak_memory_bytes)),
                format!("{} MiB", mebibytes(new.peak_memory_bytes)),
                ratio(bytes(old), bytes(new)),
            ],
            Kind::Broken => [
                format!("{} ms", number(median(old))),
                ending(new.status, new.timing, new.reason),
                "-".to_owned(),
            ],
        };
        let key = old.key.iter().cloned();
        std::iter::once(kind.word().to_owned()).chain(key).chain([before, now, ratio]).collect()
    }
}

#[derive(Clone, Debug, Default)]
struct Comparison<'a> {
    changes: Vec<Change<'a>>,
    both: usize,
    only_old: usize,
    only_new: usize,
}

impl Comparison<'_> {
    fn worse(&self) -> usize {
        self.changes.iter().filter(|change| change.kind.is_worse()).count()
    }

    /// Prints the changes of `what`, whose keys have these columns; nothing if neither run has any.
    fn say(&self, what: &str, key: &[&str], threshold: f64) {
        let Self { changes, both, only_old, only_new } = self;
        if both + only_old + only_new == 0 {
            return;
        }
        let mut table = Table::new([&[""], key, &["old", "new", "new/old"]].concat());
        for change in changes {
            table.push(change.cells());
        }
        if table.len() > 0 {
            say!("{}", table.to_text().trim_end());
        }
        say!(
            "{both} {what} in both runs, {} worse, {} faster or smaller, beyond {}% and the spread of both; {only_old} only \
             in the old run, {only_new} only in the new one",
            self.worse(),
            changes.len() - self.worse(),
            number(Some(threshold * 100.0)),
        );
    }
}

fn compare<'a>(old: &'a [Entry], new: &'a [Entry], threshold: f64) -> Comparison<'a> {
    let mut comparison = Comparison::default();
    for old in old.iter().filter(|entry| entry.status == Status::Measured) {
        let Some(new) = new.iter().find(|entry| entry.key == old.key && entry.status != Status::Skipped)
        else {
            comparison.only_old += 1;
            continue;
        };
        comparison.both += 1;
        let kinds = [Some(Kind::Broken).filter(|_| new.status != Status::Measured)];
        let kinds = kinds.into_iter().chain(match new.status {
            Status::Measured => [time_change(old, new, threshold), memory_change(old, new, threshold)],
            _ => [None, None],
        });
        comparison.changes.extend(kinds.flatten().map(|kind| Change { kind, old, new }));
    }
    let known = |entry: &&Entry| old.iter().any(|old| old.key == entry.key && old.status == Status::Measured);
    comparison.only_new =
        new.iter().filter(|entry| entry.status == Status::Measured && !known(entry)).count();
    comparison
}

/// Medians that differ by more than the threshold while the ranges from p10 to p90 are apart.
fn time_change(old: &Entry, new: &Entry, threshold: f64) -> Option<Kind> {
    let (old, new) = (old.timing?, new.timing?);
    if new.median_ms > old.median_ms * (1.0 + threshold) && new.p10_ms > old.p90_ms {
        Some(Kind::Slower)
    } else if old.median_ms > new.median_ms * (1.0 + threshold) && old.p10_ms > new.p90_ms {
        Some(Kind::Faster)
    } else {
        None
    }
}

fn memory_change(old: &Entry, new: &Entry, threshold: f64) -> Option<Kind> {
    let (old, new) = (old.peak_memory_bytes?, new.peak_memory_bytes?);
    let beyond =
        |more: u64, less: u64| more as f64 > less as f64 * (1.0 + threshold) && more - less > MEMORY_SLACK;
    if beyond(new, old) {
        Some(Kind::Bigger)
    } else if beyond(old, new) {
        Some(Kind::Smaller)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cases::Pass;
    use crate::results::samples::{model, row};

    fn kinds(old: Row, new: Row, threshold: f64) -> Vec<Kind> {
        kinds_of(&Entry::of_row(&old), &Entry::of_row(&new), threshold)
    }

    fn kinds_of(old: &Entry, new: &Entry, threshold: f64) -> Vec<Kind> {
        let (old, new) = ([old.clone()], [new.clone()]);
        compare(&old, &new, threshold).changes.iter().map(|change| change.kind).collect()
    }

    fn at(median_ms: f64) -> Row {
        row("fused", 2, Pass::Forward, median_ms)
    }

    #[test]
    fn a_run_against_itself_shows_nothing() {
        assert_eq!(kinds(at(1.0), at(1.0), 0.0), []);
    }

    #[test]
    fn slower_is_beyond_the_threshold_and_the_spread() {
        assert_eq!(kinds(at(1.0), at(1.10), 0.05), [Kind::Slower]);
        assert_eq!(kinds(at(1.10), at(1.0), 0.05), [Kind::Faster]);
        assert_eq!(kinds(at(1.0), at(1.10), 0.2), [], "within the threshold");
        // The rows spread by 2% to either side.
        assert_eq!(kinds(at(1.0), at(1.03), 0.01), [], "within the spread");
        let mut wide = at(1.10);
        wide.timing.as_mut().unwrap().p10_ms = 0.9;
        assert_eq!(kinds(at(1.0), wide, 0.05), [], "within a wide spread");
    }

    #[test]
    fn bigger_is_beyond_the_threshold_and_a_mebibyte() {
        let memory = |bytes: u64| Row { peak_memory_bytes: Some(bytes), ..at(1.0) };
        assert_eq!(kinds(memory(100 << 20), memory(110 << 20), 0.05), [Kind::Bigger]);
        assert_eq!(kinds(memory(110 << 20), memory(100 << 20), 0.05), [Kind::Smaller]);
        assert_eq!(kinds(memory(100 << 20), memory(104 << 20), 0.05), []);
        assert_eq!(kinds(memory(1000), memory(100_000), 0.05), []);
    }

    #[test]
    fn a_row_that_no_longer_works_is_worse_and_one_that_was_not_run_is_not() {
        let with = |status| Row { status, ..at(1.0) };
        assert_eq!(kinds(at(1.0), with(Status::Wrong), 0.05), [Kind::Broken]);
        assert_eq!(kinds(at(1.0), with(Status::Failed), 0.05), [Kind::Broken]);
        let (old, new) = ([at(1.0)], [with(Status::Skipped), row("fused", 3, Pass::Forward, 1.0)]);
        let [old, new] = [&old[..], &new[..]].map(|rows| rows.iter().map(Entry::of_row).collect::<Vec<_>>());
        let comparison = compare(&old, &new, 0.05);
        assert_eq!((comparison.both, comparison.only_old, comparison.only_new), (0, 1, 1));
        assert!(comparison.changes.is_empty());
    }

    #[test]
    fn models_are_compared_by_the_same_rules() {
        let at = |median_ms| model("wtconvnext-t", median_ms);
        let kinds =
            |old: &ModelRow, new: &ModelRow| kinds_of(&Entry::of_model(old), &Entry::of_model(new), 0.05);
        assert_eq!(kinds(&at(1.0), &at(1.0)), []);
        assert_eq!(kinds(&at(1.0), &at(1.1)), [Kind::Slower]);
        assert_eq!(kinds(&at(1.0), &at(1.03)), [], "within the threshold");
        let bigger = ModelRow { peak_memory_bytes: Some(128 << 20), ..at(0.5) };
        assert_eq!(kinds(&at(1.0), &bigger), [Kind::Faster, Kind::Bigger]);
        let other = ModelRow { batch: 3, ..at(9.0) };
        assert_eq!(kinds(&at(1.0), &other), [], "another batch is another model");
    }

    #[test]
    fn what_no_longer_works_is_told_with_its_reason() {
        let (old, new) = (at(1.0), Row { status: Status::Failed, reason: Some("no".to_owned()), ..at(1.0) });
        let (old, new) = ([Entry::of_row(&old)], [Entry::of_row(&new)]);
        let cells = compare(&old, &new, 0.05).changes[0].cells();
        assert_eq!(cells[8..], ["1.00 ms", "FAILED: no", "-"]);
    }

    #[test]
    fn thresholds_are_shares_or_percents() {
        assert_eq!(share("5%").unwrap(), 0.05);
        assert_eq!(share("0.25").unwrap(), 0.25);
        assert_eq!(share("300%").unwrap(), 3.0);
        for wrong in ["", "%", "-1%", "much", "5", "1"] {
            assert!(share(wrong).is_err(), "{wrong}");
        }
    }
}
