//! The operator and its gradients in plain tensor ops, on any Burn backend and any float dtype.
//!
//! ```text
//! y = s0 * (w0 (*) x + b)  +  sum over l = 1..L, s in {LL, LH, HL, HH} of  A_l^T_s ( s_ls * ( w_ls (*) A_l_s x ) )
//! ```
//!
//! where `(*)` is the depthwise convolution with zero "same" padding, `A_l` the Haar analysis down to level `l` and
//! `A_l^T` its adjoint, the synthesis (Finder et al., *Wavelet Convolutions for Large Receptive Fields*, ECCV 2024,
//! arXiv 2407.05848). Level `l + 1` analyses the unfiltered LL subband of level `l`. Odd extents are padded with
//! zeros at the bottom and right before each analysis step and cropped after the matching synthesis step.
//!
//! [`wtconv2d`] is differentiable by Burn's autodiff. [`input_gradient`] and [`parameter_gradients`] are the same
//! gradients written out, so that a custom backward needs to keep nothing but the input and the parameters:
//!
//! * Synthesis is the adjoint of analysis, cropping that of zero padding; hence `dx` is the same operator applied to
//!   `dy` with every filter turned by 180 degrees and without the bias.
//! * `dw~_ls[ky,kx] = sum over b,i,j of (A_l_s dy)[i,j] * (A_l_s x)[i+ky-R, j+kx-R]`, and then
//!   `dw = s * dw~`, `ds = sum(w * dw~)`, `db = s0 * sum(dy)`, `ds0 += b * sum(dy)`.
//!
//! f16 and bf16 tensors are computed in f32 and rounded once at the end.

mod depthwise;
pub mod haar;

use burn::tensor::backend::Backend;
use burn::tensor::{DType, Tensor, s};

use crate::error::{check_depthwise_conv2d, check_wtconv2d};
use depthwise::{SamePadding, convolve, filter_gradient};

/// Which parameters a gradient is wanted of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WantedGradients {
    /// The filters.
    pub filters: bool,
    /// The scales.
    pub scales: bool,
    /// The bias.
    pub bias: bool,
}

/// Gradients of the parameters of a wavelet convolution that were wanted, each in its parameter's dtype.
#[derive(Clone, Debug)]
pub struct ParameterGradients<B: Backend> {
    /// `[channels, 1 + 4 * levels, kernel_size, kernel_size]`
    pub filters: Option<Tensor<B, 4>>,
    /// `[channels, 1 + 4 * levels]`
    pub scales: Option<Tensor<B, 2>>,
    /// `[channels]`
    pub bias: Option<Tensor<B, 1>>,
}

/// Wavelet convolution by tensor ops.
///
/// # Shapes
///
/// - `x`: `[batch, channels, height, width]`, any `height, width >= 1`
/// - `filters`: `[channels, 1 + 4 * levels, kernel_size, kernel_size]`: index 0 is the base filter,
///   `1 + 4 * (l - 1) + s` the filter of level `l` and subband `s` (LL, LH, HL, HH)
/// - `scales`: `[channels, 1 + 4 * levels]`
/// - `bias`: `[channels]`
/// - output: `[batch, channels, ceil(height / stride), ceil(width / stride)]`
///
/// Even kernel sizes pad as PyTorch's `padding="same"` does: `(kernel_size - 1) / 2` zeros before, the rest after. The
/// output of an empty batch is not part of an autodiff graph.
///
/// # Panics
///
/// If the shapes, dtypes or devices of the arguments do not belong together, or `stride` is 0; the message is that
/// of [`WtConvError`](crate::WtConvError).
pub fn wtconv2d<B: Backend>(
    x: Tensor<B, 4>,
    filters: Tensor<B, 4>,
    scales: Tensor<B, 2>,
    bias: Option<Tensor<B, 1>>,
    stride: usize,
) -> Tensor<B, 4> {
    check_wtconv2d(&x, &filters, Some(&scales), bias.as_ref(), stride)
        .unwrap_or_else(|error| panic!("{error}"));
    forward(x, filters, Some(scales), bias, stride)
}

