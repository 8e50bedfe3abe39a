//! The planner on real and made-up devices, without one in hand.

use wtconv_kernels::plan::{OperatorPlan, Refusal, Strategy};
use wtconv_kernels::{DeviceLimits, Dtype, Operands, Problem, Strided, plan_filter_gradient, plan_operator};

/// An H200 as CubeCL reports it.
const H200: DeviceLimits = DeviceLimits::HOPPER;

/// The least that WebGPU guarantees.
const WEBGPU: DeviceLimits = DeviceLimits {
    shared_memory: 16_384,
    threads: 256,
    cubes: [65_535, 65_535],
    plane_size: 32,
    multiprocessors: None,
    vectors: false,
    unroll: false,
    wide_indices: false,
    f16: false,
    bf16: false,
};

fn problem(shape: [usize; 4], kernel_size: usize, levels: usize) -> Problem {
    let [batch, channels, height, width] = shape;
    Problem { batch, channels, height, width, kernel_size, levels }
}

fn shape(problem: &Problem) -> [usize; 4] {
    [problem.batch, problem.channels, problem.height, problem.width]
}

fn operands(problem: &Problem) -> Operands {
    let strided = Strided::contiguous(shape(problem));
    Operands { x: strided, y: strided, dtype: Dtype::F32, parameter_dtype: Dtype::F32 }
}

fn channels_last(problem: &Problem) -> Operands {
    let strided = Strided::channels_last(shape(problem));
    Operands { x: strided, y: strided, ..operands(problem) }
}

fn launches(problem: &Problem, limits: &DeviceLimits) -> (usize, usize) {
    let operator = plan_operator(problem, &operands(problem), false, limits, Strategy::Auto).unwrap();
    let gradient = plan_filter_gradient(problem, &operands(problem), limits, Strategy::Auto).unwrap();
    (operator.launches(), gradient.launches())
}

#[test]
fn convnext_shapes_take_one_launch_forward_and_three_backward() {
    for (shape, levels) in [
        ([64, 96, 56, 56], 5),
        ([64, 192, 28, 28], 4),
        ([64, 384, 14, 14], 3),
        ([64, 768, 7, 7], 2),
        ([1, 1, 1, 1], 5),
        ([64, 7, 56, 56], 0),
    ] {
        // The input gradient is one more launch of the operator.
        assert_eq!(launches(&problem(shape, 5, levels), &H200), (1, 2), "{shape:?}");
        assert_eq!(launches(&problem(shape, 7, 0), &H200), (1, 2), "{shape:?}");
    }
}

#[test]
fn large_planes_are_split_and_every_stage_fits() {
    for limits in [H200, WEBGPU, DeviceLimits { shared_memory: 49_152, ..H200 }] {
        for (shape, levels) in [([8, 64, 512, 512], 3), ([1, 3, 130, 1], 2), ([2, 5, 1000, 999], 6)] {
            for kernel_size in [1, 3, 5, 7] {
                let problem = problem(shape, kernel_size, levels);
                let plan =
                    plan_operator(&problem, &operands(&problem), false, &limits, Strategy::Auto).unwrap();
                let mut stage = Some(&plan);
                let mut left = levels;
                while let Some(plan) = stage {
                    let layout = plan.kernel.layout;
                    assert!(plan.kernel.shared_floats() * 4 <= limits.shared_memory, "{problem:?}");
                    assert!(layout.threads <= limits.threads && layout.largest_buffer() <= layout.threads);
                    left -= layout.levels;
                    stage = plan.deeper.as_ref().map(|deeper| &deeper.plan);
                }
                assert_eq!(left, 0, "{problem:?}: every level is computed once");
                let plan =
                    plan_filter_gradient(&problem, &operands(&problem), &limits, Strategy::Auto).unwrap();
                assert!(plan.kernel.shared_floats() * 4 <= limits.shared_memory, "{problem:?}");
                assert!(plan.kernel.working() <= plan.kernel.x.threads);
                assert!(plan.kernel.x.threads <= limits.threads);
            }
        }
    }
}

#[test]
fn every_odd_kernel_to_31_has_a_plan() {
    for limits in [H200, DeviceLimits { shared_memory: 32_768, ..WEBGPU }] {
        for kernel_size in (1..=31).step_by(2) {
            for shape in [[2, 3, 7, 7], [1, 2, 64, 65], [1, 1, 1, 300]] {
                let problem = problem(shape, kernel_size, 2);
                for operands in [operands(&problem), channels_last(&problem)] {
                    plan_operator(&problem, &operands, true, &limits, Strategy::Auto)
                        .unwrap_or_else(|refusal| panic!("{problem:?}: {refusal}"));
                    plan_filter_gradient(&problem, &operands, &limits, Strategy::Auto)
                        .unwrap_or_else(|refusal| panic!("{problem:?}: {refusal}"));
                }
            }
        }
    }
}

