//! One update: the gradient of a mean over the images of several batches, and the step.

use burn::module::{AutodiffModule, Module};
use burn::optim::{GradientsAccumulator, GradientsParams, Optimizer};
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{Int, Tensor};
use std::num::NonZeroUsize;
use wtconvnext::WtConvNext;

use super::clip::clip_by_norm;
use super::dtype::ForwardDtype;
use super::gradients::scale;
use super::loss::{cross_entropy, mixed_targets, soft_cross_entropy};
use crate::backend::TrainBackend;
use crate::data::batch::ImageBatch;

/// What the metrics need to know about a batch.
#[derive(Clone, Debug)]
pub struct BatchOutput<B: Backend> {
    /// `[batch]`
    pub losses: Tensor<B, 1>,
    /// `[batch, classes]`
    pub logits: Tensor<B, 2>,
    /// `[batch]`
    pub labels: Tensor<B, 1, Int>,
}

/// Sums gradients over the batches of an update, so that what comes out is the gradient of the mean loss over all its
/// images: `k` batches of `b` images give what one batch of `k * b` gives, also where the batches differ in size.
///
/// (Burn's `GradientsAccumulator` alone adds the gradients of the batches' means.)
pub struct UpdateGradients<B: AutodiffBackend> {
    gradients: GradientsAccumulator<WtConvNext<B>>,
    dtype: ForwardDtype,
    /// Images that the update should have.
    planned: usize,
    /// Images that went through the model.
    seen: usize,
}

impl<B: TrainBackend> UpdateGradients<B> {
    /// An update of `planned` images. Batches go through the model in `dtype`; losses and gradients are f32.
    pub fn new(planned: usize, dtype: ForwardDtype) -> Self {
        Self { gradients: GradientsAccumulator::new(), dtype, planned, seen: 0 }
    }

    /// Adds one batch, forward and backward. `lambda` is the share that each image kept of itself, if they were mixed.
    pub fn add(
        &mut self,
        model: &WtConvNext<B>,
        batch: ImageBatch<B>,
        lambda: Option<f64>,
        label_smoothing: f64,
    ) -> BatchOutput<B::InnerBackend> {
        let ImageBatch { images, labels } = batch;
        let [count] = labels.dims();
        self.seen += count;
        let logits = self.dtype.forward(model, images);
        let losses = match lambda {
            None => cross_entropy(logits.clone(), labels.clone(), label_smoothing),
            Some(lambda) => {
                let [_, classes] = logits.dims();
                let targets = mixed_targets(labels.clone(), classes, lambda, label_smoothing);
                soft_cross_entropy(logits.clone(), targets)
            }
        };
        let loss = losses.clone().sum() / self.planned as f64;
        let gradients = GradientsParams::from_grads(loss.backward(), model);
        self.gradients.accumulate(model, gradients);
        BatchOutput { losses: losses.inner(), logits: logits.inner(), labels: labels.inner() }
    }

    /// The gradient of the mean over all images added, or `None` if there were none.
    pub fn finish(self, model: &WtConvNext<B>) -> Option<GradientsParams> {
        NonZeroUsize::new(self.seen).map(|seen| self.finish_part(model, seen))
    }

    /// This device's part of the gradient of the mean over the `seen` images that went through the model on all devices. The
    /// sum of the parts is the gradient. A device without an image of its own has no gradients.
    pub fn finish_part(mut self, model: &WtConvNext<B>, seen: NonZeroUsize) -> GradientsParams {
        let mut gradients = self.gradients.grads();
        if seen.get() != self.planned {
            // Some images could not be read: the mean is over those that could.
            let factor = self.planned as f64 / seen.get() as f64;
            let factor = Tensor::from_data([factor as f32], &model.devices()[0]);
            scale(&mut gradients, model, factor);
        }
        gradients
    }
}

