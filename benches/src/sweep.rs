//! `sweep`: measures every combination that was asked for, one row each.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::bail;
use clap::Args;

use crate::attempt::attempt;
use crate::cases::{
    Case, Dtype, Group, Layout, Measurement, Pass, Preset, Route, RouteChoice, Selection, Shape,
};
use crate::cost;
use crate::measure::{INTERRUPTED, INTERRUPTED_STATUS, Schedule, Work, measure};
use crate::memory::{Room, TensorMemory};
use crate::operands::{Call, Input, Parameters};
use crate::oracle::{self, Expected, Tolerance, within};
use crate::output::say;
use crate::progress::Progress;
use crate::report::{self, table};
use crate::results::{NOT_REACHED, Results, Row, RowKey, Status, UNFINISHED, commit, compare_routes};
use crate::statistics::Timing;
use crate::target::Target;

/// Options of `sweep`.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Shapes and levels by name; see also --shape [default: smoke, if there is no --shape]
    #[arg(long, value_enum, conflicts_with = "shape")]
    preset: Option<Preset>,
    /// Shapes BxCxHxW, each with all of --levels and --kernel-size; repeat or separate by commas
    #[arg(long, value_delimiter = ',', value_name = "BxCxHxW")]
    shape: Vec<Shape>,
    /// Wavelet levels of the shapes
    #[arg(long, value_delimiter = ',', default_values_t = [3], requires = "shape", conflicts_with = "preset")]
    levels: Vec<usize>,
    /// Height and width of a filter of the shapes
    #[arg(long, value_delimiter = ',', default_values_t = [5], requires = "shape", conflicts_with = "preset")]
    kernel_size: Vec<usize>,
    /// Element types
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Dtype::F32])]
    dtype: Vec<Dtype>,
    /// What to compute
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Pass::Forward, Pass::Backward, Pass::Train])]
    pass: Vec<Pass>,
    /// Order of the input's axes in memory
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Layout::Nchw])]
    layout: Vec<Layout>,
    /// Ways to compute it
    #[arg(long, value_enum, value_delimiter = ',', default_value = "fused,tensor-ops,depthwise")]
    route: Vec<RouteChoice>,
    /// Where results.json, report.md and the plots go
    #[arg(long, value_name = "DIR", default_value = "target/bench")]
    out: PathBuf,
    #[command(flatten)]
    conduct: Conduct,
}

/// Options of every command that sweeps.
#[derive(Args, Clone, Debug)]
pub(crate) struct Conduct {
    /// Start no row after this long (90s, 10m, 2h); what is left is skipped, and everything is written
    #[arg(long, value_parser = duration)]
    time_budget: Option<Duration>,
    /// Start no further batch of a row after this long [default: 10s, and 0.5s for the preset smoke]
    #[arg(long, value_parser = duration)]
    row_time: Option<Duration>,
    /// Time every row twice and compare it with itself
    #[arg(long)]
    null: bool,
    /// The commit to record [default: the one checked out]
    #[arg(long, value_parser = commit)]
    commit: Option<String>,
}

/// A duration such as `90s`, `10m` or `2h`.
fn duration(text: &str) -> anyhow::Result<Duration> {
    let unit = [("s", 1.0), ("m", 60.0), ("h", 3600.0)];
    for (suffix, seconds) in unit {
        if let Some(Ok(number)) = text.strip_suffix(suffix).map(str::parse::<f64>) {
            return Ok(Duration::try_from_secs_f64(number * seconds)?);
        }
    }
    bail!("expected a number with s, m or h behind it, got {text:?}")
}

/// The first of each value: what is asked for twice is measured once.
pub(crate) fn distinct<T: Clone + PartialEq>(values: &[T]) -> Vec<T> {
    let mut distinct: Vec<T> = Vec::new();
    for value in values {
        if !distinct.contains(value) {
            distinct.push(value.clone());
        }
    }
    distinct
}

impl Options {
    fn row_time(&self) -> Duration {
        let smoke = self.shape.is_empty() && self.preset.unwrap_or(Preset::Smoke) == Preset::Smoke;
        if smoke { Duration::from_millis(500) } else { Schedule::default().limit }
    }

