//! WTConvNeXt and ConvNeXt image classifiers for [Burn](burn).
//!
//! WTConvNeXt (Finder et al., *Wavelet Convolutions for Large Receptive Fields*, ECCV 2024, arXiv 2407.05848) is a
//! ConvNeXt whose 7x7 depthwise convolutions are replaced by wavelet convolutions
//! ([`WtConv2d`](burn_wtconv::WtConv2d)). Both models are one [`WtConvNext`], told apart by the [`Mixer`] of their
//! [`WtConvNextConfig`], so that a comparison changes one field and nothing else.
//!
//! ```
//! # #[cfg(feature = "flex")]
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use burn::backend::Flex;
//! use burn::tensor::Tensor;
//! use wtconvnext::WtConvNextConfig;
//!
//! let device = Default::default();
//! let config = WtConvNextConfig::new(10).with_depths([1, 1, 1, 1]).with_dims([8, 16, 24, 32]);
//! let model = config.try_init::<Flex>(&device)?;
//!
//! let images = Tensor::zeros([2, 3, 64, 64], &device);
//! assert_eq!(model.forward(images.clone()).dims(), [2, 10]);
//! assert_eq!(model.forward_features(images)[3].dims(), [2, 32, 2, 2]);
//! # Ok(())
//! # }
//! # #[cfg(not(feature = "flex"))]
//! # fn main() {}
//! ```
//!
//! Images and features are `[batch, channels, height, width]`. Between stem and head, maps are `[batch, height, width, channels]`:
//! Burn's normalisations and linear layers take the last axis, Burn's Fusion puts whole chains of operations into one kernel only
//! where all tensors lie alike in memory, and the kernels of the mixing layers take any strides. (With maps of the other order, whose
//! elements lay in memory as they do now, the sum at the end of each block was a kernel of its own, and WTConvNeXt-T at a batch of 64
//! and f32 took 25.4 ms forward on an H200 and 63.5 with all gradients, instead of 18.9 and 52.3.)
//!
//! [`load_official`] reads the weights that the authors' PyTorch code saves, [`save_official`] writes them.
#![warn(missing_docs)]
#![forbid(unsafe_code)]

mod block;
mod config;
mod downsample;
mod drop_path;
mod head;
mod init;
mod input;
mod layer_norm;
mod mixing;
mod mlp;
mod model;
pub mod official;
mod patches;
mod pixels;
mod stage;
mod stem;

pub use block::Block;
pub use config::{ConfigError, Mixer, WtConvNextConfig};
pub use downsample::Downsample;
pub use drop_path::DropPath;
pub use head::Head;
pub use input::InputError;
pub use layer_norm::LayerNorm2d;
pub use mixing::Mixing;
pub use mlp::Mlp;
pub use model::{WtConvNext, WtConvNextRecord};
pub use official::{ExportError, ImportError, ImportReport, OfficialScheme, load_official, save_official};
pub use stage::Stage;
pub use stem::Stem;
