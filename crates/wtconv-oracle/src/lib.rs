//! The wavelet convolution and all its gradients in plain `f64` loops.
//!
//! This is what tests and benches check every implementation against, so it shares no code and no algebra with any of
//! them: the cascade is written out step by step as in the definition (pad, analyse, convolve, scale, synthesise,
//! crop), scales are not folded into filters, and the backward pass is the reverse of each forward step in turn,
//! rather than the operator's own adjoint. It knows no tensors, only slices in row-major order.
//!
//! ```text
//! y = s0 * (w0 (*) x + b)  +  sum over l = 1..L, s in {LL, LH, HL, HH} of  A_l^T_s ( s_ls * ( w_ls (*) A_l_s x ) )
//! ```

#![forbid(unsafe_code)]

pub mod golden;
mod plane;

use plane::Plane;

/// Rows of the Haar matrix on a block `a b c d` (rows, then columns): LL, LH, HL, HH.
const HAAR: [[f64; 4]; 4] =
    [[0.5, 0.5, 0.5, 0.5], [0.5, 0.5, -0.5, -0.5], [0.5, -0.5, 0.5, -0.5], [0.5, -0.5, -0.5, 0.5]];

/// The sizes of a wavelet convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Number of images.
    pub batch: usize,
    /// Number of channels.
    pub channels: usize,
    /// Rows of the input.
    pub height: usize,
    /// Columns of the input.
    pub width: usize,
    /// Rows and columns of a filter, odd or even.
    pub kernel_size: usize,
    /// Wavelet levels.
    pub levels: usize,
    /// Step of the output in both directions.
    pub stride: usize,
}

impl Problem {
    /// Filters of a channel: one for the base path and four a level.
    pub fn bands(&self) -> usize {
        1 + 4 * self.levels
    }

    /// Rows of the output.
    pub fn output_height(&self) -> usize {
        self.height.div_ceil(self.stride)
    }

    /// Columns of the output.
    pub fn output_width(&self) -> usize {
        self.width.div_ceil(self.stride)
    }

    /// Elements of the input.
    pub fn input_len(&self) -> usize {
        self.batch * self.channels * self.height * self.width
    }

    /// Elements of the output.
    pub fn output_len(&self) -> usize {
        self.batch * self.channels * self.output_height() * self.output_width()
    }

    /// Elements of the filters.
    pub fn filters_len(&self) -> usize {
        self.channels * self.bands() * self.kernel_size * self.kernel_size
    }

    /// Elements of the scales.
    pub fn scales_len(&self) -> usize {
        self.channels * self.bands()
    }
}

/// The parameters of a wavelet convolution, packed in row-major order.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameters {
    /// `[channels, 1 + 4 * levels, kernel_size, kernel_size]`; index 0 is the base filter, `1 + 4 * (l - 1) + s` the
    /// filter of level `l` and subband `s` (LL, LH, HL, HH).
    pub filters: Vec<f64>,
    /// `[channels, 1 + 4 * levels]`
    pub scales: Vec<f64>,
    /// `[channels]`
    pub bias: Option<Vec<f64>>,
}

/// The gradients of the input and of every parameter, packed as what they are gradients of.
#[derive(Clone, Debug, PartialEq)]
pub struct Gradients {
    /// `[batch, channels, height, width]`
    pub x: Vec<f64>,
    /// `[channels, 1 + 4 * levels, kernel_size, kernel_size]`
    pub filters: Vec<f64>,
    /// `[channels, 1 + 4 * levels]`
    pub scales: Vec<f64>,
    /// `[channels]`
    pub bias: Option<Vec<f64>>,
}

/// One channel's parameters.
struct Channel<'a> {
    kernel_size: usize,
    filters: &'a [f64],
    scales: &'a [f64],
    bias: f64,
}

impl<'a> Channel<'a> {
    fn new(problem: &Problem, parameters: &'a Parameters, channel: usize) -> Self {
        let (bands, taps) = (problem.bands(), problem.kernel_size * problem.kernel_size);
        Self {
            kernel_size: problem.kernel_size,
            filters: &parameters.filters[channel * bands * taps..(channel + 1) * bands * taps],
            scales: &parameters.scales[channel * bands..(channel + 1) * bands],
            bias: parameters.bias.as_ref().map_or(0.0, |bias| bias[channel]),
        }
    }

    fn filter(&self, band: usize) -> &'a [f64] {
        let taps = self.kernel_size * self.kernel_size;
        &self.filters[band * taps..(band + 1) * taps]
    }
}

