use std::fmt;
use std::str::FromStr;

use burn::config::Config;
use burn::tensor::backend::Backend;
use burn_wtconv::WtConvError;
use serde::{Deserialize, Serialize};

use crate::WtConvNext;

/// The layer that mixes the pixels of a channel in every block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mixer {
    /// A wavelet convolution, as in WTConvNeXt.
    WtConv,
    /// A depthwise convolution, as in ConvNeXt.
    Depthwise,
    /// The same by Burn's `Conv2d`, which is slow to train on a GPU: Burn 0.21 computes its gradient channel by channel.
    Conv2d,
}

impl fmt::Display for Mixer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::WtConv => "wavelet convolution",
            Self::Depthwise => "depthwise convolution",
            Self::Conv2d => "depthwise convolution by Burn's Conv2d",
        })
    }
}

/// Configuration of a [`WtConvNext`], created with [`init`](WtConvNextConfig::init).
///
/// The defaults are WTConvNeXt-T. Arrays have one entry for each of the four stages.
#[derive(Config, Debug, PartialEq)]
pub struct WtConvNextConfig {
    /// Number of classes, the width of the logits. Not used without a head.
    pub num_classes: usize,
    /// Channels of the input images.
    #[config(default = "3")]
    pub in_channels: usize,
    /// Blocks of each stage.
    #[config(default = "[3, 3, 9, 3]")]
    pub depths: [usize; 4],
    /// Channels of each stage.
    #[config(default = "[96, 192, 384, 768]")]
    pub dims: [usize; 4],
    /// Side of the filters of each stage's mixing layers.
    #[config(default = "[5, 5, 5, 5]")]
    pub kernel_sizes: [usize; 4],
    /// Wavelet levels of each stage. Used by [`Mixer::WtConv`] only.
    #[config(default = "[5, 4, 3, 2]")]
    pub levels: [usize; 4],
    /// Mixing layer of every block.
    #[config(default = "Mixer::WtConv")]
    pub mixer: Mixer,
    /// Rate of stochastic depth in the last block. It grows linearly from 0 in the first one. Default: 0.0
    #[config(default = "0.0")]
    pub drop_path_rate: f64,
    /// Probability of dropout in front of the classifier. Default: 0.0
    #[config(default = "0.0")]
    pub dropout: f64,
    /// Initial value of the layer scales. Default: 1e-6
    #[config(default = "1e-6")]
    pub layer_scale_init: f64,
    /// Whether the model ends in a linear classifier. Without it `forward` returns the pooled, normalised features.
    #[config(default = "true")]
    pub head: bool,
}

/// The models that [`WtConvNextConfig::named`] knows.
const NAMES: [&str; 6] =
    ["wtconvnext-t", "wtconvnext-s", "wtconvnext-b", "convnext-t", "convnext-s", "convnext-b"];

impl WtConvNextConfig {
    /// WTConvNeXt-T, the same as [`new`](Self::new): 30.4 million parameters with 1,000 classes.
    pub fn tiny(num_classes: usize) -> Self {
        Self::new(num_classes)
    }

    /// WTConvNeXt-S: 54.0 million parameters with 1,000 classes.
    pub fn small(num_classes: usize) -> Self {
        Self::new(num_classes).with_depths([3, 3, 27, 3])
    }

    /// WTConvNeXt-B: 93.6 million parameters with 1,000 classes.
    pub fn base(num_classes: usize) -> Self {
        Self::new(num_classes).with_depths([3, 3, 27, 3]).with_dims([128, 256, 512, 1024])
    }

    /// ConvNeXt-T: 28.6 million parameters with 1,000 classes.
    pub fn convnext_tiny(num_classes: usize) -> Self {
        Self::tiny(num_classes).into_convnext()
    }

    /// ConvNeXt-S: 50.2 million parameters with 1,000 classes.
    pub fn convnext_small(num_classes: usize) -> Self {
        Self::small(num_classes).into_convnext()
    }

    /// ConvNeXt-B: 88.6 million parameters with 1,000 classes.
    pub fn convnext_base(num_classes: usize) -> Self {
        Self::base(num_classes).into_convnext()
    }

    fn into_convnext(self) -> Self {
        self.with_mixer(Mixer::Depthwise).with_kernel_sizes([7; 4])
    }

