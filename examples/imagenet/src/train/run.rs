//! The loop over epochs and updates.

use burn::data::dataset::Dataset;
use burn::lr_scheduler::LrScheduler;
use burn::module::{AutodiffModule, Module, ModuleVisitor, Param};
use burn::optim::Optimizer;
use burn::tensor::Tensor;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::train::Interrupter;
use rand::RngExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;
use wtconvnext::{WtConvNext, WtConvNextConfig};

use super::checkpoint::{Checkpoint, CheckpointError, RunFolder, State};
use super::ema::Ema;
use super::feed::Feed;
use super::history::{EpochRecord, curves};
use super::lock::RunLock;
use super::metrics::{EpochMetrics, Pace, Totals};
use super::optimizer::GroupedAdamW;
use super::parallel::{Finished, Recipe, Replicas};
use super::prepare::Prepared;
use super::progress::{Display, Position};
use super::schedule::WarmupCosine;
use super::step::{BatchOutput, UpdateGradients, clip_and_step};
use crate::backend::{BackendTask, TrainBackend};
use crate::config::TrainConfig;
use crate::count::count;
use crate::data::augment::Transform;
use crate::data::batch::ImageBatcher;
use crate::data::decode::Failures;
use crate::data::loader::{Loader, LoaderError, Workers};
use crate::data::plan::{EpochPlan, updates_per_epoch};
use crate::data::{Stream, stream};
use crate::error::Error;
use crate::evaluate::{Evaluation, evaluate};

/// How a call of `train` ended.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// All epochs are done.
    Finished {
        /// Accuracy on the validation images after the last epoch.
        val_accuracy: f64,
    },
    /// Ctrl-C, the dashboard's q key or `--stop-after`.
    Interrupted {
        /// What `--resume` continues from.
        checkpoint: PathBuf,
    },
}

/// A run that is ready to start, on whatever backend.
pub(super) struct TrainTask {
    pub(super) prepared: Prepared,
    pub(super) lock: RunLock,
    pub(super) interrupter: Interrupter,
    pub(super) display: Display,
}

impl BackendTask for TrainTask {
    type Output = Result<Outcome, Error>;

    fn run<B: TrainBackend>(self, _default: B::Device) -> Self::Output {
        let Self { prepared, lock, interrupter, display } = self;
        let Prepared { devices, config, .. } = &prepared;
        let resolved = devices.resolve::<B>(config.backend, config.batch_size)?;
        if let Some(single) = devices.single(config.backend, resolved.len()) {
            display.line(single);
        }
        Trainer::<B>::new(prepared, lock, interrupter, display, &resolved)?.run()
    }
}

/// Model, optimizer and position of a run in progress.
struct Trainer<B: TrainBackend> {
    config: TrainConfig,
    /// With their indices; the first is the one that this thread works on.
    devices: Vec<(usize, B::Device)>,
    model: WtConvNext<B>,
    /// The other devices, if there are any.
    replicas: Option<Replicas<B>>,
    optimizer: GroupedAdamW<WtConvNext<B>, B>,
    /// Averaged weights, which validation uses.
    ema: Option<Ema<WtConvNext<B::InnerBackend>>>,
    schedule: WarmupCosine,
    train: Loader,
    val: Loader,
    run: RunFolder,
    lock: RunLock,
    /// Where the run stands, but for the tensors.
    state: State,
    interrupter: Interrupter,
    updates_left: Option<usize>,
    display: Display,
    failures: Failures,
}

/// An update whose results have not been read back from the device yet.
struct Submitted<B: Backend> {
    outputs: Vec<BatchOutput<B>>,
    lr: f64,
    unreadable: usize,
}

