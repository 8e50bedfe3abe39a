//! Between the oracle's slices and a backend's tensors.

use burn::backend::Autodiff;
use burn::backend::autodiff::checkpoint::strategy::{CheckpointStrategy, NoCheckpointing};
use burn::tensor::backend::Backend;
use burn::tensor::{DType, Tensor, TensorData};
use burn_wtconv::{WtConvBackend, reference, wtconv2d};
use wtconv_oracle::{Gradients, Parameters, Problem, relative_error};

/// The dtype that a backend is tested in, and how close it has to come.
#[derive(Clone, Copy, Debug)]
pub struct Precision {
    pub dtype: DType,
    /// Largest relative error against the golden files, whose Haar filters are 0.49999998 instead of 0.5.
    pub golden: f64,
    /// Largest relative error against the oracle.
    pub oracle: f64,
    /// The same where Burn's autodiff goes through the reference and so through matrix products.
    pub products: f64,
    /// Random problems to check: a software device compiles for seconds for every one.
    pub problems: usize,
    /// Cases to check of what only tensor ops compute, which compile for longer still.
    pub tensor_op_cases: usize,
    /// Whether Burn itself can fill, sum and so differentiate tensors without elements there.
    pub empty_tensors: bool,
}

impl Precision {
    pub const F64: Self = Self {
        dtype: DType::F64,
        golden: 2e-6,
        oracle: 1e-12,
        products: 1e-12,
        problems: 24,
        tensor_op_cases: 16,
        empty_tensors: true,
    };
    pub const F32: Self = Self {
        dtype: DType::F32,
        golden: 1e-5,
        oracle: 5e-6,
        products: 5e-6,
        problems: 24,
        tensor_op_cases: 16,
        empty_tensors: true,
    };
}

/// A problem with all its numbers.
#[derive(Clone, Debug)]
pub struct Case {
    pub problem: Problem,
    pub x: Vec<f64>,
    pub dy: Vec<f64>,
    pub parameters: Parameters,
}

impl Case {
    /// Values of a fixed pseudo-random sequence in -1..1, exact in f32; scales are near 1 and never 1.
    pub fn random(problem: Problem, bias: bool, seed: u64) -> Self {
        let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let mut values = |len: usize| -> Vec<f64> {
            let mut next = || {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                (state >> 44) as f64 / f64::from(1 << 19) - 1.0
            };
            (0..len).map(|_| next()).collect()
        };
        Self {
            problem,
            x: values(problem.input_len()),
            dy: values(problem.output_len()),
            parameters: Parameters {
                filters: values(problem.filters_len()),
                scales: values(problem.scales_len()).into_iter().map(|v| 1.25 + v / 2.0).collect(),
                bias: bias.then(|| values(problem.channels)),
            },
        }
    }

    /// Integers small enough that every sum of products is exact in f32.
    pub fn integers(problem: Problem, seed: usize) -> Self {
        let values = |len: usize, salt: usize, range: usize| -> Vec<f64> {
            (0..len).map(|i| ((i * 31 + salt * 17 + seed) % range) as f64 - (range / 2) as f64).collect()
        };
        Self {
            problem,
            x: values(problem.input_len(), 1, 9).into_iter().map(|v| v * 32.0).collect(),
            dy: values(problem.output_len(), 2, 7).into_iter().map(|v| v * 32.0).collect(),
            parameters: Parameters {
                filters: values(problem.filters_len(), 3, 5),
                scales: values(problem.scales_len(), 4, 3).into_iter().map(|v| v + 2.0).collect(),
                bias: Some(values(problem.channels, 5, 5)),
            },
        }
    }

    pub fn input_shape(&self) -> [usize; 4] {
        [self.problem.batch, self.problem.channels, self.problem.height, self.problem.width]
    }

    pub fn output_shape(&self) -> [usize; 4] {
        let Problem { batch, channels, .. } = self.problem;
        [batch, channels, self.problem.output_height(), self.problem.output_width()]
    }

    pub fn oracle(&self) -> Outcome {
        Outcome {
            y: wtconv_oracle::forward(&self.problem, &self.x, &self.parameters),
            gradients: wtconv_oracle::backward(&self.problem, &self.x, &self.parameters, &self.dy),
        }
    }
}

/// Passes wherever there is a device for the backend: `cargo xtask test` asks it first.
pub fn the_device_answers<B: Backend>(device: &B::Device, precision: Precision) {
    assert_eq!(values(tensor::<B, 1>(&[1.0, 2.0], [2], precision.dtype, device) * 2.0), vec![2.0, 4.0]);
}

/// The output and all gradients.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    pub y: Vec<f64>,
    pub gradients: Gradients,
}

impl Outcome {
    /// Panics with `context` where this is further than `tolerance` from `expected`.
    #[track_caller]
    pub fn assert_close(&self, expected: &Self, tolerance: f64, context: &str) {
        let mut pairs = vec![
            ("y", &self.y, &expected.y),
            ("dx", &self.gradients.x, &expected.gradients.x),
            ("filter gradients", &self.gradients.filters, &expected.gradients.filters),
            ("scale gradients", &self.gradients.scales, &expected.gradients.scales),
        ];
        match (&self.gradients.bias, &expected.gradients.bias) {
            (Some(got), Some(expected)) => pairs.push(("bias gradient", got, expected)),
            (None, None) => {}
            (got, expected) => {
                panic!("{context}: bias gradient {}, expected {}", got.is_some(), expected.is_some())
            }
        }
        for (what, got, expected) in pairs {
            let error = relative_error(got, expected);
            assert!(
                error <= tolerance,
                "{context}: relative error of {what} is {error:e}, not {tolerance:e}"
            );
        }
    }
}

