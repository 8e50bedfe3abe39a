//! Wavelet convolutions (WTConv) as CubeCL kernels that move every element once.
//!
//! The operator is `y = s0 (w0 * x + b) + sum over levels and subbands of A^T (s_ls (w_ls * A x))`, all filters depthwise
//! (Finder et al., ECCV 2024). [`launch`] runs it and its gradients on buffers and strides; [`plan`] decides, as a pure
//! function of shapes and device limits, how; [`traffic`] says what that moves. The crate knows no tensor library.
//!
//! | module | holds |
//! |---|---|
//! | [`problem`], [`device`] | what is asked, and of which device |
//! | [`plan`], [`traffic`] | the decision and its cost |
//! | `memo` | decisions made before |
//! | [`layout`] | shared memory and threads of a plan |
//! | `shared`, `haar`, `window`, `depthwise` | pieces of kernels: wide accesses, Haar steps, loads, convolutions |
//! | `operator`, `low_pass`, `filter_gradient`, `reduction` | the kernels |
//! | [`launch`] | from buffers to launches |

// The expansion of `#[cube]` functions turns references and arguments into more than these lints allow.
#![allow(clippy::too_many_arguments)]

mod depthwise;
pub mod device;
mod filter_gradient;
mod haar;
pub mod launch;
pub mod layout;
mod low_pass;
mod memo;
mod operator;
pub mod plan;
pub mod problem;
mod reduction;
mod shared;
mod source;
pub mod traffic;
mod window;

pub use device::DeviceLimits;
pub use launch::{FilterGradients, Launcher, Output, Parameters, Tensor};
pub use memo::{filter_gradient_plan, operator_plan};
pub use plan::{
    GradientPlan, Operands, OperatorPlan, Refusal, Strategy, plan_filter_gradient, plan_operator,
};
pub use problem::{Dtype, Problem, Strided};