/// The output, `[batch, channels, ceil(height / stride), ceil(width / stride)]`, of `x`,
/// `[batch, channels, height, width]`.
///
/// # Panics
///
/// If a slice has not the length its shape asks for.
pub fn forward(problem: &Problem, x: &[f64], parameters: &Parameters) -> Vec<f64> {
    assert_eq!(x.len(), problem.input_len(), "elements of x");
    check(problem, parameters);
    let pixels = problem.height * problem.width;
    let mut y = Vec::with_capacity(problem.output_len());
    for plane in 0..problem.batch * problem.channels {
        let x = Plane::new(problem.height, problem.width, x[plane * pixels..(plane + 1) * pixels].to_vec());
        let channel = Channel::new(problem, parameters, plane % problem.channels);
        let full = forward_plane(&x, &channel, problem.levels);
        y.extend(full.subsample(problem.stride).values);
    }
    y
}

/// The gradients of `sum(dy * forward(x))`; `dy` has the shape of the output.
///
/// # Panics
///
/// If a slice has not the length its shape asks for.
pub fn backward(problem: &Problem, x: &[f64], parameters: &Parameters, dy: &[f64]) -> Gradients {
    assert_eq!(x.len(), problem.input_len(), "elements of x");
    assert_eq!(dy.len(), problem.output_len(), "elements of dy");
    check(problem, parameters);
    let pixels = problem.height * problem.width;
    let output_pixels = problem.output_height() * problem.output_width();
    let (bands, taps) = (problem.bands(), problem.kernel_size * problem.kernel_size);
    let mut gradients = Gradients {
        x: Vec::with_capacity(x.len()),
        filters: vec![0.0; problem.filters_len()],
        scales: vec![0.0; problem.scales_len()],
        bias: parameters.bias.as_ref().map(|bias| vec![0.0; bias.len()]),
    };
    for plane in 0..problem.batch * problem.channels {
        let c = plane % problem.channels;
        let channel = Channel::new(problem, parameters, c);
        let x = Plane::new(problem.height, problem.width, x[plane * pixels..(plane + 1) * pixels].to_vec());
        let dy = Plane::new(
            problem.output_height(),
            problem.output_width(),
            dy[plane * output_pixels..(plane + 1) * output_pixels].to_vec(),
        );
        let dy = dy.subsample_reverse(problem.stride, problem.height, problem.width);
        let filters = &mut gradients.filters[c * bands * taps..(c + 1) * bands * taps];
        let scales = &mut gradients.scales[c * bands..(c + 1) * bands];
        let (dx, db) = backward_plane(&x, &channel, problem.levels, &dy, filters, scales);
        gradients.x.extend(dx.values);
        if let Some(bias) = &mut gradients.bias {
            bias[c] += db;
        }
    }
    gradients
}

fn check(problem: &Problem, parameters: &Parameters) {
    assert_eq!(parameters.filters.len(), problem.filters_len(), "elements of the filters");
    assert_eq!(parameters.scales.len(), problem.scales_len(), "elements of the scales");
    if let Some(bias) = &parameters.bias {
        assert_eq!(bias.len(), problem.channels, "elements of the bias");
    }
}

/// The subbands of each level and the extent that was analysed, from level 1 on.
fn pyramid(x: &Plane, levels: usize) -> Vec<([Plane; 4], (usize, usize))> {
    let mut low = x.clone();
    let mut pyramid = Vec::new();
    for _ in 0..levels {
        let extent = (low.height, low.width);
        let subbands = analysis(&low);
        low = subbands[0].clone();
        pyramid.push((subbands, extent));
    }
    pyramid
}

fn forward_plane(x: &Plane, channel: &Channel, levels: usize) -> Plane {
    let mut carried: Option<Plane> = None;
    for (level, (subbands, (height, width))) in pyramid(x, levels).into_iter().enumerate().rev() {
        let mut filtered = [0, 1, 2, 3].map(|s| {
            let band = 1 + 4 * level + s;
            subbands[s].convolve(channel.filter(band), channel.kernel_size).map(|v| v * channel.scales[band])
        });
        if let Some(carried) = &carried {
            filtered[0].add(carried);
        }
        carried = Some(synthesis(&filtered, height, width));
    }
    let base = x.convolve(channel.filter(0), channel.kernel_size);
    let mut y = base.map(|v| channel.scales[0] * (v + channel.bias));
    if let Some(carried) = &carried {
        y.add(carried);
    }
    y
}

