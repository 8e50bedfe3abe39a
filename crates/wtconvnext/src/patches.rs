//! Convolutions whose stride is their kernel size, as products of patches with the filters.
//!
//! Such windows do not overlap: the convolution is a linear layer of each patch,
//!
//! ```text
//! y[i, j, o] = bias[o] + sum over c, u, v of weight[o, c, u, v] * x[c, K i + u, K j + v]
//! ```
//!
//! On GPUs, Burn 0.21 differentiates a `conv2d` by its weight with a convolution that has the output's gradient, dilated, as a
//! kernel: 28x28 taps for the first downsampling of WTConvNeXt-T. A choice among kernels for that is the last that was seen of a
//! training run on an H200 which ended no step in 150 s.

use burn::nn::conv::Conv2d;
use burn::tensor::Tensor;
use burn::tensor::backend::Backend;
use burn::tensor::module::linear;

use crate::pixels::{PixelLayer, per_pixel};

/// Applies `conv`, whose stride is its kernel size, to images. Rows and columns beyond the last whole patch are dropped.
///
/// # Shapes
///
/// - x: `[batch, channels, height, width]`
/// - output: `[batch, height / K, width / K, channels_out]`
pub(crate) fn conv_image<B: Backend>(conv: &Conv2d<B>, x: Tensor<B, 4>) -> Tensor<B, 4> {
    let [side, _] = conv.kernel_size;
    let [batch, channels, height, width] = x.dims();
    let [rows, columns] = [height / side, width / side];
    let patches = x
        .slice([0..batch, 0..channels, 0..rows * side, 0..columns * side])
        .reshape([batch, channels, rows, side, columns, side])
        .permute([0, 2, 4, 1, 3, 5])
        .reshape([batch, rows, columns, channels * side * side]);
    filter(conv, patches, conv.weight.val())
}

/// As [`conv_image`], of maps.
///
/// # Shapes
///
/// - x: `[batch, height, width, channels]`
/// - output: `[batch, height / K, width / K, channels_out]`
pub(crate) fn conv_map<B: Backend>(conv: &Conv2d<B>, x: Tensor<B, 4>) -> Tensor<B, 4> {
    let [side, _] = conv.kernel_size;
    let [batch, height, width, channels] = x.dims();
    let [rows, columns] = [height / side, width / side];
    let patches = x
        .slice([0..batch, 0..rows * side, 0..columns * side, 0..channels])
        .reshape([batch, rows, side, columns, side, channels])
        .permute([0, 1, 3, 2, 4, 5])
        .reshape([batch, rows, columns, side * side * channels]);
    // The taps in the order of the patches: reordering the filters moves less than reordering the patches.
    filter(conv, patches, conv.weight.val().permute([0, 2, 3, 1]))
}

/// The product of patches with filters whose last three axes are in the patches' order.
fn filter<B: Backend>(conv: &Conv2d<B>, patches: Tensor<B, 4>, filters: Tensor<B, 4>) -> Tensor<B, 4> {
    let [_, _, _, taps] = patches.dims();
    let [channels_out, _, _, _] = filters.dims();
    let filters = Filters {
        weight: filters.reshape([channels_out, taps]).transpose(),
        bias: conv.bias.as_ref().map(|bias| bias.val()),
    };
    per_pixel(&filters, patches)
}

/// The filters of a convolution as a linear layer of patches.
struct Filters<B: Backend> {
    /// `[taps, channels_out]`.
    weight: Tensor<B, 2>,
    /// `[channels_out]`.
    bias: Option<Tensor<B, 1>>,
}

impl<B: Backend> PixelLayer<B> for Filters<B> {
    fn apply<const D: usize>(&self, x: Tensor<B, D>) -> Tensor<B, D> {
        linear(x, self.weight.clone(), self.bias.clone())
    }
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use super::{conv_image, conv_map};
    use burn::backend::{Autodiff, Flex};
    use burn::module::Param;
    use burn::nn::conv::{Conv2d, Conv2dConfig};
    use burn::tensor::{Tensor, TensorData};

