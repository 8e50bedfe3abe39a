use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::tensor::Tensor;
use burn::tensor::backend::Backend;

use crate::patches::conv_map;
use crate::{LayerNorm2d, init};

/// What stands between two stages: layer normalisation, then a 2x2 convolution of stride 2.
///
/// Both WTConvNeXt and ConvNeXt have it. (The average pool followed by a 1x1 convolution that the PyTorch code also
/// contains belongs to the shortcut of strided blocks, which neither model uses.) A last odd row or column is dropped.
#[derive(Module, Debug)]
pub struct Downsample<B: Backend> {
    /// The normalisation of the earlier stage's output.
    pub norm: LayerNorm2d<B>,
    /// The 2x2 convolution of stride 2.
    pub conv: Conv2d<B>,
}

impl<B: Backend> Downsample<B> {
    pub(crate) fn new(in_channels: usize, channels: usize, device: &B::Device) -> Self {
        let conv = Conv2dConfig::new([in_channels, channels], [2, 2]).with_stride([2, 2]);
        Self { norm: LayerNorm2d::new(in_channels, device), conv: init::conv2d(conv, device) }
    }

    /// Applies the forward pass.
    ///
    /// # Shapes
    ///
    /// - x: `[batch, height, width, in_channels]`
    /// - output: `[batch, height / 2, width / 2, channels]`
    pub fn forward(&self, x: Tensor<B, 4>) -> Tensor<B, 4> {
        conv_map(&self.conv, self.norm.forward(x))
    }
}
