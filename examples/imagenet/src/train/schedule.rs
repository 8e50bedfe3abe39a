//! The learning rate of each update: linear warm-up, then half a cosine.

use burn::lr_scheduler::LrScheduler;
use burn::optim::LearningRate;
use burn::tensor::backend::Backend;
use std::f64::consts::PI;

/// Linear warm-up to `peak`, then a cosine down to `floor`, counted in updates.
///
/// With `w` warm-up updates out of `n`, update `u` (from 0) has the rate
///
/// ```text
/// u < w:  peak * (u + 1) / w
/// u >= w: floor + (peak - floor) * (1 + cos(pi * (u - w) / (n - w))) / 2
/// ```
///
/// One scheduler rather than Burn's linear and cosine ones composed: those restart, and their composition is a product or
/// an average.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WarmupCosine {
    peak: LearningRate,
    floor: LearningRate,
    warmup: usize,
    total: usize,
    /// The update whose rate [`step`](LrScheduler::step) returns next.
    next: usize,
}

impl WarmupCosine {
    /// A schedule of `total` updates, the first `warmup` of them warm-up.
    pub fn new(peak: LearningRate, floor: LearningRate, warmup: usize, total: usize) -> Self {
        Self { peak, floor, warmup, total, next: 0 }
    }

    /// The rate of an update, counted from 0. Past the end it stays at the floor.
    pub fn rate(&self, update: usize) -> LearningRate {
        if update < self.warmup {
            self.peak * (update + 1) as f64 / self.warmup as f64
        } else if update >= self.total {
            self.floor
        } else {
            let progress = (update - self.warmup) as f64 / (self.total - self.warmup) as f64;
            self.floor + (self.peak - self.floor) * (1.0 + (PI * progress).cos()) / 2.0
        }
    }
}

impl LrScheduler for WarmupCosine {
    type Record<B: Backend> = usize;

    fn step(&mut self) -> LearningRate {
        let rate = self.rate(self.next);
        self.next += 1;
        rate
    }

    fn to_record<B: Backend>(&self) -> usize {
        self.next
    }

    fn load_record<B: Backend>(self, next: usize) -> Self {
        Self { next, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TestBackend;

    #[track_caller]
    fn assert_rates(mut schedule: WarmupCosine, expected: &[f64]) {
        for (update, expected) in expected.iter().enumerate() {
            let rate = schedule.step();
            assert!((rate - expected).abs() < 1e-12, "update {update}: {rate} is not {expected}");
        }
    }

    #[test]
    fn rates_by_hand() {
        // cos(0), cos(pi/3), cos(2 pi/3) = 1, 1/2, -1/2.
        assert_rates(
            WarmupCosine::new(0.8, 0.2, 4, 7),
            &[0.2, 0.4, 0.6, 0.8, 0.8, 0.2 + 0.6 * 0.75, 0.2 + 0.6 * 0.25, 0.2, 0.2],
        );
    }

    #[test]
    fn without_warmup_it_starts_at_the_peak() {
        assert_rates(WarmupCosine::new(1.0, 0.0, 0, 2), &[1.0, 0.5, 0.0]);
    }

    #[test]
    fn warmup_may_take_the_whole_run() {
        assert_rates(WarmupCosine::new(1.0, 0.0, 2, 2), &[0.5, 1.0, 0.0]);
    }

    #[test]
    fn a_restored_schedule_goes_on() {
        let mut straight = WarmupCosine::new(0.8, 0.2, 4, 20);
        for _ in 0..9 {
            straight.step();
        }
        let record = straight.to_record::<TestBackend>();
        let mut restored = WarmupCosine::new(0.8, 0.2, 4, 20).load_record::<TestBackend>(record);
        for _ in 9..20 {
            assert_eq!(straight.step(), restored.step());
        }
    }
}