    type B = Autodiff<Flex>;

    /// Small integers in no regular order, whose sums of products are exact in `f32`.
    fn integers(count: usize, seed: usize) -> Vec<f32> {
        (0..count).map(|i| ((i * 7919 + seed * 104_729 + i * i % 83) % 7) as f32 - 3.0).collect()
    }

    fn tensor<const D: usize>(values: &[f32], shape: [usize; D]) -> Tensor<B, D> {
        Tensor::from_data(TensorData::new(values.to_vec(), shape), &Default::default())
    }

    fn values<const D: usize>(tensor: Tensor<Flex, D>) -> Vec<f32> {
        tensor.into_data().to_vec().unwrap()
    }

    /// The equation of the module and its derivatives, tap by tap, on a map of `side * 3 + 1` rows and `side * 3 - 1` columns.
    fn check(side: usize, convolve: fn(&Conv2d<B>, Tensor<B, 4>) -> Tensor<B, 4>) {
        let [batch, channels, height, width] = [3, 2, side * 3 + 1, side * 3 - 1];
        let [outputs, rows, columns] = [5, 3, 2];
        let x = integers(batch * channels * height * width, 1);
        let weight = integers(outputs * channels * side * side, 2);
        let bias = integers(outputs, 3);
        let dy = integers(batch * outputs * rows * columns, 4);

        let mut y = vec![0.0; dy.len()];
        let (mut dx, mut dw, mut db) = (vec![0.0; x.len()], vec![0.0; weight.len()], vec![0.0; outputs]);
        for b in 0..batch {
            for o in 0..outputs {
                for i in 0..rows {
                    for j in 0..columns {
                        let out = ((b * outputs + o) * rows + i) * columns + j;
                        y[out] += bias[o];
                        db[o] += dy[out];
                        for c in 0..channels {
                            for u in 0..side {
                                for v in 0..side {
                                    let from =
                                        ((b * channels + c) * height + side * i + u) * width + side * j + v;
                                    let tap = ((o * channels + c) * side + u) * side + v;
                                    y[out] += weight[tap] * x[from];
                                    dx[from] += weight[tap] * dy[out];
                                    dw[tap] += x[from] * dy[out];
                                }
                            }
                        }
                    }
                }
            }
        }

        let mut conv = Conv2dConfig::new([channels, outputs], [side, side])
            .with_stride([side, side])
            .init::<B>(&Default::default());
        let weight = tensor(&weight, [outputs, channels, side, side]).require_grad();
        let bias = tensor(&bias, [outputs]).require_grad();
        conv.weight = Param::from_tensor(weight.clone());
        conv.bias = Some(Param::from_tensor(bias.clone()));
        let x = tensor(&x, [batch, channels, height, width]).require_grad();
        let got = convolve(&conv, x.clone()).permute([0, 3, 1, 2]);
        assert_eq!(got.dims(), [batch, outputs, rows, columns]);
        let gradients = (got.clone() * tensor(&dy, got.dims())).sum().backward();
        assert_eq!(values(got.inner()), y, "output");
        assert_eq!(values(x.grad(&gradients).unwrap()), dx, "gradient of the input");
        assert_eq!(values(conv.weight.val().grad(&gradients).unwrap()), dw, "gradient of the weight");
        let db_got = conv.bias.unwrap().val().grad(&gradients).unwrap();
        assert_eq!(values(db_got), db, "gradient of the bias");
    }

    #[test]
    fn patches_of_an_image_are_a_convolution() {
        check(4, conv_image);
        check(2, conv_image);
    }

    #[test]
    fn patches_of_a_map_are_a_convolution() {
        let conv_map = |conv: &Conv2d<B>, x: Tensor<B, 4>| conv_map(conv, x.permute([0, 2, 3, 1]));
        check(2, conv_map);
        check(3, conv_map);
    }
}
