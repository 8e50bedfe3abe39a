//! Calls of cargo on the whole workspace with one set of features.
//!
//! Cargo unifies features over the selected packages. Every call therefore selects all of them with the same features,
//! so that nothing is built twice.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use anyhow::Context;

/// Packages that have tests for a backend, and the backends that they have as features. Every binary that can run on a
/// backend instantiates all of it, so that packages without such tests are built for their default backend alone.
const BACKEND_PACKAGES: [(&str, &[&str]); 4] = [
    ("burn-wtconv", &["flex", "ndarray", "wgpu", "cuda"]),
    ("wtconvnext", &["flex", "ndarray", "wgpu", "cuda"]),
    ("wtconv-kernels", &["wgpu", "cuda"]),
    ("benches", &["flex", "wgpu"]),
];

/// A call of `cargo SUBCOMMAND` on the workspace with the features of `backends`.
pub(crate) fn workspace_command(subcommand: &str, backends: &[&str]) -> Command {
    let features: Vec<String> = BACKEND_PACKAGES
        .iter()
        .flat_map(|(package, has)| {
            let chosen = backends.iter().filter(|backend| has.contains(backend));
            chosen.map(move |backend| format!("{package}/{backend}"))
        })
        .collect();
    let mut command = Command::new(env!("CARGO"));
    command.args([subcommand, "--workspace", "--features", &features.join(",")]);
    command
}

/// Runs `command`, shows its output as it comes and hands each line of standard output to `line`.
///
/// Returns whether it succeeded.
pub(crate) fn stream(command: &mut Command, mut line: impl FnMut(&str)) -> anyhow::Result<bool> {
    let mut child =
        command.stdout(Stdio::piped()).spawn().with_context(|| format!("cannot start {command:?}"))?;
    let stdout = child.stdout.take().context("standard output is piped")?;
    for text in BufReader::new(stdout).lines() {
        let text = text.context("cannot read the output of cargo")?;
        println!("{text}");
        line(&text);
    }
    Ok(child.wait().context("cannot wait for cargo")?.success())
}
