//! The suite on CUDA, with Fusion as users type it.
#![cfg(feature = "cuda")]

mod suite;

mod f32 {
    use crate::suite::{Precision, suite};
    suite!(burn::backend::Cuda, Precision::F32);

    /// The values above are those of the kernels.
    #[test]
    fn the_route_is_fused() {
        crate::suite::the_route_is_fused::<burn::backend::Cuda>();
    }
}
