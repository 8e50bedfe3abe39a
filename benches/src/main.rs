//! Measurements: `cargo run --release -p benches -- --help`.

#![forbid(unsafe_code)]

mod depthwise;
mod timing;

use anyhow::bail;
use burn_wtconv::WtConvBackend;
use clap::{Parser, Subcommand, ValueEnum};

#[derive(Parser)]
#[command(name = "benches", about = "Measurements of wavelet convolutions against what they replace")]
struct Cli {
    /// The backend to measure; it has to be among the cargo features of the build
    #[arg(long, value_enum, default_value = "flex", global = true)]
    backend: BackendName,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Training step of a depthwise convolution: Burn's own conv2d, the reference operator, the layer
    Depthwise(depthwise::Options),
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum BackendName {
    Flex,
    Ndarray,
    Wgpu,
    Cuda,
}

fn main() -> anyhow::Result<()> {
    let cli = Cli::parse();
    match cli.backend {
        #[cfg(feature = "flex")]
        BackendName::Flex => run::<burn::backend::Flex>(&cli.command),
        #[cfg(feature = "ndarray")]
        BackendName::Ndarray => run::<burn::backend::NdArray>(&cli.command),
        #[cfg(feature = "wgpu")]
        BackendName::Wgpu => run::<burn::backend::Wgpu>(&cli.command),
        #[cfg(feature = "cuda")]
        BackendName::Cuda => run::<burn::backend::Cuda>(&cli.command),
        #[allow(unreachable_patterns)] // Reached by every backend whose feature is off.
        backend => {
            let feature = format!("{backend:?}").to_lowercase();
            bail!("this build has no {feature} backend: build it with --features {feature}")
        }
    }
}

fn run<B: WtConvBackend>(command: &Command) -> anyhow::Result<()> {
    match command {
        Command::Depthwise(options) => depthwise::run::<B>(options),
    }
}
