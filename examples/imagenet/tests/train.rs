//! Whole runs on a few small pictures, in this process.

mod support;

use burn::backend::Flex;
use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Tensor, TensorData};
use burn::train::Interrupter;
use imagenet::config::ConfigArgs;
use imagenet::error::Error;
use imagenet::train::checkpoint::{Checkpoint, CheckpointError, RunFolder, State};
use imagenet::train::history::EpochRecord;
use imagenet::train::prepare::{Prepared, TrainArgs};
use imagenet::train::progress::Display;
use imagenet::train::run::Outcome;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use wtconvnext::WtConvNext;

/// Backends have one random generator a process, so that runs must not overlap.
static ONE_RUN: Mutex<()> = Mutex::new(());

struct Bench {
    root: tempfile::TempDir,
    _one_run: MutexGuard<'static, ()>,
}

/// Four updates an epoch (of 2 x 2, 2 x 2, 2 x 2 and 1 x 2 + 1 x 1 pictures), every part of a recipe switched on.
const RUN: &str = "epochs = 3\nbatch_size = 2\naccumulate = 2\nwarmup_epochs = 1\nlr = 0.01\ndrop_path = 0.3\n\
                   dropout = 0.2\nkeep = 20\nseed = 4\nrand_augment_layers = 2\nrandom_erasing = 0.5\nmixup = 0.8\n\
                   cutmix = 1.0\nclip_grad = 1.0\nema_decay = 0.9";
const UPDATES: usize = 4;

impl Bench {
    /// Fifteen training and six validation pictures.
    fn new() -> Self {
        // A test that failed has poisoned the lock, which guards nothing that could be broken.
        let one_run = ONE_RUN.lock().unwrap_or_else(PoisonError::into_inner);
        let root = tempfile::tempdir().unwrap();
        support::pictures(&root.path().join("data"), 5, 2);
        Self { root, _one_run: one_run }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    fn args(&self, out: &str, extra: &str) -> TrainArgs {
        let config = support::config(self.root.path(), extra);
        let settings = ConfigArgs { config: Some(config), ..ConfigArgs::default() };
        TrainArgs { settings, out: Some(self.path(out)), ..TrainArgs::default() }
    }

    fn train(&self, out: &str, extra: &str) -> Result<Outcome, Error> {
        train(self.args(out, extra))
    }

    /// Trains until `stop_after` updates of this call are done.
    fn stop(&self, out: &str, extra: &str, stop_after: usize, resume: bool) -> PathBuf {
        match train(TrainArgs { stop_after: Some(stop_after), resume, ..self.args(out, extra) }) {
            Ok(Outcome::Interrupted { checkpoint }) => checkpoint,
            other => panic!("{other:?}"),
        }
    }

    fn resume(&self, out: &str, extra: &str) -> Result<Outcome, Error> {
        train(TrainArgs { resume: true, ..self.args(out, extra) })
    }

    fn last(&self, out: &str) -> (Checkpoint, State) {
        let checkpoint = RunFolder::new(self.path(out)).last().unwrap();
        let state = checkpoint.state().unwrap();
        (checkpoint, state)
    }
}

fn train(args: TrainArgs) -> Result<Outcome, Error> {
    Prepared::new(args)?.train(Interrupter::new(), Display::plain())
}

/// All parameters in order, as bits: those that are used and those that are trained.
fn bits(checkpoint: &Checkpoint) -> [Vec<u32>; 2] {
    let (state, device) = (checkpoint.state().unwrap(), Default::default());
    [checkpoint.model(&state, &device), checkpoint.trained_model(&state, &device)]
        .map(|model| model_bits(&model.unwrap()))
}

fn model_bits(model: &WtConvNext<Flex>) -> Vec<u32> {
    struct Collect(Vec<u32>);
    impl ModuleVisitor<Flex> for Collect {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<Flex, D>>) {
            self.0.extend(param.val().into_data().iter::<f32>().map(f32::to_bits));
        }
    }
    let mut collect = Collect(Vec::new());
    model.visit(&mut collect);
    assert!(collect.0.len() > 1000);
    collect.0
}

