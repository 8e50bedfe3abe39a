//! CubeCL backends: the fused kernels on the client and device of the tensors.

use burn::tensor::ops::{FloatTensor, FloatTensorOps};
use burn::tensor::{DType, Shape, Slice, TensorMetadata};
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::ops::numeric::zeros_client;
use burn_cubecl::tensor::CubeTensor;
use burn_cubecl::{BoolElement, CubeBackend, CubeRuntime, FloatElement, IntElement};
use burn_std::Metadata;
use burn_std::tensor::contiguous_strides;
use wtconv_kernels::{
    DeviceLimits, Dtype, Launcher, Operands, Output, Parameters, Problem, Refusal, Strategy, Strided, Tensor,
    filter_gradient_plan, operator_plan,
};

use super::{ParameterGradientPrimitives, WtConvBackend, tensor_ops};
use crate::reference::WantedGradients;
use crate::{Route, RouteKind, WtConv2dProblem};

impl<R, F, I, BT> WtConvBackend for CubeBackend<R, F, I, BT>
where
    R: CubeRuntime,
    F: FloatElement,
    I: IntElement,
    BT: BoolElement,
{
    fn route(problem: &WtConv2dProblem, device: &Self::Device) -> Route {
        let limits = DeviceLimits::of(&R::client(device));
        match plan(problem, &limits) {
            Ok(plan) => Route::Fused { plan },
            Err(reason) => Route::TensorOps { reason },
        }
    }

    fn wtconv2d(
        x: FloatTensor<Self>,
        filters: FloatTensor<Self>,
        scales: Option<FloatTensor<Self>>,
        bias: Option<FloatTensor<Self>>,
        stride: usize,
        route: RouteKind,
    ) -> FloatTensor<Self> {
        if route == RouteKind::TensorOps {
            return tensor_ops::forward::<Self>(x, filters, scales, bias, stride);
        }
        let parameters = KernelParameters::new(filters, scales, bias);
        let y = launch_strided(x, |launcher, x| launcher.forward(x, &parameters.borrow()));
        match stride {
            1 => y,
            _ => Self::float_slice(y, &every(stride)),
        }
    }

    fn wtconv2d_input_gradient(
        dy: FloatTensor<Self>,
        filters: FloatTensor<Self>,
        scales: Option<FloatTensor<Self>>,
        extent: [usize; 2],
        stride: usize,
        route: RouteKind,
    ) -> FloatTensor<Self> {
        if route == RouteKind::TensorOps {
            return tensor_ops::input_gradient::<Self>(dy, filters, scales, extent, stride);
        }
        let parameters = KernelParameters::new(filters, scales, None);
        let dy = upsampled::<Self, R>(dy, extent, stride);
        launch_strided(dy, |launcher, dy| launcher.input_gradient(dy, &parameters.borrow()))
    }

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
        // The bias alone needs the sum of the cotangent only, which is no work for the pyramids.
        if route == RouteKind::TensorOps || !(wanted.filters || wanted.scales) {
            return tensor_ops::parameter_gradients::<Self>(x, dy, filters, scales, bias, stride, wanted);
        }
        let [_, _, height, width] = x.shape().dims();
        let dy = upsampled::<Self, R>(dy, [height, width], stride);
        let has_bias = bias.is_some();
        let parameters = KernelParameters::new(filters, scales, bias);
        let launcher = Launcher::new(&x.client);
        let launch = |x: &CubeTensor<R>, dy: &CubeTensor<R>| {
            launcher.filter_gradient(&describe(x), &describe(dy), &parameters.borrow())
        };
        let gradients = launch(&x, &dy)
            .or_else(|_| launch(&into_contiguous(x.clone()), &into_contiguous(dy)))
            .unwrap_or_else(|refusal| panic!("the route was fused, but {refusal}"));
        let like = |parameter: &CubeTensor<R>, handle| {
            let shape = parameter.meta.shape().clone();
            let strides = contiguous_strides(&shape);
            let metadata = Metadata::new(shape, strides);
            let (client, device) = (parameter.client.clone(), parameter.device.clone());
            CubeTensor::new(client, handle, metadata, device, parameter.dtype)
        };
        ParameterGradientPrimitives {
            filters: wanted.filters.then(|| like(&parameters.filters, gradients.filters)),
            scales: parameters
                .scales
                .as_ref()
                .zip(gradients.scales)
                .filter(|_| wanted.scales)
                .map(|(scales, gradient)| like(scales, gradient)),
            bias: parameters
                .bias
                .as_ref()
                .filter(|_| has_bias && wanted.bias)
                .map(|bias| like(bias, gradients.bias)),
        }
    }
}

