//! One layer's parameters under the names of the PyTorch implementations.
//!
//! Two naming schemes are in public use. In both, channel `4c + s` of a level's filters is subband `s` (LL, LH, HL,
//! HH) of channel `c`.
//!
//! | [`Modules`](OfficialScheme::Modules) | [`Parameters`](OfficialScheme::Parameters) | shape |
//! |---|---|---|
//! | `base_conv.weight` | `base_weight` | `[channels, 1, kernel_size, kernel_size]` |
//! | `base_conv.bias` | `base_bias` | `[channels]` |
//! | `base_scale.weight` | `base_scale` | `[1, channels, 1, 1]` |
//! | `wavelet_convs.i.weight` | `wt_weights.i` | `[4 * channels, 1, kernel_size, kernel_size]` |
//! | `wavelet_scale.i.weight` | `wt_scales.i` | `[1, 4 * channels, 1, 1]` |

use std::collections::BTreeMap;
use std::ops::Range;

use burn::module::Param;
use burn::tensor::backend::Backend;
use burn::tensor::{Tensor, TensorData};
use thiserror::Error;

use crate::{WtConv2d, WtConv2dConfig, WtConvError};

/// How a PyTorch implementation names the parameters of a wavelet convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OfficialScheme {
    /// The reference layer, built of convolution and scale modules.
    Modules,
    /// The fused layers, built of plain parameters.
    Parameters,
}

/// Why tensors under official names do not make up a layer.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum OfficialError {
    /// Parameters that the layer has and the tensors lack.
    #[error("{} of {expected} parameters are missing: {}", names.len(), names.join(", "))]
    Missing {
        /// The missing names.
        names: Vec<String>,
        /// How many parameters the layer has.
        expected: usize,
    },
    /// Tensors that the layer has no place for.
    #[error("{} of {got} tensors belong to no parameter: {}", names.len(), names.join(", "))]
    Unexpected {
        /// The names of the tensors.
        names: Vec<String>,
        /// How many tensors there are.
        got: usize,
    },
    /// A tensor of another shape than its parameter.
    #[error("expected {name} of shape {expected:?}, got {got:?}")]
    Shape {
        /// The name of the parameter.
        name: String,
        /// The parameter's shape.
        expected: Vec<usize>,
        /// The tensor's shape.
        got: Vec<usize>,
    },
    /// The layer itself cannot be built.
    #[error(transparent)]
    Config(#[from] WtConvError),
}

impl OfficialScheme {
    fn base_filter(self) -> String {
        self.choose("base_conv.weight", "base_weight")
    }

    fn base_bias(self) -> String {
        self.choose("base_conv.bias", "base_bias")
    }

    fn base_scale(self) -> String {
        self.choose("base_scale.weight", "base_scale")
    }

    fn level_filters(self, index: usize) -> String {
        self.choose(&format!("wavelet_convs.{index}.weight"), &format!("wt_weights.{index}"))
    }

    fn level_scales(self, index: usize) -> String {
        self.choose(&format!("wavelet_scale.{index}.weight"), &format!("wt_scales.{index}"))
    }

    fn choose(self, modules: &str, parameters: &str) -> String {
        match self {
            Self::Modules => modules.to_owned(),
            Self::Parameters => parameters.to_owned(),
        }
    }

    /// The names and shapes of a layer's parameters, relative to the layer.
    ///
    /// ```
    /// use burn_wtconv::WtConv2dConfig;
    /// use burn_wtconv::official::OfficialScheme;
    ///
    /// let parameters = OfficialScheme::Modules.parameters(&WtConv2dConfig::new(8).with_levels(2));
    /// assert_eq!(parameters["wavelet_convs.1.weight"], [32, 1, 5, 5]);
    /// ```
    pub fn parameters(self, config: &WtConv2dConfig) -> BTreeMap<String, Vec<usize>> {
        let WtConv2dConfig { channels, kernel_size, levels, bias, .. } = *config;
        let mut shapes = BTreeMap::from([
            (self.base_filter(), vec![channels, 1, kernel_size, kernel_size]),
            (self.base_scale(), vec![1, channels, 1, 1]),
        ]);
        if bias {
            shapes.insert(self.base_bias(), vec![channels]);
        }
        for index in 0..levels {
            shapes.insert(self.level_filters(index), vec![4 * channels, 1, kernel_size, kernel_size]);
            shapes.insert(self.level_scales(index), vec![1, 4 * channels, 1, 1]);
        }
        shapes
    }
}

/// The fixed Haar filters that PyTorch layers keep beside their parameters.
fn is_fixed_filter(name: &str) -> bool {
    matches!(name, "wt_filter" | "iwt_filter")
}

