//! The operator and its gradients in f64 and plain loops, straight from the definition: pad, analyse, convolve, synthesise,
//! crop, level by level. It shares no code and no reformulation with the kernels.

/// A plane of samples.
#[derive(Clone, Debug, PartialEq)]
pub struct Plane {
    pub height: usize,
    pub width: usize,
    pub samples: Vec<f64>,
}

impl Plane {
    pub fn zeros(height: usize, width: usize) -> Self {
        Plane { height, width, samples: vec![0.0; height * width] }
    }

    /// The sample at `(y, x)`, 0 outside.
    fn at(&self, y: isize, x: isize) -> f64 {
        let inside = y >= 0 && x >= 0 && (y as usize) < self.height && (x as usize) < self.width;
        if inside { self.samples[y as usize * self.width + x as usize] } else { 0.0 }
    }

    fn set(&mut self, y: usize, x: usize, value: f64) {
        self.samples[y * self.width + x] = value;
    }

    /// A plane of another size with the same top left corner, cropped or padded with zeros.
    fn resized(&self, height: usize, width: usize) -> Self {
        let mut out = Plane::zeros(height, width);
        for y in 0..height {
            for x in 0..width {
                out.set(y, x, self.at(y as isize, x as isize));
            }
        }
        out
    }

    fn add(&mut self, other: &Plane, factor: f64) {
        assert_eq!((self.height, self.width), (other.height, other.width));
        for (a, b) in self.samples.iter_mut().zip(&other.samples) {
            *a += factor * b;
        }
    }
}

/// Signs of the block's samples `a b c d` in LL, LH, HL, HH.
const HAAR: [[f64; 4]; 4] =
    [[1.0, 1.0, 1.0, 1.0], [1.0, 1.0, -1.0, -1.0], [1.0, -1.0, 1.0, -1.0], [1.0, -1.0, -1.0, 1.0]];

/// One analysis step of a plane of even size.
fn analyse(plane: &Plane) -> [Plane; 4] {
    assert!(plane.height.is_multiple_of(2) && plane.width.is_multiple_of(2));
    HAAR.map(|signs| {
        let mut out = Plane::zeros(plane.height / 2, plane.width / 2);
        for y in 0..out.height {
            for x in 0..out.width {
                let block = [(0, 0), (0, 1), (1, 0), (1, 1)]
                    .map(|(dy, dx)| plane.at((2 * y + dy) as isize, (2 * x + dx) as isize));
                out.set(y, x, block.iter().zip(signs).map(|(sample, sign)| sample * sign / 2.0).sum());
            }
        }
        out
    })
}

/// One synthesis step.
fn synthesise(subbands: &[Plane; 4]) -> Plane {
    let mut out = Plane::zeros(2 * subbands[0].height, 2 * subbands[0].width);
    for y in 0..out.height {
        for x in 0..out.width {
            let place = 2 * (y % 2) + x % 2;
            let value = (0..4)
                .map(|s| HAAR[s][place] / 2.0 * subbands[s].at((y / 2) as isize, (x / 2) as isize))
                .sum();
            out.set(y, x, value);
        }
    }
    out
}

fn convolve(plane: &Plane, filter: &[f64], kernel_size: usize) -> Plane {
    let radius = (kernel_size / 2) as isize;
    let mut out = Plane::zeros(plane.height, plane.width);
    for y in 0..plane.height as isize {
        for x in 0..plane.width as isize {
            let mut sum = 0.0;
            for ky in 0..kernel_size as isize {
                for kx in 0..kernel_size as isize {
                    sum += filter[ky as usize * kernel_size + kx as usize]
                        * plane.at(y + ky - radius, x + kx - radius);
                }
            }
            out.set(y as usize, x as usize, sum);
        }
    }
    out
}

/// The transpose of [`convolve`] in its plane: every output scatters to the inputs it has read.
fn convolve_transposed(cotangent: &Plane, filter: &[f64], kernel_size: usize) -> Plane {
    let radius = (kernel_size / 2) as isize;
    let mut out = Plane::zeros(cotangent.height, cotangent.width);
    for y in 0..cotangent.height as isize {
        for x in 0..cotangent.width as isize {
            for ky in 0..kernel_size as isize {
                for kx in 0..kernel_size as isize {
                    let (to_y, to_x) = (y + ky - radius, x + kx - radius);
                    if to_y >= 0 && to_x >= 0 && to_y < out.height as isize && to_x < out.width as isize {
                        let at = to_y as usize * out.width + to_x as usize;
                        out.samples[at] +=
                            filter[ky as usize * kernel_size + kx as usize] * cotangent.at(y, x);
                    }
                }
            }
        }
    }
    out
}

/// The transpose of [`convolve`] in its filter.
fn correlate(plane: &Plane, cotangent: &Plane, kernel_size: usize) -> Vec<f64> {
    let radius = (kernel_size / 2) as isize;
    let mut out = vec![0.0; kernel_size * kernel_size];
    for ky in 0..kernel_size as isize {
        for kx in 0..kernel_size as isize {
            for y in 0..plane.height as isize {
                for x in 0..plane.width as isize {
                    out[ky as usize * kernel_size + kx as usize] +=
                        cotangent.at(y, x) * plane.at(y + ky - radius, x + kx - radius);
                }
            }
        }
    }
    out
}

