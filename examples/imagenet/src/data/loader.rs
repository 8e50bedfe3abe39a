//! Worker threads that decode and augment ahead of the model, in a fixed order.
//!
//! Burn's `MultiThreadDataLoader` hands out batches as its threads finish them and draws its order from a generator whose
//! state cannot be stored. A run could then neither be repeated nor resumed exactly, so this loader takes its place; data
//! set and batcher are Burn's.

use super::augment::{Transform, normalize};
use super::batch::Sample;
use super::decode::{DecodeError, decode_rgb};
use super::folder::{ImageFile, ImageFolder};
use super::{Stream, stream};
use crate::count::count;
use burn::data::dataset::Dataset;
use fast_image_resize::Resizer;
use rayon::prelude::*;
use rayon::{ThreadPool, ThreadPoolBuildError, ThreadPoolBuilder};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::JoinHandle;

/// Batches that wait for the model while the next one is made.
const PREFETCH: usize = 3;

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
    /// The thread that prepares batches ended before all were made.
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
    /// Starts `workers` threads; 0 means one for each CPU.
    ///
    /// # Errors
    ///
    /// [`LoaderError::Threads`].
    pub fn start(workers: usize) -> Result<Self, LoaderError> {
        let name = |index| format!("decode-{index}");
        let pool = ThreadPoolBuilder::new().num_threads(workers).thread_name(name).build();
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
    /// The images that could not.
    pub failures: Vec<DecodeError>,
}

/// Reads the images of one split through one transform.
#[derive(Clone, Debug)]
pub struct Loader {
    files: Arc<ImageFolder>,
    transform: Transform,
    seed: u64,
    workers: Workers,
}

impl Loader {
    /// A loader of `files`. `seed` drives the augmentation.
    pub fn new(files: Arc<ImageFolder>, transform: Transform, seed: u64, workers: Workers) -> Self {
        Self { files, transform, seed, workers }
    }

    /// The images behind the loader.
    pub fn files(&self) -> &ImageFolder {
        &self.files
    }

    /// Side of the images in pixels.
    pub fn input_size(&self) -> usize {
        self.transform.input_size() as usize
    }

    /// Starts to prepare `batches` (positions in [`Self::files`]) and returns them one by one, in order.
    ///
    /// Dropping the iterator early stops the preparation.
    pub fn batches(&self, epoch: usize, batches: Vec<Vec<usize>>) -> Batches {
        let (sender, receiver) = sync_channel(PREFETCH);
        let remaining = batches.len();
        let loader = self.clone();
        let thread = std::thread::spawn(move || {
            for batch in batches {
                // The receiver is gone when the run stops early.
                if sender.send(loader.load(epoch, &batch)).is_err() {
                    break;
                }
            }
        });
        Batches { receiver: Some(receiver), remaining, thread: Some(thread) }
    }

    /// Reads the files at `positions`, in parallel.
    fn load(&self, epoch: usize, positions: &[usize]) -> HostBatch {
        let read = |resizer: &mut Resizer, &position: &usize| {
            let file = self.files.get(position).expect("a plan holds positions of its data set only");
            let rng = stream(self.seed, Stream::Augment, epoch as u64, position as u64);
            read_sample(&file, &self.transform, rng, resizer)
        };
        let results: Vec<_> =
            self.workers.0.install(|| positions.par_iter().map_init(Resizer::new, read).collect());
        let mut batch = HostBatch::default();
        for result in results {
            match result {
                Ok(sample) => batch.samples.push(sample),
                Err(error) => batch.failures.push(error),
            }
        }
        batch
    }
}

/// Decodes, augments and normalises one image.
fn read_sample(
    file: &ImageFile,
    transform: &Transform,
    mut rng: impl rand::Rng,
    resizer: &mut Resizer,
) -> Result<Sample, DecodeError> {
    let image = decode_rgb(&file.path)?;
    let image = transform.apply(&image, &mut rng, resizer);
    Ok(Sample { pixels: normalize(&image), label: file.label })
}

/// Batches in order; see [`Loader::batches`].
#[derive(Debug)]
pub struct Batches {
    receiver: Option<Receiver<HostBatch>>,
    remaining: usize,
    thread: Option<JoinHandle<()>>,
}

impl Iterator for Batches {
    type Item = Result<HostBatch, LoaderError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.remaining == 0 {
            return None;
        }
        let received = self.receiver.as_ref().and_then(|receiver| receiver.recv().ok());
        let item = received.ok_or(LoaderError::Stopped { remaining: self.remaining });
        self.remaining = if item.is_ok() { self.remaining - 1 } else { 0 };
        Some(item)
    }
}

impl Drop for Batches {
    fn drop(&mut self) {
        // Hang up first, so that a thread that waits for room in the channel ends.
        self.receiver = None;
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been reported as `LoaderError::Stopped`.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use image::{Rgb, RgbImage};
    use std::path::Path;

    const TRAIN: Transform =
        Transform::Train { input_size: 4, crop_scale: [0.3, 1.0], crop_ratio: [0.75, 1.33], flip: 0.5 };

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

    fn samples(loader: &Loader, epoch: usize) -> Vec<Vec<Sample>> {
        let batches = loader.batches(epoch, vec![vec![0, 7, 3], vec![11, 2], vec![5]]);
        batches.map(|batch| batch.unwrap().samples).collect()
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
    fn a_broken_image_is_reported_and_the_others_stay() {
        let root = tempfile::tempdir().unwrap();
        let files = folder(root.path());
        std::fs::write(root.path().join("a").join("3.png"), b"broken").unwrap();
        let loader = Loader::new(files, TRAIN, 5, Workers::start(2).unwrap());
        let batch = loader.batches(1, vec![vec![0, 3, 6]]).next().unwrap().unwrap();
        assert_eq!(batch.samples.iter().map(|sample| sample.label).collect::<Vec<_>>(), [0, 1]);
        assert_eq!(batch.failures.len(), 1);
        assert!(batch.failures[0].to_string().contains("3.png"), "{}", batch.failures[0]);
    }

    #[test]
    fn dropping_early_ends_the_thread() {
        let root = tempfile::tempdir().unwrap();
        let loader = Loader::new(folder(root.path()), TRAIN, 5, Workers::start(1).unwrap());
        let mut batches = loader.batches(1, vec![vec![0]; 1000]);
        assert!(batches.next().unwrap().is_ok());
        drop(batches);
    }

    #[test]
    fn a_thread_that_dies_is_an_error() {
        let root = tempfile::tempdir().unwrap();
        let loader = Loader::new(folder(root.path()), TRAIN, 5, Workers::start(1).unwrap());
        // Position 99 does not exist: the thread panics.
        let mut batches = loader.batches(1, vec![vec![0], vec![99], vec![1]]);
        assert!(batches.next().unwrap().is_ok());
        assert!(matches!(batches.next(), Some(Err(LoaderError::Stopped { remaining: 2 }))));
        assert!(batches.next().is_none());
    }
}
