use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::tensor::Tensor;
use burn::tensor::backend::Backend;

use crate::patches::conv_image;
use crate::{LayerNorm2d, init};

/// The patch stem: one vector for every 4x4 patch of the image, then layer normalisation.
///
/// Rows and columns beyond the last whole patch are dropped.
#[derive(Module, Debug)]
pub struct Stem<B: Backend> {
    /// The 4x4 convolution of stride 4.
    pub conv: Conv2d<B>,
    /// The normalisation of the patches.
    pub norm: LayerNorm2d<B>,
}

impl<B: Backend> Stem<B> {
    pub(crate) fn new(in_channels: usize, channels: usize, device: &B::Device) -> Self {
        let conv = Conv2dConfig::new([in_channels, channels], [4, 4]).with_stride([4, 4]);
        Self { conv: init::conv2d(conv, device), norm: LayerNorm2d::new(channels, device) }
    }

    /// Applies the forward pass.
    ///
    /// # Shapes
    ///
    /// - x: `[batch, in_channels, height, width]`
    /// - output: `[batch, height / 4, width / 4, channels]`
    pub fn forward(&self, x: Tensor<B, 4>) -> Tensor<B, 4> {
        self.norm.forward(conv_image(&self.conv, x))
    }
}
