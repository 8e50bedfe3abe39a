//! How fast training images can be made, without a model: what `--workers` has to keep up with.

use burn::data::dataset::Dataset;
use clap::Args;
use indicatif::ProgressBar;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::config::ConfigArgs;
use crate::count::count;
use crate::data::decode::Failures;
use crate::data::folder::ImageFolder;
use crate::data::loader::{Loader, Workers};
use crate::data::plan::EpochPlan;
use crate::error::Error;
use crate::output;

/// Flags of `throughput`.
#[derive(Args, Clone, Debug)]
pub struct ThroughputArgs {
    /// Time to measure
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..=3600))]
    pub seconds: u16,
    /// What the run would depend on.
    #[command(flatten)]
    pub settings: ConfigArgs,
}

/// What was measured.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Rate {
    images: usize,
    seconds: f64,
    workers: usize,
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { images, seconds, workers } = *self;
        let rate = images as f64 / seconds;
        let per_worker = rate / workers as f64;
        let (images, workers) = (count(images, "image", "images"), count(workers, "worker", "workers"));
        write!(f, "{images} in {seconds:.1} s with {workers}: {rate:.0} a second, {per_worker:.0} a worker")
    }
}

/// `imagenet throughput`: decodes, augments and mixes the batches that `train` would begin with, as fast as they can be made.
///
/// # Errors
///
/// Any [`Error`] of the configuration or the data.
pub fn run(args: &ThroughputArgs) -> Result<(), Error> {
    let config = args.settings.resolve()?;
    let files = Arc::new(ImageFolder::train(&config.data_folder()?.join("train"))?);
    let workers = Workers::start(config.workers)?;
    let loader = Loader::for_training(files.clone(), &config, workers.clone());
    let limit = Duration::from_secs(args.seconds.into());

    let progress = ProgressBar::new_spinner();
    progress.enable_steady_tick(Duration::from_millis(200));
    let mut failures = Failures::default();
    let mut images = 0;
    let started = Instant::now();
    'epochs: for epoch in 1.. {
        let plan = EpochPlan::shuffled(files.len(), config.seed, epoch, config.batch_size, config.accumulate);
        for batch in loader.batches(epoch, plan.batches_of(0..plan.updates())) {
            let batch = batch?;
            images += batch.samples.len();
            failures.add(batch.failures);
            progress.set_message(count(images, "image", "images"));
            if started.elapsed() >= limit {
                break 'epochs;
            }
        }
        if images == 0
            && let Some(first) = failures.first
        {
            return Err(Error::Unreadable { path: files.path().to_path_buf(), images: files.len(), first });
        }
    }
    let rate = Rate { images, seconds: started.elapsed().as_secs_f64(), workers: workers.count() };
    progress.finish_and_clear();
    output::line(rate)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_by_hand() {
        let rate = Rate { images: 300, seconds: 1.5, workers: 4 };
        assert_eq!(rate.to_string(), "300 images in 1.5 s with 4 workers: 200 a second, 50 a worker");
    }
}
