//! The suite on CUDA, with Fusion as users type it.
#![cfg(feature = "cuda")]

mod suite;

mod f32 {
    use crate::suite::{Precision, suite};
    // The reference under Burn's autodiff is 2e-4 off there: matrix products in TF32, probably. Every problem compiles kernels for seconds.
    // Burn 0.21 fills and sums a tensor without elements by a launch of no cubes, which is an error there.
    const PRECISION: Precision =
        Precision { products: 1e-3, problems: 8, tensor_op_cases: 3, empty_tensors: false, ..Precision::F32 };
    suite!(burn::backend::Cuda, PRECISION);

    /// The values above are those of the kernels.
    #[test]
    fn the_route_is_fused() {
        crate::suite::the_route_is_fused::<burn::backend::Cuda>();
    }

    #[test]
    fn a_thousand_training_steps_leave_nothing_behind() {
        crate::suite::a_thousand_training_steps_leave_nothing_behind::<
            burn::backend::Cuda,
            burn_cubecl::cubecl::cuda::CudaRuntime,
        >(&Default::default());
    }
}
