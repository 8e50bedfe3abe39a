//! What a run leaves behind: `results.json`, read again by `compare`, `peers` and `readme`.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};

use crate::cases::{Dtype, Layout, Pass, Shape};
use crate::statistics::Timing;
use crate::target::{Target, processor};

/// Version of the schema; a file of another version is refused.
pub(crate) const SCHEMA: u32 = 1;
/// Name of the file.
pub(crate) const FILE: &str = "results.json";
/// Reason of a row that is planned: what the file says of it if the process ends before.
pub(crate) const NOT_REACHED: &str = "the process ended before this row";
/// Reason of a row that is begun.
pub(crate) const UNFINISHED: &str = "the process ended while this row was measured";
/// Its name until it is whole.
const PARTIAL_FILE: &str = "results.json.partial";

/// A run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Results {
    pub(crate) schema: u32,
    /// What was measured, in a few words.
    pub(crate) label: String,
    pub(crate) machine: Machine,
    /// Versions of the crates or packages that matter.
    pub(crate) software: BTreeMap<String, String>,
    pub(crate) commit: Option<String>,
    pub(crate) command_line: String,
    /// When the run began, RFC 3339.
    pub(crate) date: String,
    /// How the fields of a row were measured and what they include.
    pub(crate) method: BTreeMap<String, String>,
    pub(crate) rows: Vec<Row>,
    #[serde(default)]
    pub(crate) models: Vec<ModelRow>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Machine {
    pub(crate) backend: String,
    pub(crate) device: String,
    pub(crate) driver: Option<String>,
    pub(crate) cpu: String,
    /// Hardware threads of the CPU that the process may use.
    pub(crate) threads: usize,
    pub(crate) os: String,
}

impl Machine {
    /// What differs from `other`, with both values.
    pub(crate) fn differences(&self, other: &Self) -> Vec<String> {
        fn fields(machine: &Machine) -> [(&'static str, String); 6] {
            let Machine { backend, device, driver, cpu, threads, os } = machine;
            [
                ("backend", backend.clone()),
                ("device", device.clone()),
                ("driver", driver.clone().unwrap_or_else(|| "none".to_owned())),
                ("processor", cpu.clone()),
                ("threads", threads.to_string()),
                ("system", os.clone()),
            ]
        }
        let pairs = fields(self).into_iter().zip(fields(other));
        pairs
            .filter(|((_, ours), (_, theirs))| ours != theirs)
            .map(|((field, ours), (_, theirs))| format!("{field} {ours} and {theirs}"))
            .collect()
    }
}

/// How a row ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Status {
    /// Measured, and right as far as it was checked.
    Measured,
    /// Measured, and further from the oracle than the tolerance.
    Wrong,
    /// The route does not take the call, or the machine has not the memory.
    Refused,
    /// It failed or panicked.
    Failed,
    /// Not reached.
    Skipped,
}

/// What identifies a row in comparisons.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(crate) struct RowKey {
    pub(crate) shape: Shape,
    pub(crate) levels: usize,
    pub(crate) kernel_size: usize,
    pub(crate) dtype: Dtype,
    pub(crate) layout: Layout,
    pub(crate) pass: Pass,
    pub(crate) route: String,
}

impl fmt::Display for RowKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { shape, levels, kernel_size, dtype, layout, pass, route } = self;
        write!(f, "{shape} L{levels} K{kernel_size} {dtype} {layout} {pass} {route}")
    }
}

