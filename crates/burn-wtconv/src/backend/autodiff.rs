//! The custom backward: the inner backend's forward and gradients, with the input and the parameters as only state.

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::autodiff::{Autodiff, NodeId};
use burn::tensor::TensorMetadata;
use burn::tensor::ops::FloatTensor;

use super::WtConvBackend;
use crate::reference::WantedGradients;
use crate::{Route, RouteKind, WtConv2dProblem};

/// The gradients are not overridden: only an `Autodiff` around this one calls them, and their tensor-op defaults are
/// what it can differentiate.
impl<B: WtConvBackend, C: CheckpointStrategy> WtConvBackend for Autodiff<B, C> {
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
        let y = B::wtconv2d(
            x.primitive.clone(),
            filters.primitive.clone(),
            scales.as_ref().map(|scales| scales.primitive.clone()),
            bias.as_ref().map(|bias| bias.primitive.clone()),
            stride,
            route,
        );
        let backward = WtConv2dBackward { stride, route, scaled: scales.is_some() };
        match (scales, bias) {
            (Some(scales), Some(bias)) => register::<B, C, 4>(backward, [x, filters, scales, bias], y),
            (Some(scales), None) => register::<B, C, 3>(backward, [x, filters, scales], y),
            (None, Some(bias)) => register::<B, C, 3>(backward, [x, filters, bias], y),
            (None, None) => register::<B, C, 2>(backward, [x, filters], y),
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct WtConv2dBackward {
    stride: usize,
    route: RouteKind,
    /// Whether the third parent is the scales.
    scaled: bool,
}

/// What the backward needs: the tensors themselves stay with their own nodes.
#[derive(Clone, Copy, Debug)]
struct State {
    /// Height and width of the input.
    extent: [usize; 2],
    /// Kept only if a parameter is tracked.
    x: Option<NodeId>,
    filters: NodeId,
    scales: Option<NodeId>,
    /// Kept only if a parameter is tracked.
    bias: Option<NodeId>,
}

/// Enters `y` into the graph. `arguments` are `x, filters`, then `scales` and `bias` as far as there are any.
fn register<B: WtConvBackend, C: CheckpointStrategy, const N: usize>(
    backward: WtConv2dBackward,
    arguments: [FloatTensor<Autodiff<B, C>>; N],
    y: FloatTensor<B>,
) -> FloatTensor<Autodiff<B, C>>
where
    WtConv2dBackward: Backward<B, N, State = State>,
{
    let nodes = arguments.each_ref().map(|argument| argument.node.clone());
    match backward.prepare::<C>(nodes).compute_bound().stateful() {
        OpsKind::UnTracked(prep) => prep.finish(y),
        OpsKind::Tracked(mut prep) => {
            let [_, _, height, width] = arguments[0].primitive.shape().dims();
            let parameters_tracked = arguments[1..].iter().any(|parameter| parameter.is_tracked());
            let mut others = arguments[2..].iter();
            let scales = if backward.scaled { others.next() } else { None };
            let bias = others.next();
            let state = State {
                extent: [height, width],
                x: parameters_tracked.then(|| prep.checkpoint(&arguments[0])),
                filters: prep.checkpoint(&arguments[1]),
                scales: scales.map(|scales| prep.checkpoint(scales)),
                bias: bias.filter(|_| parameters_tracked).map(|bias| prep.checkpoint(bias)),
            };
            prep.finish(state, y)
        }
    }
}

macro_rules! impl_backward {
    ($n:literal) => {
        impl<B: WtConvBackend> Backward<B, $n> for WtConv2dBackward {
            type State = State;

            fn backward(self, ops: Ops<State, $n>, grads: &mut Gradients, checkpointer: &mut Checkpointer) {
                let dy = grads.consume::<B>(&ops.node);
                let state = ops.state;
                let mut retrieve = |node| checkpointer.retrieve_node_output::<FloatTensor<B>>(node);
                let filters = retrieve(state.filters);
                let [x, scales, bias] =
                    [state.x, state.scales, state.bias].map(|node| node.map(&mut retrieve));

                let mut targets = ops.parents.into_iter().map(|parent| parent.map(|node| node.id));
                let mut target = || targets.next().flatten();
                let (x_target, filters_target) = (target(), target());
                let scales_target = if self.scaled { target() } else { None };
                let bias_target = target();

                if let Some(target) = x_target {
                    let gradient = B::wtconv2d_input_gradient(
                        dy.clone(),
                        filters.clone(),
                        scales.clone(),
                        state.extent,
                        self.stride,
                        self.route,
                    );
                    grads.register::<B>(target, gradient);
                }
                if let Some(x) = x {
                    let wanted = WantedGradients {
                        filters: filters_target.is_some(),
                        scales: scales_target.is_some(),
                        bias: bias_target.is_some(),
                    };
                    let gradients = B::wtconv2d_parameter_gradients(
                        x,
                        dy,
                        filters,
                        scales,
                        bias,
                        self.stride,
                        wanted,
                        self.route,
                    );
                    let pairs = [
                        (filters_target, gradients.filters),
                        (scales_target, gradients.scales),
                        (bias_target, gradients.bias),
                    ];
                    for (target, gradient) in pairs {
                        if let (Some(target), Some(gradient)) = (target, gradient) {
                            grads.register::<B>(target, gradient);
                        }
                    }
                }
            }
        }
    };
}

impl_backward!(2);
impl_backward!(3);
impl_backward!(4);