/// Depthwise convolution by tensor ops: [`wtconv2d`] without levels and without a scale.
///
/// ```text
/// y[b,c,i,j] = bias[c] + sum over ky,kx of weight[c,0,ky,kx] * x[b,c,i+ky-R,j+kx-R]      R = (kernel_size - 1) / 2
/// ```
///
/// # Shapes
///
/// - `x`: `[batch, channels, height, width]`, any `height, width >= 1`
/// - `weight`: `[channels, 1, kernel_size, kernel_size]`
/// - `bias`: `[channels]`
/// - output: `[batch, channels, ceil(height / stride), ceil(width / stride)]`
///
/// # Panics
///
/// If the shapes, dtypes or devices of the arguments do not belong together, or `stride` is 0; the message is that
/// of [`WtConvError`](crate::WtConvError).
pub fn depthwise_conv2d<B: Backend>(
    x: Tensor<B, 4>,
    weight: Tensor<B, 4>,
    bias: Option<Tensor<B, 1>>,
    stride: usize,
) -> Tensor<B, 4> {
    check_depthwise_conv2d(&x, &weight, bias.as_ref(), stride).unwrap_or_else(|error| panic!("{error}"));
    forward(x, weight, None, bias, stride)
}

/// [`wtconv2d`] of checked arguments; the scales are 1 where there are none.
pub(crate) fn forward<B: Backend>(
    x: Tensor<B, 4>,
    filters: Tensor<B, 4>,
    scales: Option<Tensor<B, 2>>,
    bias: Option<Tensor<B, 1>>,
    stride: usize,
) -> Tensor<B, 4> {
    let dtype = x.dtype();
    let [batch, channels, height, width] = x.dims();
    if batch == 0 {
        return empty_batch([channels, height.div_ceil(stride), width.div_ceil(stride)], &x);
    }
    let (x, filters, scales) = (widened(x), widened(filters), scales.map(widened));
    let [_, _, kernel_size, _] = filters.dims();

    let base_bias = bias.map(|bias| {
        let bias = widened(bias).reshape([1, channels, 1, 1]);
        match &scales {
            Some(scales) => bias * flatten(base_scales(scales)).reshape([1, channels, 1, 1]),
            None => bias,
        }
    });
    let y = operator(x, fold(filters, scales), SamePadding::new(kernel_size));
    let y = match base_bias {
        Some(base_bias) => y + base_bias,
        None => y,
    };
    subsampled(y, stride).cast(dtype)
}

/// Gradient of the input of [`wtconv2d`]: its adjoint applied to the cotangent.
///
/// # Shapes
///
/// - `dy`: `[batch, channels, ceil(height / stride), ceil(width / stride)]`
/// - `filters`, `scales`: as in [`wtconv2d`]; without scales, of [`depthwise_conv2d`]
/// - output: `[batch, channels, height, width]`
pub fn input_gradient<B: Backend>(
    dy: Tensor<B, 4>,
    filters: Tensor<B, 4>,
    scales: Option<Tensor<B, 2>>,
    [height, width]: [usize; 2],
    stride: usize,
) -> Tensor<B, 4> {
    let dtype = dy.dtype();
    let [batch, channels, _, _] = dy.dims();
    if batch == 0 {
        return empty_batch([channels, height, width], &dy);
    }
    let (filters, scales) = (widened(filters), scales.map(widened));
    let [_, _, kernel_size, _] = filters.dims();
    let dy = upsampled(widened(dy), [height, width], stride);
    operator(dy, fold(filters, scales).flip([2, 3]), SamePadding::new(kernel_size).adjoint()).cast(dtype)
}

