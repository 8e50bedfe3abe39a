//! Cases computed by the reference PyTorch layer, see `golden/README.md`.

use safetensors::{Dtype, SafeTensors};
use serde::Deserialize;

use crate::{Gradients, Parameters, Problem};

/// A case and what the reference layer made of it.
#[derive(Clone, Debug)]
pub struct Case {
    /// Name in the golden file.
    pub name: String,
    /// Its sizes.
    pub problem: Problem,
    /// `[batch, channels, height, width]`, exact in f32.
    pub x: Vec<f64>,
    /// Cotangent in the output's shape, exact in f32.
    pub dy: Vec<f64>,
    /// Exact in f32.
    pub parameters: Parameters,
    /// The output.
    pub y: Vec<f64>,
    /// The gradients of `sum(dy * y)`.
    pub gradients: Gradients,
}

#[derive(Deserialize)]
struct Listed {
    name: String,
    batch: usize,
    channels: usize,
    height: usize,
    width: usize,
    kernel_size: usize,
    levels: usize,
    stride: usize,
    bias: bool,
}

/// All golden cases.
///
/// # Panics
///
/// If the golden files, which are part of this crate, are damaged.
pub fn cases() -> Vec<Case> {
    let listed: Vec<Listed> =
        serde_json::from_str(include_str!("../golden/layer.json")).expect("a list of cases");
    let tensors =
        SafeTensors::deserialize(include_bytes!("../golden/layer.safetensors")).expect("safetensors");
    listed.iter().map(|case| load(case, &tensors)).collect()
}

fn load(listed: &Listed, tensors: &SafeTensors) -> Case {
    let Listed { batch, channels, height, width, kernel_size, levels, stride, .. } = *listed;
    let problem = Problem { batch, channels, height, width, kernel_size, levels, stride };
    let read = |key: &str| values(tensors, &format!("{}.{key}", listed.name));
    let packed = |kind: &str| Parameters {
        filters: pack(&problem, kernel_size * kernel_size, |path| match path {
            None => read(&format!("{kind}.base_conv.weight")),
            Some(level) => read(&format!("{kind}.wavelet_convs.{level}.weight")),
        }),
        scales: pack(&problem, 1, |path| match path {
            None => read(&format!("{kind}.base_scale.weight")),
            Some(level) => read(&format!("{kind}.wavelet_scale.{level}.weight")),
        }),
        bias: listed.bias.then(|| read(&format!("{kind}.base_conv.bias"))),
    };
    let gradients = packed("grad");
    Case {
        name: listed.name.clone(),
        problem,
        x: read("x"),
        dy: read("dy"),
        parameters: packed("param"),
        y: read("y"),
        gradients: Gradients {
            x: read("dx"),
            filters: gradients.filters,
            scales: gradients.scales,
            bias: gradients.bias,
        },
    }
}

/// Packs the base path (`None`) and the levels (`Some(index)`), each of `size` elements a filter, by channel.
fn pack(problem: &Problem, size: usize, read: impl Fn(Option<usize>) -> Vec<f64>) -> Vec<f64> {
    let base = read(None);
    let levels: Vec<_> = (0..problem.levels).map(|level| read(Some(level))).collect();
    let mut packed = Vec::new();
    for channel in 0..problem.channels {
        packed.extend(&base[channel * size..(channel + 1) * size]);
        for level in &levels {
            packed.extend(&level[channel * 4 * size..(channel + 1) * 4 * size]);
        }
    }
    packed
}

fn values(tensors: &SafeTensors, name: &str) -> Vec<f64> {
    let tensor = tensors.tensor(name).unwrap_or_else(|error| panic!("{name}: {error}"));
    let bytes = tensor.data();
    match tensor.dtype() {
        Dtype::F32 => bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b).into()).collect(),
        Dtype::F64 => bytes.as_chunks().0.iter().map(|b| f64::from_le_bytes(*b)).collect(),
        other => panic!("{name}: expected F32 or F64, got {other:?}"),
    }
}