impl<B: TrainBackend> Trainer<B> {
    fn new(
        prepared: Prepared,
        lock: RunLock,
        interrupter: Interrupter,
        mut display: Display,
        devices: &[(usize, B::Device)],
    ) -> Result<Self, Error> {
        let Prepared { config, data, splits, model: model_config, run, resume_from, stop_after, .. } =
            prepared;
        let device = &devices[0].1;
        let workers = Workers::start(config.workers)?;
        let classes = splits.train.classes().to_vec();
        let images = [splits.train.len(), splits.val.len()];
        let centre = Transform::Eval { input_size: config.input_size, crop_fraction: config.crop_fraction };
        let train = Loader::for_training(Arc::new(splits.train), &config, workers.clone());
        let val = Loader::new(Arc::new(splits.val), centre, config.seed, workers);

        let per_epoch = updates_per_epoch(images[0], config.batch_size, config.accumulate);
        let warmup = (config.warmup_epochs * per_epoch as f64).round() as usize;
        let schedule = WarmupCosine::new(config.lr, config.min_lr, warmup, config.epochs * per_epoch);

        let (model, ema, optimizer, schedule, mut state) = match resume_from {
            Some((checkpoint, state)) => {
                let model = checkpoint.trained_model(&state, device)?;
                let ema = checkpoint.ema(&state, device)?;
                let optimizer = GroupedAdamW::new(&model, config.weight_decay);
                let optimizer = optimizer.load_record(checkpoint.optimizer(&state, device)?);
                display.line(format_args!("resuming from {}", checkpoint.path().display()));
                let complete = state.epoch > config.epochs;
                if let Some(before) = state.devices.filter(|before| *before != devices.len() && !complete) {
                    let before = count(before, "device", "devices");
                    display.line(format_args!("it was on {before} before, and is on {} now", devices.len()));
                }
                let schedule = schedule.load_record::<B>(state.schedule);
                // The folder may have moved.
                (model, ema, optimizer, schedule, State { format: State::FORMAT, data, ..state })
            }
            None => {
                let model = init(&model_config, config.seed, device)?;
                let ema = (config.ema_decay > 0.0).then(|| model.valid());
                let optimizer = GroupedAdamW::new(&model, config.weight_decay);
                let state = State {
                    format: State::FORMAT,
                    model: model_config,
                    classes,
                    input_size: config.input_size,
                    crop_fraction: config.crop_fraction,
                    data,
                    images,
                    epoch: 1,
                    updates_done: 0,
                    schedule: 0,
                    totals: Totals::default(),
                    history: Vec::new(),
                    devices: None,
                    checksums: [0; 2],
                    ema_checksum: None,
                };
                (model, ema, optimizer, schedule, state)
            }
        };
        display.register(&EpochMetrics::<B::InnerBackend>::new(state.classes.len(), Totals::default()));
        display.line(format_args!(
            "{} with {} parameters on {}: {}, {}, {}",
            config.arch.name(),
            model.num_params(),
            train.files().path().parent().unwrap_or(Path::new(".")).display(),
            count(images[0], "training image", "training images"),
            count(images[1], "validation image", "validation images"),
            count(state.classes.len(), "class", "classes"),
        ));
        display.line(format_args!("writing to {}", run.path().display()));
        let recipe = Recipe::of(&config);
        // A complete run has nothing to share.
        let replicas = if devices.len() > 1 && state.epoch <= config.epochs {
            Some(Replicas::start(devices, &model, &optimizer, &recipe)?)
        } else {
            None
        };
        if replicas.is_some() {
            let images = count(config.batch_size, "image", "images");
            display.line(format_args!("{} devices share each batch of up to {images}", devices.len()));
        }
        state.devices = Some(devices.len());
        Ok(Self {
            replicas,
            ema: ema.map(|model| Ema::new(model, config.ema_decay)),
            config,
            devices: devices.to_vec(),
            model,
            optimizer,
            schedule,
            train,
            val,
            run,
            lock,
            state,
            interrupter,
            updates_left: stop_after,
            display,
            failures: Failures::default(),
        })
    }

