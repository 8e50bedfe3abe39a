//! The suite on wgpu, with Fusion as users type it.
#![cfg(feature = "wgpu")]

mod suite;

mod f32 {
    use crate::suite::{Precision, suite};
    suite!(burn::backend::Wgpu, Precision::F32);
}
