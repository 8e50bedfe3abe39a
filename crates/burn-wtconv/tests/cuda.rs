//! The suite on CUDA, with Fusion as users type it.
#![cfg(feature = "cuda")]

mod suite;

mod f32 {
    use crate::suite::{Precision, suite};
    suite!(burn::backend::Cuda, Precision::F32);
}
