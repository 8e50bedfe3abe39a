//! AdamW in two groups: weights decay; biases, norms and scales do not.
//!
//! Burn 0.21 has no parameter groups, but its optimizers leave parameters without a gradient alone. So two of Burn's AdamW,
//! with and without decay, each step on the gradients of its own group.

use burn::module::{AutodiffModule, Module, ModuleVisitor, Param, ParamId};
use burn::optim::adaptor::OptimizerAdaptor;
use burn::optim::{AdamW, AdamWConfig, GradientsParams, LearningRate, MultiGradientsParams, Optimizer};
use burn::tensor::Tensor;
use burn::tensor::backend::{AutodiffBackend, Backend};
use std::collections::HashSet;

/// Adds to the second moment's root: the value of PyTorch and timm. Burn's default is 1e-5.
const EPSILON: f32 = 1e-8;

/// AdamW whose weight decay leaves out every parameter of rank 1 (biases, norms, layer scales) and every parameter called
/// `scales` (those of wavelet convolutions, of rank 2).
#[derive(Clone)]
pub struct GroupedAdamW<M, B>
where
    B: AutodiffBackend,
    M: AutodiffModule<B>,
{
    decayed: OptimizerAdaptor<AdamW, M, B>,
    plain: OptimizerAdaptor<AdamW, M, B>,
    plain_ids: HashSet<ParamId>,
}

impl<M, B> GroupedAdamW<M, B>
where
    B: AutodiffBackend,
    M: AutodiffModule<B>,
{
    /// An optimizer of `model`, with betas 0.9 and 0.999.
    pub fn new(model: &M, weight_decay: f64) -> Self {
        let config = AdamWConfig::new().with_epsilon(EPSILON);
        Self {
            decayed: config.clone().with_weight_decay(weight_decay as f32).init(),
            plain: config.with_weight_decay(0.0).init(),
            plain_ids: undecayed_ids(model),
        }
    }

    /// Moves the gradients of the group without decay out of `grads`.
    fn split(&self, model: &M, grads: &mut GradientsParams) -> GradientsParams {
        let mut visitor = Move { ids: &self.plain_ids, from: grads, to: GradientsParams::new() };
        model.visit(&mut visitor);
        visitor.to
    }
}

impl<M, B> Optimizer<M, B> for GroupedAdamW<M, B>
where
    B: AutodiffBackend,
    M: AutodiffModule<B>,
{
    /// The states with decay and without.
    type Record = (
        <OptimizerAdaptor<AdamW, M, B> as Optimizer<M, B>>::Record,
        <OptimizerAdaptor<AdamW, M, B> as Optimizer<M, B>>::Record,
    );

    fn step(&mut self, lr: LearningRate, module: M, mut grads: GradientsParams) -> M {
        let plain = self.split(&module, &mut grads);
        let module = self.decayed.step(lr, module, grads);
        self.plain.step(lr, module, plain)
    }

    fn step_multi(&mut self, lr: LearningRate, module: M, mut grads: MultiGradientsParams) -> M {
        let mut plain = MultiGradientsParams::default();
        for (grads, device) in &mut grads.grads {
            plain.grads.push((self.split(&module, grads), *device));
        }
        let module = self.decayed.step_multi(lr, module, grads);
        self.plain.step_multi(lr, module, plain)
    }

    fn to_record(&self) -> Self::Record {
        (self.decayed.to_record(), self.plain.to_record())
    }

    fn load_record(self, (decayed, plain): Self::Record) -> Self {
        Self {
            decayed: self.decayed.load_record(decayed),
            plain: self.plain.load_record(plain),
            plain_ids: self.plain_ids,
        }
    }
}

/// The parameters of `model` that weight decay leaves out.
pub fn undecayed_ids<B: Backend, M: Module<B>>(model: &M) -> HashSet<ParamId> {
    let mut visitor = Undecayed { path: Vec::new(), ids: HashSet::new() };
    model.visit(&mut visitor);
    visitor.ids
}

struct Undecayed {
    path: Vec<String>,
    ids: HashSet<ParamId>,
}

impl<B: Backend> ModuleVisitor<B> for Undecayed {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        if D == 1 || self.path.last().is_some_and(|name| name == "scales") {
            self.ids.insert(param.id);
        }
    }

    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.path.push(name.to_string());
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.pop();
    }
}

