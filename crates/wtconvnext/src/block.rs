use burn::module::{Initializer, Module, Param};
use burn::nn::{LayerNorm, LayerNormConfig};
use burn::tensor::Tensor;
use burn::tensor::backend::Backend;
use burn_wtconv::WtConvBackend;

use crate::init::LAYER_NORM_EPSILON;
use crate::{ConfigError, DropPath, Mixing, Mlp, WtConvNextConfig};

/// A ConvNeXt block: `x + drop_path(gamma * mlp(norm(mixing(x))))`.
#[derive(Module, Debug)]
pub struct Block<B: Backend> {
    /// Mixes the pixels of a channel.
    pub mixing: Mixing<B>,
    /// Normalises the channels of a pixel.
    pub norm: LayerNorm<B>,
    /// Mixes the channels of a pixel.
    pub mlp: Mlp<B>,
    /// The layer scale, of shape `[channels]`.
    pub gamma: Param<Tensor<B, 1>>,
    /// Stochastic depth.
    pub drop_path: DropPath,
}

impl<B: Backend> Block<B> {
    pub(crate) fn try_new(
        config: &WtConvNextConfig,
        stage: usize,
        block: usize,
        device: &B::Device,
    ) -> Result<Self, ConfigError> {
        let channels = config.dims[stage];
        Ok(Self {
            mixing: Mixing::try_new(config, stage, device)?,
            norm: LayerNormConfig::new(channels).with_epsilon(LAYER_NORM_EPSILON).init(device),
            mlp: Mlp::new(channels, device),
            gamma: Initializer::Constant { value: config.layer_scale_init }.init([channels], device),
            drop_path: DropPath { prob: config.drop_path_rate(stage, block) },
        })
    }
}

impl<B: WtConvBackend> Block<B> {
    /// Applies the forward pass.
    ///
    /// # Shapes
    ///
    /// - x: `[batch, height, width, channels]`
    /// - output: `[batch, height, width, channels]`
    pub fn forward(&self, x: Tensor<B, 4>) -> Tensor<B, 4> {
        let mixed = self.mixing.forward(x.clone().permute([0, 3, 1, 2]));
        let branch = self.mlp.forward(self.norm.forward(mixed.permute([0, 2, 3, 1])));
        x + self.drop_path.forward(branch * self.gamma.val().unsqueeze())
    }
}
