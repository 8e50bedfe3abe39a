//! A loss that costs nothing: its backward hands a given gradient to the output.
//!
//! `(y * dy).sum()` would add three passes over the output to what is timed, and `y.sum()` two, besides a gradient that
//! is the same everywhere. Here the loss is a constant, and autodiff fills one element with a one to begin its backward.

use burn::backend::Autodiff;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::NoCheckpointing;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::tensor::backend::Backend;
use burn::tensor::ops::FloatTensor;
use burn::tensor::{Tensor, TensorPrimitive};

#[derive(Clone, Copy, Debug)]
struct Cotangent;

impl<B: Backend> Backward<B, 1> for Cotangent {
    /// The gradient of the output.
    type State = FloatTensor<B>;

    fn backward(self, ops: Ops<Self::State, 1>, grads: &mut Gradients, _checkpointer: &mut Checkpointer) {
        grads.consume::<B>(&ops.node);
        let [parent] = ops.parents;
        if let Some(parent) = parent {
            grads.register::<B>(parent.id, ops.state);
        }
    }
}

/// A loss of value `constant` whose gradient with regard to `y` is `dy`.
pub(crate) fn loss<B: Backend>(
    y: Tensor<Autodiff<B>, 4>,
    dy: Tensor<B, 4>,
    constant: Tensor<B, 1>,
) -> Tensor<Autodiff<B>, 1> {
    let y = y.into_primitive().tensor();
    let constant = constant.into_primitive().tensor();
    let loss = match Cotangent.prepare::<NoCheckpointing>([y.node]).compute_bound().stateful() {
        OpsKind::Tracked(prep) => prep.finish(dy.into_primitive().tensor(), constant),
        OpsKind::UnTracked(prep) => prep.finish(constant),
    };
    Tensor::from_primitive(TensorPrimitive::Float(loss))
}