struct Move<'a> {
    ids: &'a HashSet<ParamId>,
    from: &'a mut GradientsParams,
    to: GradientsParams,
}

impl<B: AutodiffBackend> ModuleVisitor<B> for Move<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        if self.ids.contains(&param.id)
            && let Some(grad) = self.from.remove::<B::InnerBackend, D>(param.id)
        {
            self.to.register::<B::InnerBackend, D>(param.id, grad);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TestAutodiff;
    use burn::nn::{LayerNorm, LayerNormConfig, Linear, LinearConfig};

    #[derive(Module, Debug)]
    struct Net<B: Backend> {
        linear: Linear<B>,
        norm: LayerNorm<B>,
        scales: Param<Tensor<B, 2>>,
    }

    type Device = <TestAutodiff as burn::tensor::backend::BackendTypes>::Device;

    fn net(device: &Device) -> Net<TestAutodiff> {
        let linear = LinearConfig::new(2, 2).init(device);
        // Burn draws parameters at the first use: a clone of an unused layer is another layer.
        linear.forward(Tensor::<TestAutodiff, 2>::ones([1, 2], device));
        let scales = Param::from_tensor(Tensor::from_data([[1.0, 0.5], [-0.5, 2.0]], device));
        Net { linear, norm: LayerNormConfig::new(2).init(device), scales }
    }

    /// Gradients that are zero everywhere: AdamW's own step is 0, and decay is all that moves a parameter.
    fn zero_gradients(net: &Net<TestAutodiff>, device: &Device) -> GradientsParams {
        let x = Tensor::<TestAutodiff, 2>::ones([1, 2], device);
        let y = net.norm.forward(net.linear.forward(x)).matmul(net.scales.val());
        GradientsParams::from_grads((y.sum() * 0.0).backward(), net)
    }

    fn values<const D: usize>(tensor: Tensor<TestAutodiff, D>) -> Vec<f32> {
        tensor.into_data().iter::<f32>().collect()
    }

    #[test]
    fn only_weights_decay() {
        let device = Default::default();
        let before = net(&device);
        let mut optimizer = GroupedAdamW::new(&before, 0.5);
        let grads = zero_gradients(&before, &device);
        assert_eq!(grads.len(), 5);
        let after = optimizer.step(0.1, before.clone(), grads);

        let decayed: Vec<f32> = values(before.linear.weight.val()).iter().map(|w| w * 0.95).collect();
        assert_eq!(values(after.linear.weight.val()), decayed);
        assert_eq!(values(after.scales.val()), values(before.scales.val()));
        assert_eq!(values(after.norm.gamma.val()), values(before.norm.gamma.val()));
        let bias = |net: &Net<TestAutodiff>| values(net.linear.bias.as_ref().unwrap().val());
        assert_eq!(bias(&after), bias(&before));
    }

    #[test]
    fn every_parameter_moves_and_several_devices_step_as_one() {
        let device = Default::default();
        let before = net(&device);
        let gradients = || {
            let x = Tensor::<TestAutodiff, 2>::from_data([[1.0, -2.0]], &device);
            let y = before.linear.forward(x);
            let y = (before.norm.forward(y.clone()) + y).matmul(before.scales.val());
            let weight = Tensor::from_data([[1.0, 3.0]], &device);
            GradientsParams::from_grads((y * weight).sum().backward(), &before)
        };
        let after = GroupedAdamW::new(&before, 0.0).step(0.1, before.clone(), gradients());
        // The first step of Adam is lr times the sign of the gradient.
        for (old, new) in values(before.scales.val()).iter().zip(values(after.scales.val())) {
            assert!(((old - new).abs() - 0.1).abs() < 1e-3, "{old} became {new}");
        }
        for (old, new) in values(before.linear.weight.val()).iter().zip(values(after.linear.weight.val())) {
            assert!(((old - new).abs() - 0.1).abs() < 1e-3, "{old} became {new}");
        }

        use burn::tensor::backend::DeviceOps;
        let multi = MultiGradientsParams { grads: vec![(gradients(), device.id())] };
        let multi = GroupedAdamW::new(&before, 0.0).step_multi(0.1, before.clone(), multi);
        assert_eq!(values(multi.scales.val()), values(after.scales.val()));
        assert_eq!(values(multi.linear.weight.val()), values(after.linear.weight.val()));
    }
}
