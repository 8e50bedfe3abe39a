//! Timing of work that a device does later than it is asked to.
//!
//! A call only queues work, and waiting for the device takes tens of microseconds. So calls are timed in batches that
//! last long enough for the wait at their end not to matter: the clock starts when the device is idle and stops when it
//! is idle again, and the time of a call is that of its batch divided by its calls.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use crate::statistics::Timing;

/// Set by Ctrl-C.
pub(crate) static INTERRUPTED: AtomicBool = AtomicBool::new(false);
/// The exit status of what Ctrl-C ended: by convention 128 and the number of the signal.
pub(crate) const INTERRUPTED_STATUS: u8 = 130;

/// How often and how long to measure.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Schedule {
    /// Calls that are not counted, after the first one.
    pub(crate) warm_up: usize,
    /// A batch has as many calls as last this long.
    pub(crate) batch: Duration,
    /// Batches to time.
    pub(crate) batches: usize,
    /// Time after which no further batch starts, once there are `least_batches`.
    pub(crate) limit: Duration,
    pub(crate) least_batches: usize,
}

impl Default for Schedule {
    fn default() -> Self {
        Self {
            warm_up: 2,
            batch: Duration::from_millis(20),
            batches: 15,
            limit: Duration::from_secs(10),
            least_batches: 3,
        }
    }
}

/// Most calls of a batch: what is prepared for them has to fit in memory.
const MOST_CALLS: usize = 200;

/// Something to time.
pub(crate) trait Work {
    /// Gets ready for `calls` calls; not timed.
    fn prepare(&mut self, calls: usize) -> anyhow::Result<()> {
        let _ = calls;
        Ok(())
    }

    /// Queues the work.
    fn call(&mut self) -> anyhow::Result<()>;

    /// Waits until the device is done.
    fn sync(&self) -> anyhow::Result<()>;
}

/// A [`Timing`], and the milliseconds of the very first call, in which kernels are compiled and tuned.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Measured {
    pub(crate) first_call_ms: f64,
    pub(crate) timing: Timing,
}

/// Times `work`.
///
/// # Errors
///
/// If the device fails, or after Ctrl-C.
pub(crate) fn measure(work: &mut dyn Work, schedule: &Schedule) -> anyhow::Result<Measured> {
    let first_call_ms = batch(work, 1)?;
    for _ in 0..schedule.warm_up {
        batch(work, 1)?;
    }
    // The wait is part of a batch of one, so that the estimate is refined with the batch that follows from it.
    let mut calls = 1;
    for _ in 0..3 {
        let milliseconds = batch(work, calls)?;
        calls =
            calls.max((schedule.batch.as_secs_f64() * 1e3 / milliseconds).ceil() as usize).min(MOST_CALLS);
    }
    if calls > 1 {
        // The first batch of its size makes the allocator grow, which was seen to take hundreds of milliseconds.
        batch(work, calls)?;
    }
    let start = Instant::now();
    let mut milliseconds = Vec::with_capacity(schedule.batches);
    while milliseconds.len() < schedule.batches
        && (milliseconds.len() < schedule.least_batches || start.elapsed() < schedule.limit)
    {
        milliseconds.push(batch(work, calls)?);
    }
    let timing = Timing::of(milliseconds, calls).context("a schedule of no batches")?;
    Ok(Measured { first_call_ms, timing })
}

/// Milliseconds of a call in a batch of `calls`.
fn batch(work: &mut dyn Work, calls: usize) -> anyhow::Result<f64> {
    if INTERRUPTED.load(Ordering::Relaxed) {
        bail!("interrupted");
    }
    work.prepare(calls)?;
    work.sync()?;
    let start = Instant::now();
    for _ in 0..calls {
        work.call()?;
    }
    work.sync()?;
    Ok(start.elapsed().as_secs_f64() * 1e3 / calls as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Work of known length; `prepared` must never run dry.
    struct Sleep {
        length: Duration,
        prepared: usize,
    }

    impl Work for Sleep {
        fn prepare(&mut self, calls: usize) -> anyhow::Result<()> {
            assert_eq!(self.prepared, 0, "everything prepared before was used");
            self.prepared = calls;
            Ok(())
        }

        fn call(&mut self) -> anyhow::Result<()> {
            self.prepared -= 1;
            if !self.length.is_zero() {
                std::thread::sleep(self.length);
            }
            Ok(())
        }

        fn sync(&self) -> anyhow::Result<()> {
            Ok(())
        }
    }

    fn sleep(length: Duration) -> Sleep {
        Sleep { length, prepared: 0 }
    }

    #[test]
    fn short_calls_are_batched_and_long_ones_are_not() {
        let schedule = Schedule { batches: 4, batch: Duration::from_millis(2), ..Schedule::default() };
        let short = measure(&mut sleep(Duration::ZERO), &schedule).unwrap();
        assert!(short.timing.calls_per_batch > 1, "{short:?}");
        assert_eq!(short.timing.batches, 4);
        let long = measure(&mut sleep(Duration::from_millis(3)), &schedule).unwrap();
        assert_eq!(long.timing.calls_per_batch, 1);
        assert!(long.timing.median_ms >= 3.0, "{long:?}");
    }

    #[test]
    fn a_limit_ends_the_batches_but_not_the_least_of_them() {
        let schedule = Schedule { limit: Duration::ZERO, ..Schedule::default() };
        let measured = measure(&mut sleep(Duration::from_millis(20)), &schedule).unwrap();
        assert_eq!(measured.timing.batches, schedule.least_batches);
    }
}