#[test]
fn any_plane_size_gives_whole_planes() {
    for plane_size in [8, 16, 32, 64] {
        let limits = DeviceLimits { plane_size, ..WEBGPU };
        for side in [1, 7, 14, 33, 130] {
            let problem = problem([3, 5, side, side], 5, 3);
            let plan = plan_operator(&problem, &operands(&problem), false, &limits, Strategy::Auto).unwrap();
            assert!(plan.kernel.layout.threads.is_multiple_of(plane_size));
            let plan = plan_filter_gradient(&problem, &operands(&problem), &limits, Strategy::Auto).unwrap();
            assert!(plan.kernel.x.threads.is_multiple_of(plane_size));
        }
    }
}

#[test]
fn cubes_cover_the_batch_at_and_past_the_limit_of_a_dimension() {
    let limits = DeviceLimits { shared_memory: 65_536, ..WEBGPU };
    for images in [65_534, 65_535, 65_536, 200_000, 5_000_000] {
        let problem = problem([images, 1, 33, 33], 3, 1);
        let plan = plan_operator(&problem, &operands(&problem), false, &limits, Strategy::Auto);
        let wide = 33 * 33 * images > u32::MAX as usize - (1 << 16);
        if wide {
            assert!(matches!(plan, Err(Refusal::IndexRange { .. })));
            continue;
        }
        let plan = plan.unwrap();
        let [x, y] = plan.cover.cubes.map(|count| count as usize);
        assert!(x <= limits.cubes[0] && y <= limits.cubes[1]);
        assert!(x * y * plan.kernel.layout.planes >= images);
    }
    let tiny = DeviceLimits { cubes: [4, 4], ..limits };
    let problem = problem([17, 1, 64, 64], 3, 1);
    let plan = plan_operator(
        &problem,
        &operands(&problem),
        false,
        &tiny,
        Strategy::Windows { levels: 1, height: 64, width: 64 },
    );
    assert_eq!(plan, Err(Refusal::Cubes { needed: 17, available: [4, 4] }));
}

#[test]
fn indices_past_32_bits_are_wide_or_refused() {
    let large = problem([1 << 10, 1 << 6, 1 << 8, 1 << 8], 5, 2);
    let plan = plan_operator(&large, &operands(&large), false, &H200, Strategy::Auto).unwrap();
    assert!(plan.wide_indices);
    let narrow = DeviceLimits { wide_indices: false, ..H200 };
    let refused = Refusal::IndexRange { last: 1 << 32, limit: (u32::MAX - (1 << 16)) as usize };
    assert_eq!(plan_operator(&large, &operands(&large), true, &narrow, Strategy::Auto), Err(refused));
    assert_eq!(plan_filter_gradient(&large, &operands(&large), &narrow, Strategy::Auto), Err(refused));
    // A small view of a large buffer counts by its last index, an expanded one by what it spans.
    let small = problem([2, 1, 8, 8], 5, 2);
    let far = Strided { offset: 1 << 33, ..Strided::contiguous(shape(&small)) };
    let far = Operands { x: far, ..operands(&small) };
    assert!(matches!(
        plan_operator(&small, &far, false, &narrow, Strategy::Auto),
        Err(Refusal::IndexRange { .. })
    ));
    let expanded = Strided { offset: 0, strides: [0; 4] };
    let expanded = Operands { x: expanded, ..operands(&small) };
    assert!(plan_operator(&small, &expanded, false, &narrow, Strategy::Auto).is_ok());
    // Extents whose product overflows are refused as well.
    let absurd = problem([usize::MAX / 2, 8, 8, 8], 5, 1);
    let strided = Strided { offset: 0, strides: [512, 64, 8, 1] };
    let absurd_operands = Operands { x: strided, y: strided, ..operands(&small) };
    assert!(matches!(
        plan_operator(&absurd, &absurd_operands, false, &narrow, Strategy::Auto),
        Err(Refusal::IndexRange { .. })
    ));
}

