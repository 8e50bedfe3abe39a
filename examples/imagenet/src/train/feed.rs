//! Batches on their way to the devices: cut into a part for each, stacked, and copied, ahead of the model.
//!
//! A batch of 64 images of 224 pixels is 38 MB, written three times before a device has it. While the thread that trains did that,
//! WTConvNeXt-T trained on an H200 with 432 images a second in f32, with 693 when one other thread did it, and with 984, which is all
//! the model can, when one cut and stacked and another copied (three runs, on different machines of that kind). So there is one thread
//! that cuts and stacks, and one for each device that copies, while the devices work on the batch before.
//!
//! ```text
//! loader --> feed: cut, stack --+--> feed-0: copy --+--> trainer
//!                               +--> feed-1: copy --+
//! ```

use burn::tensor::backend::Backend;
use rayon::prelude::*;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread;
use std::time::Duration;

#[cfg(test)]
use super::parallel::fault;
use super::parallel::{DeviceError, PATIENCE, panic_message};
use crate::data::batch::{ImageBatch, ImageBatcher, Sample, StackedBatch};
use crate::data::decode::DecodeError;
use crate::data::loader::{HostBatch, LoaderError};
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
    heads: Receiver<Result<Head, LoaderError>>,
    /// For each device, its index and its part of each batch.
    parts: Vec<(usize, Receiver<Copied<B>>)>,
    patience: Duration,
}

/// A part of a batch on its device, if the device has one.
type Copied<B> = Result<Option<ImageBatch<B>>, DeviceError>;

/// What belongs to all parts of a batch.
#[derive(Debug)]
struct Head {
    images: usize,
    lambda: Option<f64>,
    failures: Vec<DecodeError>,
}

impl<B: Backend> Feed<B> {
    /// Hands `batches` to the `devices`, which come with their indices as in `--devices`. A device has one batch besides the one that
    /// the model works on.
    ///
    /// Dropping the feed early leaves the batches that have not been begun.
    ///
    /// # Errors
    ///
    /// [`LoaderError::Feed`] if there can be no thread.
    pub fn start(
        batches: impl Iterator<Item = Result<HostBatch, LoaderError>> + Send + 'static,
        devices: &[(usize, B::Device)],
        batcher: ImageBatcher,
    ) -> Result<Self, LoaderError> {
        let (mut stacks, mut parts) = (Vec::new(), Vec::new());
        for (rank, (index, device)) in devices.iter().enumerate() {
            let (stack, stacked) = sync_channel(1);
            let (part, received) = sync_channel(0);
            let (index, device) = (*index, device.clone());
            // A channel that is closed is that of a run that stops early, or of a device that has failed.
            spawn(format!("feed-{index}"), move || {
                for stacked in stacked {
                    let copied = copy::<B>(stacked, rank, index, &device);
                    let failed = copied.is_err();
                    if part.send(copied).is_err() || failed {
                        return;
                    }
                }
            })?;
            stacks.push(stack);
            parts.push((index, received));
        }
        let (head, heads) = sync_channel(1);
        spawn("feed".to_string(), move || {
            for batch in batches {
                let HostBatch { samples, lambda, failures } = match batch {
                    Ok(batch) => batch,
                    Err(error) => {
                        let _ = head.send(Err(error));
                        return;
                    }
                };
                let images = samples.len();
                let cut = if lambda.is_some() { split_pairs } else { split };
                let stacked: Vec<_> = cut(samples, stacks.len())
                    .into_par_iter()
                    .map(|samples| (!samples.is_empty()).then(|| batcher.stack(&samples)))
                    .collect();
                if head.send(Ok(Head { images, lambda, failures })).is_err() {
                    return;
                }
                for (stack, stacked) in stacks.iter().zip(stacked) {
                    if stack.send(stacked).is_err() {
                        return;
                    }
                }
            }
        })?;
        Ok(Self { heads, parts, patience: PATIENCE })
    }
}

impl<B: Backend> Iterator for Feed<B> {
    type Item = Result<DeviceBatch<B>, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        let Head { images, lambda, failures } = match self.heads.recv().ok()? {
            Ok(head) => head,
            Err(error) => return Some(Err(error.into())),
        };
        let mut parts = Vec::with_capacity(self.parts.len());
        for (rank, (device, part)) in self.parts.iter().enumerate() {
            // Nobody watches the first device, which computes in the trainer's thread.
            let received = match rank {
                0 => part.recv().map_err(RecvTimeoutError::from),
                _ => part.recv_timeout(self.patience),
            };
            let part = match received {
                Ok(part) => part,
                Err(RecvTimeoutError::Timeout) => {
                    Err(DeviceError::Silent { device: *device, waited: self.patience })
                }
                Err(RecvTimeoutError::Disconnected) => return None,
            };
            match part {
                Ok(part) => parts.push(part),
                Err(error) => return Some(Err(error.into())),
            }
        }
        Some(Ok(DeviceBatch { parts, images, lambda, failures }))
    }
}

fn spawn(name: String, work: impl FnOnce() + Send + 'static) -> Result<(), LoaderError> {
    thread::Builder::new().name(name).spawn(work).map(drop).map_err(LoaderError::Feed)
}

