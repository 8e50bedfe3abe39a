//! Layers of the channels of a pixel, as matrix products over the pixels of a batch.
//!
//! A linear layer of a map is one product of all its pixels with the weight. The gradient of the weight is then a sum over all
//! pixels, `x^T dy`: a product with a small result and a very long inner axis, for which the fastest kernel of Burn 0.21 takes 3.4 ms
//! in the first stage of WTConvNeXt-T on an H200, twelve times the forward's product of as many multiplications. Cut into groups of
//! pixels, it is a batch of products and a sum. Measured on an H200 for the two linear layers of a block of WTConvNeXt-T with a GELU between them, at a batch of 64,
//! forward and all gradients in f32, one group against those of [`groups`] or the nearest measured (32, 16 or 64, 8, 2): 13.2
//! against 3.3 ms in the first stage, 4.4 against 2.2, 2.1 against 1.7, 1.8 against 1.6. The forward takes as long either way.

use burn::tensor::Tensor;
use burn::tensor::backend::Backend;

/// Pixels that a group has at least, if there are as many: a product of fewer does not fill its tiles.
const LEAST_PIXELS: usize = 1024;

/// A layer of the last axis alone, which takes any number of axes before it.
pub(crate) trait PixelLayer<B: Backend> {
    /// Applies the layer to every pixel.
    ///
    /// # Shapes
    ///
    /// - x: `[.., channels]`
    /// - output: `[.., channels_out]`
    fn apply<const D: usize>(&self, x: Tensor<B, D>) -> Tensor<B, D>;
}

/// Applies a layer to the pixels of a map.
///
/// # Shapes
///
/// - x: `[batch, height, width, channels]`
/// - output: `[batch, height, width, channels_out]`
pub(crate) fn per_pixel<B: Backend>(layer: &impl PixelLayer<B>, x: Tensor<B, 4>) -> Tensor<B, 4> {
    let [batch, height, width, channels] = x.dims();
    let lines = batch * height;
    match groups(lines, width, channels) {
        // A plain matrix, not a batch of one: of an empty batch, Burn takes a 0 in a shape on the first axis only.
        1 => {
            let y = layer.apply(x.reshape([lines * width, channels]));
            let [_, channels] = y.dims();
            y.reshape([batch, height, width, channels])
        }
        groups => {
            let y = layer.apply(x.reshape([groups, lines / groups * width, channels]));
            let [_, _, channels] = y.dims();
            y.reshape([batch, height, width, channels])
        }
    }
}

/// Groups of whole lines of pixels: as many equal ones as leave each at least [`LEAST_PIXELS`] pixels, and as many as there are
/// channels, so that the groups' gradients of a weight take no more memory than the wider of its layer's two maps.
fn groups(lines: usize, width: usize, channels: usize) -> usize {
    let most = lines * width / LEAST_PIXELS.max(channels);
    (1..=most.min(lines)).rev().find(|groups| lines.is_multiple_of(*groups)).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::groups;

    #[test]
    fn groups_are_equal_and_not_small() {
        // Stages of WTConvNeXt-T at a batch of 64.
        let stages = [(56, 96), (28, 192), (14, 384), (7, 768)];
        assert_eq!(stages.map(|(side, channels)| groups(64 * side, side, channels)), [128, 32, 8, 2]);
        for lines in 0..200 {
            for width in [1, 7, 53, 400] {
                for channels in [3, 2000] {
                    let groups = groups(lines, width, channels);
                    assert!(groups == 1 || lines % groups == 0, "{lines} x {width}");
                    assert!(groups == 1 || lines / groups * width >= channels.max(1024), "{lines} x {width}");
                }
            }
        }
        // One image of 53 lines has no equal groups but the lines themselves.
        assert_eq!(groups(53, 53, 96), 1);
        assert_eq!(groups(53, 1100, 96), 53);
        assert_eq!(groups(0, 7, 768), 1);
    }

    #[cfg(feature = "flex")]
    #[test]
    fn groups_do_not_change_a_layer_or_its_gradient() {
        use super::{PixelLayer, per_pixel};
        use burn::backend::{Autodiff, Flex};
        use burn::tensor::module::linear;
        use burn::tensor::{Tensor, TensorData};

        type B = Autodiff<Flex>;
        struct Matrix(Tensor<B, 2>);
        impl PixelLayer<B> for Matrix {
            fn apply<const D: usize>(&self, x: Tensor<B, D>) -> Tensor<B, D> {
                assert_eq!(x.dims()[..], [2, 27 * 45, 3], "two groups");
                linear(x, self.0.clone(), None)
            }
        }

        let [batch, height, width, channels, outputs] = [2, 27, 45, 3, 4];
        let pixels = batch * height * width;
        assert_eq!(groups(batch * height, width, channels), 2);
        let integers =
            |count, step| (0..count).map(|i: usize| (i * step % 11) as f32 - 5.0).collect::<Vec<_>>();
        let (x, weight, dy) =
            (integers(pixels * channels, 7), integers(channels * outputs, 5), integers(pixels * outputs, 3));
        let (mut y, mut dx, mut dw) = (vec![0.0; dy.len()], vec![0.0; x.len()], vec![0.0; weight.len()]);
        for pixel in 0..pixels {
            for channel in 0..channels {
                for output in 0..outputs {
                    let (from, to, tap) =
                        (pixel * channels + channel, pixel * outputs + output, channel * outputs + output);
                    y[to] += x[from] * weight[tap];
                    dx[from] += dy[to] * weight[tap];
                    dw[tap] += x[from] * dy[to];
                }
            }
        }

        let device = Default::default();
        let x = Tensor::<B, 4>::from_data(TensorData::new(x, [batch, height, width, channels]), &device)
            .require_grad();
        let weight =
            Tensor::<B, 2>::from_data(TensorData::new(weight, [channels, outputs]), &device).require_grad();
        let got = per_pixel(&Matrix(weight.clone()), x.clone());
        let dy = Tensor::from_data(TensorData::new(dy, [batch, height, width, outputs]), &device);
        let gradients = (got.clone() * dy).sum().backward();
        let values = |data: TensorData| data.to_vec::<f32>().unwrap();
        assert_eq!(values(got.into_data()), y);
        assert_eq!(values(x.grad(&gradients).unwrap().into_data()), dx);
        assert_eq!(values(weight.grad(&gradients).unwrap().into_data()), dw);
    }
}
