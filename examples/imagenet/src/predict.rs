//! The most probable classes of image files.

use burn::data::dataloader::batcher::Batcher;
use burn::tensor::activation::softmax;
use clap::{Args, ValueHint};
use fast_image_resize::Resizer;
use std::path::{Path, PathBuf};
use wtconvnext::WtConvNext;

use crate::backend::{BackendKind, BackendTask, TrainBackend};
use crate::data::augment::{Transform, normalize};
use crate::data::batch::{ImageBatch, ImageBatcher, Sample};
use crate::data::decode::{DecodeError, decode_rgb};
use crate::data::folder::{FolderError, images_in};
use crate::data::{Stream, stream};
use crate::error::Error;
use crate::evaluate::eval_transform;
use crate::runs;
use crate::train::checkpoint::{Checkpoint, State};

/// Images that go through the model at once.
const BATCH: usize = 32;

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
    /// Where to compute
    #[arg(long, value_enum, default_value_t)]
    pub backend: BackendKind,
}

/// Classes and probabilities of one image, the most probable first.
pub type Prediction = Vec<(String, f32)>;

/// `imagenet predict`: prints the top classes of each image.
///
/// # Errors
///
/// Any [`Error`] of the checkpoint, the backend or a folder without images; [`Error::Predict`] at the end if some images could
/// not be read.
pub fn run(args: PredictArgs) -> Result<(), Error> {
    args.backend.check()?;
    let images = files(&args.images)?;
    let checkpoint = runs::find_checkpoint(args.checkpoint.as_deref(), args.best)?;
    let state = checkpoint.state()?;
    println!("{}", checkpoint.path().display());
    args.backend.run(Task { images, top: usize::from(args.top), checkpoint, state })?
}

/// The files among `paths`, and in the place of a folder its images.
fn files(paths: &[PathBuf]) -> Result<Vec<PathBuf>, FolderError> {
    let mut files = Vec::new();
    for path in paths {
        if path.is_dir() {
            files.extend(images_in(path)?);
        } else {
            // One that is not there is reported beside those that cannot be decoded.
            files.push(path.clone());
        }
    }
    Ok(files)
}

struct Task {
    images: Vec<PathBuf>,
    top: usize,
    checkpoint: Checkpoint,
    state: State,
}

impl BackendTask for Task {
    type Output = Result<(), Error>;

    fn run<B: TrainBackend>(self, device: B::Device) -> Self::Output {
        let model: WtConvNext<B::InnerBackend> = self.checkpoint.model(&self.state, &device)?;
        let mut failed = 0;
        for images in self.images.chunks(BATCH) {
            for (path, prediction) in images.iter().zip(predict::<B>(&model, &self.state, images, &device)) {
                match prediction {
                    Ok(prediction) => self.print(path, &prediction),
                    Err(error) => {
                        failed += 1;
                        eprintln!("error: {error}");
                    }
                }
            }
        }
        if failed > 0 {
            return Err(Error::Predict { failed, images: self.images.len() });
        }
        Ok(())
    }
}

impl Task {
    fn print(&self, path: &Path, prediction: &Prediction) {
        println!("{}", path.display());
        for (class, probability) in prediction.iter().take(self.top) {
            println!("  {:5.1} %  {class}", 100.0 * probability);
        }
    }
}

/// Runs the model on image files, in one batch.
///
/// A file that cannot be read has an error in its place.
pub fn predict<B: TrainBackend>(
    model: &WtConvNext<B::InnerBackend>,
    state: &State,
    images: &[PathBuf],
    device: &B::Device,
) -> Vec<Result<Prediction, DecodeError>> {
    let transform = eval_transform(state);
    let mut resizer = Resizer::new();
    let mut samples = Vec::new();
    let failures: Vec<Option<DecodeError>> = images
        .iter()
        .map(|path| read(path, &transform, &mut resizer).map(|sample| samples.push(sample)).err())
        .collect();
    if samples.is_empty() {
        return failures.into_iter().map(|failure| Err(failure.expect("no image was read"))).collect();
    }

    let batcher = ImageBatcher { input_size: state.input_size as usize };
    let batch: ImageBatch<B::InnerBackend> = batcher.batch(samples, device);
    let probabilities: Vec<f32> = softmax(model.forward(batch.images), 1).into_data().iter::<f32>().collect();
    let mut rows = probabilities.chunks_exact(state.classes.len()).map(|row| rank(&state.classes, row));
    failures
        .into_iter()
        .map(|failure| match failure {
            Some(error) => Err(error),
            None => Ok(rows.next().expect("one row for each image that was read")),
        })
        .collect()
}

fn read(path: &Path, transform: &Transform, resizer: &mut Resizer) -> Result<Sample, DecodeError> {
    let image = decode_rgb(path)?;
    // Prediction crops the centre and draws nothing from the stream.
    let image = transform.apply(&image, &mut stream(0, Stream::Augment, 0, 0), resizer);
    Ok(Sample { pixels: normalize(&image), label: 0 })
}

fn rank(classes: &[String], probabilities: &[f32]) -> Prediction {
    let mut ranked: Prediction = classes.iter().cloned().zip(probabilities.iter().copied()).collect();
    ranked.sort_by(|a, b| b.1.total_cmp(&a.1));
    ranked
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_probable_class_comes_first() {
        let classes = ["a", "b", "c"].map(String::from);
        let ranked = rank(&classes, &[0.2, 0.7, 0.1]);
        let names: Vec<_> = ranked.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["b", "a", "c"]);
    }
}
