use burn::module::{Content, DisplaySettings, Module, ModuleDisplay};
use burn::tensor::backend::Backend;
use burn::tensor::{Distribution, Tensor};

/// Stochastic depth (Huang et al., *Deep Networks with Stochastic Depth*, arXiv 1603.09382).
///
/// While training, drops the whole tensor of a sample with probability `prob` and divides what is kept by `1 - prob`.
/// As Burn's [`Dropout`](burn::nn::Dropout) it is the identity on a backend without autodiff.
#[derive(Module, Clone, Debug)]
#[module(custom_display)]
pub struct DropPath {
    /// The probability with which a sample is dropped.
    pub prob: f64,
}

impl DropPath {
    /// Applies the forward pass.
    ///
    /// # Shapes
    ///
    /// - x: `[batch, any, ...]`
    /// - output: `[batch, any, ...]`
    pub fn forward<B: Backend, const D: usize>(&self, x: Tensor<B, D>) -> Tensor<B, D> {
        let device = x.device();
        if !B::ad_enabled(&device) || self.prob == 0.0 {
            return x;
        }

        let prob_keep = 1.0 - self.prob;
        let mut shape = [1; D];
        shape[0] = x.dims()[0];
        let kept = Tensor::random(shape, Distribution::Bernoulli(prob_keep), (&device, x.dtype()));
        x * (kept / prob_keep)
    }
}

impl ModuleDisplay for DropPath {
    fn custom_settings(&self) -> Option<DisplaySettings> {
        DisplaySettings::new().with_new_line_after_attribute(false).optional()
    }

    fn custom_content(&self, content: Content) -> Option<Content> {
        content.add("prob", &self.prob).optional()
    }
}
