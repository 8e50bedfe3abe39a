use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use burn::module::{Module, Param};
use burn::nn::{LayerNorm, Linear};
use burn::tensor::backend::Backend;
use burn::tensor::{DType, Tensor, TensorData};
use burn_wtconv::official::OfficialScheme;
use burn_wtconv::{WtConv2d, WtConv2dConfig};

use super::file::{Checkpoint, FileFormat};
use super::keys::{self, Visitor};
use super::{ImportError, ShapeMismatch, haar};
use crate::{Mixer, WtConvNext, WtConvNextConfig};

/// What [`load_official`] found in a file.
#[derive(Clone, Debug)]
pub struct ImportReport {
    /// The file's format.
    pub format: FileFormat,
    /// The key of the checkpoint under which the weights were: `state_dict_ema`, `state_dict` or `model`, the first of
    /// these that there is. None if the file is a plain state dict.
    pub nested_under: Option<&'static str>,
    /// How the wavelet convolutions' parameters are named. None if the model has none.
    pub scheme: Option<OfficialScheme>,
    /// Tensors that became parameters.
    pub tensors: usize,
    /// The model's parameters.
    pub parameters: usize,
    /// The dtypes that the tensors are stored in; they are cast to the backend's.
    pub dtypes: Vec<DType>,
    /// Names that the model does not need: the fixed wavelet filters, and the classifier if it has no head.
    pub skipped: Vec<String>,
    /// Tensors elsewhere in the checkpoint, such as other copies of the weights or an optimizer's state.
    pub outside: usize,
}

impl fmt::Display for ImportReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} tensors ({} parameters) of a {} file", self.tensors, self.parameters, self.format)?;
        if let Some(nest) = self.nested_under {
            write!(f, ", under `{nest}`")?;
        }
        write!(f, ", stored as {:?}", self.dtypes)?;
        if !self.skipped.is_empty() {
            write!(f, ", {} skipped", self.skipped.len())?;
        }
        if self.outside > 0 {
            write!(f, ", {} elsewhere in the file", self.outside)?;
        }
        Ok(())
    }
}

/// Loads a model from a file of the authors' PyTorch code: what `torch.save` writes, or a safetensors file.
///
/// The weights may be a plain state dict or under a key `state_dict_ema`, `state_dict` or `model`, in this order of
/// preference. Wavelet convolutions may be in either [`OfficialScheme`], plain ConvNeXts as timm names them. Tensors
/// are cast to the backend's float dtype. Every tensor of the model must be in the file with its shape, and every
/// tensor of the file must be in the model, but for the fixed wavelet filters and, if `config` has no head, the
/// classifier.
///
/// # Errors
///
/// An [`ImportError`] for a file that cannot be read or is damaged, for tensors that are missing, unused or of another
/// shape (all of them in one [`ImportError::Mismatch`]), and for an invalid `config`.
pub fn load_official<B: Backend>(
    config: &WtConvNextConfig,
    path: impl AsRef<Path>,
    device: &B::Device,
) -> Result<(WtConvNext<B>, ImportReport), ImportError> {
    let path = path.as_ref();
    let mut model = config.try_init(device)?;
    let mut checkpoint = Checkpoint::open(path)?;

    let skipped = skip(config, &mut checkpoint)?;
    let scheme = match config.mixer {
        Mixer::WtConv => keys::detect_scheme(checkpoint.tensors.keys()),
        Mixer::Depthwise | Mixer::Conv2d => None,
    };
    let shapes = keys::shapes(&mut model, scheme.unwrap_or(OfficialScheme::Modules));
    compare(path, &shapes, &checkpoint)?;
    let dtypes = float_dtypes(&checkpoint)?;

    keys::visit(&mut model, &mut Import { checkpoint: &checkpoint, names: &shapes, device })?;
    let report = ImportReport {
        format: checkpoint.format,
        nested_under: checkpoint.nest,
        scheme,
        tensors: shapes.len(),
        parameters: model.num_params(),
        dtypes,
        skipped,
        outside: checkpoint.outside,
    };
    Ok((model, report))
}

/// Takes out of the checkpoint what the model does not need, and returns the names.
fn skip(config: &WtConvNextConfig, checkpoint: &mut Checkpoint) -> Result<Vec<String>, ImportError> {
    let is_classifier = |name: &str| name.strip_prefix(keys::CLASSIFIER).is_some_and(|n| n.starts_with('.'));
    let is_fixed = |name: &str| config.mixer == Mixer::WtConv && keys::is_fixed_filter(name);
    let skipped: Vec<String> = checkpoint
        .tensors
        .keys()
        .filter(|name| is_fixed(name) || (!config.head && is_classifier(name)))
        .cloned()
        .collect();
    for name in &skipped {
        if is_fixed(name) && !haar::are_haar(checkpoint.read(name)?) {
            return Err(ImportError::NotHaar { name: name.clone() });
        }
        checkpoint.tensors.remove(name);
    }
    Ok(skipped)
}

