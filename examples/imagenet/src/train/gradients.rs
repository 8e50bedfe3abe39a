//! All gradients of a model at once.

use burn::module::{AutodiffModule, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::Tensor;
use burn::tensor::backend::AutodiffBackend;

/// Multiplies every gradient of `model` by `factor`, of shape `[1]`. Nothing is read back from the device.
pub fn scale<B: AutodiffBackend, M: AutodiffModule<B>>(
    gradients: &mut GradientsParams,
    model: &M,
    factor: Tensor<B::InnerBackend, 1>,
) {
    struct Scale<'a, B: AutodiffBackend> {
        gradients: &'a mut GradientsParams,
        factor: Tensor<B::InnerBackend, 1>,
    }

    impl<B: AutodiffBackend> ModuleVisitor<B> for Scale<'_, B> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
            if let Some(gradient) = self.gradients.remove::<B::InnerBackend, D>(param.id) {
                let factor = self.factor.clone().reshape([1; D]);
                self.gradients.register::<B::InnerBackend, D>(param.id, gradient * factor);
            }
        }
    }

    model.visit(&mut Scale::<B> { gradients, factor });
}

/// All gradients of `model` in the order of its parameters, in one tensor. A parameter without one counts as zeros.
pub fn flatten<B: AutodiffBackend, M: AutodiffModule<B>>(
    mut gradients: GradientsParams,
    model: &M,
    device: &B::Device,
) -> Tensor<B::InnerBackend, 1> {
    struct Flatten<'a, B: AutodiffBackend> {
        gradients: &'a mut GradientsParams,
        device: &'a B::Device,
        flat: Vec<Tensor<B::InnerBackend, 1>>,
    }

    impl<B: AutodiffBackend> ModuleVisitor<B> for Flatten<'_, B> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
            let elements = param.shape().num_elements();
            let gradient = self.gradients.remove::<B::InnerBackend, D>(param.id);
            self.flat.push(match gradient {
                Some(gradient) => gradient.reshape([elements]),
                None => Tensor::zeros([elements], self.device),
            });
        }
    }

    let mut flatten = Flatten::<B> { gradients: &mut gradients, device, flat: Vec::new() };
    model.visit(&mut flatten);
    Tensor::cat(flatten.flat, 0)
}

/// The opposite of [`flatten`].
pub fn unflatten<B: AutodiffBackend, M: AutodiffModule<B>>(
    flat: Tensor<B::InnerBackend, 1>,
    model: &M,
) -> GradientsParams {
    struct Unflatten<B: AutodiffBackend> {
        flat: Tensor<B::InnerBackend, 1>,
        start: usize,
        gradients: GradientsParams,
    }

    impl<B: AutodiffBackend> ModuleVisitor<B> for Unflatten<B> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
            let shape = param.shape();
            let end = self.start + shape.num_elements();
            let gradient = self.flat.clone().slice(self.start..end).reshape::<D, _>(shape);
            self.gradients.register::<B::InnerBackend, D>(param.id, gradient);
            self.start = end;
        }
    }

    let mut unflatten = Unflatten::<B> { flat, start: 0, gradients: GradientsParams::new() };
    model.visit(&mut unflatten);
    unflatten.gradients
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{TestAutodiff, TestBackend};
    use burn::nn::{Linear, LinearConfig};

    type Device = burn::tensor::Device<TestAutodiff>;

    /// A layer of six weights and two biases.
    fn linear(device: &Device) -> Linear<TestAutodiff> {
        LinearConfig::new(3, 2).init(device)
    }

    /// Gradients of the weights `[[1, 2], [3, 4], [5, 6]]`, and of the biases if there are `biases`.
    fn gradients(
        linear: &Linear<TestAutodiff>,
        biases: Option<[f32; 2]>,
        device: &Device,
    ) -> GradientsParams {
        let mut gradients = GradientsParams::new();
        let weights = Tensor::<TestBackend, 2>::from_data([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], device);
        gradients.register(linear.weight.id, weights);
        if let Some(biases) = biases {
            let id = linear.bias.as_ref().unwrap().id;
            gradients.register(id, Tensor::<TestBackend, 1>::from_data(biases, device));
        }
        gradients
    }

    #[test]
    fn every_gradient_there_is_is_scaled() {
        let device = Device::default();
        let linear = linear(&device);
        let mut scaled = gradients(&linear, None, &device);
        scale(&mut scaled, &linear, Tensor::<TestBackend, 1>::from_data([-0.5], &device));
        assert_eq!(scaled.len(), 1);
        let weights = scaled.remove::<TestBackend, 2>(linear.weight.id).unwrap();
        weights
            .into_data()
            .assert_eq(&burn::tensor::TensorData::from([[-0.5_f32, -1.0], [-1.5, -2.0], [-2.5, -3.0]]), true);
    }

    #[test]
    fn one_tensor_and_back() {
        let device = Device::default();
        let linear = linear(&device);
        for (biases, expected) in [(Some([7.0, 8.0]), [7.0, 8.0]), (None, [0.0, 0.0])] {
            let flat = flatten(gradients(&linear, biases, &device), &linear, &device);
            let values: Vec<f32> = flat.to_data().iter::<f32>().collect();
            assert_eq!(values, [&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0][..], &expected].concat());
            let mut back = unflatten::<TestAutodiff, _>(flat, &linear);
            let weights = back.remove::<TestBackend, 2>(linear.weight.id).unwrap();
            assert_eq!(weights.dims(), [3, 2]);
            assert_eq!(weights.into_data().iter::<f32>().collect::<Vec<_>>(), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
            let biases = back.remove::<TestBackend, 1>(linear.bias.as_ref().unwrap().id).unwrap();
            assert_eq!(biases.into_data().iter::<f32>().collect::<Vec<_>>(), expected);
        }
    }
}
