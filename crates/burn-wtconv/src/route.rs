//! Which way a call goes: through a backend's fused kernels or through tensor ops.

use std::fmt;

/// The way a call goes, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Route {
    /// The backend's fused kernels: forward, input gradient and parameter gradients.
    Fused {
        /// The plan in words.
        plan: String,
    },
    /// Tensor ops, see [`reference`](mod@crate::reference).
    TensorOps {
        /// Why the fused kernels do not take the call.
        reason: String,
    },
}

impl Route {
    /// The kind of this route.
    pub fn kind(&self) -> RouteKind {
        match self {
            Self::Fused { .. } => RouteKind::Fused,
            Self::TensorOps { .. } => RouteKind::TensorOps,
        }
    }
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fused { plan } => write!(f, "fused: {plan}"),
            Self::TensorOps { reason } => write!(f, "tensor ops: {reason}"),
        }
    }
}

/// A [`Route`] without its words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RouteKind {
    /// The backend's fused kernels.
    Fused,
    /// Tensor ops.
    TensorOps,
}

/// What decides a route: everything about a call but its numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WtConv2dProblem {
    /// Shape of the input, `[batch, channels, height, width]`.
    pub shape: [usize; 4],
    /// Height and width of a filter.
    pub kernel_size: usize,
    /// Wavelet levels; 0 is a plain depthwise convolution.
    pub levels: usize,
    /// Step of the output in both directions.
    pub stride: usize,
    /// Dtype of the input and the parameters.
    pub dtype: burn::tensor::DType,
}