    fn selection(&self) -> anyhow::Result<Selection> {
        let cases = if self.shape.is_empty() {
            self.preset.unwrap_or(Preset::Smoke).cases()
        } else {
            let mut cases = Vec::new();
            for &shape in &self.shape {
                for &levels in &self.levels {
                    for &kernel_size in &self.kernel_size {
                        cases.push(Case::new(shape, levels, kernel_size)?);
                    }
                }
            }
            distinct(&cases)
        };
        Ok(Selection {
            cases,
            dtypes: distinct(&self.dtype),
            layouts: distinct(&self.layout),
            passes: distinct(&self.pass),
            routes: distinct(&self.route),
        })
    }
}

/// Measures what the options select.
pub(crate) fn run<B: Target>(backend: &str, options: &Options) -> anyhow::Result<ExitCode> {
    let groups = options.selection()?.groups();
    sweep::<B>(backend, &groups, &options.out, &options.conduct, options.row_time())
}

/// Measures, writes everything into `directory`, and fails if a row of the layer is wrong. A row takes `row_time` unless
/// the options say how long.
pub(crate) fn sweep<B: Target>(
    backend: &str,
    groups: &[Group],
    directory: &Path,
    options: &Conduct,
    row_time: Duration,
) -> anyhow::Result<ExitCode> {
    Results::try_directory(directory)?;
    let device = B::Device::default();
    let mut results = Results::begin::<B>(backend, options.commit.as_deref(), &device);
    let limits = B::limits(&device);
    results.rows = groups
        .iter()
        .flat_map(|group| group.measurements.iter().map(move |measurement| (group, measurement)))
        .map(|(group, measurement)| blank_row(group, measurement, limits.as_ref()))
        .collect();
    let sweep = Sweep::<B> {
        tensors: B::tensor_memory(&device),
        device,
        // A budget beyond what the clock counts is none.
        end: options.time_budget.and_then(|budget| Instant::now().checked_add(budget)),
        null: options.null,
        schedule: Schedule { limit: options.row_time.unwrap_or(row_time), ..Schedule::default() },
    };
    let progress = Progress::new(results.rows.len());
    let mut record = Record { results, directory, at: 0, progress };
    for group in groups {
        sweep.group(group, &mut record)?;
    }
    let Record { results, progress, .. } = record;
    drop(progress);
    report::write(&results, directory)?;
    Ok(conclude(&results, INTERRUPTED.load(Ordering::Relaxed)))
}

/// Says what went wrong and what is missing. A wrong row of Burn's own conv2d is told, but is not the layer's.
pub(crate) fn conclude(results: &Results, interrupted: bool) -> ExitCode {
    let statuses: Vec<Status> = (results.rows.iter().map(|row| row.status))
        .chain(results.models.iter().map(|model| model.status))
        .collect();
    let count = |status| statuses.iter().filter(|other| **other == status).count();
    let (total, missing) = (statuses.len(), count(Status::Skipped));
    say!(
        "{total} rows: {} measured, {} wrong, {} refused, {} failed, {missing} skipped",
        count(Status::Measured),
        count(Status::Wrong),
        count(Status::Refused),
        count(Status::Failed),
    );
    if interrupted && missing > 0 {
        say!("interrupted: {missing} of {total} rows are missing");
        return ExitCode::from(INTERRUPTED_STATUS);
    }
    if missing > 0 {
        say!("the time budget was spent: {missing} of {total} rows are missing");
    }
    let of_the_layer = |row: &&Row| !row.key.route.starts_with("conv2d");
    let wrong = results.rows.iter().filter(of_the_layer).any(|row| row.status == Status::Wrong);
    if wrong { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// The rows of a run, each on disk before the next one begins.
///
/// All rows are there from the start, so that a process that is ended from outside, or by an allocation that fails, leaves
/// none out: the file then says which rows it measured, at which it ended, and which it did not reach.
struct Record<'a> {
    results: Results,
    directory: &'a Path,
    /// Index of the row in progress.
    at: usize,
    progress: Progress,
}

impl Record<'_> {
    /// The row in progress.
    fn row(&mut self) -> &mut Row {
        &mut self.results.rows[self.at]
    }

    /// Writes the file: with all rows before this one, and this one as what the process ended at, should it end here.
    fn begin(&mut self) -> anyhow::Result<()> {
        let row = self.row();
        row.reason = Some(UNFINISHED.to_owned());
        let words = row.key.to_string();
        self.progress.say(words);
        self.results.write(self.directory)
    }

    fn finish(&mut self, status: Status, reason: Option<String>) {
        let row = self.row();
        (row.status, row.reason) = (status, reason);
        row.derive();
        let words = format!("{}: {}", row.key, table::ending(row.status, row.timing, row.reason.as_deref()));
        compare_routes(&mut self.results.rows);
        self.progress.finish(&words);
        self.at += 1;
    }

    fn skip(&mut self, reason: &str) {
        self.row().reason = Some(reason.to_owned());
        self.progress.skip();
        self.at += 1;
    }
}

