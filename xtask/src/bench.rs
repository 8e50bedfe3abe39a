//! `cargo xtask bench`: builds the measuring program in release for the backend that is asked for, and hands over to it.

use std::process::{Command, ExitCode};

use anyhow::Context;
use clap::Args;

/// Backends that the program has as cargo features.
const BACKENDS: [&str; 4] = ["flex", "ndarray", "wgpu", "cuda"];

#[derive(Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Options {
    /// Commands and options of the program; --help lists them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

pub(crate) fn run(options: &Options) -> anyhow::Result<ExitCode> {
    let mut command = Command::new(env!("CARGO"));
    command.args(["run", "--release", "--package", "benches", "--bin", "benches"]);
    command.args(["--no-default-features", "--features", feature(&options.arguments), "--"]);
    command.args(&options.arguments);
    hand_over(command)
}

/// The feature of the backend among `arguments`. Commands without a device, and mistakes, get the one that builds soonest.
fn feature(arguments: &[String]) -> &'static str {
    let asked = arguments.iter().enumerate().find_map(|(index, argument)| {
        argument.strip_prefix("--backend=").or_else(|| {
            (argument == "--backend").then(|| arguments.get(index + 1).map(String::as_str)).flatten()
        })
    });
    BACKENDS.into_iter().find(|backend| asked == Some(backend)).unwrap_or("flex")
}

/// Becomes `command`, so that Ctrl-C reaches the program alone and it can write what it has.
#[cfg(unix)]
fn hand_over(mut command: Command) -> anyhow::Result<ExitCode> {
    use std::os::unix::process::CommandExt;

    let error = command.exec();
    Err(error).context("cannot start cargo")
}

#[cfg(not(unix))]
fn hand_over(mut command: Command) -> anyhow::Result<ExitCode> {
    let status = command.status().context("cannot start cargo")?;
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(code.map_or(ExitCode::FAILURE, ExitCode::from))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_feature_is_that_of_the_backend() {
        let feature = |line: &str| feature(&line.split(' ').map(str::to_owned).collect::<Vec<_>>());
        assert_eq!(feature("sweep --backend cuda --preset paper"), "cuda");
        assert_eq!(feature("sweep --preset paper --backend=wgpu"), "wgpu");
        assert_eq!(feature("compare a.json b.json"), "flex");
        assert_eq!(feature("sweep --backend"), "flex");
        assert_eq!(feature("sweep --backend nonsense"), "flex");
    }
}
