//! The models against PyTorch's outputs, on every backend whose feature is on.

mod checkpoint;
mod forward;
mod golden;
mod training;

use std::path::PathBuf;

use wtconvnext::WtConvNextConfig;

/// The backend of tests that are about files and errors, and not about arithmetic.
#[cfg(feature = "flex")]
type TestBackend = burn::backend::Flex;

/// The configuration of `golden/model_official.pth`.
fn golden_config() -> WtConvNextConfig {
    WtConvNextConfig::new(7).with_depths([1, 1, 2, 1]).with_dims([8, 16, 24, 32])
}

fn test_file(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests").join(name)
}
