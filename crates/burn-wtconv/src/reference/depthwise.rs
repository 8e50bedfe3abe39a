//! Depthwise convolution with zero "same" padding and the gradient of its filters, without a loop over channels where
//! that would cost a launch for each.

use burn::tensor::backend::Backend;
use burn::tensor::module::conv2d;
use burn::tensor::ops::ConvOptions;
use burn::tensor::{Tensor, TensorPrimitive, s};

/// Zeros before and after each spatial axis that keep the extent under a `kernel_size` filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SamePadding {
    before: usize,
    after: usize,
}

impl SamePadding {
    /// PyTorch's `padding="same"`: `(kernel_size - 1) / 2` zeros, rounded down, before; the rest after.
    pub(super) fn new(kernel_size: usize) -> Self {
        let before = (kernel_size - 1) / 2;
        Self { before, after: kernel_size - 1 - before }
    }

    /// The padding of the adjoint, which is the convolution with the filter turned by 180 degrees.
    pub(super) fn adjoint(self) -> Self {
        Self { before: self.after, after: self.before }
    }
}

/// Adds zeros around the two spatial axes, in the dtype of `x`.
///
/// `Tensor::pad` of Burn 0.21 creates its canvas in the backend's default dtype and so mixes dtypes for others.
pub(super) fn zero_pad<B: Backend>(x: Tensor<B, 4>, rows: [usize; 2], cols: [usize; 2]) -> Tensor<B, 4> {
    if rows == [0, 0] && cols == [0, 0] {
        return x;
    }
    let [batch, channels, height, width] = x.dims();
    let shape = [batch, channels, rows[0] + height + rows[1], cols[0] + width + cols[1]];
    let canvas = Tensor::zeros(shape, (&x.device(), x.dtype()));
    canvas.slice_assign(s![.., .., rows[0]..rows[0] + height, cols[0]..cols[0] + width], x)
}

/// Whether one convolution a channel is a fair price for the gradient of a depthwise filter, as Burn 0.21 computes it.
///
/// On a CPU it is: a training step of a 5x5 filter on 2x96x56x56 to 2x768x7x7 takes Flex 1.4 to 3 times as long by
/// [`by_rows`]. A GPU spends one launch on each channel, and a few milliseconds of work become hundreds.
fn channels_are_cheap<B: Backend>(device: &B::Device) -> bool {
    let name = B::name(device);
    ["flex", "ndarray"].iter().any(|cpu| name.contains(cpu))
}

/// Depthwise convolution: `y[b,c,i,j] = sum over ky,kx of filters[c,ky,kx] * x[b,c,i+ky-before,j+kx-before]`.
///
/// This is Burn's `conv2d`, but under autodiff on a GPU it is [`by_rows`], for the sake of the filter gradient.
///
/// # Shapes
///
/// - `x`: `[batch, channels, height, width]`
/// - `filters`: `[channels, kernel_size, kernel_size]`
/// - output: as `x`
pub(super) fn convolve<B: Backend>(
    x: Tensor<B, 4>,
    filters: Tensor<B, 3>,
    padding: SamePadding,
) -> Tensor<B, 4> {
    if B::ad_enabled(&x.device()) && !channels_are_cheap::<B>(&x.device()) {
        return by_rows(x, filters, padding);
    }
    let SamePadding { before, after } = padding;
    let [channels, _, _] = filters.dims();
    let filters = filters.unsqueeze_dim(1);
    if before == after {
        conv2d(x, filters, None, ConvOptions::new([1, 1], [before, before], [1, 1], channels))
    } else {
        let x = zero_pad(x, [before, after], [before, after]);
        conv2d(x, filters, None, ConvOptions::new([1, 1], [0, 0], [1, 1], channels))
    }
}

/// Depthwise convolution as one product a plane, `[K, K] @ [K, rows * width]`, and `K` shifted additions.
///
/// The right factor holds the `K` column shifts of the padded plane; the product convolves every row with every
/// filter row, and the additions bring filter row `ky` to output row `i` from input row `i + ky`. All that the
/// autodiff graph keeps is that factor (`K` times `x`), and no gradient loops over channels.
fn by_rows<B: Backend>(x: Tensor<B, 4>, filters: Tensor<B, 3>, padding: SamePadding) -> Tensor<B, 4> {
    let [batch, channels, height, width] = x.dims();
    let [_, kernel_size, _] = filters.dims();
    let columns = column_shifts(x, kernel_size, padding);
    let [_, _, _, rows, _] = columns.dims();
    let columns = columns.reshape([batch, channels, kernel_size, rows * width]);
    let products =
        filters.unsqueeze_dim::<4>(0).matmul(columns).reshape([batch, channels, kernel_size, rows, width]);
    (0..kernel_size)
        .map(|ky| products.clone().slice(s![.., .., ky..ky + 1, ky..ky + height, ..]).squeeze_dim::<4>(2))
        .reduce(|sum, term| sum + term)
        .expect("the kernel size is at least 1")
}

/// The `kernel_size` column shifts of `x` padded: `out[b,c,kx,r,j] = x[b,c,r-before,j+kx-before]`, zero outside.
fn column_shifts<B: Backend>(x: Tensor<B, 4>, kernel_size: usize, padding: SamePadding) -> Tensor<B, 5> {
    let [_, _, _, width] = x.dims();
    let around = [padding.before, padding.after];
    let padded = zero_pad(x, around, around);
    let shifts = (0..kernel_size).map(|kx| padded.clone().slice(s![.., .., .., kx..kx + width]));
    Tensor::stack(shifts.collect(), 2)
}

/// Gradient of the filters of [`convolve`]:
/// `dw[c,ky,kx] = sum over b,i,j of dy[b,c,i,j] * x[b,c,i+ky-before,j+kx-before]`.
///
/// # Shapes
///
/// - `x`, `dy`: `[batch, channels, height, width]`
/// - output: `[channels, kernel_size, kernel_size]`
pub(super) fn filter_gradient<B: Backend>(
    x: Tensor<B, 4>,
    dy: Tensor<B, 4>,
    kernel_size: usize,
    padding: SamePadding,
) -> Tensor<B, 3> {
    let [batch, channels, height, width] = x.dims();
    let around = [padding.before, padding.after];
    let padded = zero_pad(x, around, around);
    if channels_are_cheap::<B>(&dy.device()) {
        let filters =
            Tensor::<B, 4>::zeros([channels, 1, kernel_size, kernel_size], (&dy.device(), dy.dtype()));
        let gradient = TensorPrimitive::Float(B::conv2d_weight_backward(
            padded.into_primitive().tensor(),
            filters.into_primitive().tensor(),
            dy.into_primitive().tensor(),
            ConvOptions::new([1, 1], [0, 0], [1, 1], channels),
        ));
        return Tensor::<B, 4>::from_primitive(gradient).squeeze_dim(1);
    }
    let taps = (0..kernel_size * kernel_size).map(|tap| {
        let (ky, kx) = (tap / kernel_size, tap % kernel_size);
        let shifted = padded.clone().slice(s![.., .., ky..ky + height, kx..kx + width]);
        (shifted * dy.clone()).reshape([batch, channels, height * width]).sum_dim(2).sum_dim(0)
    });
    Tensor::cat(taps.collect(), 2).reshape([channels, kernel_size, kernel_size])
}
