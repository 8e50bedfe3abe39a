//! Worker threads that decode and augment ahead of the model, in a fixed order.
//!
//! Burn's `MultiThreadDataLoader` hands out batches as its threads finish them and draws its order from a generator whose
//! state cannot be stored. A run could then neither be repeated nor resumed exactly, so this loader takes its place; data
//! set and batcher are Burn's.

use super::augment::Transform;
use super::augment::mix::Mix;
use super::batch::Sample;
use super::decode::{DecodeError, decode_rgb};
use super::folder::{ImageFile, ImageFolder};
use super::plan::PlannedBatch;
use super::{Stream, stream};
use crate::config::TrainConfig;
use crate::count::count;
use burn::data::dataset::Dataset;
use fast_image_resize::Resizer;
use rayon::prelude::*;
use rayon::{ThreadPool, ThreadPoolBuildError, ThreadPoolBuilder};
use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};

/// Batches that are made, or wait for the model, while it works on the one before them. Workers that find nothing left to do in
/// one begin the next.
const AHEAD: usize = 4;

/// Why batches cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum LoaderError {
    /// The worker threads cannot be started.
    #[error("cannot start {}: {source}", count(*.workers, "worker thread", "worker threads"))]
    Threads {
        /// How many were asked for.
        workers: usize,
        /// The cause.
        source: ThreadPoolBuildError,
    },
    /// The thread that hands batches to the devices cannot be started.
    #[error("cannot start the thread that hands batches to the devices: {0}")]
    Feed(#[source] std::io::Error),
    /// A thread that prepares a batch failed.
    #[error("the data loader stopped with {} to go", count(*.remaining, "batch", "batches"))]
    Stopped {
        /// Batches that are missing.
        remaining: usize,
    },
}

/// The threads that decode images, shared by all loaders of a run.
#[derive(Clone, Debug)]
pub struct Workers(Arc<ThreadPool>);

impl Workers {
    /// Number of threads.
    pub fn count(&self) -> usize {
        self.0.current_num_threads()
    }

    /// Starts `workers` threads; 0 means one for each CPU.
    ///
    /// # Errors
    ///
    /// [`LoaderError::Threads`].
    pub fn start(workers: usize) -> Result<Self, LoaderError> {
        let name = |index| format!("decode-{index}");
        // A batch that panics is missed by the model, as `LoaderError::Stopped`. Without a handler, it would end the process.
        let pool = ThreadPoolBuilder::new()
            .num_threads(workers)
            .thread_name(name)
            .panic_handler(|_| log::error!("a worker thread failed"))
            .build();
        pool.map(|pool| Self(Arc::new(pool))).map_err(|source| LoaderError::Threads { workers, source })
    }

    /// Reads files that have no label through a transform that draws nothing, in parallel. Their label is 0.
    pub fn read(&self, paths: &[PathBuf], transform: &Transform) -> Vec<Result<Sample, DecodeError>> {
        let read = |resizer: &mut Resizer, path: &PathBuf| {
            let file = ImageFile { path: path.clone(), label: 0 };
            read_sample(&file, transform, stream(0, Stream::Augment, 0, 0), resizer)
        };
        self.0.install(|| paths.par_iter().map_init(Resizer::new, read).collect())
    }
}

/// A batch in host memory, and the files that should be in it but cannot be read.
#[derive(Debug, Default)]
pub struct HostBatch {
    /// The images that could be read, in order.
    pub samples: Vec<Sample>,
    /// Where they were mixed: the share that each kept of itself. The rest is its counterpart from the other end of the batch.
    pub lambda: Option<f64>,
    /// The images that could not.
    pub failures: Vec<DecodeError>,
}

/// Reads the images of one split through one transform.
#[derive(Clone, Debug)]
pub struct Loader {
    files: Arc<ImageFolder>,
    transform: Transform,
    mix: Option<Mix>,
    seed: u64,
    workers: Workers,
}

impl Loader {
    /// A loader of `files`. `seed` drives the augmentation.
    pub fn new(files: Arc<ImageFolder>, transform: Transform, seed: u64, workers: Workers) -> Self {
        Self { files, transform, mix: None, seed, workers }
    }

    /// A loader of the training images of a run, augmented and mixed as it is configured.
    pub fn for_training(files: Arc<ImageFolder>, config: &TrainConfig, workers: Workers) -> Self {
        Self::new(files, config.augmentation(), config.seed, workers).with_mix(config.mix())
    }

    /// Mixes the images of each batch.
    pub fn with_mix(self, mix: Mix) -> Self {
        Self { mix: Some(mix), ..self }
    }

    /// The images behind the loader.
    pub fn files(&self) -> &ImageFolder {
        &self.files
    }

    /// Side of the images in pixels.
    pub fn input_size(&self) -> usize {
        self.transform.input_size() as usize
    }

