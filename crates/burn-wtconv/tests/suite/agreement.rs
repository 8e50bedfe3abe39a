//! Values: golden files, the oracle on random and awkward problems, exact integers.

use burn::backend::autodiff::checkpoint::strategy::BalancedCheckpointing;
use burn_wtconv::WtConvBackend;
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, TestRunner};
use wtconv_oracle::{Problem, golden};

use super::tensors::{Case, Outcome, Precision, run, run_reference, run_with};

fn golden_cases(most: usize, mut check: impl FnMut(&Case, &Outcome, &str)) {
    let cases = golden::cases();
    assert_eq!(cases.len(), 16);
    for golden::Case { name, problem, x, dy, parameters, y, gradients } in cases.into_iter().take(most) {
        check(&Case { problem, x, dy, parameters }, &Outcome { y, gradients }, &name);
    }
}

pub fn every_golden_case_agrees<B: WtConvBackend>(device: &B::Device, precision: Precision) {
    golden_cases(16, |case, expected, name| {
        run::<B>(case, precision, device).assert_close(expected, precision.golden, name);
    });
}

pub fn every_golden_case_agrees_under_gradient_checkpointing<B: WtConvBackend>(
    device: &B::Device,
    precision: Precision,
) {
    golden_cases(precision.problems, |case, expected, name| {
        let got = run_with::<B, BalancedCheckpointing>(case, precision, device);
        got.assert_close(expected, precision.golden, name);
    });
}

pub fn every_golden_case_agrees_through_burns_autodiff<B: WtConvBackend>(
    device: &B::Device,
    precision: Precision,
) {
    golden_cases(precision.tensor_op_cases, |case, expected, name| {
        let tolerance = precision.golden.max(precision.products);
        run_reference::<B>(case, precision, device).assert_close(expected, tolerance, name);
    });
}

fn check<B: WtConvBackend>(case: &Case, precision: Precision, device: &B::Device) {
    run::<B>(case, precision, device).assert_close(
        &case.oracle(),
        precision.oracle,
        &format!("{:?}", case.problem),
    );
}

pub fn random_problems_agree_with_the_oracle<B: WtConvBackend>(device: &B::Device, precision: Precision) {
    let sizes = (1..4usize, 1..6usize, 1..24usize, 1..24usize);
    let options = (proptest::sample::select(vec![1usize, 2, 3, 4, 5, 7]), 0..6usize, 1..4usize);
    let strategy = (sizes, options, proptest::bool::ANY, proptest::num::u64::ANY);
    let mut runner = TestRunner::new_with_rng(
        Config::default(),
        proptest::test_runner::TestRng::deterministic_rng(proptest::test_runner::RngAlgorithm::ChaCha),
    );
    for _ in 0..precision.problems {
        let tree = strategy.new_tree(&mut runner).expect("a problem");
        let ((batch, channels, height, width), (kernel_size, levels, stride), bias, seed) = tree.current();
        let problem = Problem { batch, channels, height, width, kernel_size, levels, stride };
        check::<B>(&Case::random(problem, bias, seed), precision, device);
    }
}

pub fn small_and_awkward_extents_agree_with_the_oracle<B: WtConvBackend>(
    device: &B::Device,
    precision: Precision,
) {
    let problem = |height, width, levels| Problem {
        batch: 2,
        channels: 2,
        height,
        width,
        kernel_size: 5,
        levels,
        stride: 1,
    };
    // A software device compiles for seconds for every extent.
    let step = if precision.problems < 10 { 4 } else { 1 };
    for side in (1..=9).step_by(step) {
        check::<B>(&Case::random(problem(side, 10 - side, 3), true, side as u64), precision, device);
    }
    for (height, width) in
        [(31, 33), (32, 32), (33, 31), (1, 130), (63, 65), (130, 1)].into_iter().step_by(step)
    {
        check::<B>(&Case::random(problem(height, width, 4), true, 7), precision, device);
    }
}

pub fn even_kernel_sizes_agree_with_the_oracle<B: WtConvBackend>(device: &B::Device, precision: Precision) {
    // The kernels refuse even sizes, so that these run through tensor ops everywhere. At five levels the deep ones have
    // subbands of a single pixel.
    for (kernel_size, stride, levels) in
        [(4, 2, 5), (2, 1, 2), (6, 1, 4)].into_iter().take(precision.tensor_op_cases)
    {
        let problem = Problem { batch: 2, channels: 3, height: 9, width: 7, kernel_size, levels, stride };
        check::<B>(&Case::random(problem, true, 5), precision, device);
    }
}

pub fn large_kernels_agree_with_the_oracle<B: WtConvBackend>(device: &B::Device, precision: Precision) {
    for (kernel_size, height, width) in [(13, 9, 20), (31, 12, 17)] {
        let problem = Problem { batch: 1, channels: 2, height, width, kernel_size, levels: 2, stride: 1 };
        check::<B>(&Case::random(problem, false, 3), precision, device);
    }
}

pub fn no_levels_is_a_scaled_depthwise_convolution<B: WtConvBackend>(
    device: &B::Device,
    precision: Precision,
) {
    let problem =
        Problem { batch: 2, channels: 3, height: 8, width: 11, kernel_size: 7, levels: 0, stride: 1 };
    check::<B>(&Case::random(problem, true, 9), precision, device);
}

/// Products and sums of these integers are exact in f32, whatever their order: equality can be demanded.
pub fn integers_are_exact<B: WtConvBackend>(device: &B::Device, precision: Precision) {
    for (height, width, levels) in [(7, 9, 2), (8, 8, 3), (1, 1, 2)] {
        let problem = Problem { batch: 2, channels: 3, height, width, kernel_size: 3, levels, stride: 1 };
        let case = Case::integers(problem, height);
        assert_eq!(run::<B>(&case, precision, device), case.oracle(), "{problem:?}");
    }
}

pub fn interleaved_configurations_do_not_mix<B: WtConvBackend>(device: &B::Device, precision: Precision) {
    for round in 0..2 {
        for (kernel_size, levels) in [(3, 1), (5, 1), (5, 2), (3, 2), (1, 0)] {
            let problem =
                Problem { batch: 1, channels: 2, height: 12, width: 10, kernel_size, levels, stride: 1 };
            check::<B>(&Case::random(problem, round == 0, 11 + round), precision, device);
        }
    }
}
