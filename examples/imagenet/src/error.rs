//! What can stop a command.

use std::io;
use std::path::PathBuf;

use crate::backend::BackendMissing;
use crate::config::ConfigError;
use crate::count::count;
use crate::data::decode::DecodeError;
use crate::data::folder::FolderError;
use crate::data::loader::LoaderError;
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
        "the loss became {loss} in epoch {epoch}, update {update}: try a lower --lr or more --warmup-epochs; the last checkpoint, if there is one, is usable"
    )]
    Diverged {
        /// The loss.
        loss: f64,
        /// Counted from 1.
        epoch: usize,
        /// Counted from 1 within the epoch.
        update: usize,
    },
    /// `predict` could not read some images.
    #[error("could not read {failed} of {}", count(*.images, "image", "images"))]
    Predict {
        /// Images that failed.
        failed: usize,
        /// Images that were given.
        images: usize,
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
