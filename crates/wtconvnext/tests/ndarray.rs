//! PyTorch's outputs on NdArray<f64>.
#![cfg(feature = "ndarray")]

mod files;
mod golden_suite;

golden_suite::golden_tests!(burn::backend::NdArray<f64>, 2e-8);
