//! PyTorch's outputs on Flex.
#![cfg(feature = "flex")]

mod files;
mod golden_suite;

golden_suite::golden_tests!(burn::backend::Flex, 2e-6);
