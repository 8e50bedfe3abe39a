//! What can stop a command.

use std::io;
use std::path::PathBuf;

use crate::backend::BackendMissing;
use crate::config::ConfigError;
use crate::count::count;
use crate::data::decode::DecodeError;
use crate::data::folder::FolderError;
use crate::data::loader::LoaderError;
use crate::predict::PredictError;
use crate::subbands::SubbandsError;
use crate::train::checkpoint::CheckpointError;
use crate::train::devices::DevicesError;
use crate::train::dtype::DtypeMissing;
use crate::train::parallel::DeviceError;

/// Any error of the example, with the file or the number that it is about.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A data folder.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// An image.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// The threads that read images.
    #[error(transparent)]
    Loader(#[from] LoaderError),
    /// A checkpoint.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// A backend.
    #[error(transparent)]
    Backend(#[from] BackendMissing),
    /// A floating-point type.
    #[error(transparent)]
    Dtype(#[from] DtypeMissing),
    /// The devices to train on.
    #[error(transparent)]
    Devices(#[from] DevicesError),
    /// A device that failed in training.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A contact sheet that does not fit memory.
    #[error(
        "the sheet and its batches have {pixels} pixels, at most {most} are drawn: fewer --rows, or a smaller --batch-size or --input-size"
    )]
    Preview {
        /// Pixels of all of them.
        pixels: u64,
        /// Pixels at most.
        most: u64,
    },
    /// The standard output cannot be written.
    #[error("cannot write to the standard output: {0}")]
    Output(#[source] io::Error),
    /// A model that cannot be built.
    #[error("model: {0}")]
    Model(#[from] wtconvnext::ConfigError),
    /// A model that cannot be written for other programs.
    #[error(transparent)]
    Export(#[from] wtconvnext::ExportError),
    /// A layer that is to be shown.
    #[error(transparent)]
    Subbands(#[from] SubbandsError),
    /// Ctrl-C cannot be caught.
    #[error("cannot handle Ctrl-C: {0}")]
    Interrupt(#[from] ctrlc::Error),
    /// The folder holds checkpoints already.
    #[error("{}: holds the checkpoints of a run; continue it with --resume, or choose another folder with --out DIR", path.display())]
    RunExists {
        /// The folder.
        path: PathBuf,
    },
    /// There is no run to continue.
    #[error("{}: no run to resume here", path.display())]
    NothingToResume {
        /// The folder.
        path: PathBuf,
    },
    /// The data set of a resumed run is not what it was.
    #[error("{}: the images have changed since this run began: {what} was {was} and is {now}", path.display())]
    DataChanged {
        /// The data set.
        path: PathBuf,
        /// What differs.
        what: &'static str,
        /// Its value when the run began.
        was: String,
        /// Its value now.
        now: String,
    },
    /// No image of a split could be read.
    #[error("{}: no image can be read, of {}; the first: {first}", path.display(), count(*.images, "file", "files"))]
    Unreadable {
        /// The split.
        path: PathBuf,
        /// Number of images.
        images: usize,
        /// The first failure.
        first: DecodeError,
    },
    /// The loss is infinite or not a number.
    #[error(
        "the loss became {loss} in epoch {epoch}, update {update}: try a lower --lr or more --warmup-epochs; checkpoints of complete \
         epochs, if there are any, are usable"
    )]
    Diverged {
        /// The loss.
        loss: f64,
        /// Counted from 1.
        epoch: usize,
        /// Counted from 1 within the epoch.
        update: usize,
    },
    /// The model gives no numbers for some validation images, so that its mean loss would not be that of the split.
    #[error(
        "in the validation after epoch {epoch} the model's outputs were infinite or not numbers for {not_finite} of {}: try a lower \
         --lr or more --warmup-epochs; checkpoints of complete epochs, if there are any, are usable",
        count(*.images, "image", "images")
    )]
    DivergedInValidation {
        /// Counted from 1.
        epoch: usize,
        /// Images whose outputs are not finite.
        not_finite: usize,
        /// Images that could be read.
        images: usize,
    },
    /// A single image that the model has no answer for.
    #[error(transparent)]
    Prediction(#[from] PredictError),
    /// `predict` has no answer for some images.
    #[error("{}", no_answer(*.unreadable, *.not_finite, *.images))]
    Predict {
        /// Images that could not be read.
        unreadable: usize,
        /// Images whose outputs are not finite.
        not_finite: usize,
        /// Images that were given.
        images: usize,
    },
    /// A model that gives no numbers.
    #[error(
        "{}: the model's outputs are infinite or not numbers for every image that can be read, {not_finite} of {}",
        path.display(),
        count(*.images, "file", "files")
    )]
    NotFinite {
        /// The split.
        path: PathBuf,
        /// Images whose outputs are not finite.
        not_finite: usize,
        /// Number of images.
        images: usize,
    },
    /// A place for results that takes none, found out before the work.
    #[error("{}: cannot be written: {source}; name another place with --out", path.display())]
    Unwritable {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The evaluation of other images has the name that this one would get.
    #[error(
        "{}: holds the evaluation on {theirs}, and would be replaced by that on {ours}; name another file with --out",
        path.display()
    )]
    OtherEvaluation {
        /// The file.
        path: PathBuf,
        /// The data set whose evaluation it holds.
        theirs: String,
        /// The data set that was to be evaluated.
        ours: String,
    },
    /// A receptive field without contributions.
    #[error("{name}: no receptive field: the contributions of all pixels add up to {total}")]
    NoField {
        /// The model or layer.
        name: String,
        /// The sum: 0, infinite or not a number.
        total: f64,
    },
    /// A folder that is to be searched or a file that is to be written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The path.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// There is no run to take a checkpoint from.
    #[error("no run with a checkpoint under {}: train first, or pass --checkpoint DIR", path.display())]
    NoRuns {
        /// The folder that holds runs.
        path: PathBuf,
    },
}

/// What `predict` says at its end.
fn no_answer(unreadable: usize, not_finite: usize, images: usize) -> String {
    let images = count(images, "image", "images");
    match (unreadable, not_finite) {
        (unreadable, 0) => format!("could not read {unreadable} of {images}"),
        (0, not_finite) => format!("the model's outputs are not finite for {not_finite} of {images}"),
        _ => format!(
            "could not read {unreadable} of {images}, and the model's outputs are not finite for {not_finite}"
        ),
    }
}
