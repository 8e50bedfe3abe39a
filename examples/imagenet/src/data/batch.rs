//! Samples to tensors, through Burn's [`Batcher`].

use burn::data::dataloader::batcher::Batcher;
use burn::tensor::backend::Backend;
use burn::tensor::{Int, Tensor, TensorData};

/// One decoded, augmented and normalised image.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// `[3, input_size, input_size]`, flat.
    pub pixels: Vec<f32>,
    /// Index of its class.
    pub label: usize,
}

/// A batch on the device.
#[derive(Clone, Debug)]
pub struct ImageBatch<B: Backend> {
    /// `[batch, 3, input_size, input_size]`, normalised.
    pub images: Tensor<B, 4>,
    /// `[batch]`, indices of classes.
    pub labels: Tensor<B, 1, Int>,
}

/// Stacks samples.
#[derive(Clone, Debug)]
pub struct ImageBatcher {
    /// Side of the images in pixels.
    pub input_size: usize,
}

impl<B: Backend> Batcher<B, Sample, ImageBatch<B>> for ImageBatcher {
    fn batch(&self, items: Vec<Sample>, device: &B::Device) -> ImageBatch<B> {
        let batch = items.len();
        let labels: Vec<i64> = items.iter().map(|sample| sample.label as i64).collect();
        let mut pixels = Vec::with_capacity(batch * 3 * self.input_size * self.input_size);
        for sample in &items {
            pixels.extend_from_slice(&sample.pixels);
        }
        let images = TensorData::new(pixels, [batch, 3, self.input_size, self.input_size]);
        ImageBatch {
            images: Tensor::from_data(images, device),
            labels: Tensor::from_data(TensorData::new(labels, [batch]), device),
        }
    }
}
