//! The plain depthwise convolution: no levels, no scales.

use burn::backend::Autodiff;
use burn::tensor::Tensor;
use burn_wtconv::{RouteKind, WtConvBackend, WtConvError, depthwise_conv2d, reference, try_depthwise_conv2d};
use wtconv_oracle::{Parameters, Problem, relative_error};

use super::tensors::{Arguments, Case, Outcome, Precision, tensor, values};

type A<B> = Autodiff<B>;

/// The same numbers with scales of 1, which is what the oracle is given.
fn unscaled(case: Case) -> Case {
    let scales = vec![1.0; case.parameters.scales.len()];
    Case { parameters: Parameters { scales, ..case.parameters.clone() }, ..case }
}

fn problem(kernel_size: usize, stride: usize) -> Problem {
    Problem { batch: 2, channels: 3, height: 9, width: 14, kernel_size, levels: 0, stride }
}

/// The gradients of `x`, the weight and the bias, those that are tracked.
type Gradients = [Option<Vec<f64>>; 3];

fn run<B: WtConvBackend>(
    case: &Case,
    tracked: [bool; 3],
    forward: impl Fn(Tensor<A<B>, 4>, Tensor<A<B>, 4>, Option<Tensor<A<B>, 1>>, usize) -> Tensor<A<B>, 4>,
    precision: Precision,
    device: &B::Device,
) -> (Vec<f64>, Gradients) {
    let Arguments { x, filters, bias, .. } = Arguments::<A<B>>::new(case, precision.dtype, device);
    let x = x.set_require_grad(tracked[0]);
    let weight = filters.set_require_grad(tracked[1]);
    let bias = bias.map(|bias| bias.set_require_grad(tracked[2]));
    let y = forward(x.clone(), weight.clone(), bias.clone(), case.problem.stride);
    assert_eq!(y.dims(), case.output_shape());
    assert_eq!(y.dtype(), precision.dtype);
    let result = values(y.clone());
    if tracked == [false; 3] {
        return (result, [None, None, None]);
    }
    let dy = tensor(&case.dy, case.output_shape(), precision.dtype, device);
    let gradients = (y * dy).sum().backward();
    let of_bias = bias.and_then(|bias| bias.grad(&gradients)).map(values);
    (result, [x.grad(&gradients).map(values), weight.grad(&gradients).map(values), of_bias])
}

fn check(
    case: &Case,
    tracked: [bool; 3],
    (y, gradients): (Vec<f64>, Gradients),
    precision: Precision,
    context: &str,
) {
    let expected: Outcome = case.oracle();
    let bias = expected.gradients.bias.unwrap_or_default();
    let has_bias = case.parameters.bias.is_some();
    let error = relative_error(&y, &expected.y);
    assert!(error <= precision.oracle, "{context}: y is off by {error:e}");
    let expected = [expected.gradients.x, expected.gradients.filters, bias];
    for (argument, (got, expected)) in gradients.iter().zip(&expected).enumerate() {
        let wanted = tracked[argument] && (argument < 2 || has_bias);
        assert_eq!(got.is_some(), wanted, "{context}: gradient of argument {argument}");
        if let Some(got) = got {
            let error = relative_error(got, expected);
            assert!(error <= precision.oracle, "{context}: gradient {argument} is off by {error:e}");
        }
    }
}

pub fn depthwise_convolutions_agree_with_the_oracle<B: WtConvBackend>(
    device: &B::Device,
    precision: Precision,
) {
    let tracked = [true; 3];
    for (kernel_size, stride, bias) in [(7, 1, true), (5, 2, false), (1, 1, true), (15, 3, true)] {
        let case = unscaled(Case::random(problem(kernel_size, stride), bias, 3));
        let got = run::<B>(&case, tracked, depthwise_conv2d, precision, device);
        check(&case, tracked, got, precision, &format!("kernel size {kernel_size}, stride {stride}"));
    }
    // Burn's autodiff through the reference; and an even size, which the kernels refuse.
    for kernel_size in [4, 7, 2].into_iter().take(precision.tensor_op_cases) {
        let case = unscaled(Case::random(problem(kernel_size, 1), true, 4));
        let got = run::<B>(&case, tracked, reference::depthwise_conv2d, precision, device);
        let products = Precision { oracle: precision.products, ..precision };
        check(&case, tracked, got, products, &format!("the reference, kernel size {kernel_size}"));
        let got = run::<B>(&case, tracked, depthwise_conv2d, precision, device);
        check(&case, tracked, got, precision, &format!("kernel size {kernel_size}"));
    }
}

pub fn every_mix_of_tracked_depthwise_arguments_agrees<B: WtConvBackend>(
    device: &B::Device,
    precision: Precision,
) {
    for bias in [true, false] {
        let case = unscaled(Case::random(problem(5, 2), bias, 5));
        for mix in 0..8 {
            let tracked = [0, 1, 2].map(|bit| mix >> bit & 1 == 1);
            let some = tracked[0] || tracked[1] || (tracked[2] && bias);
            let tracked = if some { tracked } else { [false; 3] };
            let got = run::<B>(&case, tracked, depthwise_conv2d, precision, device);
            check(&case, tracked, got, precision, &format!("tracked {tracked:?}, bias {bias}"));
        }
    }
}

pub fn a_depthwise_convolution_of_integers_is_exact<B: WtConvBackend>(
    device: &B::Device,
    precision: Precision,
) {
    let case = unscaled(Case::integers(problem(7, 1), 2));
    let (y, [dx, dw, db]) = run::<B>(&case, [true; 3], depthwise_conv2d, precision, device);
    let Outcome { y: expected, gradients } = case.oracle();
    assert_eq!(y, expected);
    assert_eq!((dx, dw), (Some(gradients.x), Some(gradients.filters)));
    assert_eq!(db, gradients.bias);
}

pub fn depthwise_arguments_are_refused_in_words<B: WtConvBackend>(device: &B::Device, precision: Precision) {
    let zeros = |shape: [usize; 4]| Tensor::<B, 4>::zeros(shape, (device, precision.dtype));
    let call = |x, weight, stride| {
        let refused: Result<Tensor<B, 4>, WtConvError> =
            try_depthwise_conv2d(zeros(x), zeros(weight), None, stride, Some(RouteKind::TensorOps));
        refused.expect_err("a refusal").to_string()
    };
    assert_eq!(
        call([1, 3, 8, 8], [3, 5, 5, 5], 1),
        "expected a weight of shape [channels, 1, kernel_size, kernel_size], got [3, 5, 5, 5]"
    );
    assert!(call([1, 4, 8, 8], [3, 1, 5, 5], 1).starts_with("expected an input of 3 channels, got 4"));
    assert_eq!(call([1, 3, 8, 8], [3, 1, 5, 5], 0), "expected stride >= 1, got 0");
    assert_eq!(call([1, 3, 0, 8], [3, 1, 5, 5], 1), "expected height >= 1 and width >= 1, got 0x8");
}