/// What a history says, apart from times.
fn numbers(state: &State) -> Vec<EpochRecord> {
    let timeless =
        |record: &EpochRecord| EpochRecord { seconds: 0.0, images_per_second: 0.0, ..record.clone() };
    state.history.iter().map(timeless).collect()
}

#[track_caller]
fn assert_same_run(left: &(Checkpoint, State), right: &(Checkpoint, State)) {
    assert_eq!(numbers(&left.1), numbers(&right.1));
    assert_eq!((left.1.epoch, left.1.schedule), (right.1.epoch, right.1.schedule));
    assert_eq!(bits(&left.0), bits(&right.0));
}

#[test]
fn a_resumed_run_is_the_uninterrupted_run() {
    let bench = Bench::new();
    let straight = bench.train("straight", RUN).unwrap();
    assert!(matches!(straight, Outcome::Finished { .. }));
    let expected = bench.last("straight");
    assert_eq!((expected.1.epoch, expected.1.schedule, expected.1.history.len()), (4, 3 * UPDATES, 3));

    // After an epoch, after the first update of one, after its last (before validation), and before the very first.
    for stop_after in [UPDATES, UPDATES + 1, 2 * UPDATES - 1, 0] {
        let out = format!("stopped-{stop_after}");
        bench.stop(&out, RUN, stop_after, false);
        assert_eq!(bench.last(&out).1.schedule, stop_after);
        assert_eq!(bench.resume(&out, RUN).unwrap(), straight);
        assert_same_run(&bench.last(&out), &expected);
    }

    // One update a call.
    bench.stop("steps", RUN, 1, false);
    for _ in 1..3 * UPDATES - 1 {
        bench.stop("steps", RUN, 1, true);
    }
    assert_eq!(bench.resume("steps", RUN).unwrap(), straight);
    assert_same_run(&bench.last("steps"), &expected);

    // A complete run has nothing left to do.
    assert_eq!(bench.resume("straight", RUN).unwrap(), straight);
    assert_same_run(&bench.last("straight"), &expected);
}

#[test]
fn the_average_of_the_weights_is_what_is_validated_and_used() {
    let bench = Bench::new();
    let short = "epochs = 2\nbatch_size = 4\nwarmup_epochs = 0\nlr = 0.01";
    bench.train("plain", short).unwrap();
    bench.train("ema", &format!("{short}\nema_decay = 0.5")).unwrap();
    let (plain, ema) = (bench.last("plain"), bench.last("ema"));
    // The average does not change what is trained.
    let ([_, plain_trained], [averaged, trained]) = (bits(&plain.0), bits(&ema.0));
    assert_eq!(trained, plain_trained);
    assert_ne!(averaged, trained);
    for (plain, ema) in plain.1.history.iter().zip(&ema.1.history) {
        assert_eq!(plain.train, ema.train);
        assert_ne!(plain.val.loss, ema.val.loss);
    }
    // Without an average there is no file of one.
    assert!(ema.0.path().join("ema.mpk").is_file());
    assert!(!plain.0.path().join("ema.mpk").exists());
}

#[test]
fn mixing_changes_the_loss_and_not_the_labels_of_the_accuracy() {
    let bench = Bench::new();
    // Labels of a mixed batch are never certain: the loss of a perfect model is the entropy of lambda.
    let run = "epochs = 8\nbatch_size = 5\nwarmup_epochs = 0\nlr = 0.02\ncutmix = 0\nmixup = 100\nlabel_smoothing = 0";
    bench.train("mixed", run).unwrap();
    let last = bench.last("mixed").1.history.pop().unwrap();
    // With lambda about 1/2, a model that is right about both images cannot be right more often than by chance.
    assert!(last.train.loss > 0.5 && last.train.accuracy < 0.95, "{last:?}");
    assert!(last.val.accuracy > 0.6, "{last:?}");
}

