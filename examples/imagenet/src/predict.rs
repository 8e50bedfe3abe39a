//! The most probable classes of image files.

use burn::tensor::activation::softmax;
use burn::tensor::backend::Backend;
use burn_wtconv::WtConvBackend;
use clap::{Args, ValueHint};
use serde::Serialize;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::sync_channel;
use std::thread;
use std::time::Instant;
use wtconvnext::WtConvNext;

use crate::backend::{BackendKind, BackendTask, TrainBackend};
use crate::count::count;
use crate::data::batch::{ImageBatch, ImageBatcher, Sample};
use crate::data::decode::DecodeError;
use crate::data::folder::images_among;
use crate::data::loader::Workers;
use crate::error::Error;
use crate::evaluate::eval_transform;
use crate::output;
use crate::progress;
use crate::runs;
use crate::train::checkpoint::{Checkpoint, State};

/// Flags of `predict`.
#[derive(Args, Clone, Debug)]
pub struct PredictArgs {
    /// Image files, or folders whose .jpg, .jpeg and .png files are all taken
    #[arg(required = true, value_name = "IMAGE", value_hint = ValueHint::AnyPath)]
    pub images: Vec<PathBuf>,
    /// A run's folder, or one of its checkpoints [default: the newest run under runs]
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub checkpoint: Option<PathBuf>,
    /// The run's best checkpoint in validation instead of its last
    #[arg(long)]
    pub best: bool,
    /// Classes to print for each image
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..))]
    pub top: u16,
    /// Print a line of JSON for each image, in order, and nothing else; images that cannot be read have an "error"
    #[arg(long)]
    pub json: bool,
    /// With --json: the outputs of the model before softmax too, in the order of the labels
    #[arg(long, requires = "json")]
    pub logits: bool,
    /// Images that go through the model at once
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..))]
    pub batch_size: u16,
    /// Threads that decode images; 0 means one for each CPU
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u16).range(..=256))]
    pub workers: u16,
    /// Where to compute
    #[arg(long, value_enum, default_value_t)]
    pub backend: BackendKind,
}

/// A class and its probability.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ClassProbability {
    /// Name of the class.
    pub class: String,
    /// Softmax of the logits.
    pub probability: f32,
}

/// What the model says about one image.
#[derive(Clone, Debug, PartialEq)]
pub struct Prediction {
    /// All classes, the most probable first.
    pub classes: Vec<ClassProbability>,
    /// Outputs of the model, in the order of the labels.
    pub logits: Vec<f32>,
}

/// Why there is no answer for an image.
#[derive(Debug, thiserror::Error)]
pub enum PredictError {
    /// It cannot be read.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// The model's outputs are not numbers that could be ranked.
    #[error("{not_finite} of the model's {} not finite", count(*.outputs, "output is", "outputs are"))]
    NotFinite {
        /// Outputs that are infinite or not a number.
        not_finite: usize,
        /// Outputs.
        outputs: usize,
    },
}

impl PredictError {
    /// The error with the name of its image.
    fn about(&self, path: &Path) -> String {
        match self {
            Self::Decode(error) => error.to_string(),
            Self::NotFinite { .. } => format!("{}: {self}", path.display()),
        }
    }
}

/// A line of `--json`. Paths that are not Unicode are written with replacement characters.
#[derive(Serialize)]
struct Line<'a> {
    path: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    classes: Option<&'a [ClassProbability]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    logits: Option<&'a [f32]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// `imagenet predict`: prints the top classes of each image, and on stderr how many images a second that were.
///
/// # Errors
///
/// Any [`Error`] of the checkpoint, the backend or a folder without images; [`Error::Predict`] at the end if some images could
/// not be read or have outputs that are not finite.
pub fn run(args: PredictArgs) -> Result<(), Error> {
    args.backend.check()?;
    let images = images_among(&args.images)?;
    let (checkpoint, state) = runs::open_checkpoint(args.checkpoint.as_deref(), args.best)?;
    if !args.json {
        output::line(checkpoint.path().display())?;
    }
    let backend = args.backend;
    backend.run(Task { args, images, checkpoint, state })?
}

struct Task {
    args: PredictArgs,
    images: Vec<PathBuf>,
    checkpoint: Checkpoint,
    state: State,
}

impl BackendTask for Task {
    type Output = Result<(), Error>;

    fn run<B: TrainBackend>(self, device: B::Device) -> Self::Output {
        let model: WtConvNext<B::InnerBackend> = self.checkpoint.model(&self.state, &device)?;
        let workers = Workers::start(usize::from(self.args.workers))?;
        let transform = eval_transform(&self.state);
        let bar = progress::bar(self.images.len(), "images");
        let start = Instant::now();
        let (mut unreadable, mut not_finite) = (0, 0);
        let (read, to_stack) = sync_channel(0);
        let (stacked, to_predict) = sync_channel(0);
        let printed = thread::scope(|scope| {
            let (images, batch_size) = (&self.images, usize::from(self.args.batch_size));
            // While the model is busy with a batch, the next is stacked and copied to the device, and the one after it is read. The
            // receivers are gone when nobody reads what is printed.
            scope.spawn(move || {
                for images in images.chunks(batch_size) {
                    if read.send((images, workers.read(images, &transform))).is_err() {
                        break;
                    }
                }
            });
            let (state, device) = (&self.state, &device);
            scope.spawn(move || {
                for (images, samples) in to_stack {
                    if stacked.send((images, Stacked::new(samples, state, device))).is_err() {
                        break;
                    }
                }
            });
            for (images, batch) in to_predict {
                for (path, prediction) in images.iter().zip(batch.predict(&model, &self.state)) {
                    match &prediction {
                        Ok(_) => {}
                        Err(PredictError::Decode(_)) => unreadable += 1,
                        Err(PredictError::NotFinite { .. }) => not_finite += 1,
                    }
                    bar.suspend(|| self.print(path, prediction))?;
                }
                bar.inc(images.len() as u64);
            }
            Ok(())
        });
        bar.finish_and_clear();
        match printed {
            // `imagenet predict ... | head` has seen enough.
            Err(error) if io::Error::kind(&error) == io::ErrorKind::BrokenPipe => return Ok(()),
            Err(source) => return Err(Error::Io { path: "standard output".into(), source }),
            Ok(()) => {}
        }
        let seconds = start.elapsed().as_secs_f64();
        let images = self.images.len();
        let rate = images as f64 / seconds;
        eprintln!("{} in {seconds:.1} s, {rate:.1} images/s", count(images, "image", "images"));
        if unreadable + not_finite > 0 {
            return Err(Error::Predict { unreadable, not_finite, images });
        }
        Ok(())
    }
}