#[test]
fn refusals_name_the_numbers() {
    let even = problem([1, 1, 8, 8], 4, 1);
    let refusal = plan_operator(&even, &operands(&even), false, &H200, Strategy::Auto).unwrap_err();
    assert_eq!(refusal.to_string(), "the kernels take odd filter sizes only, got 4");
    let large = problem([1, 1, 8, 8], 65, 1);
    let refusal = plan_operator(&large, &operands(&large), false, &H200, Strategy::Auto).unwrap_err();
    assert_eq!(refusal.to_string(), "the kernels take filter sizes up to 63, got 65");
    let empty = problem([1, 0, 8, 8], 5, 1);
    let refusal = plan_filter_gradient(&empty, &operands(&empty), &H200, Strategy::Auto).unwrap_err();
    assert_eq!(refusal.to_string(), "channels, height and width must be at least 1, got 0 x 8 x 8");
    let halves = problem([1, 1, 8, 8], 5, 1);
    let half_operands = Operands { dtype: Dtype::F16, ..operands(&halves) };
    let refusal = plan_operator(&halves, &half_operands, false, &WEBGPU, Strategy::Auto).unwrap_err();
    assert_eq!(refusal.to_string(), "the device does not support f16 tensors");
    let wide = problem([1, 1, 64, 64], 31, 1);
    let refusal = plan_operator(&wide, &operands(&wide), false, &WEBGPU, Strategy::Auto).unwrap_err();
    assert!(matches!(refusal, Refusal::SharedMemory { available: 16_384, .. }), "{refusal}");
    let refusal = plan_operator(
        &problem([1, 1, 512, 512], 5, 3),
        &operands(&problem([1, 1, 512, 512], 5, 3)),
        false,
        &H200,
        Strategy::Resident,
    )
    .unwrap_err();
    assert!(matches!(refusal, Refusal::SharedMemory { available: 232_448, .. }), "{refusal}");
    let forced = Strategy::Windows { levels: 3, height: 64, width: 64 };
    assert_eq!(
        plan_operator(&halves, &operands(&halves), false, &H200, forced),
        Err(Refusal::Strategy { strategy: forced, levels: 1 })
    );
}

#[test]
fn channels_last_memory_takes_neighbouring_channels() {
    for (shape, levels) in [([64, 96, 56, 56], 5), ([64, 192, 28, 28], 4), ([64, 768, 7, 7], 2)] {
        let problem = problem(shape, 5, levels);
        let plan = plan_operator(&problem, &channels_last(&problem), false, &H200, Strategy::Auto).unwrap();
        assert!(plan.kernel.layout.channels >= 4, "{shape:?}");
        assert_eq!((plan.kernel.load, plan.kernel.store), (1, 1));
        let plan = plan_operator(&problem, &operands(&problem), false, &H200, Strategy::Auto).unwrap();
        assert_eq!(plan.kernel.layout.channels, 1);
    }
}

#[test]
fn vectors_need_aligned_rows() {
    let at = |offset, strides, width| Strided { offset, strides }.vector([2, 3, 8, width]);
    assert_eq!(at(0, [192, 64, 8, 1], 8), 4);
    assert_eq!(at(4, [192, 64, 8, 1], 8), 4);
    assert_eq!(at(2, [192, 64, 8, 1], 8), 2);
    assert_eq!(at(1, [192, 64, 8, 1], 8), 1);
    assert_eq!(at(0, [240, 80, 10, 1], 8), 2);
    assert_eq!(at(0, [144, 48, 6, 1], 6), 2);
    assert_eq!(at(0, [168, 56, 7, 1], 7), 1);
    assert_eq!(at(0, [192, 1, 24, 3], 8), 1);
    assert_eq!(at(0, [0, 0, 0, 1], 8), 4);
}

#[test]
fn an_empty_batch_has_plans_without_shares() {
    let problem = problem([0, 3, 8, 8], 5, 1);
    assert!(plan_operator(&problem, &operands(&problem), false, &H200, Strategy::Auto).is_ok());
    let plan = plan_filter_gradient(&problem, &operands(&problem), &H200, Strategy::Auto).unwrap();
    assert_eq!(plan.chunks, 0);
}
#[test]
fn windows_of_large_planes_share_a_multiprocessor() {
    for (shape, most_threads) in
        [([16, 64, 224, 224], 303), ([8, 64, 512, 512], 273), ([1, 4, 2048, 2048], 273)]
    {
        let problem = problem(shape, 5, 3);
        let plan = plan_operator(&problem, &operands(&problem), false, &H200, Strategy::Auto).unwrap();
        let layout = plan.kernel.layout;
        // 228 KiB of memory, of which each cube takes one more than its own; 65,536 registers, 72 or 80 a thread.
        assert!(3 * (4 * plan.kernel.shared_floats() + 1024) <= 228 * 1024, "{shape:?}: {layout:?}");
        assert!(layout.threads <= most_threads, "{shape:?}: {layout:?}");
        assert_eq!(layout.rounds(), 1, "{shape:?}: {layout:?}");
        assert_eq!(plan.visits, 1, "{shape:?}");
        // The filter gradients hold two pyramids, and two cubes together.
        let gradient = plan_filter_gradient(&problem, &operands(&problem), &H200, Strategy::Auto).unwrap();
        assert!(2 * (4 * gradient.kernel.shared_floats() + 1024) <= 228 * 1024, "{shape:?}");
    }
}

