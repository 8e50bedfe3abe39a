//! `model`: whole models end to end, and how much of it the mixing layers are.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::Ordering;

use anyhow::{Context, anyhow};
use burn::backend::Autodiff;
use burn::module::{AutodiffModule, Module, ModuleMapper, ModuleVisitor, Param};
use burn::optim::adaptor::OptimizerAdaptor;
use burn::optim::{AdamW, AdamWConfig, GradientsParams, Optimizer};
use burn::tensor::activation::log_softmax;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{DType, Distribution, Int, Tensor};
use clap::builder::RangedU64ValueParser;
use clap::{Args, ValueEnum};
use wtconvnext::{Mixer, WtConvNext, WtConvNextConfig};

use crate::attempt::attempt;
use crate::cases::{Case, Dtype, Layout, Pass, Route, Shape};
use crate::measure::{INTERRUPTED, Schedule, Work, measure};
use crate::memory::Room;
use crate::operands::{Call, Input, Parameters};
use crate::progress::Progress;
use crate::report::{self, table::ending};
use crate::results::{ModelRow, NOT_REACHED, Results, Status, UNFINISHED, commit};
use crate::sweep::{conclude, distinct, one_line, peak_memory};
use crate::target::Target;

/// Options of `model`.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Models by name
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "wtconvnext-t,convnext-t,wtconvnext-s,convnext-s,wtconvnext-b,convnext-b"
    )]
    model: Vec<String>,
    /// Element types of images and parameters
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Dtype::F32])]
    dtype: Vec<Dtype>,
    /// What to run
    #[arg(long, value_enum, value_delimiter = ',', default_value = "inference,train")]
    mode: Vec<Mode>,
    /// Images of a batch
    #[arg(long, default_value_t = 64, value_parser = at_least(1))]
    batch: usize,
    /// Height and width of the images, at least 32
    #[arg(long, default_value_t = 224, value_parser = at_least(SMALLEST_SIDE))]
    size: usize,
    /// Width of the logits
    #[arg(long, default_value_t = 1000, value_parser = at_least(1))]
    classes: usize,
    /// Order of the axes in memory for the mixing layers alone; in the models it is nhwc
    #[arg(long, value_enum, default_value_t = Layout::Nhwc)]
    layout: Layout,
    /// Where results.json and report.md go
    #[arg(long, value_name = "DIR", default_value = "target/bench/model")]
    out: PathBuf,
    /// The commit to record [default: the one checked out]
    #[arg(long, value_parser = commit)]
    commit: Option<String>,
}

/// Side of the images of which the four stages leave a pixel; the models take none that are smaller.
const SMALLEST_SIDE: u64 = 32;

/// No product of two such numbers overflows.
fn at_least(least: u64) -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(least..=1 << 24)
}

/// What of a model is timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Mode {
    /// The forward, without autodiff
    Inference,
    /// Forward, cross entropy and the gradients of all parameters
    Train,
    /// The same and a step of AdamW
    TrainAdamw,
}

impl Mode {
    fn name(self) -> &'static str {
        match self {
            Self::Inference => "inference",
            Self::Train => "train",
            Self::TrainAdamw => "train-adamw",
        }
    }
}

/// One row to be.
struct Job {
    name: String,
    config: WtConvNextConfig,
    dtype: Dtype,
    mode: Mode,
}

/// Measures every model and writes everything.
pub(crate) fn run<B: Target>(backend: &str, options: &Options) -> anyhow::Result<ExitCode> {
    Shape::new([options.batch, 3, options.size, options.size])?;
    let mut jobs = Vec::new();
    for name in distinct(&options.model) {
        let config = WtConvNextConfig::named(&name, options.classes)?;
        for dtype in distinct(&options.dtype) {
            for mode in distinct(&options.mode) {
                jobs.push(Job { name: name.clone(), config: config.clone(), dtype, mode });
            }
        }
    }
    Results::try_directory(&options.out)?;
    let device = B::Device::default();
    let mut results = Results::begin::<B>(backend, options.commit.as_deref(), &device);
    results.method.extend(mixing_method(options.layout));
    results.models = jobs.iter().map(|job| blank_row(job, options)).collect();
    let mut progress = Progress::new(jobs.len());
    for (at, job) in jobs.iter().enumerate() {
        if INTERRUPTED.load(Ordering::Relaxed) {
            results.models[at].reason = Some("interrupted".to_owned());
            progress.skip();
            continue;
        }
        let words = format!("{} {} {}", job.name, job.dtype, job.mode.name());
        progress.say(words.clone());
        results.models[at].reason = Some(UNFINISHED.to_owned());
        results.write(&options.out)?;
        let row = &mut results.models[at];
        measure_row::<B>(row, job, options, &device);
        progress.finish(&format!("{words}: {}", ending(row.status, row.timing, row.reason.as_deref())));
    }
    drop(progress);
    report::write(&results, &options.out)?;
    Ok(conclude(&results, INTERRUPTED.load(Ordering::Relaxed)))
}