#[test]
fn a_run_in_bf16_learns_and_keeps_its_weights_in_f32() {
    let bench = Bench::new();
    let run = "epochs = 8\nbatch_size = 5\nwarmup_epochs = 0\nlr = 0.02";
    bench.train("f32", run).unwrap();
    bench.train("bf16", &format!("{run}\ndtype = 'bf16'")).unwrap();
    let (full, low) = (bench.last("f32"), bench.last("bf16"));
    assert!(low.1.val_accuracy().unwrap() > 0.9, "{:?}", low.1.history);
    assert_ne!(low.1.history[0].train.loss, full.1.history[0].train.loss);
    // Weights in bf16 would have sixteen zeros at the end.
    let [weights, _] = bits(&low.0);
    assert!(weights.iter().filter(|bits| *bits & 0xffff != 0).count() > weights.len() / 2);
}

#[test]
fn a_run_depends_on_its_seed_and_not_on_its_workers() {
    let bench = Bench::new();
    let short = "epochs = 1\nbatch_size = 4\nwarmup_epochs = 0\ndrop_path = 0.3";
    let run = |out: &str, seed: u64, workers: usize| {
        let mut args = bench.args(out, short);
        args.settings.layer.seed = Some(seed);
        args.settings.layer.workers = Some(workers);
        train(args).unwrap();
        bench.last(out)
    };
    let first = run("first", 1, 1);
    assert_same_run(&run("again", 1, 3), &first);
    assert_ne!(bits(&run("other", 2, 1).0), bits(&first.0));
}

#[test]
fn a_run_writes_its_configuration_history_and_curves() {
    let bench = Bench::new();
    bench.train("run", "epochs = 2\nbatch_size = 8\nwarmup_epochs = 0\narch = 'convnext'").unwrap();
    let text = |name: &str| fs::read_to_string(bench.path("run").join(name)).unwrap();
    assert!(
        text("config.toml").contains("arch = \"convnext\"")
            && text("config.toml").contains("weight_decay = 0.05")
    );
    assert!(text("curves.svg").starts_with("<svg"));
    let history: Vec<EpochRecord> = serde_json::from_str(&text("history.json")).unwrap();
    assert_eq!(history, bench.last("run").1.history);
    assert_eq!(
        history.iter().map(|record| (record.epoch, record.updates)).collect::<Vec<_>>(),
        [(1, 2), (2, 4)]
    );
    // Cosine from 5e-4 to 1e-6 over four updates: the last of epoch 1 is update 1 of 4, that of epoch 2 update 3.
    let rate = |update: f64| 1e-6 + (5e-4 - 1e-6) * (1.0 + (std::f64::consts::PI * update / 4.0).cos()) / 2.0;
    for (record, expected) in history.iter().zip([rate(1.0), rate(3.0)]) {
        assert!((record.lr - expected).abs() < 1e-12, "{} is not {expected}", record.lr);
        assert_eq!((record.train.top5, record.val.top5), (1.0, 1.0), "three classes are always among five");
    }

    // The configuration is a --config file that gives the same run.
    let settings =
        ConfigArgs { config: Some(bench.path("run").join("config.toml")), ..ConfigArgs::default() };
    let again = TrainArgs { settings, out: Some(bench.path("again")), ..TrainArgs::default() };
    train(again).unwrap();
    assert_same_run(&bench.last("again"), &bench.last("run"));
}

#[test]
fn images_that_cannot_be_read_are_counted_and_left_out() {
    let bench = Bench::new();
    let train_image = bench.path("data").join("train").join("red").join("1.png");
    let val_image = bench.path("data").join("val").join("green").join("0.png");
    let good = fs::read(&train_image).unwrap();
    fs::write(&train_image, &good[..good.len() / 2]).unwrap();
    fs::write(&val_image, b"not an image").unwrap();
    bench.train("run", "epochs = 2\nbatch_size = 4\nwarmup_epochs = 0").unwrap();
    let state = bench.last("run").1;
    assert_eq!(state.history.iter().map(|record| record.unreadable).collect::<Vec<_>>(), [2, 2]);
    // Thirds of five validation images.
    let correct = state.history[1].val.accuracy * 5.0;
    assert!((correct - correct.round()).abs() < 1e-9, "{correct}");
}