/// Cubes of a plan that the memory of a multiprocessor holds.
fn together(plan: &OperatorPlan) -> usize {
    H200.cubes_together(4 * plan.kernel.shared_floats())
}

#[test]
fn a_multiprocessor_holds_as_many_planes_as_it_can() {
    for (shape, levels, planes, cubes) in [
        ([64, 96, 56, 56], 5, 2, 3),
        // Of eight planes a cube, it would hold two cubes.
        ([64, 192, 28, 28], 4, 4, 5),
        // Of eight planes a cube, it would hold nine cubes.
        ([64, 384, 14, 14], 3, 16, 5),
        // As many as of cubes of half the size.
        ([64, 768, 7, 7], 2, 64, 4),
        ([3, 768, 7, 7], 2, 4, 46),
    ] {
        let problem = problem(shape, 5, levels);
        let plan = plan_operator(&problem, &operands(&problem), false, &H200, Strategy::Auto).unwrap();
        assert_eq!((plan.kernel.layout.planes, together(&plan)), (planes, cubes), "{shape:?}");
        assert!(!plan.kernel.prefetch, "{shape:?}");
    }
}

#[test]
fn a_cube_of_neighbouring_channels_is_alone_and_prefetches() {
    for (shape, levels, channels, planes, prefetch) in [
        ([64, 96, 56, 56], 5, 4, 4, true),
        ([64, 192, 28, 28], 4, 8, 16, true),
        // Not more planes than there are, and not fewer multiprocessors than there could be.
        ([1, 192, 28, 28], 4, 8, 8, false),
        ([64, 3, 28, 28], 4, 4, 8, false),
    ] {
        let problem = problem(shape, 5, levels);
        let plan = plan_operator(&problem, &channels_last(&problem), false, &H200, Strategy::Auto).unwrap();
        let layout = plan.kernel.layout;
        assert_eq!((layout.channels, layout.planes), (channels, planes), "{shape:?}");
        assert_eq!(plan.kernel.prefetch, prefetch, "{shape:?}: {} cubes", together(&plan));
    }
}

#[test]
fn filter_gradients_of_neighbouring_channels_take_eight_where_they_fit() {
    for (shape, levels, planes) in
        [([64, 96, 56, 56], 5, 2), ([64, 192, 28, 28], 4, 8), ([64, 384, 14, 14], 3, 8)]
    {
        let problem = problem(shape, 5, levels);
        for dtype in [Dtype::F32, Dtype::BF16] {
            let operands = Operands { dtype, ..channels_last(&problem) };
            let plan = plan_filter_gradient(&problem, &operands, &H200, Strategy::Auto).unwrap();
            let layout = plan.kernel.x;
            assert_eq!((layout.channels, layout.planes), (planes, planes), "{shape:?} {dtype}");
        }
    }
}

#[test]
fn a_cube_that_is_alone_visits_several_windows() {
    for (shape, levels, visits) in [
        ([32, 64, 128, 128], 3, 4),
        ([33, 64, 128, 128], 3, 3),
        ([1, 64, 128, 128], 3, 1),
        ([0, 64, 128, 128], 3, 1),
        // Two cubes hide each other's loads already.
        ([64, 96, 56, 56], 5, 1),
    ] {
        let problem = problem(shape, 5, levels);
        let plan = plan_operator(&problem, &operands(&problem), false, &H200, Strategy::Auto).unwrap();
        let images = plan.kernel.layout.images();
        assert_eq!(plan.visits, visits, "{shape:?}");
        assert_eq!(plan.kernel.prefetch, visits > 1, "{shape:?}");
        let [x, y] = plan.cover.cubes;
        let cubes = (x * y) as usize / plan.cover.channel_groups;
        assert!(cubes * plan.visits * images >= shape[0], "{shape:?}: {cubes} cubes");
    }
}
