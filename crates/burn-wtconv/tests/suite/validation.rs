//! Bad arguments and forced routes.

use burn::tensor::{DType, Tensor};
use burn_wtconv::{Route, RouteKind, WtConv2dConfig, WtConvBackend, WtConvError, try_wtconv2d};
use wtconv_oracle::{Problem, relative_error};

use super::tensors::{Arguments, Case, Precision, values};

pub fn mismatched_arguments_are_refused_in_words<B: WtConvBackend>(device: &B::Device, precision: Precision) {
    let dtype = precision.dtype;
    let zeros4 = |shape: [usize; 4]| Tensor::<B, 4>::zeros(shape, (device, dtype));
    let zeros2 = |shape: [usize; 2]| Tensor::<B, 2>::zeros(shape, (device, dtype));
    let zeros1 = |len: usize| Tensor::<B, 1>::zeros([len], (device, dtype));
    let refuse = |x: [usize; 4], filters: [usize; 4], scales: [usize; 2], bias: usize, stride: usize| {
        let call = try_wtconv2d(zeros4(x), zeros4(filters), zeros2(scales), Some(zeros1(bias)), stride, None);
        call.expect_err("a refusal").to_string()
    };
    let (x, filters, scales) = ([1, 32, 8, 8], [32, 5, 3, 3], [32, 5]);
    let other = if dtype == DType::F32 { DType::F64 } else { DType::F32 };
    assert_eq!(
        refuse([1, 3, 8, 8], filters, scales, 32, 1),
        "expected an input of 32 channels, got 3 (input shape [1, 3, 8, 8], [batch, channels, height, width])"
    );
    assert_eq!(refuse(x, filters, scales, 32, 0), "expected stride >= 1, got 0");
    assert_eq!(refuse([1, 32, 0, 8], filters, scales, 32, 1), "expected height >= 1 and width >= 1, got 0x8");
    for bad in [[32, 4, 3, 3], [32, 5, 3, 5], [32, 5, 0, 0]] {
        assert_eq!(
            refuse(x, bad, scales, 32, 1),
            format!(
                "expected filters of shape [channels, 1 + 4 * levels, kernel_size, kernel_size], got {bad:?}"
            )
        );
    }
    assert_eq!(refuse(x, filters, [32, 9], 32, 1), "expected scales of shape [32, 5], got [32, 9]");
    assert_eq!(refuse(x, filters, scales, 31, 1), "expected a bias of 32 elements, got 31");

    let refused = try_wtconv2d(
        zeros4(x),
        Tensor::<B, 4>::zeros(filters, (device, other)),
        zeros2(scales),
        None,
        1,
        None,
    );
    assert_eq!(
        refused.expect_err("a refusal"),
        WtConvError::DType { what: "filters", expected: dtype, got: other }
    );
}

pub fn the_route_is_told_and_can_be_forced<B: WtConvBackend>(device: &B::Device, precision: Precision) {
    let layer = WtConv2dConfig::new(2).with_levels(2).init::<B>(device);
    let x = Tensor::<B, 4>::zeros([1, 2, 6, 6], device);
    let told = layer.route(&x);
    let forced = layer.try_forward(x, Some(RouteKind::Fused));
    match told {
        Route::Fused { .. } => assert!(forced.is_ok()),
        Route::TensorOps { reason } => {
            assert_eq!(forced.expect_err("a refusal"), WtConvError::Refused { reason });
        }
    }

    let problem =
        Problem { batch: 1, channels: 2, height: 6, width: 6, kernel_size: 5, levels: 2, stride: 1 };
    let case = Case::random(problem, true, 1);
    let Arguments { x, filters, scales, bias } = Arguments::<B>::new(&case, precision.dtype, device);
    let y = try_wtconv2d(x, filters, scales, bias, 1, Some(RouteKind::TensorOps)).expect("tensor ops");
    assert!(relative_error(&values(y), &case.oracle().y) <= precision.oracle);
}

/// For backends with kernels: every problem of the suite with an odd kernel size goes through them.
pub fn the_route_is_fused<B: WtConvBackend>() {
    let device = Default::default();
    for (kernel_size, levels) in [(1, 0), (5, 5), (31, 2)] {
        let config = WtConv2dConfig::new(2).with_kernel_size(kernel_size).with_levels(levels);
        let route = config.init::<B>(&device).route(&Tensor::zeros([1, 2, 20, 30], &device));
        assert!(matches!(route, Route::Fused { .. }), "kernel size {kernel_size}, {levels} levels: {route}");
    }
    let even = WtConv2dConfig::new(2).with_kernel_size(4).init::<B>(&device);
    let route = even.route(&Tensor::zeros([1, 2, 20, 30], &device));
    let reason = "the kernels take odd filter sizes only, got 4".to_owned();
    assert_eq!(route, Route::TensorOps { reason });
}
