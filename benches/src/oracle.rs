//! Rows are checked, not only timed: some channels of everything a call computes, against the `f64` oracle.

use std::collections::BTreeMap;

use burn::tensor::backend::Backend;
use burn::tensor::{Tensor, s};
use rayon::prelude::*;
use wtconv_oracle::{Gradients, Problem, relative_error};

use crate::cases::{Case, Dtype};
use crate::operands::{Input, Outcome, Parameters};

/// Pixels over the batch that are checked, as far as that is at least one channel.
const PIXELS: usize = 600_000;
/// Most channels that are checked.
const CHANNELS: usize = 3;

/// Largest relative error of a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Tolerance {
    /// Of the output and of the input's gradient.
    pub(crate) planes: f64,
    /// Of the gradients of the parameters, which are sums over the whole batch.
    pub(crate) parameters: f64,
}

impl Tolerance {
    /// A few roundings of the type for what is rounded once, and in f32 the noise of a long sum.
    pub(crate) fn of(dtype: Dtype) -> Self {
        match dtype {
            Dtype::F32 => Self { planes: 1e-5, parameters: 1e-4 },
            Dtype::F16 => Self { planes: 2e-3, parameters: 2e-3 },
            Dtype::Bf16 => Self { planes: 1.6e-2, parameters: 1.6e-2 },
        }
    }
}

/// What the oracle computes of one case, channel by channel.
pub(crate) struct Expected {
    case: Case,
    channels: Vec<usize>,
    y: Vec<Vec<f64>>,
    gradients: Vec<Gradients>,
}

impl Expected {
    pub(crate) fn of<B: Backend>(
        case: &Case,
        input: &Input<B>,
        parameters: &Parameters<B>,
        with_gradients: bool,
    ) -> Self {
        let [batch, channels, height, width] = case.shape.0;
        let problem = Problem {
            batch,
            channels: 1,
            height,
            width,
            kernel_size: case.kernel_size,
            levels: case.levels,
            stride: 1,
        };
        let channels = checked_channels(channels, batch * height * width);
        // The tensors are read here, one after the other; the oracle then works on plain numbers.
        let arguments: Vec<_> = channels
            .iter()
            .map(|&c| {
                let parameters = wtconv_oracle::Parameters {
                    filters: channel_of_parameters(&parameters.filters, c),
                    scales: channel_of_parameters(&parameters.scales, c),
                    bias: Some(channel_of_parameters(&parameters.bias, c)),
                };
                (channel_of_planes(&input.x, c), channel_of_planes(&input.dy, c), parameters)
            })
            .collect();
        let (y, gradients) = arguments
            .par_iter()
            .map(|(x, dy, parameters)| {
                let y = wtconv_oracle::forward(&problem, x, parameters);
                (y, with_gradients.then(|| wtconv_oracle::backward(&problem, x, parameters, dy)))
            })
            .unzip::<_, _, Vec<_>, Vec<_>>();
        Self { case: *case, channels, y, gradients: gradients.into_iter().flatten().collect() }
    }

    /// Whether this is what the oracle says of `case`.
    pub(crate) fn is_of(&self, case: &Case) -> bool {
        self.case == *case
    }

    /// Relative error of every part of `outcome`.
    pub(crate) fn errors<B: Backend>(&self, outcome: &Outcome<B>) -> BTreeMap<String, f64> {
        let mut errors = BTreeMap::new();
        let planes = |tensor: &Tensor<B, 4>| -> Vec<f64> {
            self.channels.iter().flat_map(|&c| channel_of_planes(tensor, c)).collect()
        };
        let mut check = |what: &str, got: Option<Vec<f64>>, expected: Vec<f64>| {
            if let Some(got) = got {
                // JSON has no NaN: the largest number is as wrong, and can be read again.
                let error = relative_error(&got, &expected);
                errors.insert(what.to_owned(), if error.is_finite() { error } else { f64::MAX });
            }
        };
        let of_gradients = |part: fn(&Gradients) -> &[f64]| -> Vec<f64> {
            self.gradients.iter().flat_map(|gradients| part(gradients).iter().copied()).collect()
        };
        check("y", outcome.y.as_ref().map(planes), self.y.concat());
        check("dx", outcome.dx.as_ref().map(planes), of_gradients(|gradients| &gradients.x));
        let filters = outcome.filters.as_ref().map(|tensor| self.parameters(tensor));
        check("filters", filters, of_gradients(|gradients| &gradients.filters));
        let scales = outcome.scales.as_ref().map(|tensor| self.parameters(tensor));
        check("scales", scales, of_gradients(|gradients| &gradients.scales));
        let bias = outcome.bias.as_ref().map(|tensor| self.parameters(tensor));
        check("bias", bias, of_gradients(|gradients| gradients.bias.as_deref().unwrap_or_default()));
        errors
    }

