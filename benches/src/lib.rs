//! Measurements of wavelet convolutions against what they replace: `cargo xtask bench --help`.
//!
//! | module | holds |
//! |---|---|
//! | `cli` | the command line |
//! | `cases`, `operands` | what is measured, as plain data and as tensors |
//! | `measure`, `statistics`, `memory`, `copy`, `cost`, `oracle`, `cotangent` | time, memory, the floor, the model, the check |
//! | `target` | what differs between backends |
//! | `sweep`, `model`, `depthwise` | commands that need a device |
//! | `progress` | how far they are |
//! | `results`, `report` | what they leave behind |
//! | `compare`, `peers`, `readme`, `report`, `traffic` | commands that need none |
//!
//! The library is generic over the backend, so that only the binary instantiates any.

#![deny(unsafe_code)]

mod attempt;
mod cases;
mod cli;
mod compare;
mod copy;
mod cost;
mod cotangent;
mod depthwise;
mod measure;
mod memory;
mod model;
mod operands;
mod oracle;
mod output;
mod peers;
mod progress;
mod readme;
mod report;
mod results;
mod statistics;
mod sweep;
mod target;
mod traffic;

use std::process::ExitCode;
use std::sync::OnceLock;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

pub use cli::{BackendName, Cli, Command, OnBackend};
pub use target::Target;

/// Runs a command that needs a device on backend `B`.
///
/// # Errors
///
/// If the options are wrong, or nothing can be written. Rows that fail are no error.
pub fn run_on<B: Target>(command: &Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Sweep(on) => sweep::run::<B>(on.backend.name(), &on.options),
        Command::Model(on) => model::run::<B>(on.backend.name(), &on.options),
        Command::Depthwise(on) => depthwise::run::<B>(on.backend.name(), &on.options),
        _ => run_without_device(command),
    }
}

/// Runs a command that needs no device.
///
/// # Errors
///
/// If a file cannot be read or written, or the command needs a device.
pub fn run_without_device(command: &Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Compare(options) => compare::run(options),
        Command::Peers(options) => peers::run(options),
        Command::Readme(options) => readme::run(options),
        Command::Report(options) => report::run(options),
        Command::Traffic(options) => traffic::run(options),
        Command::Sweep(_) | Command::Model(_) | Command::Depthwise(_) => {
            anyhow::bail!("the command needs a backend")
        }
    }
}

/// Lets Ctrl-C end a run after the batch in progress, with everything written and exit status 130; one more a second
/// later ends it at once.
/// (`timeout` and some shells send one interrupt twice.)
///
/// # Errors
///
/// If the signal cannot be handled.
pub fn stop_on_interrupt() -> anyhow::Result<()> {
    static FIRST: OnceLock<Instant> = OnceLock::new();
    ctrlc::set_handler(|| {
        measure::INTERRUPTED.store(true, Ordering::Relaxed);
        let first = FIRST.get_or_init(|| {
            eprintln!("ending after the batch in progress; once more to end at once");
            Instant::now()
        });
        if first.elapsed() > Duration::from_secs(1) {
            std::process::exit(measure::INTERRUPTED_STATUS.into());
        }
    })?;
    Ok(())
}
