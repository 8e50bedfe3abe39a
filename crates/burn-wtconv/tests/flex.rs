//! The suite on Flex.
#![cfg(feature = "flex")]

mod suite;

mod f32 {
    use crate::suite::{Precision, suite};
    suite!(burn::backend::Flex, Precision::F32);
}

mod f64 {
    use crate::suite::{Precision, suite};
    suite!(burn::backend::Flex, Precision::F64);
}
