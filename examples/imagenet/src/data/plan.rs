//! Which images make up which update of an epoch.

use super::{Stream, stream};
use rand::seq::SliceRandom;
use std::ops::Range;

/// The images of one batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedBatch {
    /// Number of the batch in its epoch, counted from 0.
    pub index: usize,
    /// Positions in the data set.
    pub images: Vec<usize>,
}

/// The images of one epoch, in order, cut into updates and those into batches.
///
/// An update is one step of the optimizer: `accumulate` batches of `batch_size` images. The last update of an epoch holds
/// what is left, so that each image is seen once an epoch.
#[derive(Clone, Debug)]
pub struct EpochPlan {
    order: Vec<usize>,
    batch_size: usize,
    accumulate: usize,
}

impl EpochPlan {
    /// A random order of `len` images, the same for the same `(seed, epoch)`.
    pub fn shuffled(len: usize, seed: u64, epoch: usize, batch_size: usize, accumulate: usize) -> Self {
        let mut order: Vec<usize> = (0..len).collect();
        order.shuffle(&mut stream(seed, Stream::Order, epoch as u64, 0));
        Self { order, batch_size, accumulate }
    }

    /// The images as they come, for validation.
    pub fn sequential(len: usize, batch_size: usize) -> Self {
        Self { order: (0..len).collect(), batch_size, accumulate: 1 }
    }

    /// Number of images.
    pub fn len(&self) -> usize {
        self.order.len()
    }

    /// Whether there are no images at all.
    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// Number of updates.
    pub fn updates(&self) -> usize {
        updates_per_epoch(self.len(), self.batch_size, self.accumulate)
    }

    /// The images of an update, counted from 0.
    pub fn update(&self, update: usize) -> &[usize] {
        let size = self.batch_size * self.accumulate;
        let start = (update * size).min(self.len());
        &self.order[start..(start + size).min(self.len())]
    }

    /// Number of batches of an update.
    pub fn batches(&self, update: usize) -> usize {
        self.update(update).len().div_ceil(self.batch_size)
    }

    /// The batches of `updates`, in order.
    pub fn batches_of(&self, updates: Range<usize>) -> Vec<PlannedBatch> {
        // Only the last update of an epoch has fewer batches.
        let first = updates.start * self.accumulate;
        updates
            .flat_map(|update| self.update(update).chunks(self.batch_size))
            .zip(first..)
            .map(|(images, index)| PlannedBatch { index, images: images.to_vec() })
            .collect()
    }
}

/// Number of updates of an epoch of `len` images.
pub fn updates_per_epoch(len: usize, batch_size: usize, accumulate: usize) -> usize {
    len.div_ceil(batch_size * accumulate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn updates_and_batches_by_hand() {
        let mut plan = EpochPlan::sequential(11, 2);
        plan.accumulate = 3;
        assert_eq!(plan.updates(), 2);
        let batch = |index, images: &[usize]| PlannedBatch { index, images: images.to_vec() };
        let all = [
            batch(0, &[0, 1]),
            batch(1, &[2, 3]),
            batch(2, &[4, 5]),
            batch(3, &[6, 7]),
            batch(4, &[8, 9]),
            batch(5, &[10]),
        ];
        assert_eq!(plan.batches_of(0..2), all);
        assert_eq!((plan.update(0), plan.update(1)), (&[0, 1, 2, 3, 4, 5][..], &[6, 7, 8, 9, 10][..]));
        assert_eq!((plan.batches(0), plan.batches(1), plan.batches(2)), (3, 3, 0));
        assert_eq!(plan.batches_of(1..2), all[3..]);
    }

    #[test]
    fn accumulation_does_not_change_the_images_of_an_update() {
        let one = EpochPlan::shuffled(50, 3, 1, 8, 1);
        let two = EpochPlan::shuffled(50, 3, 1, 4, 2);
        assert_eq!(one.updates(), two.updates());
        for update in 0..one.updates() {
            assert_eq!(one.update(update), two.update(update));
        }
    }

    #[test]
    fn each_image_once_and_every_epoch_anew() {
        let plan = EpochPlan::shuffled(100, 1, 1, 7, 2);
        let mut seen: Vec<usize> =
            plan.batches_of(0..plan.updates()).into_iter().flat_map(|batch| batch.images).collect();
        assert_eq!(seen, plan.order);
        seen.sort_unstable();
        assert_eq!(seen, (0..100).collect::<Vec<_>>());
        assert_eq!(plan.order, EpochPlan::shuffled(100, 1, 1, 7, 2).order);
        assert_ne!(plan.order, EpochPlan::shuffled(100, 1, 2, 7, 2).order);
        assert_ne!(plan.order, EpochPlan::shuffled(100, 2, 1, 7, 2).order);
    }
}
