//! What the device tests share: cases, strided and poisoned buffers, comparisons.
#![allow(dead_code, reason = "each test binary uses a part")]

use cubecl::prelude::*;
use cubecl::server::Handle;
use wtconv_kernels::{
    DeviceLimits, Dtype, FilterGradients, Launcher, Operands, OperatorPlan, Parameters, Problem, Strategy,
    Strided, Tensor, plan_operator,
};
use wtconv_oracle::relative_error;

// The runtime under test is named by the binary.
use crate::Device;

pub fn client() -> ComputeClient<Device> {
    Device::client(&Default::default())
}

/// A small generator of reproducible numbers.
#[derive(Clone)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 >> 16
    }

    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    /// Uniform in `-1..1`, exact in f32.
    pub fn real(&mut self) -> f64 {
        f64::from((self.next() & 0xFF_FFFF) as f32 / 8_388_608.0 - 1.0)
    }

    pub fn integer(&mut self, bound: i64) -> f64 {
        (self.below(2 * bound as usize + 1) as i64 - bound) as f64
    }
}

/// How a tensor lies in its buffer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Memory {
    Contiguous,
    ChannelsLast,
    /// A slice of a larger contiguous tensor, at an odd offset.
    Sliced,
    /// A slice of larger channels-last memory, at an odd offset.
    SlicedChannelsLast,
    /// Every second row and column of a larger contiguous tensor.
    Subsampled,
    /// Rows and columns swapped in memory.
    Transposed,
    /// One element for all.
    Expanded,
    /// One image for the whole batch.
    ExpandedBatch,
}

impl Memory {
    /// Strides and buffer length for `shape`.
    pub fn strided(self, shape: [usize; 4]) -> (Strided, usize) {
        let [b, c, h, w] = shape;
        let strided = match self {
            Memory::Contiguous => Strided::contiguous(shape),
            Memory::ChannelsLast => Strided::channels_last(shape),
            Memory::Sliced => Strided {
                offset: 7 + (h + 3) * (w + 5),
                strides: [(c + 2) * (h + 3) * (w + 5), (h + 3) * (w + 5), w + 5, 1],
            },
            Memory::SlicedChannelsLast => Strided {
                offset: 5 + (c + 3) * (w + 1),
                strides: [(h + 2) * (w + 1) * (c + 3), 1, (w + 1) * (c + 3), c + 3],
            },
            Memory::Subsampled => Strided { offset: 0, strides: [c * 4 * h * w, 4 * h * w, 4 * w, 2] },
            Memory::Transposed => Strided { offset: 0, strides: [c * h * w, h * w, 1, h] },
            Memory::Expanded => Strided { offset: 3, strides: [0; 4] },
            Memory::ExpandedBatch => Strided { offset: 0, strides: [0, h * w, w, 1] },
        };
        let last = if b == 0 { strided.offset } else { strided.last(shape).unwrap() };
        (strided, last + 1 + 13)
    }
}

/// Index of every element of `shape`, in logical order.
pub fn places(strided: &Strided, shape: [usize; 4]) -> impl Iterator<Item = usize> {
    let [b, c, h, w] = shape;
    let Strided { offset, strides: [sb, sc, sh, sw] } = *strided;
    (0..b).flat_map(move |b| {
        (0..c).flat_map(move |c| {
            (0..h).flat_map(move |h| (0..w).map(move |w| offset + b * sb + c * sc + h * sh + w * sw))
        })
    })
}

pub fn round(value: f64, dtype: Dtype) -> f64 {
    match dtype {
        Dtype::F32 => f64::from(value as f32),
        Dtype::F16 => half::f16::from_f64(value).to_f64(),
        Dtype::BF16 => half::bf16::from_f64(value).to_f64(),
    }
}

pub fn upload(client: &ComputeClient<Device>, values: &[f64], dtype: Dtype) -> Handle {
    let bytes: Vec<u8> = match dtype {
        Dtype::F32 => values.iter().flat_map(|&v| (v as f32).to_le_bytes()).collect(),
        Dtype::F16 => values.iter().flat_map(|&v| half::f16::from_f64(v).to_le_bytes()).collect(),
        Dtype::BF16 => values.iter().flat_map(|&v| half::bf16::from_f64(v).to_le_bytes()).collect(),
    };
    client.create_from_slice(&bytes)
}

