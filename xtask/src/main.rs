//! Automation of the repository: `cargo xtask --help`.

#![forbid(unsafe_code)]

mod bench;
mod cargo;
mod test;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Automation of the repository")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Measure: sweeps, models, comparisons, the README's tables (bench --help)
    Bench(bench::Options),
    /// Run every test that this machine can run, backend by backend
    Test(test::Options),
}

fn main() -> anyhow::Result<ExitCode> {
    match Cli::parse().command {
        Command::Bench(options) => bench::run(&options),
        Command::Test(options) => test::run(&options),
    }
}