    /// Prepares `batches` and returns them one by one, in order.
    ///
    /// Dropping the iterator early leaves those that have not been begun.
    pub fn batches(&self, epoch: usize, batches: Vec<PlannedBatch>) -> Batches {
        let mut batches =
            Batches { loader: self.clone(), epoch, planned: batches.into_iter(), ahead: VecDeque::new() };
        batches.begin();
        batches
    }

    /// Reads the files of a batch, in parallel, and mixes them. To be called by a worker.
    fn load(&self, epoch: usize, planned: &PlannedBatch) -> HostBatch {
        let read = |resizer: &mut Resizer, &position: &usize| {
            let file = self.files.get(position).expect("a plan holds positions of its data set only");
            let rng = stream(self.seed, Stream::Augment, epoch as u64, position as u64);
            read_sample(&file, &self.transform, rng, resizer)
        };
        let results: Vec<_> = planned.images.par_iter().map_init(Resizer::new, read).collect();
        let mut batch = HostBatch::default();
        for result in results {
            match result {
                Ok(sample) => batch.samples.push(sample),
                Err(error) => batch.failures.push(error),
            }
        }
        let rng = &mut stream(self.seed, Stream::Mix, epoch as u64, planned.index as u64);
        if let Some(mixing) = self.mix.and_then(|mix| mix.draw(self.transform.input_size(), rng)) {
            mixing.apply(&mut batch.samples, self.input_size());
            batch.lambda = Some(mixing.lambda());
        }
        batch
    }
}

/// Decodes and augments one image.
fn read_sample(
    file: &ImageFile,
    transform: &Transform,
    mut rng: impl rand::Rng,
    resizer: &mut Resizer,
) -> Result<Sample, DecodeError> {
    let image = decode_rgb(&file.path)?;
    Ok(Sample { pixels: transform.input(&image, &mut rng, resizer), label: file.label })
}

/// Batches in order; see [`Loader::batches`].
#[derive(Debug)]
pub struct Batches {
    loader: Loader,
    epoch: usize,
    planned: std::vec::IntoIter<PlannedBatch>,
    /// Those that were begun, in order.
    ahead: VecDeque<Receiver<HostBatch>>,
}

impl Batches {
    /// Gives the workers what is next.
    fn begin(&mut self) {
        while self.ahead.len() < AHEAD
            && let Some(planned) = self.planned.next()
        {
            let (sender, receiver) = sync_channel(1);
            let (loader, epoch) = (self.loader.clone(), self.epoch);
            self.loader.workers.0.spawn(move || {
                // The receiver is gone when the run stops early.
                let _ = sender.send(loader.load(epoch, &planned));
            });
            self.ahead.push_back(receiver);
        }
    }
}

impl Iterator for Batches {
    type Item = Result<HostBatch, LoaderError>;

