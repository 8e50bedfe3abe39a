//! The folder of a run and its checkpoints.
//!
//! ```text
//! runs/NAME/config.toml                            the whole configuration
//! runs/NAME/history.json, curves.svg               past epochs
//! runs/NAME/checkpoints/epoch-0003/                model.mpk, optimizer.mpk, state.json; ema.mpk if there is an average
//! runs/NAME/checkpoints/epoch-0003-update-00012/   the same, interrupted 12 updates into the fourth epoch
//! ```
//!
//! A checkpoint appears under its name only when it is complete and on the disk, and is never written again.

use burn::module::Module;
use burn::record::{FullPrecisionSettings, NamedMpkBytesRecorder, Record, Recorder, RecorderError};
use burn::tensor::backend::Backend;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use wtconvnext::{WtConvNext, WtConvNextConfig};

use super::history::EpochRecord;
use super::lock::{Place, RunLock};
use super::metrics::Totals;
use crate::atomic;
use crate::config::INPUT_SIZES;
use crate::count::count;
use crate::shell::quoted_path;

const CHECKPOINTS: &str = "checkpoints";
const MODEL: &str = "model.mpk";
const EMA: &str = "ema.mpk";
const OPTIMIZER: &str = "optimizer.mpk";
const STATE: &str = "state.json";

/// Version of the files, to be raised when an older program could misread them. Since 2 there may be averaged weights.
const FORMAT: u32 = 2;

/// Why a checkpoint cannot be used or written.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// Another process trains in the folder.
    #[error("{}: another process is training here; wait for it, or choose another folder with --out DIR", path.display())]
    Busy {
        /// The folder.
        path: PathBuf,
    },
    /// The folder of a run in progress was removed, and another run has been there since.
    #[error(
        "{}: another folder is in the place of this run's, with the checkpoints of another run; move that one away, so that this one \
         can write again",
        path.display()
    )]
    Replaced {
        /// The folder.
        path: PathBuf,
    },
    /// Neither a run nor a checkpoint.
    #[error("{}: no checkpoint here; expected the folder of a run or one of its checkpoints", path.display())]
    NotFound {
        /// What was given.
        path: PathBuf,
    },
    /// The best checkpoint of a run that has not been validated yet.
    #[error(
        "{}: no checkpoint here is of a complete, validated epoch, so that none is the best; leave --best out to take the last",
        path.display()
    )]
    NotValidated {
        /// The run.
        path: PathBuf,
    },
    /// The best of a single checkpoint.
    #[error("{}: this is one checkpoint; --best chooses among those of a run, so name the run's folder or leave --best out", path.display())]
    BestOfOne {
        /// The checkpoint.
        path: PathBuf,
    },
    /// A file cannot be read.
    #[error("{}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A file is not what a checkpoint holds, or was changed after it was written.
    #[error("{}: damaged or not part of this checkpoint: {reason}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// A newer program wrote it.
    #[error("{}: format {format}, this program reads formats up to {FORMAT}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// Its version.
        format: u32,
    },
    /// No checkpoint of a run can be read.
    #[error("{}: none of its {} can be used; the newest: {newest}", path.display(), count(*.checkpoints, "checkpoint", "checkpoints"))]
    NoneUsable {
        /// The run.
        path: PathBuf,
        /// How many it has.
        checkpoints: usize,
        /// Why the newest one cannot be used.
        newest: Box<CheckpointError>,
    },
    /// The checkpoint that was asked for is damaged. No other is used in its place, because it holds another model.
    #[error("{damage}; {}", other_checkpoint(whole.as_deref(), *.best))]
    Unusable {
        /// What is wrong with it, with the file.
        damage: Box<CheckpointError>,
        /// The newest checkpoint of its run that is whole, or with `best` the best of those.
        whole: Option<PathBuf>,
        /// Whether the best checkpoint was asked for.
        best: bool,
    },
    /// It holds another model than the run is configured for.
    #[error("{}: this checkpoint holds another model: it has {theirs}, the configuration asks for {ours}", path.display())]
    OtherModel {
        /// The checkpoint.
        path: PathBuf,
        /// The checkpoint's model.
        theirs: String,
        /// The configured model.
        ours: String,
    },
    /// It has averaged weights and the run is configured without, or the other way round.
    #[error(
        "{}: this checkpoint has {} averaged weights, but the run's configuration has ema_decay = {ema_decay}; it was changed after \
         the run began",
        path.display(),
        if *.ema_decay > 0.0 { "no" } else { "its" }
    )]
    OtherAverage {
        /// The checkpoint.
        path: PathBuf,
        /// The configured decay.
        ema_decay: f64,
    },
    /// The disk is full or refuses otherwise.
    #[error("{}: cannot write: {source}", path.display())]
    Write {
        /// What was to be written.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A checkpoint that is no longer kept stays.
    #[error("{}: cannot remove: {source}", path.display())]
    Remove {
        /// The checkpoint.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// Burn cannot turn the state into bytes.
    #[error("cannot serialize the training state: {0}")]
    Serialize(RecorderError),
}

/// What can be done about a damaged checkpoint.
fn other_checkpoint(whole: Option<&Path>, best: bool) -> String {
    let found = if best { "the best of this run's checkpoints" } else { "the newest checkpoint of this run" };
    match whole {
        Some(path) => {
            format!("{found} that is whole holds another model: --checkpoint {} takes it", quoted_path(path))
        }
        None => "no other checkpoint of this run is whole".to_string(),
    }
}

/// Everything about a checkpoint but the tensors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// Version of the files.
    pub format: u32,
    /// The model, to build it before its parameters are loaded.
    pub model: WtConvNextConfig,
    /// Names of the classes; the position is the label.
    pub classes: Vec<String>,
    /// Side of the model's input in pixels.
    pub input_size: u32,
    /// Share of the shorter side that validation keeps.
    pub crop_fraction: f64,
    /// The data set, to validate on by default.
    pub data: PathBuf,
    /// Training and validation images.
    pub images: [usize; 2],
    /// The epoch in progress, counted from 1; past the last one when the run is complete.
    pub epoch: usize,
    /// Updates of that epoch that are done.
    pub updates_done: usize,
    /// Record of the learning-rate schedule: updates of the run that are done.
    pub schedule: usize,
    /// Sums over the part of the epoch that is done.
    pub totals: Totals,
    /// Past epochs.
    pub history: Vec<EpochRecord>,
    /// How many devices the run is on; older checkpoints do not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub devices: Option<usize>,
    /// Checksums of the files of model and optimizer.
    pub checksums: [u64; 2],
    /// Checksum of the file of averaged weights, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ema_checksum: Option<u64>,
}