struct Sweep<B: Target> {
    device: B::Device,
    tensors: TensorMemory,
    end: Option<Instant>,
    null: bool,
    schedule: Schedule,
}

impl<B: Target> Sweep<B> {
    /// Why no further row starts, if none does.
    fn stopped(&self) -> Option<&'static str> {
        if INTERRUPTED.load(Ordering::Relaxed) {
            Some("interrupted")
        } else if self.end.is_some_and(|end| Instant::now() >= end) {
            Some("the time budget was spent")
        } else {
            None
        }
    }

    fn group(&self, group: &Group, record: &mut Record<'_>) -> anyhow::Result<()> {
        let with_gradients = group.measurements.iter().any(|measurement| measurement.pass != Pass::Forward);
        // Before anything of the group is allocated.
        let room = Room::now(self.tensors);
        let mut shared: Option<Shared<B>> = None;
        let mut case: Option<Subject<B>> = None;
        for measurement in &group.measurements {
            if let Some(reason) = self.stopped() {
                record.skip(reason);
                continue;
            }
            let tensors = cost::least_bytes(&measurement.case, group.dtype, measurement.pass);
            if let Some(reason) =
                room.refusal(tensors, oracle::least_bytes(&measurement.case, with_gradients))
            {
                record.finish(Status::Refused, Some(reason));
                continue;
            }
            record.begin()?;
            let shared = shared.get_or_insert_with(|| Shared::new(group, &self.device));
            record.row().copy = shared.copy;
            let outcome = match &shared.input {
                Err(error) => Err(anyhow::anyhow!("no input: {error:#}")),
                Ok(input) => attempt(|| {
                    if case.as_ref().is_none_or(|subject| !subject.expected.is_of(&measurement.case)) {
                        // The old case's tensors go before the new one's come.
                        drop(case.take());
                        case = Some(Subject::new(
                            &measurement.case,
                            group.dtype,
                            input,
                            with_gradients,
                            &self.device,
                        ));
                    }
                    let subject = case.as_ref().expect("just made");
                    self.row(record.row(), measurement, input, subject)
                }),
            };
            match outcome {
                Ok((status, reason)) => record.finish(status, reason),
                Err(_) if INTERRUPTED.load(Ordering::Relaxed) => record.skip("interrupted"),
                Err(error) => record.finish(Status::Failed, Some(one_line(&format!("{error:#}")))),
            }
        }
        Ok(())
    }

    /// Measures one row and says how it ended.
    fn row(
        &self,
        row: &mut Row,
        measurement: &Measurement,
        input: &Input<B>,
        subject: &Subject<B>,
    ) -> anyhow::Result<(Status, Option<String>)> {
        let mut call = Call::new(measurement.route, measurement.pass, input, &subject.parameters);
        if let Some(reason) = call.refusal() {
            return Ok((Status::Refused, Some(reason)));
        }
        let measured = measure(&mut call, &self.schedule)?;
        row.first_call_ms = Some(measured.first_call_ms);
        row.timing = Some(measured.timing);
        if self.null {
            row.again = Some(measure(&mut call, &self.schedule)?.timing);
        }
        // Samples can miss a peak, but not by more than what the call returns.
        let results = cost::result_bytes(&measurement.case, row.key.dtype, measurement.pass);
        row.peak_memory_bytes = peak_memory::<B>(&mut call, &self.device)?.map(|peak| peak.max(results));
        row.errors = subject.expected.errors(&call.outcome()?);
        Ok(if within(&row.errors, Tolerance::of(row.key.dtype)) {
            (Status::Measured, None)
        } else {
            (Status::Wrong, Some("further from the oracle than the tolerance".to_owned()))
        })
    }
}

