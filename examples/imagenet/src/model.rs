//! The network of a run: a name for its size, or explicit depths, widths, kernels and levels.

use crate::config::TrainConfig;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use wtconvnext::{Mixer, WtConvNextConfig};

/// How a block mixes space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Arch {
    /// Wavelet convolutions.
    Wtconvnext,
    /// 7x7 depthwise convolutions: the baseline.
    Convnext,
}

impl Arch {
    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Wtconvnext => "wtconvnext",
            Self::Convnext => "convnext",
        }
    }
}

/// Depths and widths by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Size {
    /// Depths 1,1,2,1 and dims 32,64,128,256: for small images on a CPU.
    Micro,
    /// Depths 3,3,9,3 and dims 96,192,384,768.
    Tiny,
    /// Depths 3,3,27,3 and dims 96,192,384,768.
    Small,
    /// Depths 3,3,27,3 and dims 128,256,512,1024.
    Base,
}

impl Size {
    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Micro => "micro",
            Self::Tiny => "tiny",
            Self::Small => "small",
            Self::Base => "base",
        }
    }
}

/// The model of a run with `num_classes` outputs.
pub fn model_config(config: &TrainConfig, num_classes: usize) -> WtConvNextConfig {
    let mut model = match (config.size, config.arch) {
        (Size::Micro, arch) => {
            let (mixer, kernel_size) = match arch {
                Arch::Wtconvnext => (Mixer::WtConv, 5),
                Arch::Convnext => (Mixer::Depthwise, 7),
            };
            WtConvNextConfig::new(num_classes)
                .with_mixer(mixer)
                .with_depths([1, 1, 2, 1])
                .with_dims([32, 64, 128, 256])
                .with_kernel_sizes([kernel_size; 4])
                .with_levels([2, 1, 1, 1])
        }
        (Size::Tiny, Arch::Wtconvnext) => WtConvNextConfig::tiny(num_classes),
        (Size::Small, Arch::Wtconvnext) => WtConvNextConfig::small(num_classes),
        (Size::Base, Arch::Wtconvnext) => WtConvNextConfig::base(num_classes),
        (Size::Tiny, Arch::Convnext) => WtConvNextConfig::convnext_tiny(num_classes),
        (Size::Small, Arch::Convnext) => WtConvNextConfig::convnext_small(num_classes),
        (Size::Base, Arch::Convnext) => WtConvNextConfig::convnext_base(num_classes),
    };
    if let Some(depths) = config.depths {
        model = model.with_depths(depths);
    }
    if let Some(dims) = config.dims {
        model = model.with_dims(dims);
    }
    if let Some(kernel_sizes) = config.kernel_sizes {
        model = model.with_kernel_sizes(kernel_sizes);
    }
    if let Some(levels) = config.levels {
        model = model.with_levels(levels);
    }
    model
        .with_layer_scale_init(config.layer_scale)
        .with_drop_path_rate(config.drop_path)
        .with_dropout(config.dropout)
}
