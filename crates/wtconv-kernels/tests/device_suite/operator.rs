//! Forward and input gradient on the device against the f64 oracle.

use wtconv_oracle::relative_error;

use crate::support::{Case, Memory, check_operator, client, run_operator};
use wtconv_kernels::{DeviceLimits, Dtype, Strategy};

/// Channels, kernel sizes and levels that go round while a test walks through sizes.
fn round_robin(index: usize) -> (usize, usize, usize) {
    ([1, 2, 3, 5, 7][index % 5], [5, 3, 7, 1][index % 4], [2, 1, 3, 0, 4][index % 5])
}

fn walk(sizes: impl IntoIterator<Item = (usize, usize)>) {
    for (index, (height, width)) in sizes.into_iter().enumerate() {
        let (channels, kernel_size, levels) = round_robin(index);
        let shape = [1 + index % 3, channels, height, width];
        check_operator(&Case {
            exact: levels < 4,
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
        let case = Case { exact: true, ..Case::new([2, 2, 11, 10], kernel_size, kernel_size / 2 % 3) };
        check_operator(&case);
    }
}

#[test]
fn a_plane_of_the_real_size() {
    check_operator(&Case::new([3, 1, 56, 56], 5, 5));
}

#[test]
fn levels_deeper_than_the_plane() {
    for (shape, levels) in [([1, 2, 1, 1], 5), ([2, 1, 2, 3], 5), ([1, 1, 8, 8], 6), ([2, 2, 5, 17], 5)] {
        check_operator(&Case::new(shape, 5, levels));
    }
}

#[test]
fn strides_of_every_kind() {
    let outputs = [
        Memory::Sliced,
        Memory::ChannelsLast,
        Memory::SlicedChannelsLast,
        Memory::Subsampled,
        Memory::Transposed,
        Memory::Contiguous,
    ];
    for (index, x) in [
        Memory::Sliced,
        Memory::ChannelsLast,
        Memory::SlicedChannelsLast,
        Memory::Subsampled,
        Memory::Transposed,
        Memory::Expanded,
        Memory::ExpandedBatch,
    ]
    .into_iter()
    .enumerate()
    {
        let (shape, levels) = [([2, 3, 12, 20], 2), ([3, 5, 7, 6], 1)][index % 2];
        let case = Case { exact: true, x, dy: x, out: outputs[index % 6], ..Case::new(shape, 5, levels) };
        check_operator(&case);
    }
}

#[test]
fn padded_parameters() {
    for (shape, kernel_size, levels, unroll) in
        [([2, 3, 9, 12], 5, 2, false), ([1, 2, 13, 10], 9, 1, false), ([2, 3, 12, 7], 3, 2, true)]
    {
        check_operator(&Case { exact: true, padded: true, unroll, ..Case::new(shape, kernel_size, levels) });
    }
}

#[test]
fn more_channels_than_a_cube_takes() {
    let case = Case::new([2, 41, 7, 7], 5, 2);
    check_operator(&Case {
        x: Memory::ChannelsLast,
        dy: Memory::ChannelsLast,
        out: Memory::ChannelsLast,
        ..case
    });
}

/// The plan that a case runs.
fn plan(case: &Case) -> wtconv_kernels::OperatorPlan {
    case.operator_plan(&case.limits())
}

/// The kernels as CUDA runs them, unrolled: tiles of odd height, levels that one thread convolves whole.
#[test]
fn unrolled_kernels() {
    for (shape, kernel_size, levels, memory) in [
        ([3, 1, 14, 14], 5, 1, Memory::Contiguous),
        ([2, 3, 7, 6], 3, 2, Memory::ChannelsLast),
        ([1, 2, 36, 19], 3, 1, Memory::Contiguous),
    ] {
        let case = Case {
            exact: true,
            unroll: true,
            x: memory,
            dy: memory,
            out: memory,
            ..Case::new(shape, kernel_size, levels)
        };
        check_operator(&case);
    }
}

#[test]
fn windows_and_splits() {
    let windows = |levels, height, width| Strategy::Windows { levels, height, width };
    for (shape, kernel_size, levels, strategy, x) in [
        ([2, 2, 30, 21], 5, 0, windows(0, 16, 8), Memory::Contiguous),
        ([1, 3, 16, 16], 5, 1, windows(1, 8, 8), Memory::Contiguous),
        ([2, 1, 33, 18], 3, 2, windows(2, 16, 8), Memory::Sliced),
        ([1, 2, 25, 19], 5, 3, windows(1, 8, 16), Memory::ChannelsLast),
        ([2, 2, 40, 36], 5, 4, windows(2, 16, 16), Memory::Contiguous),
        ([1, 2, 21, 23], 9, 2, windows(1, 8, 8), Memory::ExpandedBatch),
        ([1, 1, 9, 9], 7, 5, windows(2, 4, 4), Memory::Transposed),
    ] {
        let case = Case { exact: levels < 4, strategy, x, dy: x, ..Case::new(shape, kernel_size, levels) };
        let Strategy::Windows { levels: first, height, width } = strategy else { unreachable!() };
        let taken = plan(&case);
        let layout = taken.kernel.layout;
        assert!(!layout.resident && layout.height <= height && layout.width <= width);
        assert_eq!(layout.levels, first);
        assert_eq!(taken.deeper.is_some(), levels > first);
        check_operator(&case);
    }
}

#[test]
fn a_cube_visits_several_windows() {
    for (shape, levels, strategy, memory) in [
        ([29, 2, 14, 11], 2, Strategy::Resident, Memory::ChannelsLast),
        ([2, 2, 19, 30], 1, Strategy::Windows { levels: 1, height: 8, width: 16 }, Memory::Sliced),
    ] {
        let case = Case {
            exact: true,
            alone: true,
            strategy,
            x: memory,
            dy: memory,
            out: memory,
            ..Case::new(shape, 3, levels)
        };
        let taken = plan(&case);
        assert!(taken.visits > 1 && taken.kernel.prefetch, "{shape:?}: {} visits", taken.visits);
        check_operator(&case);
    }
}

#[test]
fn a_forced_resident_plan() {
    let case = Case { exact: true, strategy: Strategy::Resident, ..Case::new([5, 2, 14, 14], 5, 3) };
    let taken = plan(&case);
    assert!(taken.kernel.layout.resident && taken.deeper.is_none());
    check_operator(&case);
}

#[test]
fn a_plane_that_does_not_fit_is_split() {
    let case = Case::new([1, 1, 300, 260], 5, 4);
    assert!(plan(&case).deeper.is_some());
    check_operator(&case);
}

#[test]
fn half_types() {
    let limits = DeviceLimits::of(&client());
    for dtype in [Dtype::F16, Dtype::BF16] {
        if limits.supports(dtype) {
            check_operator(&Case { dtype, ..Case::new([2, 2, 14, 12], 5, 2) });
        } else {
            println!("no {dtype} on this device");
        }
    }
}

/// `<dy, F(x)> = <dx, x>`, without bias.
#[test]
fn input_gradient_is_the_adjoint() {
    let case = Case { with_bias: false, ..Case::new([2, 3, 13, 9], 5, 3) };
    let data = case.data();
    let dot = |a: &[f64], b: &[f64]| -> f64 { a.iter().zip(b).map(|(a, b)| a * b).sum() };
    let forward = dot(&data.dy, &run_operator(&data, false));
    let backward = dot(&run_operator(&data, true), &data.x);
    assert!(relative_error(&[backward], &[forward]) < 1e-5, "{forward} and {backward}");
}

#[test]
fn an_empty_batch_launches_nothing() {
    let case = Case { out: Memory::Sliced, ..Case::new([0, 2, 8, 8], 5, 2) };
    assert!(run_operator(&case.data(), false).is_empty());
    assert!(run_operator(&case.data(), true).is_empty());
}

#[test]
fn random_cases() {
    let mut random = crate::support::Random::new(2026);
    for seed in 0..3 {
        let shape = [1 + random.below(3), 1 + random.below(4), 1 + random.below(40), 1 + random.below(40)];
        let memory = [Memory::Contiguous, Memory::Sliced, Memory::ChannelsLast, Memory::SlicedChannelsLast];
        let case = Case {
            x: memory[random.below(4)],
            dy: memory[random.below(4)],
            out: memory[random.below(4)],
            seed,
            ..Case::new(shape, 1 + 2 * random.below(4), random.below(5))
        };
        check_operator(&case);
    }
}
