//! Gradients of filters, scales and bias on the device against the f64 oracle.

use wtconv_oracle::relative_error;

use crate::support::{Case, Memory, check_gradient, client, run_gradient};
use wtconv_kernels::{DeviceLimits, Dtype, Operands, Problem, Strategy, plan_filter_gradient};

fn walk(sizes: impl IntoIterator<Item = (usize, usize)>) {
    for (index, (height, width)) in sizes.into_iter().enumerate() {
        let channels = [1, 2, 3, 5, 7][index % 5];
        let (kernel_size, levels) = ([5, 3, 7, 1][index % 4], [2, 1, 3, 0][index % 4]);
        let shape = [1 + index % 3, channels, height, width];
        check_gradient(&Case {
            exact: height * width < 600 && levels < 3,
            with_bias: index % 3 != 1,
            seed: index as u64,
            ..Case::new(shape, kernel_size, levels)
        });
    }
}

#[test]
fn small_planes() {
    walk((1..=9).map(|height| (height, 1 + height * 4 % 9)));
}

#[test]
fn sizes_around_powers_of_two() {
    walk([(31, 33), (33, 32), (64, 63), (65, 64)]);
}

#[test]
fn long_and_thin_planes() {
    walk([(1, 130), (130, 1)]);
}

#[test]
fn all_kernel_sizes() {
    for kernel_size in [1, 3, 5, 7, 9, 15, 31] {
        let case = Case { exact: true, ..Case::new([2, 2, 9, 10], kernel_size, kernel_size / 2 % 3) };
        check_gradient(&case);
    }
}

#[test]
fn a_plane_of_the_real_size() {
    check_gradient(&Case::new([5, 1, 56, 56], 5, 5));
}

#[test]
fn levels_deeper_than_the_plane() {
    for (shape, levels) in [([1, 2, 1, 1], 5), ([2, 1, 2, 3], 5), ([2, 2, 5, 17], 5)] {
        check_gradient(&Case::new(shape, 5, levels));
    }
}

#[test]
fn batches_that_no_group_divides() {
    for batch in [1, 19] {
        check_gradient(&Case { exact: true, ..Case::new([batch, 2, 7, 7], 5, 2) });
    }
}

#[test]
fn strides_of_every_kind() {
    use Memory::*;
    for (x, dy) in [
        (Sliced, Contiguous),
        (ChannelsLast, ChannelsLast),
        (SlicedChannelsLast, Sliced),
        (Contiguous, ChannelsLast),
        (Subsampled, Transposed),
        (Contiguous, Expanded),
        (ExpandedBatch, Subsampled),
    ] {
        check_gradient(&Case { exact: true, x, dy, ..Case::new([2, 5, 12, 14], 5, 2) });
    }
}

#[test]
fn padded_parameters() {
    for (shape, kernel_size, levels) in [([2, 3, 9, 12], 5, 2), ([1, 2, 13, 10], 9, 1)] {
        check_gradient(&Case { exact: true, padded: true, ..Case::new(shape, kernel_size, levels) });
    }
}

/// The kernel as CUDA runs it, unrolled over all taps.
#[test]
fn unrolled_kernel() {
    for (shape, memory) in [([3, 1, 14, 14], Memory::Contiguous), ([2, 3, 9, 6], Memory::ChannelsLast)] {
        let case = Case { exact: true, unroll: true, x: memory, dy: memory, ..Case::new(shape, 3, 1) };
        check_gradient(&case);
    }
}

#[test]
fn windows_and_splits() {
    let windows = |levels, height, width| Strategy::Windows { levels, height, width };
    for (shape, kernel_size, levels, strategy, memory) in [
        ([2, 2, 30, 21], 5, 0, windows(0, 16, 8), Memory::Contiguous),
        ([1, 3, 16, 16], 5, 1, windows(1, 8, 8), Memory::Contiguous),
        ([2, 1, 33, 18], 3, 2, windows(2, 16, 8), Memory::Sliced),
        ([1, 2, 25, 19], 5, 3, windows(1, 8, 16), Memory::ChannelsLast),
        ([2, 2, 40, 36], 5, 4, windows(2, 16, 16), Memory::Contiguous),
        ([1, 2, 21, 23], 9, 2, windows(1, 8, 8), Memory::Contiguous),
    ] {
        let case = Case {
            exact: levels < 3,
            strategy,
            x: memory,
            dy: memory,
            ..Case::new(shape, kernel_size, levels)
        };
        let [batch, channels, height, width] = shape;
        let problem = Problem { batch, channels, height, width, kernel_size, levels };
        let strided = memory.strided(shape).0;
        let operands = Operands { x: strided, y: strided, dtype: Dtype::F32, parameter_dtype: Dtype::F32 };
        let taken = plan_filter_gradient(&problem, &operands, &case.limits(), strategy).expect("a plan");
        assert!(!taken.kernel.x.resident);
        assert_eq!(taken.deeper.is_some(), levels > taken.kernel.x.levels);
        check_gradient(&case);
    }
}

#[test]
fn half_types() {
    let limits = DeviceLimits::of(&client());
    for dtype in [Dtype::F16, Dtype::BF16] {
        if limits.supports(dtype) {
            check_gradient(&Case { dtype, ..Case::new([3, 2, 14, 12], 5, 2) });
        } else {
            println!("no {dtype} on this device");
        }
    }
}

/// `<dw, w> = <dy, F(x)>` without bias, and so is `<ds, s>`: the operator is linear in each.
#[test]
fn gradients_are_adjoint() {
    let case = Case { with_bias: false, ..Case::new([2, 3, 13, 9], 5, 3) };
    let data = case.data();
    let dot = |a: &[f64], b: &[f64]| -> f64 { a.iter().zip(b).map(|(a, b)| a * b).sum() };
    let forward = dot(&data.dy, &crate::support::run_operator(&data, false));
    let [filters, scales, _] = run_gradient(&data);
    assert!(relative_error(&[dot(&filters, &data.filters)], &[forward]) < 1e-5);
    assert!(relative_error(&[dot(&scales, &data.scales)], &[forward]) < 1e-5);
}

#[test]
fn an_empty_batch_has_zero_gradients() {
    for levels in [0, 2] {
        let case = Case::new([0, 2, 8, 8], 5, levels);
        for gradient in run_gradient(&case.data()) {
            assert!(gradient.iter().all(|value| *value == 0.0));
        }
    }
}

#[test]
fn twenty_runs_give_the_same_bits() {
    let case = Case::new([9, 3, 20, 18], 5, 3);
    let data = case.data();
    let bits =
        |gradients: [Vec<f64>; 3]| gradients.map(|g| g.iter().map(|v| v.to_bits()).collect::<Vec<_>>());
    let first = bits(run_gradient(&data));
    for run in 1..20 {
        assert!(bits(run_gradient(&data)) == first, "run {run} differs");
    }
}