/// One measurement. What was not measured is `null`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Row {
    #[serde(flatten)]
    pub(crate) key: RowKey,
    pub(crate) status: Status,
    /// Why the row is not `measured`.
    pub(crate) reason: Option<String>,
    /// The first call, in which kernels are compiled and tuned unless an earlier row had them compiled.
    pub(crate) first_call_ms: Option<f64>,
    pub(crate) timing: Option<Timing>,
    /// A second timing of the same work, with `--null`.
    pub(crate) again: Option<Timing>,
    /// Times as fast as the tensor-op route.
    pub(crate) over_tensor_ops: Option<f64>,
    /// Times as fast as a depthwise 7x7 by the backend's own conv2d.
    pub(crate) over_conv2d_7x7: Option<f64>,
    /// Times as fast as a depthwise 7x7 by the layer without levels.
    pub(crate) over_depthwise_7x7: Option<f64>,
    /// Nanoseconds per element of the input.
    pub(crate) ns_per_pixel: Option<f64>,
    /// A device copy of the input: its bytes read once and written once.
    pub(crate) copy: Option<Timing>,
    /// Bytes that the pass cannot do without.
    pub(crate) floor_bytes: f64,
    /// Bytes of the reference layer by its model; of the forward only.
    pub(crate) reference_bytes: Option<f64>,
    /// Bytes of the paper's fused kernels by their model; of the forward only.
    pub(crate) paper_bytes: Option<f64>,
    /// Bytes of the route by its plan; of the fused route only.
    pub(crate) plan_bytes: Option<f64>,
    /// Launches by the plan; of the fused route only.
    pub(crate) launches: Option<usize>,
    /// Bytes by the plan, or else of the floor, in a second; 10^9 bytes.
    pub(crate) bandwidth_gb_s: Option<f64>,
    /// That bandwidth as a share of the copy's.
    pub(crate) copy_share: Option<f64>,
    /// The time in units of the floor's bytes at the copy's bandwidth.
    pub(crate) floor_ratio: Option<f64>,
    pub(crate) peak_memory_bytes: Option<u64>,
    /// Relative error of each part against the `f64` oracle.
    pub(crate) errors: BTreeMap<String, f64>,
}

impl Row {
    /// The largest of the errors.
    pub(crate) fn error(&self) -> Option<f64> {
        self.errors.values().copied().max_by(f64::total_cmp)
    }

    /// The second timing over the first, and whether they differ by no more than the spreads of both.
    pub(crate) fn null_comparison(&self) -> Option<(f64, bool)> {
        let (first, again) = (self.timing?, self.again?);
        let within = first.p10_ms <= again.p90_ms && again.p10_ms <= first.p90_ms;
        Some((again.median_ms / first.median_ms, within))
    }

    /// Fills what follows from the timing.
    pub(crate) fn derive(&mut self) {
        let Some(timing) = self.timing else { return };
        let seconds = timing.median_ms * 1e-3;
        self.ns_per_pixel = Some(seconds * 1e9 / self.key.shape.elements() as f64);
        let bandwidth = self.plan_bytes.unwrap_or(self.floor_bytes) / seconds * 1e-9;
        self.bandwidth_gb_s = Some(bandwidth);
        if let Some(copy) = self.copy {
            let copied = 2.0 * (self.key.shape.elements() * self.key.dtype.size()) as f64;
            let copy_bandwidth = copied / (copy.median_ms * 1e-3) * 1e-9;
            self.copy_share = Some(bandwidth / copy_bandwidth);
            self.floor_ratio = Some(timing.median_ms / (copy.median_ms * self.floor_bytes / copied));
        }
    }
}

/// Fills the speed-ups of `rows` over one another.
pub(crate) fn compare_routes(rows: &mut [Row]) {
    let medians: Vec<(RowKey, f64)> = rows
        .iter()
        .filter(|row| row.status == Status::Measured)
        .filter_map(|row| Some((row.key.clone(), row.timing?.median_ms)))
        .collect();
    let find = |key: &RowKey, same_case: bool, route: &str| {
        let found = medians.iter().find(|(other, _)| {
            let same_input = (other.shape, other.dtype, other.layout, other.pass)
                == (key.shape, key.dtype, key.layout, key.pass);
            let same_operator = (other.levels, other.kernel_size) == (key.levels, key.kernel_size);
            same_input && (same_operator || !same_case) && other.route == route
        })?;
        Some(found.1)
    };
    for row in rows {
        let Some(timing) = row.timing.filter(|_| row.status == Status::Measured) else { continue };
        let over = |median: f64| median / timing.median_ms;
        row.over_tensor_ops = find(&row.key, true, "tensor-ops").map(over);
        row.over_conv2d_7x7 = find(&row.key, false, "conv2d-7x7").map(over);
        row.over_depthwise_7x7 = find(&row.key, false, "depthwise-7x7").map(over);
    }
}

