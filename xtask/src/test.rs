//! `cargo xtask test`: every test that this machine can run, backend by backend.
//!
//! An integration test named after a backend (`tests/flex.rs`) holds that backend's tests; every other test runs once,
//! under the heading "host".

use std::fmt;
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};

use crate::cargo::{stream, workspace_command};

/// The test of every backend that passes wherever there is a device for it.
const PROBE: &str = "the_device_answers";

#[derive(Args)]
pub(crate) struct Options {
    /// Backends that must be available: "not available" becomes a failure
    #[arg(long, value_delimiter = ',', value_enum)]
    require: Vec<Backend>,
    /// Backends to test instead of flex, ndarray and wgpu
    #[arg(long, value_delimiter = ',', value_enum)]
    backend: Vec<Backend>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Backend {
    Flex,
    Ndarray,
    Wgpu,
    Cuda,
}

impl Backend {
    const ALL: [Self; 4] = [Self::Flex, Self::Ndarray, Self::Wgpu, Self::Cuda];

    fn name(self) -> &'static str {
        match self {
            Self::Flex => "flex",
            Self::Ndarray => "ndarray",
            Self::Wgpu => "wgpu",
            Self::Cuda => "cuda",
        }
    }
}

#[derive(Clone, Copy, Default)]
struct Count {
    passed: usize,
    failed: usize,
    skipped: usize,
}

impl Count {
    fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)
    }
}

enum Outcome {
    Run(Count),
    NotAvailable(String),
}

pub(crate) fn run(options: &Options) -> anyhow::Result<ExitCode> {
    let mut backends = options.backend.clone();
    if backends.is_empty() {
        backends = vec![Backend::Flex, Backend::Ndarray, Backend::Wgpu];
    }
    if let Some(missing) = options.require.iter().find(|backend| !backends.contains(backend)) {
        bail!("--require {} but only {:?} are tested", missing.name(), backends);
    }
    let names: Vec<&str> = backends.iter().map(|backend| backend.name()).collect();

    let mut outcomes = vec![("host", Outcome::Run(host_tests(&names)?))];
    for backend in backends {
        let outcome = match probe(backend, &names)? {
            Some(reason) => Outcome::NotAvailable(reason),
            None => Outcome::Run(tests(&names, &["--test", backend.name()])?),
        };
        outcomes.push((backend.name(), outcome));
    }

    println!();
    let mut total = Count::default();
    for (name, outcome) in &outcomes {
        match outcome {
            Outcome::Run(count) => {
                println!("{name}: run, {count}");
                total.add(*count);
            }
            Outcome::NotAvailable(reason) => {
                println!("{name}: not available ({reason})");
                if options.require.iter().any(|backend| backend.name() == *name) {
                    println!("{name}: required");
                    total.failed += 1;
                }
            }
        }
    }
    println!("{total}");
    Ok(if total.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Unit tests, documentation tests and the integration tests that are not named after a backend.
fn host_tests(backends: &[&str]) -> anyhow::Result<Count> {
    let mut targets = vec!["--lib".to_owned(), "--bins".to_owned(), "--examples".to_owned()];
    for name in integration_tests()? {
        if !Backend::ALL.iter().any(|backend| backend.name() == name) {
            targets.extend(["--test".to_owned(), name]);
        }
    }
    let targets: Vec<&str> = targets.iter().map(String::as_str).collect();
    let mut count = tests(backends, &targets)?;
    count.add(tests(backends, &["--doc"])?);
    Ok(count)
}

/// The names of the workspace's integration tests.
fn integration_tests() -> anyhow::Result<Vec<String>> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--format-version", "1"])
        .stderr(Stdio::inherit())
        .output()
        .context("cannot start cargo metadata")?;
    let metadata: serde_json::Value =
        serde_json::from_slice(&output.stdout).context("cannot read cargo metadata")?;
    let list = |value: &serde_json::Value| value.as_array().cloned().unwrap_or_default();
    let mut names: Vec<String> = list(&metadata["packages"])
        .iter()
        .flat_map(|package| list(&package["targets"]))
        .filter(|target| list(&target["kind"]).iter().any(|kind| kind == "test"))
        .filter_map(|target| target["name"].as_str().map(str::to_owned))
        .collect();
    names.sort();
    names.dedup();
    Ok(names)
}

/// Why `backend` cannot run here, if it cannot: its test [`PROBE`] fails.
fn probe(backend: Backend, backends: &[&str]) -> anyhow::Result<Option<String>> {
    let mut command = workspace_command("test", backends);
    let mut count = Count::default();
    let succeeded = stream(command.args(["--test", backend.name(), "--", PROBE]), |line| {
        if let Some(result) = parse_result(line) {
            count.add(result);
        }
    })?;
    match (succeeded, count.passed, count.failed) {
        (true, 1.., 0) => Ok(None),
        (_, _, 1..) => Ok(Some(format!("its test {PROBE} fails, see above"))),
        _ => bail!("the tests of {} do not build or have no test {PROBE}", backend.name()),
    }
}

/// Runs `cargo test` on `targets` and counts. A run that fails without a failed test counts as one.
fn tests(backends: &[&str], targets: &[&str]) -> anyhow::Result<Count> {
    let mut count = Count::default();
    let mut command = workspace_command("test", backends);
    let succeeded = stream(command.arg("--no-fail-fast").args(targets), |line| {
        if let Some(result) = parse_result(line) {
            count.add(result);
        }
    })?;
    if !succeeded && count.failed == 0 {
        count.failed = 1;
    }
    Ok(count)
}

/// The counts of libtest's closing line.
fn parse_result(line: &str) -> Option<Count> {
    let (_, counts) = line.strip_prefix("test result: ")?.split_once(". ")?;
    let number = |what: &str| {
        counts.split("; ").find_map(|part| part.strip_suffix(what)?.trim().parse::<usize>().ok())
    };
    Some(Count { passed: number("passed")?, failed: number("failed")?, skipped: number("ignored")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closing_lines_of_libtest_are_counted() {
        let line = "test result: FAILED. 12 passed; 3 failed; 1 ignored; 0 measured; 7 filtered out; finished in 0.1s";
        let count = parse_result(line).expect("a closing line");
        assert_eq!((count.passed, count.failed, count.skipped), (12, 3, 1));
        assert!(parse_result("test tests::something ... ok").is_none());
    }
}
