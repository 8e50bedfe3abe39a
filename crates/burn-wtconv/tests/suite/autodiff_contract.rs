//! What the custom backward promises besides values.

use burn::backend::Autodiff;
use burn::tensor::Tensor;
use burn_wtconv::WtConvBackend;
use burn_wtconv::reference::{self, WantedGradients};
use wtconv_oracle::{Problem, relative_error};

use super::tensors::{Arguments, Case, Precision, run, tensor, values};

type A<B> = Autodiff<B>;

fn case(bias: bool, seed: u64) -> Case {
    let problem =
        Problem { batch: 2, channels: 3, height: 7, width: 10, kernel_size: 3, levels: 2, stride: 2 };
    Case::random(problem, bias, seed)
}

pub fn every_mix_of_tracked_arguments_agrees<B: WtConvBackend>(device: &B::Device, precision: Precision) {
    let case = case(true, 1);
    let expected = case.oracle().gradients;
    let dy = tensor::<A<B>, 4>(&case.dy, case.output_shape(), precision.dtype, device);
    for mix in 0..16 {
        let tracked = |bit: usize| mix >> bit & 1 == 1;
        let Arguments { x, filters, scales, bias } = Arguments::<A<B>>::new(&case, precision.dtype, device);
        let arguments = Arguments {
            x: x.set_require_grad(tracked(0)),
            filters: filters.set_require_grad(tracked(1)),
            scales: scales.set_require_grad(tracked(2)),
            bias: bias.map(|bias| bias.set_require_grad(tracked(3))),
        };
        let y = arguments.forward(case.problem.stride);
        if mix == 0 {
            continue;
        }
        let grads = (y * dy.clone()).sum().backward();
        let bias = arguments.bias.as_ref().expect("the case has a bias");
        let got = [
            arguments.x.grad(&grads).map(values),
            arguments.filters.grad(&grads).map(values),
            arguments.scales.grad(&grads).map(values),
            bias.grad(&grads).map(values),
        ];
        let bias = expected.bias.as_ref().expect("the case has a bias");
        for (bit, expected) in
            [&expected.x, &expected.filters, &expected.scales, bias].into_iter().enumerate()
        {
            assert_eq!(got[bit].is_some(), tracked(bit), "argument {bit} of mix {mix:04b}");
            if let Some(got) = &got[bit] {
                let error = relative_error(got, expected);
                assert!(error <= precision.oracle, "argument {bit} of mix {mix:04b}: {error:e}");
            }
        }
    }
}

/// `F(F(x))`: each parameter's gradient is the sum of two.
pub fn a_layer_used_twice_sums_its_gradients<B: WtConvBackend>(device: &B::Device, precision: Precision) {
    let mut case = case(true, 2);
    case.problem.stride = 1;
    let case = Case::random(case.problem, true, 2);
    let arguments = Arguments::<A<B>>::new(&case, precision.dtype, device).tracked();
    let once = arguments.forward(1);
    let twice = Arguments {
        x: once.clone(),
        filters: arguments.filters.clone(),
        scales: arguments.scales.clone(),
        bias: arguments.bias.clone(),
    }
    .forward(1);
    let dy = tensor(&case.dy, case.output_shape(), precision.dtype, device);
    let got = arguments.gradients((twice * dy).sum());

    let y = wtconv_oracle::forward(&case.problem, &case.x, &case.parameters);
    let outer = wtconv_oracle::backward(&case.problem, &y, &case.parameters, &case.dy);
    let inner = wtconv_oracle::backward(&case.problem, &case.x, &case.parameters, &outer.x);
    let sum = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a + b).collect::<Vec<_>>();
    assert!(relative_error(&got.x, &inner.x) <= precision.oracle);
    assert!(relative_error(&got.filters, &sum(&outer.filters, &inner.filters)) <= precision.oracle);
    assert!(relative_error(&got.scales, &sum(&outer.scales, &inner.scales)) <= precision.oracle);
}

pub fn frozen_parameters_have_no_gradient<B: WtConvBackend>(device: &B::Device, precision: Precision) {
    let case = case(false, 3);
    let Arguments { x, filters, scales, bias } = Arguments::<A<B>>::new(&case, precision.dtype, device);
    let arguments = Arguments { x: x.require_grad(), filters, scales, bias };
    let grads = arguments.forward(case.problem.stride).sum().backward();
    assert!(arguments.x.grad(&grads).is_some());
    assert!(arguments.filters.grad(&grads).is_none());
    assert!(arguments.scales.grad(&grads).is_none());
}

pub fn an_empty_batch_works_forward_and_backward<B: WtConvBackend>(device: &B::Device, precision: Precision) {
    for bias in [true, false] {
        let mut case = case(bias, 4);
        case.problem.batch = 0;
        (case.x, case.dy) = (vec![], vec![]);
        let arguments = Arguments::<A<B>>::new(&case, precision.dtype, device).tracked();
        let y = arguments.forward(case.problem.stride);
        assert_eq!(y.dims(), case.output_shape());
        let zeros = (
            vec![0.0; case.problem.filters_len()],
            vec![0.0; case.problem.scales_len()],
            bias.then(|| vec![0.0; case.problem.channels]),
        );
        if precision.empty_tensors {
            let gradients = arguments.gradients(y);
            assert!(gradients.x.is_empty());
            assert_eq!((gradients.filters, gradients.scales, gradients.bias), zeros);
        }

        // What the custom backward calls.
        let Arguments { x, filters, scales, bias } = Arguments::<B>::new(&case, precision.dtype, device);
        let (shape, stride) = (x.dims(), case.problem.stride);
        let dy = Tensor::<B, 4>::empty(case.output_shape(), (device, precision.dtype));
        let extent = [case.problem.height, case.problem.width];
        let dx = reference::input_gradient(dy.clone(), filters.clone(), Some(scales.clone()), extent, stride);
        assert_eq!(dx.dims(), shape);
        let wanted = WantedGradients { filters: true, scales: true, bias: true };
        let found = reference::parameter_gradients(x, dy, filters, Some(scales), bias, stride, wanted);
        let found = (
            values(found.filters.expect("was wanted")),
            values(found.scales.expect("was wanted")),
            found.bias.map(values),
        );
        assert_eq!(found, zeros);
    }
}

pub fn twenty_backward_runs_give_equal_bits<B: WtConvBackend>(device: &B::Device, precision: Precision) {
    let case = case(true, 5);
    let first = run::<B>(&case, precision, device);
    for _ in 1..20 {
        assert_eq!(run::<B>(&case, precision, device), first);
    }
}

pub fn an_untracked_call_equals_a_tracked_one<B: WtConvBackend>(device: &B::Device, precision: Precision) {
    let case = case(true, 6);
    let untracked: Tensor<B, 4> =
        Arguments::<B>::new(&case, precision.dtype, device).forward(case.problem.stride);
    assert_eq!(values(untracked), run::<B>(&case, precision, device).y);
}