pub fn download(client: &ComputeClient<Device>, handle: &Handle, dtype: Dtype) -> Vec<f64> {
    let bytes = client.read_one(handle.clone()).expect("the device answers");
    match dtype {
        Dtype::F32 => {
            bytes.chunks_exact(4).map(|b| f64::from(f32::from_le_bytes([b[0], b[1], b[2], b[3]]))).collect()
        }
        Dtype::F16 => {
            bytes.chunks_exact(2).map(|b| half::f16::from_le_bytes([b[0], b[1]]).to_f64()).collect()
        }
        Dtype::BF16 => {
            bytes.chunks_exact(2).map(|b| half::bf16::from_le_bytes([b[0], b[1]]).to_f64()).collect()
        }
    }
}

/// One problem with all its inputs, and how its tensors lie in memory.
#[derive(Clone, Debug)]
pub struct Case {
    pub shape: [usize; 4],
    pub kernel_size: usize,
    pub levels: usize,
    pub with_bias: bool,
    /// Small integers and scales that are powers of two: every sum is exact in f32.
    pub exact: bool,
    pub x: Memory,
    pub dy: Memory,
    pub out: Memory,
    pub dtype: Dtype,
    pub strategy: Strategy,
    /// Runs the kernels that are unrolled over all taps, on devices where that is not the rule.
    pub unroll: bool,
    /// Leaves gaps between the rows of taps, the filters and the scales.
    pub padded: bool,
    /// Leaves room for one cube on the device's only multiprocessor.
    pub alone: bool,
    pub seed: u64,
}

impl Case {
    pub fn new(shape: [usize; 4], kernel_size: usize, levels: usize) -> Self {
        Case {
            shape,
            kernel_size,
            levels,
            with_bias: true,
            exact: false,
            x: Memory::Contiguous,
            dy: Memory::Contiguous,
            out: Memory::Contiguous,
            dtype: Dtype::F32,
            strategy: Strategy::Auto,
            unroll: false,
            padded: false,
            alone: false,
            seed: 1,
        }
    }

    pub fn filters(&self) -> usize {
        1 + 4 * self.levels
    }

    pub fn filter_strides(&self) -> [usize; 3] {
        if self.padded {
            let row = self.kernel_size + 3;
            let filter = self.kernel_size * row + 5;
            [self.filters() * filter + 7, filter, row]
        } else {
            Parameters::contiguous_filters(self.kernel_size, self.levels)
        }
    }

    pub fn scale_strides(&self) -> [usize; 2] {
        if self.padded { [2 * self.filters() + 3, 2] } else { Parameters::contiguous_scales(self.levels) }
    }

    pub fn limits(&self) -> DeviceLimits {
        let limits = DeviceLimits::of(&client());
        let limits = DeviceLimits { unroll: limits.unroll || self.unroll, ..limits };
        if !self.alone {
            return limits;
        }
        let shared_memory = 4 * self.operator_plan(&limits).kernel.shared_floats();
        DeviceLimits { shared_memory, multiprocessors: Some(1), ..limits }
    }

    /// The plan of the forward.
    pub fn operator_plan(&self, limits: &DeviceLimits) -> OperatorPlan {
        let [batch, channels, height, width] = self.shape;
        let &Case { kernel_size, levels, .. } = self;
        let problem = Problem { batch, channels, height, width, kernel_size, levels };
        let operands = Operands {
            x: self.x.strided(self.shape).0,
            y: self.out.strided(self.shape).0,
            dtype: self.dtype,
            parameter_dtype: self.dtype,
        };
        plan_operator(&problem, &operands, false, limits, self.strategy).expect("a plan")
    }

