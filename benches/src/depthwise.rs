//! `depthwise`: training step of a depthwise convolution: what the filter gradient costs by each way to compute it.
//! A sweep of its own routes, checked, recorded and drawn as any other.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::ensure;
use clap::Args;
use clap::builder::RangedU64ValueParser;
use wtconv_kernels::plan::MAX_KERNEL_SIZE;

use crate::cases::{Case, Dtype, Group, Layout, Measurement, Pass, Route, Shape};
use crate::measure::Schedule;
use crate::sweep::{Conduct, distinct, sweep};
use crate::target::Target;

/// Options of `depthwise`.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Images
    #[arg(long, default_value_t = 2, value_parser = extent())]
    batch: usize,
    /// Channels
    #[arg(long, value_delimiter = ',', default_values_t = [96, 192, 384, 768], value_parser = extent())]
    channels: Vec<usize>,
    /// Height and width at 96 channels; it halves as the channels double
    #[arg(long, default_value_t = 56, value_parser = extent())]
    side: usize,
    /// Height and width of a filter: odd, at most 63
    #[arg(long, default_value_t = 5, value_parser = side_of_filter)]
    kernel_size: usize,
    /// Where results.json, report.md and the plots go
    #[arg(long, value_name = "DIR", default_value = "target/bench/depthwise")]
    out: PathBuf,
    #[command(flatten)]
    conduct: Conduct,
}

fn extent() -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..=65536)
}

/// What all of the ways take: the kernels, odd sides up to theirs; "same" padding by Burn, odd sides.
fn side_of_filter(text: &str) -> anyhow::Result<usize> {
    let side: usize = text.parse()?;
    ensure!(
        side % 2 == 1 && side <= MAX_KERNEL_SIZE,
        "expected an odd number from 1 to {MAX_KERNEL_SIZE}, got {side}"
    );
    Ok(side)
}

pub(crate) fn run<B: Target>(backend: &str, options: &Options) -> anyhow::Result<ExitCode> {
    sweep::<B>(backend, &groups(options)?, &options.out, &options.conduct, Schedule::default().limit)
}

/// One group for each number of channels.
fn groups(options: &Options) -> anyhow::Result<Vec<Group>> {
    let Options { batch, side, kernel_size, .. } = *options;
    let group = |channels: usize| {
        let side = (side * 96 / channels).max(1);
        let shape = Shape::new([batch, channels, side, side])?;
        let case = Case { shape, levels: 0, kernel_size };
        let routes =
            [Route::Conv2d(kernel_size), Route::Reference(kernel_size), Route::Depthwise(kernel_size)];
        let measurements = routes.map(|route| Measurement { case, route, pass: Pass::Train }).to_vec();
        Ok(Group { shape, dtype: Dtype::F32, layout: Layout::Nchw, measurements })
    };
    distinct(&options.channels).into_iter().map(group).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_are_odd_and_no_larger_than_the_kernels_take() {
        assert_eq!([side_of_filter("1").unwrap(), side_of_filter("63").unwrap()], [1, 63]);
        for wrong in ["0", "4", "65", "-1", "five"] {
            assert!(side_of_filter(wrong).is_err(), "{wrong}");
        }
    }
}
