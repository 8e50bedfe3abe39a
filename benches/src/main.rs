//! Measurements: `cargo xtask bench --help`, or this binary alone.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use anyhow::bail;
use benches::{BackendName, Cli, Command, run_on, run_without_device, stop_on_interrupt};
use clap::Parser;

fn main() -> anyhow::Result<ExitCode> {
    let command = Cli::parse().command;
    let backend = match &command {
        Command::Sweep(on) => on.backend,
        Command::Model(on) => on.backend,
        Command::Depthwise(on) => on.backend,
        _ => return run_without_device(&command),
    };
    stop_on_interrupt()?;
    match backend {
        #[cfg(feature = "flex")]
        BackendName::Flex => run_on::<burn::backend::Flex>(&command),
        #[cfg(feature = "ndarray")]
        BackendName::Ndarray => run_on::<burn::backend::NdArray>(&command),
        #[cfg(feature = "wgpu")]
        BackendName::Wgpu => run_on::<burn::backend::Wgpu>(&command),
        #[cfg(feature = "cuda")]
        BackendName::Cuda => run_on::<burn::backend::Cuda>(&command),
        #[allow(unreachable_patterns, reason = "reached by every backend whose feature is off")]
        backend => bail!("this build has no {0} backend: build it with --features {0}", backend.name()),
    }
}