    /// The model of that name: `wtconvnext-t`, `-s`, `-b` or `convnext-t`, `-s`, `-b`.
    ///
    /// # Errors
    ///
    /// [`ConfigError::UnknownName`], which lists the names.
    pub fn named(name: &str, num_classes: usize) -> Result<Self, ConfigError> {
        match name {
            "wtconvnext-t" => Ok(Self::tiny(num_classes)),
            "wtconvnext-s" => Ok(Self::small(num_classes)),
            "wtconvnext-b" => Ok(Self::base(num_classes)),
            "convnext-t" => Ok(Self::convnext_tiny(num_classes)),
            "convnext-s" => Ok(Self::convnext_small(num_classes)),
            "convnext-b" => Ok(Self::convnext_base(num_classes)),
            _ => Err(ConfigError::UnknownName { name: name.to_owned() }),
        }
    }

    /// Initialises a [`WtConvNext`] on the device.
    ///
    /// # Panics
    ///
    /// If the configuration is invalid, with the text of the [`ConfigError`] that [`try_init`](Self::try_init) returns.
    pub fn init<B: Backend>(&self, device: &B::Device) -> WtConvNext<B> {
        self.try_init(device).unwrap_or_else(|error| panic!("invalid WtConvNextConfig: {error}"))
    }

    /// Initialises a [`WtConvNext`] on the device.
    ///
    /// Weights of convolutions and linear layers are drawn from a normal distribution of standard deviation 0.02, and
    /// biases are 0. (The PyTorch code truncates the distribution at ±2, a hundred standard deviations, which never
    /// happens.) Wavelet convolutions are initialised as [`WtConv2dConfig`](burn_wtconv::WtConv2dConfig) does.
    ///
    /// # Errors
    ///
    /// A [`ConfigError`] that names the field, what it must be and what it is.
    pub fn try_init<B: Backend>(&self, device: &B::Device) -> Result<WtConvNext<B>, ConfigError> {
        self.validate()?;
        WtConvNext::try_new(self, device)
    }

    /// Rate of stochastic depth of every block: linear in the index of the block over the whole model.
    pub(crate) fn drop_path_rate(&self, stage: usize, block: usize) -> f64 {
        let index = self.depths[..stage].iter().sum::<usize>() + block;
        let last = self.depths.iter().sum::<usize>() - 1;
        if last == 0 { 0.0 } else { self.drop_path_rate * index as f64 / last as f64 }
    }

    fn validate(&self) -> Result<(), ConfigError> {
        if self.head && self.num_classes == 0 {
            return Err(ConfigError::NoClasses);
        }
        at_least_one("in_channels", self.in_channels)?;
        for stage in 0..4 {
            at_least_one(format!("depths[{stage}]"), self.depths[stage])?;
            at_least_one(format!("dims[{stage}]"), self.dims[stage])?;
            at_least_one(format!("kernel_sizes[{stage}]"), self.kernel_sizes[stage])?;
            if self.mixer == Mixer::Conv2d && self.kernel_sizes[stage].is_multiple_of(2) {
                return Err(ConfigError::EvenKernel { stage, kernel_size: self.kernel_sizes[stage] });
            }
        }
        probability("drop_path_rate", self.drop_path_rate)?;
        probability("dropout", self.dropout)?;
        if !self.layer_scale_init.is_finite() {
            return Err(ConfigError::LayerScale { value: self.layer_scale_init });
        }
        Ok(())
    }
}

fn at_least_one(field: impl Into<String>, value: usize) -> Result<(), ConfigError> {
    if value == 0 { Err(ConfigError::Zero { field: field.into() }) } else { Ok(()) }
}

fn probability(field: &'static str, value: f64) -> Result<(), ConfigError> {
    if (0.0..1.0).contains(&value) { Ok(()) } else { Err(ConfigError::Probability { field, value }) }
}

/// Parses the names of [`named`](WtConvNextConfig::named), with the 1,000 classes of ImageNet.
impl FromStr for WtConvNextConfig {
    type Err = ConfigError;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Self::named(name, 1000)
    }
}

