use std::fmt;
use std::path::PathBuf;

use burn::tensor::DType;
use burn_wtconv::official::OfficialError;

use super::FileFormat;
use crate::ConfigError;

/// Why a file did not become a model.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImportError {
    /// The configuration is not a model.
    #[error("invalid WtConvNextConfig: {0}")]
    Config(#[from] ConfigError),
    /// The file cannot be opened or read.
    #[error("cannot read {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the operating system says.
        source: std::io::Error,
    },
    /// The file is damaged, cut off, or no checkpoint.
    #[error("{} is not a readable {format} file: {reason}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The format that its first bytes announce.
        format: FileFormat,
        /// What the reader says.
        reason: String,
    },
    /// The tensors of the file are not those of the model.
    #[error("{} does not fit the model: {}", path.display(), describe(missing, unused, wrong_shape, *expected))]
    Mismatch {
        /// The file.
        path: PathBuf,
        /// Names that the model has and the file lacks.
        missing: Vec<String>,
        /// Names that the file has and the model lacks.
        unused: Vec<String>,
        /// Names that both have, with different shapes.
        wrong_shape: Vec<ShapeMismatch>,
        /// How many tensors the model has.
        expected: usize,
    },
    /// A parameter that is stored as integers or booleans.
    #[error("`{name}` has dtype {got:?}, expected a float")]
    DType {
        /// The parameter's name.
        name: String,
        /// The stored dtype.
        got: DType,
    },
    /// The model was trained with another wavelet than Haar's.
    #[error("`{name}` is not the Haar filter (PyTorch's `wt_type='db1'`), the only wavelet there is here")]
    NotHaar {
        /// The fixed filter's name.
        name: String,
    },
    /// A wavelet convolution's tensors are not a layer.
    #[error("`{name}`: {source}")]
    Layer {
        /// The layer's name.
        name: String,
        /// What the layer says.
        source: OfficialError,
    },
}

/// A tensor that has another shape in the file than in the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShapeMismatch {
    /// The tensor's name.
    pub name: String,
    /// The model's shape, as PyTorch writes it.
    pub expected: Vec<usize>,
    /// The file's shape.
    pub got: Vec<usize>,
}

impl fmt::Display for ShapeMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (expected {:?}, got {:?})", self.name, self.expected, self.got)
    }
}

/// Why a model did not become a file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExportError {
    /// A parameter's dtype has no counterpart in the file format.
    #[error("`{name}` has dtype {got:?}, which safetensors files cannot hold")]
    DType {
        /// The parameter's name.
        name: String,
        /// Its dtype.
        got: DType,
    },
    /// The file cannot be written.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// What the writer says.
        source: safetensors::SafeTensorError,
    },
}

/// Names shown of each kind; the error's fields hold all.
const SHOWN: usize = 6;

fn describe(missing: &[String], unused: &[String], wrong_shape: &[ShapeMismatch], expected: usize) -> String {
    let mut parts = Vec::new();
    if !missing.is_empty() {
        parts.push(format!("{} of {expected} tensors missing: {}", missing.len(), list(missing)));
    }
    if !unused.is_empty() {
        parts.push(format!("{} tensors unused: {}", unused.len(), list(unused)));
    }
    if !wrong_shape.is_empty() {
        parts.push(format!("{} tensors of another shape: {}", wrong_shape.len(), list(wrong_shape)));
    }
    parts.join("; ")
}

fn list<T: fmt::Display>(items: &[T]) -> String {
    let shown: Vec<_> = items.iter().take(SHOWN).map(T::to_string).collect();
    match items.len().saturating_sub(SHOWN) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}
