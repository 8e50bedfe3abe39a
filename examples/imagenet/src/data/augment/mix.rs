//! Mixup (Zhang et al., 2017, [1710.09412](https://arxiv.org/abs/1710.09412)) and CutMix (Yun et al., 2019,
//! [1905.04899](https://arxiv.org/abs/1905.04899)), a batch at a time, as timm's `Mixup` does in mode `batch`.
//!
//! Each image of a batch is mixed with its counterpart from the other end: the first with the last, and so on. `lambda` is the
//! share that an image keeps of itself; it is one number for the whole batch.

use rand::{Rng, RngExt};
use rand_distr::{Beta, Distribution};

use super::CropBox;
use crate::data::batch::Sample;

/// Whether and how batches are mixed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mix {
    /// `lambda` of mixup is drawn from Beta(`mixup`, `mixup`). 0: no mixup.
    pub mixup: f64,
    /// The same for CutMix. 0: no CutMix.
    pub cutmix: f64,
    /// Probability that a batch is mixed.
    pub prob: f64,
    /// Probability of CutMix, where both are on.
    pub switch_prob: f64,
}

/// How one batch is mixed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Mixing {
    /// Every pixel is `lambda` of its image plus `1 - lambda` of the other.
    Mixup {
        /// Share of the image itself.
        lambda: f64,
    },
    /// A rectangle is taken from the other image.
    Cutmix {
        /// The rectangle.
        area: CropBox,
        /// Share of the image that is outside of the rectangle.
        lambda: f64,
    },
}

impl Mix {
    /// Whether anything is ever mixed.
    pub fn is_on(&self) -> bool {
        self.mixup > 0.0 || self.cutmix > 0.0
    }

    /// Draws how a batch of square images is mixed; `None` if it stays as it is.
    pub fn draw(&self, side: u32, rng: &mut impl Rng) -> Option<Mixing> {
        if !self.is_on() || !rng.random_bool(self.prob) {
            return None;
        }
        let cutmix = self.mixup == 0.0 || (self.cutmix > 0.0 && rng.random_bool(self.switch_prob));
        let alpha = if cutmix { self.cutmix } else { self.mixup };
        let lambda = Beta::new(alpha, alpha).expect("the configuration was checked").sample(rng);
        if !cutmix {
            return Some(Mixing::Mixup { lambda });
        }
        let centre = [rng.random_range(0..side), rng.random_range(0..side)];
        let area = cut(side, lambda, centre);
        // The rectangle is rounded and may be cut off at the edge: the labels follow what is left of it.
        let lambda = 1.0 - f64::from(area.width * area.height) / f64::from(side * side);
        Some(Mixing::Cutmix { area, lambda })
    }
}

/// The square of about `1 - lambda` of the area around `centre` (column, row), as far as it lies within the image.
fn cut(side: u32, lambda: f64, [x, y]: [u32; 2]) -> CropBox {
    let half = (f64::from(side) * (1.0 - lambda).sqrt()) as u32 / 2;
    let (left, top) = (x.saturating_sub(half), y.saturating_sub(half));
    CropBox { left, top, width: (x + half).min(side) - left, height: (y + half).min(side) - top }
}

impl Mixing {
    /// Share that each image keeps of itself.
    pub fn lambda(&self) -> f64 {
        match *self {
            Self::Mixup { lambda } | Self::Cutmix { lambda, .. } => lambda,
        }
    }

    /// Mixes the images of a batch, each `[3, side, side]`. In a batch of an odd number, the one in the middle is its own
    /// counterpart and stays as it is.
    pub fn apply(&self, samples: &mut [Sample], side: usize) {
        let (first, second) = samples.split_at_mut(samples.len() / 2);
        for (one, other) in first.iter_mut().zip(second.iter_mut().rev()) {
            match *self {
                Self::Mixup { lambda } => blend(&mut one.pixels, &mut other.pixels, lambda as f32),
                Self::Cutmix { area, .. } => swap(&mut one.pixels, &mut other.pixels, area, side),
            }
        }
    }
}

