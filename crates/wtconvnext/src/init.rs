//! The ConvNeXt initialisation: normal weights of standard deviation 0.02 and zero biases.
//!
//! Burn's layers draw their biases from the initialiser of their weights, so the biases are replaced here.

use burn::module::Initializer;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::{Linear, LinearConfig};
use burn::tensor::backend::Backend;

/// Every LayerNorm of the model; PyTorch's default would be 1e-5.
pub(crate) const LAYER_NORM_EPSILON: f64 = 1e-6;

/// Weights of convolutions and linear layers.
pub(crate) const WEIGHTS: Initializer = Initializer::Normal { mean: 0.0, std: 0.02 };

pub(crate) fn conv2d<B: Backend>(config: Conv2dConfig, device: &B::Device) -> Conv2d<B> {
    let channels_out = config.channels[1];
    let mut conv = config.with_bias(false).with_initializer(WEIGHTS).init(device);
    conv.bias = Some(Initializer::Zeros.init([channels_out], device));
    conv
}

pub(crate) fn linear<B: Backend>(d_input: usize, d_output: usize, device: &B::Device) -> Linear<B> {
    let config = LinearConfig::new(d_input, d_output).with_bias(false).with_initializer(WEIGHTS);
    let mut linear = config.init(device);
    linear.bias = Some(Initializer::Zeros.init([d_output], device));
    linear
}
