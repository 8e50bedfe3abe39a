//! Wavelet convolutions (WTConv) for [Burn](burn).
//!
//! A wavelet convolution replaces a depthwise convolution: it decomposes the feature map with a Haar wavelet
//! transform, runs a small depthwise convolution on every subband of every level, and reconstructs. The receptive
//! field grows exponentially with the levels, the parameters linearly (Finder et al., *Wavelet Convolutions for
//! Large Receptive Fields*, ECCV 2024, arXiv 2407.05848).
//!
//! # The layer in a model
//!
//! ```
//! use burn::module::Module;
//! use burn::nn::{Linear, LinearConfig};
//! use burn::tensor::backend::{AutodiffBackend, Backend};
//! use burn::tensor::{Tensor, activation};
//! use burn_wtconv::{WtConv2d, WtConv2dConfig, WtConvBackend};
//!
//! #[derive(Module, Debug)]
//! struct Block<B: Backend> {
//!     mix: WtConv2d<B>,
//!     project: Linear<B>,
//! }
//!
//! impl<B: WtConvBackend> Block<B> {
//!     fn new(channels: usize, device: &B::Device) -> Self {
//!         Self {
//!             mix: WtConv2dConfig::new(channels).with_levels(3).init(device),
//!             project: LinearConfig::new(channels, channels).init(device),
//!         }
//!     }
//!
//!     fn forward(&self, x: Tensor<B, 4>) -> Tensor<B, 4> {
//!         let mixed = self.mix.forward(x.clone()).permute([0, 2, 3, 1]);
//!         x + activation::gelu(self.project.forward(mixed)).permute([0, 3, 1, 2])
//!     }
//! }
//!
//! fn gradient_norm<B: AutodiffBackend + WtConvBackend>(block: &Block<B>, x: Tensor<B, 4>) -> f32 {
//!     let gradients = block.forward(x).sum().backward();
//!     let gradient = block.mix.filters.grad(&gradients).expect("the filters are tracked");
//!     gradient.powi_scalar(2).sum().into_scalar().to_string().parse::<f32>().expect("a number").sqrt()
//! }
//!
//! # #[cfg(feature = "flex")] {
//! use burn::backend::{Autodiff, Flex};
//! type B = Autodiff<Flex>;
//!
//! let device = Default::default();
//! let block = Block::<B>::new(8, &device);
//! let x = Tensor::random([2, 8, 15, 20], burn::tensor::Distribution::Default, &device);
//! assert_eq!(block.forward(x.clone()).dims(), [2, 8, 15, 20]);
//! assert!(gradient_norm(&block, x) > 0.0);
//! # }
//! ```
//!
//! # Where is what
//!
//! - [`WtConv2d`] and [`WtConv2dConfig`]: the layer.
//! - [`DepthwiseConv2d`]: a plain depthwise convolution by the same kernels.
//! - [`wtconv2d`], [`depthwise_conv2d`]: both as functions of their parameters.
//! - [`WtConvBackend`]: what a backend must be to run it; [`Route`] tells which way a call goes.
//! - [`reference`](mod@reference): the operator and its gradients in tensor ops, on any backend and any float dtype.
//! - [`official`]: one layer's parameters under the names of the PyTorch implementations.
//! - [`migrating`]: for those who know the PyTorch layer.

#![forbid(unsafe_code)]

/// The README's code compiles.
#[doc = include_str!("../../../README.md")]
#[cfg(doctest)]
struct Readme;

#[doc = include_str!("../MIGRATING.md")]
#[cfg(any(doc, doctest))]
pub mod migrating {}

mod backend;
mod depthwise;
mod error;
mod layer;
pub mod official;
mod op;
pub mod reference;
mod route;

pub use backend::{ParameterGradientPrimitives, WtConvBackend};
pub use depthwise::{DepthwiseConv2d, DepthwiseConv2dConfig, DepthwiseConv2dRecord};
pub use error::WtConvError;
pub use layer::{WtConv2d, WtConv2dConfig, WtConv2dRecord};
pub use op::{depthwise_conv2d, try_depthwise_conv2d, try_wtconv2d, wtconv2d};
pub use route::{Route, RouteKind, WtConv2dProblem};
