//! Strides: every view gives what its contiguous copy gives.

use burn::backend::Autodiff;
use burn::tensor::{Tensor, s};
use burn_wtconv::WtConvBackend;
use wtconv_oracle::Problem;

use super::tensors::{Arguments, Case, Outcome, Precision, tensor, values};

type A<B> = Autodiff<B>;

fn case(seed: u64) -> Case {
    let problem =
        Problem { batch: 2, channels: 3, height: 9, width: 14, kernel_size: 5, levels: 2, stride: 1 };
    Case::random(problem, true, seed)
}

/// Runs `case` with its input and its cotangent replaced by views that `view` makes of leaves.
fn check_view<B: WtConvBackend>(
    case: &Case,
    view: impl Fn(&[f64], [usize; 4]) -> Tensor<A<B>, 4>,
    device: &B::Device,
    precision: Precision,
) {
    let contiguous = Arguments::<A<B>>::new(case, precision.dtype, device);
    let arguments = Arguments { x: view(&case.x, case.input_shape()).detach(), ..contiguous }.tracked();
    let y = arguments.forward(case.problem.stride);
    let dy = view(&case.dy, case.output_shape());
    let got = Outcome { y: values(y.clone()), gradients: arguments.gradients((y * dy).sum()) };
    got.assert_close(&case.oracle(), precision.oracle, "a view");
}

/// `[batch, channels, height, width]` views of channels-last memory, as Burn's convolutions return them.
pub fn channels_last_views_agree<B: WtConvBackend>(device: &B::Device, precision: Precision) {
    let view = |data: &[f64], shape: [usize; 4]| {
        let contiguous = tensor::<A<B>, 4>(data, shape, precision.dtype, device);
        // A round trip through a computed channels-last tensor, so that the last view is not undone.
        let channels_last = contiguous.permute([0, 2, 3, 1]) * 1.0;
        channels_last.permute([0, 3, 1, 2])
    };
    check_view::<B>(&case(1), view, device, precision);
}

pub fn slices_at_odd_offsets_agree<B: WtConvBackend>(device: &B::Device, precision: Precision) {
    let view = |data: &[f64], [batch, channels, height, width]: [usize; 4]| {
        let larger = Tensor::<A<B>, 4>::full(
            [batch + 1, channels + 2, height + 3, width + 5],
            f32::NAN,
            (device, precision.dtype),
        );
        let ranges = s![1..1 + batch, 1..1 + channels, 2..2 + height, 3..3 + width];
        let inner = tensor(data, [batch, channels, height, width], precision.dtype, device);
        larger.slice_assign(ranges, inner).slice(ranges)
    };
    check_view::<B>(&case(2), view, device, precision);
}

/// The batch and the channels have stride 0.
pub fn expanded_inputs_agree<B: WtConvBackend>(device: &B::Device, precision: Precision) {
    let mut case = case(3);
    let pixels = case.problem.height * case.problem.width;
    for values in [&mut case.x, &mut case.dy] {
        let plane = values[..pixels].to_vec();
        values.chunks_mut(pixels).for_each(|chunk| chunk.copy_from_slice(&plane));
    }
    let view = |data: &[f64], shape: [usize; 4]| {
        let [_, _, height, width] = shape;
        let plane = tensor::<A<B>, 4>(&data[..pixels], [1, 1, height, width], precision.dtype, device);
        plane.expand(shape)
    };
    check_view::<B>(&case, view, device, precision);
}

/// `sum().backward()` hands the operator a cotangent of one element, expanded.
pub fn expanded_cotangents_agree<B: WtConvBackend>(device: &B::Device, precision: Precision) {
    let mut case = case(4);
    case.dy.fill(1.0);
    let arguments = Arguments::<A<B>>::new(&case, precision.dtype, device).tracked();
    let y = arguments.forward(1);
    let got = Outcome { y: values(y.clone()), gradients: arguments.gradients(y.sum()) };
    got.assert_close(&case.oracle(), precision.oracle, "sum().backward()");
}
