//! Order statistics of repeated timings.

use serde::{Deserialize, Serialize};

/// Milliseconds of a call over batches of calls.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Timing {
    pub(crate) median_ms: f64,
    pub(crate) p10_ms: f64,
    pub(crate) p90_ms: f64,
    /// Batches that were timed; a batch ends when the device is done.
    pub(crate) batches: usize,
    /// Calls in a batch.
    pub(crate) calls_per_batch: usize,
}

impl Timing {
    /// Of the milliseconds of a call in every batch; `None` without batches.
    pub(crate) fn of(mut milliseconds: Vec<f64>, calls_per_batch: usize) -> Option<Self> {
        milliseconds.sort_by(f64::total_cmp);
        let at = |share| percentile(&milliseconds, share);
        Some(Self {
            median_ms: at(0.5)?,
            p10_ms: at(0.1)?,
            p90_ms: at(0.9)?,
            batches: milliseconds.len(),
            calls_per_batch,
        })
    }
}

/// The value below which `share` of `sorted` lies, linear between neighbours; `None` of nothing.
pub(crate) fn percentile(sorted: &[f64], share: f64) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    let position = share.clamp(0.0, 1.0) * last as f64;
    let (below, above) = (sorted[position.floor() as usize], sorted[position.ceil() as usize]);
    Some(below + (above - below) * position.fract())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_lie_between_neighbours() {
        let values = [1.0, 2.0, 4.0, 8.0, 16.0];
        assert_eq!(percentile(&values, 0.0), Some(1.0));
        assert_eq!(percentile(&values, 0.5), Some(4.0));
        assert_eq!(percentile(&values, 1.0), Some(16.0));
        assert_eq!(percentile(&values, 0.0625), Some(1.25));
        assert_eq!(percentile(&[3.0], 0.9), Some(3.0));
        assert_eq!(percentile(&[], 0.5), None);
    }

    #[test]
    fn a_timing_does_not_depend_on_the_order() {
        let timing = Timing::of((0..=10).rev().map(f64::from).collect(), 3).unwrap();
        assert_eq!((timing.p10_ms, timing.median_ms, timing.p90_ms), (1.0, 5.0, 9.0));
        assert_eq!((timing.batches, timing.calls_per_batch), (11, 3));
        assert_eq!(Timing::of(Vec::new(), 1), None);
    }
}
