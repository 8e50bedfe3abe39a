//! Layers of the channels of a pixel, as matrix products over the pixels of a batch.
//!
//! A linear layer of a map is one product of all its pixels with the weight. The gradient of the weight is then a sum over all
//! pixels, `x^T dy`: a product with a small result and a very long inner axis, for which the fastest kernel of Burn 0.21 takes 3.4 ms
//! in the first stage of WTConvNeXt-T on an H200, twelve times the forward's product of as many multiplications. Cut into groups of
//! pixels, it is a batch of products and a sum. Measured on an H200 for the two linear layers of a block of WTConvNeXt-T with a GELU
//! between them, at a batch of 64, forward and all gradients in f32, one group against 32, 16, 8 and 2: 13.2 against 3.3 ms in the
//! first stage, 4.4 against 2.2, 2.1 against 1.7, 1.8 against 1.6. The forward takes as long either way. (With the 196 groups of
//! [`groups`] the first stage took 2.5 ms, by another program and without biases; in the last stage the group is one.)
//!
//! The inner axis of that gradient must not be an odd multiple of 32: for such products, some of the kernels that Burn 0.21 chooses
//! among on CUDA take 32 terms too many, of the next product's or of whatever lies behind ([cubek#434]). On an H200 the gradient of the
//! stem's weight was seen to be NaN in places, and wrong, where groups had 1568 pixels; with the groups of [`groups`], all gradients of
//! WTConvNeXt-T were finite and the same bits twice in four updates, in f32 and bf16.
//!
//! [cubek#434]: https://github.com/tracel-ai/cubek/issues/434

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
    let pixels = batch * height * width;
    match groups(pixels, channels) {
        // A plain matrix, not a batch of one: of an empty batch, Burn takes a 0 in a shape on the first axis only.
        1 => {
            let y = layer.apply(x.reshape([pixels, channels]));
            let [_, channels] = y.dims();
            y.reshape([batch, height, width, channels])
        }
        groups => {
            let y = layer.apply(x.reshape([groups, pixels / groups, channels]));
            let [_, _, channels] = y.dims();
            y.reshape([batch, height, width, channels])
        }
    }
}

/// Groups of pixels: as many equal ones as leave each at least [`LEAST_PIXELS`] pixels, and as many as there are channels, so that
/// the groups' gradients of a weight take no more memory than the wider of its layer's two maps; none of an odd multiple of 32.
fn groups(pixels: usize, channels: usize) -> usize {
    let equal = |groups: &usize| pixels.is_multiple_of(*groups) && (pixels / groups) % 64 != 32;
    let most = pixels / LEAST_PIXELS.max(channels);
    // Half an odd multiple of 32 is none.
    (1..=most).rev().find(equal).or_else(|| (1..=2).find(equal)).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::groups;

    #[test]
    fn groups_are_equal_and_not_small() {
        // Stages of WTConvNeXt-T at a batch of 64.
        let stages = [(56, 96), (28, 192), (14, 384), (7, 768)];
        assert_eq!(stages.map(|(side, channels)| groups(64 * side * side, channels)), [196, 49, 7, 1]);
        for channels in [3, 2000] {
            for pixels in (0..3000).chain((1..200).map(|side| 31 * side * side)) {
                let groups = groups(pixels, channels);
                assert_eq!(pixels % groups, 0, "{pixels}");
                assert_ne!(pixels / groups % 64, 32, "{pixels}");
                assert!(groups <= 2 || pixels / groups >= channels.max(1024), "{pixels}");
            }
        }
        // A prime number of pixels has no equal groups but the pixels themselves.
        assert_eq!(groups(10_007, 96), 1);
        // Two, to be no odd multiple of 32.
        assert_eq!([groups(32, 768), groups(1568, 768), groups(96, 3)], [2; 3]);
        assert_eq!([groups(0, 7), groups(64, 768), groups(33, 3)], [1; 3]);
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
        assert_eq!(groups(pixels, channels), 2);
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