impl State {
    /// The version that [`Self::format`] has in new checkpoints.
    pub const FORMAT: u32 = FORMAT;

    /// What no run of this program can have written.
    fn contradiction(&self) -> Option<String> {
        let (outputs, classes) = (self.model.num_classes, self.classes.len());
        if !self.model.head || classes == 0 || outputs != classes {
            return Some(format!("the model has {outputs} outputs for {classes} classes"));
        }
        if !INPUT_SIZES.contains(&self.input_size) {
            return Some(format!("input_size = {} is not 32 to 4096", self.input_size));
        }
        if !(self.crop_fraction > 0.0 && self.crop_fraction <= 1.0) {
            return Some(format!("crop_fraction = {} is not above 0 and at most 1", self.crop_fraction));
        }
        let (past, records) = (self.epoch.saturating_sub(1), self.history.len());
        (self.epoch == 0 || past != records).then(|| format!("{records} records of {past} epochs"))
    }

    /// The file with the weights to use, and its checksum: the averaged ones if there are any.
    fn used_weights(&self) -> (&'static str, u64) {
        match self.ema_checksum {
            Some(checksum) => (EMA, checksum),
            None => (MODEL, self.checksums[0]),
        }
    }

    /// Accuracy on the validation images after the last complete epoch.
    pub fn val_accuracy(&self) -> Option<f64> {
        self.history.last().map(|record| record.val.accuracy)
    }
}

/// The folder of a run.
#[derive(Clone, Debug)]
pub struct RunFolder(PathBuf);

impl RunFolder {
    /// The run at `path`, which may not exist yet.
    pub fn new(path: PathBuf) -> Self {
        Self(path)
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Creates the folder and takes the run for this process, until the lock is dropped.
    ///
    /// # Errors
    ///
    /// [`CheckpointError::Busy`] if another process has it; [`CheckpointError::Write`].
    pub fn lock(&self) -> Result<RunLock, CheckpointError> {
        RunLock::take(&self.0)
    }

    /// Takes the run again and writes its configuration again, if its folder or one of the two has been removed since `lock` was taken.
    /// Returns whether it was.
    ///
    /// # Errors
    ///
    /// [`CheckpointError::Busy`] or [`CheckpointError::Replaced`] if the folder is now another run's, which is not touched;
    /// [`CheckpointError::Write`].
    pub fn restore(&self, lock: &mut RunLock, config: &str) -> Result<bool, CheckpointError> {
        let place = lock.place();
        if place == Place::There {
            let removed = !self.config_file().exists();
            if removed {
                self.create(config)?;
            }
            return Ok(removed);
        }
        let again = self.lock()?;
        // A run that has ended leaves the file behind, which tells its checkpoints from this run's own.
        if place == Place::Replaced && !self.checkpoints()?.is_empty() {
            return Err(CheckpointError::Replaced { path: self.0.clone() });
        }
        self.create(config)?;
        *lock = again;
        Ok(true)
    }

    /// Asks whether the run's files can be written, before the work whose result they are to hold. Nothing is left behind.
    ///
    /// # Errors
    ///
    /// [`CheckpointError::Write`].
    pub fn check_writable(&self) -> Result<(), CheckpointError> {
        // What would be created first, or else a file in each of the folders that are there.
        let missing = |path: &&Path| !path.as_os_str().is_empty() && !path.exists();
        let mut probes: Vec<PathBuf> =
            self.0.ancestors().take_while(missing).last().map(Path::to_path_buf).into_iter().collect();
        if probes.is_empty() {
            probes.push(self.config_file());
            let checkpoints = self.0.join(CHECKPOINTS);
            probes.extend(checkpoints.exists().then(|| checkpoints.join(STATE)));
        }
        for probe in probes {
            atomic::check_file(&probe)
                .map_err(|source| CheckpointError::Write { path: self.0.clone(), source })?;
        }
        Ok(())
    }

    /// The file that holds the configuration.
    pub fn config_file(&self) -> PathBuf {
        self.0.join("config.toml")
    }

    /// Creates the folder and writes its configuration.
    ///
    /// # Errors
    ///
    /// [`CheckpointError::Write`].
    pub fn create(&self, config: &str) -> Result<(), CheckpointError> {
        let path = self.0.join(CHECKPOINTS);
        fs::create_dir_all(&path).map_err(|source| CheckpointError::Write { path, source })?;
        self.write("config.toml", config.as_bytes())
    }

    /// Writes a file of the run, atomically.
    ///
    /// # Errors
    ///
    /// [`CheckpointError::Write`].
    pub fn write(&self, name: &str, bytes: &[u8]) -> Result<(), CheckpointError> {
        let path = self.0.join(name);
        atomic::write_file(&path, bytes).map_err(|source| CheckpointError::Write { path, source })
    }

    /// The checkpoints, oldest first.
    ///
    /// # Errors
    ///
    /// [`CheckpointError::Read`]; no folder means no checkpoints.
    pub fn checkpoints(&self) -> Result<Vec<Checkpoint>, CheckpointError> {
        let path = self.0.join(CHECKPOINTS);
        let entries = match fs::read_dir(&path) {
            Ok(entries) => entries,
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                return Ok(Vec::new());
            }
            Err(source) => return Err(CheckpointError::Read { path, source }),
        };
        let mut checkpoints = Vec::new();
        for entry in entries {
            let entry = entry.map_err(|source| CheckpointError::Read { path: path.clone(), source })?;
            if let Some(position) = entry.file_name().to_str().and_then(parse_name) {
                checkpoints.push((position, Checkpoint(entry.path())));
            }
        }
        checkpoints.sort_by_key(|(position, _)| *position);
        Ok(checkpoints.into_iter().map(|(_, checkpoint)| checkpoint).collect())
    }