/// Parameters of one channel.
#[derive(Clone, Debug)]
pub struct Channel<'a> {
    pub kernel_size: usize,
    pub levels: usize,
    /// `[1 + 4 levels][kernel_size^2]`.
    pub filters: &'a [f64],
    /// `[1 + 4 levels]`.
    pub scales: &'a [f64],
    pub bias: f64,
}

impl Channel<'_> {
    fn filter(&self, index: usize) -> &[f64] {
        let taps = self.kernel_size * self.kernel_size;
        &self.filters[index * taps..(index + 1) * taps]
    }

    fn even(plane: &Plane) -> Plane {
        plane.resized(plane.height.next_multiple_of(2), plane.width.next_multiple_of(2))
    }

    pub fn forward(&self, x: &Plane) -> Plane {
        let mut pyramid = Vec::new();
        let mut low = x.clone();
        for _ in 0..self.levels {
            let subbands = analyse(&Self::even(&low));
            let next = subbands[0].clone();
            pyramid.push((low, subbands));
            low = next;
        }
        let mut deeper: Option<Plane> = None;
        for (level, (above, subbands)) in pyramid.iter().enumerate().rev() {
            let mut filtered = [0, 1, 2, 3].map(|s| {
                let index = 1 + 4 * level + s;
                let mut out = Plane::zeros(subbands[s].height, subbands[s].width);
                out.add(&convolve(&subbands[s], self.filter(index), self.kernel_size), self.scales[index]);
                out
            });
            if let Some(deeper) = deeper {
                filtered[0].add(&deeper, 1.0);
            }
            deeper = Some(synthesise(&filtered).resized(above.height, above.width));
        }
        let mut y = convolve(x, self.filter(0), self.kernel_size);
        y.samples.iter_mut().for_each(|sample| *sample = self.scales[0] * (*sample + self.bias));
        if let Some(deeper) = deeper {
            y.add(&deeper, 1.0);
        }
        y
    }

    /// Adds this plane's filter, scale and bias gradients to `gradients` and returns the input gradient.
    pub fn backward(&self, x: &Plane, dy: &Plane, gradients: &mut Gradients) -> Plane {
        let taps = self.kernel_size * self.kernel_size;
        let unscaled = correlate(x, dy, self.kernel_size);
        let total: f64 = dy.samples.iter().sum();
        gradients.accept(0, &unscaled, self.filter(0), self.scales[0]);
        gradients.scales[0] += self.bias * total;
        gradients.bias += self.scales[0] * total;
        let mut dx = Plane::zeros(x.height, x.width);
        dx.add(&convolve_transposed(dy, self.filter(0), self.kernel_size), self.scales[0]);

        // Cotangents of the filtered subbands, level by level down: the transpose of synthesis is analysis.
        let mut low = x.clone();
        let mut low_cotangent = dy.clone();
        let mut raw = Vec::new();
        for level in 0..self.levels {
            let size = (low.height, low.width);
            let subbands = analyse(&Self::even(&low));
            let cotangents = analyse(&Self::even(&low_cotangent));
            let raw_cotangents = [0, 1, 2, 3].map(|s| {
                let index = 1 + 4 * level + s;
                let unscaled = correlate(&subbands[s], &cotangents[s], self.kernel_size);
                assert_eq!(unscaled.len(), taps);
                gradients.accept(index, &unscaled, self.filter(index), self.scales[index]);
                let mut out = Plane::zeros(subbands[s].height, subbands[s].width);
                out.add(
                    &convolve_transposed(&cotangents[s], self.filter(index), self.kernel_size),
                    self.scales[index],
                );
                out
            });
            raw.push((size, raw_cotangents));
            low = subbands[0].clone();
            low_cotangent = cotangents[0].clone();
        }
        // And back up: the transpose of analysis is synthesis, the transpose of padding is cropping.
        let mut deeper: Option<Plane> = None;
        for ((height, width), mut cotangents) in raw.into_iter().rev() {
            if let Some(deeper) = deeper {
                cotangents[0].add(&deeper, 1.0);
            }
            deeper = Some(synthesise(&cotangents).resized(height, width));
        }
        if let Some(deeper) = deeper {
            dx.add(&deeper, 1.0);
        }
        dx
    }
}

/// Gradients of one channel's parameters.
#[derive(Clone, Debug)]
pub struct Gradients {
    pub filters: Vec<f64>,
    pub scales: Vec<f64>,
    pub bias: f64,
}

impl Gradients {
    pub fn zeros(kernel_size: usize, levels: usize) -> Self {
        let filters = 1 + 4 * levels;
        Gradients {
            filters: vec![0.0; filters * kernel_size * kernel_size],
            scales: vec![0.0; filters],
            bias: 0.0,
        }
    }

    fn accept(&mut self, index: usize, unscaled: &[f64], filter: &[f64], scale: f64) {
        for (tap, gradient) in unscaled.iter().enumerate() {
            self.filters[index * unscaled.len() + tap] += scale * gradient;
            self.scales[index] += filter[tap] * gradient;
        }
    }
}
