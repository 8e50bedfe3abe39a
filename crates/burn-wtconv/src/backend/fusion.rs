//! Burn's Fusion around another backend: the fused route is registered as custom operations, which no optimisation of
//! Fusion looks into; the tensor-op route is left to Fusion.

use std::marker::PhantomData;

use burn::tensor::ops::FloatTensor;
use burn::tensor::{DType, Shape, TensorMetadata};
use burn_fusion::stream::{Operation, OperationStreams};
use burn_fusion::{Fusion, FusionBackend, FusionRuntime};
use burn_ir::{CustomOpIr, HandleContainer, OperationIr, TensorIr};

use super::{ParameterGradientPrimitives, WtConvBackend, tensor_ops};
use crate::reference::WantedGradients;
use crate::{Route, RouteKind, WtConv2dProblem};

type Handles<B> = HandleContainer<<<B as FusionBackend>::FusionRuntime as FusionRuntime>::FusionHandle>;

impl<B: FusionBackend + WtConvBackend> WtConvBackend for Fusion<B> {
    fn route(problem: &WtConv2dProblem, device: &Self::Device) -> Route {
        B::route(problem, device)
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
        let [batch, channels, height, width] = x.shape().dims();
        let shape = Shape::new([batch, channels, height.div_ceil(stride), width.div_ceil(stride)]);
        let outputs = vec![(shape, x.dtype())];
        let scaled = scales.is_some();
        let inputs = [x, filters].into_iter().chain(scales).chain(bias);
        register::<B>("wtconv2d", inputs, outputs, move |desc, handles| {
            let mut inputs = desc.inputs.iter().map(|input| handles.get_float_tensor::<B>(input));
            let [x, filters] = first(&mut inputs);
            let scales = if scaled { inputs.next() } else { None };
            let y = B::wtconv2d(x, filters, scales, inputs.next(), stride, route);
            drop(inputs);
            handles.register_float_tensor::<B>(&desc.outputs[0].id, y);
        })
        .swap_remove(0)
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
        let [batch, channels, _, _] = dy.shape().dims();
        let outputs = vec![(Shape::new([batch, channels, extent[0], extent[1]]), dy.dtype())];
        let inputs = [dy, filters].into_iter().chain(scales);
        register::<B>("wtconv2d_input_gradient", inputs, outputs, move |desc, handles| {
            let mut inputs = desc.inputs.iter().map(|input| handles.get_float_tensor::<B>(input));
            let [dy, filters] = first(&mut inputs);
            let scales = inputs.next();
            drop(inputs);
            let dx = B::wtconv2d_input_gradient(dy, filters, scales, extent, stride, route);
            handles.register_float_tensor::<B>(&desc.outputs[0].id, dx);
        })
        .swap_remove(0)
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
        if route == RouteKind::TensorOps {
            return tensor_ops::parameter_gradients::<Self>(x, dy, filters, scales, bias, stride, wanted);
        }
        let scaled = scales.is_some();
        let wanted = WantedGradients {
            filters: wanted.filters,
            scales: wanted.scales && scaled,
            bias: wanted.bias && bias.is_some(),
        };
        let outputs = [
            Some(&filters).filter(|_| wanted.filters),
            scales.as_ref().filter(|_| wanted.scales),
            bias.as_ref().filter(|_| wanted.bias),
        ];
        let outputs = outputs.into_iter().flatten().map(|parameter| (parameter.shape(), parameter.dtype()));
        let outputs = outputs.collect();
        let inputs = [x, dy, filters].into_iter().chain(scales).chain(bias);
        let id = "wtconv2d_parameter_gradients";
        let outputs = register::<B>(id, inputs, outputs, move |desc, handles| {
            let mut inputs = desc.inputs.iter().map(|input| handles.get_float_tensor::<B>(input));
            let [x, dy, filters] = first(&mut inputs);
            let scales = if scaled { inputs.next() } else { None };
            let bias = inputs.next();
            drop(inputs);
            let gradients =
                B::wtconv2d_parameter_gradients(x, dy, filters, scales, bias, stride, wanted, route);
            let gradients = [gradients.filters, gradients.scales, gradients.bias].into_iter().flatten();
            for (output, gradient) in desc.outputs.iter().zip(gradients) {
                handles.register_float_tensor::<B>(&output.id, gradient);
            }
        });
        let mut outputs = outputs.into_iter();
        let mut next = |wanted: bool| wanted.then(|| outputs.next()).flatten();
        ParameterGradientPrimitives {
            filters: next(wanted.filters),
            scales: next(wanted.scales),
            bias: next(wanted.bias),
        }
    }
}

/// The first inputs of an operation.
fn first<T, const N: usize>(inputs: &mut impl Iterator<Item = T>) -> [T; N] {
    std::array::from_fn(|_| {
        inputs.next().expect("an operation is executed with the inputs it was registered with")
    })
}

/// A custom operation: its tensors and what it does with their handles.
struct CustomOperation<B: FusionBackend, F> {
    desc: CustomOpIr,
    run: F,
    backend: PhantomData<B>,
}

impl<B: FusionBackend, F> std::fmt::Debug for CustomOperation<B, F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.desc.fmt(f)
    }
}

impl<B, F> Operation<B::FusionRuntime> for CustomOperation<B, F>
where
    B: FusionBackend,
    F: Fn(&CustomOpIr, &mut Handles<B>) + Send + Sync,
{
    fn execute(&self, handles: &mut Handles<B>) {
        (self.run)(&self.desc, handles);
    }
}

/// Registers a custom operation and returns its outputs.
fn register<B: FusionBackend>(
    id: &'static str,
    inputs: impl IntoIterator<Item = FloatTensor<Fusion<B>>>,
    outputs: Vec<(Shape, DType)>,
    run: impl Fn(&CustomOpIr, &mut Handles<B>) + Send + Sync + 'static,
) -> Vec<FloatTensor<Fusion<B>>> {
    let inputs: Vec<_> = inputs.into_iter().collect();
    let client = inputs[0].client.clone();
    let streams = OperationStreams::with_inputs(&inputs);
    let inputs: Vec<_> = inputs.into_iter().map(|input| input.into_ir()).collect();
    let outputs: Vec<_> = outputs
        .into_iter()
        .map(|(shape, dtype)| TensorIr::uninit(client.create_empty_handle(), shape, dtype))
        .collect();
    let desc = CustomOpIr::new(id, &inputs, &outputs);
    let operation = CustomOperation::<B, _> { desc: desc.clone(), run, backend: PhantomData };
    client.register(streams, OperationIr::Custom(desc), operation)
}
