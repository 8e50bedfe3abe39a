//! What differs while training, and that gradients reach every parameter.

use burn::backend::{Autodiff, Flex};
use burn::module::{AutodiffModule, Module, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::{Distribution, Tensor};
use wtconvnext::{DropPath, WtConvNext, WtConvNextConfig};

use crate::files::golden_config;

type B = Autodiff<Flex>;

#[test]
fn drop_path_drops_whole_samples_and_keeps_the_mean() {
    let drop_path = DropPath { prob: 0.25 };
    let x = Tensor::<B, 3>::ones([4000, 2, 3], &Default::default());
    let values = drop_path.forward(x.clone()).into_data().to_vec::<f32>().unwrap();

    let mut kept = 0;
    for sample in values.chunks_exact(6) {
        assert!(sample.iter().all(|value| *value == sample[0]), "{sample:?}");
        match sample[0] {
            0.0 => {}
            value => {
                assert!((value - 1.0 / 0.75).abs() < 1e-6, "expected 4/3, got {value}");
                kept += 1;
            }
        }
    }
    assert!((2800..3200).contains(&kept), "expected about 3000 samples, got {kept}");
}

#[test]
fn drop_path_does_nothing_in_evaluation() {
    let x = Tensor::<Flex, 2>::ones([100, 2], &Default::default());
    assert_eq!(DropPath { prob: 0.9 }.forward(x.clone()).into_data(), x.into_data());
    let x = Tensor::<B, 2>::ones([100, 2], &Default::default());
    assert_eq!(DropPath { prob: 0.0 }.forward(x.clone()).into_data(), x.into_data());
}

#[test]
fn only_training_is_random() {
    for config in [golden_config().with_drop_path_rate(0.5), golden_config().with_dropout(0.5)] {
        let device = Default::default();
        let model: WtConvNext<B> = config.with_layer_scale_init(1.0).init(&device);
        let x = Tensor::random([8, 3, 32, 32], Distribution::Default, &device);
        assert_ne!(model.forward(x.clone()).into_data(), model.forward(x.clone()).into_data());

        let model = model.valid();
        let x = x.inner();
        assert_eq!(model.forward(x.clone()).into_data(), model.forward(x).into_data());
    }
}

#[test]
fn every_parameter_has_a_gradient() {
    let convnext = WtConvNextConfig::convnext_tiny(7).with_depths([1, 1, 2, 1]).with_dims([8, 16, 24, 32]);
    for config in [golden_config(), convnext] {
        let device = Default::default();
        let model: WtConvNext<B> = config.with_layer_scale_init(1.0).init(&device);
        let x = Tensor::random([2, 3, 64, 64], Distribution::Default, &device);
        let loss = model.forward(x).powi_scalar(2).sum();
        let gradients = GradientsParams::from_grads(loss.backward(), &model);

        let mut count = Count { gradients: &gradients, parameters: 0 };
        model.visit(&mut count);
        assert_eq!(count.parameters, gradients.len());
    }
}

/// Counts the parameters, each of which must have a gradient that is not 0.
struct Count<'a> {
    gradients: &'a GradientsParams,
    parameters: usize,
}

impl ModuleVisitor<B> for Count<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        let gradient = self.gradients.get::<Flex, D>(param.id).expect("a gradient");
        assert_eq!(gradient.dims(), param.dims());
        assert!(gradient.abs().max().into_scalar() > 0.0, "the gradient of {:?} is 0", param.dims());
        self.parameters += 1;
    }
}