    /// Writes a checkpoint, of a run with averaged weights with these, then removes all but the last `keep` and the best one. One that
    /// cannot be removed is named in a warning.
    ///
    /// # Errors
    ///
    /// [`CheckpointError::Write`] or [`CheckpointError::Serialize`]; earlier checkpoints are unharmed.
    pub fn save<B: Backend, E: Backend>(
        &self,
        mut state: State,
        model: &WtConvNext<B>,
        ema: Option<&WtConvNext<E>>,
        optimizer: impl Record<B>,
        keep: usize,
    ) -> Result<Checkpoint, CheckpointError> {
        let path = self.0.join(CHECKPOINTS).join(name(state.epoch - 1, state.updates_done));
        if path.exists() {
            // A run that is resumed and stopped before its first update: nothing has changed.
            return Ok(Checkpoint(path));
        }
        let model = to_bytes(model.clone().into_record())?;
        let optimizer = to_bytes(optimizer)?;
        let ema = ema.map(|ema| to_bytes(ema.clone().into_record())).transpose()?;
        state.checksums = [checksum(&model), checksum(&optimizer)];
        state.ema_checksum = ema.as_deref().map(checksum);
        let json = serde_json::to_vec_pretty(&state).expect("a state has string keys only");

        let mut files = vec![(MODEL, &model[..]), (OPTIMIZER, &optimizer[..]), (STATE, &json[..])];
        files.extend(ema.as_deref().map(|ema| (EMA, ema)));
        atomic::write_folder(&path, &files)
            .map_err(|source| CheckpointError::Write { path: path.clone(), source })?;
        if let Err(error) = self.prune(keep) {
            log::warn!("{error}");
        }
        Ok(Checkpoint(path))
    }

    fn prune(&self, keep: usize) -> Result<(), CheckpointError> {
        let checkpoints = self.checkpoints()?;
        let old = checkpoints.len().saturating_sub(keep);
        // None before the first validation. As long as it cannot be told which it is, none is removed.
        let Ok(best) = best_of(&checkpoints) else { return Ok(()) };
        let best = best.map(|best| best.checkpoint);
        for checkpoint in &checkpoints[..old] {
            if best != Some(checkpoint) {
                let path = checkpoint.0.clone();
                fs::remove_dir_all(&path).map_err(|source| CheckpointError::Remove { path, source })?;
            }
        }
        Ok(())
    }

    /// The last checkpoint.
    ///
    /// # Errors
    ///
    /// [`CheckpointError::NotFound`] if there is none.
    pub fn last(&self) -> Result<Checkpoint, CheckpointError> {
        self.checkpoints()?.pop().ok_or_else(|| CheckpointError::NotFound { path: self.0.clone() })
    }

    /// The newest checkpoint all of whose files are whole, with its state, and the newer ones that are damaged, the newest first.
    /// `None` if there are no checkpoints.
    ///
    /// # Errors
    ///
    /// [`CheckpointError::NoneUsable`] if all are damaged, and the error of one that is not damaged but cannot be used: of a newer
    /// format, or that this user may not read.
    pub fn newest_whole(&self) -> Result<Option<(Checkpoint, State, Vec<Damage>)>, CheckpointError> {
        let checkpoints = self.checkpoints()?;
        let count = checkpoints.len();
        let mut damaged: Vec<Damage> = Vec::new();
        for checkpoint in checkpoints.into_iter().rev() {
            match checkpoint.verified_state() {
                Ok(state) => return Ok(Some((checkpoint, state, damaged))),
                Err(error) if error.is_damage() => damaged.push(Damage { checkpoint, error }),
                Err(error) => return Err(error),
            }
        }
        match damaged.into_iter().next() {
            Some(Damage { error, .. }) => Err(CheckpointError::NoneUsable {
                path: self.0.clone(),
                checkpoints: count,
                newest: Box::new(error),
            }),
            None => Ok(None),
        }
    }

    /// Renames a damaged checkpoint to `damaged-NAME`, so that one of the same name can be written and none is removed for it.
    /// Returns its new folder.
    ///
    /// # Errors
    ///
    /// [`CheckpointError::Write`].
    pub fn set_aside(&self, checkpoint: &Checkpoint) -> Result<PathBuf, CheckpointError> {
        let name = checkpoint.0.file_name().unwrap_or_default().to_string_lossy();
        let mut free = (1..).map(|number| match number {
            1 => checkpoint.0.with_file_name(format!("damaged-{name}")),
            number => checkpoint.0.with_file_name(format!("damaged-{name}-{number}")),
        });
        let path = free.find(|path| !path.exists()).expect("some number is free");
        fs::rename(&checkpoint.0, &path)
            .map_err(|source| CheckpointError::Write { path: path.clone(), source })?;
        Ok(path)
    }

    /// The checkpoint whose model was best in validation; the first of equals. One whose state cannot be read is passed over only if
    /// later ones say that it is not the best.
    ///
    /// # Errors
    ///
    /// [`CheckpointError::NotFound`] if there is no checkpoint, [`CheckpointError::NotValidated`] if there is none of a
    /// model that has been validated, and why the state of one that is or may be the best cannot be read.
    pub fn best(&self) -> Result<Checkpoint, CheckpointError> {
        let checkpoints = self.checkpoints()?;
        if checkpoints.is_empty() {
            return Err(CheckpointError::NotFound { path: self.0.clone() });
        }
        match best_of(&checkpoints)? {
            Some(Best { checkpoint, unreadable: None }) => Ok(checkpoint.clone()),
            Some(Best { unreadable: Some(error), .. }) => Err(error),
            None => Err(CheckpointError::NotValidated { path: self.0.clone() }),
        }
    }

    /// The newest checkpoint whose model can be loaded, or with `best` the best of those.
    fn whole(&self, best: bool) -> Option<Checkpoint> {
        let checkpoints = self.checkpoints().ok()?;
        let mut whole = checkpoints.into_iter().filter(|checkpoint| checkpoint.model_state().is_ok());
        if !best {
            return whole.next_back();
        }
        let whole: Vec<_> = whole.collect();
        best_of(&whole).ok()?.map(|best| best.checkpoint.clone())
    }
}

