use burn::module::{Initializer, Module};
use burn::nn::PaddingConfig2d;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::tensor::Tensor;
use burn::tensor::backend::Backend;
use burn_wtconv::{DepthwiseConv2d, WtConv2d, WtConv2dConfig, WtConvBackend};

use crate::{ConfigError, Mixer, WtConvNextConfig, init};

/// The mixing layer of a block: what [`Mixer`] names.
#[derive(Module, Debug)]
pub enum Mixing<B: Backend> {
    /// A wavelet convolution.
    WtConv(WtConv2d<B>),
    /// A depthwise convolution by the kernels of the wavelet convolution.
    Depthwise(DepthwiseConv2d<B>),
    /// Burn's depthwise convolution.
    Conv2d(Conv2d<B>),
}

impl<B: Backend> Mixing<B> {
    pub(crate) fn try_new(
        config: &WtConvNextConfig,
        stage: usize,
        device: &B::Device,
    ) -> Result<Self, ConfigError> {
        let channels = config.dims[stage];
        let kernel_size = config.kernel_sizes[stage];
        Ok(match config.mixer {
            Mixer::WtConv => Self::WtConv(
                WtConv2dConfig::new(channels)
                    .with_kernel_size(kernel_size)
                    .with_levels(config.levels[stage])
                    .try_init(device)
                    .map_err(|source| ConfigError::WtConv { stage, source })?,
            ),
            Mixer::Depthwise => Self::Depthwise(DepthwiseConv2d {
                weight: init::WEIGHTS.init([channels, 1, kernel_size, kernel_size], device),
                bias: Some(Initializer::Zeros.init([channels], device)),
                stride: 1,
            }),
            Mixer::Conv2d => {
                let half = kernel_size / 2;
                let conv = Conv2dConfig::new([channels, channels], [kernel_size, kernel_size])
                    .with_groups(channels)
                    .with_padding(PaddingConfig2d::Explicit(half, half, half, half));
                Self::Conv2d(init::conv2d(conv, device))
            }
        })
    }
}

impl<B: WtConvBackend> Mixing<B> {
    /// Applies the forward pass.
    ///
    /// # Shapes
    ///
    /// - x: `[batch, channels, height, width]`
    /// - output: `[batch, channels, height, width]`
    pub fn forward(&self, x: Tensor<B, 4>) -> Tensor<B, 4> {
        match self {
            Self::WtConv(layer) => layer.forward(x),
            Self::Depthwise(layer) => layer.forward(x),
            Self::Conv2d(conv) => conv.forward(x),
        }
    }
}
