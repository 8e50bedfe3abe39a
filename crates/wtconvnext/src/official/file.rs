//! Reading a checkpoint of either format into named tensors.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use burn::tensor::TensorData;
use burn_store::{ModuleStore, SafetensorsStore, TensorSnapshot};

use super::{ImportError, pytorch};

/// The format of a checkpoint, told by its first bytes and not by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileFormat {
    /// What `torch.save` writes.
    PyTorch,
    /// <https://github.com/huggingface/safetensors>
    Safetensors,
}

impl fmt::Display for FileFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::PyTorch => "PyTorch",
            Self::Safetensors => "safetensors",
        })
    }
}

/// Where a checkpoint of a training run keeps its weights, in order of preference.
const NESTS: [&str; 3] = ["state_dict_ema", "state_dict", "model"];

/// The weights in a checkpoint, not yet read.
pub(super) struct Checkpoint<'a> {
    path: &'a Path,
    pub(super) format: FileFormat,
    /// The key of the checkpoint under which the weights were.
    pub(super) nest: Option<&'static str>,
    /// Tensors beside that key, such as an optimizer's state.
    pub(super) outside: usize,
    pub(super) tensors: BTreeMap<String, TensorSnapshot>,
}

impl<'a> Checkpoint<'a> {
    pub(super) fn open(path: &'a Path) -> Result<Self, ImportError> {
        let format = sniff(path).map_err(|source| ImportError::Io { path: path.to_owned(), source })?;
        let all = match format {
            FileFormat::PyTorch => pytorch::open(path),
            FileFormat::Safetensors => read_safetensors(path),
        }
        .map_err(|reason| ImportError::Malformed { path: path.to_owned(), format, reason })?;

        let count = all.len();
        let (nest, tensors) = unnest(all);
        Ok(Self { path, format, nest, outside: count - tensors.len(), tensors })
    }

    pub(super) fn read(&self, name: &str) -> Result<TensorData, ImportError> {
        self.tensors[name].to_data().map_err(|error| ImportError::Malformed {
            path: self.path.to_owned(),
            format: self.format,
            reason: format!("`{name}`: {error}"),
        })
    }
}

/// A safetensors file starts with the 8 bytes of its header's length and the header's brace.
fn sniff(path: &Path) -> std::io::Result<FileFormat> {
    let mut start = Vec::new();
    File::open(path)?.take(9).read_to_end(&mut start)?;
    Ok(if start.get(8) == Some(&b'{') { FileFormat::Safetensors } else { FileFormat::PyTorch })
}

fn read_safetensors(path: &Path) -> Result<BTreeMap<String, TensorSnapshot>, String> {
    let mut store = SafetensorsStore::from_file(path);
    store.get_all_snapshots().cloned().map_err(|error| error.to_string())
}

/// The tensors under the first of [`NESTS`] that there is, without its name.
fn unnest(
    tensors: BTreeMap<String, TensorSnapshot>,
) -> (Option<&'static str>, BTreeMap<String, TensorSnapshot>) {
    for nest in NESTS {
        let nested: BTreeMap<_, _> = tensors
            .iter()
            .filter_map(|(name, tensor)| {
                let name = name.strip_prefix(nest)?.strip_prefix('.')?;
                Some((name.to_owned(), tensor.clone()))
            })
            .collect();
        if !nested.is_empty() {
            return (Some(nest), nested);
        }
    }
    (None, tensors)
}