pub fn tensor<B: Backend, const D: usize>(
    values: &[f64],
    shape: [usize; D],
    dtype: DType,
    device: &B::Device,
) -> Tensor<B, D> {
    Tensor::from_data(TensorData::new(values.to_vec(), shape), (device, dtype))
}

pub fn values<B: Backend, const D: usize>(tensor: Tensor<B, D>) -> Vec<f64> {
    // Not every backend can read a tensor without elements.
    if tensor.shape().num_elements() == 0 {
        return Vec::new();
    }
    tensor.into_data().iter::<f64>().collect()
}

/// The arguments of a call as tensors.
pub struct Arguments<B: Backend> {
    pub x: Tensor<B, 4>,
    pub filters: Tensor<B, 4>,
    pub scales: Tensor<B, 2>,
    pub bias: Option<Tensor<B, 1>>,
}

impl<B: Backend> Arguments<B> {
    pub fn new(case: &Case, dtype: DType, device: &B::Device) -> Self {
        let Problem { channels, kernel_size, .. } = case.problem;
        let bands = case.problem.bands();
        let Parameters { filters, scales, bias } = &case.parameters;
        Self {
            x: tensor(&case.x, case.input_shape(), dtype, device),
            filters: tensor(filters, [channels, bands, kernel_size, kernel_size], dtype, device),
            scales: tensor(scales, [channels, bands], dtype, device),
            bias: bias.as_ref().map(|bias| tensor(bias, [channels], dtype, device)),
        }
    }
}

impl<B: WtConvBackend> Arguments<B> {
    pub fn forward(&self, stride: usize) -> Tensor<B, 4> {
        let (x, filters, scales) = (self.x.clone(), self.filters.clone(), self.scales.clone());
        wtconv2d(x, filters, scales, self.bias.clone(), stride)
    }
}

impl<B: WtConvBackend, C: CheckpointStrategy> Arguments<Autodiff<B, C>> {
    pub fn tracked(self) -> Self {
        Self {
            x: self.x.require_grad(),
            filters: self.filters.require_grad(),
            scales: self.scales.require_grad(),
            bias: self.bias.map(Tensor::require_grad),
        }
    }

    /// Reads the gradients of tracked arguments after a backward from `loss`.
    ///
    /// Each gradient must have its argument's dtype.
    pub fn gradients<const D: usize>(&self, loss: Tensor<Autodiff<B, C>, D>) -> Gradients {
        let dtype = self.x.dtype();
        let mut grads = loss.backward();
        let x = self.x.grad_remove(&mut grads).expect("a gradient of x");
        let filters = self.filters.grad_remove(&mut grads).expect("a gradient of the filters");
        let scales = self.scales.grad_remove(&mut grads).expect("a gradient of the scales");
        let bias =
            self.bias.as_ref().map(|bias| bias.grad_remove(&mut grads).expect("a gradient of the bias"));
        assert_eq!([x.dtype(), filters.dtype(), scales.dtype()], [dtype; 3]);
        assert!(bias.as_ref().is_none_or(|bias| bias.dtype() == dtype));
        Gradients { x: values(x), filters: values(filters), scales: values(scales), bias: bias.map(values) }
    }
}

/// Forward and backward of `case` through the custom backward.
pub fn run<B: WtConvBackend>(case: &Case, precision: Precision, device: &B::Device) -> Outcome {
    run_with::<B, NoCheckpointing>(case, precision, device)
}

pub fn run_with<B: WtConvBackend, C: CheckpointStrategy>(
    case: &Case,
    precision: Precision,
    device: &B::Device,
) -> Outcome {
    let arguments = Arguments::<Autodiff<B, C>>::new(case, precision.dtype, device).tracked();
    outcome(case, &arguments, arguments.forward(case.problem.stride), precision, device)
}

/// Forward and backward of `case` through the reference operator and Burn's own autodiff.
pub fn run_reference<B: WtConvBackend>(case: &Case, precision: Precision, device: &B::Device) -> Outcome {
    let arguments = Arguments::<Autodiff<B>>::new(case, precision.dtype, device).tracked();
    let y = reference::wtconv2d(
        arguments.x.clone(),
        arguments.filters.clone(),
        arguments.scales.clone(),
        arguments.bias.clone(),
        case.problem.stride,
    );
    outcome(case, &arguments, y, precision, device)
}

fn outcome<B: WtConvBackend, C: CheckpointStrategy>(
    case: &Case,
    arguments: &Arguments<Autodiff<B, C>>,
    y: Tensor<Autodiff<B, C>, 4>,
    precision: Precision,
    device: &B::Device,
) -> Outcome {
    assert_eq!(y.dims(), case.output_shape());
    assert_eq!(y.dtype(), precision.dtype);
    let dy = tensor(&case.dy, case.output_shape(), precision.dtype, device);
    Outcome { y: values(y.clone()), gradients: arguments.gradients((y * dy).sum()) }
}