/// The plan of forward and both gradients for contiguous tensors in words, or why there is none.
fn plan(problem: &WtConv2dProblem, limits: &DeviceLimits) -> Result<String, String> {
    let [batch, channels, height, width] = problem.shape;
    if batch == 0 {
        return Err("there is nothing to launch for an empty batch".to_owned());
    }
    let dtype = kernel_dtype(problem.dtype)
        .ok_or_else(|| format!("the fused kernels take F32, F16 and BF16, got {:?}", problem.dtype))?;
    let WtConv2dProblem { kernel_size, levels, .. } = *problem;
    let problem = Problem { batch, channels, height, width, kernel_size, levels };
    let contiguous = Strided::contiguous([batch, channels, height, width]);
    let operands = Operands { x: contiguous, y: contiguous, dtype, parameter_dtype: dtype };
    let operator = |rotate| operator_plan(&problem, &operands, rotate, limits, Strategy::Auto);
    let plans = || -> Result<[usize; 3], Refusal> {
        let gradient = filter_gradient_plan(&problem, &operands, limits, Strategy::Auto)?;
        Ok([operator(false)?.launches(), operator(true)?.launches(), gradient.launches()])
    };
    let [forward, input_gradient, filter_gradient] = plans().map_err(|refusal| refusal.to_string())?;
    Ok(format!("{forward} launches forward, {} backward", input_gradient + filter_gradient))
}

fn kernel_dtype(dtype: DType) -> Option<Dtype> {
    match dtype {
        DType::F32 => Some(Dtype::F32),
        DType::F16 => Some(Dtype::F16),
        DType::BF16 => Some(Dtype::BF16),
        _ => None,
    }
}

/// A `[batch, channels, height, width]` tensor of a route that is fused.
fn describe<R: CubeRuntime>(tensor: &CubeTensor<R>) -> Tensor<'_> {
    let strides = tensor.meta.strides();
    Tensor {
        handle: &tensor.handle,
        shape: tensor.meta.shape().dims(),
        strided: Strided { offset: 0, strides: [strides[0], strides[1], strides[2], strides[3]] },
        dtype: kernel_dtype(tensor.dtype).expect("a fused route has a dtype of the kernels"),
    }
}

/// Launches on `x` as it lies in memory.
///
/// The route was planned for a contiguous tensor. Where the view itself is refused (its elements may lie further apart
/// than the device can address), its contiguous copy is not.
fn launch_strided<R: CubeRuntime>(
    x: CubeTensor<R>,
    launch: impl Fn(&Launcher<'_, R>, &Tensor<'_>) -> Result<Output, Refusal>,
) -> CubeTensor<R> {
    let launcher = Launcher::new(&x.client);
    let output = launch(&launcher, &describe(&x))
        .or_else(|_| launch(&launcher, &describe(&into_contiguous(x.clone()))))
        .unwrap_or_else(|refusal| panic!("the route was fused, but {refusal}"));
    let metadata = Metadata::new(x.meta.shape().clone(), output.strided.strides);
    CubeTensor::new(x.client.clone(), output.handle, metadata, x.device.clone(), x.dtype)
}

/// The parameters as the kernels want them: where they lie, as long as the taps of a row are neighbours. (Allocators pad rows, so
/// that parameters are rarely contiguous, and a copy would cost as much as a small layer.)
struct KernelParameters<R: CubeRuntime> {
    filters: CubeTensor<R>,
    scales: Option<CubeTensor<R>>,
    bias: Option<CubeTensor<R>>,
}

impl<R: CubeRuntime> KernelParameters<R> {
    fn new(filters: CubeTensor<R>, scales: Option<CubeTensor<R>>, bias: Option<CubeTensor<R>>) -> Self {
        let [_, _, kernel_size, _] = filters.meta.shape().dims();
        let rows = kernel_size == 1 || filters.meta.strides()[3] == 1;
        Self {
            filters: if rows { filters } else { into_contiguous(filters) },
            scales,
            bias: bias.map(into_contiguous),
        }
    }

    fn borrow(&self) -> Parameters<'_> {
        let [_, bands, kernel_size, _] = self.filters.meta.shape().dims();
        let strides = self.filters.meta.strides();
        let scale_strides = self.scales.as_ref().map(|scales| scales.meta.strides());
        Parameters {
            filters: &self.filters.handle,
            filter_strides: [strides[0], strides[1], strides[2]],
            scales: self.scales.as_ref().map(|scales| &scales.handle),
            scale_strides: scale_strides.map_or([0; 2], |strides| [strides[0], strides[1]]),
            bias: self.bias.as_ref().map(|bias| &bias.handle),
            kernel_size,
            levels: bands / 4,
            dtype: kernel_dtype(self.filters.dtype).expect("a fused route has a dtype of the kernels"),
        }
    }
}

/// `[:, :, ::stride, ::stride]`.
fn every(stride: usize) -> [Slice; 4] {
    let step = Slice::new(0, None, stride as isize);
    [Slice::full(), Slice::full(), step, step]
}

/// `dy` with zeros between, the adjoint of [`every`]`(stride)` of a plane of `extent`.
fn upsampled<B, R>(dy: CubeTensor<R>, [height, width]: [usize; 2], stride: usize) -> CubeTensor<R>
where
    R: CubeRuntime,
    B: FloatTensorOps<B> + burn::tensor::backend::Backend<FloatTensorPrimitive = CubeTensor<R>>,
{
    if stride == 1 {
        return dy;
    }
    let [batch, channels, _, _] = dy.shape().dims();
    let shape = Shape::new([batch, channels, height, width]);
    let zeros = zeros_client(dy.client.clone(), dy.device.clone(), shape, dy.dtype);
    B::float_slice_assign(zeros, &every(stride), dy)
}
