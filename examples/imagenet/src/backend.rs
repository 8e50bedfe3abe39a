//! The choice of a Burn backend at run time, among those compiled in.

use burn::backend::Autodiff;
use burn::tensor::backend::AutodiffBackend;
use burn_wtconv::WtConvBackend;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// A backend by name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BackendKind {
    /// Burn's CPU backend.
    #[default]
    Flex,
    /// CPU through the ndarray crate.
    Ndarray,
    /// GPU through WebGPU.
    Wgpu,
    /// GPU through WebGPU with Vulkan's own shaders.
    Vulkan,
    /// NVIDIA GPU.
    Cuda,
}

/// A backend that was not compiled in.
#[derive(Debug, thiserror::Error)]
#[error(
    "this build has no {backend} backend; build it with: cargo run --release -p imagenet --features {backend} -- ..."
)]
pub struct BackendMissing {
    /// Its name, which is also the cargo feature.
    pub backend: &'static str,
}

/// What the example asks of a backend: autodiff, with the wavelet convolution on it and on its inner backend.
pub trait TrainBackend: AutodiffBackend<InnerBackend: WtConvBackend> + WtConvBackend {}

impl<B> TrainBackend for B where B: AutodiffBackend<InnerBackend: WtConvBackend> + WtConvBackend {}

/// Work that runs on any backend.
pub trait BackendTask {
    /// Its result.
    type Output;

    /// Runs on backend `B`.
    fn run<B: TrainBackend>(self, device: B::Device) -> Self::Output;
}

impl BackendKind {
    /// Runs `task` on this backend's default device.
    ///
    /// # Errors
    ///
    /// [`BackendMissing`] if the backend is not compiled in.
    #[allow(unused_variables, reason = "without any backend feature nothing uses the task")]
    pub fn run<T: BackendTask>(self, task: T) -> Result<T::Output, BackendMissing> {
        match self {
            #[cfg(feature = "flex")]
            Self::Flex => Ok(run_on::<burn::backend::Flex, T>(task)),
            #[cfg(feature = "ndarray")]
            Self::Ndarray => Ok(run_on::<burn::backend::NdArray, T>(task)),
            #[cfg(feature = "wgpu")]
            Self::Wgpu => Ok(run_on::<burn::backend::Wgpu, T>(task)),
            #[cfg(feature = "vulkan")]
            Self::Vulkan => Ok(run_on::<burn::backend::Vulkan, T>(task)),
            #[cfg(feature = "cuda")]
            Self::Cuda => Ok(run_on::<burn::backend::Cuda, T>(task)),
            #[allow(unreachable_patterns, reason = "reached unless every backend is compiled in")]
            _ => Err(self.missing()),
        }
    }

    /// Fails early, before any data is read.
    ///
    /// # Errors
    ///
    /// [`BackendMissing`] if the backend is not compiled in.
    pub fn check(self) -> Result<(), BackendMissing> {
        let available = match self {
            Self::Flex => cfg!(feature = "flex"),
            Self::Ndarray => cfg!(feature = "ndarray"),
            Self::Wgpu => cfg!(feature = "wgpu"),
            Self::Vulkan => cfg!(feature = "vulkan"),
            Self::Cuda => cfg!(feature = "cuda"),
        };
        if available { Ok(()) } else { Err(self.missing()) }
    }

    fn missing(self) -> BackendMissing {
        let backend = match self {
            Self::Flex => "flex",
            Self::Ndarray => "ndarray",
            Self::Wgpu => "wgpu",
            Self::Vulkan => "vulkan",
            Self::Cuda => "cuda",
        };
        BackendMissing { backend }
    }
}

#[allow(dead_code, reason = "without any backend feature nothing calls it")]
fn run_on<B: WtConvBackend, T: BackendTask>(task: T) -> T::Output {
    task.run::<Autodiff<B>>(Default::default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backend_that_is_not_compiled_in_names_its_feature() {
        let error = BackendKind::Cuda.missing().to_string();
        assert!(error.contains("no cuda backend") && error.contains("--features cuda"), "{error}");
        #[cfg(feature = "flex")]
        BackendKind::Flex.check().unwrap();
        #[cfg(not(feature = "cuda"))]
        BackendKind::Cuda.check().unwrap_err();
    }
}
