//! Names and shapes of the official state dict.

use std::collections::BTreeMap;
use std::convert::Infallible;

use burn::module::Param;
use burn::nn::{LayerNorm, Linear};
use burn::tensor::Tensor;
use burn::tensor::backend::Backend;
use burn_wtconv::official::OfficialScheme;
use burn_wtconv::{WtConv2d, WtConv2dConfig};

use crate::{Mixing, WtConvNext};

/// What is done with each part of a model that has a name in the official state dict.
pub(super) trait Visitor<B: Backend> {
    type Error;

    /// `NAME.weight` and `NAME.bias`.
    fn conv2d(
        &mut self,
        name: &str,
        weight: &mut Param<Tensor<B, 4>>,
        bias: &mut Option<Param<Tensor<B, 1>>>,
    ) -> Result<(), Self::Error>;
    /// `NAME.weight`, transposed, and `NAME.bias`.
    fn linear(&mut self, name: &str, linear: &mut Linear<B>) -> Result<(), Self::Error>;
    /// `NAME.weight` and `NAME.bias`.
    fn layer_norm(&mut self, name: &str, norm: &mut LayerNorm<B>) -> Result<(), Self::Error>;
    /// `NAME.` and the names of an [`OfficialScheme`].
    fn wtconv(&mut self, name: &str, layer: &mut WtConv2d<B>) -> Result<(), Self::Error>;
    /// `NAME` itself.
    fn vector(&mut self, name: &str, vector: &mut Param<Tensor<B, 1>>) -> Result<(), Self::Error>;
}

/// Visits every part of a model under its official name. This is the only place that knows where they are.
pub(super) fn visit<B: Backend, V: Visitor<B>>(
    model: &mut WtConvNext<B>,
    visitor: &mut V,
) -> Result<(), V::Error> {
    let stem = &mut model.stem.conv;
    visitor.conv2d("stem.0", &mut stem.weight, &mut stem.bias)?;
    visitor.layer_norm("stem.1", &mut model.stem.norm.norm)?;
    for (s, stage) in model.stages.iter_mut().enumerate() {
        if let Some(downsample) = &mut stage.downsample {
            visitor.layer_norm(&format!("stages.{s}.downsample.0"), &mut downsample.norm.norm)?;
            let conv = &mut downsample.conv;
            visitor.conv2d(&format!("stages.{s}.downsample.1"), &mut conv.weight, &mut conv.bias)?;
        }
        for (b, block) in stage.blocks.iter_mut().enumerate() {
            let name = |part: &str| format!("stages.{s}.blocks.{b}.{part}");
            visitor.vector(&name("gamma"), &mut block.gamma)?;
            match &mut block.mixing {
                Mixing::WtConv(layer) => visitor.wtconv(&name("conv_dw"), layer)?,
                Mixing::Depthwise(layer) => {
                    visitor.conv2d(&name("conv_dw"), &mut layer.weight, &mut layer.bias)?
                }
                Mixing::Conv2d(conv) => visitor.conv2d(&name("conv_dw"), &mut conv.weight, &mut conv.bias)?,
            }
            visitor.layer_norm(&name("norm"), &mut block.norm)?;
            visitor.linear(&name("mlp.fc1"), &mut block.mlp.fc1)?;
            visitor.linear(&name("mlp.fc2"), &mut block.mlp.fc2)?;
        }
    }
    visitor.layer_norm("head.norm", &mut model.head.norm)?;
    if let Some(fc) = &mut model.head.fc {
        visitor.linear(CLASSIFIER, fc)?;
    }
    Ok(())
}

/// The classifier, which a model without a head lacks.
pub(super) const CLASSIFIER: &str = "head.fc";

/// The fixed Haar filters of a wavelet convolution, which PyTorch keeps among its parameters.
pub(super) const FIXED_FILTERS: [&str; 2] = ["conv_dw.wt_filter", "conv_dw.iwt_filter"];

/// Whether `name` is a tensor that a model of this library computes rather than stores.
pub(super) fn is_fixed_filter(name: &str) -> bool {
    name.starts_with("stages.") && FIXED_FILTERS.iter().any(|filter| name.ends_with(&format!(".{filter}")))
}

/// The scheme of a state dict with these names; none if it has no wavelet convolution.
pub(super) fn detect_scheme<'a>(mut names: impl Iterator<Item = &'a String>) -> Option<OfficialScheme> {
    names.find_map(|name| {
        let (_, parameter) = name.split_once(".conv_dw.")?;
        match parameter.split('.').next()? {
            "base_conv" => Some(OfficialScheme::Modules),
            "base_weight" => Some(OfficialScheme::Parameters),
            _ => None,
        }
    })
}

