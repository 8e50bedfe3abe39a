//! The files of the tests.

use std::path::PathBuf;

use wtconvnext::WtConvNextConfig;

/// The configuration of `golden/model_official.pth`.
pub fn golden_config() -> WtConvNextConfig {
    WtConvNextConfig::new(7).with_depths([1, 1, 2, 1]).with_dims([8, 16, 24, 32])
}

pub fn test_file(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests").join(name)
}