#[test]
fn a_batch_or_an_update_without_readable_images_is_passed_over() {
    let bench = Bench::new();
    for class in ["blue", "red"] {
        for index in 0..5 {
            fs::write(bench.path("data").join("train").join(class).join(format!("{index}.png")), b"broken")
                .unwrap();
        }
    }
    // One image an update: two of three updates have none.
    bench.train("run", "epochs = 1\nbatch_size = 1\nwarmup_epochs = 0").unwrap();
    let state = bench.last("run").1;
    assert_eq!((state.schedule, state.history[0].unreadable), (15, 10));
    assert!(state.history[0].train.loss.is_finite());
}

#[test]
fn no_readable_image_at_all_is_an_error() {
    for split in ["train", "val"] {
        let bench = Bench::new();
        for class in support::CLASSES {
            for entry in fs::read_dir(bench.path("data").join(split).join(class)).unwrap() {
                fs::write(entry.unwrap().path(), b"broken").unwrap();
            }
        }
        let error = bench.train("run", "epochs = 1\nbatch_size = 4\nwarmup_epochs = 0").unwrap_err();
        assert!(matches!(&error, Error::Unreadable { path, .. } if path.ends_with(split)), "{error}");
        assert!(error.to_string().contains("0.png"), "{error}");
        assert!(!bench.path("run").exists());
    }
}

#[test]
fn a_loss_that_is_not_a_number_stops_the_run() {
    let bench = Bench::new();
    let error = bench.train("run", "epochs = 9\nbatch_size = 4\nwarmup_epochs = 0\nlr = 1e30").unwrap_err();
    assert!(matches!(error, Error::Diverged { .. }) && error.to_string().contains("lower --lr"), "{error}");
}

/// Replaces the weights in the last checkpoint of a run, which becomes one between the last update of the second epoch and its
/// validation.
fn replace_weights(bench: &Bench, out: &str, model: &WtConvNext<Flex>) {
    let (checkpoint, state) = bench.last(out);
    let state = State { updates_done: UPDATES, schedule: 2 * UPDATES, ..state };
    let other = RunFolder::new(bench.path("other"));
    other.create("").unwrap();
    let none: Option<&WtConvNext<Flex>> = None;
    let other = other.save(state.clone(), model, none, 0_usize, 1).unwrap();
    fs::copy(other.path().join("model.mpk"), checkpoint.path().join("model.mpk")).unwrap();
    let checksums = [other.state().unwrap().checksums[0], state.checksums[1]];
    let json = serde_json::to_vec(&State { checksums, ..state }).unwrap();
    fs::write(checkpoint.state_file(), json).unwrap();
    fs::remove_dir_all(bench.path("other")).unwrap();
    let name = format!("epoch-0001-update-{UPDATES:05}");
    fs::rename(checkpoint.path(), checkpoint.path().with_file_name(name)).unwrap();
}