/// The best of some checkpoints.
struct Best<'a> {
    checkpoint: &'a Checkpoint,
    /// Why its state cannot be read, if it cannot.
    unreadable: Option<CheckpointError>,
}

/// The best of a run's checkpoints, which are given from the oldest to the newest. `None` before the first validation.
///
/// # Errors
///
/// The state of a checkpoint cannot be read that may be the best: no later one has the accuracy.
fn best_of(checkpoints: &[Checkpoint]) -> Result<Option<Best<'_>>, CheckpointError> {
    let states: Vec<_> = checkpoints.iter().map(Checkpoint::state).collect();
    // Each state has the accuracies of all epochs before it.
    let newest = states.iter().rev().find_map(|state| state.as_ref().ok());
    let history = newest.map_or_else(Vec::new, |state| state.history.clone());
    let mut best = None;
    let mut best_accuracy = f64::NEG_INFINITY;
    for (checkpoint, state) in checkpoints.iter().zip(states) {
        let (accuracy, unreadable) = match state {
            // Within an epoch, the accuracy is of the model before it.
            Ok(state) if state.updates_done == 0 => (state.val_accuracy(), None),
            Ok(_) => continue,
            Err(error) => match checkpoint.position() {
                Some((epochs @ 1.., 0)) => match history.get(epochs - 1) {
                    Some(record) => (Some(record.val.accuracy), Some(error)),
                    None => return Err(error),
                },
                _ => continue,
            },
        };
        if let Some(accuracy) = accuracy.filter(|accuracy| *accuracy > best_accuracy) {
            (best, best_accuracy) = (Some(Best { checkpoint, unreadable }), accuracy);
        }
    }
    Ok(best)
}

/// A checkpoint that is damaged.
#[derive(Debug)]
pub struct Damage {
    /// The checkpoint.
    pub checkpoint: Checkpoint,
    /// What is wrong with it, with the file.
    pub error: CheckpointError,
}

impl CheckpointError {
    /// Whether an older checkpoint may be whole where this is wrong with one: a file that is missing or not as it was written.
    fn is_damage(&self) -> bool {
        match self {
            Self::Damaged { .. } => true,
            Self::Read { source, .. } => source.kind() != io::ErrorKind::PermissionDenied,
            _ => false,
        }
    }

    /// Of damage, the error that names a checkpoint of `run` that is whole. Any other error as it is.
    fn or_whole(self, run: Option<RunFolder>, best: bool) -> Self {
        match run {
            Some(run) if self.is_damage() => {
                let whole = run.whole(best).map(|checkpoint| checkpoint.0);
                Self::Unusable { damage: Box::new(self), whole, best }
            }
            _ => self,
        }
    }
}

/// One checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkpoint(PathBuf);

impl Checkpoint {
    /// The checkpoint at `path`, or the last (or best) one of the run at `path`.
    ///
    /// # Errors
    ///
    /// [`CheckpointError::NotFound`]; with `best`, also [`CheckpointError::NotValidated`] and
    /// [`CheckpointError::BestOfOne`].
    pub fn find(path: &Path, best: bool) -> Result<Self, CheckpointError> {
        if [STATE, MODEL, OPTIMIZER].iter().any(|name| path.join(name).is_file()) {
            return if best {
                Err(CheckpointError::BestOfOne { path: path.to_path_buf() })
            } else {
                Ok(Self(path.to_path_buf()))
            };
        }
        let run = RunFolder(path.to_path_buf());
        if best { run.best() } else { run.last() }
    }

    /// As [`Self::find`], with the state, and only if the files that [`Self::model`] reads are as they were written.
    ///
    /// # Errors
    ///
    /// Those of [`Self::find`] and [`Self::state`]; [`CheckpointError::Unusable`] if a file is missing or damaged, with a checkpoint
    /// of the same run that is whole, which is not used.
    pub fn open(path: &Path, best: bool) -> Result<(Self, State), CheckpointError> {
        let in_run = |error: CheckpointError, run| error.or_whole(run, best);
        let checkpoint =
            Self::find(path, best).map_err(|error| in_run(error, Some(RunFolder(path.to_path_buf()))))?;
        let state = checkpoint.model_state().map_err(|error| in_run(error, checkpoint.run()))?;
        Ok((checkpoint, state))
    }

    /// Its folder.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The run that it lies in.
    fn run(&self) -> Option<RunFolder> {
        fn run_of(checkpoint: &Path) -> Option<RunFolder> {
            let checkpoints = checkpoint.parent().filter(|parent| parent.ends_with(CHECKPOINTS))?;
            checkpoints.parent().map(|run| RunFolder(run.to_path_buf()))
        }
        // `.` and the like do not say where they are.
        run_of(&self.0).or_else(|| run_of(&self.0.canonicalize().ok()?))
    }

    /// Complete epochs and the updates after them, by its name.
    fn position(&self) -> Option<(usize, usize)> {
        parse_name(self.0.file_name()?.to_str()?)
    }

    /// The file that says what the others are.
    pub fn state_file(&self) -> PathBuf {
        self.0.join(STATE)
    }

    /// Reads everything but the tensors, and compares the files of these with their checksums.
    ///
    /// # Errors
    ///
    /// Those of [`Self::state`], and of a file that cannot be read or is damaged.
    pub fn verified_state(&self) -> Result<State, CheckpointError> {
        let state = self.state()?;
        let [model, optimizer] = state.checksums;
        for (name, expected) in
            [(MODEL, Some(model)), (OPTIMIZER, Some(optimizer)), (EMA, state.ema_checksum)]
        {
            if let Some(expected) = expected {
                self.verified(name, expected)?;
            }
        }
        Ok(state)
    }

    /// Reads everything but the tensors, and compares the file that [`Self::model`] reads with its checksum.
    fn model_state(&self) -> Result<State, CheckpointError> {
        let state = self.state()?;
        let (name, expected) = state.used_weights();
        self.verified(name, expected)?;
        Ok(state)
    }

