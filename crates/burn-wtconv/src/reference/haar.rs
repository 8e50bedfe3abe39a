//! Haar analysis and synthesis by slicing and adding.
//!
//! One analysis step maps each 2x2 block `a b / c d` (rows, then columns) to
//!
//! ```text
//! LL = (a+b+c+d)/2   LH = (a+b-c-d)/2   HL = (a-b+c-d)/2   HH = (a-b-c+d)/2
//! ```
//!
//! The 4x4 matrix of that map is symmetric and orthonormal, so the synthesis step applies the same matrix to
//! `LL LH HL HH` and is the adjoint (and the inverse) of the analysis step.

use burn::tensor::backend::Backend;
use burn::tensor::{Tensor, s};

use super::depthwise::zero_pad;

/// One analysis step with zero padding at the bottom and right to even extents.
///
/// The next level is the analysis of the LL subband.
///
/// # Shapes
///
/// - input: `[batch, channels, height, width]`
/// - output: `[batch, channels, 4, ceil(height / 2), ceil(width / 2)]`, the third axis in the order LL, LH, HL, HH
///
/// ```
/// # #[cfg(feature = "flex")] {
/// use burn::backend::Flex;
/// use burn::tensor::{Tensor, TensorData};
/// use burn_wtconv::reference::haar;
///
/// let x = Tensor::<Flex, 4>::from_data([[[[1.0, 2.0], [3.0, 4.0]]]], &Default::default());
/// // (1+2+3+4)/2, (1+2-3-4)/2, (1-2+3-4)/2, (1-2-3+4)/2
/// let subbands = TensorData::from([[[[[5.0]], [[-2.0]], [[-1.0]], [[0.0]]]]]);
/// haar::analysis(x).into_data().assert_eq(&subbands, false);
/// # }
/// ```
pub fn analysis<B: Backend>(x: Tensor<B, 4>) -> Tensor<B, 5> {
    let [_, _, height, width] = x.dims();
    let x = zero_pad(x, [0, height % 2], [0, width % 2]);

    let top = x.clone().slice(s![.., .., 0..;2, ..]);
    let bottom = x.slice(s![.., .., 1..;2, ..]);
    let low = (top.clone() + bottom.clone()) * 0.5;
    let high = (top - bottom) * 0.5;

    let (low_left, low_right) = columns(low);
    let (high_left, high_right) = columns(high);
    Tensor::stack(
        vec![
            low_left.clone() + low_right.clone(),
            high_left.clone() + high_right.clone(),
            low_left - low_right,
            high_left - high_right,
        ],
        2,
    )
}

fn columns<B: Backend>(x: Tensor<B, 4>) -> (Tensor<B, 4>, Tensor<B, 4>) {
    let left = x.clone().slice(s![.., .., .., 0..;2]);
    let right = x.slice(s![.., .., .., 1..;2]);
    (left, right)
}

/// One synthesis step, cropped to `[height, width]`: the adjoint of [`analysis`] on that extent.
///
/// # Shapes
///
/// - `subbands`: `[batch, 4 * channels, ceil(height / 2), ceil(width / 2)]`: channel `4c + s` is subband `s` of `c`
/// - `carried`: `[batch, channels, ceil(height / 2), ceil(width / 2)]`, what deeper levels add to the LL subband
/// - output: `[batch, channels, height, width]`
pub fn synthesis<B: Backend>(
    subbands: Tensor<B, 4>,
    carried: Option<Tensor<B, 4>>,
    [height, width]: [usize; 2],
) -> Tensor<B, 4> {
    let [batch, subband_channels, rows, cols] = subbands.dims();
    let channels = subband_channels / 4;
    let subband = |s: usize| subbands.clone().slice(s![.., s..;4, .., ..]) * 0.5;
    let (ll, lh, hl, hh) = (subband(0), subband(1), subband(2), subband(3));
    let ll = match carried {
        Some(carried) => ll + carried * 0.5,
        None => ll,
    };

    let interleaved_row = |low: Tensor<B, 4>, high: Tensor<B, 4>| {
        Tensor::stack::<5>(vec![low.clone() + high.clone(), low - high], 4).reshape([
            batch,
            channels,
            rows,
            2 * cols,
        ])
    };
    let top = interleaved_row(ll.clone() + lh.clone(), hl.clone() + hh.clone());
    let bottom = interleaved_row(ll - lh, hl - hh);
    Tensor::stack::<5>(vec![top, bottom], 3).reshape([batch, channels, 2 * rows, 2 * cols]).slice(s![
        ..,
        ..,
        0..height,
        0..width
    ])
}