/// Every name of the model's state dict with its shape in PyTorch. Does not initialise any parameter.
pub(super) fn shapes<B: Backend>(
    model: &mut WtConvNext<B>,
    scheme: OfficialScheme,
) -> BTreeMap<String, Vec<usize>> {
    let mut shapes = Shapes { scheme, shapes: BTreeMap::new() };
    let Ok(()) = visit(model, &mut shapes);
    shapes.shapes
}

struct Shapes {
    scheme: OfficialScheme,
    shapes: BTreeMap<String, Vec<usize>>,
}

impl Shapes {
    fn insert(&mut self, name: String, shape: impl Into<Vec<usize>>) {
        self.shapes.insert(name, shape.into());
    }

    fn param<B: Backend, const D: usize>(&mut self, name: String, param: &Param<Tensor<B, D>>) {
        self.insert(name, param.lazy_shape().to_vec());
    }
}

impl<B: Backend> Visitor<B> for Shapes {
    type Error = Infallible;

    fn conv2d(
        &mut self,
        name: &str,
        weight: &mut Param<Tensor<B, 4>>,
        bias: &mut Option<Param<Tensor<B, 1>>>,
    ) -> Result<(), Infallible> {
        self.param(format!("{name}.weight"), weight);
        if let Some(bias) = bias {
            self.param(format!("{name}.bias"), bias);
        }
        Ok(())
    }

    fn linear(&mut self, name: &str, linear: &mut Linear<B>) -> Result<(), Infallible> {
        let [d_input, d_output] = linear.weight.lazy_shape().dims();
        self.insert(format!("{name}.weight"), [d_output, d_input]);
        if let Some(bias) = &linear.bias {
            self.param(format!("{name}.bias"), bias);
        }
        Ok(())
    }

    fn layer_norm(&mut self, name: &str, norm: &mut LayerNorm<B>) -> Result<(), Infallible> {
        self.param(format!("{name}.weight"), &norm.gamma);
        if let Some(beta) = &norm.beta {
            self.param(format!("{name}.bias"), beta);
        }
        Ok(())
    }

    fn wtconv(&mut self, name: &str, layer: &mut WtConv2d<B>) -> Result<(), Infallible> {
        let [channels, bands, kernel_size, _] = layer.filters.lazy_shape().dims();
        let config = WtConv2dConfig::new(channels)
            .with_kernel_size(kernel_size)
            .with_levels(bands / 4)
            .with_bias(layer.bias.is_some());
        for (parameter, shape) in self.scheme.parameters(&config) {
            self.insert(format!("{name}.{parameter}"), shape);
        }
        Ok(())
    }

    fn vector(&mut self, name: &str, vector: &mut Param<Tensor<B, 1>>) -> Result<(), Infallible> {
        self.param(name.to_owned(), vector);
        Ok(())
    }
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use burn::backend::Flex;

    use super::*;
    use crate::WtConvNextConfig;

    /// Elements of a model's state dict in both schemes, without making any of them.
    fn elements(name: &str) -> usize {
        let mut model = name.parse::<WtConvNextConfig>().unwrap().init::<Flex>(&Default::default());
        let [modules, parameters] =
            [OfficialScheme::Modules, OfficialScheme::Parameters].map(|scheme| -> usize {
                shapes(&mut model, scheme).values().map(|shape| shape.iter().product::<usize>()).sum()
            });
        assert_eq!(modules, parameters);
        modules
    }

    #[test]
    fn the_state_dicts_hold_the_published_numbers_of_parameters() {
        assert_eq!(elements("wtconvnext-t"), 30_383_656);
        assert_eq!(elements("wtconvnext-s"), 54_015_784);
        assert_eq!(elements("wtconvnext-b"), 93_647_592);
        assert_eq!(elements("convnext-t"), 28_589_128);
        assert_eq!(elements("convnext-s"), 50_223_688);
        assert_eq!(elements("convnext-b"), 88_591_464);
    }

    #[test]
    fn the_scheme_is_that_of_the_first_wavelet_convolution() {
        let detect = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            detect_scheme(names.iter())
        };
        let block = "stages.0.blocks.0";
        let modules = format!("{block}.conv_dw.base_conv.weight");
        let parameters = format!("{block}.conv_dw.base_weight");
        assert_eq!(detect(&["stem.0.weight", &modules]), Some(OfficialScheme::Modules));
        assert_eq!(detect(&["stem.0.weight", &parameters]), Some(OfficialScheme::Parameters));
        assert_eq!(detect(&["stem.0.weight", &format!("{block}.conv_dw.weight")]), None);
    }
}
