//! Mixed precision: the model in bfloat16, everything that is summed up over updates in f32.
//!
//! The parameters, the gradients that the optimizer sees, its state, the averaged weights, the loss and the checkpoints are f32
//! always. Burn's cast is differentiable: parameters and images are cast on their way into the model and the logits on their way
//! out, so that what is in between, activations and their gradients, is bfloat16.
//!
//! There is no float16: its gradients would vanish without a scaling of the loss, which Burn does not have.

use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::backend::Backend;
use burn::tensor::{DType, FloatDType, Tensor};
use burn_wtconv::WtConvBackend;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use wtconvnext::WtConvNext;

/// The floating-point type that the model computes in while it is trained.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ForwardDtype {
    /// Single precision.
    #[default]
    F32,
    /// bfloat16: half the memory of activations, on backends that have it.
    Bf16,
}

/// A backend that does not have the type.
#[derive(Debug, thiserror::Error)]
#[error("dtype = bf16: this backend or device does not compute in bf16; use --dtype f32")]
pub struct DtypeMissing;

impl ForwardDtype {
    /// Fails if `B` does not compute in this type on `device`.
    ///
    /// # Errors
    ///
    /// [`DtypeMissing`].
    pub fn check<B: Backend>(self, device: &B::Device) -> Result<(), DtypeMissing> {
        match self {
            Self::Bf16 if !B::supports_dtype(device, DType::BF16) => Err(DtypeMissing),
            _ => Ok(()),
        }
    }

    /// Logits in f32 of a model in f32, computed in this type.
    ///
    /// # Shapes
    ///
    /// - images: `[batch, 3, height, width]`
    /// - output: `[batch, classes]`
    pub fn forward<B: WtConvBackend>(self, model: &WtConvNext<B>, images: Tensor<B, 4>) -> Tensor<B, 2> {
        match self {
            Self::F32 => model.forward(images),
            Self::Bf16 => {
                let low = model.clone().map(&mut Cast(FloatDType::BF16));
                low.forward(images.cast(FloatDType::BF16)).cast(FloatDType::F32)
            }
        }
    }
}

/// Casts parameters, so that gradients flow back to the original ones.
struct Cast(FloatDType);

impl<B: Backend> ModuleMapper<B> for Cast {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        param.map(|tensor| tensor.cast(self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{TestAutodiff, TestBackend};
    use burn::module::ModuleVisitor;
    use burn::optim::GradientsParams;
    use burn::tensor::TensorData;
    use wtconvnext::WtConvNextConfig;

    /// Parameters that are the same in every run: drawn ones may be such that rounding matters more.
    struct Fill(usize);

    impl ModuleMapper<TestAutodiff> for Fill {
        fn map_float<const D: usize>(
            &mut self,
            param: Param<Tensor<TestAutodiff, D>>,
        ) -> Param<Tensor<TestAutodiff, D>> {
            self.0 += 1;
            let value = |index: usize| ((index * 37 + self.0 * 11) % 23) as f32 / 23.0 - 0.4;
            param.map(|tensor| {
                let values = (0..tensor.shape().num_elements()).map(value).collect();
                Tensor::from_data(TensorData::new(values, tensor.shape()), &tensor.device()).require_grad()
            })
        }
    }

    /// Gradients of all parameters, and the logits.
    fn step(model: &WtConvNext<TestAutodiff>, dtype: ForwardDtype) -> (Vec<f64>, Vec<f64>) {
        struct Collect(GradientsParams, Vec<f64>);
        impl ModuleVisitor<TestAutodiff> for Collect {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<TestAutodiff, D>>) {
                assert_eq!(param.val().dtype(), DType::F32);
                let gradient = self.0.remove::<TestBackend, D>(param.id).expect("a gradient");
                assert_eq!(gradient.dtype(), DType::F32);
                self.1.extend(gradient.into_data().iter::<f64>());
            }
        }

        let device = Default::default();
        let images =
            (0..2 * 3 * 32 * 32).map(|index| (index * 17 % 29) as f32 / 14.0 - 1.0).collect::<Vec<_>>();
        let images = Tensor::<TestAutodiff, 1>::from_floats(&images[..], &device).reshape([2, 3, 32, 32]);
        let logits = dtype.forward(model, images);
        assert_eq!(logits.dtype(), DType::F32);
        let weight = Tensor::from_data([[1.0, -2.0, 3.0], [0.5, 1.0, -1.0]], &device);
        let gradients = GradientsParams::from_grads((logits.clone() * weight).sum().backward(), model);
        let mut collect = Collect(gradients, Vec::new());
        model.visit(&mut collect);
        (collect.1, logits.into_data().iter::<f64>().collect())
    }

    /// Norm of the difference over the norm of the second.
    fn distance(left: &[f64], right: &[f64]) -> f64 {
        let norm =
            |values: &mut dyn Iterator<Item = f64>| values.map(|value| value * value).sum::<f64>().sqrt();
        norm(&mut left.iter().zip(right).map(|(left, right)| left - right)) / norm(&mut right.iter().copied())
    }

    #[test]
    fn gradients_in_bf16_reach_the_parameters_in_f32() {
        let device = Default::default();
        let model: WtConvNext<TestAutodiff> = WtConvNextConfig::new(3)
            .with_depths([1, 1, 1, 1])
            .with_dims([4, 4, 4, 4])
            .with_levels([2, 1, 1, 1])
            .with_layer_scale_init(1.0)
            .init(&device);
        let model = model.map(&mut Fill(0));
        let (full, low) = (step(&model, ForwardDtype::F32), step(&model, ForwardDtype::Bf16));
        for (full, low) in [(&full.0, &low.0), (&full.1, &low.1)] {
            let distance = distance(low, full);
            // bf16 has 8 bits: a unit in the last place is 0.8 %. No difference would mean that nothing was cast.
            assert!((1e-4..0.1).contains(&distance), "{distance}");
        }
    }
}
