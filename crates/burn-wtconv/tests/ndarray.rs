//! The suite on NdArray.
#![cfg(feature = "ndarray")]

mod suite;

mod f32 {
    use crate::suite::{Precision, suite};
    suite!(burn::backend::NdArray<f32>, Precision::F32);
}

mod f64 {
    use crate::suite::{Precision, suite};
    suite!(burn::backend::NdArray<f64>, Precision::F64);
}
