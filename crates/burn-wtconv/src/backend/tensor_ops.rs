//! The defaults of the trait: the reference operator on tensor primitives.

use burn::tensor::backend::Backend;
use burn::tensor::ops::FloatTensor;
use burn::tensor::{Tensor, TensorPrimitive};

use super::ParameterGradientPrimitives;
use crate::reference::{self, WantedGradients};

pub(super) fn forward<B: Backend>(
    x: FloatTensor<B>,
    filters: FloatTensor<B>,
    scales: Option<FloatTensor<B>>,
    bias: Option<FloatTensor<B>>,
    stride: usize,
) -> FloatTensor<B> {
    into_float(reference::forward::<B>(
        from_float(x),
        from_float(filters),
        scales.map(from_float),
        bias.map(from_float),
        stride,
    ))
}

pub(super) fn input_gradient<B: Backend>(
    dy: FloatTensor<B>,
    filters: FloatTensor<B>,
    scales: Option<FloatTensor<B>>,
    extent: [usize; 2],
    stride: usize,
) -> FloatTensor<B> {
    into_float(reference::input_gradient::<B>(
        from_float(dy),
        from_float(filters),
        scales.map(from_float),
        extent,
        stride,
    ))
}

pub(super) fn parameter_gradients<B: Backend>(
    x: FloatTensor<B>,
    dy: FloatTensor<B>,
    filters: FloatTensor<B>,
    scales: Option<FloatTensor<B>>,
    bias: Option<FloatTensor<B>>,
    stride: usize,
    wanted: WantedGradients,
) -> ParameterGradientPrimitives<B> {
    let gradients = reference::parameter_gradients::<B>(
        from_float(x),
        from_float(dy),
        from_float(filters),
        scales.map(from_float),
        bias.map(from_float),
        stride,
        wanted,
    );
    ParameterGradientPrimitives {
        filters: gradients.filters.map(into_float),
        scales: gradients.scales.map(into_float),
        bias: gradients.bias.map(into_float),
    }
}

fn from_float<B: Backend, const D: usize>(tensor: FloatTensor<B>) -> Tensor<B, D> {
    Tensor::from_primitive(TensorPrimitive::Float(tensor))
}

fn into_float<B: Backend, const D: usize>(tensor: Tensor<B, D>) -> FloatTensor<B> {
    tensor.into_primitive().tensor()
}
