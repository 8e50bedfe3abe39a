//! Reading what `torch.save` wrote: a zip archive of a pickle and one file for each tensor's storage.
//!
//! burn-store reads the archive, but its `PytorchReader` (0.21) is not used: it takes every tensor as contiguous, so that
//! the convolutions of a model trained with `channels_last` would load as noise, and it gives zeros for a storage that is
//! cut off, missing or fails its checksum. Here the first loads and the others are errors.

use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;

use burn::module::ParamId;
use burn::tensor::TensorData;
use burn_store::pytorch::lazy_data::LazyDataSource;
use burn_store::{TensorSnapshot, TensorSnapshotError};

use super::pickle::{self, Layout};

/// The tensors of the file, which are read when their snapshot is asked for its data.
pub(super) fn open(path: &Path) -> Result<BTreeMap<String, TensorSnapshot>, String> {
    let archive = LazyDataSource::from_zip(path)
        .map_err(|error| format!("{error} (torch.save writes zip archives since PyTorch 1.6)"))?;
    let storages = archive.keys();
    let folder = storages.first().and_then(|key| Some(key.rsplit_once("data/")?.0)).unwrap_or_default();
    if archive.read(&format!("{folder}byteorder")).is_ok_and(|order| order != b"little") {
        return Err("it was written on a big-endian machine".to_owned());
    }
    let pickle = archive.read(&format!("{folder}data.pkl")).map_err(|error| format!("data.pkl: {error}"))?;

    let snapshot = |(name, layout): (String, Layout)| {
        let (archive, folder) = (archive.clone(), folder.to_owned());
        let (dtype, shape) = (layout.dtype, layout.shape.clone());
        let path = name.split('.').map(str::to_owned).collect();
        let data = Rc::new(move || read(&archive, &folder, &layout));
        let snapshot =
            TensorSnapshot::from_closure(data, dtype, shape.into(), path, Vec::new(), ParamId::new());
        (name, snapshot)
    };
    Ok(pickle::tensors(&pickle)?.into_iter().map(snapshot).collect())
}

/// Reads a tensor, which need not be contiguous in its storage, in row-major order.
fn read(archive: &LazyDataSource, folder: &str, layout: &Layout) -> Result<TensorData, TensorSnapshotError> {
    let file = format!("{folder}data/{}", layout.storage);
    // The archive's checksums are compared here.
    let storage =
        archive.read(&file).map_err(|error| TensorSnapshotError::IoError(format!("{file}: {error}")))?;

    let size = layout.dtype.size();
    let mut bytes = Vec::new();
    for element in elements(layout) {
        let start = element * size;
        let value = storage.get(start..start + size).ok_or_else(|| {
            let length = storage.len() / size;
            TensorSnapshotError::DataError(format!(
                "{file}: expected element {element}, got {length} elements"
            ))
        })?;
        bytes.extend_from_slice(value);
    }
    Ok(TensorData::from_bytes_vec(bytes, layout.shape.clone(), layout.dtype))
}

/// Where a tensor's elements lie in its storage, in row-major order.
fn elements(layout: &Layout) -> impl Iterator<Item = usize> {
    let count = layout.shape.iter().product();
    (0..count).map(move |index: usize| {
        let mut rest = index;
        let mut position = layout.offset;
        for (&extent, &stride) in layout.shape.iter().zip(&layout.strides).rev() {
            position += rest % extent * stride;
            rest /= extent;
        }
        position
    })
}
