use burn::module::Module;
use burn::nn::{LayerNorm, LayerNormConfig};
use burn::tensor::Tensor;
use burn::tensor::backend::Backend;

use crate::init::LAYER_NORM_EPSILON;

/// Layer normalisation over the channels of an image, at every pixel.
#[derive(Module, Debug)]
pub struct LayerNorm2d<B: Backend> {
    /// The normalisation over the last axis.
    pub norm: LayerNorm<B>,
}

impl<B: Backend> LayerNorm2d<B> {
    pub(crate) fn new(channels: usize, device: &B::Device) -> Self {
        Self { norm: LayerNormConfig::new(channels).with_epsilon(LAYER_NORM_EPSILON).init(device) }
    }

    /// Applies the forward pass.
    ///
    /// # Shapes
    ///
    /// - x: `[batch, channels, height, width]`
    /// - output: `[batch, channels, height, width]`
    pub fn forward(&self, x: Tensor<B, 4>) -> Tensor<B, 4> {
        self.norm.forward(x.permute([0, 2, 3, 1])).permute([0, 3, 1, 2])
    }
}