    fn run(mut self) -> Result<Outcome, Error> {
        if self.state.epoch > self.config.epochs {
            let epochs = count(self.config.epochs, "epoch", "epochs");
            self.display.line(format_args!("this run is complete: {epochs} of {}", self.config.epochs));
            // It may have ended with an error because of it.
            self.write_history()?;
        }
        let mut saved = Ok(());
        while self.state.epoch <= self.config.epochs {
            let started = Instant::now();
            let before = self.state.totals.images;
            if !self.train_epoch()? {
                return self.interrupted();
            }
            let seconds = started.elapsed().as_secs_f64();
            let images_per_second = (self.state.totals.images - before) as f64 / seconds;
            if let Some(replicas) = &mut self.replicas {
                let share = replicas.take_exchanging().map_or(String::new(), |time| {
                    let share = 100.0 * time.as_secs_f64() / seconds;
                    format!(", {share:.1} % of the time in exchanging gradients")
                });
                self.display.line(format_args!("{images_per_second:.0} images/s on all devices{share}"));
            }
            let Some(val) = self.validate()? else {
                return self.interrupted();
            };
            self.failures.count += val.unreadable;
            // The last update of the epoch shows in the validation only.
            let (epoch, update, loss) = (self.state.epoch, self.state.updates_done, val.scores.loss);
            if val.not_finite > 0 {
                let (not_finite, images) = (val.not_finite, val.images + val.not_finite);
                return Err(Error::DivergedInValidation { epoch, not_finite, images });
            }
            if !loss.is_finite() {
                return Err(Error::Diverged { loss, epoch, update });
            }
            self.finish_epoch(&val, seconds, images_per_second);
            let (checkpoint, history) = self.write();
            // The disk may have room again after the next epoch, and the earlier checkpoints are unharmed.
            if let Err(error) = &checkpoint {
                self.not_written("checkpoint", error);
            }
            if let Err(error) = &history {
                self.not_written("history", error);
            }
            saved = checkpoint.map(drop).and(history);
        }
        // Only what the last epoch has left is the result of the run.
        saved?;
        let val_accuracy = self.state.val_accuracy().expect("a run has at least one epoch");
        if self.failures.count > 0 {
            self.display.line(format_args!(
                "an image could not be read and was left out {}",
                count(self.failures.count, "time", "times")
            ));
        }
        Ok(Outcome::Finished { val_accuracy })
    }

    /// Saves the run as it stands.
    fn interrupted(mut self) -> Result<Outcome, Error> {
        let (checkpoint, history) = self.write();
        if let Err(error) = &history {
            // The next epoch writes it again.
            self.not_written("history", error);
        }
        let checkpoint = checkpoint?.path().to_path_buf();
        Ok(Outcome::Interrupted { checkpoint })
    }

    /// Writes what belongs to the run as it stands: a checkpoint, and the history.
    fn write(&mut self) -> (Result<Checkpoint, CheckpointError>, Result<(), CheckpointError>) {
        match self.run.restore(&mut self.lock, &self.config.to_toml()) {
            Ok(false) => {}
            Ok(true) => {
                let removed = "files of this run have been removed while it trained; it writes config.toml and history.json again, but no \
                               earlier checkpoint";
                log::warn!("{}: {removed}", self.run.path().display());
                self.display.line(format_args!("warning: {}: {removed}", self.run.path().display()));
            }
            // Nothing is written where another run may be.
            Err(error) => return (Err(error), Ok(())),
        }
        (self.save(), self.write_history())
    }

    fn not_written(&self, what: &str, error: &CheckpointError) {
        let epoch = self.state.epoch - 1;
        log::error!("no {what} of epoch {epoch}: {error}");
        self.display.line(format_args!("error: no {what} of epoch {epoch}: {error}"));
    }

    fn should_stop(&self) -> bool {
        self.interrupter.should_stop() || self.updates_left == Some(0)
    }

    /// Trains the rest of the epoch. Returns whether it was completed.
    fn train_epoch(&mut self) -> Result<bool, Error> {
        let TrainConfig { batch_size, accumulate, seed, .. } = self.config;
        let plan = EpochPlan::shuffled(self.state.images[0], seed, self.state.epoch, batch_size, accumulate);
        let first = self.state.updates_done;
        let batches = self.train.batches(self.state.epoch, plan.batches_of(first..plan.updates()));
        let batcher = ImageBatcher { input_size: self.train.input_size() };
        let mut batches = Feed::start(batches, &self.devices, batcher)?;
        let mut metrics = EpochMetrics::new(self.state.classes.len(), self.state.totals);
        let mut clock = Instant::now();
        // Results are read back one update late: reading waits for the device, which meanwhile has the next one to do.
        let mut submitted: Option<Submitted<B::InnerBackend>> = None;
        let mut completed = true;

        for update in first..plan.updates() {
            if self.should_stop() {
                completed = false;
                break;
            }
            let next = self.update(&plan, update, &mut batches)?;
            if let Some(previous) = submitted.replace(next) {
                self.report(previous, update, &mut metrics, &mut clock)?;
            }
        }
        if let Some(last) = submitted {
            self.report(last, self.state.updates_done, &mut metrics, &mut clock)?;
        }
        self.state.totals = *metrics.totals();
        if completed
            && metrics.totals().images == 0
            && let Some(first) = self.failures.first.take()
        {
            let path = self.train.files().path().to_path_buf();
            return Err(Error::Unreadable { path, images: plan.len(), first });
        }
        Ok(completed)
    }