/// Copies a part to the device with that index. One that has no room for it says so by a panic.
#[cfg_attr(not(test), allow(unused_variables, reason = "faults of a rank are planned by tests"))]
fn copy<B: Backend>(
    stacked: Option<StackedBatch>,
    rank: usize,
    index: usize,
    device: &B::Device,
) -> Copied<B> {
    let copied = catch_unwind(AssertUnwindSafe(|| {
        #[cfg(test)]
        fault::strike(rank, fault::Place::Feed);
        stacked.map(|stacked| stacked.to_device(device))
    }));
    copied.map_err(|panic| DeviceError::Failed { device: index, reason: panic_message(&*panic) })
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
    batcher: ImageBatcher,
) -> Vec<Option<ImageBatch<B>>> {
    let batch = HostBatch { samples, ..HostBatch::default() };
    let mut feed = Feed::start(std::iter::once(Ok(batch)), devices, batcher).unwrap();
    feed.next().expect("a batch").unwrap().parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TestBackend;
    use crate::train::parallel::{fault::Kind, one_group};

    const BATCHER: ImageBatcher = ImageBatcher { input_size: 1 };

    fn samples(count: usize) -> Vec<Sample> {
        (0..count).map(|label| Sample { pixels: vec![label as f32; 3], label }).collect()
    }

    fn batch(count: usize) -> Result<HostBatch, LoaderError> {
        Ok(HostBatch { samples: samples(count), ..HostBatch::default() })
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
    fn every_device_has_the_images_of_its_part_of_every_batch() {
        // No fault of another test may strike here.
        let _one_group = one_group();
        let device = Default::default();
        let devices = [(0, device), (1, device), (2, device)];
        let mixed = HostBatch { samples: samples(5), lambda: Some(0.5), ..HostBatch::default() };
        let batches = vec![batch(5), Ok(mixed), batch(1), batch(0)];
        let mut feed = Feed::<TestBackend>::start(batches.into_iter(), &devices, BATCHER).unwrap();
        let expected: [(_, [&[i64]; 3]); 4] = [
            (None, [&[0, 1], &[2, 3], &[4]]),
            (Some(0.5), [&[0, 4], &[1, 3], &[2]]),
            (None, [&[0], &[], &[]]),
            (None, [&[]; 3]),
        ];
        for (lambda, expected) in expected {
            let batch = feed.next().unwrap().unwrap();
            assert_eq!((batch.images, batch.lambda), (expected.concat().len(), lambda));
            assert_eq!(batch.parts.len(), 3);
            for (part, expected) in batch.parts.into_iter().zip(expected) {
                let (labels, pixels) = part.map_or((vec![], vec![]), |ImageBatch { images, labels }| {
                    (labels.into_data().iter::<i64>().collect(), images.into_data().iter::<f32>().collect())
                });
                assert_eq!(labels, expected);
                assert_eq!(pixels, expected.iter().flat_map(|&label| [label as f32; 3]).collect::<Vec<_>>());
            }
        }
        assert!(feed.next().is_none());
    }

    #[test]
    fn what_stops_the_loader_is_handed_on() {
        let batches = vec![batch(2), Err(LoaderError::Stopped { remaining: 3 })];
        let mut feed =
            Feed::<TestBackend>::start(batches.into_iter(), &[(0, Default::default())], BATCHER).unwrap();
        assert_eq!(feed.next().unwrap().unwrap().images, 2);
        let error = feed.next().unwrap().unwrap_err();
        assert!(matches!(error, Error::Loader(LoaderError::Stopped { remaining: 3 })), "{error}");
        assert!(feed.next().is_none());
    }

    #[test]
    fn a_device_that_cannot_take_its_part_is_named() {
        let _one_group = one_group();
        let device = Default::default();
        let devices = [(4, device), (7, device), (5, device)];
        // At its second batch.
        let _fault = fault::plan(Kind::Death, 1, fault::Place::Feed, 1);
        let batches = vec![batch(3), batch(3), batch(3)];
        let mut feed = Feed::<TestBackend>::start(batches.into_iter(), &devices, BATCHER).unwrap();
        assert_eq!(feed.next().unwrap().unwrap().images, 3);
        let error = feed.next().unwrap().unwrap_err();
        assert!(matches!(error, Error::Device(DeviceError::Failed { device: 7, .. })), "{error}");
        assert!(error.to_string().contains("device 7 failed: struck at Feed;"), "{error}");
    }

    #[test]
    fn a_device_that_never_has_its_part_is_named() {
        let _one_group = one_group();
        let device = Default::default();
        let devices = [(4, device), (7, device), (5, device)];
        let _fault = fault::plan(Kind::Silence, 1, fault::Place::Feed, 0);
        let mut feed = Feed::<TestBackend>::start([batch(3)].into_iter(), &devices, BATCHER).unwrap();
        feed.patience = Duration::from_millis(200);
        let error = feed.next().unwrap().unwrap_err();
        assert!(matches!(error, Error::Device(DeviceError::Silent { device: 7, .. })), "{error}");
    }

    #[test]
    fn a_feed_that_is_dropped_asks_for_no_more() {
        let (asked, count) = std::sync::mpsc::channel();
        let batches = (0..1000).map(move |number| {
            let _ = asked.send(number);
            batch(1)
        });
        let mut feed = Feed::<TestBackend>::start(batches, &[(0, Default::default())], BATCHER).unwrap();
        feed.next().unwrap().unwrap();
        drop(feed);
        // Ends when the thread has ended and with it the iterator.
        assert!(count.iter().count() < 20);
    }
}
