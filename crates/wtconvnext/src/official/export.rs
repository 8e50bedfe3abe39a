use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use burn::module::{Module, Param};
use burn::nn::{LayerNorm, Linear};
use burn::tensor::backend::Backend;
use burn::tensor::{DType, Tensor, TensorData};
use burn_wtconv::WtConv2d;
use burn_wtconv::official::OfficialScheme;
use safetensors::tensor::TensorView;
use safetensors::{Dtype, serialize_to_file};

use super::import::transpose;
use super::keys::{self, Visitor};
use super::{ExportError, haar};
use crate::WtConvNext;

/// Saves a model as a safetensors file under the official names, for the PyTorch code and for
/// [`load_official`](crate::load_official).
///
/// Parameters keep their dtype. Under [`OfficialScheme::Modules`] the fixed wavelet filters are written too, because
/// PyTorch's `load_state_dict` wants them. `scheme` has no effect on a plain ConvNeXt. A file that exists is replaced.
///
/// # Errors
///
/// An [`ExportError`] if a parameter is quantised or the file cannot be written.
pub fn save_official<B: Backend>(
    model: &WtConvNext<B>,
    path: impl AsRef<Path>,
    scheme: OfficialScheme,
) -> Result<(), ExportError> {
    let path = path.as_ref();
    let mut export = Export { scheme, tensors: BTreeMap::new() };
    // Visiting is made for import, which needs mutable parts. A clone shares the tensors of all parameters that have been
    // used, and draws the others anew: counting draws them before.
    model.num_params();
    keys::visit(&mut model.clone(), &mut export)?;

    let views = export
        .tensors
        .iter()
        .map(|(name, tensor)| Ok((name, view(name, tensor)?)))
        .collect::<Result<Vec<_>, ExportError>>()?;
    let metadata = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    serialize_to_file(views, Some(metadata), path)
        .map_err(|source| ExportError::Write { path: path.to_owned(), source })
}

fn view<'a>(name: &str, tensor: &'a TensorData) -> Result<TensorView<'a>, ExportError> {
    let dtype = match tensor.dtype {
        DType::F64 => Dtype::F64,
        DType::F32 | DType::Flex32 => Dtype::F32,
        DType::F16 => Dtype::F16,
        DType::BF16 => Dtype::BF16,
        got => return Err(ExportError::DType { name: name.to_owned(), got }),
    };
    Ok(TensorView::new(dtype, tensor.shape.to_vec(), tensor.as_bytes()).expect("the shape is the data's own"))
}

/// Collects a model's tensors.
struct Export {
    scheme: OfficialScheme,
    tensors: BTreeMap<String, TensorData>,
}

impl Export {
    fn param<B: Backend, const D: usize>(&mut self, name: String, param: &Param<Tensor<B, D>>) {
        self.tensors.insert(name, param.val().into_data());
    }
}

impl<B: Backend> Visitor<B> for Export {
    type Error = ExportError;

    fn conv2d(
        &mut self,
        name: &str,
        weight: &mut Param<Tensor<B, 4>>,
        bias: &mut Option<Param<Tensor<B, 1>>>,
    ) -> Result<(), ExportError> {
        self.param(format!("{name}.weight"), weight);
        if let Some(bias) = bias {
            self.param(format!("{name}.bias"), bias);
        }
        Ok(())
    }

    fn linear(&mut self, name: &str, linear: &mut Linear<B>) -> Result<(), ExportError> {
        self.tensors.insert(format!("{name}.weight"), transpose(linear.weight.val().into_data()));
        if let Some(bias) = &linear.bias {
            self.param(format!("{name}.bias"), bias);
        }
        Ok(())
    }

    fn layer_norm(&mut self, name: &str, norm: &mut LayerNorm<B>) -> Result<(), ExportError> {
        self.param(format!("{name}.weight"), &norm.gamma);
        if let Some(beta) = &norm.beta {
            self.param(format!("{name}.bias"), beta);
        }
        Ok(())
    }

    fn wtconv(&mut self, name: &str, layer: &mut WtConv2d<B>) -> Result<(), ExportError> {
        for (parameter, tensor) in layer.to_official(self.scheme) {
            self.tensors.insert(format!("{name}.{parameter}"), tensor);
        }
        if self.scheme == OfficialScheme::Modules {
            let filters = haar::filters(layer.filters.dims()[0]);
            self.tensors.insert(format!("{name}.wt_filter"), filters.clone());
            self.tensors.insert(format!("{name}.iwt_filter"), filters);
        }
        Ok(())
    }

    fn vector(&mut self, name: &str, vector: &mut Param<Tensor<B, 1>>) -> Result<(), ExportError> {
        self.param(name.to_owned(), vector);
        Ok(())
    }
}
