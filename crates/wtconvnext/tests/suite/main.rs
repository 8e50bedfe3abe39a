//! The models and their files on Flex; what every backend must agree on is in `golden_suite`.
#![cfg(feature = "flex")]

mod checkpoint;
#[path = "../files/mod.rs"]
mod files;
mod forward;
mod training;

/// The backend of tests that are about files and errors, and not about arithmetic.
type TestBackend = burn::backend::Flex;
