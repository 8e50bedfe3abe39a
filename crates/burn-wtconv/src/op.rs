use std::collections::HashSet;
use std::sync::{LazyLock, Mutex};

use burn::tensor::{Tensor, TensorPrimitive};

use crate::error::{check_depthwise_conv2d, check_wtconv2d};
use crate::{Route, RouteKind, WtConv2dProblem, WtConvBackend, WtConvError};

/// Wavelet convolution: fused where the backend has kernels for it, tensor ops otherwise.
///
/// ```text
/// y = s0 * (w0 (*) x + b)  +  sum over l, s of  A_l^T_s ( s_ls * ( w_ls (*) A_l_s x ) )
/// ```
///
/// (arXiv 2407.05848; see [`reference`](mod@crate::reference) for the terms.) Under `Autodiff` the backward keeps the
/// input and the parameters and nothing else, and computes the gradients of tracked arguments only.
///
/// # Shapes
///
/// - `x`: `[batch, channels, height, width]`, any `height, width >= 1`; the batch may be empty
/// - `filters`: `[channels, 1 + 4 * levels, kernel_size, kernel_size]`: index 0 is the base filter,
///   `1 + 4 * (l - 1) + s` the filter of level `l` and subband `s` (LL, LH, HL, HH)
/// - `scales`: `[channels, 1 + 4 * levels]`
/// - `bias`: `[channels]`
/// - output: `[batch, channels, ceil(height / stride), ceil(width / stride)]`
///
/// All of one float dtype, on one device.
///
/// # Panics
///
/// Where [`try_wtconv2d`] returns an error, with its message.
pub fn wtconv2d<B: WtConvBackend>(
    x: Tensor<B, 4>,
    filters: Tensor<B, 4>,
    scales: Tensor<B, 2>,
    bias: Option<Tensor<B, 1>>,
    stride: usize,
) -> Tensor<B, 4> {
    try_wtconv2d(x, filters, scales, bias, stride, None).unwrap_or_else(|error| panic!("{error}"))
}

/// [`wtconv2d`] with errors instead of panics, and with a route that can be forced.
///
/// # Errors
///
/// If the arguments do not belong together, or if `forced` is [`RouteKind::Fused`] and the fused kernels do not take
/// the call. A forced route never falls back.
pub fn try_wtconv2d<B: WtConvBackend>(
    x: Tensor<B, 4>,
    filters: Tensor<B, 4>,
    scales: Tensor<B, 2>,
    bias: Option<Tensor<B, 1>>,
    stride: usize,
    forced: Option<RouteKind>,
) -> Result<Tensor<B, 4>, WtConvError> {
    check_wtconv2d(&x, &filters, Some(&scales), bias.as_ref(), stride)?;
    call(x, filters, Some(scales), bias, stride, forced)
}

/// Depthwise convolution with zero "same" padding: fused where the backend has kernels for it, tensor ops otherwise.
///
/// ```text
/// y[b,c,i,j] = bias[c] + sum over ky,kx of weight[c,0,ky,kx] * x[b,c,i+ky-R,j+kx-R]      R = (kernel_size - 1) / 2
/// ```
///
/// This is [`wtconv2d`] without levels and without a scale, by the same kernels. Under `Autodiff` the gradient of the weight
/// is one computation for all channels, summed in a fixed order.
///
/// # Shapes
///
/// - `x`: `[batch, channels, height, width]`, any `height, width >= 1`; the batch may be empty
/// - `weight`: `[channels, 1, kernel_size, kernel_size]`
/// - `bias`: `[channels]`
/// - output: `[batch, channels, ceil(height / stride), ceil(width / stride)]`
///
/// All of one float dtype, on one device.
///
/// # Panics
///
/// Where [`try_depthwise_conv2d`] returns an error, with its message.
pub fn depthwise_conv2d<B: WtConvBackend>(
    x: Tensor<B, 4>,
    weight: Tensor<B, 4>,
    bias: Option<Tensor<B, 1>>,
    stride: usize,
) -> Tensor<B, 4> {
    try_depthwise_conv2d(x, weight, bias, stride, None).unwrap_or_else(|error| panic!("{error}"))
}

/// [`depthwise_conv2d`] with errors instead of panics, and with a route that can be forced.
///
/// # Errors
///
/// If the arguments do not belong together, or if `forced` is [`RouteKind::Fused`] and the fused kernels do not take
/// the call. A forced route never falls back.
pub fn try_depthwise_conv2d<B: WtConvBackend>(
    x: Tensor<B, 4>,
    weight: Tensor<B, 4>,
    bias: Option<Tensor<B, 1>>,
    stride: usize,
    forced: Option<RouteKind>,
) -> Result<Tensor<B, 4>, WtConvError> {
    check_depthwise_conv2d(&x, &weight, bias.as_ref(), stride)?;
    call(x, weight, None, bias, stride, forced)
}

/// A call with arguments that belong together.
fn call<B: WtConvBackend>(
    x: Tensor<B, 4>,
    filters: Tensor<B, 4>,
    scales: Option<Tensor<B, 2>>,
    bias: Option<Tensor<B, 1>>,
    stride: usize,
    forced: Option<RouteKind>,
) -> Result<Tensor<B, 4>, WtConvError> {
    let route = resolve(B::route(&problem(&x, &filters, stride), &x.device()), forced)?;
    let float = TensorPrimitive::Float(B::wtconv2d(
        x.into_primitive().tensor(),
        filters.into_primitive().tensor(),
        scales.map(|scales| scales.into_primitive().tensor()),
        bias.map(|bias| bias.into_primitive().tensor()),
        stride,
        route,
    ));
    Ok(Tensor::from_primitive(float))
}

pub(crate) fn problem<B: WtConvBackend>(
    x: &Tensor<B, 4>,
    filters: &Tensor<B, 4>,
    stride: usize,
) -> WtConv2dProblem {
    let [_, bands, kernel_size, _] = filters.dims();
    WtConv2dProblem { shape: x.dims(), kernel_size, levels: bands / 4, stride, dtype: x.dtype() }
}

fn resolve(route: Route, forced: Option<RouteKind>) -> Result<RouteKind, WtConvError> {
    match (route, forced) {
        (_, Some(RouteKind::TensorOps)) => Ok(RouteKind::TensorOps),
        (Route::TensorOps { reason }, Some(RouteKind::Fused)) => Err(WtConvError::Refused { reason }),
        (Route::TensorOps { reason }, None) => {
            log_once(reason);
            Ok(RouteKind::TensorOps)
        }
        (Route::Fused { .. }, _) => Ok(RouteKind::Fused),
    }
}

/// Logs each reason for tensor ops once a process: the reason is the same at every step of a training run.
fn log_once(reason: String) {
    static LOGGED: LazyLock<Mutex<HashSet<String>>> = LazyLock::new(Mutex::default);
    let mut logged = LOGGED.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if !logged.contains(&reason) {
        log::info!("wavelet convolution through tensor ops: {reason}");
        logged.insert(reason);
    }
}
