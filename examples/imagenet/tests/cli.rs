//! The program itself, as a user runs it.

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

fn imagenet(folder: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_imagenet"));
    command.current_dir(folder).args(args).stdin(Stdio::null()).env_remove("RUST_LOG");
    command
}

fn output(folder: &Path, args: &[&str]) -> Output {
    imagenet(folder, args).output().unwrap()
}

#[track_caller]
fn succeed(folder: &Path, args: &[&str]) -> String {
    let output = output(folder, args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[track_caller]
fn fail(folder: &Path, args: &[&str]) -> String {
    let output = output(folder, args);
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{args:?}: {error}");
    assert!(!error.contains("panicked"), "{error}");
    error
}

fn bench(extra: &str) -> (tempfile::TempDir, PathBuf) {
    let root = tempfile::tempdir().unwrap();
    support::pictures(&root.path().join("data"), 8, 4);
    let config = support::config(root.path(), extra);
    (root, config)
}

#[test]
fn train_evaluate_predict() {
    let (root, config) = bench("batch_size = 8\nwarmup_epochs = 0\nlr = 0.02\nflip = 0");
    let root = root.path();
    let train = ["train", "--config", config.to_str().unwrap(), "--epochs", "12"];
    let text = succeed(root, &train);
    let last = text.lines().last().unwrap();
    let accuracy: f64 = last.strip_prefix("val accuracy: ").unwrap().parse().unwrap();
    assert!(accuracy >= 0.9, "colours are told apart: {text}");
    // A slow machine prints lines within epochs too.
    let ends_epoch = |line: &&str| line.starts_with("epoch ") && line.contains("val loss");
    assert_eq!(text.lines().filter(ends_epoch).count(), 12, "{text}");
    assert!(text.lines().filter(|line| line.starts_with("epoch ")).all(|line| line.len() <= 120), "{text}");
    assert!(root.join("runs/wtconvnext-micro-data/config.toml").is_file());

    // A second run in the same folder is refused, a complete run is resumed at once.
    assert!(fail(root, &train).contains("runs/wtconvnext-micro-data: holds the checkpoints of a run"));
    let resume = ["train", "--resume", "--out", "runs/wtconvnext-micro-data"];
    let text = succeed(root, &resume);
    assert!(
        text.contains("this run is complete: 12 epochs of 12\n") && text.ends_with(&format!("{last}\n")),
        "{text}"
    );
    let error = fail(root, &[&resume[..], &["--epochs", "30"]].concat());
    assert!(error.starts_with("error: epochs is 12 in this run and cannot become 30"), "{error}");

    let text = succeed(root, &["evaluate"]);
    assert!(text.contains("12 images: top-1") && text.contains("blue"), "{text}");
    let json = root.join("runs/wtconvnext-micro-data/checkpoints/epoch-0012/evaluation.json");
    let evaluation: serde_json::Value = serde_json::from_slice(&fs::read(json).unwrap()).unwrap();
    assert_eq!(format!("val accuracy: {:.4}", evaluation["accuracy"].as_f64().unwrap()), last);
    assert_eq!(evaluation["classes"][2]["class"], "red");
    assert_eq!(evaluation["confusion"].as_array().unwrap().len(), 3);
    image::open(root.join("runs/wtconvnext-micro-data/checkpoints/epoch-0012/confusion.png")).unwrap();

    // The receptive field of the model, averaged over some of the images; then that of bare layers, which need none.
    let text = succeed(root, &["erf", "--count", "5", "--input-size", "64"]);
    assert!(text.contains("epoch-0012") && text.ends_with("written to erf.png and erf.json\n"), "{text}");
    let erf: serde_json::Value = serde_json::from_slice(&fs::read(root.join("erf.json")).unwrap()).unwrap();
    assert_eq!((&erf["fields"][0]["images"], &erf["fields"][0]["input_size"]), (&5.into(), &64.into()));
    image::open(root.join("erf.png")).unwrap();
    let layers =
        ["erf", "--layer", "--levels", "0,2", "--channels", "2", "--input-size", "40", "--out", "l.png"];
    succeed(root, &layers);
    let erf: serde_json::Value = serde_json::from_slice(&fs::read(root.join("l.json")).unwrap()).unwrap();
    let names: Vec<_> = (0..3).map(|index| erf["fields"][index]["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["WtConv2d 5x5 L=0", "WtConv2d 5x5 L=2", "DepthwiseConv2d 7x7"]);
    // Without levels, the central row has the five taps of the filter.
    let row = erf["fields"][0]["central_row"].as_array().unwrap();
    assert_eq!(row.iter().filter(|value| **value != 0.0).count(), 5);
    succeed(root, &["evaluate", "--best", "--data", "data", "--batch-size", "5"]);

    let text = succeed(root, &["predict", "data/val/red/0.png", "data/val/green/1.png", "--top", "2"]);
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(
        (lines.len(), lines[1], lines[4]),
        (7, "data/val/red/0.png", "data/val/green/1.png"),
        "{text}"
    );
    assert!(lines[2].ends_with("red") && lines[5].ends_with("green"), "{text}");
    let percent: f64 = lines[2].split('%').next().unwrap().trim().parse().unwrap();
    assert!((33.3..=100.0).contains(&percent), "{text}");

    // The same as lines of JSON: the classes, the logits behind them, and on stderr the speed.
    let images = ["data/val/red/0.png", "missing.png", "data/val/green/1.png"];
    let found = output(
        root,
        &[&["predict"], &images[..], &["--json", "--logits", "--top", "2", "--batch-size", "2"]].concat(),
    );
    assert_eq!(found.status.code(), Some(1));
    let json: Vec<serde_json::Value> = String::from_utf8(found.stdout)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(json.iter().map(|line| line["path"].as_str().unwrap()).collect::<Vec<_>>(), images);
    for (line, class) in [(&json[0], "red"), (&json[2], "green")] {
        assert_eq!(
            (line["classes"].as_array().unwrap().len(), &line["classes"][0]["class"]),
            (2, &class.into())
        );
        let logits: Vec<f64> =
            line["logits"].as_array().unwrap().iter().map(|logit| logit.as_f64().unwrap()).collect();
        let highest = logits.iter().copied().fold(f64::MIN, f64::max);
        let probability = 1.0 / logits.iter().map(|logit| (logit - highest).exp()).sum::<f64>();
        assert!((line["classes"][0]["probability"].as_f64().unwrap() - probability).abs() < 1e-6, "{line}");
        assert!(line.get("error").is_none());
    }
    let first_logits: Vec<f64> =
        json[0]["logits"].as_array().unwrap().iter().map(|logit| logit.as_f64().unwrap()).collect();
    assert!(json[1]["error"].as_str().unwrap().starts_with("missing.png: "));
    assert!(json[1].get("classes").is_none() && json[1].get("logits").is_none());
    let error = String::from_utf8(found.stderr).unwrap();
    assert!(error.contains("3 images in ") && error.contains(" images/s\n"), "{error}");

    // The subbands of a layer of the model, and of one before training.
    let text = succeed(root, &["subbands", images[0], "--checkpoint", "runs/wtconvnext-micro-data"]);
    assert!(text.contains("epoch-0012, stage 1, block 1, channel "), "{text}");
    image::open(root.join("subbands.png")).unwrap();
    let json: serde_json::Value =
        serde_json::from_slice(&fs::read(root.join("subbands.json")).unwrap()).unwrap();
    // Two levels of 8 and 4 pixels in the first stage.
    assert_eq!((json["subbands"].as_array().unwrap().len(), &json["subbands"][7]["rows"]), (8, &2.into()));
    let text = succeed(root, &["subbands", images[0], "--levels", "1", "--out", "bare.png"]);
    assert!(text.starts_with("WtConv2d 5x5 L=1 before training, channel 0\n"), "{text}");
    let wrong = ["subbands", images[0], "--checkpoint", "runs/wtconvnext-micro-data", "--block", "2"];
    assert!(fail(root, &wrong).contains("--block 2: stage 1 has 1"));

    // The exported file is the model: loaded under the official names, it gives the same logits.
    for (scheme, name) in [("modules", "base_conv.weight"), ("parameters", "base_weight")] {
        succeed(root, &["export", "--scheme", scheme, "--out", "out.safetensors"]);
        let bytes = fs::read(root.join("out.safetensors")).unwrap();
        let header = String::from_utf8_lossy(&bytes);
        assert!(header.contains(&format!("\"stages.0.blocks.0.conv_dw.{name}\"")), "{scheme}");
    }
    let card: serde_json::Value = serde_json::from_slice(&fs::read(root.join("out.json")).unwrap()).unwrap();
    assert_eq!(card["label_names"], serde_json::json!(["blue", "green", "red"]));
    assert_eq!(card["model_args"]["wt_levels"], serde_json::json!([2, 1, 1, 1]));
    assert_eq!(card["pretrained_cfg"]["input_size"], serde_json::json!([3, 32, 32]));
    let config = wtconvnext::WtConvNextConfig::new(3)
        .with_depths([1; 4])
        .with_dims([6, 8, 8, 8])
        .with_levels([2, 1, 1, 1]);
    let device = Default::default();
    let (model, _) =
        wtconvnext::load_official::<burn::backend::Flex>(&config, root.join("out.safetensors"), &device)
            .unwrap();
    let picture = image::open(root.join(images[0])).unwrap().into_rgb8();
    let transform = imagenet::data::augment::Transform::Eval { input_size: 32, crop_fraction: 0.875 };
    let mut rng = imagenet::data::stream(0, imagenet::data::Stream::Augment, 0, 0);
    let picture = transform.apply(&picture, &mut rng, &mut fast_image_resize::Resizer::new());
    let pixels = imagenet::data::augment::normalize(&picture);
    let x = burn::tensor::Tensor::from_data(burn::tensor::TensorData::new(pixels, [1, 3, 32, 32]), &device);
    let logits: Vec<f64> = model.forward(x).into_data().iter().collect();
    for (logit, printed) in logits.iter().zip(first_logits) {
        assert!((logit - printed).abs() < 1e-5, "{logit} is not {printed}");
    }

    // A file that cannot be read is named, the others are answered.
    fs::write(root.join("broken.jpg"), b"broken").unwrap();
    let output = output(root, &["predict", "broken.jpg", "data/val/red/0.png"]);
    let (text, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(1));
    assert!(text.contains("data/val/red/0.png") && error.contains("broken.jpg"), "{text}{error}");
    assert!(error.contains("could not read 1 of 2 images"), "{error}");

    // A class that the model does not know.
    fs::create_dir_all(root.join("other/val/stars")).unwrap();
    assert!(
        fail(root, &["evaluate", "--data", "other"])
            .contains("other/val/stars: class \"stars\" is not among the 3")
    );
}

#[test]
fn folders_are_predicted_image_by_image() {
    let (root, config) = bench("batch_size = 8");
    let root = root.path();
    output(root, &["train", "--config", config.to_str().unwrap(), "--stop-after", "1"]);
    // More images than go through the model at once, of which one in the first batch is broken.
    for index in 0..40 {
        fs::copy(root.join("data/val/red/0.png"), root.join(format!("data/val/red/copy-{index}.png")))
            .unwrap();
    }
    fs::write(root.join("data/val/green/2.png"), b"broken").unwrap();
    fs::write(root.join("data/val/notes.txt"), b"not an image").unwrap();
    let output = output(root, &["predict", "data/val", "data/train/blue/0.png", "--top", "1"]);
    let (text, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(1), "{error}");
    let images: Vec<_> = text.lines().filter(|line| line.ends_with(".png")).collect();
    assert_eq!(
        (images.len(), images[0], images[51]),
        (52, "data/val/blue/0.png", "data/train/blue/0.png"),
        "{text}"
    );
    assert!(error.contains("error: data/val/green/2.png: "), "{error}");
    assert!(error.contains("data/val: 1 file left out because of the name"), "{error}");
    assert!(error.ends_with("error: could not read 1 of 53 images\n"), "{error}");

    fs::create_dir(root.join("empty")).unwrap();
    assert!(
        fail(root, &["predict", "empty"])
            .starts_with("error: empty: no .jpg, .jpeg or .png files in this folder")
    );
}

#[test]
fn a_run_without_a_validated_epoch_has_no_best_checkpoint() {
    let (root, config) = bench("batch_size = 8");
    let root = root.path();
    output(root, &["train", "--config", config.to_str().unwrap(), "--out", "run", "--stop-after", "1"]);
    for command in [&["evaluate"][..], &["predict", "data/val/red/0.png"]] {
        let command = [command, &["--checkpoint", "run"]].concat();
        succeed(root, &command);
        let error = fail(root, &[&command[..], &["--best"]].concat());
        assert!(
            error.starts_with("error: run: no checkpoint here is of a complete, validated epoch"),
            "{error}"
        );
    }
}

#[test]
fn levels_are_checked_against_network_and_input_size() {
    let (root, config) = bench("batch_size = 8");
    let root = root.path();
    let error = fail(root, &["train", "--arch", "convnext", "--levels", "2,1,1,1"]);
    assert!(
        error.contains(
            "levels = [2, 1, 1, 1]: the network convnext has no wavelet levels; leave --levels out"
        ),
        "{error}"
    );
    let error = fail(root, &["train", "--levels", "2,1,1,40"]);
    assert!(error.contains("levels = [2, 1, 1, 40]: must be at most 16; at input_size = 32"), "{error}");

    let train = ["train", "--config", config.to_str().unwrap(), "--stop-after", "1"];
    let stderr = |levels: &str, out: &str| {
        let output = output(root, &[&train[..], &["--levels", levels, "--out", out]].concat());
        assert_eq!(output.status.code(), Some(130));
        String::from_utf8(output.stderr).unwrap()
    };
    assert_eq!(stderr("3,2,1,1", "useful"), "");
    let warning = stderr("3,2,1,2", "beyond");
    assert!(
        warning.contains("levels = [3, 2, 1, 2]: at input_size = 32 the stages' maps are [8, 4, 2, 1]"),
        "{warning}"
    );
}

#[test]
fn the_help_of_train_has_both_defaults() {
    let root = tempfile::tempdir().unwrap();
    let help = succeed(root.path(), &["train", "--help"]);
    for text in [
        "[default: 16; with --data: 100]",
        "[default: micro; with --data: tiny]",
        "Without --data, the defaults",
    ] {
        assert!(help.contains(text), "no {text} in\n{help}");
    }
}

#[test]
fn errors_are_one_line_with_the_name() {
    let (root, _) = bench("");
    let root = root.path();
    assert!(
        fail(root, &["predict", "data/val/red/0.png"])
            .contains("no run with a checkpoint under runs: train first")
    );
    assert!(fail(root, &["evaluate", "--checkpoint", "data"]).starts_with("error: data: no checkpoint here"));
    assert!(fail(root, &["train", "--data", "nothing"]).starts_with("error: nothing: no such folder"));
    assert!(fail(root, &["train", "--config", "nothing.toml"]).starts_with("error: nothing.toml: "));
    assert!(fail(root, &["train", "--epochs", "0"]).starts_with("error: epochs = 0: must be at least 1"));
    #[cfg(not(feature = "cuda"))]
    for command in [&["train"][..], &["evaluate"], &["predict", "data/val/red/0.png"]] {
        let error = fail(root, &[command, &["--backend", "cuda"]].concat());
        assert!(error.contains("no cuda backend") && error.contains("--features cuda"), "{error}");
    }
    assert!(!root.join("runs").exists(), "nothing is written before everything is checked");
}

#[cfg(unix)]
#[test]
fn ctrl_c_leaves_a_checkpoint_to_resume() {
    use std::io::{BufRead, BufReader};

    let (root, config) = bench("batch_size = 4\nepochs = 100000\nwarmup_epochs = 0");
    let root = root.path();
    let folder = "it's a run";
    let train = ["train", "--config", config.to_str().unwrap(), "--out", folder];
    let mut child = imagenet(root, &train).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    lines.find(|line| line.starts_with("epoch 1/100000")).expect("the first epoch ends");
    let kill = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(kill.success());
    let rest: Vec<_> = lines.collect();
    assert_eq!(child.wait().unwrap().code(), Some(130), "{rest:?}");
    let resume = rest.last().unwrap().strip_prefix("continue with: ").unwrap();
    let saved = rest.iter().find_map(|line| line.strip_prefix("interrupted; saved ")).unwrap();
    assert!(root.join(saved).join("model.mpk").is_file());

    succeed(root, &["evaluate", "--checkpoint", folder]);
    // The line is pasted into a shell as it is.
    let shell = format!("{resume} --stop-after 1");
    let resumed =
        Command::new("sh").current_dir(root).args(["-c", &shell]).stdin(Stdio::null()).output().unwrap();
    assert_eq!(resumed.status.code(), Some(130));
    assert!(String::from_utf8_lossy(&resumed.stdout).contains(&format!("resuming from {saved}")));
}

/// Every part of a recipe, in runs of a few updates an epoch.
const PARTS: &str = "batch_size = 4\naccumulate = 2\nwarmup_epochs = 1\nlr = 0.01\ndrop_path = 0.2\nrand_augment_layers = 2\n\
                     random_erasing = 0.5\nmixup = 0.8\ncutmix = 1.0\nclip_grad = 1.0\nema_decay = 0.9";

/// The file as JSON, without what the clock says.
fn history(run: &Path) -> serde_json::Value {
    let mut history: serde_json::Value =
        serde_json::from_slice(&fs::read(run.join("history.json")).unwrap()).unwrap();
    for epoch in history.as_array_mut().unwrap() {
        let epoch = epoch.as_object_mut().unwrap();
        for key in ["seconds", "images_per_second"] {
            epoch.remove(key).unwrap();
        }
    }
    history
}

#[test]
fn a_run_that_was_killed_goes_on_as_if_it_had_not_been() {
    use std::io::{BufRead, BufReader};

    let (root, config) = bench(PARTS);
    let root = root.path();
    let train = |out, more: &[&'static str]| {
        [&["train", "--config", config.to_str().unwrap(), "--epochs", "12", "--out", out], more].concat()
    };
    succeed(root, &train("straight", &[]));
    // Without warning (SIGKILL), twice: somewhere in the epoch after the one whose line has been read, or in its checkpoint.
    for (epoch, more) in [("epoch 2/12", &[][..]), ("epoch 4/12", &["--resume"])] {
        let mut child = imagenet(root, &train("killed", more)).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        lines.find(|line| line.starts_with(epoch) && line.contains("val loss")).expect("the epoch ends");
        child.kill().unwrap();
        assert!(!child.wait().unwrap().success());
        assert!(history(&root.join("killed")).as_array().unwrap().len() < 12, "it was killed before its end");
    }
    let text = succeed(root, &train("killed", &["--resume"]));
    assert!(text.contains("resuming from killed/checkpoints/epoch-0"), "{text}");
    assert_eq!(history(&root.join("killed")), history(&root.join("straight")));
}

#[cfg(unix)]
#[test]
fn a_full_disk_is_reported_and_survived() {
    let (root, config) = bench("batch_size = 8\nwarmup_epochs = 0\nema_decay = 0.9");
    let root = root.path();
    // No file may be larger than 30 KiB, or 60 as some shells count: history.json and curves.svg can be written, model.mpk
    // breaks off, or optimizer.mpk.
    let limited = "trap '' XFSZ; ulimit -f 60; exec \"$@\"";
    let train = ["train", "--config", config.to_str().unwrap(), "--epochs", "3", "--out", "run"];
    let run = |script: &str, more: &[&str]| {
        let mut command = Command::new("sh");
        command.current_dir(root).args(["-c", script, "sh", env!("CARGO_BIN_EXE_imagenet")]);
        command.args(train).args(more).stdin(Stdio::null()).env_remove("RUST_LOG").output().unwrap()
    };
    let output = run(limited, &[]);
    let (text, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(1), "{text}{error}");
    assert!(!error.contains("panicked"), "{error}");
    assert!(text.contains("epoch 3/3") && text.contains("error: no checkpoint of epoch 1: "), "{text}");
    let last = error.lines().last().unwrap();
    assert!(last.starts_with("error: run/checkpoints/epoch-0003: cannot write: "), "{error}");
    assert_eq!(
        fs::read_dir(root.join("run/checkpoints")).unwrap().count(),
        0,
        "nothing half-written is left"
    );
    assert_eq!(history(&root.join("run")).as_array().unwrap().len(), 3);

    // With room again, the run starts over in its folder.
    let output = run("exec \"$@\"", &["--resume"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(root.join("run/checkpoints/epoch-0003/ema.mpk").is_file());
}

#[test]
fn what_cannot_be_written_is_named() {
    let (root, config) = bench("batch_size = 8\nwarmup_epochs = 0");
    let root = root.path();
    // A folder in the place of the file in which the history is prepared.
    fs::create_dir_all(root.join("run/.history.json.tmp")).unwrap();
    let train = ["train", "--config", config.to_str().unwrap(), "--epochs", "2", "--out", "run"];
    let error = fail(root, &train);
    for epoch in [1, 2] {
        assert!(
            error.contains(&format!("no history of epoch {epoch}: run/history.json: cannot write: ")),
            "{error}"
        );
    }
    assert!(!error.contains("no checkpoint"), "{error}");
    assert!(error.lines().last().unwrap().starts_with("error: run/history.json: cannot write: "), "{error}");
    fs::remove_dir(root.join("run/.history.json.tmp")).unwrap();
    succeed(root, &["train", "--resume", "--out", "run"]);
    assert_eq!(history(&root.join("run")).as_array().unwrap().len(), 2);
}

#[cfg(unix)]
#[test]
fn a_run_goes_on_on_its_devices() {
    let (root, config) = bench("batch_size = 4\nwarmup_epochs = 0\nepochs = 2");
    let root = root.path();
    let stopped = |command: &mut Command| {
        let output = command.current_dir(root).stdin(Stdio::null()).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert_eq!(output.status.code(), Some(130), "{text}{}", String::from_utf8_lossy(&output.stderr));
        text
    };
    let train = [
        "train",
        "--config",
        config.to_str().unwrap(),
        "--stop-after",
        "1",
        "--out",
        "run",
        "--devices",
        "0,1",
    ];
    let text = stopped(&mut imagenet(root, &train));
    assert!(text.contains("2 devices share each batch of up to 4 images\n"), "{text}");
    let resume = text.lines().last().unwrap().strip_prefix("continue with: ").unwrap();
    assert!(resume.ends_with(" train --resume --out run --devices 0,1"), "{resume}");
    // As it is pasted into a shell.
    let text = stopped(Command::new("sh").args(["-c", &format!("{resume} --stop-after 1")]));
    assert!(text.contains("2 devices share") && !text.contains("before"), "{text}");
    // On others it says so; `all` does not mean the cores of a CPU.
    let resume = ["train", "--resume", "--out", "run", "--stop-after", "1", "--devices", "all"];
    let text = stopped(&mut imagenet(root, &resume));
    assert!(text.contains("--devices all: one worker, because a CPU is one device"), "{text}");
    assert!(text.contains("it was on 2 devices before, and is on 1 now\n"), "{text}");
    assert!(text.ends_with(" --devices all\n"), "{text}");
    let help = succeed(root, &["train", "--help"]);
    assert!(
        help.split_whitespace()
            .collect::<Vec<_>>()
            .join(" ")
            .contains("each index is a worker, and `all` is one")
    );
}

#[test]
fn the_printed_configuration_is_the_configuration() {
    let root = tempfile::tempdir().unwrap();
    let root = root.path();
    fs::write(root.join("mine.toml"), "mixup = 0.3\nseed = 5").unwrap();
    let print = ["train", "--print-config"];
    let flags = ["--preset", "imagenet-300", "--config", "mine.toml", "--data", "photos", "--seed", "7"];
    let text = succeed(root, &[&print[..], &flags].concat());
    for line in
        ["data = \"photos\"", "epochs = 300", "accumulate = 64", "mixup = 0.3", "seed = 7", "cutmix = 1.0"]
    {
        assert!(text.lines().any(|printed| printed == line), "no {line} in\n{text}");
    }
    fs::write(root.join("printed.toml"), &text).unwrap();
    assert_eq!(succeed(root, &["train", "--print-config", "--config", "printed.toml"]), text);
    // The defaults too, where every part of the recipe is off.
    let text = succeed(root, &print);
    assert!(text.contains("ema_decay = 0.0\n") && !text.contains("data = "), "{text}");
    fs::write(root.join("printed.toml"), &text).unwrap();
    assert_eq!(succeed(root, &["train", "--print-config", "--config", "printed.toml"]), text);

    assert!(
        fail(root, &[&print[..], &["--mixup", "1000"]].concat()).contains("mixup = 1000.0: must be 0, or")
    );
    assert!(!root.join("runs").exists(), "nothing is trained");
}

#[test]
fn training_images_are_drawn() {
    let (root, config) = bench("batch_size = 5");
    let root = root.path();
    let preview = ["preview", "--config", config.to_str().unwrap(), "--rows", "3", "--columns", "4", "--out"];
    let text = succeed(root, &[&preview[..], &["a.png", "--preset", "shipped-recipe"]].concat());
    assert!(
        text.starts_with("a.png: 3 batches of ") && text.contains("data/train, the first 4 images"),
        "{text}"
    );
    let sheet = |name: &str| image::open(root.join(name)).unwrap().into_rgb8();
    // Images of 32 pixels are drawn four times as large, with margins of 4 and two lines of 14.
    assert_eq!(sheet("a.png").dimensions(), (4 * 136, 3 * 164));
    // The same for any number of threads, another for another seed.
    succeed(root, &[&preview[..], &["b.png", "--preset", "shipped-recipe", "--workers", "1"]].concat());
    assert!(sheet("a.png") == sheet("b.png"));
    succeed(root, &[&preview[..], &["c.png", "--preset", "shipped-recipe", "--seed", "1"]].concat());
    assert!(sheet("a.png") != sheet("c.png"));

    fs::write(root.join("file"), b"").unwrap();
    assert!(fail(root, &[&preview[..], &["file/d.png"]].concat()).starts_with("error: file/d.png: "));
    for class in support::CLASSES {
        for entry in fs::read_dir(root.join("data/train").join(class)).unwrap() {
            fs::write(entry.unwrap().path(), b"broken").unwrap();
        }
    }
    let error = fail(root, &[&preview[..], &["e.png"]].concat());
    assert!(error.contains("data/train: no image can be read, of 24 files"), "{error}");
}

#[test]
fn the_speed_of_the_input_is_measured() {
    let (root, config) = bench("batch_size = 5");
    let arguments = ["throughput", "--config", config.to_str().unwrap(), "--seconds", "1", "--workers", "2"];
    let text = succeed(root.path(), &arguments);
    assert!(text.contains(" images in 1.") && text.contains(" s with 2 workers: "), "{text}");
}

/// A reader that goes away, as `head` does, ends neither a run nor loses a result.
#[test]
fn nobody_has_to_read_the_output() {
    let (root, config) = bench("");
    let config = config.to_str().unwrap();
    let unread = |args: &[&str]| {
        let mut child =
            imagenet(root.path(), args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success() && !error.contains("panicked"), "{args:?}: {error}");
    };
    unread(&["train", "--config", config, "--out", "run"]);
    unread(&["evaluate", "--checkpoint", "run"]);
    let run = root.path().join("run");
    assert!(run.join("history.json").is_file());
    let checkpoint = imagenet::train::checkpoint::Checkpoint::find(&run, false).unwrap();
    assert!(checkpoint.path().join("evaluation.json").is_file());
}

#[test]
fn two_processes_do_not_train_in_one_folder() {
    let (root, config) = bench("");
    let config = config.to_str().unwrap();
    let run = root.path().join("run");
    let lock = imagenet::train::checkpoint::RunFolder::new(run).lock().unwrap();
    let error = fail(root.path(), &["train", "--config", config, "--out", "run"]);
    assert!(error.contains("another process"), "{error}");
    drop(lock);
    succeed(root.path(), &["train", "--config", config, "--out", "run"]);
}

#[test]
fn numbers_that_no_run_can_use_are_refused() {
    let (root, config) = bench("");
    let config = config.to_str().unwrap();
    for (args, message) in [
        (&["train", "--epochs", "18446744073709551615"][..], "9223372036854775807"),
        (&["train", "--batch-size", "1", "--mixup", "0.8"], "batch_size = 1: must be at least 2"),
        (&["preview", "--input-size", "4096", "--rows", "20"], "at most 268435456"),
        (&["preview", "--batch-size", "9223372036854775807"], "at most 268435456"),
    ] {
        let error = fail(root.path(), &[args, &["--config", config]].concat());
        assert!(error.contains(message), "{args:?}: {error}");
    }
}

#[test]
fn a_checkpoint_that_contradicts_itself_is_damaged() {
    let (root, config) = bench("");
    succeed(root.path(), &["train", "--config", config.to_str().unwrap(), "--out", "run"]);
    let checkpoint = imagenet::train::checkpoint::Checkpoint::find(&root.path().join("run"), false).unwrap();
    let path = checkpoint.path().join("state.json");
    let state = fs::read_to_string(&path).unwrap();
    let state: serde_json::Value = serde_json::from_str(&state).unwrap();
    for (key, value, message) in [
        ("classes", serde_json::json!([]), "outputs for 0 classes"),
        ("input_size", serde_json::json!(31), "input_size = 31"),
        ("crop_fraction", serde_json::json!(0.0), "crop_fraction = 0"),
        ("history", serde_json::json!([]), "0 records"),
    ] {
        let mut edited = state.clone();
        edited[key] = value;
        fs::write(&path, serde_json::to_string(&edited).unwrap()).unwrap();
        let error = fail(root.path(), &["evaluate", "--checkpoint", "run"]);
        assert!(error.contains(message), "{key}: {error}");
    }
}

/// The numbers of the command's only JSON file.
fn json(path: &Path) -> serde_json::Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

#[test]
fn evaluations_do_not_replace_each_other_and_may_go_elsewhere() {
    let (root, config) = bench("batch_size = 8");
    let root = root.path();
    output(root, &["train", "--config", config.to_str().unwrap(), "--out", "run", "--stop-after", "1"]);
    support::pictures(&root.join("other"), 1, 5);
    support::pictures(&root.join("third/other"), 1, 2);
    let checkpoint = imagenet::train::checkpoint::Checkpoint::find(&root.join("run"), false).unwrap();
    let written = |name: &str| checkpoint.path().join(name);
    let evaluate = ["evaluate", "--checkpoint", "run"];
    let on = |data: &'static str, more: &[&'static str]| [&evaluate[..], &["--data", data], more].concat();

    succeed(root, &evaluate);
    succeed(root, &on("other", &[]));
    for (name, images, data) in [("evaluation.json", 12, "data"), ("evaluation-other.json", 15, "other")] {
        let report = json(&written(name));
        assert_eq!(report["images"], images);
        assert_eq!(report["data"], root.join(data).canonicalize().unwrap().to_str().unwrap());
    }
    assert!(written("confusion.png").is_file() && written("confusion-other.png").is_file());
    let error = fail(root, &on("third/other", &[]));
    assert!(error.contains("evaluation-other.json: holds the evaluation on "), "{error}");
    assert_eq!(json(&written("evaluation-other.json"))["images"], 15);

    // A checkpoint that takes no file: here one has folders in their places. Images that are all broken show that this is found
    // out before the work.
    fs::remove_file(written("evaluation.json")).unwrap();
    fs::create_dir(written("evaluation.json")).unwrap();
    succeed(root, &[&evaluate[..], &["--out", "mine.json"]].concat());
    assert_eq!(
        (&json(&root.join("mine.json"))["images"], root.join("mine.png").is_file()),
        (&12.into(), true)
    );
    for class in support::CLASSES {
        for entry in fs::read_dir(root.join("data/val").join(class)).unwrap() {
            fs::write(entry.unwrap().path(), b"broken").unwrap();
        }
    }
    assert!(fail(root, &evaluate).contains("evaluation.json: cannot be written: "));
    let elsewhere = [&evaluate[..], &["--out", "absent/mine.json"]].concat();
    assert!(fail(root, &elsewhere).contains("absent/mine.json: cannot be written: "));
    assert!(fail(root, &[&evaluate[..], &["--out", "mine.json"]].concat()).contains("no image can be read"));
}

#[test]
fn outputs_that_cannot_be_written_are_known_before_the_work() {
    let (root, config) = bench("batch_size = 8");
    let root = root.path();
    output(root, &["train", "--config", config.to_str().unwrap(), "--out", "run", "--stop-after", "1"]);
    fs::write(root.join("file"), b"").unwrap();
    fs::write(root.join("broken.png"), b"broken").unwrap();
    let before = names(root);
    let picture = "data/val/red/0.png";
    for (args, name) in [
        (&["erf", "--checkpoint", "run", "--images", "broken.png"][..], "file/out.png"),
        (&["erf", "--layer"], "file/out.png"),
        (&["subbands", picture], "file/out.png"),
        (&["subbands", picture, "--checkpoint", "run"], "file/out.png"),
        (&["preview", "--data", "absent"], "file/out.png"),
        (&["export", "--checkpoint", "run"], "file/out.safetensors"),
        (&["evaluate", "--checkpoint", "run"], "file/out.json"),
    ] {
        let error = fail(root, &[args, &["--out", name]].concat());
        assert!(error.starts_with(&format!("error: {name}: cannot be written: ")), "{args:?}: {error}");
        assert_eq!(names(root), before, "{args:?} left something behind");
    }
    // What is not there to begin with, whether the output could be written or not, and what fails in the work.
    for (args, name) in [
        (&["erf", "--checkpoint", "absent"][..], "out.png"),
        (&["subbands", "absent.png"], "out.png"),
        (&["subbands", picture, "--checkpoint", "absent"], "out.png"),
        (&["export", "--checkpoint", "absent"], "out.safetensors"),
        (&["evaluate", "--checkpoint", "absent"], "out.json"),
    ] {
        for name in [name, &format!("file/{name}")] {
            let error = fail(root, &[args, &["--out", name]].concat());
            assert!(error.starts_with("error: absent"), "{args:?}: {error}");
            assert_eq!(names(root), before, "{args:?} left something behind");
        }
    }
    for args in
        [&["preview", "--data", "absent"][..], &["erf", "--checkpoint", "run", "--images", "broken.png"]]
    {
        fail(root, &[args, &["--out", "out.png"]].concat());
        assert_eq!(names(root), before, "{args:?} left something behind");
    }
    // The second of two files.
    fs::create_dir(root.join("out.json")).unwrap();
    for args in [
        &["erf", "--layer", "--out", "out.png"][..],
        &["export", "--checkpoint", "run", "--out", "out.safetensors"],
    ] {
        assert!(fail(root, args).starts_with("error: out.json: cannot be written: "), "{args:?}");
    }
}

#[cfg(unix)]
#[test]
fn an_export_that_does_not_fit_the_disk_leaves_nothing_behind() {
    let (root, config) = bench("batch_size = 8");
    let root = root.path();
    output(root, &["train", "--config", config.to_str().unwrap(), "--out", "run", "--stop-after", "1"]);
    let before = names(root);
    let export = ["export", "--checkpoint", "run", "--out", "out.safetensors"];
    // No file may be larger than 5 KiB, or 10 as some shells count; the weights are.
    let limited = "trap '' XFSZ; ulimit -f 10; exec \"$@\"";
    let mut command = Command::new("sh");
    command.current_dir(root).args(["-c", limited, "sh", env!("CARGO_BIN_EXE_imagenet")]).args(export);
    let found = command.stdin(Stdio::null()).env_remove("RUST_LOG").output().unwrap();
    let error = String::from_utf8(found.stderr).unwrap();
    assert_eq!(found.status.code(), Some(1), "{error}");
    assert!(error.starts_with("error: ") && error.contains("out.safetensors"), "{error}");
    assert_eq!(names(root), before, "{error}");
    succeed(root, &export);
    assert!(fs::metadata(root.join("out.safetensors")).unwrap().len() > 10 * 1024);
}

/// Modes of files and folders, which are restored so that the folder can be removed.
#[cfg(unix)]
struct Modes(Vec<(PathBuf, fs::Permissions)>);

#[cfg(unix)]
impl Modes {
    fn set(&mut self, path: &Path, mode: u32) {
        use std::os::unix::fs::PermissionsExt;
        self.0.push((path.to_path_buf(), fs::metadata(path).unwrap().permissions()));
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }
}

#[cfg(unix)]
impl Drop for Modes {
    fn drop(&mut self) {
        while let Some((path, permissions)) = self.0.pop() {
            fs::set_permissions(path, permissions).unwrap();
        }
    }
}

#[cfg(unix)]
#[test]
fn what_the_user_may_not_read_or_write_is_named_before_the_work() {
    use std::os::unix::fs::MetadataExt;
    use std::os::unix::process::CommandExt;

    let (folder, config) = bench("batch_size = 8\nwarmup_epochs = 0");
    let root = &folder.path().canonicalize().unwrap();
    let config = config.to_str().unwrap();
    succeed(root, &["train", "--config", config, "--epochs", "1", "--out", "run"]);
    fs::create_dir(root.join("locked")).unwrap();
    // Root may do everything, so that the program runs as nobody then, from where nobody can find it.
    let is_root = fs::metadata(root).unwrap().uid() == 0;
    let program = root.join("imagenet");
    if fs::hard_link(env!("CARGO_BIN_EXE_imagenet"), &program).is_err() {
        fs::copy(env!("CARGO_BIN_EXE_imagenet"), &program).unwrap();
    }
    let output = |folder: &Path, args: &[&str]| {
        let mut command = Command::new(&program);
        command.current_dir(folder).args(args).stdin(Stdio::null()).env_remove("RUST_LOG");
        if is_root {
            command.uid(65534).gid(65534);
        }
        let output = command.output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    #[track_caller]
    fn assert_denied((status, error): (Option<i32>, String), path: &str) {
        assert_eq!(status, Some(1), "{error}");
        assert!(error.starts_with(&format!("error: {path}: ")), "not about {path}: {error}");
        assert!(error.contains("Permission denied") && error.lines().count() == 1, "{error}");
    }
    let mut modes = Modes(Vec::new());
    modes.set(root, 0o755);
    let locked = root.join("locked");
    modes.set(&locked, 0o555);

    // Where results are to go. That the data set is not there either would show only after it has been looked for.
    let train = ["train", "--config", config, "--data", "absent"];
    for out in ["locked", "locked/new", "locked/new/er"] {
        assert_denied(output(root, &[&train[..], &["--out", out]].concat()), out);
    }
    assert_denied(output(&locked, &train), "runs/wtconvnext-micro-absent");
    let checkpoint = root.join("run/checkpoints/epoch-0001");
    modes.set(&checkpoint, 0o555);
    modes.set(&root.join("run/checkpoints"), 0o555);
    modes.set(&root.join("run"), 0o555);
    assert_denied(output(root, &["train", "--resume", "--out", "run", "--data", "absent"]), "run");
    let evaluate = ["evaluate", "--checkpoint", "run"];
    assert_denied(output(root, &evaluate), "run/checkpoints/epoch-0001/evaluation.json");
    let picture = root.join("data/val/red/0.png");
    let picture = picture.to_str().unwrap();
    let run = root.join("run");
    let run = run.to_str().unwrap();
    for (args, out) in [
        (&["evaluate", "--checkpoint", run, "--out", "new.json"][..], "new.json"),
        (&["export", "--checkpoint", run], "model.safetensors"),
        (&["erf", "--checkpoint", run], "erf.png"),
        (&["erf", "--layer"], "erf.png"),
        (&["subbands", picture], "subbands.png"),
        (&["preview", "--data", "absent"], "preview.png"),
    ] {
        assert_denied(output(&locked, args), out);
    }
    assert!(names(&locked).is_empty());
    // Nothing is written for it.
    let (status, error) = output(&locked, &["predict", picture, "--checkpoint", run]);
    assert_eq!(status, Some(0), "{error}");

    // What is to be read.
    let model = checkpoint.join("model.mpk");
    modes.set(&model, 0o000);
    let predict = ["predict", "data/val/red/0.png", "--checkpoint", "run"];
    assert_denied(output(root, &predict), "run/checkpoints/epoch-0001/model.mpk");
    modes.set(&model, 0o444);
    modes.set(&root.join("data/val/red/0.png"), 0o000);
    let (status, error) = output(root, &["predict", "data/val", "--checkpoint", "run"]);
    assert_eq!(status, Some(1));
    assert!(error.contains("error: data/val/red/0.png: Permission denied"), "{error}");
    assert!(error.ends_with("error: could not read 1 of 12 images\n"), "{error}");
    modes.set(&root.join("data/val/red"), 0o000);
    assert_denied(output(root, &["predict", "data/val", "--checkpoint", "run"]), "data/val/red");
    let red = root.join("data/val/red");
    let red = red.to_str().unwrap();
    assert_denied(output(root, &["evaluate", "--checkpoint", "run", "--out", "new.json"]), red);
    fs::create_dir(root.join("open")).unwrap();
    modes.set(&root.join("open"), 0o777);
    assert_denied(output(root, &["train", "--config", config, "--out", "open/new"]), red);
    assert!(names(&root.join("open")).is_empty());
    modes.set(&checkpoint, 0o000);
    assert_denied(output(root, &predict), "run/checkpoints/epoch-0001/state.json");
    modes.set(&root.join("run"), 0o000);
    assert_denied(output(root, &predict), "run/checkpoints");
    assert_denied(output(root, &["train", "--resume", "--out", "run"]), "run/config.toml");
}

#[test]
fn pictures_that_cannot_be_read_are_counted_in_training_and_in_validation() {
    let (root, config) = bench("batch_size = 8\nwarmup_epochs = 0\nepochs = 2");
    let root = root.path();
    for part in ["train", "val"] {
        let class = fs::read_dir(root.join("data").join(part)).unwrap().next().unwrap().unwrap().path();
        let mut pictures: Vec<_> = fs::read_dir(&class).unwrap().map(|entry| entry.unwrap().path()).collect();
        pictures.sort();
        fs::write(pictures.last().unwrap(), b"no picture").unwrap();
    }
    let text = succeed(root, &["train", "--config", config.to_str().unwrap()]);
    // One of each part, in two epochs.
    assert!(text.contains("an image could not be read and was left out 4 times\n"), "{text}");
}

#[test]
fn flags_that_would_do_nothing_are_refused() {
    let root = tempfile::tempdir().unwrap();
    for args in [
        &["erf", "--levels", "2"][..],
        &["erf", "--kernel-size", "3"],
        &["erf", "--depthwise", "3"],
        &["erf", "--channels", "3"],
        &["erf", "--seed", "3"],
        &["erf", "--layer", "--count", "3"],
        &["erf", "--layer", "--batch-size", "3"],
        &["subbands", "a.png", "--stage", "2"],
        &["subbands", "a.png", "--block", "2"],
        &["train", "--stop-after", "0"],
        &["erf", "--count", "2", "--levels", "1"],
        &["erf", "--levels", "1", "--best"],
        &["erf", "--checkpoint", "run", "--batch-size", "3", "--seed", "3"],
        &["subbands", "a.png", "--levels", "2", "--stage", "3"],
        &["subbands", "a.png", "--seed", "2", "--best", "--channel", "1"],
        &["predict", "a.png", "--logits"],
    ] {
        let output = output(root.path(), args);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
    for command in ["train", "preview", "throughput"] {
        let error = fail(root.path(), &[command, "--mixup-switch-prob", "0.3", "--mixup", "0.8"]);
        assert!(
            error.contains("--mixup-switch-prob does nothing without both --mixup and --cutmix"),
            "{error}"
        );
    }
    assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0);
}

// Other systems have no such names, or not in every folder.
#[cfg(target_os = "linux")]
#[test]
fn paths_that_are_not_utf8_are_used_or_refused_by_name() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    let (root, config) = bench("batch_size = 8\nwarmup_epochs = 0");
    let root = root.path();
    let name = |bytes: &'static [u8]| OsStr::from_bytes(bytes);
    let run = |folder: &Path, args: &[&OsStr]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_imagenet"));
        let output = command.current_dir(folder).args(args).stdin(Stdio::null()).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    // The data set, by its own name and by that of a folder above it.
    support::pictures(&root.join(name(b"da\xffta")), 2, 1);
    let config = config.as_os_str();
    for (folder, data) in
        [(root.to_path_buf(), name(b"da\xffta")), (root.join(name(b"da\xffta")), name(b"."))]
    {
        let args =
            [name(b"train"), name(b"--config"), config, name(b"--data"), data, name(b"--out"), name(b"run")];
        let (status, error) = run(&folder, &args);
        assert_eq!(status, Some(1), "{error}");
        assert!(error.contains("da\u{fffd}ta: the path of the data folder is not UTF-8"), "{error}");
        assert!(!folder.join("run").exists());
    }
    // A run, a picture and a class's picture are only looked up.
    let out = name(b"r\xffun");
    let picture = Path::new("data/val/red").join(name(b"p\xff.png"));
    fs::copy(root.join("data/val/red/0.png"), root.join(&picture)).unwrap();
    for args in [
        &[name(b"train"), name(b"--config"), config, name(b"--epochs"), name(b"1"), name(b"--out"), out][..],
        &[name(b"evaluate"), name(b"--checkpoint"), out],
        &[name(b"predict"), name(b"--checkpoint"), out, picture.as_os_str()],
        &[name(b"predict"), name(b"--json"), name(b"--checkpoint"), out, picture.as_os_str()],
    ] {
        let (status, error) = run(root, args);
        assert_eq!(status, Some(0), "{args:?}: {error}");
    }
}

#[cfg(unix)]
#[test]
fn every_image_is_counted_once() {
    use burn::backend::Flex;
    use burn::module::Param;
    use burn::tensor::{Tensor, TensorData};
    use imagenet::train::checkpoint::{Checkpoint, RunFolder, State};
    use wtconvnext::WtConvNext;

    let (root, config) = bench("batch_size = 8");
    let root = root.path();
    output(root, &["train", "--config", config.to_str().unwrap(), "--out", "run", "--stop-after", "1"]);
    let checkpoint = Checkpoint::find(&root.join("run"), false).unwrap();
    let (state, device) = (checkpoint.state().unwrap(), Default::default());
    let mut model: WtConvNext<Flex> = checkpoint.model(&state, &device).unwrap();

    // One by one through the model, without the program's own code for it.
    let outputs = |model: &WtConvNext<Flex>| -> Vec<Vec<f32>> {
        let transform = imagenet::data::augment::Transform::Eval { input_size: 32, crop_fraction: 0.875 };
        let mut outputs = Vec::new();
        for class in support::CLASSES {
            for index in 0..4 {
                let path = root.join("data/val").join(class).join(format!("{index}.png"));
                let mut rng = imagenet::data::stream(0, imagenet::data::Stream::Augment, 0, 0);
                let picture = image::open(path).unwrap().into_rgb8();
                let picture = transform.apply(&picture, &mut rng, &mut fast_image_resize::Resizer::new());
                let pixels = TensorData::new(imagenet::data::augment::normalize(&picture), [1, 3, 32, 32]);
                outputs.push(model.forward(Tensor::from_data(pixels, &device)).into_data().iter().collect());
            }
        }
        outputs
    };
    // A classifier of one weight, that from the first feature to the first class, which overflows for about half of the pictures.
    let one_weight = |weight: f32| {
        let weights = (0..8 * 3).map(|index| if index == 0 { weight } else { 0.0 }).collect();
        Param::from_tensor(Tensor::from_data(TensorData::new(weights, [8, 3]), &device))
    };
    let norm = &mut model.head.norm;
    norm.gamma = Param::from_tensor(norm.gamma.val() * 1e6);
    model.head.fc.as_mut().unwrap().weight = one_weight(1.0);
    let mut features: Vec<f32> = outputs(&model).iter().map(|row| row[0].abs()).collect();
    features.sort_by(f32::total_cmp);
    model.head.fc.as_mut().unwrap().weight = one_weight(f32::MAX / features[6]);
    let not_finite = outputs(&model).iter().filter(|row| row.iter().any(|x| !x.is_finite())).count();
    assert!((1..12).contains(&not_finite), "{not_finite} of 12");
    let run = RunFolder::new(root.join("overflowing"));
    run.create("").unwrap();
    let none: Option<&WtConvNext<Flex>> = None;
    run.save(State { ema_checksum: None, ..state }, &model, none, 0_usize, 1).unwrap();

    // Three more that cannot be read, of which one would never end and one never begin.
    std::os::unix::fs::symlink("/absent.png", root.join("data/val/red/broken.png")).unwrap();
    std::os::unix::fs::symlink("/dev/zero", root.join("data/val/red/device.png")).unwrap();
    let pipe = Command::new("mkfifo").arg(root.join("data/val/blue/pipe.png")).status().unwrap();
    assert!(pipe.success());

    let evaluate = ["evaluate", "--checkpoint", "overflowing", "--batch-size", "5", "--out", "found.json"];
    let found = output(root, &evaluate);
    let (text, error) = (String::from_utf8_lossy(&found.stdout), String::from_utf8_lossy(&found.stderr));
    assert!(found.status.success(), "{error}");
    assert!(error.contains("red/broken.png: a symbolic link to /absent.png, which is not there"), "{error}");
    assert!(text.contains("left out: 3 images that could not be read\n"), "{text}");
    assert!(text.contains("for which the model's outputs are not finite\n"), "{text}");
    let report = json(&root.join("found.json"));
    assert_eq!(
        (&report["images"], &report["unreadable"], &report["not_finite"]),
        (&(12 - not_finite).into(), &3.into(), &not_finite.into())
    );
    let of_classes =
        report["classes"].as_array().unwrap().iter().map(|class| class["images"].as_u64().unwrap());
    assert_eq!(of_classes.sum::<u64>(), 12 - not_finite as u64);

    let predict = ["predict", "--checkpoint", "overflowing", "--json", "--batch-size", "5", "data/val"];
    let found = output(root, &predict);
    let lines: Vec<serde_json::Value> = String::from_utf8(found.stdout)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let errors = |text: &str| {
        lines.iter().filter(|line| line["error"].as_str().is_some_and(|error| error.contains(text))).count()
    };
    assert_eq!(
        (lines.len(), errors("model's 3 outputs are not finite"), errors("")),
        (15, not_finite, not_finite + 3)
    );
    let error = String::from_utf8(found.stderr).unwrap();
    let expected =
        format!("could not read 3 of 15 images, and the model's outputs are not finite for {not_finite}\n");
    assert!(error.ends_with(&expected), "{error}");
    assert_eq!(found.status.code(), Some(1));
}

#[test]
fn a_damaged_checkpoint_is_passed_over_and_kept() {
    let (root, config) = bench("batch_size = 8\nwarmup_epochs = 0\nkeep = 3\nema_decay = 0.9");
    let root = root.path();
    let train = ["train", "--config", config.to_str().unwrap(), "--epochs", "3"];
    succeed(root, &[&train[..], &["--out", "whole"]].concat());
    let expected = history(&root.join("whole"));
    for (name, file, bytes) in [
        ("cut", "model.mpk", Some(&b"short"[..])),
        ("missing", "optimizer.mpk", None),
        ("average", "ema.mpk", Some(b"")),
        ("json", "state.json", Some(b"{\"format\": 2")),
    ] {
        let folder = root.join(name);
        succeed(root, &[&train[..], &["--out", name]].concat());
        let path = |checkpoint: &str| folder.join("checkpoints").join(checkpoint).join(file);
        let damage = |checkpoint: &str| match bytes {
            Some(bytes) => fs::write(path(checkpoint), bytes).unwrap(),
            None => fs::remove_file(path(checkpoint)).unwrap(),
        };
        damage("epoch-0003");
        let resumed = output(root, &["train", "--resume", "--out", name]);
        let error = String::from_utf8(resumed.stderr).unwrap();
        assert!(resumed.status.success(), "{name}: {error}");
        for text in [
            format!("{name}/checkpoints/epoch-0003/{file}: "),
            format!("is whole, {name}/checkpoints/epoch-0002"),
            format!("kept as {name}/checkpoints/damaged-epoch-0003"),
        ] {
            assert!(error.contains(&text), "no {text} in {error}");
        }
        // The run is what it would have been, and the damaged checkpoint still there.
        assert_eq!(history(&folder), expected, "{name}");
        let run = imagenet::train::checkpoint::RunFolder::new(folder.clone());
        run.last().unwrap().verified_state().unwrap();
        assert_eq!(path("damaged-epoch-0003").exists(), bytes.is_some());
        assert!(folder.join("checkpoints/damaged-epoch-0003").is_dir());

        // None is whole: an error, and nothing is touched.
        for checkpoint in ["epoch-0001", "epoch-0002", "epoch-0003"] {
            damage(checkpoint);
        }
        let error = fail(root, &["train", "--resume", "--out", name]);
        let text = format!(
            "error: {name}: none of its 3 checkpoints can be used; the newest: {name}/checkpoints/epoch-0003/{file}: "
        );
        assert!(error.starts_with(&text), "{error}");
        assert_eq!(run.checkpoints().unwrap().len(), 3);
    }
}

/// The names of everything in `folder`, hidden files included.
fn names(folder: &Path) -> std::collections::BTreeSet<std::ffi::OsString> {
    fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name()).collect()
}

#[test]
fn a_damaged_checkpoint_is_an_error_that_names_a_whole_one() {
    let (root, config) = bench("batch_size = 8\nwarmup_epochs = 0\nkeep = 3");
    let root = root.path();
    let run = "runs/it's mine";
    succeed(root, &["train", "--config", config.to_str().unwrap(), "--epochs", "3", "--out", run]);
    let checkpoint = |epoch: usize| format!("{run}/checkpoints/epoch-000{epoch}");
    let whole = fs::read(root.join(checkpoint(3)).join("model.mpk")).unwrap();
    let state = fs::read(root.join(checkpoint(3)).join("state.json")).unwrap();
    let commands = [
        &["evaluate"][..],
        &["predict", "data/val/red/0.png"],
        &["export"],
        &["erf", "--count", "1"],
        &["subbands", "data/val/red/0.png", "--checkpoint", run],
        // Named, it is an error too, and so is the last of a run that is named.
        &["evaluate", "--checkpoint", run],
        &["predict", "data/val/red/0.png", "--checkpoint", &checkpoint(3)],
    ];
    let before = names(root);
    for (file, bytes) in [
        ("model.mpk", Some(&whole[..whole.len() / 2])),
        ("model.mpk", None),
        ("state.json", Some(b"{\"format\": 2".as_slice())),
        ("state.json", None),
    ] {
        let path = format!("{}/{file}", checkpoint(3));
        match bytes {
            Some(bytes) => fs::write(root.join(&path), bytes).unwrap(),
            None => fs::remove_file(root.join(&path)).unwrap(),
        }
        for args in commands {
            let found = output(root, args);
            let error = String::from_utf8(found.stderr).unwrap();
            assert_eq!(found.status.code(), Some(1), "{args:?}: {error}");
            assert!(error.starts_with(&format!("error: {path}: ")), "{args:?}: {error}");
            let advice = r"--checkpoint 'runs/it'\''s mine/checkpoints/epoch-0002'";
            assert!(error.contains(advice) && error.lines().count() == 1, "{args:?}: {error}");
            assert_eq!(String::from_utf8(found.stdout).unwrap(), "", "{args:?}");
            assert_eq!(names(root), before, "{args:?} left something behind");
        }
        fs::write(root.join(checkpoint(3)).join("model.mpk"), &whole).unwrap();
        fs::write(root.join(checkpoint(3)).join("state.json"), &state).unwrap();
    }
    // What does not belong to the model is in the way of training only.
    fs::write(root.join(checkpoint(3)).join("optimizer.mpk"), b"short").unwrap();
    assert!(succeed(root, &["evaluate"]).starts_with(&checkpoint(3)));

    fs::write(root.join(checkpoint(3)).join("model.mpk"), b"short").unwrap();
    assert!(succeed(root, &["evaluate", "--checkpoint", &checkpoint(2)]).starts_with(&checkpoint(2)));
    for epoch in [1, 2] {
        fs::write(root.join(checkpoint(epoch)).join("model.mpk"), b"short").unwrap();
    }
    let error = fail(root, &["evaluate"]);
    assert!(error.starts_with(&format!("error: {}/model.mpk: ", checkpoint(3))), "{error}");
    assert!(error.ends_with("no other checkpoint of this run is whole\n"), "{error}");
}
