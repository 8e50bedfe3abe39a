//! What the oracle itself stands on: the reference PyTorch layer's numbers, exact identities, the dot test.

use wtconv_oracle::{Parameters, Problem, backward, forward, golden, relative_error};

/// The reference layer's Haar filters are 0.49999998 instead of 0.5.
const HAAR_ROUNDING: f64 = 2e-6;

#[test]
fn the_reference_layer_agrees_on_every_golden_case() {
    let cases = golden::cases();
    assert_eq!(cases.len(), 16);
    for case in cases {
        let close = |what: &str, got: &[f64], expected: &[f64]| {
            let error = relative_error(got, expected);
            assert!(error < HAAR_ROUNDING, "{}: relative error of {what} is {error:e}", case.name);
        };
        close("y", &forward(&case.problem, &case.x, &case.parameters), &case.y);
        let gradients = backward(&case.problem, &case.x, &case.parameters, &case.dy);
        close("dx", &gradients.x, &case.gradients.x);
        close("the filter gradients", &gradients.filters, &case.gradients.filters);
        close("the scale gradients", &gradients.scales, &case.gradients.scales);
        assert_eq!(gradients.bias.is_some(), case.gradients.bias.is_some());
        if let (Some(got), Some(expected)) = (&gradients.bias, &case.gradients.bias) {
            close("the bias gradient", got, expected);
        }
    }
}

/// Wavelet filters are unit deltas with scale 1; the base path is 0.
fn deltas(problem: &Problem) -> Parameters {
    let (k, bands) = (problem.kernel_size, problem.bands());
    let mut filters = vec![0.0; problem.filters_len()];
    for filter in 0..problem.channels * bands {
        if filter % bands != 0 {
            filters[filter * k * k + (k / 2) * k + k / 2] = 1.0;
        }
    }
    Parameters { filters, scales: vec![1.0; problem.scales_len()], bias: Some(vec![0.0; problem.channels]) }
}

fn problem(height: usize, width: usize, levels: usize) -> Problem {
    Problem { batch: 1, channels: 2, height, width, kernel_size: 5, levels, stride: 1 }
}

/// Small integers in a fixed scramble.
fn integers(len: usize) -> Vec<f64> {
    (0..len).map(|i| ((i * 37 + 11) % 23) as f64 - 11.0).collect()
}

#[test]
fn one_level_of_deltas_is_the_identity() {
    for (height, width) in [(1, 1), (2, 2), (5, 3), (8, 7), (1, 9)] {
        let problem = problem(height, width, 1);
        let x = integers(problem.input_len());
        assert_eq!(forward(&problem, &x, &deltas(&problem)), x, "{height}x{width}");
    }
}

#[test]
fn constant_input_counts_the_levels() {
    let problem = problem(8, 16, 3);
    let y = forward(&problem, &vec![1.0; problem.input_len()], &deltas(&problem));
    assert_eq!(y, vec![3.0; problem.input_len()]);
}

#[test]
fn three_levels_add_block_means() {
    let problem = problem(8, 8, 3);
    let x = integers(problem.input_len());
    let mean = |plane: usize, i: usize, j: usize, side: usize| {
        let (top, left) = (i / side * side, j / side * side);
        let block = (0..side * side).map(|t| x[plane * 64 + (top + t / side) * 8 + left + t % side]);
        block.sum::<f64>() / (side * side) as f64
    };
    let expected: Vec<f64> = (0..x.len())
        .map(|index| {
            let (plane, i, j) = (index / 64, index / 8 % 8, index % 8);
            x[index] + mean(plane, i, j, 2) + mean(plane, i, j, 4)
        })
        .collect();
    assert_eq!(forward(&problem, &x, &deltas(&problem)), expected);
}

#[test]
fn one_pixel_at_two_levels() {
    let problem = problem(1, 1, 2);
    assert_eq!(forward(&problem, &[1.0, 1.0], &deltas(&problem)), vec![1.25, 1.25]);
}

/// `<dy, F(x)> = <dx, x>` without bias, and `<dw, w>` is the same number: `F` is linear in each.
#[test]
fn forward_and_backward_are_adjoint() {
    for (kernel_size, stride) in [(1, 1), (3, 2), (4, 1), (5, 3)] {
        let problem = Problem { kernel_size, stride, ..problem(9, 6, 3) };
        let parameters = Parameters {
            filters: integers(problem.filters_len()),
            scales: integers(problem.scales_len()),
            bias: None,
        };
        let (x, dy) = (integers(problem.input_len()), integers(problem.output_len()));
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        let expected = dot(&dy, &forward(&problem, &x, &parameters));
        let gradients = backward(&problem, &x, &parameters, &dy);
        for got in [
            dot(&gradients.x, &x),
            dot(&gradients.filters, &parameters.filters),
            dot(&gradients.scales, &parameters.scales),
        ] {
            assert!((got - expected).abs() < 1e-12 * expected.abs(), "{got} and {expected}");
        }
    }
}

#[test]
fn nan_is_below_no_tolerance() {
    assert!(relative_error(&[1.0, f64::NAN], &[1.0, 2.0]).is_nan());
}
