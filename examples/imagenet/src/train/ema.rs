//! An exponential moving average of the weights.

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::tensor::backend::Backend;
use burn::tensor::container::TensorContainer;
use burn::tensor::{Tensor, TensorPrimitive};

/// The average of a model's weights over the updates, each weighing `decay` times as much as the one after it.
///
/// After an update, every parameter of the average becomes `decay * average + (1 - decay) * parameter`, in f32. It begins with
/// the weights at the start of the run, as timm's `ModelEmaV2` does.
#[derive(Clone, Debug)]
pub struct Ema<M> {
    model: M,
    decay: f64,
}

impl<M> Ema<M> {
    /// An average that stands at `model`, whose parameters have been drawn.
    pub fn new(model: M, decay: f64) -> Self {
        Self { model, decay }
    }

    /// The model with averaged weights.
    pub fn model(&self) -> &M {
        &self.model
    }

    /// Takes in the weights of `model` after an update. Its parameters have the ids of those of the average.
    pub fn update<B: Backend>(&mut self, model: &M)
    where
        M: Module<B>,
    {
        let mut weights = Collect(TensorContainer::new());
        model.visit(&mut weights);
        self.model = self.model.clone().map(&mut Average { weights: weights.0, decay: self.decay });
    }
}

/// The parameters by id.
struct Collect(TensorContainer<ParamId>);

impl<B: Backend> ModuleVisitor<B> for Collect {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        self.0.register::<B>(param.id, TensorPrimitive::Float(param.val().into_primitive().tensor()));
    }
}

struct Average {
    weights: TensorContainer<ParamId>,
    decay: f64,
}

impl<B: Backend> ModuleMapper<B> for Average {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        let weight = self.weights.remove::<B>(&param.id).expect("the model that the average began with");
        let weight = Tensor::<B, D>::from_primitive(weight);
        param.map(|average| average * self.decay + weight * (1.0 - self.decay))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TestBackend;
    use burn::nn::{Linear, LinearConfig};

    fn linear(weights: [f32; 2], bias: f32) -> Linear<TestBackend> {
        let device = Default::default();
        let mut linear = LinearConfig::new(2, 1).init(&device);
        linear.weight =
            Param::initialized(ParamId::from(1), Tensor::from_data([[weights[0]], [weights[1]]], &device));
        linear.bias = Some(Param::initialized(ParamId::from(2), Tensor::from_data([bias], &device)));
        linear
    }

    fn values(linear: &Linear<TestBackend>) -> Vec<f32> {
        let weights = linear.weight.val().into_data();
        let bias = linear.bias.as_ref().unwrap().val().into_data();
        weights.iter::<f32>().chain(bias.iter::<f32>()).collect()
    }

    #[test]
    fn two_updates_by_hand() {
        let mut ema = Ema::new(linear([1.0, -2.0], 8.0), 0.75);
        ema.update(&linear([5.0, 2.0], 0.0));
        // 0.75 * 1 + 0.25 * 5, 0.75 * -2 + 0.25 * 2, 0.75 * 8
        assert_eq!(values(ema.model()), [2.0, -1.0, 6.0]);
        ema.update(&linear([10.0, 7.0], 2.0));
        // 0.75 * 2 + 0.25 * 10, 0.75 * -1 + 0.25 * 7, 0.75 * 6 + 0.25 * 2
        assert_eq!(values(ema.model()), [4.0, 1.0, 5.0]);
    }

    #[test]
    fn a_decay_near_one_does_not_stand_still() {
        // 1 and 2 with 0.9999: 1.0001, then 1.00019999. In f32 a step is 1.2e-7.
        let mut ema = Ema::new(linear([1.0, 1.0], 1.0), 0.9999);
        for expected in [1.0001, 1.000_199_99] {
            ema.update(&linear([2.0, 2.0], 2.0));
            for value in values(ema.model()) {
                assert!((f64::from(value) - expected).abs() < 3e-7, "{value} is not {expected}");
            }
        }
    }
}
