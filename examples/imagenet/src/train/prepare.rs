//! Everything that is read and checked before a run writes its first file.

use burn::data::dataset::Dataset;
use burn::train::Interrupter;
use clap::builder::RangedU64ValueParser;
use clap::{Args, ValueHint};
use std::path::{Path, PathBuf};
use wtconvnext::WtConvNextConfig;

use super::checkpoint::{Checkpoint, CheckpointError, Damage, RunFolder, State};
use super::devices::{DeviceSelection, DevicesError};
use super::dtype::ForwardDtype;
use super::progress::Display;
use super::run::{Outcome, TrainTask};
use crate::backend::{BackendTask, TrainBackend};
use crate::config::{ConfigArgs, TrainConfig, check_utf8};
use crate::data::decode::decode_rgb;
use crate::data::folder::{ImageFolder, Splits, shipped};
use crate::error::Error;
use crate::model::{model_config, useless_levels};
use crate::runs;

/// Flags of `train`.
#[derive(Args, Clone, Debug, Default)]
pub struct TrainArgs {
    /// Folder of the run [default: runs/NETWORK-SIZE-DATA]
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub out: Option<PathBuf>,
    /// Continue the run in its folder from its last checkpoint, exactly; if that is damaged, from the newest before it that is whole
    #[arg(long)]
    pub resume: bool,
    /// Stop, as Ctrl-C would, after so many updates (to be resumed; for queues with a time limit)
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    pub stop_after: Option<usize>,
    /// Train on several devices at once: indices as in 0,1, or `all`. On the CPU each index is a worker, and `all` is one. The batch
    /// size counts the images of all devices [default: the backend's default device]
    #[arg(long, value_name = "LIST")]
    pub devices: Option<DeviceSelection>,
    /// Print the whole configuration, of defaults, preset, file and flags, as TOML for --config, and train nothing; --out,
    /// --stop-after and --devices do not belong to it
    #[arg(long, conflicts_with = "resume")]
    pub print_config: bool,
    /// What the run depends on.
    #[command(flatten)]
    pub settings: ConfigArgs,
}

/// A run whose configuration and data have been checked.
#[derive(Debug)]
pub struct Prepared {
    pub(super) config: TrainConfig,
    pub(super) devices: DeviceSelection,
    pub(super) data: PathBuf,
    pub(super) splits: Splits,
    pub(super) model: WtConvNextConfig,
    pub(super) run: RunFolder,
    pub(super) resume_from: Option<(Checkpoint, State)>,
    /// The checkpoints after that one, the newest first.
    damaged: Vec<Damage>,
    pub(super) stop_after: Option<usize>,
}

impl Prepared {
    /// Reads configuration and data, and checks everything that can be checked before training.
    ///
    /// # Errors
    ///
    /// Any [`Error`]; nothing has been written.
    pub fn new(args: TrainArgs) -> Result<Self, Error> {
        let (config, data, run) = if args.resume {
            resumed(&args.settings, args.out)?
        } else {
            let (config, data) = with_data(args.settings.resolve()?)?;
            let run = RunFolder::new(args.out.unwrap_or_else(|| runs::default_folder(&config, &data)));
            (config, data, run)
        };
        config.backend.check()?;
        let devices = args.devices.unwrap_or(DeviceSelection::List(vec![0]));
        config.backend.run(CheckDevices(&devices, &config))??;

        if !args.resume && !run.checkpoints()?.is_empty() {
            return Err(Error::RunExists { path: run.path().to_path_buf() });
        }
        run.check_writable()?;
        let splits = Splits::open(&data)?;
        readable(&splits.train)?;
        readable(&splits.val)?;
        let model = model_config(&config, splits.train.classes().len());
        if let Some(advice) = useless_levels(&model, config.input_size) {
            log::warn!("{advice}");
        }
        // Building the model is the only complete check of its configuration. Its parameters are not drawn yet.
        config.backend.run(CheckModel(&model, config.dtype))??;
        let (mut resume_from, mut damaged) = (None, Vec::new());
        if let Some((checkpoint, state, newer)) = run.newest_whole()? {
            checkpoint.expect_model(&state, &model)?;
            checkpoint.expect_average(&state, config.ema_decay)?;
            same_images(&state, &splits, &data)?;
            for Damage { error, .. } in &newer {
                log::warn!(
                    "{error}; going on from the newest checkpoint before it that is whole, {}",
                    checkpoint.path().display()
                );
            }
            resume_from = Some((checkpoint, state));
            damaged = newer;
        }
        let stop_after = args.stop_after;
        Ok(Self { config, devices, data, splits, model, run, resume_from, damaged, stop_after })
    }