    /// One step of the optimizer.
    fn update(
        &mut self,
        plan: &EpochPlan,
        update: usize,
        batches: &mut Feed<B>,
    ) -> Result<Submitted<B::InnerBackend>, Error> {
        // Stochastic depth and dropout draw from the backend's generator, whose state cannot be stored.
        let seed = stream(self.config.seed, Stream::Update, self.state.schedule as u64, 0).random();
        B::seed(&self.devices[0].1, seed);
        let lr = self.schedule.step();
        let planned = plan.update(update).len();
        let mut gradients = UpdateGradients::new(planned, self.config.dtype);
        let mut outputs = Vec::new();
        let (mut seen, mut unreadable) = (0, 0);
        for remaining in (1..=plan.batches(update)).rev() {
            let batch = batches.next().ok_or(LoaderError::Stopped { remaining })??;
            unreadable += batch.failures.len();
            self.failures.add(batch.failures);
            seen += batch.images;
            let part = match &self.replicas {
                Some(replicas) => replicas.share(batch.parts, batch.lambda, planned),
                None => batch.parts.into_iter().next().flatten(),
            };
            let smoothing = self.config.label_smoothing;
            outputs.push(part.map(|part| gradients.add(&self.model, part, batch.lambda, smoothing)));
        }
        let Finished { outputs, gradients } = match &mut self.replicas {
            None => Finished {
                outputs: outputs.into_iter().flatten().collect(),
                gradients: gradients.finish(&self.model),
            },
            Some(replicas) => {
                let last = update + 1 == plan.updates();
                replicas.finish(gradients, outputs, seen, &self.model, lr, last)?
            }
        };
        if let Some(gradients) = gradients {
            let (model, clip_grad) = (self.model.clone(), self.config.clip_grad);
            self.model = clip_and_step(&mut self.optimizer, lr, model, gradients, clip_grad);
            if let Some(ema) = &mut self.ema {
                ema.update(&self.model.valid());
            }
        }
        self.state.updates_done = update + 1;
        self.state.schedule = self.schedule.to_record::<B>();
        self.updates_left = self.updates_left.map(|left| left - 1);
        Ok(Submitted { outputs, lr, unreadable })
    }

    /// Takes the results of the epoch's update number `update` (from 1) into the metrics and shows them.
    fn report(
        &mut self,
        submitted: Submitted<B::InnerBackend>,
        update: usize,
        metrics: &mut EpochMetrics<B::InnerBackend>,
        clock: &mut Instant,
    ) -> Result<(), Error> {
        let before = *metrics.totals();
        metrics.add_unreadable(submitted.unreadable);
        let mut states = Vec::new();
        for output in &submitted.outputs {
            states = metrics.update(output);
        }
        let loss = metrics.totals().loss;
        if !loss.is_finite() {
            return Err(Error::Diverged { loss, epoch: self.state.epoch, update });
        }
        let images = metrics.totals().images - before.images;
        let pace =
            Pace { lr: submitted.lr, images_per_second: images as f64 / clock.elapsed().as_secs_f64() };
        *clock = Instant::now();
        states.extend(metrics.pace(pace));
        let position = Position {
            epoch: self.state.epoch,
            epochs: self.config.epochs,
            iteration: update,
            images_total: self.state.images[0],
            totals: *metrics.totals(),
        };
        self.display.train(states, position, pace);
        Ok(())
    }

    /// Evaluates the model on the validation images; `None` if that was interrupted.
    fn validate(&mut self) -> Result<Option<Evaluation>, Error> {
        let model = self.ema.as_ref().map_or_else(|| self.model.valid(), |ema| ema.model().clone());
        let mut batch = 0;
        let Self { display, interrupter, config, state, val, devices, .. } = self;
        evaluate::<<B as AutodiffBackend>::InnerBackend>(
            &model,
            val,
            config.batch_size,
            &devices[0],
            |states, totals| {
                batch += 1;
                let position = Position {
                    epoch: state.epoch,
                    epochs: config.epochs,
                    iteration: batch,
                    images_total: state.images[1],
                    totals: *totals,
                };
                display.val(states, position);
                !interrupter.should_stop()
            },
        )
    }