/// Clips `gradients` to a norm of `clip_grad` over all parameters (0 for any), and steps with them.
pub fn clip_and_step<B: AutodiffBackend, M: AutodiffModule<B>>(
    optimizer: &mut impl Optimizer<M, B>,
    lr: f64,
    model: M,
    mut gradients: GradientsParams,
    clip_grad: f64,
) -> M {
    if clip_grad > 0.0 {
        clip_by_norm(&mut gradients, &model, clip_grad);
    }
    optimizer.step(lr, model, gradients)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TestAutodiff;
    use crate::data::batch::{ImageBatcher, Sample};
    use burn::data::dataloader::batcher::Batcher;
    use burn::module::{ModuleVisitor, Param};
    use burn::nn::{Linear, LinearConfig};
    use burn::optim::SgdConfig;
    use burn::tensor::backend::BackendTypes;
    use wtconvnext::WtConvNextConfig;

    type Device = <TestAutodiff as BackendTypes>::Device;
    type Model = WtConvNext<TestAutodiff>;

    const SIZE: usize = 32;

    fn model(device: &Device) -> Model {
        WtConvNextConfig::new(3)
            .with_depths([1, 1, 1, 1])
            .with_dims([4, 4, 4, 4])
            .with_levels([2, 1, 1, 1])
            .with_layer_scale_init(1.0)
            .init(device)
    }

    fn samples() -> Vec<Sample> {
        let pixel = |sample: usize, index: usize| ((sample * 131 + index * 17) % 29) as f32 / 14.0 - 1.0;
        (0..8)
            .map(|sample| Sample {
                pixels: (0..3 * SIZE * SIZE).map(|index| pixel(sample, index)).collect(),
                label: sample % 3,
            })
            .collect()
    }

    fn gradients(model: &Model, batches: &[&[Sample]], planned: usize) -> Vec<f64> {
        mixed_gradients(model, batches, planned, None)
    }

    fn mixed_gradients(
        model: &Model,
        batches: &[&[Sample]],
        planned: usize,
        lambda: Option<f64>,
    ) -> Vec<f64> {
        struct Collect(GradientsParams, Vec<f64>);
        impl ModuleVisitor<TestAutodiff> for Collect {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<TestAutodiff, D>>) {
                let gradient = self.0.remove::<crate::TestBackend, D>(param.id).expect("a gradient");
                self.1.extend(gradient.into_data().iter::<f64>());
            }
        }

        let device = Default::default();
        let batcher = ImageBatcher { input_size: SIZE };
        let mut update = UpdateGradients::new(planned, ForwardDtype::F32);
        for batch in batches {
            update.add(model, batcher.batch(batch.to_vec(), &device), lambda, 0.1);
        }
        let mut collect = Collect(update.finish(model).unwrap(), Vec::new());
        model.visit(&mut collect);
        assert!(!collect.1.is_empty() && collect.1.iter().any(|value| value.abs() > 1e-3));
        collect.1
    }

    #[track_caller]
    fn assert_close(left: &[f64], right: &[f64]) {
        let largest = right.iter().fold(0.0_f64, |largest, value| largest.max(value.abs()));
        for (index, (left, right)) in left.iter().zip(right).enumerate() {
            assert!((left - right).abs() < 1e-5 * largest, "gradient {index}: {left} is not {right}");
        }
    }

    #[test]
    fn batches_of_an_update_equal_one_batch() {
        let model = model(&Default::default());
        let all = samples();
        let one = gradients(&model, &[&all], 8);
        assert_close(&gradients(&model, &[&all[..4], &all[4..]], 8), &one);
        assert_close(&gradients(&model, &[&all[..2], &all[2..4], &all[4..6], &all[6..]], 8), &one);
        // Batches that differ in size.
        assert_close(&gradients(&model, &[&all[..5], &all[5..]], 8), &one);
    }

    #[test]
    fn mixed_targets_are_a_mixture_of_losses() {
        let model = model(&Default::default());
        let all = samples();
        let relabelled: Vec<Sample> = all
            .iter()
            .zip(all.iter().rev())
            .map(|(sample, other)| Sample { label: other.label, ..sample.clone() })
            .collect();
        let (own, other) = (gradients(&model, &[&all], 8), gradients(&model, &[&relabelled], 8));
        let mixture: Vec<f64> = own.iter().zip(&other).map(|(own, other)| 0.7 * own + 0.3 * other).collect();
        assert_close(&mixed_gradients(&model, &[&all], 8, Some(0.7)), &mixture);
        assert_close(&mixed_gradients(&model, &[&all], 8, Some(1.0)), &own);
    }

    #[test]
    fn images_that_cannot_be_read_do_not_count() {
        let model = model(&Default::default());
        let all = samples();
        let five = gradients(&model, &[&all[..5]], 5);
        assert_close(&gradients(&model, &[&all[..3], &all[3..5]], 8), &five);
    }

    #[test]
    fn an_update_without_images_has_no_gradient() {
        let model = model(&Default::default());
        assert!(UpdateGradients::new(8, ForwardDtype::F32).finish(&model).is_none());
    }

    #[test]
    fn a_step_is_clipped_only_if_it_is_asked_for() {
        let device = Default::default();
        // Gradients 3 and 4, whose norm is 5, of weights 0 and 0.
        let stepped = |clip_grad: f64| {
            let mut linear: Linear<TestAutodiff> = LinearConfig::new(2, 1).with_bias(false).init(&device);
            let (id, zeros) = (linear.weight.id, Tensor::zeros([2, 1], &device));
            linear.weight = Param::initialized(id, zeros.require_grad());
            let mut gradients = GradientsParams::new();
            gradients.register(id, Tensor::<crate::TestBackend, 2>::from_data([[3.0], [4.0]], &device));
            let mut optimizer = SgdConfig::new().init::<TestAutodiff, Linear<TestAutodiff>>();
            let linear = clip_and_step(&mut optimizer, 0.5, linear, gradients, clip_grad);
            linear.weight.val().into_data().iter::<f32>().collect::<Vec<_>>()
        };
        assert_eq!(stepped(0.0), [-1.5, -2.0]);
        for (clipped, expected) in stepped(2.5).into_iter().zip([-0.75, -1.0]) {
            assert!((clipped - expected).abs() < 1e-5_f32, "{clipped} is not {expected}");
        }
    }
}
