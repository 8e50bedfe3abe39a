//! Training, evaluation and prediction with WTConvNeXt and ConvNeXt on folders of images. The README is the guide;
//! this is the map of the code.
//!
//! ```text
//! cli.rs       commands             config.rs    defaults < preset < file < flags   model.rs       sizes by name
//! preset.rs    presets/ by name     preview.rs   training images, drawn             throughput.rs  speed of the input
//! backend.rs   backends by name     runs.rs      where runs lie                     atomic.rs      all-or-nothing files
//! data.rs      folders to batches   train.rs     the training loop                  error.rs       every error
//! evaluate.rs  accuracy by class    predict.rs   classes of single images           export.rs      weights for other programs
//! erf.rs       receptive fields     subbands.rs  what a wavelet layer sees          drawing.rs     text, maps and colours
//! progress.rs  bars                 output.rs    where results go                   count.rs       "1 image", "2 images"
//! shell.rs     words to paste
//! ```
#![warn(missing_docs)]
#![forbid(unsafe_code)]

/// The README's code compiles.
#[doc = include_str!("../README.md")]
#[cfg(all(doctest, feature = "flex"))]
struct Readme;

pub mod atomic;
pub mod backend;
pub mod cli;
pub mod config;
mod count;
pub mod data;
pub mod drawing;
pub mod erf;
pub mod error;
pub mod evaluate;
pub mod export;
pub mod model;
pub mod output;
pub mod predict;
pub mod preset;
pub mod preview;
mod progress;
pub mod runs;
mod shell;
pub mod subbands;
pub mod throughput;
pub mod train;

#[cfg(test)]
#[path = "../tests/support/mod.rs"]
mod support;
#[cfg(test)]
type TestBackend = burn::backend::Flex;
#[cfg(test)]
type TestAutodiff = burn::backend::Autodiff<TestBackend>;