    fn parameters<B: Backend, const D: usize>(&self, tensor: &Tensor<B, D>) -> Vec<f64> {
        self.channels.iter().flat_map(|&c| channel_of_parameters(tensor, c)).collect()
    }
}

/// Bytes of the numbers that the oracle has at once, at least: of the checked channels `x`, `dy` and `y`, and with
/// gradients `dx`.
pub(crate) fn least_bytes(case: &Case, with_gradients: bool) -> u64 {
    let [batch, channels, height, width] = case.shape.0;
    let pixels = batch * height * width;
    let planes = if with_gradients { 4 } else { 3 };
    (checked_channels(channels, pixels).len() * pixels * planes * size_of::<f64>()) as u64
}

/// The first, the last and one between, or as many as there is time for.
fn checked_channels(channels: usize, pixels: usize) -> Vec<usize> {
    let count = (PIXELS / pixels).clamp(1, CHANNELS).min(channels);
    match count {
        1 => vec![channels / 2],
        _ => (0..count).map(|i| i * (channels - 1) / (count - 1)).collect(),
    }
}

/// `[batch, height, width]` values of a channel of `[batch, channels, height, width]`.
fn channel_of_planes<B: Backend>(tensor: &Tensor<B, 4>, channel: usize) -> Vec<f64> {
    tensor.clone().slice(s![.., channel..channel + 1, .., ..]).into_data().iter::<f64>().collect()
}

/// The values of a channel of `[channels, ..]`.
fn channel_of_parameters<B: Backend, const D: usize>(tensor: &Tensor<B, D>, channel: usize) -> Vec<f64> {
    tensor.clone().slice_dim(0, channel..channel + 1).into_data().iter::<f64>().collect()
}

/// Whether errors by [`Expected::errors`] are within the tolerance. NaN is not.
pub(crate) fn within(errors: &BTreeMap<String, f64>, tolerance: Tolerance) -> bool {
    errors.iter().all(|(what, error)| match what.as_str() {
        "y" | "dx" => *error <= tolerance.planes,
        _ => *error <= tolerance.parameters,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_and_the_last_channel_are_checked_where_there_is_time() {
        assert_eq!(checked_channels(96, 64 * 56 * 56), [0, 95]);
        assert_eq!(checked_channels(96, 100), [0, 47, 95]);
        assert_eq!(checked_channels(64, 4_000_000), [32]);
        assert_eq!(checked_channels(1, 100), [0]);
        assert_eq!(checked_channels(2, 100), [0, 1]);
    }

    #[test]
    fn the_oracle_holds_the_checked_channels_in_f64() {
        let case = Case { shape: crate::cases::Shape([2, 8, 10, 10]), levels: 1, kernel_size: 5 };
        assert_eq!(least_bytes(&case, false), 3 * 200 * 3 * 8);
        assert_eq!(least_bytes(&case, true), 3 * 200 * 4 * 8);
    }

    #[test]
    fn an_error_counts_against_its_own_tolerance_and_nan_against_all() {
        let tolerance = Tolerance::of(Dtype::F32);
        let of = |what: &str, error: f64| BTreeMap::from([(what.to_owned(), error), ("y".to_owned(), 1e-7)]);
        assert!(within(&of("dx", 9e-6), tolerance) && !within(&of("dx", 2e-5), tolerance));
        assert!(within(&of("filters", 2e-5), tolerance) && !within(&of("filters", 2e-4), tolerance));
        assert!(!within(&of("bias", f64::NAN), tolerance));
    }
}