    pub fn data(&self) -> Data {
        let mut random = Random::new(self.seed);
        let [b, c, h, w] = self.shape;
        let mut draw = |count: usize, bound: i64| -> Vec<f64> {
            (0..count)
                .map(|_| if self.exact { random.integer(bound) } else { random.real() })
                .map(|value| round(value, self.dtype))
                .collect()
        };
        let tensor = |memory: Memory, values: &mut dyn FnMut(usize) -> Vec<f64>| match memory {
            Memory::Expanded => vec![values(1)[0]; b * c * h * w],
            Memory::ExpandedBatch => values(c * h * w).repeat(b),
            _ => values(b * c * h * w),
        };
        let x = tensor(self.x, &mut |count| draw(count, 2));
        let dy = tensor(self.dy, &mut |count| draw(count, 2));
        let filters = draw(c * self.filters() * self.kernel_size * self.kernel_size, 2);
        let mut scales = draw(c * self.filters(), 1);
        if self.exact {
            // Never 1, and never 0 but for one: nothing may be hidden by a neutral scale.
            scales.iter_mut().for_each(|scale| *scale = 2.0f64.powi(*scale as i32 * 2 - 1));
        }
        if let Some(scale) = scales.get_mut(1) {
            *scale = 0.0;
        }
        let bias = draw(if self.with_bias { c } else { 0 }, 3);
        Data { case: self.clone(), x, dy, filters, scales, bias }
    }
}

/// A case's numbers, logical order.
pub struct Data {
    pub case: Case,
    pub x: Vec<f64>,
    pub dy: Vec<f64>,
    pub filters: Vec<f64>,
    pub scales: Vec<f64>,
    pub bias: Vec<f64>,
}

/// Buffers of a case on the device.
pub struct Buffers {
    pub client: ComputeClient<Device>,
    pub x: Handle,
    pub dy: Handle,
    pub filters: Handle,
    pub scales: Handle,
    pub bias: Option<Handle>,
}

impl Data {
    /// The problem and the parameters as the oracle takes them.
    pub fn for_oracle(&self) -> (wtconv_oracle::Problem, wtconv_oracle::Parameters) {
        let Case { shape: [batch, channels, height, width], kernel_size, levels, with_bias, .. } = self.case;
        let problem =
            wtconv_oracle::Problem { batch, channels, height, width, kernel_size, levels, stride: 1 };
        let (filters, scales) = (self.filters.clone(), self.scales.clone());
        let bias = with_bias.then(|| self.bias.clone());
        (problem, wtconv_oracle::Parameters { filters, scales, bias })
    }

    pub fn expected_output(&self) -> Vec<f64> {
        let (problem, parameters) = self.for_oracle();
        wtconv_oracle::forward(&problem, &self.x, &parameters)
    }

    pub fn expected_gradients(&self) -> wtconv_oracle::Gradients {
        let (problem, parameters) = self.for_oracle();
        wtconv_oracle::backward(&problem, &self.x, &parameters, &self.dy)
    }

    pub fn upload(&self) -> Buffers {
        let client = client();
        let place = |values: &[f64], memory: Memory| {
            let (strided, length) = memory.strided(self.case.shape);
            let mut buffer = vec![f64::NAN; length];
            for (place, value) in places(&strided, self.case.shape).zip(values) {
                buffer[place] = *value;
            }
            upload(&client, &buffer, self.case.dtype)
        };
        let x = place(&self.x, self.case.x);
        let dy = place(&self.dy, self.case.dy);
        // Whatever lies between the parameters is poison.
        let parameter = |values: &[f64], extents: [usize; 4], strides: [usize; 4]| {
            let strided = Strided { offset: 0, strides };
            let mut buffer = vec![f64::NAN; extents[0] * strides[0]];
            places(&strided, extents).zip(values).for_each(|(place, value)| buffer[place] = *value);
            upload(&client, &buffer, self.case.dtype)
        };
        let (channels, filters, side) = (self.case.shape[1], self.case.filters(), self.case.kernel_size);
        let [channel, filter, row] = self.case.filter_strides();
        let [scale_channel, scale] = self.case.scale_strides();
        Buffers {
            x,
            dy,
            filters: parameter(&self.filters, [channels, filters, side, side], [channel, filter, row, 1]),
            scales: parameter(&self.scales, [channels, filters, 1, 1], [scale_channel, scale, 1, 1]),
            bias: self.case.with_bias.then(|| upload(&client, &self.bias, self.case.dtype)),
            client,
        }
    }
}

