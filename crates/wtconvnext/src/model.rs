use burn::module::Module;
use burn::tensor::Tensor;
use burn::tensor::backend::Backend;
use burn_wtconv::WtConvBackend;

use crate::input::MIN_SIDE;
use crate::{ConfigError, Head, InputError, Stage, Stem, WtConvNextConfig};

/// A WTConvNeXt or ConvNeXt image classifier.
///
/// Should be created with [`WtConvNextConfig`] or [`load_official`](crate::load_official).
#[derive(Module, Debug)]
pub struct WtConvNext<B: Backend> {
    /// Turns the image into patches.
    pub stem: Stem<B>,
    /// The four stages, each at half the resolution of the one before.
    pub stages: [Stage<B>; 4],
    /// Turns the last stage's map into logits.
    pub head: Head<B>,
}

impl<B: Backend> WtConvNext<B> {
    pub(crate) fn try_new(config: &WtConvNextConfig, device: &B::Device) -> Result<Self, ConfigError> {
        let stage = |index| Stage::try_new(config, index, device);
        Ok(Self {
            stem: Stem::new(config.in_channels, config.dims[0], device),
            stages: [stage(0)?, stage(1)?, stage(2)?, stage(3)?],
            head: Head::new(config, device),
        })
    }

    /// Whether the model takes these images.
    ///
    /// # Shapes
    ///
    /// - x: `[batch, in_channels, height, width]`
    ///
    /// # Errors
    ///
    /// An [`InputError`] with what the model expects and what it got.
    pub fn check_input(&self, x: &Tensor<B, 4>) -> Result<(), InputError> {
        let [_, channels, height, width] = x.dims();
        let weight = self.stem.conv.weight.val();
        let [_, in_channels, _, _] = weight.dims();
        if channels != in_channels {
            return Err(InputError::Channels { expected: in_channels, got: channels });
        }
        if height < MIN_SIDE || width < MIN_SIDE {
            return Err(InputError::TooSmall { height, width });
        }
        if x.dtype() != weight.dtype() {
            return Err(InputError::DType { expected: weight.dtype(), got: x.dtype() });
        }
        if x.device() != weight.device() {
            let [expected, got] = [weight.device(), x.device()].map(|device| format!("{device:?}"));
            return Err(InputError::Device { expected, got });
        }
        Ok(())
    }
}

impl<B: WtConvBackend> WtConvNext<B> {
    /// Applies the forward pass.
    ///
    /// # Shapes
    ///
    /// - x: `[batch, in_channels, height, width]`
    /// - output: the logits `[batch, num_classes]`, or without a head the pooled, normalised features
    ///   `[batch, dims[3]]`
    ///
    /// # Panics
    ///
    /// With the text of the [`InputError`] that [`check_input`](Self::check_input) returns.
    pub fn forward(&self, x: Tensor<B, 4>) -> Tensor<B, 2> {
        let x = self.stem(x);
        let x = self.stages.iter().fold(x, |x, stage| stage.forward(x));
        self.head.forward(x)
    }

    /// The outputs of the four stages, as detection and segmentation heads take them (not normalised).
    ///
    /// # Shapes
    ///
    /// - x: `[batch, in_channels, height, width]`
    /// - output: `[batch, dims[i], height / (4 * 2^i), width / (4 * 2^i)]` for stage `i`, each division rounded down
    ///
    /// # Panics
    ///
    /// With the text of the [`InputError`] that [`check_input`](Self::check_input) returns.
    pub fn forward_features(&self, x: Tensor<B, 4>) -> [Tensor<B, 4>; 4] {
        let mut x = self.stem(x);
        self.stages.each_ref().map(|stage| {
            x = stage.forward(x.clone());
            x.clone().permute([0, 3, 1, 2])
        })
    }

    fn stem(&self, x: Tensor<B, 4>) -> Tensor<B, 4> {
        if let Err(error) = self.check_input(&x) {
            panic!("WtConvNext: {error}");
        }
        self.stem.forward(x)
    }
}
