//! Synced repeats after a warm-up.

use std::time::{Duration, Instant};

use burn::tensor::backend::Backend;

/// Milliseconds of synced repeats.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Timing {
    pub(crate) p10: f64,
    pub(crate) median: f64,
    pub(crate) p90: f64,
}

/// Times `work` at least `repeats` times, each time until the device is done, after two runs that are not counted.
pub(crate) fn time<B: Backend>(device: &B::Device, repeats: usize, mut work: impl FnMut()) -> Timing {
    let mut once = || {
        let start = Instant::now();
        work();
        B::sync(device).unwrap_or_else(|error| panic!("the device failed: {error}"));
        start.elapsed()
    };
    once();
    once();
    let mut durations: Vec<Duration> = (0..repeats.max(1)).map(|_| once()).collect();
    durations.sort();
    let at =
        |share: f64| durations[((durations.len() - 1) as f64 * share).round() as usize].as_secs_f64() * 1e3;
    Timing { p10: at(0.1), median: at(0.5), p90: at(0.9) }
}
