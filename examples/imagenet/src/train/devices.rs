//! Which devices a run trains on: `--devices`.

use burn::prelude::DeviceOps;
use burn::tensor::backend::{Backend, DeviceId};
use std::collections::HashSet;
use std::str::FromStr;

use crate::backend::BackendKind;
use crate::count::count;

/// Workers on a CPU, at most: each holds the model and the state of its optimizer.
const MAX_CPU_WORKERS: usize = 64;

/// What `--devices` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceSelection {
    /// Every device that the backend has; on a CPU that is one.
    All,
    /// Indices, the first of which validates and writes.
    List(Vec<usize>),
}

/// Devices that a run cannot train on.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum DevicesError {
    /// Neither `all` nor a list of indices.
    #[error("{text:?} is neither `all` nor indices of devices, as in 0,1")]
    Syntax {
        /// What was given.
        text: String,
    },
    /// An index that is given twice.
    #[error("device {index} is given twice")]
    Twice {
        /// The index.
        index: usize,
    },
    /// An index that does not exist.
    #[error("there is no device {index}: this backend has {}, counted from 0", count(*.available, "device", "devices"))]
    Missing {
        /// The index.
        index: usize,
        /// Number of devices.
        available: usize,
    },
    /// A backend on which only the default device is offered.
    #[error(
        "--devices: {backend:?} trains on its default device only, which is 0; several devices need cuda, flex or ndarray"
    )]
    Unsupported {
        /// The backend.
        backend: BackendKind,
    },
    /// A batch that cannot be cut into equal parts.
    #[error(
        "batch_size = {batch_size} does not divide among {devices} devices: it counts the images of all of them"
    )]
    Batch {
        /// Images of a batch, over all devices.
        batch_size: usize,
        /// Number of devices.
        devices: usize,
    },
}

impl FromStr for DeviceSelection {
    type Err = DevicesError;

    fn from_str(text: &str) -> Result<Self, DevicesError> {
        if text == "all" {
            return Ok(Self::All);
        }
        let indices: Result<Vec<usize>, _> = text.split(',').map(str::parse).collect();
        let indices = indices.map_err(|_| DevicesError::Syntax { text: text.to_string() })?;
        let mut seen = HashSet::new();
        match indices.iter().find(|index| !seen.insert(**index)) {
            Some(index) => Err(DevicesError::Twice { index: *index }),
            None => Ok(Self::List(indices)),
        }
    }
}

impl DeviceSelection {
    /// The devices of backend `B`, called `backend`, with their indices.
    ///
    /// # Errors
    ///
    /// [`DevicesError`], if one does not exist or `batch_size` does not divide among them.
    pub fn resolve<B: Backend>(
        &self,
        backend: BackendKind,
        batch_size: usize,
    ) -> Result<Vec<(usize, B::Device)>, DevicesError> {
        let default = B::Device::default();
        let type_id = default.to_id().type_id;
        let available = match backend {
            BackendKind::Cuda => B::device_count(type_id),
            BackendKind::Flex | BackendKind::Ndarray => MAX_CPU_WORKERS,
            BackendKind::Wgpu | BackendKind::Vulkan => 1,
        };
        let indices = match (self, backend) {
            (Self::All, BackendKind::Cuda) => (0..available).collect(),
            (Self::All, _) => vec![0],
            (Self::List(indices), _) => indices.clone(),
        };
        if let Some(index) = indices.iter().copied().find(|index| *index >= available) {
            return Err(match backend {
                BackendKind::Wgpu | BackendKind::Vulkan => DevicesError::Unsupported { backend },
                _ => DevicesError::Missing { index, available },
            });
        }
        if !batch_size.is_multiple_of(indices.len()) {
            return Err(DevicesError::Batch { batch_size, devices: indices.len() });
        }
        let device = |index: usize| match backend {
            BackendKind::Cuda => B::Device::from_id(DeviceId::new(type_id, index as u16)),
            // A CPU is one device, on which each index is a worker.
            _ => default.clone(),
        };
        Ok(indices.into_iter().map(|index| (index, device(index))).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TestBackend;

    fn resolve(text: &str, backend: BackendKind, batch_size: usize) -> Result<Vec<usize>, DevicesError> {
        let devices = text.parse::<DeviceSelection>()?.resolve::<TestBackend>(backend, batch_size)?;
        Ok(devices.into_iter().map(|(index, _)| index).collect())
    }

    #[test]
    fn lists_and_all() {
        assert_eq!(resolve("0,1", BackendKind::Flex, 8), Ok(vec![0, 1]));
        assert_eq!(resolve("2,0,1", BackendKind::Flex, 9), Ok(vec![2, 0, 1]));
        assert_eq!(resolve("all", BackendKind::Flex, 7), Ok(vec![0]));
        assert_eq!(resolve("0", BackendKind::Wgpu, 7), Ok(vec![0]));
    }

    #[test]
    fn what_cannot_be_used_is_named() {
        let error = |text, backend, batch| resolve(text, backend, batch).unwrap_err();
        for text in ["", "a", "0,", "-1", "0, 1", "ALL"] {
            assert_eq!(error(text, BackendKind::Flex, 8), DevicesError::Syntax { text: text.to_string() });
        }
        assert_eq!(error("0,1,0", BackendKind::Flex, 8), DevicesError::Twice { index: 0 });
        assert_eq!(error("0,64", BackendKind::Flex, 8), DevicesError::Missing { index: 64, available: 64 });
        assert_eq!(
            error("0,1", BackendKind::Vulkan, 8),
            DevicesError::Unsupported { backend: BackendKind::Vulkan }
        );
        let odd = error("0,1", BackendKind::Flex, 7);
        assert_eq!(odd, DevicesError::Batch { batch_size: 7, devices: 2 });
        assert!(odd.to_string().starts_with("batch_size = 7 does not divide among 2 devices"), "{odd}");
    }
}