/// Why a [`WtConvNextConfig`] is not a model.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A classifier with no classes.
    #[error(
        "`num_classes` must be at least 1, got 0 (for a model without a classifier, set `head` to false)"
    )]
    NoClasses,
    /// A size that is 0.
    #[error("`{field}` must be at least 1, got 0")]
    Zero {
        /// The field, with the stage's index where it has one.
        field: String,
    },
    /// Burn's convolution pads evenly, which an even filter has no centre for.
    #[error("`kernel_sizes[{stage}]` must be odd for Burn's convolution, got {kernel_size}")]
    EvenKernel {
        /// The stage's index.
        stage: usize,
        /// The configured kernel size.
        kernel_size: usize,
    },
    /// A probability that drops everything, or is none.
    #[error("`{field}` must be at least 0 and below 1, got {value}")]
    Probability {
        /// The field.
        field: &'static str,
        /// The configured value.
        value: f64,
    },
    /// A layer scale that is not a number.
    #[error("`layer_scale_init` must be finite, got {value}")]
    LayerScale {
        /// The configured value.
        value: f64,
    },
    /// A stage's wavelet convolution is invalid.
    #[error("stage {stage}: {source}")]
    WtConv {
        /// The stage's index.
        stage: usize,
        /// What the layer says.
        source: WtConvError,
    },
    /// No model has this name.
    #[error("no model is named `{name}`, expected one of {}", NAMES.join(", "))]
    UnknownName {
        /// The unknown name.
        name: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_known() {
        for name in NAMES {
            let config: WtConvNextConfig = name.parse().unwrap();
            assert_eq!(config.num_classes, 1000);
            assert_eq!(config.mixer == Mixer::Depthwise, name.starts_with("convnext"), "{name}");
        }
        let error = WtConvNextConfig::named("resnet-50", 10).unwrap_err();
        assert_eq!(
            error.to_string(),
            "no model is named `resnet-50`, expected one of wtconvnext-t, wtconvnext-s, wtconvnext-b, convnext-t, \
             convnext-s, convnext-b"
        );
    }

    #[test]
    fn drop_path_grows_linearly_over_all_blocks() {
        let config = WtConvNextConfig::new(10).with_depths([1, 2, 1, 1]).with_drop_path_rate(0.2);
        let rates = [(0, 0), (1, 0), (1, 1), (2, 0), (3, 0)].map(|(s, b)| config.drop_path_rate(s, b));
        for (rate, expected) in rates.into_iter().zip([0.0, 0.05, 0.1, 0.15, 0.2]) {
            assert!((rate - expected).abs() < 1e-15, "expected {expected}, got {rate}");
        }
    }

    #[test]
    fn errors_name_the_field_and_the_value() {
        let config = WtConvNextConfig::new(10);
        let cases = [
            (config.clone().with_in_channels(0), "`in_channels` must be at least 1, got 0"),
            (config.clone().with_depths([3, 0, 9, 3]), "`depths[1]` must be at least 1, got 0"),
            (config.clone().with_dims([8, 8, 8, 0]), "`dims[3]` must be at least 1, got 0"),
            (config.clone().with_kernel_sizes([0, 5, 5, 5]), "`kernel_sizes[0]` must be at least 1, got 0"),
            (
                WtConvNextConfig::convnext_tiny(10).with_mixer(Mixer::Conv2d).with_kernel_sizes([7, 7, 4, 7]),
                "`kernel_sizes[2]` must be odd for Burn's convolution, got 4",
            ),
            (
                config.clone().with_drop_path_rate(1.0),
                "`drop_path_rate` must be at least 0 and below 1, got 1",
            ),
            (config.clone().with_dropout(-0.5), "`dropout` must be at least 0 and below 1, got -0.5"),
            (config.with_layer_scale_init(f64::INFINITY), "`layer_scale_init` must be finite, got inf"),
            (
                WtConvNextConfig::new(0),
                "`num_classes` must be at least 1, got 0 (for a model without a classifier, set `head` to false)",
            ),
        ];
        for (config, expected) in cases {
            assert_eq!(config.validate().unwrap_err().to_string(), expected);
        }
        assert!(WtConvNextConfig::new(0).with_head(false).validate().is_ok());
    }

    #[test]
    fn survives_serialisation() {
        let config = WtConvNextConfig::convnext_small(7).with_drop_path_rate(0.4).with_head(false);
        let json = serde_json::to_string(&config).unwrap();
        assert_eq!(serde_json::from_str::<WtConvNextConfig>(&json).unwrap(), config);
    }
}