impl Buffers {
    pub fn launcher(&self, case: &Case) -> Launcher<'_, Device> {
        Launcher { limits: case.limits(), ..Launcher::new(&self.client) }.with_strategy(case.strategy)
    }

    pub fn tensor<'a>(&self, case: &Case, handle: &'a Handle, memory: Memory) -> Tensor<'a> {
        Tensor { handle, shape: case.shape, strided: memory.strided(case.shape).0, dtype: case.dtype }
    }

    pub fn parameters(&self, case: &Case) -> Parameters<'_> {
        Parameters {
            filters: &self.filters,
            filter_strides: case.filter_strides(),
            scales: Some(&self.scales),
            scale_strides: case.scale_strides(),
            bias: self.bias.as_ref(),
            kernel_size: case.kernel_size,
            levels: case.levels,
            dtype: case.dtype,
        }
    }
}

/// Runs the operator into a poisoned buffer and gives back the output in logical order. Everything around the output must
/// still be poisoned.
pub fn run_operator(data: &Data, rotate: bool) -> Vec<f64> {
    let case = &data.case;
    let buffers = data.upload();
    let (strided, length) = case.out.strided(case.shape);
    let out = upload(&buffers.client, &vec![f64::NAN; length], case.dtype);
    let target = buffers.tensor(case, &out, case.out);
    let parameters = buffers.parameters(case);
    let launcher = buffers.launcher(case);
    if rotate {
        let dy = buffers.tensor(case, &buffers.dy, case.dy);
        launcher.input_gradient_into(&dy, &parameters, &target)
    } else {
        let x = buffers.tensor(case, &buffers.x, case.x);
        launcher.forward_into(&x, &parameters, &target)
    }
    .unwrap_or_else(|refusal| panic!("{case:?}: {refusal}"));
    let mut values = download(&buffers.client, &out, case.dtype);
    let result =
        places(&strided, case.shape).map(|place| core::mem::replace(&mut values[place], f64::NAN)).collect();
    assert!(values.iter().all(|value| value.is_nan()), "{case:?}: wrote outside its output");
    result
}

/// Runs the filter gradients: filters, scales, bias.
pub fn run_gradient(data: &Data) -> [Vec<f64>; 3] {
    let case = &data.case;
    let buffers = data.upload();
    let x = buffers.tensor(case, &buffers.x, case.x);
    let dy = buffers.tensor(case, &buffers.dy, case.dy);
    let FilterGradients { filters, scales, bias } = buffers
        .launcher(case)
        .filter_gradient(&x, &dy, &buffers.parameters(case))
        .unwrap_or_else(|refusal| panic!("{case:?}: {refusal}"));
    let scales = scales.expect("gradients of scales");
    [filters, scales, bias].map(|handle| download(&buffers.client, &handle, case.dtype))
}

/// Compares output and input gradient with the oracle: equality for exact cases.
pub fn check_operator(case: &Case) {
    let data = case.data();
    compare(case, "y", &run_operator(&data, false), &data.expected_output(), 2e-6);
    compare(case, "dx", &run_operator(&data, true), &data.expected_gradients().x, 2e-6);
}

/// Compares all filter gradients with the oracle: equality for exact cases.
pub fn check_gradient(case: &Case) {
    let data = case.data();
    let expected = data.expected_gradients();
    let [filters, scales, bias] = run_gradient(&data);
    compare(case, "dw", &filters, &expected.filters, 1e-5);
    compare(case, "ds", &scales, &expected.scales, 1e-5);
    if let Some(expected) = &expected.bias {
        compare(case, "db", &bias, expected, 1e-5);
    }
}

pub fn compare(case: &Case, name: &str, found: &[f64], expected: &[f64], tolerance: f64) {
    if case.exact {
        for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
            assert!(found == expected, "{case:?}: {name}[{index}] is {found}, expected {expected}");
        }
    } else {
        let error = relative_error(found, expected);
        let tolerance = match case.dtype {
            Dtype::F32 => tolerance,
            Dtype::F16 => 1e-3,
            Dtype::BF16 => 8e-3,
        };
        assert!(error <= tolerance, "{case:?}: {name} is off by {error:e}");
    }
    assert_eq!(found.len(), expected.len(), "{case:?}: {name}");
}