    /// Reads everything but the tensors.
    ///
    /// # Errors
    ///
    /// A file that cannot be read, is damaged, or of a newer format.
    pub fn state(&self) -> Result<State, CheckpointError> {
        #[derive(Deserialize)]
        struct Format {
            format: u32,
        }

        let path = self.state_file();
        let bytes = fs::read(&path).map_err(|source| CheckpointError::Read { path: path.clone(), source })?;
        let damaged = |error: serde_json::Error| CheckpointError::Damaged {
            path: path.clone(),
            reason: error.to_string(),
        };
        let Format { format } = serde_json::from_slice(&bytes).map_err(damaged)?;
        if !(1..=FORMAT).contains(&format) {
            return Err(CheckpointError::Format { path, format });
        }
        let state: State = serde_json::from_slice(&bytes).map_err(damaged)?;
        match state.contradiction() {
            Some(reason) => Err(CheckpointError::Damaged { path, reason }),
            None => Ok(state),
        }
    }

    /// Fails unless the checkpoint is one of `model`.
    ///
    /// # Errors
    ///
    /// [`CheckpointError::OtherModel`], which names what differs.
    pub fn expect_model(&self, state: &State, model: &WtConvNextConfig) -> Result<(), CheckpointError> {
        if state.model == *model {
            return Ok(());
        }
        let fields = |config| match serde_json::to_value(config) {
            Ok(serde_json::Value::Object(fields)) => fields,
            _ => unreachable!("a configuration is an object"),
        };
        let (theirs, ours) = (fields(&state.model), fields(model));
        let differing = |of: &serde_json::Map<String, serde_json::Value>| {
            let differing = ours.keys().filter(|key| ours.get(*key) != theirs.get(*key));
            differing.map(|key| format!("{key} {}", of[key])).collect::<Vec<_>>().join(", ")
        };
        Err(CheckpointError::OtherModel {
            path: self.0.clone(),
            theirs: differing(&theirs),
            ours: differing(&ours),
        })
    }

    /// Fails unless the checkpoint has averaged weights if and only if `ema_decay` asks for them.
    ///
    /// # Errors
    ///
    /// [`CheckpointError::OtherAverage`].
    pub fn expect_average(&self, state: &State, ema_decay: f64) -> Result<(), CheckpointError> {
        if state.ema_checksum.is_some() == (ema_decay > 0.0) {
            Ok(())
        } else {
            Err(CheckpointError::OtherAverage { path: self.0.clone(), ema_decay })
        }
    }

    /// The model to use: with the averaged weights if the run has them, or else with those that are trained.
    ///
    /// # Errors
    ///
    /// A file that cannot be read or is damaged.
    pub fn model<B: Backend>(
        &self,
        state: &State,
        device: &B::Device,
    ) -> Result<WtConvNext<B>, CheckpointError> {
        let (name, expected) = state.used_weights();
        self.load_model(name, expected, state, device)
    }

    /// The model with the weights that are trained, to go on with.
    ///
    /// # Errors
    ///
    /// A file that cannot be read or is damaged.
    pub fn trained_model<B: Backend>(
        &self,
        state: &State,
        device: &B::Device,
    ) -> Result<WtConvNext<B>, CheckpointError> {
        self.load_model(MODEL, state.checksums[0], state, device)
    }

    /// The model with the averaged weights, if the run has them.
    ///
    /// # Errors
    ///
    /// A file that cannot be read or is damaged.
    pub fn ema<B: Backend>(
        &self,
        state: &State,
        device: &B::Device,
    ) -> Result<Option<WtConvNext<B>>, CheckpointError> {
        state.ema_checksum.map(|expected| self.load_model(EMA, expected, state, device)).transpose()
    }

    /// Builds the model and loads its parameters.
    fn load_model<B: Backend>(
        &self,
        name: &str,
        expected: u64,
        state: &State,
        device: &B::Device,
    ) -> Result<WtConvNext<B>, CheckpointError> {
        let model = state.model.try_init(device).map_err(|error| CheckpointError::Damaged {
            path: self.0.join(STATE),
            reason: error.to_string(),
        })?;
        Ok(model.load_record(self.record::<B, _>(name, expected, device)?))
    }

    /// Loads the record of the optimizer.
    ///
    /// # Errors
    ///
    /// A file that cannot be read or is damaged.
    pub fn optimizer<B: Backend, R: Record<B>>(
        &self,
        state: &State,
        device: &B::Device,
    ) -> Result<R, CheckpointError> {
        self.record::<B, R>(OPTIMIZER, state.checksums[1], device)
    }

    fn record<B: Backend, R: Record<B>>(
        &self,
        name: &str,
        expected: u64,
        device: &B::Device,
    ) -> Result<R, CheckpointError> {
        let bytes = self.verified(name, expected)?;
        recorder()
            .load(bytes, device)
            .map_err(|error| CheckpointError::Damaged { path: self.0.join(name), reason: error.to_string() })
    }

    /// The content of a file that has the checksum.
    fn verified(&self, name: &str, expected: u64) -> Result<Vec<u8>, CheckpointError> {
        let path = self.0.join(name);
        let bytes = fs::read(&path).map_err(|source| CheckpointError::Read { path: path.clone(), source })?;
        // Burn loads parameters of any shape and panics on those of another block type, so that the wrong file has to be
        // found out before.
        if checksum(&bytes) != expected {
            let reason =
                format!("its {} do not have the checksum in {STATE}", count(bytes.len(), "byte", "bytes"));
            return Err(CheckpointError::Damaged { path, reason });
        }
        Ok(bytes)
    }
}

/// The folder of the checkpoint after so many complete epochs and updates.
fn name(epochs: usize, updates: usize) -> String {
    if updates == 0 { format!("epoch-{epochs:04}") } else { format!("epoch-{epochs:04}-update-{updates:05}") }
}

fn parse_name(name: &str) -> Option<(usize, usize)> {
    let rest = name.strip_prefix("epoch-")?;
    match rest.split_once("-update-") {
        Some((epochs, updates)) => Some((epochs.parse().ok()?, updates.parse().ok()?)),
        None => Some((rest.parse().ok()?, 0)),
    }
}

fn recorder() -> NamedMpkBytesRecorder<FullPrecisionSettings> {
    NamedMpkBytesRecorder::new()
}

