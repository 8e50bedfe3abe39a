//! Which devices a run trains on: `--devices`.

use burn::prelude::DeviceOps;
use burn::tensor::backend::{Backend, DeviceId};
use std::collections::HashSet;
use std::fmt;
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
        // A number has one spelling: `str::parse` alone would take +1 and 00 too.
        let index = |word: &str| word.parse().ok().filter(|index: &usize| index.to_string() == word);
        let indices: Option<Vec<_>> = text.split(',').map(index).collect();
        let indices = indices.ok_or_else(|| DevicesError::Syntax { text: text.to_string() })?;
        let mut seen = HashSet::new();
        match indices.iter().find(|index| !seen.insert(**index)) {
            Some(index) => Err(DevicesError::Twice { index: *index }),
            None => Ok(Self::List(indices)),
        }
    }
}

/// As `--devices` takes it.
impl fmt::Display for DeviceSelection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("all"),
            Self::List(indices) => {
                let words: Vec<_> = indices.iter().map(usize::to_string).collect();
                f.write_str(&words.join(","))
            }
        }
    }
}

impl DeviceSelection {
    /// What to say of `all` where it is a single one of `devices` on `backend`, which may not be what was meant.
    pub fn single(&self, backend: BackendKind, devices: usize) -> Option<&'static str> {
        if *self != Self::All || devices != 1 {
            return None;
        }
        Some(match backend {
            BackendKind::Flex | BackendKind::Ndarray => {
                "--devices all: one worker, because a CPU is one device; 0,1 makes two workers"
            }
            BackendKind::Wgpu | BackendKind::Vulkan => {
                "--devices all: the default device, the only one that this backend trains on"
            }
            BackendKind::Cuda => "--devices all: one device, because this machine has no other",
        })
    }

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
    fn a_selection_is_written_as_it_is_read() {
        for text in ["all", "0", "2,0,1"] {
            assert_eq!(text.parse::<DeviceSelection>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn all_that_is_one_device_says_so() {
        let single = |text: &str, backend, devices| {
            text.parse::<DeviceSelection>().unwrap().single(backend, devices).unwrap_or_default()
        };
        assert!(single("all", BackendKind::Flex, 1).contains("one worker"));
        assert!(single("all", BackendKind::Ndarray, 1).contains("one worker"));
        assert!(single("all", BackendKind::Vulkan, 1).contains("default device"));
        assert!(single("all", BackendKind::Cuda, 1).contains("no other"));
        // Who has several devices, or has asked for one, has what was meant.
        assert_eq!(single("all", BackendKind::Cuda, 2), "");
        assert_eq!(single("0", BackendKind::Flex, 1), "");
    }

    #[test]
    fn what_cannot_be_used_is_named() {
        let error = |text, backend, batch| resolve(text, backend, batch).unwrap_err();
        for text in ["", "a", "0,", "-1", "0, 1", "ALL", "+1", "00", "0,01", "0,+1", "99999999999999999999"] {
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