    /// Records the epoch and moves on to the next.
    fn finish_epoch(&mut self, val: &Evaluation, seconds: f64, images_per_second: f64) {
        let record = EpochRecord {
            epoch: self.state.epoch,
            updates: self.state.schedule,
            lr: self.schedule.rate(self.state.schedule - 1),
            train: self.state.totals.scores(),
            val: val.scores,
            unreadable: self.state.totals.unreadable + val.unreadable,
            seconds,
            images_per_second,
        };
        self.display.epoch(&record, self.config.epochs);
        self.state.history.push(record);
        self.state.epoch += 1;
        self.state.updates_done = 0;
        self.state.totals = Totals::default();
    }

    /// Writes numbers and curves of past epochs, if there are any.
    fn write_history(&self) -> Result<(), CheckpointError> {
        if self.state.history.is_empty() {
            return Ok(());
        }
        let json = serde_json::to_vec_pretty(&self.state.history).expect("a history has string keys only");
        self.run.write("history.json", &json)?;
        match curves(&self.state.history) {
            Ok(svg) => self.run.write("curves.svg", svg.as_bytes()),
            Err(error) => {
                log::warn!("no curves.svg: {error}");
                Ok(())
            }
        }
    }

    fn save(&self) -> Result<Checkpoint, CheckpointError> {
        let optimizer = self.optimizer.to_record();
        let ema = self.ema.as_ref().map(Ema::model);
        self.run.save(self.state.clone(), &self.model, ema, optimizer, self.config.keep)
    }
}