    /// The run's folder.
    pub fn folder(&self) -> &Path {
        self.run.path()
    }

    /// Trains. `interrupter` ends the run after the update at hand.
    ///
    /// # Errors
    ///
    /// Any [`Error`]; the last checkpoint stays usable.
    pub fn train(self, interrupter: Interrupter, display: Display) -> Result<Outcome, Error> {
        // Held until the run ends. What another process has written since this run was prepared is seen now.
        let lock = self.run.lock()?;
        let resumed = self.resume_from.as_ref().map(|(checkpoint, _)| checkpoint);
        let last = self.damaged.first().map(|damage| &damage.checkpoint).or(resumed);
        if self.run.checkpoints()?.last() != last {
            return Err(CheckpointError::Busy { path: self.folder().to_path_buf() }.into());
        }
        for Damage { checkpoint, .. } in &self.damaged {
            let kept = self.run.set_aside(checkpoint)?;
            log::warn!("{}: kept as {}", checkpoint.path().display(), kept.display());
        }
        self.run.create(&self.config.to_toml())?;
        let backend = self.config.backend;
        backend.run(TrainTask { prepared: self, lock, interrupter, display })?
    }
}

/// Builds a model to see whether it can be built, and whether the backend has its type.
struct CheckModel<'a>(&'a WtConvNextConfig, ForwardDtype);

impl BackendTask for CheckModel<'_> {
    type Output = Result<(), Error>;

    fn run<B: TrainBackend>(self, device: B::Device) -> Self::Output {
        self.1.check::<B>(&device)?;
        self.0.try_init::<B>(&device)?;
        Ok(())
    }
}

/// Looks for the devices of a run.
struct CheckDevices<'a>(&'a DeviceSelection, &'a TrainConfig);

impl BackendTask for CheckDevices<'_> {
    type Output = Result<(), DevicesError>;

    fn run<B: TrainBackend>(self, _default: B::Device) -> Self::Output {
        self.0.resolve::<B>(self.1.backend, self.1.batch_size).map(|_| ())
    }
}

/// Configuration, data and folder of a run that `--resume` continues.
fn resumed(settings: &ConfigArgs, out: Option<PathBuf>) -> Result<(TrainConfig, PathBuf, RunFolder), Error> {
    let run = match out {
        Some(out) => RunFolder::new(out),
        None => {
            // The flags that named the folder when the run began name it again.
            let (config, data) = with_data(settings.resolve()?)?;
            RunFolder::new(runs::default_folder(&config, &data))
        }
    };
    // One that may not be looked at is reported when it is read.
    if run.config_file().try_exists().is_ok_and(|exists| !exists) {
        return Err(Error::NothingToResume { path: run.path().to_path_buf() });
    }
    let config = settings.resume(TrainConfig::read(&run.config_file())?)?;
    let (config, data) = with_data(config)?;
    Ok((config, data, run))
}

/// The data folder, absolute so that the run can be resumed from elsewhere.
fn with_data(mut config: TrainConfig) -> Result<(TrainConfig, PathBuf), Error> {
    let data = match &config.data {
        Some(data) => {
            // A folder that is not there is reported when it is scanned.
            let data = data.canonicalize().unwrap_or_else(|_| data.clone());
            config.data = Some(data.clone());
            data
        }
        None => shipped()?,
    };
    check_utf8(&data)?;
    Ok((config, data))
}

/// Fails if no image of a split can be read; usually the first can. (Single ones that cannot are left out in training.)
fn readable(files: &ImageFolder) -> Result<(), Error> {
    let mut failure = None;
    for file in files.iter() {
        match decode_rgb(&file.path) {
            Ok(_) => return Ok(()),
            Err(error) => failure = failure.or(Some(error)),
        }
    }
    match failure {
        Some(first) => {
            Err(Error::Unreadable { path: files.path().to_path_buf(), images: files.len(), first })
        }
        None => Ok(()),
    }
}

/// Fails if the images are not those that the run began with.
fn same_images(state: &State, splits: &Splits, data: &Path) -> Result<(), Error> {
    let changed =
        |what, was: String, now: String| Error::DataChanged { path: data.to_path_buf(), what, was, now };
    if state.classes != splits.train.classes() {
        let (was, now) = (state.classes.join(", "), splits.train.classes().join(", "));
        return Err(changed("the list of classes", was, now));
    }
    let counts = [
        ("the number of training images", splits.train.len()),
        ("the number of validation images", splits.val.len()),
    ];
    for (was, (what, now)) in state.images.iter().zip(counts) {
        if *was != now {
            return Err(changed(what, was.to_string(), now.to_string()));
        }
    }
    Ok(())
}