    fn next(&mut self) -> Option<Self::Item> {
        let remaining = self.ahead.len() + self.planned.len();
        let received = self.ahead.pop_front()?.recv();
        if received.is_ok() {
            self.begin();
        } else {
            self.planned = Vec::new().into_iter();
            self.ahead.clear();
        }
        Some(received.map_err(|_| LoaderError::Stopped { remaining }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::augment::rand_augment::RandAugment;
    use image::{Rgb, RgbImage};
    use std::path::Path;

    const TRAIN: Transform = Transform::Train {
        input_size: 4,
        crop_scale: [0.3, 1.0],
        crop_ratio: [0.75, 1.33],
        flip: 0.5,
        rand_augment: Some(RandAugment { layers: 2, magnitude: 9.0, std: 0.5, prob: 0.5 }),
        erasing: 0.25,
    };
    const MIX: Mix = Mix { mixup: 0.8, cutmix: 1.0, prob: 1.0, switch_prob: 0.5 };

    fn folder(root: &Path) -> Arc<ImageFolder> {
        for class in ["a", "b"] {
            std::fs::create_dir_all(root.join(class)).unwrap();
            for index in 0..6_u8 {
                let image = RgbImage::from_fn(9, 7, |x, y| Rgb([x as u8 * 20, y as u8 * 30, index * 40]));
                image.save(root.join(class).join(format!("{index}.png"))).unwrap();
            }
        }
        Arc::new(ImageFolder::train(root).unwrap())
    }

    fn planned(batches: &[&[usize]]) -> Vec<PlannedBatch> {
        let batch = |(index, images): (usize, &&[usize])| PlannedBatch { index, images: images.to_vec() };
        batches.iter().enumerate().map(batch).collect()
    }

    fn loaded(loader: &Loader, epoch: usize, batches: Vec<PlannedBatch>) -> Vec<(Vec<Sample>, Option<f64>)> {
        let batches = loader.batches(epoch, batches).map(Result::unwrap);
        batches.map(|batch| (batch.samples, batch.lambda)).collect()
    }

    fn samples(loader: &Loader, epoch: usize) -> Vec<Vec<Sample>> {
        let batches = loaded(loader, epoch, planned(&[&[0, 7, 3], &[11, 2], &[5]]));
        batches.into_iter().map(|(samples, _)| samples).collect()
    }

    #[test]
    fn the_order_and_the_pixels_do_not_depend_on_the_number_of_threads() {
        let root = tempfile::tempdir().unwrap();
        let files = folder(root.path());
        let loader =
            |workers, seed| Loader::new(files.clone(), TRAIN, seed, Workers::start(workers).unwrap());
        let one = samples(&loader(1, 5), 1);
        assert_eq!(one.iter().map(Vec::len).collect::<Vec<_>>(), [3, 2, 1]);
        assert_eq!(one[0].iter().map(|sample| sample.label).collect::<Vec<_>>(), [0, 1, 0]);
        assert_eq!(one, samples(&loader(4, 5), 1));
        assert_ne!(one, samples(&loader(4, 5), 2), "another epoch is augmented otherwise");
        assert_ne!(one, samples(&loader(4, 6), 1), "another seed is augmented otherwise");
    }

    #[test]
    fn batches_are_mixed_the_same_whichever_comes_first() {
        let root = tempfile::tempdir().unwrap();
        let files = folder(root.path());
        let plain = Loader::new(files.clone(), TRAIN, 5, Workers::start(1).unwrap());
        let mixed = Loader::new(files, TRAIN, 5, Workers::start(3).unwrap()).with_mix(MIX);
        let batches = planned(&[&[0, 7, 3, 1], &[11, 2], &[5, 6, 8]]);
        let all = loaded(&mixed, 1, batches.clone());
        // As after a resume: the first batch was taken before.
        assert_eq!(loaded(&mixed, 1, batches[1..].to_vec()), all[1..]);
        let lambdas: Vec<_> = all.iter().map(|(_, lambda)| lambda.unwrap()).collect();
        assert!(lambdas[0] != lambdas[1] && lambdas[1] != lambdas[2], "{lambdas:?}");
        let unmixed = loaded(&plain, 1, batches);
        for ((mixed, lambda), (plain, none)) in all.iter().zip(&unmixed) {
            assert_eq!(*none, None);
            let mut expected = plain.clone();
            let own = mixed[0].pixels.iter().zip(&plain[0].pixels).any(|(mixed, plain)| mixed != plain);
            assert_eq!(own, lambda.unwrap() < 1.0);
            // What one image loses, the other gets.
            let last = expected.len() - 1;
            for (index, value) in expected[0].pixels.iter_mut().enumerate() {
                let sum = mixed[0].pixels[index] + mixed[last].pixels[index];
                *value += plain[last].pixels[index];
                assert!((sum - *value).abs() < 1e-5, "{sum} is not {value}");
            }
        }
    }

    #[test]
    fn a_broken_image_is_reported_and_the_others_stay() {
        let root = tempfile::tempdir().unwrap();
        let files = folder(root.path());
        std::fs::write(root.path().join("a").join("3.png"), b"broken").unwrap();
        let loader = Loader::new(files, TRAIN, 5, Workers::start(2).unwrap());
        let batch = loader.batches(1, planned(&[&[0, 3, 6]])).next().unwrap().unwrap();
        assert_eq!(batch.samples.iter().map(|sample| sample.label).collect::<Vec<_>>(), [0, 1]);
        assert_eq!(batch.failures.len(), 1);
        assert!(batch.failures[0].to_string().contains("3.png"), "{}", batch.failures[0]);
    }

    #[test]
    fn dropping_early_leaves_what_was_not_begun() {
        let root = tempfile::tempdir().unwrap();
        let loader = Loader::new(folder(root.path()), TRAIN, 5, Workers::start(1).unwrap());
        let mut batches = loader.batches(1, planned(&[&[0][..]; 1000]));
        assert!(batches.next().unwrap().is_ok());
        assert_eq!((batches.ahead.len(), batches.planned.len()), (AHEAD, 999 - AHEAD));
        drop(batches);
        // The workers are free again.
        assert_eq!(samples(&loader, 1).len(), 3);
    }

    #[test]
    fn a_thread_that_dies_is_an_error() {
        let root = tempfile::tempdir().unwrap();
        let loader = Loader::new(folder(root.path()), TRAIN, 5, Workers::start(1).unwrap());
        // Position 99 does not exist: the thread panics.
        let mut batches = loader.batches(1, planned(&[&[0], &[99], &[1]]));
        assert!(batches.next().unwrap().is_ok());
        assert!(matches!(batches.next(), Some(Err(LoaderError::Stopped { remaining: 2 }))));
        assert!(batches.next().is_none());
    }
}
