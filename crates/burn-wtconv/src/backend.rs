//! The extension trait, its tensor-op defaults and its implementations.

mod autodiff;
#[cfg(feature = "cubecl")]
mod cube;
#[cfg(feature = "cubecl")]
mod fusion;
mod tensor_ops;

use burn::tensor::backend::Backend;
use burn::tensor::ops::FloatTensor;

use crate::reference::WantedGradients;
use crate::{Route, RouteKind, WtConv2dProblem};

/// A backend that can run wavelet convolutions.
///
/// The methods default to the tensor ops of [`reference`](mod@crate::reference); a backend with kernels overrides them. Models
/// are written generic over `B: WtConvBackend` (training code over `B: AutodiffBackend + WtConvBackend`) and call
/// [`WtConv2d::forward`](crate::WtConv2d::forward) or [`wtconv2d`](crate::wtconv2d), which check the arguments; these
/// methods do not.
///
/// To use the layer on another backend, `impl WtConvBackend for MyBackend {}`.
pub trait WtConvBackend: Backend {
    /// The way a call would go on `device`.
    fn route(problem: &WtConv2dProblem, device: &Self::Device) -> Route {
        let _ = problem;
        Route::TensorOps { reason: format!("the backend {} has no fused kernels", Self::name(device)) }
    }

    /// Forward, with the arguments of [`wtconv2d`](crate::wtconv2d); without scales, of
    /// [`depthwise_conv2d`](crate::depthwise_conv2d).
    ///
    /// `route` is what [`route`](Self::route) said of the call, or [`RouteKind::TensorOps`] if that was forced.
    fn wtconv2d(
        x: FloatTensor<Self>,
        filters: FloatTensor<Self>,
        scales: Option<FloatTensor<Self>>,
        bias: Option<FloatTensor<Self>>,
        stride: usize,
        route: RouteKind,
    ) -> FloatTensor<Self> {
        let _ = route;
        tensor_ops::forward::<Self>(x, filters, scales, bias, stride)
    }

    /// Gradient of the input, see [`reference::input_gradient`](crate::reference::input_gradient).
    fn wtconv2d_input_gradient(
        dy: FloatTensor<Self>,
        filters: FloatTensor<Self>,
        scales: Option<FloatTensor<Self>>,
        extent: [usize; 2],
        stride: usize,
        route: RouteKind,
    ) -> FloatTensor<Self> {
        let _ = route;
        tensor_ops::input_gradient::<Self>(dy, filters, scales, extent, stride)
    }

    /// Gradients of the wanted parameters, see [`reference::parameter_gradients`](crate::reference::parameter_gradients).
    #[allow(clippy::too_many_arguments)] // The operator has that many: two tensors, three parameters and its options.
    fn wtconv2d_parameter_gradients(
        x: FloatTensor<Self>,
        dy: FloatTensor<Self>,
        filters: FloatTensor<Self>,
        scales: Option<FloatTensor<Self>>,
        bias: Option<FloatTensor<Self>>,
        stride: usize,
        wanted: WantedGradients,
        route: RouteKind,
    ) -> ParameterGradientPrimitives<Self> {
        let _ = route;
        tensor_ops::parameter_gradients::<Self>(x, dy, filters, scales, bias, stride, wanted)
    }
}

/// [`ParameterGradients`](crate::reference::ParameterGradients) as the tensor primitives of a backend.
#[derive(Clone, Debug)]
pub struct ParameterGradientPrimitives<B: Backend> {
    /// `[channels, 1 + 4 * levels, kernel_size, kernel_size]`
    pub filters: Option<FloatTensor<B>>,
    /// `[channels, 1 + 4 * levels]`
    pub scales: Option<FloatTensor<B>>,
    /// `[channels]`
    pub bias: Option<FloatTensor<B>>,
}

#[cfg(feature = "flex")]
impl WtConvBackend for burn::backend::Flex {}

#[cfg(feature = "ndarray")]
mod ndarray {
    use burn::backend::NdArray;
    use burn::backend::ndarray::{
        FloatNdArrayElement, IntNdArrayElement, NdArrayTensor, QuantElement, SharedArray,
    };

    impl<E, I, Q> super::WtConvBackend for NdArray<E, I, Q>
    where
        E: FloatNdArrayElement,
        I: IntNdArrayElement,
        Q: QuantElement,
        NdArrayTensor: From<SharedArray<E>> + From<SharedArray<I>>,
    {
    }
}
