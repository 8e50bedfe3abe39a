//! The Haar step on a 2x2 block, without its factor 1/2.
//!
//! ```text
//! LL = a + b + c + d    LH = a + b - c - d    HL = a - b + c - d    HH = a - b - c + d        block  a b
//!                                                                                                    c d
//! ```
//!
//! The 4x4 matrix of this step is symmetric, and twice the identity when squared and halved, so the same butterflies
//! analyse and synthesise. Both factors 1/2 of a level are folded into its filters as powers of two (exact in any binary
//! float): a filter of level `l` is multiplied by `4^-l` when it is loaded.

use cubecl::prelude::*;

/// One unnormalised Haar step, analysis and synthesis alike: `(a, b, c, d) <-> (LL, LH, HL, HH)`.
#[cube]
pub(crate) fn butterflies(a: f32, b: f32, c: f32, d: f32) -> (f32, f32, f32, f32) {
    let left = a + c;
    let right = b + d;
    let left_difference = a - c;
    let right_difference = b - d;
    (left + right, left_difference + right_difference, left - right, left_difference - right_difference)
}
