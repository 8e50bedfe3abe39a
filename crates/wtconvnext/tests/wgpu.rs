//! PyTorch's outputs on Wgpu.
#![cfg(feature = "wgpu")]

mod files;
mod golden_suite;

golden_suite::golden_tests!(burn::backend::Wgpu, 1e-5);
