use burn::module::Module;
use burn::nn::Linear;
use burn::tensor::Tensor;
use burn::tensor::activation::gelu;
use burn::tensor::backend::Backend;

use crate::init;
use crate::pixels::{PixelLayer, per_pixel};

/// How many times wider than the block its hidden layer is.
const EXPANSION: usize = 4;

/// The two linear layers of a block, which mix the channels of a pixel, with an exact GELU between them.
///
/// Burn 0.21 differentiates the GELU exactly on Flex, and as its tanh approximation on other backends, which is off by
/// at most 9e-4.
#[derive(Module, Debug)]
pub struct Mlp<B: Backend> {
    /// From `channels` to `4 * channels`.
    pub fc1: Linear<B>,
    /// From `4 * channels` to `channels`.
    pub fc2: Linear<B>,
}

impl<B: Backend> Mlp<B> {
    pub(crate) fn new(channels: usize, device: &B::Device) -> Self {
        let hidden = EXPANSION * channels;
        Self { fc1: init::linear(channels, hidden, device), fc2: init::linear(hidden, channels, device) }
    }

    /// Applies the forward pass.
    ///
    /// # Shapes
    ///
    /// - x: `[batch, height, width, channels]`
    /// - output: `[batch, height, width, channels]`
    pub fn forward(&self, x: Tensor<B, 4>) -> Tensor<B, 4> {
        per_pixel(self, x)
    }
}

impl<B: Backend> PixelLayer<B> for Mlp<B> {
    fn apply<const D: usize>(&self, x: Tensor<B, D>) -> Tensor<B, D> {
        self.fc2.forward(gelu(self.fc1.forward(x)))
    }
}