fn to_bytes<B: Backend>(record: impl Record<B>) -> Result<Vec<u8>, CheckpointError> {
    Recorder::<B>::record(&recorder(), record, ()).map_err(CheckpointError::Serialize)
}

/// FNV-1a: guards against mix-ups and damage, not against intent.
fn checksum(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TestBackend;
    use crate::train::metrics::Scores;
    use burn::tensor::Tensor;

    type Model = WtConvNext<TestBackend>;

    fn config(dim: usize) -> WtConvNextConfig {
        WtConvNextConfig::new(2).with_depths([1; 4]).with_dims([dim; 4]).with_levels([1; 4])
    }

    /// A state after `epochs` epochs of ten updates.
    fn state(accuracies: &[f64]) -> State {
        let record = |(index, accuracy): (usize, &f64)| {
            let scores = Scores { loss: 0.1 + 0.2, accuracy: *accuracy, top5: 1.0 };
            EpochRecord {
                epoch: index + 1,
                updates: 10 * (index + 1),
                lr: 1e-3,
                train: scores,
                val: scores,
                unreadable: 0,
                seconds: 1.0,
                images_per_second: 1.0,
            }
        };
        State {
            format: FORMAT,
            model: config(4),
            classes: vec!["a".to_string(), "b".to_string()],
            input_size: 32,
            crop_fraction: 0.875,
            data: PathBuf::from("data"),
            images: [20, 4],
            epoch: accuracies.len() + 1,
            updates_done: 0,
            schedule: 10 * accuracies.len(),
            totals: Totals { loss: 0.1 + 0.2, ..Totals::default() },
            history: accuracies.iter().enumerate().map(record).collect(),
            devices: None,
            checksums: [0; 2],
            ema_checksum: None,
        }
    }

    /// A run without averaged weights.
    const NO_EMA: Option<&Model> = None;

    fn save(run: &RunFolder, accuracies: &[f64], keep: usize) -> Checkpoint {
        let model: Model = config(4).init(&Default::default());
        run.create("").unwrap();
        run.save(state(accuracies), &model, NO_EMA, accuracies.len(), keep).unwrap()
    }

    fn names(run: &RunFolder) -> Vec<String> {
        let name = |checkpoint: &Checkpoint| checkpoint.0.file_name().unwrap().to_str().unwrap().to_string();
        run.checkpoints().unwrap().iter().map(name).collect()
    }

    fn new_run() -> (tempfile::TempDir, RunFolder) {
        let root = tempfile::tempdir().unwrap();
        let run = RunFolder::new(root.path().join("run"));
        (root, run)
    }

    fn logits(model: &Model) -> Vec<f32> {
        model.forward(Tensor::ones([1, 3, 32, 32], &Default::default())).into_data().iter().collect()
    }

    #[test]
    fn what_is_saved_is_loaded() {
        let (_root, run) = new_run();
        let device = Default::default();
        let model: Model = config(4).init(&device);
        // Burn draws parameters at the first use: a clone of an unused model is another model.
        let expected = logits(&model);
        run.create("").unwrap();
        let saved = run.save(state(&[0.5]), &model, NO_EMA, 77_usize, 2).unwrap();
        let found = Checkpoint::find(run.path(), false).unwrap();
        assert_eq!(found, saved);
        assert_eq!(Checkpoint::find(saved.path(), false).unwrap(), saved);

        let loaded = found.state().unwrap();
        assert_eq!(State { checksums: [0; 2], ..loaded.clone() }, state(&[0.5]));
        assert_eq!(found.optimizer::<TestBackend, usize>(&loaded, &device).unwrap(), 77);
        assert_eq!(logits(&found.model(&loaded, &device).unwrap()), expected);
    }

    #[test]
    fn averaged_weights_are_saved_and_used() {
        let (_root, run) = new_run();
        let device = Default::default();
        let (model, ema): (Model, Model) = (config(4).init(&device), config(4).init(&device));
        let (trained, averaged) = (logits(&model), logits(&ema));
        assert_ne!(trained, averaged);
        run.create("").unwrap();
        let checkpoint = run.save(state(&[0.5]), &model, Some(&ema), 0_usize, 2).unwrap();
        let loaded = checkpoint.state().unwrap();
        assert_eq!(logits(&checkpoint.model(&loaded, &device).unwrap()), averaged);
        assert_eq!(logits(&checkpoint.ema(&loaded, &device).unwrap().unwrap()), averaged);
        assert_eq!(logits(&checkpoint.trained_model(&loaded, &device).unwrap()), trained);

        checkpoint.expect_average(&loaded, 0.5).unwrap();
        let error = checkpoint.expect_average(&loaded, 0.0).unwrap_err().to_string();
        assert!(error.contains("has its averaged weights") && error.contains("ema_decay = 0;"), "{error}");
        let error = checkpoint.expect_average(&state(&[]), 0.5).unwrap_err().to_string();
        assert!(error.contains("has no averaged weights") && error.contains("ema_decay = 0.5;"), "{error}");
        // Not a fall-back to other weights, but an error.
        fs::write(checkpoint.path().join(EMA), b"x").unwrap();
        let error = checkpoint.model::<TestBackend>(&loaded, &device).unwrap_err();
        assert!(
            matches!(error, CheckpointError::Damaged { .. }) && error.to_string().contains("ema.mpk"),
            "{error}"
        );
    }

    #[test]
    fn checkpoints_of_the_first_format_are_read() {
        let (_root, run) = new_run();
        let checkpoint = save(&run, &[0.5], 1);
        let state = checkpoint.state().unwrap();
        let path = checkpoint.path().join(STATE);
        let text = fs::read_to_string(&path).unwrap();
        assert!(!text.contains("ema"), "{text}");
        fs::write(&path, text.replace("\"format\": 2", "\"format\": 1")).unwrap();
        let first = checkpoint.state().unwrap();
        assert_eq!((first.format, first.ema_checksum), (1, None));
        assert_eq!(State { format: FORMAT, ..first }, state);
    }

    #[test]
    fn the_last_and_the_best_are_kept() {
        let (_root, run) = new_run();
        let accuracies = [0.5, 0.7, 0.6, 0.65, 0.7];
        for epochs in 1..=5 {
            save(&run, &accuracies[..epochs], 2);
        }
        assert_eq!(names(&run), ["epoch-0002", "epoch-0004", "epoch-0005"]);
        assert!(run.best().unwrap().path().ends_with("epoch-0002"));
        assert!(run.last().unwrap().path().ends_with("epoch-0005"));
    }

    #[test]
    fn a_checkpoint_that_cannot_be_removed_does_not_undo_the_new_one() {
        let (_root, run) = new_run();
        run.create("").unwrap();
        // A file in the place of an old checkpoint.
        let old = run.path().join("checkpoints/epoch-0000");
        fs::write(&old, b"").unwrap();
        let error = run.prune(0).unwrap_err();
        assert!(matches!(&error, CheckpointError::Remove { path, .. } if *path == old), "{error}");
        assert!(save(&run, &[0.5], 1).path().is_dir());
        assert_eq!(names(&run), ["epoch-0000", "epoch-0001"]);
    }

    #[test]
    fn a_run_takes_its_folder_again_unless_it_is_anothers() {
        let (_root, run) = new_run();
        let mut lock = run.lock().unwrap();
        run.create("a = 1").unwrap();
        let config = || fs::read_to_string(run.config_file()).unwrap();
        let busy = || matches!(run.lock().unwrap_err(), CheckpointError::Busy { .. });
        assert!(!run.restore(&mut lock, "a = 2").unwrap());
        assert_eq!(config(), "a = 1");

        // The configuration, the lock, all.
        fs::remove_file(run.config_file()).unwrap();
        assert!(run.restore(&mut lock, "a = 3").unwrap());
        assert_eq!(config(), "a = 3");
        save(&run, &[0.5], 1);
        fs::remove_file(run.path().join(".lock")).unwrap();
        assert!(run.restore(&mut lock, "a = 4").unwrap() && busy());
        assert_eq!((config().as_str(), names(&run).len()), ("a = 4", 1));
        fs::remove_dir_all(run.path()).unwrap();
        assert!(run.restore(&mut lock, "a = 5").unwrap() && busy());
        assert_eq!((config().as_str(), names(&run).len()), ("a = 5", 0));
        assert!(!run.restore(&mut lock, "a = 6").unwrap());

        // Another run is there, has been there, and was there without leaving a checkpoint.
        fs::remove_dir_all(run.path()).unwrap();
        let other = run.lock().unwrap();
        save(&run, &[0.5], 1);
        let error = run.restore(&mut lock, "a = 7").unwrap_err();
        assert!(matches!(error, CheckpointError::Busy { .. }), "{error}");
        drop(other);
        let error = run.restore(&mut lock, "a = 7").unwrap_err();
        assert!(matches!(&error, CheckpointError::Replaced { path } if path == run.path()), "{error}");
        assert_eq!(config(), "", "nothing of the other run is touched");
        drop(run.lock().unwrap());
        fs::remove_dir_all(run.path().join("checkpoints")).unwrap();
        assert!(run.restore(&mut lock, "a = 8").unwrap() && busy());
        assert_eq!(config(), "a = 8");
    }

    #[test]
    fn without_a_validated_epoch_none_is_best() {
        let (_root, run) = new_run();
        let model: Model = config(4).init(&Default::default());
        run.create("").unwrap();
        // The first epoch, interrupted three times: `keep` holds although none is the best.
        for updates_done in 1..=3 {
            run.save(State { updates_done, ..state(&[]) }, &model, NO_EMA, 0_usize, 2).unwrap();
        }
        assert_eq!(names(&run), ["epoch-0000-update-00002", "epoch-0000-update-00003"]);
        let error = Checkpoint::find(run.path(), true).unwrap_err();
        assert!(matches!(&error, CheckpointError::NotValidated { path } if path == run.path()), "{error}");
        assert!(error.to_string().contains("leave --best out"), "{error}");
        // Half of the second epoch: the best is what the first one left.
        run.save(state(&[0.5]), &model, NO_EMA, 0_usize, 2).unwrap();
        run.save(State { updates_done: 5, ..state(&[0.5]) }, &model, NO_EMA, 0_usize, 2).unwrap();
        assert!(Checkpoint::find(run.path(), true).unwrap().path().ends_with("epoch-0001"));
    }

    #[test]
    fn no_other_checkpoint_is_taken_for_the_best() {
        let (_root, run) = new_run();
        let accuracies = [0.5, 0.7, 0.6, 0.7, 0.65];
        for epochs in 1..=5 {
            save(&run, &accuracies[..epochs], 5);
        }
        let path = |epoch: usize| run.path().join(format!("checkpoints/epoch-000{epoch}"));
        let state_of = |epoch: usize| path(epoch).join(STATE);
        // What Checkpoint::open says, and which whole checkpoint it names.
        let refused = |file: &Path| match Checkpoint::open(run.path(), true).unwrap_err() {
            CheckpointError::Unusable { damage, whole, best: true } => {
                assert!(damage.to_string().starts_with(&file.display().to_string()), "{damage}");
                whole
            }
            other => panic!("{other}"),
        };
        let best = || Checkpoint::open(run.path(), true).unwrap().0;
        assert_eq!(best().path(), path(2));

        // One that is known not to be the best is not needed.
        let good = fs::read(state_of(3)).unwrap();
        fs::write(state_of(3), b"{").unwrap();
        assert_eq!(best().path(), path(2));
        fs::write(state_of(3), good).unwrap();

        // The best, by the history of later ones; the next best is the fourth, of equal accuracy.
        let good = fs::read(state_of(2)).unwrap();
        fs::write(state_of(2), b"{").unwrap();
        assert_eq!(refused(&state_of(2)), Some(path(4)));
        // It is not removed for it, though it is old.
        save(&run, &[0.5, 0.7, 0.6, 0.7, 0.65, 0.6], 1);
        assert_eq!(names(&run), ["epoch-0002", "epoch-0006"]);
        fs::write(state_of(2), good).unwrap();
        assert_eq!(best().path(), path(2));

        // The last, whose accuracy nothing else has.
        fs::remove_file(state_of(6)).unwrap();
        assert_eq!(refused(&state_of(6)), Some(path(2)));
        let again = RunFolder::new(run.path().to_path_buf());
        again.prune(1).unwrap();
        assert_eq!(names(&run), ["epoch-0002", "epoch-0006"]);

        // The weights of the best.
        fs::remove_dir_all(path(6)).unwrap();
        save(&run, &[0.5, 0.7, 0.6, 0.7, 0.65, 0.6], 2);
        fs::write(path(2).join(MODEL), b"short").unwrap();
        assert_eq!(refused(&path(2).join(MODEL)), Some(path(6)));
        fs::write(path(6).join(MODEL), b"short").unwrap();
        assert_eq!(refused(&path(2).join(MODEL)), None);
    }

    #[test]
    fn a_copy_of_a_checkpoint_belongs_to_no_run() {
        let (root, run) = new_run();
        let checkpoint = save(&run, &[0.5], 1);
        let copy = root.path().join("copy");
        fs::create_dir(&copy).unwrap();
        for name in [MODEL, STATE] {
            fs::copy(checkpoint.path().join(name), copy.join(name)).unwrap();
        }
        Checkpoint::open(&copy, false).unwrap();
        fs::remove_file(copy.join(STATE)).unwrap();
        let error = Checkpoint::open(&copy, false).unwrap_err();
        assert!(matches!(&error, CheckpointError::Read { path, .. } if *path == copy.join(STATE)), "{error}");
        let error = Checkpoint::open(&checkpoint.path().join(MODEL), false).unwrap_err();
        assert!(matches!(error, CheckpointError::NotFound { .. }), "a file is no run: {error}");
    }

    #[test]
    fn the_best_of_one_checkpoint_is_refused() {
        let (_root, run) = new_run();
        let checkpoint = save(&run, &[0.5], 1);
        let error = Checkpoint::find(checkpoint.path(), true).unwrap_err();
        assert!(
            matches!(&error, CheckpointError::BestOfOne { path } if path == checkpoint.path()),
            "{error}"
        );
    }

    #[test]
    fn names_are_in_the_order_of_time() {
        for (epochs, updates, expected) in
            [(3, 0, "epoch-0003"), (3, 12, "epoch-0003-update-00012"), (12345, 0, "epoch-12345")]
        {
            assert_eq!(name(epochs, updates), expected);
            assert_eq!(parse_name(expected), Some((epochs, updates)));
        }
        for other in [".epoch-0003.tmp", "epoch-", "epoch-1-update-", "notes"] {
            assert_eq!(parse_name(other), None);
        }
        let (_root, run) = new_run();
        let model: Model = config(4).init(&Default::default());
        run.create("").unwrap();
        for (epoch, updates_done) in [(2, 0), (1, 10), (2, 3), (1, 2)] {
            run.save(State { epoch, updates_done, ..state(&[0.5]) }, &model, NO_EMA, 0_usize, 9).unwrap();
        }
        assert_eq!(
            names(&run),
            ["epoch-0000-update-00002", "epoch-0000-update-00010", "epoch-0001", "epoch-0001-update-00003"]
        );
        assert!(run.best().unwrap().path().ends_with("epoch-0001"));
    }

    #[test]
    fn a_failed_write_leaves_the_last_checkpoint() {
        let (_root, run) = new_run();
        save(&run, &[0.5], 1);
        // A file in the place of the temporary folder: nothing can be created in it.
        fs::write(run.path().join("checkpoints").join(".epoch-0002.tmp"), b"").unwrap();
        let model: Model = config(4).init(&Default::default());
        let error = run.save(state(&[0.5, 0.6]), &model, NO_EMA, 0_usize, 1).unwrap_err();
        assert!(matches!(error, CheckpointError::Write { .. }), "{error}");
        assert!(error.to_string().contains("epoch-0002"), "{error}");
        assert_eq!(names(&run), ["epoch-0001"]);
        let checkpoint = run.last().unwrap();
        let state = checkpoint.state().unwrap();
        checkpoint.model::<TestBackend>(&state, &Default::default()).unwrap();
    }

    #[test]
    fn damage_is_found_and_the_file_named() {
        let (_root, run) = new_run();
        let checkpoint = save(&run, &[0.5], 1);
        let state = checkpoint.state().unwrap();
        let file = checkpoint.path().join(MODEL);
        let good = fs::read(&file).unwrap();
        let load = || checkpoint.model::<TestBackend>(&state, &Default::default());
        load().unwrap();

        // One bit of one parameter: Burn would load it.
        let mut flipped = good.clone();
        flipped[good.len() / 2] ^= 1;
        for bad in [&flipped, &good[..good.len() / 2], b""] {
            fs::write(&file, bad).unwrap();
            let error = load().unwrap_err();
            assert!(matches!(error, CheckpointError::Damaged { .. }), "{error}");
            assert!(error.to_string().contains("model.mpk"), "{error}");
        }
        fs::remove_file(&file).unwrap();
        assert!(matches!(load().unwrap_err(), CheckpointError::Read { .. }));

        fs::write(checkpoint.path().join(STATE), b"{}").unwrap();
        assert!(matches!(checkpoint.state().unwrap_err(), CheckpointError::Damaged { .. }));
        fs::write(checkpoint.path().join(STATE), br#"{"format": 99}"#).unwrap();
        let newer = checkpoint.state().unwrap_err();
        assert!(matches!(newer, CheckpointError::Format { format: 99, .. }), "{newer}");
    }

    #[test]
    fn another_model_is_refused_with_what_differs() {
        let (_root, run) = new_run();
        let checkpoint = save(&run, &[0.5], 1);
        let state = checkpoint.state().unwrap();
        checkpoint.expect_model(&state, &config(4)).unwrap();
        let error = checkpoint.expect_model(&state, &config(8)).unwrap_err().to_string();
        assert!(
            error.ends_with("it has dims [4,4,4,4], the configuration asks for dims [8,8,8,8]"),
            "{error}"
        );
    }

    #[test]
    fn no_checkpoint_is_an_error_with_the_folder() {
        let root = tempfile::tempdir().unwrap();
        for best in [false, true] {
            let error = Checkpoint::find(root.path(), best).unwrap_err();
            assert!(matches!(&error, CheckpointError::NotFound { path } if path == root.path()), "{error}");
        }
    }
}
