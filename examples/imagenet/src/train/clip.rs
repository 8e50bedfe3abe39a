//! Gradient clipping by the norm over all parameters.
//!
//! Burn's `GradientClipping` looks at one parameter at a time.

use burn::module::{AutodiffModule, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::Tensor;
use burn::tensor::backend::AutodiffBackend;

use super::gradients::scale;

/// Added to the norm before it divides, as PyTorch's `clip_grad_norm_` does.
const EPSILON: f64 = 1e-6;

/// Scales all gradients of `model` by `max_norm / norm` if their norm, the root of the sum of all squares, is above `max_norm`.
///
/// Nothing is read back from the device.
pub fn clip_by_norm<B: AutodiffBackend, M: AutodiffModule<B>>(
    gradients: &mut GradientsParams,
    model: &M,
    max_norm: f64,
) {
    let mut squares = SumOfSquares::<B> { gradients, sum: None };
    model.visit(&mut squares);
    if let Some(sum) = squares.sum {
        let factor = ((sum.sqrt() + EPSILON).recip() * max_norm).clamp_max(1.0);
        scale(gradients, model, factor);
    }
}

struct SumOfSquares<'a, B: AutodiffBackend> {
    gradients: &'a GradientsParams,
    sum: Option<Tensor<B::InnerBackend, 1>>,
}

impl<B: AutodiffBackend> ModuleVisitor<B> for SumOfSquares<'_, B> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        if let Some(gradient) = self.gradients.get::<B::InnerBackend, D>(param.id) {
            let square = gradient.square().sum();
            self.sum = Some(match self.sum.take() {
                Some(sum) => sum + square,
                None => square,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{TestAutodiff, TestBackend};
    use burn::nn::{Linear, LinearConfig};

    /// Gradients 3 and 0 of the weight and 4 of the bias, whose norm is 5, clipped.
    fn clipped(max_norm: f64) -> [f32; 3] {
        let device = Default::default();
        let linear: Linear<TestAutodiff> = LinearConfig::new(2, 1).init(&device);
        let (weight, bias) = (linear.weight.id, linear.bias.as_ref().unwrap().id);
        let mut gradients = GradientsParams::new();
        gradients.register(weight, Tensor::<TestBackend, 2>::from_data([[3.0], [0.0]], &device));
        gradients.register(bias, Tensor::<TestBackend, 1>::from_data([4.0], &device));
        clip_by_norm(&mut gradients, &linear, max_norm);
        let weight = gradients.remove::<TestBackend, 2>(weight).unwrap().into_data();
        let bias = gradients.remove::<TestBackend, 1>(bias).unwrap().into_data();
        let all: Vec<f32> = weight.iter::<f32>().chain(bias.iter::<f32>()).collect();
        all.try_into().unwrap()
    }

    #[track_caller]
    fn assert_close(values: [f32; 3], expected: [f32; 3]) {
        for (value, expected) in values.iter().zip(expected) {
            assert!((value - expected).abs() < 1e-5, "{value} is not {expected}");
        }
    }

    #[test]
    fn the_norm_is_over_all_parameters() {
        // A fifth and four fifths of (3, 0, 4); alone, the weight's norm of 3 would not be above 4.
        assert_close(clipped(1.0), [0.6, 0.0, 0.8]);
        assert_close(clipped(4.0), [2.4, 0.0, 3.2]);
    }

    #[test]
    fn small_gradients_stay_as_they_are() {
        assert_eq!(clipped(5.1), [3.0, 0.0, 4.0]);
        assert_eq!(clipped(1e9), [3.0, 0.0, 4.0]);
    }

    #[test]
    fn without_gradients_there_is_nothing_to_clip() {
        let linear: Linear<TestAutodiff> = LinearConfig::new(2, 1).init(&Default::default());
        let mut gradients = GradientsParams::new();
        clip_by_norm(&mut gradients, &linear, 1.0);
        assert!(gradients.is_empty());
    }
}