/// Bytes that a call adds at its peak.
pub(crate) fn peak_memory<B: Target>(work: &mut dyn Work, device: &B::Device) -> anyhow::Result<Option<u64>> {
    work.sync()?;
    let mut failure = None;
    let peak = B::peak_memory(device, &mut || {
        let once =
            work.prepare(1).and_then(|()| work.sync()).and_then(|()| work.call()).and_then(|()| work.sync());
        if let Err(error) = once {
            failure = Some(error);
        }
    });
    match failure {
        Some(error) => Err(error),
        None => Ok(peak),
    }
}

/// What all rows of a group share; its tensors are made when the first row is measured.
struct Shared<B: Target> {
    copy: Option<Timing>,
    input: anyhow::Result<Input<B>>,
}

impl<B: Target> Shared<B> {
    fn new(group: &Group, device: &B::Device) -> Self {
        let bytes = group.shape.elements() * group.dtype.size();
        let copy = attempt(|| B::copy(device, bytes)).ok().map(|measured| measured.timing);
        let input = attempt(|| {
            B::seed(device, 7);
            Ok(Input::random(group.shape, group.dtype, group.layout, device))
        });
        Self { copy, input }
    }
}

/// The parameters of a case and what the oracle makes of them.
struct Subject<B: Target> {
    parameters: Parameters<B>,
    expected: Expected,
}

impl<B: Target> Subject<B> {
    fn new(case: &Case, dtype: Dtype, input: &Input<B>, with_gradients: bool, device: &B::Device) -> Self {
        let parameters = Parameters::random(case, dtype, device);
        let expected = Expected::of(case, input, &parameters, with_gradients);
        Self { parameters, expected }
    }
}

/// A row before it is measured.
fn blank_row(group: &Group, measurement: &Measurement, limits: Option<&wtconv_kernels::DeviceLimits>) -> Row {
    let Measurement { case, route, pass } = *measurement;
    let tensor = (group.shape.elements() * group.dtype.size()) as f64;
    let is_planned = matches!(route, Route::Fused | Route::Depthwise(_));
    let plan = limits
        .filter(|_| is_planned)
        .and_then(|limits| cost::fused(&case, group.dtype, group.layout, pass, limits).ok());
    let [reference, paper] = cost::published_bytes(&case, group.dtype, pass)
        .filter(|_| case.levels > 0)
        .map_or([None; 2], |bytes| bytes.map(Some));
    Row {
        key: RowKey {
            shape: group.shape,
            levels: case.levels,
            kernel_size: case.kernel_size,
            dtype: group.dtype,
            layout: group.layout,
            pass,
            route: route.to_string(),
        },
        status: Status::Skipped,
        reason: Some(NOT_REACHED.to_owned()),
        first_call_ms: None,
        timing: None,
        again: None,
        over_tensor_ops: None,
        over_conv2d_7x7: None,
        over_depthwise_7x7: None,
        ns_per_pixel: None,
        copy: None,
        floor_bytes: cost::floor_tensors(pass) as f64 * tensor,
        reference_bytes: reference,
        paper_bytes: paper,
        plan_bytes: plan.map(|cost| cost.bytes as f64),
        launches: plan.map(|cost| cost.launches),
        bandwidth_gb_s: None,
        copy_share: None,
        floor_ratio: None,
        peak_memory_bytes: None,
        errors: Default::default(),
    }
}

/// The first words of a message that may have a backtrace behind it.
pub(crate) fn one_line(message: &str) -> String {
    const LENGTH: usize = 300;
    let line = message.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(LENGTH) {
        Some((end, _)) => format!("{}...", &line[..end]),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budgets_have_a_unit() {
        assert_eq!(duration("90s").unwrap(), Duration::from_secs(90));
        assert_eq!(duration("1.5m").unwrap(), Duration::from_secs(90));
        assert_eq!(duration("2h").unwrap(), Duration::from_secs(7200));
        for wrong in ["", "10", "m", "-1s", "tens"] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn reasons_are_one_short_line() {
        assert_eq!(one_line("out of\n  memory"), "out of memory");
        assert_eq!(one_line(&"ä".repeat(400)).chars().count(), 303);
    }
}
