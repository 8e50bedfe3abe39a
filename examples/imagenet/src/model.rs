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

/// The most wavelet levels that a stage may be asked for: far more than the largest image has, and few enough for memory.
pub const MAX_LEVELS: usize = 16;

/// Sides of the stages' maps in pixels: the stem divides by four, each later stage by two, rounding down.
pub fn map_sides(input_size: u32) -> [usize; 4] {
    [4, 8, 16, 32].map(|stride| input_size as usize / stride)
}

/// The level of each stage whose subbands are single pixels. More levels only filter these again.
///
/// A level halves the side, rounding up; the first one makes single pixels even of a single pixel.
pub fn largest_useful_levels(input_size: u32) -> [usize; 4] {
    map_sides(input_size).map(|side| side.next_power_of_two().ilog2().max(1) as usize)
}

/// What to tell a user whose model has levels that add nothing to images of this size.
pub fn useless_levels(model: &WtConvNextConfig, input_size: u32) -> Option<String> {
    let useful = largest_useful_levels(input_size);
    let beyond = model.levels.iter().zip(useful).any(|(levels, useful)| *levels > useful);
    (model.mixer == Mixer::WtConv && beyond).then(|| {
        format!(
            "levels = {:?}: at input_size = {input_size} the stages' maps are {:?} pixels wide, and levels beyond {useful:?} add \
             nothing but time",
            model.levels,
            map_sides(input_size)
        )
    })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_useful_level_has_subbands_of_one_pixel() {
        assert_eq!(map_sides(224), [56, 28, 14, 7]);
        assert_eq!(largest_useful_levels(224), [6, 5, 4, 3]);
        assert_eq!((map_sides(32), largest_useful_levels(32)), ([8, 4, 2, 1], [3, 2, 1, 1]));
        for input_size in 32..=400 {
            for (mut side, levels) in map_sides(input_size).into_iter().zip(largest_useful_levels(input_size))
            {
                for level in 1..=levels {
                    side = side.div_ceil(2);
                    assert_eq!(side == 1, level == levels, "input_size {input_size}, level {level}: {side}");
                }
            }
        }
    }

    #[test]
    fn levels_that_add_nothing_are_told() {
        let tiny = WtConvNextConfig::tiny(2);
        assert_eq!(useless_levels(&tiny, 224), None);
        assert_eq!(
            useless_levels(&tiny, 64).unwrap(),
            "levels = [5, 4, 3, 2]: at input_size = 64 the stages' maps are [16, 8, 4, 2] pixels wide, and levels beyond \
             [4, 3, 2, 1] add nothing but time"
        );
        assert_eq!(useless_levels(&WtConvNextConfig::convnext_tiny(2), 64), None);
        let shipped = TrainConfig::for_shipped_images();
        assert_eq!(useless_levels(&model_config(&shipped, 10), shipped.input_size), None);
    }
}
