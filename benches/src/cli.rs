//! The command line.

use clap::{Parser, Subcommand, ValueEnum};

use crate::{compare, depthwise, model, peers, readme, report, sweep, traffic};

/// Measurements of wavelet convolutions against what they replace.
#[derive(Clone, Debug, Parser)]
#[command(name = "benches", version, max_term_width = 110)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// Time every combination of shape, levels, dtype, layout, pass and route; write JSON, plots and a report
    ///
    /// Every row is in results.json before the next one begins. Exit status: 0, also if --time-budget left rows out;
    /// 1 if the layer was wrong; 130 after Ctrl-C, which keeps what was measured.
    Sweep(OnBackend<sweep::Options>),
    /// Time WTConvNeXt and ConvNeXt end to end, inference and training
    Model(OnBackend<model::Options>),
    /// Time the training step of a depthwise convolution: Burn's own conv2d, the reference operator, the layer
    ///
    /// Rows, files and exit status are those of a sweep.
    Depthwise(OnBackend<depthwise::Options>),
    /// Show what rows and models became slower or bigger between two runs
    Compare(compare::Options),
    /// Put several runs side by side, such as this project's and PyTorch's
    Peers(peers::Options),
    /// Draw the pictures and report.md of recorded runs again
    Report(report::Options),
    /// Print the model of the memory traffic; needs no device
    Traffic(traffic::Options),
    /// Write the marked sections of the README from recorded runs
    Readme(readme::Options),
}

/// Options of a command that needs a device.
#[derive(Clone, Debug, clap::Args)]
pub struct OnBackend<O: clap::Args> {
    /// The backend to measure; it has to be among the cargo features of the build
    #[arg(long, value_enum, default_value_t = BackendName::Flex)]
    pub backend: BackendName,
    /// The command's own.
    #[command(flatten)]
    pub options: O,
}

/// Burn's backends by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BackendName {
    /// Burn's CPU backend
    Flex,
    /// CPU through the ndarray crate
    Ndarray,
    /// GPU through WebGPU or Vulkan
    Wgpu,
    /// NVIDIA GPU
    Cuda,
}

impl BackendName {
    /// As on the command line, and as the cargo feature.
    pub fn name(self) -> &'static str {
        match self {
            Self::Flex => "flex",
            Self::Ndarray => "ndarray",
            Self::Wgpu => "wgpu",
            Self::Cuda => "cuda",
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_sweep_takes_lists() {
        let line = "benches sweep --backend cuda --shape 1x2x3x4,5x6x7x8 --levels 1,2 --dtype f32,f16 \
                    --layout nchw,nhwc --pass train --route fused,depthwise --time-budget 10m --out x";
        assert!(Cli::try_parse_from(line.split_whitespace()).is_ok());
        let both = "benches sweep --preset paper --shape 1x2x3x4";
        assert!(Cli::try_parse_from(both.split_whitespace()).is_err());
        // A preset has levels and filters of its own, also the one that is taken where none is named.
        for lost in [
            "benches sweep --levels 5",
            "benches sweep --kernel-size 3",
            "benches sweep --preset smoke --levels 5",
        ] {
            assert!(Cli::try_parse_from(lost.split_whitespace()).is_err(), "{lost}");
        }
    }
}