/// Gradients of the filters, scales and bias of [`wtconv2d`], those that are wanted.
///
/// # Shapes
///
/// - `x`, `filters`, `scales`, `bias`: as in [`wtconv2d`]
/// - `dy`: `[batch, channels, ceil(height / stride), ceil(width / stride)]`
///
/// Gradients of the scales and of the bias are returned only if there are `scales` and a `bias`.
pub fn parameter_gradients<B: Backend>(
    x: Tensor<B, 4>,
    dy: Tensor<B, 4>,
    filters: Tensor<B, 4>,
    scales: Option<Tensor<B, 2>>,
    bias: Option<Tensor<B, 1>>,
    stride: usize,
    wanted: WantedGradients,
) -> ParameterGradients<B> {
    let [channels, bands, kernel_size, _] = filters.dims();
    let dtype = filters.dtype();
    if x.dims()[0] == 0 {
        // Not every backend sums over an empty axis.
        return ParameterGradients {
            filters: wanted.filters.then(|| filters.zeros_like()),
            scales: scales.filter(|_| wanted.scales).map(|scales| scales.zeros_like()),
            bias: bias.filter(|_| wanted.bias).map(|bias| bias.zeros_like()),
        };
    }
    let (filters, scales, bias, dy) = (widened(filters), scales.map(widened), bias.map(widened), widened(dy));

    // Both need the sum of the cotangent; zeros between its pixels would not change it.
    let sums = bias.is_some().then(|| dy.clone().swap_dims(0, 1).flatten::<2>(1, 3).sum_dim(1));
    let bias_gradient = sums.clone().filter(|_| wanted.bias).map(|sums| {
        let gradient = match &scales {
            Some(scales) => base_scales(scales) * sums,
            None => sums,
        };
        gradient.reshape([channels]).cast(dtype)
    });
    if !(wanted.filters || wanted.scales) {
        return ParameterGradients { filters: None, scales: None, bias: bias_gradient };
    }

    let folded = folded_filter_gradients(widened(x), dy, bands, kernel_size, stride);
    let scale_gradients = scales.as_ref().filter(|_| wanted.scales).map(|_| {
        let gradients = (filters * folded.clone()).reshape([channels, bands, kernel_size * kernel_size]);
        let gradients = gradients.sum_dim(2).reshape([channels, bands]);
        let gradients = match (sums, bias) {
            (Some(sums), Some(bias)) => {
                let base = gradients.clone().slice(s![.., 0..1]) + sums * bias.reshape([channels, 1]);
                gradients.slice_assign(s![.., 0..1], base)
            }
            _ => gradients,
        };
        gradients.cast(dtype)
    });
    let filter_gradients = wanted.filters.then(|| fold(folded, scales).cast(dtype));
    ParameterGradients { filters: filter_gradients, scales: scale_gradients, bias: bias_gradient }
}

/// Gradients of the filters with the scales folded in, `[channels, bands, kernel_size, kernel_size]`.
fn folded_filter_gradients<B: Backend>(
    x: Tensor<B, 4>,
    dy: Tensor<B, 4>,
    bands: usize,
    kernel_size: usize,
    stride: usize,
) -> Tensor<B, 4> {
    let [_, channels, height, width] = x.dims();
    let padding = SamePadding::new(kernel_size);
    let (mut x_low, mut dy_low) = (x.clone(), upsampled(dy, [height, width], stride));
    let mut gradients = Vec::with_capacity(1 + bands / 4);
    gradients.push(filter_gradient(x, dy_low.clone(), kernel_size, padding).unsqueeze_dim::<4>(1));
    for _ in 0..bands / 4 {
        let (x_bands, dy_bands) = (haar::analysis(x_low), haar::analysis(dy_low));
        (x_low, dy_low) = (low_pass(x_bands.clone()), low_pass(dy_bands.clone()));
        let gradient =
            filter_gradient(merge_subbands(x_bands), merge_subbands(dy_bands), kernel_size, padding);
        gradients.push(gradient.reshape([channels, 4, kernel_size, kernel_size]));
    }
    Tensor::cat(gradients, 1)
}