/// End-to-end figures of a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct ModelRow {
    pub(crate) model: String,
    pub(crate) dtype: Dtype,
    /// `inference`, `train` (forward, loss and backward) or `train-adamw` (and the optimiser's step).
    pub(crate) mode: String,
    pub(crate) batch: usize,
    /// Height and width of the images.
    pub(crate) size: usize,
    pub(crate) status: Status,
    pub(crate) reason: Option<String>,
    pub(crate) first_call_ms: Option<f64>,
    pub(crate) timing: Option<Timing>,
    pub(crate) images_per_second: Option<f64>,
    pub(crate) peak_memory_bytes: Option<u64>,
    /// The mixing layers alone at the shapes of the stages, times the blocks.
    pub(crate) mixing_ms: Option<f64>,
    /// That as a share of the whole; none where it would be above 1.
    pub(crate) mixing_share: Option<f64>,
}

impl Results {
    /// An empty run of this process.
    pub(crate) fn begin<B: Target>(backend: &str, commit: Option<&str>, device: &B::Device) -> Self {
        let description = B::describe(device);
        let (cpu, threads) = processor();
        Self {
            schema: SCHEMA,
            label: format!("burn-wtconv on {backend}"),
            machine: Machine {
                backend: backend.to_owned(),
                device: description.device,
                driver: description.driver,
                cpu,
                threads,
                os: format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
            },
            software: locked_versions(include_str!("../../Cargo.lock")),
            commit: commit.map(str::to_owned).or_else(commit_of_checkout),
            command_line: command_line(std::env::args()),
            date: jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
            method: method(B::MEMORY_METHOD),
            rows: Vec::new(),
            models: Vec::new(),
        }
    }

    /// Reads a file, or the [`FILE`] in a directory.
    ///
    /// # Errors
    ///
    /// If there is none, or it is not of this schema.
    pub(crate) fn read(path: &Path) -> anyhow::Result<Self> {
        let path = if path.is_dir() { path.join(FILE) } else { path.to_owned() };
        let text =
            std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let context = || format!("{} is not a results file", path.display());
        let value: serde_json::Value = serde_json::from_str(&text).with_context(context)?;
        let schema = value["schema"].as_u64();
        ensure!(
            schema == Some(SCHEMA.into()),
            "{} has schema {}, this program reads schema {SCHEMA}",
            path.display(),
            schema.map_or("none".to_owned(), |schema| schema.to_string())
        );
        serde_json::from_value(value).with_context(context)
    }

    /// Makes `directory` and tries whether [`Self::write`] will be able to write there: before the measuring, not after it.
    ///
    /// # Errors
    ///
    /// If it will not.
    pub(crate) fn try_directory(directory: &Path) -> anyhow::Result<()> {
        let context = || format!("cannot write into {}", directory.display());
        std::fs::create_dir_all(directory).with_context(context)?;
        let partial = directory.join(PARTIAL_FILE);
        std::fs::write(&partial, "").with_context(context)?;
        std::fs::remove_file(&partial).with_context(context)
    }

    /// Writes the file into `directory`, at once or not at all.
    ///
    /// # Errors
    ///
    /// If it cannot be written.
    pub(crate) fn write(&self, directory: &Path) -> anyhow::Result<()> {
        let path = directory.join(FILE);
        let context = || format!("cannot write {}", path.display());
        std::fs::create_dir_all(directory).with_context(context)?;
        let partial = directory.join(PARTIAL_FILE);
        let text = serde_json::to_string_pretty(self).with_context(context)? + "\n";
        std::fs::write(&partial, text).with_context(context)?;
        std::fs::rename(&partial, &path).with_context(context)
    }
}