/// How the fields of the mixing layers are to be read.
fn mixing_method(layout: Layout) -> [(String, String); 2] {
    let mixing_ms = format!(
        "the mixing layer alone at the shape of each stage ({layout}, contiguous), times the blocks of the stage, summed; \
         forward for inference, forward and backward for training; timed after the model, not within it"
    );
    let mixing_share = "mixing_ms over the model's median, two separate timings: an estimate of the layers' share of the \
                        model; none where it is above 1, which no share can be (alone, small layers wait for their \
                        launches)";
    [("mixing_ms".to_owned(), mixing_ms), ("mixing_share".to_owned(), mixing_share.to_owned())]
}

/// A row before it is measured.
fn blank_row(job: &Job, options: &Options) -> ModelRow {
    ModelRow {
        model: job.name.clone(),
        dtype: job.dtype,
        mode: job.mode.name().to_owned(),
        batch: options.batch,
        size: options.size,
        status: Status::Skipped,
        reason: Some(NOT_REACHED.to_owned()),
        first_call_ms: None,
        timing: None,
        images_per_second: None,
        peak_memory_bytes: None,
        mixing_ms: None,
        mixing_share: None,
    }
}

fn measure_row<B: Target>(row: &mut ModelRow, job: &Job, options: &Options, device: &B::Device) {
    let Job { config, dtype, mode, .. } = job;
    let needed = least_bytes(config, *dtype, *mode, options);
    if let Some(reason) = Room::now(B::tensor_memory(device)).refusal(needed, 0) {
        (row.status, row.reason) = (Status::Refused, Some(reason));
        return;
    }
    let outcome = attempt(|| {
        let mut step = Step::<B>::new(config, *dtype, *mode, options, device)?;
        let measured = measure(&mut step, &Schedule::default())?;
        row.first_call_ms = Some(measured.first_call_ms);
        row.timing = Some(measured.timing);
        row.images_per_second = Some(options.batch as f64 / (measured.timing.median_ms * 1e-3));
        row.peak_memory_bytes = peak_memory::<B>(&mut step, device)?;
        drop(step);
        let mixing = mixing_ms::<B>(config, *dtype, *mode, options, device)?;
        row.mixing_ms = Some(mixing);
        row.mixing_share = share(mixing, measured.timing.median_ms);
        Ok(())
    });
    (row.status, row.reason) = match outcome {
        Ok(()) => (Status::Measured, None),
        Err(_) if INTERRUPTED.load(Ordering::Relaxed) => (Status::Skipped, Some("interrupted".to_owned())),
        Err(error) => (Status::Failed, Some(one_line(&format!("{error:#}")))),
    };
}

/// Bytes of tensors that are in use at once, at least: the images and, of the mixing layers, the input of each for their
/// gradients, or input and output of the largest without gradients.
fn least_bytes(config: &WtConvNextConfig, dtype: Dtype, mode: Mode, options: &Options) -> u64 {
    let images = options.batch * config.in_channels * options.size * options.size;
    let stages = stages(config, options.batch, options.size).map(|case| case.shape.elements());
    let maps = match mode {
        Mode::Inference => 2 * stages.into_iter().max().unwrap_or(0),
        Mode::Train | Mode::TrainAdamw => {
            stages.iter().zip(config.depths).map(|(map, depth)| map * depth).sum()
        }
    };
    ((images + maps) * dtype.size()) as u64
}

/// `part` of `whole`, if it can be one: they are timed separately.
fn share(part: f64, whole: f64) -> Option<f64> {
    Some(part / whole).filter(|share| *share <= 1.0)
}

/// Milliseconds of all mixing layers of a model, each alone.
fn mixing_ms<B: Target>(
    config: &WtConvNextConfig,
    dtype: Dtype,
    mode: Mode,
    options: &Options,
    device: &B::Device,
) -> anyhow::Result<f64> {
    let pass = if mode == Mode::Inference { Pass::Forward } else { Pass::Train };
    let mut sum = 0.0;
    for (stage, case) in stages(config, options.batch, options.size).into_iter().enumerate() {
        let input = Input::<B>::random(case.shape, dtype, options.layout, device);
        let parameters = Parameters::random(&case, dtype, device);
        let call = |route| Call::new(route, pass, &input, &parameters);
        let mut call = match config.mixer {
            Mixer::Depthwise => call(Route::Depthwise(case.kernel_size)),
            Mixer::Conv2d => call(Route::Conv2d(case.kernel_size)),
            // As the model's own call goes: fused where the backend takes it.
            Mixer::WtConv => Some(call(Route::Fused))
                .filter(|call| call.refusal().is_none())
                .unwrap_or_else(|| call(Route::TensorOps)),
        };
        let measured = measure(&mut call, &Schedule::default())?;
        sum += measured.timing.median_ms * config.depths[stage] as f64;
    }
    Ok(sum)
}