#[test]
fn a_validation_that_is_not_finite_for_some_images_stops_the_run() {
    let bench = Bench::new();
    let run = "epochs = 3\nbatch_size = 4\nwarmup_epochs = 0\nlr = 0.01";
    // Six validation images one by one, without the program's own code for it.
    let outputs = |model: &WtConvNext<Flex>| -> Vec<Vec<f32>> {
        let transform = imagenet::data::augment::Transform::Eval { input_size: 32, crop_fraction: 0.875 };
        let mut outputs = Vec::new();
        for class in support::CLASSES {
            for index in 0..2 {
                let path = bench.path("data").join("val").join(class).join(format!("{index}.png"));
                let mut rng = imagenet::data::stream(0, imagenet::data::Stream::Augment, 0, 0);
                let picture = image::open(path).unwrap().into_rgb8();
                let picture = transform.apply(&picture, &mut rng, &mut fast_image_resize::Resizer::new());
                let pixels = TensorData::new(imagenet::data::augment::normalize(&picture), [1, 3, 32, 32]);
                let x = Tensor::from_data(pixels, &Default::default());
                outputs.push(model.forward(x).into_data().iter().collect());
            }
        }
        outputs
    };
    // Feature `feature` times a weight for each class, and nothing else.
    let classifier = |model: &WtConvNext<Flex>, feature: usize, weights: [f32; 3]| {
        let mut model = model.clone();
        let of = |row: usize, column: usize| if row == feature { weights[column] } else { 0.0 };
        let values = (0..8 * 3).map(|index| of(index / 3, index % 3)).collect();
        let weight = Tensor::from_data(TensorData::new(values, [8, 3]), &Default::default());
        let fc = model.head.fc.as_mut().unwrap();
        fc.weight = Param::from_tensor(weight);
        fc.bias = None;
        model
    };
    let features = |model: &WtConvNext<Flex>, feature: usize| -> Vec<f32> {
        outputs(&classifier(model, feature, [1.0, 0.0, 0.0])).iter().map(|row| row[0]).collect()
    };

    // One complete epoch, and all but the last update of the second.
    for out in ["outputs", "losses"] {
        bench.stop(out, run, 2 * UPDATES - 1, false);
    }
    let (checkpoint, state) = bench.last("outputs");
    assert_eq!((state.epoch, state.updates_done, state.history.len()), (2, UPDATES - 1, 1));
    let mut model: WtConvNext<Flex> = checkpoint.model(&state, &Default::default()).unwrap();
    // Larger features, so that weights of usual size overflow.
    model.head.norm.gamma = Param::from_tensor(model.head.norm.gamma.val() * 1e6);

    // Half of the images overflow: infinite outputs.
    let mut sizes: Vec<f32> = features(&model, 0).iter().map(|x| x.abs()).collect();
    sizes.sort_by(f32::total_cmp);
    let overflowing = classifier(&model, 0, [f32::MAX / (sizes[2] / 2.0 + sizes[3] / 2.0), 0.0, 0.0]);
    let expected = outputs(&overflowing).iter().filter(|row| !row[0].is_finite()).count();
    assert!((1..6).contains(&expected), "{expected} of 6: {sizes:?}");
    replace_weights(&bench, "outputs", &overflowing);
    let error = bench.resume("outputs", run).unwrap_err();
    let Error::DivergedInValidation { epoch: 2, not_finite, images: 6 } = error else { panic!("{error}") };
    assert_eq!(not_finite, expected);

    // All outputs are finite, but some are so far apart that the loss of the wrong one is infinite.
    let distances = |feature: usize| {
        let of_class = features(&model, feature);
        let largest = of_class.iter().fold(0.0_f32, |largest, x| largest.max(x.abs()));
        let weight = f32::MAX / largest * 0.999;
        let rows = outputs(&classifier(&model, feature, [weight, -weight, -weight]));
        assert!(rows.iter().flatten().all(|output| output.is_finite()));
        let infinite = |(index, row): (usize, &Vec<f32>)| {
            let highest = row.iter().copied().fold(f32::MIN, f32::max);
            (highest - row[index / 2]).is_infinite()
        };
        (weight, rows.iter().enumerate().filter(|row| infinite(*row)).count())
    };
    let (feature, (weight, _)) = (0..8)
        .map(|feature| (feature, distances(feature)))
        .find(|(_, (_, infinite))| (1..6).contains(infinite))
        .expect("a feature for which some losses are infinite");
    replace_weights(&bench, "losses", &classifier(&model, feature, [weight, -weight, -weight]));
    let error = bench.resume("losses", run).unwrap_err();
    let Error::Diverged { loss, epoch: 2, update: UPDATES } = error else { panic!("{error}") };
    assert_eq!(loss, f64::INFINITY);

    // No epoch is recorded, no checkpoint written, and the one of the complete epoch is what it was.
    for out in ["outputs", "losses"] {
        assert_eq!(fs::read_dir(bench.path(out).join("checkpoints")).unwrap().count(), 2);
        let history = fs::read_to_string(bench.path(out).join("history.json")).unwrap();
        let history: Vec<EpochRecord> = serde_json::from_str(&history).unwrap();
        assert_eq!(history.len(), 1);
        let (_, state) = Checkpoint::open(&bench.path(out).join("checkpoints/epoch-0001"), false).unwrap();
        assert_eq!(state.history, history);
        assert!(history[0].val.loss.is_finite());
    }
}

