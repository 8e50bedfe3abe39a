//! The suite on wgpu, with Fusion as users type it.
#![cfg(feature = "wgpu")]

mod suite;

mod f32 {
    use crate::suite::{Precision, suite};
    suite!(burn::backend::Wgpu, Precision { problems: 3, tensor_op_cases: 1, ..Precision::F32 });

    /// The values above are those of the kernels.
    #[test]
    fn the_route_is_fused() {
        crate::suite::the_route_is_fused::<burn::backend::Wgpu>();
    }

    #[test]
    fn a_thousand_training_steps_leave_nothing_behind() {
        crate::suite::a_thousand_training_steps_leave_nothing_behind::<
            burn::backend::Wgpu,
            burn_cubecl::cubecl::wgpu::WgpuRuntime,
        >(&Default::default());
    }
}
