//! What training leaves behind on a device whose allocator can be asked.

use burn::backend::Autodiff;
use burn::tensor::{Distribution, Tensor};
use burn_cubecl::cubecl::prelude::*;
use burn_wtconv::{WtConvBackend, wtconv2d};

/// Trains for 1,000 steps over inputs of three sizes: the bytes in use do not grow.
pub fn a_thousand_training_steps_leave_nothing_behind<B, R>(device: &B::Device)
where
    B: WtConvBackend<Device = R::Device>,
    R: Runtime,
{
    const STEPS: usize = 1_000;
    const CHANNELS: usize = 3;
    const LEVELS: usize = 2;
    let shapes = [[2, CHANNELS, 12, 11], [1, CHANNELS, 7, 9], [3, CHANNELS, 16, 5]];
    let client = R::client(device);
    let bytes_in_use = || {
        B::sync(device).expect("the device answers");
        client.memory_usage().expect("the allocator answers").bytes_in_use
    };

    let filters = 1 + 4 * LEVELS;
    let random = |shape| Tensor::<Autodiff<B>, 4>::random(shape, Distribution::Default, device);
    let inputs = shapes.map(random);
    let mut weights = random([CHANNELS, filters, 3, 3]);
    let mut scales = Tensor::<Autodiff<B>, 2>::ones([CHANNELS, filters], device);
    let mut step = |index: usize| {
        let (tracked_weights, tracked_scales) =
            (weights.clone().require_grad(), scales.clone().require_grad());
        let x = inputs[index % inputs.len()].clone().require_grad();
        let y = wtconv2d(x.clone(), tracked_weights.clone(), tracked_scales.clone(), None, 1);
        let gradients = y.powi_scalar(2).mean().backward();
        assert!(x.grad(&gradients).is_some());
        let update = |gradient: Option<Tensor<B, 4>>| gradient.expect("a gradient") * 1e-3;
        weights = weights.clone().detach() - Tensor::from_inner(update(tracked_weights.grad(&gradients)));
        let gradient = tracked_scales.grad(&gradients).expect("a gradient");
        scales = scales.clone().detach() - Tensor::from_inner(gradient * 1e-3);
    };

    // The allocator and the plans settle.
    (0..10 * shapes.len()).for_each(&mut step);
    let before = bytes_in_use();
    (0..STEPS).for_each(&mut step);
    let after = bytes_in_use();
    // One input kept at every hundredth step would be more.
    let allowed = STEPS as u64 / 100 * (3 * 16 * 5 * CHANNELS * 4) as u64;
    assert!(after <= before + allowed, "{before} bytes in use before, {after} after {STEPS} steps");
}
