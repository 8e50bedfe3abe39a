//! Batches on their way to the devices: cut into one part for each, stacked and copied by a thread of its own.
//!
//! A batch of 64 images of 224 pixels is 38 MB, which are written three times before the device has them. The thread does that for
//! the next batch while the model works on one, so that the device does not wait for it.

use burn::data::dataloader::batcher::Batcher;
use burn::tensor::backend::Backend;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;

use super::parallel::{DeviceError, panic_message};
use crate::data::batch::{ImageBatch, ImageBatcher, Sample};
use crate::data::decode::DecodeError;
use crate::data::loader::{Batches, HostBatch, LoaderError};
use crate::error::Error;

/// A batch on its devices.
#[derive(Debug)]
pub struct DeviceBatch<B: Backend> {
    /// A part for each device, in their order; `None` for a device that has no image of it.
    pub parts: Vec<Option<ImageBatch<B>>>,
    /// Images of all parts.
    pub images: usize,
    /// Where the images were mixed: the share that each kept of itself.
    pub lambda: Option<f64>,
    /// The images that could not be read.
    pub failures: Vec<DecodeError>,
}

/// Batches in order, each on the devices before it is asked for.
#[derive(Debug)]
pub struct Feed<B: Backend> {
    batches: Receiver<Result<DeviceBatch<B>, Error>>,
}

impl<B: Backend> Feed<B> {
    /// Hands `batches` to the `devices`, which come with their indices as in `--devices`. One batch is ready or under way at a
    /// time, besides the one that the model works on.
    ///
    /// # Errors
    ///
    /// [`LoaderError::Feed`] if there can be no thread.
    pub fn start(
        batches: Batches,
        devices: &[(usize, B::Device)],
        batcher: ImageBatcher,
    ) -> Result<Self, LoaderError> {
        let (sender, receiver) = sync_channel(0);
        let devices = devices.to_vec();
        let feed = move || {
            for batch in batches {
                let batch =
                    batch.map_err(Error::from).and_then(|batch| Ok(hand_out(batch, &devices, &batcher)?));
                // The receiver is gone when the run stops early.
                if sender.send(batch).is_err() {
                    return;
                }
            }
        };
        thread::Builder::new().name("feed".to_string()).spawn(feed).map_err(LoaderError::Feed)?;
        Ok(Self { batches: receiver })
    }
}

impl<B: Backend> Iterator for Feed<B> {
    type Item = Result<DeviceBatch<B>, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        self.batches.recv().ok()
    }
}

/// Cuts a batch and copies each part to its device.
fn hand_out<B: Backend>(
    batch: HostBatch,
    devices: &[(usize, B::Device)],
    batcher: &ImageBatcher,
) -> Result<DeviceBatch<B>, DeviceError> {
    let HostBatch { samples, lambda, failures } = batch;
    let images = samples.len();
    let cut = if lambda.is_some() { split_pairs } else { split };
    let part = |(samples, (index, device)): (Vec<Sample>, &(usize, B::Device))| {
        if samples.is_empty() {
            return Ok(None);
        }
        // A device without room for the batch says so by a panic.
        catch_unwind(AssertUnwindSafe(|| Some(batcher.batch(samples, device))))
            .map_err(|panic| DeviceError::Failed { device: *index, reason: panic_message(&*panic) })
    };
    let parts = cut(samples, devices.len()).into_iter().zip(devices).map(part).collect::<Result<_, _>>()?;
    Ok(DeviceBatch { parts, images, lambda, failures })
}

/// Cuts `samples` into `parts` contiguous parts, of which the first ones are larger by one if need be.
fn split(mut samples: Vec<Sample>, parts: usize) -> Vec<Vec<Sample>> {
    let (size, larger) = (samples.len() / parts, samples.len() % parts);
    (0..parts)
        .map(|part| {
            let rest = samples.split_off(size + usize::from(part < larger));
            std::mem::replace(&mut samples, rest)
        })
        .collect()
}