#[test]
fn another_run_is_not_overwritten() {
    let bench = Bench::new();
    let short = "epochs = 1\nbatch_size = 8\nwarmup_epochs = 0";
    bench.train("run", short).unwrap();
    let before = bench.last("run");
    let error = bench.train("run", short).unwrap_err();
    assert!(matches!(&error, Error::RunExists { path } if *path == bench.path("run")), "{error}");
    assert!(error.to_string().contains("--resume") && error.to_string().contains("--out"), "{error}");
    assert_same_run(&bench.last("run"), &before);
}

#[test]
fn only_the_same_run_is_resumed() {
    let bench = Bench::new();
    let error = bench.resume("absent", RUN).unwrap_err();
    assert!(matches!(&error, Error::NothingToResume { path } if *path == bench.path("absent")), "{error}");

    bench.stop("run", RUN, 1, false);
    let other = RUN.replace("seed = 4", "seed = 4\narch = 'convnext'");
    let error = bench.resume("run", &other).unwrap_err().to_string();
    assert!(
        error.starts_with("arch is \"wtconvnext\" in this run and cannot become \"convnext\""),
        "{error}"
    );

    // A configuration that was edited by hand no longer fits the checkpoint.
    let config = bench.path("run").join("config.toml");
    let text = fs::read_to_string(&config).unwrap();
    fs::write(&config, text.replace("dims = [6, 8, 8, 8]", "dims = [6, 8, 8, 16]")).unwrap();
    let error =
        train(TrainArgs { resume: true, out: Some(bench.path("run")), ..TrainArgs::default() }).unwrap_err();
    assert!(matches!(error, Error::Checkpoint(CheckpointError::OtherModel { .. })), "{error}");
    assert!(
        error.to_string().contains("dims [6,8,8,8]") && error.to_string().contains("dims [6,8,8,16]"),
        "{error}"
    );
    fs::write(&config, text.replace("ema_decay = 0.9", "ema_decay = 0.0")).unwrap();
    let error =
        train(TrainArgs { resume: true, out: Some(bench.path("run")), ..TrainArgs::default() }).unwrap_err();
    assert!(matches!(error, Error::Checkpoint(CheckpointError::OtherAverage { .. })), "{error}");
    fs::write(&config, text).unwrap();

    let extra = bench.path("data").join("train").join("red").join("extra.png");
    fs::copy(bench.path("data").join("train").join("red").join("0.png"), &extra).unwrap();
    let error = bench.resume("run", RUN).unwrap_err();
    assert!(error.to_string().ends_with("the number of training images was 15 and is 16"), "{error}");
    fs::remove_file(extra).unwrap();

    // The folder may move.
    fs::rename(bench.path("data"), bench.path("moved")).unwrap();
    let mut args = TrainArgs { resume: true, out: Some(bench.path("run")), ..TrainArgs::default() };
    args.settings.layer.data = Some(bench.path("moved"));
    train(args).unwrap();
    assert!(bench.last("run").1.data.ends_with("moved"));
}

#[test]
fn everything_is_checked_before_anything_is_written() {
    let bench = Bench::new();
    let refused = |extra: &str| {
        let error = bench.train("run", extra).unwrap_err().to_string();
        assert!(!bench.path("run").exists(), "{extra} left a folder");
        error
    };
    assert!(refused("batch_size = 0").starts_with("batch_size = 0"));
    assert!(refused("momentum = 1").contains("config.toml"));
    assert!(
        refused("arch = 'convnext'\nkernel_sizes = [7, 7, 0, 7]")
            .starts_with("model: `kernel_sizes[2]` must be at least 1, got 0")
    );
    #[cfg(not(feature = "cuda"))]
    assert!(refused("backend = 'cuda'").contains("--features cuda"));

    fs::create_dir(bench.path("data").join("val").join("stars")).unwrap();
    let error = refused("epochs = 1");
    assert!(
        error.ends_with("val/stars: class \"stars\" is not among the 3 classes of the training set"),
        "{error}"
    );
    fs::remove_dir(bench.path("data").join("val").join("stars")).unwrap();

    let mut args = bench.args("run", "");
    args.settings.layer.data = Some(Path::new("/no/such/data").to_path_buf());
    assert!(train(args).unwrap_err().to_string().starts_with("/no/such/data: no such folder"));
}

