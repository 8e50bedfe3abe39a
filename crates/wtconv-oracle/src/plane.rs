//! One channel of one image, and the depthwise convolution on it.

/// `height x width` values in row-major order.
#[derive(Clone, Debug)]
pub(crate) struct Plane {
    pub(crate) height: usize,
    pub(crate) width: usize,
    pub(crate) values: Vec<f64>,
}

impl Plane {
    pub(crate) fn new(height: usize, width: usize, values: Vec<f64>) -> Self {
        assert_eq!(values.len(), height * width, "pixels of a plane");
        Self { height, width, values }
    }

    pub(crate) fn zeros(height: usize, width: usize) -> Self {
        Self::new(height, width, vec![0.0; height * width])
    }

    /// The value at `(i, j)`, 0 below and to the right of the plane.
    pub(crate) fn get(&self, i: usize, j: usize) -> f64 {
        if i < self.height && j < self.width { self.values[i * self.width + j] } else { 0.0 }
    }

    pub(crate) fn at(&mut self, i: usize, j: usize) -> &mut f64 {
        &mut self.values[i * self.width + j]
    }

    /// Adds at `(i, j)`, or does nothing below and to the right of the plane.
    pub(crate) fn add_inside(&mut self, i: usize, j: usize, value: f64) {
        if i < self.height && j < self.width {
            *self.at(i, j) += value;
        }
    }

    pub(crate) fn add(&mut self, other: &Self) {
        assert_eq!((self.height, self.width), (other.height, other.width), "extents of a sum");
        self.values.iter_mut().zip(&other.values).for_each(|(value, other)| *value += other);
    }

    pub(crate) fn map(&self, f: impl Fn(f64) -> f64) -> Self {
        Self::new(self.height, self.width, self.values.iter().map(|value| f(*value)).collect())
    }

    pub(crate) fn dot(&self, other: &Self) -> f64 {
        self.values.iter().zip(&other.values).map(|(a, b)| a * b).sum()
    }

    /// Calls `f(output, input, tap)` with the flat indices of every product of a convolution with a filter of
    /// `k x k`, zeros padded as PyTorch's `padding="same"` does.
    fn for_each_product(&self, k: usize, mut f: impl FnMut(usize, usize, usize)) {
        let before = (k - 1) / 2;
        for i in 0..self.height {
            for j in 0..self.width {
                for ky in 0..k {
                    for kx in 0..k {
                        let (Some(row), Some(col)) =
                            ((i + ky).checked_sub(before), (j + kx).checked_sub(before))
                        else {
                            continue;
                        };
                        if row < self.height && col < self.width {
                            f(i * self.width + j, row * self.width + col, ky * k + kx);
                        }
                    }
                }
            }
        }
    }

    pub(crate) fn convolve(&self, filter: &[f64], k: usize) -> Self {
        let mut y = Self::zeros(self.height, self.width);
        self.for_each_product(k, |output, input, tap| y.values[output] += filter[tap] * self.values[input]);
        y
    }

    /// Reverse of [`convolve`](Self::convolve) with respect to its input; `self` is the cotangent.
    pub(crate) fn convolve_reverse(&self, filter: &[f64], k: usize) -> Self {
        let mut dx = Self::zeros(self.height, self.width);
        self.for_each_product(k, |output, input, tap| dx.values[input] += filter[tap] * self.values[output]);
        dx
    }

    /// Adds the reverse of [`convolve`](Self::convolve) with respect to its filter to `gradient`.
    pub(crate) fn convolve_filter_reverse(&self, dy: &Self, k: usize, gradient: &mut [f64]) {
        self.for_each_product(k, |output, input, tap| {
            gradient[tap] += dy.values[output] * self.values[input]
        });
    }

    /// Every `stride`-th row and column.
    pub(crate) fn subsample(&self, stride: usize) -> Self {
        let mut y = Self::zeros(self.height.div_ceil(stride), self.width.div_ceil(stride));
        for i in 0..y.height {
            for j in 0..y.width {
                *y.at(i, j) = self.get(i * stride, j * stride);
            }
        }
        y
    }

    /// Reverse of [`subsample`](Self::subsample) of a plane of `height x width`.
    pub(crate) fn subsample_reverse(&self, stride: usize, height: usize, width: usize) -> Self {
        let mut dx = Self::zeros(height, width);
        for i in 0..self.height {
            for j in 0..self.width {
                *dx.at(i * stride, j * stride) = self.get(i, j);
            }
        }
        dx
    }
}
