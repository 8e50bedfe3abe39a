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

/// A batch in host memory, in the order of a tensor.
#[derive(Clone, Debug)]
pub struct StackedBatch {
    images: TensorData,
    labels: TensorData,
}

impl StackedBatch {
    /// Copies the batch to a device.
    pub fn to_device<B: Backend>(self, device: &B::Device) -> ImageBatch<B> {
        ImageBatch {
            images: Tensor::from_data(self.images, device),
            labels: Tensor::from_data(self.labels, device),
        }
    }
}

/// Stacks samples.
#[derive(Clone, Copy, Debug)]
pub struct ImageBatcher {
    /// Side of the images in pixels.
    pub input_size: usize,
}

impl ImageBatcher {
    /// Stacks samples in host memory.
    ///
    /// # Panics
    ///
    /// If a sample is not of the batcher's size.
    pub fn stack(&self, items: &[Sample]) -> StackedBatch {
        let batch = items.len();
        let labels: Vec<i64> = items.iter().map(|sample| sample.label as i64).collect();
        let mut pixels = Vec::with_capacity(batch * 3 * self.input_size * self.input_size);
        for sample in items {
            pixels.extend_from_slice(&sample.pixels);
        }
        StackedBatch {
            images: TensorData::new(pixels, [batch, 3, self.input_size, self.input_size]),
            labels: TensorData::new(labels, [batch]),
        }
    }
}

impl<B: Backend> Batcher<B, Sample, ImageBatch<B>> for ImageBatcher {
    fn batch(&self, items: Vec<Sample>, device: &B::Device) -> ImageBatch<B> {
        self.stack(&items).to_device(device)
    }
}