/// Both images become `lambda` of themselves plus `1 - lambda` of the other.
fn blend(one: &mut [f32], other: &mut [f32], lambda: f32) {
    for (one, other) in one.iter_mut().zip(other) {
        (*one, *other) = (lambda * *one + (1.0 - lambda) * *other, lambda * *other + (1.0 - lambda) * *one);
    }
}

/// The images exchange what is in `area`.
fn swap(one: &mut [f32], other: &mut [f32], area: CropBox, side: usize) {
    for (one, other) in one.chunks_exact_mut(side * side).zip(other.chunks_exact_mut(side * side)) {
        for row in area.top..area.top + area.height {
            let start = row as usize * side + area.left as usize;
            let columns = start..start + area.width as usize;
            one[columns.clone()].swap_with_slice(&mut other[columns]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{Stream, stream};

    const BOTH: Mix = Mix { mixup: 0.8, cutmix: 1.0, prob: 1.0, switch_prob: 0.5 };

    /// Images of one value each.
    fn samples(values: &[f32], side: usize) -> Vec<Sample> {
        let sample = |(label, value): (usize, &f32)| Sample { pixels: vec![*value; 3 * side * side], label };
        values.iter().enumerate().map(sample).collect()
    }

    fn first_pixels(samples: &[Sample]) -> Vec<f32> {
        samples.iter().map(|sample| sample.pixels[0]).collect()
    }

    #[test]
    fn mixup_by_hand() {
        let mut batch = samples(&[0.0, 8.0, 16.0, 4.0], 2);
        Mixing::Mixup { lambda: 0.75 }.apply(&mut batch, 2);
        // 0.75 * 0 + 0.25 * 4, 0.75 * 8 + 0.25 * 16, ...
        assert_eq!(first_pixels(&batch), [1.0, 10.0, 14.0, 3.0]);
        assert!(batch.iter().all(|sample| sample.pixels.iter().all(|value| *value == sample.pixels[0])));
        assert_eq!(batch.iter().map(|sample| sample.label).collect::<Vec<_>>(), [0, 1, 2, 3]);
    }

    #[test]
    fn the_middle_of_an_odd_batch_stays() {
        for (values, expected) in [(&[0.0, 0.3, 4.0][..], &[2.0, 0.3, 2.0][..]), (&[0.3], &[0.3]), (&[], &[])]
        {
            let mut batch = samples(values, 1);
            Mixing::Mixup { lambda: 0.5 }.apply(&mut batch, 1);
            assert_eq!(first_pixels(&batch), expected);
        }
    }

    #[test]
    fn cutmix_by_hand() {
        let mut batch = samples(&[1.0, 2.0], 4);
        let area = CropBox { left: 1, top: 0, width: 3, height: 2 };
        Mixing::Cutmix { area, lambda: 10.0 / 16.0 }.apply(&mut batch, 4);
        let expected = |own: f32, other: f32| {
            let plane =
                [own, other, other, other, own, other, other, other, own, own, own, own, own, own, own, own];
            plane.repeat(3)
        };
        assert_eq!(batch[0].pixels, expected(1.0, 2.0));
        assert_eq!(batch[1].pixels, expected(2.0, 1.0));
    }

    #[test]
    fn rectangles_and_their_lambda_by_hand() {
        // sqrt(1 - 0.75) = 0.5: 16 of 32 pixels, 8 to each side.
        assert_eq!(cut(32, 0.75, [16, 10]), CropBox { left: 8, top: 2, width: 16, height: 16 });
        // Cut off at the left and at the bottom.
        assert_eq!(cut(32, 0.75, [3, 31]), CropBox { left: 0, top: 23, width: 11, height: 9 });
        // And at the right and at the top.
        assert_eq!(cut(32, 0.75, [30, 3]), CropBox { left: 22, top: 0, width: 10, height: 11 });
        // 32 * sqrt(0.1) = 10.1, of which half is 5.
        assert_eq!(cut(32, 0.9, [16, 16]), CropBox { left: 11, top: 11, width: 10, height: 10 });
        // An odd length loses a pixel: 5 * 1 / 2 = 2 to each side.
        assert_eq!(cut(5, 0.0, [2, 2]), CropBox { left: 0, top: 0, width: 4, height: 4 });
        assert_eq!(cut(32, 1.0, [16, 16]), CropBox { left: 16, top: 16, width: 0, height: 0 });
    }

    #[test]
    fn the_label_gets_what_is_left_of_the_image() {
        let (mut mixups, mut cut_off) = (0, false);
        for index in 0..1000 {
            let mixing = BOTH.draw(32, &mut stream(5, Stream::Mix, 0, index)).unwrap();
            assert_eq!(mixing, BOTH.draw(32, &mut stream(5, Stream::Mix, 0, index)).unwrap());
            let lambda = mixing.lambda();
            assert!((0.0..=1.0).contains(&lambda), "{mixing:?}");
            let mut batch = samples(&[0.0, 1.0], 32);
            mixing.apply(&mut batch, 32);
            let share = batch[0].pixels.iter().sum::<f32>() / (3.0 * 32.0 * 32.0);
            assert!((f64::from(share) - (1.0 - lambda)).abs() < 1e-4, "{mixing:?}: {share}");
            match mixing {
                Mixing::Mixup { .. } => mixups += 1,
                Mixing::Cutmix { area, .. } => cut_off |= area.width != area.height,
            }
        }
        assert!((405..=595).contains(&mixups), "about half of the batches: {mixups}");
        assert!(cut_off);
    }

    #[test]
    fn parts_can_be_off() {
        let draw = |mix: Mix, index| mix.draw(32, &mut stream(5, Stream::Mix, 0, index));
        for index in 0..50 {
            assert_eq!(draw(Mix { mixup: 0.0, cutmix: 0.0, ..BOTH }, index), None);
            assert_eq!(draw(Mix { prob: 0.0, ..BOTH }, index), None);
            assert!(matches!(draw(Mix { cutmix: 0.0, ..BOTH }, index), Some(Mixing::Mixup { .. })));
            assert!(matches!(draw(Mix { mixup: 0.0, ..BOTH }, index), Some(Mixing::Cutmix { .. })));
            assert!(matches!(draw(Mix { switch_prob: 0.0, ..BOTH }, index), Some(Mixing::Mixup { .. })));
            assert!(matches!(draw(Mix { switch_prob: 1.0, ..BOTH }, index), Some(Mixing::Cutmix { .. })));
        }
        let mixed = (0..1000).filter(|index| draw(Mix { prob: 0.25, ..BOTH }, *index).is_some()).count();
        assert!((167..=333).contains(&mixed), "{mixed}");
    }

    #[test]
    fn lambda_follows_the_beta_distribution() {
        // Beta(a, a) has the mean 1/2 and the variance 1 / (4 (2 a + 1)).
        for alpha in [0.01, 0.2, 0.8, 1.0, 100.0] {
            let mix = Mix { mixup: alpha, cutmix: 0.0, ..BOTH };
            let lambdas: Vec<f64> = (0..4000)
                .map(|index| mix.draw(32, &mut stream(6, Stream::Mix, 0, index)).unwrap().lambda())
                .collect();
            let mean = lambdas.iter().sum::<f64>() / 4000.0;
            let variance = lambdas.iter().map(|lambda| (lambda - 0.5).powi(2)).sum::<f64>() / 4000.0;
            let expected = 0.25 / (2.0 * alpha + 1.0);
            assert!((mean - 0.5).abs() < 0.04, "alpha {alpha}: mean {mean}");
            assert!((variance / expected - 1.0).abs() < 0.1, "alpha {alpha}: {variance} is not {expected}");
        }
    }
}