/// All differences between the names and shapes of the model and of the file.
fn compare(
    path: &Path,
    shapes: &BTreeMap<String, Vec<usize>>,
    checkpoint: &Checkpoint,
) -> Result<(), ImportError> {
    let (mut missing, mut wrong_shape) = (Vec::new(), Vec::new());
    for (name, expected) in shapes {
        match checkpoint.tensors.get(name) {
            None => missing.push(name.clone()),
            Some(tensor) if tensor.shape.as_slice() != expected.as_slice() => {
                wrong_shape.push(ShapeMismatch {
                    name: name.clone(),
                    expected: expected.clone(),
                    got: tensor.shape.to_vec(),
                });
            }
            Some(_) => {}
        }
    }
    let unused: Vec<String> =
        checkpoint.tensors.keys().filter(|name| !shapes.contains_key(*name)).cloned().collect();
    if missing.is_empty() && unused.is_empty() && wrong_shape.is_empty() {
        return Ok(());
    }
    Err(ImportError::Mismatch { path: path.to_owned(), missing, unused, wrong_shape, expected: shapes.len() })
}

fn float_dtypes(checkpoint: &Checkpoint) -> Result<Vec<DType>, ImportError> {
    let mut dtypes = Vec::new();
    for (name, tensor) in &checkpoint.tensors {
        if !tensor.dtype.is_float() {
            return Err(ImportError::DType { name: name.clone(), got: tensor.dtype });
        }
        if !dtypes.contains(&tensor.dtype) {
            dtypes.push(tensor.dtype);
        }
    }
    Ok(dtypes)
}

/// Fills a model with the tensors of a checkpoint that has been compared with it.
struct Import<'a, B: Backend> {
    checkpoint: &'a Checkpoint<'a>,
    names: &'a BTreeMap<String, Vec<usize>>,
    device: &'a B::Device,
}

impl<B: Backend> Import<'_, B> {
    fn param<const D: usize>(&self, name: &str) -> Result<Param<Tensor<B, D>>, ImportError> {
        Ok(Param::from_data(self.checkpoint.read(name)?, self.device))
    }
}

impl<B: Backend> Visitor<B> for Import<'_, B> {
    type Error = ImportError;

    fn conv2d(
        &mut self,
        name: &str,
        weight: &mut Param<Tensor<B, 4>>,
        bias: &mut Option<Param<Tensor<B, 1>>>,
    ) -> Result<(), ImportError> {
        *weight = self.param(&format!("{name}.weight"))?;
        if let Some(bias) = bias {
            *bias = self.param(&format!("{name}.bias"))?;
        }
        Ok(())
    }

    fn linear(&mut self, name: &str, linear: &mut Linear<B>) -> Result<(), ImportError> {
        let weight = transpose(self.checkpoint.read(&format!("{name}.weight"))?);
        linear.weight = Param::from_data(weight, self.device);
        if let Some(bias) = &mut linear.bias {
            *bias = self.param(&format!("{name}.bias"))?;
        }
        Ok(())
    }

    fn layer_norm(&mut self, name: &str, norm: &mut LayerNorm<B>) -> Result<(), ImportError> {
        norm.gamma = self.param(&format!("{name}.weight"))?;
        if let Some(beta) = &mut norm.beta {
            *beta = self.param(&format!("{name}.bias"))?;
        }
        Ok(())
    }

    fn wtconv(&mut self, name: &str, layer: &mut WtConv2d<B>) -> Result<(), ImportError> {
        let [channels, bands, kernel_size, _] = layer.filters.lazy_shape().dims();
        let config = WtConv2dConfig::new(channels)
            .with_kernel_size(kernel_size)
            .with_levels(bands / 4)
            .with_stride(layer.stride)
            .with_bias(layer.bias.is_some());
        let tensors = self
            .names
            .keys()
            .filter_map(|full| Some((full, full.strip_prefix(name)?.strip_prefix('.')?)))
            .map(|(full, relative)| Ok((relative.to_owned(), self.checkpoint.read(full)?)))
            .collect::<Result<_, ImportError>>()?;
        *layer = WtConv2d::from_official(&config, &tensors, self.device)
            .map_err(|source| ImportError::Layer { name: name.to_owned(), source })?;
        Ok(())
    }

    fn vector(&mut self, name: &str, vector: &mut Param<Tensor<B, 1>>) -> Result<(), ImportError> {
        *vector = self.param(name)?;
        Ok(())
    }
}

/// The transpose of a matrix, in row-major order: a transposed view would be read with a stride in every forward pass.
pub(super) fn transpose(matrix: TensorData) -> TensorData {
    let [rows, columns] = matrix.shape.dims();
    let size = matrix.dtype.size();
    let bytes = matrix.as_bytes();
    let mut transposed = Vec::with_capacity(bytes.len());
    for column in 0..columns {
        for row in 0..rows {
            let start = (row * columns + column) * size;
            transposed.extend_from_slice(&bytes[start..start + size]);
        }
    }
    TensorData::from_bytes_vec(transposed, [columns, rows], matrix.dtype)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transposes_in_any_element_size() {
        let matrix = TensorData::from([[1.0f64, 2.0, 3.0], [4.0, 5.0, 6.0]]);
        let expected = TensorData::from([[1.0f64, 4.0], [2.0, 5.0], [3.0, 6.0]]);
        for dtype in [DType::F64, DType::F32, DType::F16] {
            let matrix = matrix.clone().convert_dtype(dtype);
            assert_eq!(transpose(matrix), expected.clone().convert_dtype(dtype));
        }
    }
}