/// Cuts the samples of a mixed batch so that each stays with its counterpart, which is as far from the other end, in its part as in
/// the batch. The last part has the middle one of an odd number.
fn split_pairs(mut samples: Vec<Sample>, parts: usize) -> Vec<Vec<Sample>> {
    let (size, larger) = (samples.len() / 2 / parts, samples.len() / 2 % parts);
    (0..parts)
        .map(|part| {
            if part + 1 == parts {
                return std::mem::take(&mut samples);
            }
            let pairs = size + usize::from(part < larger);
            let mut ends = samples.split_off(samples.len() - pairs);
            let rest = samples.split_off(pairs);
            let mut part = std::mem::replace(&mut samples, rest);
            part.append(&mut ends);
            part
        })
        .collect()
}

/// The parts of a batch that was not mixed, for tests of what is done with them.
#[cfg(test)]
pub(super) fn parts<B: Backend>(
    samples: Vec<Sample>,
    devices: &[(usize, B::Device)],
    batcher: &ImageBatcher,
) -> Vec<Option<ImageBatch<B>>> {
    let batch = HostBatch { samples, ..HostBatch::default() };
    hand_out(batch, devices, batcher).unwrap().parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TestBackend;

    fn samples(count: usize) -> Vec<Sample> {
        (0..count).map(|label| Sample { pixels: vec![label as f32; 3], label }).collect()
    }

    #[test]
    fn parts_by_hand() {
        let sizes = |count, parts| split(samples(count), parts).iter().map(Vec::len).collect::<Vec<_>>();
        assert_eq!(sizes(8, 2), [4, 4]);
        assert_eq!(sizes(8, 3), [3, 3, 2]);
        assert_eq!(sizes(1, 3), [1, 0, 0]);
        assert_eq!(sizes(0, 2), [0, 0]);
        assert_eq!(split(samples(5), 2).concat(), samples(5));
    }

    #[test]
    fn a_mixed_image_stays_with_its_counterpart() {
        for count in 0..12 {
            for parts in 1..=4 {
                let cut = split_pairs(samples(count), parts);
                assert_eq!(cut.len(), parts);
                let mut seen = Vec::new();
                for part in cut {
                    let labels: Vec<_> = part.iter().map(|sample| sample.label).collect();
                    for (label, counterpart) in labels.iter().zip(labels.iter().rev()) {
                        assert_eq!(label + counterpart, count - 1, "{count} in {parts}: {labels:?}");
                    }
                    seen.extend(labels);
                }
                seen.sort_unstable();
                assert_eq!(seen, (0..count).collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn every_device_has_the_images_of_its_part() {
        let device = Default::default();
        let devices = [(0, device), (1, device), (2, device)];
        for (lambda, expected) in
            [(None, [vec![0, 1], vec![2, 3], vec![4]]), (Some(0.5), [vec![0, 4], vec![1, 3], vec![2]])]
        {
            let batch = HostBatch { samples: samples(5), lambda, ..HostBatch::default() };
            let batch = hand_out::<TestBackend>(batch, &devices, &ImageBatcher { input_size: 1 }).unwrap();
            assert_eq!((batch.images, batch.lambda), (5, lambda));
            for (part, expected) in batch.parts.into_iter().zip(expected) {
                let ImageBatch { images, labels } = part.unwrap();
                assert_eq!(labels.into_data().iter::<i64>().collect::<Vec<_>>(), expected);
                let pixels: Vec<_> = expected.into_iter().flat_map(|label: i64| [label as f32; 3]).collect();
                assert_eq!(images.into_data().to_vec::<f32>().unwrap(), pixels);
            }
        }
    }

    #[test]
    fn a_device_that_cannot_take_its_part_is_named() {
        let device = Default::default();
        let mut samples = samples(3);
        // Of an image without pixels no tensor can be made.
        samples[1].pixels.clear();
        let batch = HostBatch { samples, ..HostBatch::default() };
        let devices = [(4, device), (7, device), (5, device)];
        let error = hand_out::<TestBackend>(batch, &devices, &ImageBatcher { input_size: 1 }).unwrap_err();
        assert!(matches!(error, DeviceError::Failed { device: 7, .. }), "{error}");
        assert!(error.to_string().starts_with("device 7 failed: "), "{error}");
    }
}