fn backward_plane(
    x: &Plane,
    channel: &Channel,
    levels: usize,
    dy: &Plane,
    filter_gradients: &mut [f64],
    scale_gradients: &mut [f64],
) -> (Plane, f64) {
    let k = channel.kernel_size;
    let taps = k * k;

    // Base path: y0 = s0 * (conv + b).
    let convolved = x.convolve(channel.filter(0), k);
    scale_gradients[0] += dy.dot(&convolved.map(|v| v + channel.bias));
    let d_convolved = dy.map(|v| v * channel.scales[0]);
    let db = d_convolved.values.iter().sum();
    x.convolve_filter_reverse(&d_convolved, k, &mut filter_gradients[..taps]);
    let mut dx = d_convolved.convolve_reverse(channel.filter(0), k);

    // Synthesis reversed, level 1 first: the cotangent of each level's scaled subbands.
    let pyramid = pyramid(x, levels);
    let mut cotangents = Vec::new();
    let mut carried = dy.clone();
    for _ in &pyramid {
        let subbands = synthesis_reverse(&carried);
        carried = subbands[0].clone();
        cotangents.push(subbands);
    }

    // Filters and analysis reversed, deepest level first: `d_low` is the cotangent of the level's raw LL.
    let mut d_low: Option<Plane> = None;
    for (level, ((subbands, (height, width)), cotangent)) in pyramid.iter().zip(&cotangents).enumerate().rev()
    {
        let mut d_subbands = [0, 1, 2, 3].map(|s| {
            let band = 1 + 4 * level + s;
            let convolved = subbands[s].convolve(channel.filter(band), k);
            scale_gradients[band] += cotangent[s].dot(&convolved);
            let d_convolved = cotangent[s].map(|v| v * channel.scales[band]);
            let gradient = &mut filter_gradients[band * taps..(band + 1) * taps];
            subbands[s].convolve_filter_reverse(&d_convolved, k, gradient);
            d_convolved.convolve_reverse(channel.filter(band), k)
        });
        if let Some(d_low) = &d_low {
            d_subbands[0].add(d_low);
        }
        d_low = Some(analysis_reverse(&d_subbands, *height, *width));
    }
    if let Some(d_low) = &d_low {
        dx.add(d_low);
    }
    (dx, db)
}

/// LL, LH, HL, HH of a plane padded with zeros to even extents.
fn analysis(x: &Plane) -> [Plane; 4] {
    let mut subbands = [0; 4].map(|_| Plane::zeros(x.height.div_ceil(2), x.width.div_ceil(2)));
    for (subband, row) in subbands.iter_mut().zip(HAAR) {
        for i in 0..subband.height {
            for j in 0..subband.width {
                for (t, weight) in row.into_iter().enumerate() {
                    *subband.at(i, j) += weight * x.get(2 * i + t / 2, 2 * j + t % 2);
                }
            }
        }
    }
    subbands
}

/// Reverse of [`analysis`] on a plane of `height x width`.
fn analysis_reverse(d_subbands: &[Plane; 4], height: usize, width: usize) -> Plane {
    let mut dx = Plane::zeros(height, width);
    for (d_subband, row) in d_subbands.iter().zip(HAAR) {
        for i in 0..d_subband.height {
            for j in 0..d_subband.width {
                for (t, weight) in row.into_iter().enumerate() {
                    dx.add_inside(2 * i + t / 2, 2 * j + t % 2, weight * d_subband.get(i, j));
                }
            }
        }
    }
    dx
}

/// The plane whose blocks have the given subbands (the inverse of the Haar matrix), cropped.
fn synthesis(subbands: &[Plane; 4], height: usize, width: usize) -> Plane {
    let mut y = Plane::zeros(height, width);
    for i in 0..height {
        for j in 0..width {
            let t = 2 * (i % 2) + j % 2;
            *y.at(i, j) = (0..4).map(|s| HAAR[s][t] * subbands[s].get(i / 2, j / 2)).sum();
        }
    }
    y
}

/// Reverse of [`synthesis`].
fn synthesis_reverse(dy: &Plane) -> [Plane; 4] {
    let mut d_subbands = [0; 4].map(|_| Plane::zeros(dy.height.div_ceil(2), dy.width.div_ceil(2)));
    for (s, d_subband) in d_subbands.iter_mut().enumerate() {
        for i in 0..dy.height {
            for j in 0..dy.width {
                *d_subband.at(i / 2, j / 2) += HAAR[s][2 * (i % 2) + j % 2] * dy.get(i, j);
            }
        }
    }
    d_subbands
}

/// `norm(got - expected) / norm(expected)`; the norm of `got` itself where `expected` is 0 everywhere.
///
/// NaN anywhere makes the result NaN, which is not below any tolerance.
///
/// # Panics
///
/// If the lengths differ.
pub fn relative_error(got: &[f64], expected: &[f64]) -> f64 {
    assert_eq!(got.len(), expected.len(), "elements to compare");
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>().sqrt();
    let difference = norm(&mut got.iter().zip(expected).map(|(got, expected)| got - expected));
    let size = norm(&mut expected.iter().copied());
    if size == 0.0 { difference } else { difference / size }
}
