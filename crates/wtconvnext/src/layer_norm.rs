use burn::module::Module;
use burn::nn::{LayerNorm, LayerNormConfig};
use burn::tensor::Tensor;
use burn::tensor::backend::Backend;

use crate::init::LAYER_NORM_EPSILON;

/// Layer normalisation over the channels of a map, at every pixel: Burn's, under the parameter names of the records that have been
/// saved.
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
    /// - x: `[batch, height, width, channels]`
    /// - output: `[batch, height, width, channels]`
    pub fn forward(&self, x: Tensor<B, 4>) -> Tensor<B, 4> {
        self.norm.forward(x)
    }
}