impl Task {
    /// Prints what was found about an image. Without `--json`, an image without an answer is named on stderr.
    fn print(&self, path: &Path, prediction: Result<Prediction, PredictError>) -> io::Result<()> {
        let top = usize::from(self.args.top);
        let mut output = io::stdout().lock();
        if self.args.json {
            let name = path.to_string_lossy();
            let line = match &prediction {
                Ok(Prediction { classes, logits }) => Line {
                    path: &name,
                    classes: Some(&classes[..top.min(classes.len())]),
                    logits: self.args.logits.then_some(logits),
                    error: None,
                },
                Err(error) => {
                    Line { path: &name, classes: None, logits: None, error: Some(error.about(path)) }
                }
            };
            return writeln!(
                output,
                "{}",
                serde_json::to_string(&line).expect("a line has string keys only")
            );
        }
        match prediction {
            Ok(Prediction { classes, .. }) => {
                writeln!(output, "{}", path.display())?;
                for ClassProbability { class, probability } in classes.iter().take(top) {
                    writeln!(output, "  {:5.1} %  {class}", 100.0 * probability)?;
                }
            }
            Err(error) => eprintln!("error: {}", error.about(path)),
        }
        Ok(())
    }
}

/// Runs the model on images that have been read, in one batch.
///
/// One that could not be read keeps its error, in its place, and one whose outputs are not finite gets one.
pub fn predict<B: WtConvBackend>(
    model: &WtConvNext<B>,
    state: &State,
    images: Vec<Result<Sample, DecodeError>>,
    device: &B::Device,
) -> Vec<Result<Prediction, PredictError>> {
    Stacked::new(images, state, device).predict(model, state)
}

/// Images that have been read, on the device, and what is known of those that could not be read.
struct Stacked<B: Backend> {
    /// `None` if no image could be read.
    images: Option<ImageBatch<B>>,
    /// One for each image, in order.
    failures: Vec<Option<DecodeError>>,
}

impl<B: WtConvBackend> Stacked<B> {
    fn new(images: Vec<Result<Sample, DecodeError>>, state: &State, device: &B::Device) -> Self {
        let batcher = ImageBatcher { input_size: state.input_size as usize };
        let mut samples = Vec::new();
        let failures =
            images.into_iter().map(|image| image.map(|sample| samples.push(sample)).err()).collect();
        let images = (!samples.is_empty()).then(|| batcher.stack(&samples).to_device(device));
        Self { images, failures }
    }

    fn predict(self, model: &WtConvNext<B>, state: &State) -> Vec<Result<Prediction, PredictError>> {
        let Self { images, failures } = self;
        let Some(ImageBatch { images, .. }) = images else {
            return failures.into_iter().flatten().map(|error| Err(error.into())).collect();
        };
        let logits = model.forward(images);
        let probabilities: Vec<f32> = softmax(logits.clone(), 1).into_data().iter::<f32>().collect();
        let logits: Vec<f32> = logits.into_data().iter::<f32>().collect();
        let classes = state.classes.len();
        let mut rows = logits.chunks_exact(classes).zip(probabilities.chunks_exact(classes)).map(
            |(logits, probabilities)| Prediction {
                classes: rank(&state.classes, probabilities),
                logits: logits.to_vec(),
            },
        );
        failures
            .into_iter()
            .map(|failure| match failure {
                Some(error) => Err(error.into()),
                None => {
                    let prediction = rows.next().expect("one row for each image that was read");
                    let outputs = prediction.logits.len();
                    match prediction.logits.iter().filter(|output| !output.is_finite()).count() {
                        0 => Ok(prediction),
                        not_finite => Err(PredictError::NotFinite { not_finite, outputs }),
                    }
                }
            })
            .collect()
    }
}

fn rank(classes: &[String], probabilities: &[f32]) -> Vec<ClassProbability> {
    let mut ranked: Vec<_> = classes
        .iter()
        .zip(probabilities)
        .map(|(class, &probability)| ClassProbability { class: class.clone(), probability })
        .collect();
    ranked.sort_by(|a, b| b.probability.total_cmp(&a.probability));
    ranked
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_probable_class_comes_first() {
        let classes = ["a", "b", "c"].map(String::from);
        let ranked = rank(&classes, &[0.2, 0.7, 0.1]);
        let names: Vec<_> = ranked.iter().map(|of| (of.class.as_str(), of.probability)).collect();
        assert_eq!(names, [("b", 0.7), ("a", 0.2), ("c", 0.1)]);
    }
}
