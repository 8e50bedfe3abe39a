//! The oracle itself, against identities that need no second implementation.

use crate::support::oracle::{Channel, Gradients, Plane};
use crate::support::{Case, Random};

/// Filters with a single 1 in the centre of every subband's filter, and a base filter of zeros.
fn delta(levels: usize, kernel_size: usize) -> (Vec<f64>, Vec<f64>) {
    let taps = kernel_size * kernel_size;
    let mut filters = vec![0.0; (1 + 4 * levels) * taps];
    for index in 1..=4 * levels {
        filters[index * taps + taps / 2] = 1.0;
    }
    (filters, vec![1.0; 1 + 4 * levels])
}

fn apply_delta(x: &Plane, levels: usize) -> Plane {
    let (filters, scales) = delta(levels, 5);
    Channel { kernel_size: 5, levels, filters: &filters, scales: &scales, bias: 0.0 }.forward(x)
}

fn random_plane(height: usize, width: usize, seed: u64) -> Plane {
    let mut random = Random::new(seed);
    Plane { height, width, samples: (0..height * width).map(|_| random.real()).collect() }
}

fn block_mean(x: &Plane, side: usize) -> Plane {
    let mut out = Plane::zeros(x.height, x.width);
    for y in 0..x.height {
        for column in 0..x.width {
            let (y0, x0) = (y / side * side, column / side * side);
            let sum: f64 =
                (0..side * side).map(|i| x.samples[(y0 + i / side) * x.width + x0 + i % side]).sum();
            out.samples[y * x.width + column] = sum / (side * side) as f64;
        }
    }
    out
}

fn assert_near(found: &[f64], expected: &[f64]) {
    for (found, expected) in found.iter().zip(expected) {
        assert!((found - expected).abs() < 1e-12, "{found} is not {expected}");
    }
}

#[test]
fn delta_filters_reconstruct() {
    for (height, width) in [(1, 1), (7, 5), (8, 8), (13, 2)] {
        let x = random_plane(height, width, 3);
        assert_near(&apply_delta(&x, 1).samples, &x.samples);
    }
    let ones = Plane { height: 16, width: 32, samples: vec![1.0; 512] };
    assert_near(&apply_delta(&ones, 4).samples, &[4.0; 512]);
    let x = random_plane(8, 8, 4);
    let (two, four) = (block_mean(&x, 2), block_mean(&x, 4));
    let expected: Vec<f64> = (0..64).map(|i| x.samples[i] + two.samples[i] + four.samples[i]).collect();
    assert_near(&apply_delta(&x, 3).samples, &expected);
    let one = Plane { height: 1, width: 1, samples: vec![1.0] };
    assert_near(&apply_delta(&one, 2).samples, &[1.25]);
}

#[test]
fn base_path_by_hand() {
    // A 2x2 plane under a 3x3 filter with distinct taps, bias and scale.
    let x = Plane { height: 2, width: 2, samples: vec![1.0, 2.0, 3.0, 4.0] };
    let filters: Vec<f64> = (1..=9).map(f64::from).collect();
    let channel = Channel { kernel_size: 3, levels: 0, filters: &filters, scales: &[2.0], bias: 0.5 };
    // y[0, 0] = 2 (5*1 + 6*2 + 8*3 + 9*4 + 0.5), and so on.
    assert_near(&channel.forward(&x).samples, &[155.0, 135.0, 95.0, 75.0]);
}

/// The operator is linear in input and parameters, so every gradient follows from forward passes alone.
#[test]
fn gradients_are_those_of_the_forward_pass() {
    for (height, width, kernel_size, levels) in [(5, 3, 3, 2), (4, 6, 5, 1), (1, 1, 3, 3), (6, 7, 1, 2)] {
        let case = Case { seed: 9, ..Case::new([1, 1, height, width], kernel_size, levels) };
        let data = case.data();
        let (x, dy) = (data.plane(&data.x, 0), data.plane(&data.dy, 0));
        let channel = data.channel(0);
        let mut gradients = Gradients::zeros(kernel_size, levels);
        let dx = channel.backward(&x, &dy, &mut gradients);
        let dot = |y: &Plane| -> f64 { y.samples.iter().zip(&dy.samples).map(|(a, b)| a * b).sum() };
        let unbiased = Channel { bias: 0.0, ..channel.clone() };
        for i in 0..x.samples.len() {
            let mut unit = Plane::zeros(height, width);
            unit.samples[i] = 1.0;
            assert_near(&[dx.samples[i]], &[dot(&unbiased.forward(&unit))]);
        }
        let zeros = vec![0.0; data.filters.len()];
        for i in 0..data.filters.len() {
            let mut filters = zeros.clone();
            filters[i] = 1.0;
            let y = Channel { filters: &filters, ..unbiased.clone() }.forward(&x);
            assert_near(&[gradients.filters[i]], &[dot(&y)]);
        }
        for i in 0..data.scales.len() {
            let mut scales = vec![0.0; data.scales.len()];
            scales[i] = 1.0;
            let y = Channel { scales: &scales, ..channel.clone() }.forward(&x);
            assert_near(&[gradients.scales[i]], &[dot(&y)]);
        }
        let y = Channel { filters: &zeros, bias: 1.0, ..channel.clone() }.forward(&x);
        assert_near(&[gradients.bias], &[dot(&y)]);
    }
}