/// A commit from the command line, which goes into tables as it is: hexadecimal, or a name such as `v1.2-dirty`.
///
/// # Errors
///
/// If it is neither.
pub(crate) fn commit(text: &str) -> anyhow::Result<String> {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "-_.+/".contains(letter);
    ensure!(
        !text.is_empty() && text.chars().all(plain),
        "expected letters, digits and any of -_.+/, such as 0123abc or v1.2-dirty, got {text:?}"
    );
    Ok(text.to_owned())
}

/// The command line in one line, with the program's name instead of its path; what a shell would not take as one word
/// is quoted.
fn command_line(mut arguments: impl Iterator<Item = String>) -> String {
    arguments.next();
    let quoted = |argument: String| {
        let plain =
            |letter: char| !letter.is_whitespace() && !letter.is_control() && !"\"'`\\".contains(letter);
        if !argument.is_empty() && argument.chars().all(plain) { argument } else { format!("{argument:?}") }
    };
    std::iter::once("benches".to_owned()).chain(arguments.map(quoted)).collect::<Vec<_>>().join(" ")
}

/// The commit that is checked out, with `-dirty` where tracked files differ from it.
fn commit_of_checkout() -> Option<String> {
    let git = |arguments: &[&str]| {
        let output = std::process::Command::new("git").args(arguments).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let commit = git(&["rev-parse", "--short=12", "HEAD"])?;
    let dirty = git(&["status", "--porcelain", "--untracked-files=no"])?;
    Some(if dirty.is_empty() { commit } else { format!("{commit}-dirty") })
}

/// Versions of the crates that decide what is measured.
fn locked_versions(lock: &str) -> BTreeMap<String, String> {
    const CRATES: [&str; 5] = ["burn", "burn-wtconv", "cubecl", "cubek", "wtconv-kernels"];
    let value = |line: &str| line.split('"').nth(1).unwrap_or_default().to_owned();
    let mut versions = BTreeMap::new();
    for package in lock.split("[[package]]") {
        let field = |name: &str| package.lines().find(|line| line.starts_with(name)).map(value);
        if let (Some(name), Some(version)) = (field("name = "), field("version = "))
            && CRATES.contains(&name.as_str())
        {
            versions.insert(name, version);
        }
    }
    versions
}

fn method(memory: &str) -> BTreeMap<String, String> {
    [
        (
            "timing",
            "calls are timed in batches that last at least 20 ms (at most 200 calls), between two waits for the device; \
             the time of a call is its batch's divided by its calls; percentiles are over 15 batches, or fewer (at \
             least 3) once a row has taken 10 s, or what --row-time says",
        ),
        ("first_call_ms", "the first call and a wait: with what it compiles and tunes, if no earlier row did"),
        ("forward", "the layer's forward on the plain backend"),
        (
            "backward",
            "gradients of the input and of every parameter under Autodiff; the forwards are done before the clock \
             starts. The output's gradient is a tensor in memory; a loss of one element is included",
        ),
        ("train", "forward and backward under Autodiff; the same gradients, the same loss of one element"),
        ("copy", "a copy within the device's memory of as many bytes as the input has; each is read and written once"),
        ("floor_bytes", "x and y forward; x, dy and dx backward; all five for train"),
        (
            "over_tensor_ops, over_conv2d_7x7, over_depthwise_7x7",
            "columns \"x ...\": how many times as fast as that way on the same input; above 1 is faster",
        ),
        (
            "copy_share",
            "column \"of copy\": what the plan moves by the model (without a plan floor_bytes) a second, as a share of what \
             the copy moves a second; 1 is as fast as the copy",
        ),
        ("floor_ratio", "column \"x floor\": the time over that of floor_bytes at the copy's rate; lower is better"),
        ("peak_memory_bytes", memory),
        (
            "errors",
            "norm(got - expected) / norm(expected) against f64 loops, over up to three channels of the whole batch; \
             the f64 loops start from the inputs as rounded to the dtype",
        ),
    ]
    .into_iter()
    .map(|(field, words)| (field.to_owned(), words.to_owned()))
    .collect()
}

#[cfg(test)]
pub(crate) mod samples {
    use super::*;

    /// A row with a median and a spread of 2% to either side.
    pub(crate) fn row(route: &str, levels: usize, pass: Pass, median_ms: f64) -> Row {
        let mut row = Row {
            key: RowKey {
                shape: Shape([2, 8, 16, 16]),
                levels,
                kernel_size: 5,
                dtype: Dtype::F32,
                layout: Layout::Nchw,
                pass,
                route: route.to_owned(),
            },
            status: Status::Measured,
            reason: None,
            first_call_ms: Some(120.0),
            timing: Some(timing(median_ms)),
            again: None,
            over_tensor_ops: None,
            over_conv2d_7x7: None,
            over_depthwise_7x7: None,
            ns_per_pixel: None,
            copy: Some(timing(0.5)),
            floor_bytes: 2.0 * 4096.0 * 4.0,
            reference_bytes: None,
            paper_bytes: None,
            plan_bytes: None,
            launches: None,
            bandwidth_gb_s: None,
            copy_share: None,
            floor_ratio: None,
            peak_memory_bytes: Some(64 << 20),
            errors: BTreeMap::from([("y".to_owned(), 1e-7), ("dx".to_owned(), 2e-7)]),
        };
        row.derive();
        row
    }

    /// A model with a median and a spread of 2% to either side.
    pub(crate) fn model(name: &str, median_ms: f64) -> ModelRow {
        ModelRow {
            model: name.to_owned(),
            dtype: Dtype::F32,
            mode: "train".to_owned(),
            batch: 2,
            size: 64,
            status: Status::Measured,
            reason: None,
            first_call_ms: Some(120.0),
            timing: Some(timing(median_ms)),
            images_per_second: Some(2e3 / median_ms),
            peak_memory_bytes: Some(64 << 20),
            mixing_ms: None,
            mixing_share: None,
        }
    }

    pub(crate) fn timing(median_ms: f64) -> Timing {
        Timing {
            median_ms,
            p10_ms: median_ms * 0.98,
            p90_ms: median_ms * 1.02,
            batches: 15,
            calls_per_batch: 4,
        }
    }

    pub(crate) fn results(rows: Vec<Row>) -> Results {
        Results {
            schema: SCHEMA,
            label: "sample".to_owned(),
            machine: Machine {
                backend: "flex".to_owned(),
                device: "a device".to_owned(),
                driver: None,
                cpu: "a processor".to_owned(),
                threads: 2,
                os: "linux x86_64".to_owned(),
            },
            software: BTreeMap::from([("burn".to_owned(), "0.21.0".to_owned())]),
            commit: Some("0123456789ab".to_owned()),
            command_line: "benches sweep".to_owned(),
            date: "2026-01-02T03:04:05Z".to_owned(),
            method: method("counted"),
            rows,
            models: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::samples::{results, row, timing};
    use super::*;

    #[test]
    fn a_file_is_read_as_it_was_written_and_other_schemas_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let mut written = results(vec![row("fused", 2, Pass::Forward, 0.1 + 0.2)]);
        written.rows[0].errors.insert("bias".to_owned(), 1.0 / 3.0);
        written.write(directory.path()).unwrap();
        assert_eq!(Results::read(directory.path()).unwrap(), written);
        assert_eq!(Results::read(&directory.path().join(FILE)).unwrap(), written);

        written.schema = 99;
        written.write(directory.path()).unwrap();
        let error = Results::read(directory.path()).unwrap_err().to_string();
        assert!(error.contains("schema 99") && error.contains("schema 1"), "{error}");
    }

    #[test]
    fn speed_ups_are_over_rows_of_the_same_input() {
        let mut rows = vec![
            row("conv2d-7x7", 0, Pass::Forward, 6.0),
            row("depthwise-7x7", 0, Pass::Forward, 3.0),
            row("tensor-ops", 1, Pass::Forward, 50.0),
            row("tensor-ops", 2, Pass::Forward, 8.0),
            row("tensor-ops", 2, Pass::Train, 80.0),
            row("fused", 2, Pass::Forward, 2.0),
        ];
        rows[0].key.kernel_size = 7;
        rows[1].key.kernel_size = 7;
        compare_routes(&mut rows);
        let fused = &rows[5];
        assert_eq!(fused.over_tensor_ops, Some(4.0));
        assert_eq!(fused.over_conv2d_7x7, Some(3.0));
        assert_eq!(fused.over_depthwise_7x7, Some(1.5));
        assert_eq!(rows[4].over_conv2d_7x7, None);
        assert_eq!(rows[3].over_tensor_ops, Some(1.0));
    }

    #[test]
    fn what_is_wrong_is_compared_with_nothing() {
        let mut rows = vec![row("tensor-ops", 2, Pass::Forward, 8.0), row("fused", 2, Pass::Forward, 2.0)];
        rows[0].status = Status::Wrong;
        compare_routes(&mut rows);
        assert_eq!(rows[1].over_tensor_ops, None);
        assert_eq!(rows[0].over_tensor_ops, None);
    }

    #[test]
    fn bandwidth_and_floor_follow_from_the_copy() {
        // The copy moves the floor's bytes in 0.5 ms.
        let mut row = row("fused", 2, Pass::Forward, 2.0);
        assert_eq!(row.floor_ratio, Some(4.0));
        assert_eq!(row.copy_share, Some(0.25));
        assert_eq!(row.ns_per_pixel, Some(2e6 / 4096.0));
        row.plan_bytes = Some(2.0 * row.floor_bytes);
        row.derive();
        assert_eq!(row.copy_share, Some(0.5));
        assert_eq!(row.floor_ratio, Some(4.0));
    }

    #[test]
    fn a_null_comparison_is_one_within_its_spread() {
        let mut row = row("fused", 2, Pass::Forward, 2.0);
        assert_eq!(row.null_comparison(), None);
        row.again = Some(timing(2.0));
        assert_eq!(row.null_comparison(), Some((1.0, true)));
        row.again = Some(timing(2.2));
        assert_eq!(row.null_comparison(), Some((1.1, false)));
    }

    #[test]
    fn of_two_machines_only_what_differs_is_told() {
        let one = results(Vec::new()).machine;
        assert!(one.differences(&one).is_empty());
        let other = Machine { threads: 16, driver: Some("580.1".to_owned()), ..one.clone() };
        assert_eq!(one.differences(&other), ["driver none and 580.1", "threads 2 and 16"]);
    }

    #[test]
    fn versions_come_from_the_lock_file_and_the_path_does_not_get_out() {
        let versions = locked_versions(include_str!("../../Cargo.lock"));
        assert_eq!(versions["burn"], "0.21.0");
        assert_eq!(versions["cubecl"], "0.10.0");
        let arguments = ["/somewhere/benches", "sweep", "--preset", "smoke"].map(str::to_owned);
        assert_eq!(command_line(arguments.into_iter()), "benches sweep --preset smoke");
        let arguments = ["benches", "sweep", "--out", "two words\nand a line"].map(str::to_owned);
        assert_eq!(command_line(arguments.into_iter()), r#"benches sweep --out "two words\nand a line""#);
    }

    #[test]
    fn a_commit_is_one_word() {
        for right in ["0123abcdef", "0123abc-dirty", "v1.2", "a/branch"] {
            assert_eq!(commit(right).unwrap(), right);
        }
        for wrong in ["", "0123\nabc", "two words", "a|b", "`a`"] {
            assert!(commit(wrong).is_err(), "{wrong:?}");
        }
    }
}
