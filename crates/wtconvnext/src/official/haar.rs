//! The fixed filters of a wavelet convolution, which this library computes and PyTorch stores.

use burn::tensor::TensorData;

/// The signs of LL, LH, HL and HH over a 2x2 block, row by row. Every coefficient is ±1/2.
const SIGNS: [[f32; 4]; 4] =
    [[1.0, 1.0, 1.0, 1.0], [1.0, 1.0, -1.0, -1.0], [1.0, -1.0, 1.0, -1.0], [1.0, -1.0, -1.0, 1.0]];

/// PyTorch computes the coefficients in f32 as a product of 0.7071067.
const TOLERANCE: f32 = 1e-6;

/// The filters of `channels` channels, `[4 * channels, 1, 2, 2]`: the same for analysis and for synthesis.
pub(super) fn filters(channels: usize) -> TensorData {
    let one_channel = SIGNS.as_flattened().iter().map(|sign| 0.5 * sign);
    let values: Vec<f32> = (0..channels).flat_map(|_| one_channel.clone()).collect();
    TensorData::new(values, [4 * channels, 1, 2, 2])
}

/// Whether stored filters are those of [`filters`] up to rounding.
pub(super) fn are_haar(stored: TensorData) -> bool {
    let expected = filters(stored.shape[0] / 4);
    stored.shape == expected.shape
        && stored
            .convert::<f32>()
            .iter::<f32>()
            .zip(expected.iter::<f32>())
            .all(|(stored, expected)| (stored - expected).abs() < TOLERANCE)
}
