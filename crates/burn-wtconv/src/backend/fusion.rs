//! Burn's Fusion around another backend.

use burn_fusion::{Fusion, FusionBackend};

use super::WtConvBackend;
use crate::{Route, WtConv2dProblem};

impl<B: FusionBackend + WtConvBackend> WtConvBackend for Fusion<B> {
    fn route(problem: &WtConv2dProblem, device: &Self::Device) -> Route {
        B::route(problem, device)
    }
}