/// A new model. The same seed gives the same parameters.
fn init<B: TrainBackend>(
    config: &WtConvNextConfig,
    seed: u64,
    device: &B::Device,
) -> Result<WtConvNext<B>, Error> {
    /// Burn draws a parameter when it is first used; using each in turn fixes the order of the draws.
    struct Draw;

    impl<B: Backend> ModuleVisitor<B> for Draw {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
            param.val();
        }
    }

    B::seed(device, stream(seed, Stream::Init, 0, 0).random());
    let model = config.try_init(device)?;
    model.visit(&mut Draw);
    Ok(model)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ConfigArgs;
    use crate::train::parallel::fault::{self, Kind, Place};
    use crate::train::parallel::{DeviceError, one_group};
    use crate::train::prepare::TrainArgs;
    use crate::{TestAutodiff, TestBackend, support};
    use std::fs;
    use std::sync::MutexGuard;

    /// Four updates an epoch, of 2 x 2, 2 x 2, 2 x 2 and 1 x 2 + 1 x 1 pictures. Nothing draws from the backend's generator, which all
    /// tests of this process share.
    const RUN: &str = "epochs = 3\nbatch_size = 2\naccumulate = 2\nwarmup_epochs = 1\nlr = 0.01\nkeep = 20\nmixup = 0.8\n\
                       clip_grad = 1.0\nema_decay = 0.9\ndrop_path = 0.0";
    const BATCHES: usize = 8;

    struct Bench {
        root: tempfile::TempDir,
        _one_group: MutexGuard<'static, ()>,
    }

    impl Bench {
        /// Fifteen training and six validation pictures, and a run called `start` that has a checkpoint before its first update.
        fn new() -> Self {
            let bench = Self { root: tempfile::tempdir().unwrap(), _one_group: one_group() };
            let root = bench.root.path();
            support::pictures(&root.join("data"), 5, 2);
            let settings = ConfigArgs { config: Some(support::config(root, RUN)), ..ConfigArgs::default() };
            let out = Some(root.join("start"));
            let args = TrainArgs { settings, out, stop_after: Some(0), ..TrainArgs::default() };
            let stopped = Prepared::new(args).unwrap().train(Interrupter::new(), Display::plain());
            assert!(matches!(stopped, Ok(Outcome::Interrupted { .. })), "{stopped:?}");
            bench
        }

        /// A copy of the run `start`.
        fn copy(&self, name: &str) -> RunFolder {
            let (from, to) = (self.root.path().join("start"), self.root.path().join(name));
            copy_folder(&from, &to);
            RunFolder::new(to)
        }
    }

    fn copy_folder(from: &Path, to: &Path) {
        fs::create_dir(to).unwrap();
        for entry in fs::read_dir(from).unwrap() {
            let path = entry.unwrap().path();
            let copy = to.join(path.file_name().unwrap());
            if path.is_dir() {
                copy_folder(&path, &copy);
            } else {
                fs::copy(&path, &copy).unwrap();
            }
        }
    }

    fn resumed(run: &RunFolder, devices: Option<&str>) -> Prepared {
        let devices = devices.map(|devices| devices.parse().unwrap());
        let out = Some(run.path().to_path_buf());
        Prepared::new(TrainArgs { resume: true, devices, out, ..TrainArgs::default() }).unwrap()
    }

    fn resume(run: &RunFolder, devices: Option<&str>) -> Result<Outcome, Error> {
        resumed(run, devices).train(Interrupter::new(), Display::plain())
    }

    /// What a complete run has come to: averaged and trained parameters as bits, and its history without times.
    fn result(run: &RunFolder) -> ([Vec<u32>; 2], Vec<EpochRecord>) {
        struct Collect(Vec<u32>);
        impl ModuleVisitor<TestBackend> for Collect {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<TestBackend, D>>) {
                self.0.extend(param.val().into_data().iter::<f32>().map(f32::to_bits));
            }
        }
        let checkpoint = run.last().unwrap();
        let (state, device) = (checkpoint.state().unwrap(), Default::default());
        assert_eq!((state.epoch, state.history.len()), (4, 3));
        let models = [checkpoint.model(&state, &device), checkpoint.trained_model(&state, &device)];
        let parameters = models.map(|model| {
            let mut collect = Collect(Vec::new());
            model.unwrap().visit(&mut collect);
            collect.0
        });
        let timeless = |record| EpochRecord { seconds: 0.0, images_per_second: 0.0, ..record };
        (parameters, state.history.into_iter().map(timeless).collect())
    }

    #[test]
    fn a_device_that_dies_ends_the_run_which_goes_on_from_its_last_checkpoint() {
        let bench = Bench::new();
        let (straight, struck) = (bench.copy("straight"), bench.copy("struck"));
        let finished = resume(&straight, Some("0,1")).unwrap();

        // In the second epoch, between two batches of an update.
        let planned = fault::plan(Kind::Death, 1, Place::Batch, BATCHES + 1);
        let error = resume(&struck, Some("0,5")).unwrap_err();
        drop(planned);
        assert!(matches!(error, Error::Device(DeviceError::Failed { device: 5, .. })), "{error}");
        assert!(error.to_string().contains("device 5 failed: struck at Batch"), "{error}");
        assert_eq!(struck.last().unwrap().state().unwrap().history.len(), 1);

        assert_eq!(resume(&struck, Some("0,1")).unwrap(), finished);
        assert_eq!(result(&struck), result(&straight));
    }

    #[test]
    fn a_device_that_dies_in_validation_ends_the_run_too() {
        let bench = Bench::new();
        let (straight, struck) = (bench.copy("straight"), bench.copy("struck"));
        let finished = resume(&straight, None).unwrap();

        // After the batches of the first epoch, at the second of the validation images.
        let planned = fault::plan(Kind::Death, 0, Place::Feed, BATCHES + 1);
        let error = resume(&struck, None).unwrap_err();
        drop(planned);
        assert!(matches!(error, Error::Device(DeviceError::Failed { device: 0, .. })), "{error}");
        assert_eq!(struck.last().unwrap().state().unwrap().history.len(), 0);

        assert_eq!(resume(&struck, None).unwrap(), finished);
        assert_eq!(result(&struck), result(&straight));
    }

    /// The trainer of a run that is resumed.
    fn trainer(run: &RunFolder, devices: &[usize]) -> Trainer<TestAutodiff> {
        let devices: Vec<_> = devices.iter().map(|index| (*index, Default::default())).collect();
        let (prepared, lock) = (resumed(run, None), run.lock().unwrap());
        Trainer::new(prepared, lock, Interrupter::new(), Display::plain(), &devices).unwrap()
    }

    #[test]
    fn a_run_with_one_replica_is_the_run_without_bit_for_bit() {
        let bench = Bench::new();
        let (alone, replica) = (bench.copy("alone"), bench.copy("replica"));
        let finished = resume(&alone, None).unwrap();

        let mut trainer = trainer(&replica, &[0]);
        assert!(trainer.replicas.is_none());
        let recipe = Recipe::of(&trainer.config);
        let replicas =
            Replicas::start(&trainer.devices, &trainer.model, &trainer.optimizer, &recipe).unwrap();
        trainer.replicas = Some(replicas);
        assert_eq!(trainer.run().unwrap(), finished);
        assert_eq!(result(&replica), result(&alone));
    }

    #[test]
    fn a_complete_run_starts_no_devices() {
        let bench = Bench::new();
        let run = bench.copy("run");
        assert!(trainer(&run, &[0, 1]).replicas.is_some());
        let finished = resume(&run, None).unwrap();
        assert!(trainer(&run, &[0, 1]).replicas.is_none());
        assert_eq!(resume(&run, Some("0,1")).unwrap(), finished);
    }

    #[test]
    fn a_run_knows_on_how_many_devices_it_is() {
        let bench = Bench::new();
        let run = bench.copy("run");
        let devices = || run.last().unwrap().state().unwrap().devices;
        assert_eq!(devices(), Some(1));
        resume(&run, Some("0,1")).unwrap();
        assert_eq!(devices(), Some(2));
    }

    #[test]
    fn a_run_whose_folder_is_removed_writes_all_of_it_again() {
        let bench = Bench::new();
        let (straight, removed) = (bench.copy("straight"), bench.copy("removed"));
        let finished = resume(&straight, None).unwrap();

        // In the first epoch, and in the second, of which an update is done when the run is stopped.
        let trainer_of_three = trainer(&removed, &[0]);
        fs::remove_dir_all(removed.path()).unwrap();
        assert_eq!(trainer_of_three.run().unwrap(), finished);
        assert_eq!(result(&removed), result(&straight));
        let history = |run: &RunFolder| {
            let json = fs::read(run.path().join("history.json")).unwrap();
            serde_json::from_slice::<Vec<EpochRecord>>(&json).unwrap().len()
        };
        assert_eq!(history(&removed), 3);

        let stopped = bench.copy("stopped");
        let first = trainer(&stopped, &[0]);
        let first = Trainer { updates_left: Some(BATCHES / 2), ..first };
        assert!(matches!(first.run(), Ok(Outcome::Interrupted { .. })));
        let second = Trainer { updates_left: Some(1), ..trainer(&stopped, &[0]) };
        fs::remove_dir_all(stopped.path()).unwrap();
        assert!(matches!(second.run(), Ok(Outcome::Interrupted { .. })));
        assert_eq!(history(&stopped), 1);
        assert_eq!(resume(&stopped, None).unwrap(), finished);
        assert_eq!(result(&stopped), result(&straight));
    }

    #[test]
    fn a_run_in_whose_folder_another_has_begun_ends_with_an_error_and_touches_nothing() {
        let bench = Bench::new();
        let run = bench.copy("run");
        let old = trainer(&run, &[0]);
        fs::remove_dir_all(run.path()).unwrap();
        bench.copy("run");
        let _other = run.lock().unwrap();
        let error = old.run().unwrap_err();
        assert!(matches!(error, Error::Checkpoint(CheckpointError::Busy { .. })), "{error}");
        assert_eq!(run.checkpoints().unwrap().len(), 1);
        assert!(!run.path().join("history.json").exists());
    }

    #[test]
    fn a_history_that_cannot_be_written_is_an_error_of_its_own() {
        let bench = Bench::new();
        let run = bench.copy("run");
        // A folder in the place of the file that it is prepared in.
        let obstacle = run.path().join(".history.json.tmp");
        fs::create_dir(&obstacle).unwrap();
        let error = resume(&run, None).unwrap_err();
        assert!(
            error.to_string().starts_with(&format!("{}: ", run.path().join("history.json").display())),
            "{error}"
        );
        assert_eq!(run.last().unwrap().state().unwrap().epoch, 4);
        // The run is complete, and so are its files when it is asked again.
        fs::remove_dir(&obstacle).unwrap();
        resume(&run, None).unwrap();
        assert!(run.path().join("history.json").is_file() && run.path().join("curves.svg").is_file());
    }
}
