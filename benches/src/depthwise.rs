//! `depthwise`: training step of a depthwise convolution: what the filter gradient costs by each way to compute it.

use std::process::ExitCode;

use anyhow::{anyhow, ensure};
use burn::backend::Autodiff;
use burn::tensor::module::conv2d;
use burn::tensor::ops::ConvOptions;
use burn::tensor::{Distribution, Tensor};
use burn_wtconv::{WtConvBackend, depthwise_conv2d, reference};
use clap::Args;

use crate::measure::{Schedule, Work, measure};
use crate::output::say;
use crate::statistics::Timing;

/// Options of `depthwise`.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Images
    #[arg(long, default_value_t = 2)]
    batch: usize,
    /// Channels
    #[arg(long, value_delimiter = ',', default_values_t = [96, 192, 384, 768])]
    channels: Vec<usize>,
    /// Height and width at 96 channels; it halves as the channels double
    #[arg(long, default_value_t = 56)]
    side: usize,
    /// Height and width of a filter, odd
    #[arg(long, default_value_t = 5)]
    kernel_size: usize,
}

pub(crate) fn run<B: WtConvBackend>(options: &Options) -> anyhow::Result<ExitCode> {
    ensure!(options.kernel_size % 2 == 1, "expected an odd kernel size, got {}", options.kernel_size);
    let extents = [options.batch, options.side].into_iter().chain(options.channels.iter().copied());
    ensure!(
        !extents.into_iter().any(|extent| extent == 0),
        "--batch, --side and --channels must be at least 1"
    );
    say!("training step of a depthwise convolution, ms (p10 median p90)");
    say!("{:>18} {:>24} {:>24} {:>24}", "shape", "Burn's conv2d", "reference, autodiff", "layer");
    for &channels in &options.channels {
        let side = (options.side * 96 / channels).max(1);
        line::<B>(options, channels, side)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn line<B: WtConvBackend>(options: &Options, channels: usize, side: usize) -> anyhow::Result<()> {
    type A<B> = Autodiff<B>;
    let device = Default::default();
    let Options { batch, kernel_size: k, .. } = *options;
    let normal = Distribution::Normal(0.0, 1.0);
    let x = Tensor::<A<B>, 4>::random([batch, channels, side, side], normal, &device).require_grad();
    let filters = Tensor::<A<B>, 4>::random([channels, 1, k, k], normal, &device).require_grad();
    let padding = ConvOptions::new([1, 1], [k / 2, k / 2], [1, 1], channels);

    let by_burn = || conv2d(x.clone(), filters.clone(), None, padding.clone());
    let by_reference = || reference::depthwise_conv2d(x.clone(), filters.clone(), None, 1);
    let by_layer = || depthwise_conv2d(x.clone(), filters.clone(), None, 1);

    let filter_gradient = |y: Tensor<A<B>, 4>| {
        let gradients = y.square().mean().backward();
        x.grad(&gradients).and(filters.grad(&gradients))
    };
    let expected = filter_gradient(by_burn());
    for (what, got) in
        [("reference", filter_gradient(by_reference())), ("layer", filter_gradient(by_layer()))]
    {
        let (Some(expected), Some(got)) = (&expected, got) else {
            anyhow::bail!("no filter gradient");
        };
        let values = |tensor: Tensor<B, 4>| tensor.into_data().iter::<f64>().collect::<Vec<_>>();
        let error = wtconv_oracle::relative_error(&values(got), &values(expected.clone()));
        ensure!(error < 1e-4, "the filter gradient of the {what} is wrong: relative error {error:e}");
    }

    let step = |forward: &dyn Fn() -> Tensor<A<B>, 4>| -> anyhow::Result<String> {
        let mut step = Step::<B> { call: &|| drop(filter_gradient(forward())), device: &device };
        let Timing { p10_ms, median_ms, p90_ms, .. } = measure(&mut step, &Schedule::default())?.timing;
        Ok(format!("{p10_ms:.2} {median_ms:.2} {p90_ms:.2}"))
    };
    say!(
        "{:>18} {:>24} {:>24} {:>24}",
        format!("{batch}x{channels}x{side}x{side}"),
        step(&by_burn)?,
        step(&by_reference)?,
        step(&by_layer)?
    );
    Ok(())
}

struct Step<'a, B: WtConvBackend> {
    call: &'a dyn Fn(),
    device: &'a B::Device,
}

impl<B: WtConvBackend> Work for Step<'_, B> {
    fn call(&mut self) -> anyhow::Result<()> {
        (self.call)();
        Ok(())
    }

    fn sync(&self) -> anyhow::Result<()> {
        B::sync(self.device).map_err(|error| anyhow!("the device failed: {error}"))
    }
}
