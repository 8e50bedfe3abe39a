use burn::module::Module;
use burn::nn::{Dropout, DropoutConfig, LayerNorm, LayerNormConfig, Linear};
use burn::tensor::Tensor;
use burn::tensor::backend::Backend;

use crate::init::LAYER_NORM_EPSILON;
use crate::pixels::{PixelLayer, per_pixel};
use crate::{WtConvNextConfig, init};

/// The end of the model: global average pooling, layer normalisation, dropout and a linear classifier.
#[derive(Module, Debug)]
pub struct Head<B: Backend> {
    /// Normalises the pooled features.
    pub norm: LayerNorm<B>,
    /// Dropout in front of the classifier.
    pub dropout: Dropout,
    /// The classifier, if the model has one.
    pub fc: Option<Linear<B>>,
}

impl<B: Backend> Head<B> {
    pub(crate) fn new(config: &WtConvNextConfig, device: &B::Device) -> Self {
        let [.., channels] = config.dims;
        Self {
            norm: LayerNormConfig::new(channels).with_epsilon(LAYER_NORM_EPSILON).init(device),
            dropout: DropoutConfig::new(config.dropout).init(),
            fc: config.head.then(|| init::linear(channels, config.num_classes, device)),
        }
    }

    /// Applies the forward pass.
    ///
    /// # Shapes
    ///
    /// - x: `[batch, height, width, channels]`
    /// - output: `[batch, num_classes]`, or `[batch, channels]` without a classifier
    pub fn forward(&self, x: Tensor<B, 4>) -> Tensor<B, 2> {
        let [batch, _, _, channels] = x.dims();
        let x = x.mean_dims(&[1, 2]).reshape([batch, channels]);
        let x = self.norm.forward(x);
        match &self.fc {
            Some(fc) => {
                // An image is a map of one pixel here.
                let y = per_pixel(fc, self.dropout.forward(x).reshape([batch, 1, 1, channels]));
                let [_, _, _, classes] = y.dims();
                y.reshape([batch, classes])
            }
            None => x,
        }
    }
}

impl<B: Backend> PixelLayer<B> for Linear<B> {
    fn apply<const D: usize>(&self, x: Tensor<B, D>) -> Tensor<B, D> {
        self.forward(x)
    }
}
