//! The traffic model against figures that can be worked out by hand.

use wtconv_kernels::traffic::{
    filter_gradient_traffic, operator_traffic, published_fused_elements, reference_elements,
};
use wtconv_kernels::{
    DeviceLimits, Dtype, Operands, Problem, Strategy, Strided, plan_filter_gradient, plan_operator,
};

const DEVICE: DeviceLimits = DeviceLimits::HOPPER;

fn setting(shape: [usize; 4], levels: usize, dtype: Dtype) -> (Problem, Operands) {
    let [batch, channels, height, width] = shape;
    let strided = Strided::contiguous(shape);
    (
        Problem { batch, channels, height, width, kernel_size: 5, levels },
        Operands { x: strided, y: strided, dtype, parameter_dtype: dtype },
    )
}

#[test]
fn published_models() {
    let near = |a: f64, b: f64| assert!((a - b).abs() < 0.005, "{a} is not {b}");
    near(reference_elements(0), 7.0);
    near(reference_elements(1), 17.75);
    near(reference_elements(5), 21.32);
    near(published_fused_elements(1), 7.0);
    near(published_fused_elements(5), 8.33);
    near(reference_elements(1) / published_fused_elements(1), 2.54);
    near(reference_elements(5) / published_fused_elements(5), 2.56);
}

#[test]
fn a_resident_plan_moves_every_element_once() {
    for dtype in [Dtype::F32, Dtype::F16] {
        let (problem, operands) = setting([64, 96, 56, 56], 5, dtype);
        let plan = plan_operator(&problem, &operands, false, &DEVICE, Strategy::Auto).unwrap();
        let traffic = operator_traffic(&plan, &problem, dtype);
        assert_eq!((traffic.read, traffic.written), (problem.elements(), problem.elements()));
        assert_eq!(traffic.bytes, 2 * problem.elements() * dtype.size());

        let plan = plan_filter_gradient(&problem, &operands, &DEVICE, Strategy::Auto).unwrap();
        let traffic = filter_gradient_traffic(&plan, &problem, dtype);
        let shares = plan.chunks * 96 * (21 * 25 + 1);
        assert_eq!((traffic.read, traffic.written), (2 * problem.elements() + shares, shares));
        assert!((shares as f64) < 0.03 * problem.elements() as f64, "shares are small");
    }
}

#[test]
fn a_split_plan_by_hand() {
    // One plane of 32 x 16 in windows of 16 x 16 with 2 levels and a halo of 8: each window reads 24 rows of 16.
    let (problem, operands) = setting([1, 1, 32, 16], 3, Dtype::F32);
    let strategy = Strategy::Windows { levels: 2, height: 16, width: 16 };
    let plan = plan_operator(&problem, &operands, false, &DEVICE, strategy).unwrap();
    let traffic = operator_traffic(&plan, &problem, Dtype::F32);
    let below = 8 * 4;
    let windows = 2 * 24 * 16;
    // Low-pass kernel, deeper levels (resident), carried values, windows.
    assert_eq!(traffic.read, 512 + below + below + windows);
    assert_eq!(traffic.written, below + below + 512);
    assert_eq!(traffic.elements() * 4, traffic.bytes);
}

#[test]
fn a_large_split_plan_stays_near_its_model() {
    let (problem, operands) = setting([8, 64, 512, 512], 3, Dtype::F32);
    let plan = plan_operator(&problem, &operands, false, &DEVICE, Strategy::Auto).unwrap();
    let moved = operator_traffic(&plan, &problem, Dtype::F32).elements() as f64 / problem.elements() as f64;
    assert!((3.25..4.0).contains(&moved), "{moved} N");
}