#[test]
fn a_checkpoint_that_cannot_be_written_does_not_stop_a_run_but_the_last_must_be() {
    let bench = Bench::new();
    let short = "epochs = 2\nbatch_size = 8\nwarmup_epochs = 0";
    let checkpoints = bench.path("run").join("checkpoints");
    fs::create_dir_all(&checkpoints).unwrap();
    // A file in the place of the folder in which the checkpoint is prepared.
    fs::write(checkpoints.join(".epoch-0001.tmp"), b"").unwrap();
    bench.train("run", short).unwrap();
    assert_eq!(bench.last("run").1.history.len(), 2);
    assert!(!checkpoints.join("epoch-0001").exists());

    let checkpoints = bench.path("other").join("checkpoints");
    fs::create_dir_all(&checkpoints).unwrap();
    fs::write(checkpoints.join(".epoch-0002.tmp"), b"").unwrap();
    let error = bench.train("other", short).unwrap_err();
    assert!(matches!(error, Error::Checkpoint(CheckpointError::Write { .. })), "{error}");
    assert_eq!(bench.last("other").1.history.len(), 1, "the checkpoint of the first epoch is usable");
}

/// [`RUN`] without what draws from the generator of the backend, which devices share.
fn run_on_devices() -> String {
    RUN.replace("drop_path = 0.3\ndropout = 0.2\n", "drop_path = 0.0\ndropout = 0.0\n")
}

#[test]
fn two_devices_train_as_one_and_either_resumes_the_other() {
    let bench = Bench::new();
    let run = run_on_devices();
    bench.train("one", &run).unwrap();
    let one = bench.last("one").1;
    let two = || Some("0,1".parse().unwrap());
    train(TrainArgs { devices: two(), ..bench.args("two", &run) }).unwrap();
    // Two updates on one device, four on two, the rest on one again.
    bench.stop("changed", &run, 2, false);
    let changed =
        TrainArgs { devices: two(), resume: true, stop_after: Some(4), ..bench.args("changed", &run) };
    assert!(matches!(train(changed).unwrap(), Outcome::Interrupted { .. }));
    bench.resume("changed", &run).unwrap();
    for out in ["two", "changed"] {
        let several = bench.last(out).1;
        assert_eq!((several.schedule, several.history.len()), (one.schedule, 3));
        for (several, one) in several.history.iter().zip(&one.history) {
            assert_eq!((several.lr, several.updates), (one.lr, one.updates));
            let distance = (several.train.loss - one.train.loss).abs();
            assert!(distance < 1e-4, "{out}: {} is not {}", several.train.loss, one.train.loss);
        }
    }
    // The same devices give the same run.
    train(TrainArgs { devices: two(), ..bench.args("again", &run) }).unwrap();
    assert_same_run(&bench.last("again"), &bench.last("two"));
}

#[test]
fn devices_that_cannot_be_used_stop_a_run_before_it_writes() {
    let bench = Bench::new();
    let run = "epochs = 1\nbatch_size = 5\nwarmup_epochs = 0";
    for (devices, message) in
        [("0,1", "batch_size = 5 does not divide among 2 devices"), ("99", "no device 99")]
    {
        let devices = Some(devices.parse().unwrap());
        let error = train(TrainArgs { devices, ..bench.args("run", run) }).unwrap_err();
        assert!(matches!(error, Error::Devices(_)) && error.to_string().contains(message), "{error}");
        assert!(!bench.path("run").exists());
    }
}