/// The operator at stride 1 without bias, its scales already folded into `filters`.
fn operator<B: Backend>(x: Tensor<B, 4>, filters: Tensor<B, 4>, padding: SamePadding) -> Tensor<B, 4> {
    let [_, channels, _, _] = x.dims();
    let [_, bands, kernel_size, _] = filters.dims();
    let levels = bands / 4;

    let mut extents = Vec::with_capacity(levels);
    let mut filtered = Vec::with_capacity(levels);
    let mut low = x.clone();
    for level in 0..levels {
        let [_, _, height, width] = low.dims();
        let subbands = haar::analysis(low);
        low = low_pass(subbands.clone());
        let level_filters = filters.clone().slice(s![.., 1 + 4 * level..5 + 4 * level, .., ..]);
        let level_filters = level_filters.reshape([4 * channels, kernel_size, kernel_size]);
        extents.push([height, width]);
        filtered.push(convolve(merge_subbands(subbands), level_filters, padding));
    }

    let mut carried = None;
    for (subbands, extent) in filtered.into_iter().zip(extents).rev() {
        carried = Some(haar::synthesis(subbands, carried, extent));
    }

    let base = convolve(x, filters.slice(s![.., 0..1, .., ..]).squeeze_dim(1), padding);
    match carried {
        Some(carried) => base + carried,
        None => base,
    }
}

/// No image of `[channels, height, width]`, in the dtype and on the device of `like`: not every backend stacks, convolves,
/// broadcasts or fills empty tensors.
fn empty_batch<B: Backend>([channels, height, width]: [usize; 3], like: &Tensor<B, 4>) -> Tensor<B, 4> {
    Tensor::empty([0, channels, height, width], (&like.device(), like.dtype()))
}

/// `filters * scales`, one scale a filter.
fn fold<B: Backend>(filters: Tensor<B, 4>, scales: Option<Tensor<B, 2>>) -> Tensor<B, 4> {
    let [channels, bands, _, _] = filters.dims();
    match scales {
        Some(scales) => filters * flatten(scales).reshape([channels, bands, 1, 1]),
        None => filters,
    }
}

/// The scales of the base filters, `[channels, 1]`.
fn base_scales<B: Backend>(scales: &Tensor<B, 2>) -> Tensor<B, 2> {
    scales.clone().slice(s![.., 0..1])
}

/// All elements in one axis, from which every reshape is right.
///
/// A reshape that adds axes to a view which is not contiguous and has an axis of extent 1 takes wrong strides on the CubeCL
/// backends of Burn 0.21.
fn flatten<B: Backend>(tensor: Tensor<B, 2>) -> Tensor<B, 1> {
    tensor.flatten(0, 1)
}

/// `[batch, channels, 4, rows, cols]` as `[batch, 4 * channels, rows, cols]`: channel `4c + s` is subband `s` of `c`.
fn merge_subbands<B: Backend>(subbands: Tensor<B, 5>) -> Tensor<B, 4> {
    let [batch, channels, _, rows, cols] = subbands.dims();
    subbands.reshape([batch, 4 * channels, rows, cols])
}

/// The LL subband.
fn low_pass<B: Backend>(subbands: Tensor<B, 5>) -> Tensor<B, 4> {
    subbands.slice(s![.., .., 0..1, .., ..]).squeeze_dim(2)
}

/// `y[:, :, ::stride, ::stride]`.
fn subsampled<B: Backend>(y: Tensor<B, 4>, stride: usize) -> Tensor<B, 4> {
    match stride {
        1 => y,
        _ => y.slice(s![.., .., 0..;stride as isize, 0..;stride as isize]),
    }
}

/// The adjoint of [`subsampled`]: `dy` with zeros between.
fn upsampled<B: Backend>(dy: Tensor<B, 4>, [height, width]: [usize; 2], stride: usize) -> Tensor<B, 4> {
    match stride {
        1 => dy,
        _ => {
            let [batch, channels, _, _] = dy.dims();
            Tensor::zeros([batch, channels, height, width], (&dy.device(), dy.dtype()))
                .slice_assign(s![.., .., 0..;stride as isize, 0..;stride as isize], dy)
        }
    }
}

/// `tensor` in the dtype the operator is computed in: f32 for f16 and bf16, its own otherwise.
fn widened<B: Backend, const D: usize>(tensor: Tensor<B, D>) -> Tensor<B, D> {
    match tensor.dtype() {
        DType::F16 | DType::BF16 => tensor.cast(DType::F32),
        _ => tensor,
    }
}