impl<B: Backend> WtConv2d<B> {
    /// Builds a layer from tensors under official names, relative to the layer, in either scheme.
    ///
    /// The fixed filters `wt_filter` and `iwt_filter` are skipped; the values are cast to the backend's float dtype.
    ///
    /// # Errors
    ///
    /// If a parameter is missing, a tensor is left over or has another shape; all such names are listed.
    pub fn from_official(
        config: &WtConv2dConfig,
        tensors: &BTreeMap<String, TensorData>,
        device: &B::Device,
    ) -> Result<Self, OfficialError> {
        config.validate()?;
        let scheme = match tensors.keys().any(|name| name.starts_with("base_conv.")) {
            true => OfficialScheme::Modules,
            false => OfficialScheme::Parameters,
        };
        let shapes = scheme.parameters(config);
        check_names(&shapes, tensors)?;

        let WtConv2dConfig { channels, kernel_size, levels, bias, stride } = *config;
        let load = |name: String| tensors[&name].clone();
        let level_names =
            |name: fn(OfficialScheme, usize) -> String| (0..levels).map(move |i| name(scheme, i));

        let mut filters = vec![Tensor::from_data(load(scheme.base_filter()), device)];
        filters.extend(level_names(OfficialScheme::level_filters).map(|name| {
            Tensor::<B, 4>::from_data(load(name), device).reshape([channels, 4, kernel_size, kernel_size])
        }));
        let mut scales =
            vec![Tensor::<B, 4>::from_data(load(scheme.base_scale()), device).reshape([channels, 1])];
        scales.extend(
            level_names(OfficialScheme::level_scales)
                .map(|name| Tensor::<B, 4>::from_data(load(name), device).reshape([channels, 4])),
        );
        Ok(Self {
            filters: Param::from_tensor(Tensor::cat(filters, 1)),
            scales: Param::from_tensor(Tensor::cat(scales, 1)),
            bias: bias.then(|| Param::from_tensor(Tensor::from_data(load(scheme.base_bias()), device))),
            stride,
        })
    }

    /// The parameters under official names, relative to the layer, in the layer's dtype.
    pub fn to_official(&self, scheme: OfficialScheme) -> BTreeMap<String, TensorData> {
        let (channels, kernel_size) = (self.channels(), self.kernel_size());
        // Each parameter is read from the device once and taken apart on the host.
        let (filters, scales) = (self.filters.val().into_data(), self.scales.val().into_data());
        let filter_shape = |filters: usize| vec![filters, 1, kernel_size, kernel_size];
        let scale_shape = |scales: usize| vec![1, scales, 1, 1];
        let mut tensors = BTreeMap::from([
            (scheme.base_filter(), select_bands(&filters, 0..1, filter_shape(channels))),
            (scheme.base_scale(), select_bands(&scales, 0..1, scale_shape(channels))),
        ]);
        if let Some(bias) = &self.bias {
            tensors.insert(scheme.base_bias(), bias.val().into_data());
        }
        for index in 0..self.levels() {
            let bands = 1 + 4 * index..5 + 4 * index;
            let level_filters = select_bands(&filters, bands.clone(), filter_shape(4 * channels));
            let level_scales = select_bands(&scales, bands, scale_shape(4 * channels));
            tensors.insert(scheme.level_filters(index), level_filters);
            tensors.insert(scheme.level_scales(index), level_scales);
        }
        tensors
    }
}

/// The bands of every channel of a packed parameter `[channels, bands, ...]`.
fn select_bands(packed: &TensorData, bands: Range<usize>, shape: Vec<usize>) -> TensorData {
    let bytes = packed.as_bytes();
    let band = bytes.len() / (packed.shape[0] * packed.shape[1]);
    let selected = bytes
        .chunks_exact(band * packed.shape[1])
        .flat_map(|channel| &channel[bands.start * band..bands.end * band]);
    TensorData::from_bytes_vec(selected.copied().collect(), shape, packed.dtype)
}

fn check_names(
    shapes: &BTreeMap<String, Vec<usize>>,
    tensors: &BTreeMap<String, TensorData>,
) -> Result<(), OfficialError> {
    let missing: Vec<_> = shapes.keys().filter(|name| !tensors.contains_key(*name)).cloned().collect();
    if !missing.is_empty() {
        return Err(OfficialError::Missing { names: missing, expected: shapes.len() });
    }
    let unexpected = |name: &&String| !shapes.contains_key(*name) && !is_fixed_filter(name);
    let unexpected: Vec<_> = tensors.keys().filter(unexpected).cloned().collect();
    if !unexpected.is_empty() {
        return Err(OfficialError::Unexpected { names: unexpected, got: tensors.len() });
    }
    for (name, expected) in shapes {
        let got = tensors[name].shape.to_vec();
        if got != *expected {
            return Err(OfficialError::Shape { name: name.clone(), expected: expected.clone(), got });
        }
    }
    Ok(())
}
