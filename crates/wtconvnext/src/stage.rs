use burn::module::Module;
use burn::tensor::Tensor;
use burn::tensor::backend::Backend;
use burn_wtconv::WtConvBackend;

use crate::{Block, ConfigError, Downsample, WtConvNextConfig};

/// A stage: blocks of one width and resolution.
#[derive(Module, Debug)]
pub struct Stage<B: Backend> {
    /// Halves the resolution first; the first stage has none.
    pub downsample: Option<Downsample<B>>,
    /// The blocks.
    pub blocks: Vec<Block<B>>,
}

impl<B: Backend> Stage<B> {
    pub(crate) fn try_new(
        config: &WtConvNextConfig,
        stage: usize,
        device: &B::Device,
    ) -> Result<Self, ConfigError> {
        let downsample =
            (stage > 0).then(|| Downsample::new(config.dims[stage - 1], config.dims[stage], device));
        let blocks = (0..config.depths[stage])
            .map(|block| Block::try_new(config, stage, block, device))
            .collect::<Result<_, _>>()?;
        Ok(Self { downsample, blocks })
    }
}

impl<B: WtConvBackend> Stage<B> {
    /// Applies the forward pass.
    ///
    /// # Shapes
    ///
    /// - x: `[batch, height, width, in_channels]`
    /// - output: `[batch, height / 2, width / 2, channels]`, or `[batch, height, width, channels]` in the first stage
    pub fn forward(&self, x: Tensor<B, 4>) -> Tensor<B, 4> {
        let x = match &self.downsample {
            Some(downsample) => downsample.forward(x),
            None => x,
        };
        self.blocks.iter().fold(x, |x, block| block.forward(x))
    }
}
