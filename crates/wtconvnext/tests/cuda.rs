//! PyTorch's outputs on Cuda.
#![cfg(feature = "cuda")]

mod files;
mod golden_suite;

golden_suite::golden_tests!(burn::backend::Cuda, 1e-5);