/// The mixing layers of a model: one case a stage.
fn stages(config: &WtConvNextConfig, batch: usize, size: usize) -> [Case; 4] {
    std::array::from_fn(|stage| {
        let side = ((size / 4) >> stage).max(1);
        Case {
            shape: Shape([batch, config.dims[stage], side, side]),
            levels: if config.mixer == Mixer::WtConv { config.levels[stage] } else { 0 },
            kernel_size: config.kernel_sizes[stage],
        }
    })
}

type AdamWOf<B> = OptimizerAdaptor<AdamW, WtConvNext<Autodiff<B>>, Autodiff<B>>;

/// One step of a model.
enum Step<B: Target> {
    Inference {
        model: WtConvNext<B>,
        images: Tensor<B, 4>,
    },
    Train {
        /// Taken and put back by the optimiser.
        model: Option<WtConvNext<Autodiff<B>>>,
        images: Tensor<B, 4>,
        labels: Tensor<B, 1, Int>,
        optimizer: Option<AdamWOf<B>>,
    },
}

impl<B: Target> Step<B> {
    fn new(
        config: &WtConvNextConfig,
        dtype: Dtype,
        mode: Mode,
        options: &Options,
        device: &B::Device,
    ) -> anyhow::Result<Self> {
        B::seed(device, 7);
        let Options { batch, size, classes, .. } = *options;
        let model = config.try_init::<Autodiff<B>>(device)?.map(&mut Cast(dtype.of_tensors()));
        let images = Tensor::<B, 4>::random(
            [batch, config.in_channels, size, size],
            Distribution::Normal(0.0, 1.0),
            device,
        )
        .cast(dtype.of_tensors());
        if mode == Mode::Inference {
            return Ok(Self::Inference { model: model.valid(), images });
        }
        let labels: Vec<i64> = (0..batch).map(|image| (image * 37 % classes) as i64).collect();
        let labels = Tensor::from_data(labels.as_slice(), device);
        let optimizer = (mode == Mode::TrainAdamw).then(|| AdamWConfig::new().init());
        Ok(Self::Train { model: Some(model), images, labels, optimizer })
    }
}

impl<B: Target> Work for Step<B> {
    fn call(&mut self) -> anyhow::Result<()> {
        match self {
            Self::Inference { model, images } => drop(model.forward(images.clone())),
            Self::Train { model: place, images, labels, optimizer } => {
                const LEARNING_RATE: f64 = 1e-4;
                let model = place.take().context("an earlier step failed")?;
                let logits = model.forward(Tensor::from_inner(images.clone()));
                let labels = Tensor::<Autodiff<B>, 1, Int>::from_inner(labels.clone());
                let gradients = GradientsParams::from_grads(cross_entropy(logits, labels).backward(), &model);
                *place = Some(match optimizer {
                    Some(optimizer) => optimizer.step(LEARNING_RATE, model, gradients),
                    None => {
                        model.visit(&mut DropInOrder(gradients));
                        model
                    }
                });
            }
        }
        Ok(())
    }

    fn sync(&self) -> anyhow::Result<()> {
        let (Self::Inference { images, .. } | Self::Train { images, .. }) = self;
        B::sync(&images.device()).map_err(|error| anyhow!("the device failed: {error}"))
    }
}

/// The mean over the batch.
fn cross_entropy<B: Backend>(logits: Tensor<B, 2>, labels: Tensor<B, 1, Int>) -> Tensor<B, 1> {
    let [batch, _] = logits.dims();
    -log_softmax(logits, 1).gather(1, labels.reshape([batch, 1])).mean()
}

/// Drops the gradients in the order of the parameters, as an optimiser does that has used them. A map's own order is another each
/// time, and Fusion finds none of its plans again where tensors are dropped in another order.
struct DropInOrder(GradientsParams);

impl<B: AutodiffBackend> ModuleVisitor<B> for DropInOrder {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        drop(self.0.remove::<B::InnerBackend, D>(param.id));
    }
}

/// Casts every float parameter, which stays a leaf.
struct Cast(DType);

impl<B: AutodiffBackend> ModuleMapper<B> for Cast {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        let dtype = self.0;
        param.map(|tensor| Tensor::from_inner(tensor.inner().cast(dtype)).require_grad())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_more_than_the_whole_is_no_share_of_it() {
        assert_eq!(share(1.0, 4.0), Some(0.25));
        assert_eq!(share(4.0, 4.0), Some(1.0));
        assert_eq!(share(5.0, 4.0), None);
    }

    #[test]
    fn stages_are_those_of_the_presets() {
        let presets = crate::cases::Preset::WtconvnextT.cases();
        assert_eq!(stages(&WtConvNextConfig::tiny(10), 64, 224).to_vec(), presets);
        let [first, .., last] = stages(&WtConvNextConfig::convnext_tiny(10), 2, 32);
        assert_eq!((first.levels, first.kernel_size), (0, 7));
        assert_eq!(last.shape, Shape([2, 768, 1, 1]));
    }
}
