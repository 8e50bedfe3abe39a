//! Accuracy of a model on a split: overall, by class, and which class is taken for which.

use burn::tensor::Tensor;
use burn::tensor::backend::AutodiffBackend;
use burn::train::renderer::MetricState;
use burn_wtconv::WtConvBackend;
use clap::{Args, ValueHint};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use wtconvnext::WtConvNext;

use crate::atomic;
use crate::backend::{BackendKind, BackendTask, TrainBackend};
use crate::count::count;
use crate::data::augment::Transform;
use crate::data::batch::{ImageBatch, ImageBatcher};
use crate::data::decode::Failures;
use crate::data::folder::{ImageFolder, split_folder};
use crate::data::loader::{Loader, LoaderError, Workers};
use crate::data::plan::EpochPlan;
use crate::drawing::{Align, BLACK, Canvas, GREY, Scale, WHITE, text_width};
use crate::error::Error;
use crate::output;
use crate::progress;
use crate::runs;
use crate::train::checkpoint::{Checkpoint, State};
use crate::train::feed::Feed;
use crate::train::loss::cross_entropy;
use crate::train::metrics::{EpochMetrics, Scores, Totals};
use crate::train::step::BatchOutput;
use burn::data::dataset::Dataset;

/// Flags of `evaluate`.
#[derive(Args, Clone, Debug)]
pub struct EvaluateArgs {
    /// A run's folder, or one of its checkpoints [default: the newest run under runs]
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub checkpoint: Option<PathBuf>,
    /// The run's best checkpoint in validation instead of its last
    #[arg(long)]
    pub best: bool,
    /// Folder with val/CLASS/*.jpg [default: the data set of the run]
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub data: Option<PathBuf>,
    /// JSON file to write; the confusion matrix goes beside it, as .png [default: evaluation.json in the checkpoint's folder, of
    /// another data set than the run's evaluation-NAME.json]
    #[arg(long, value_name = "FILE.json", value_hint = ValueHint::FilePath, value_parser = json_path)]
    pub out: Option<PathBuf>,
    /// Images that go through the model at once
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..))]
    pub batch_size: u16,
    /// Threads that decode images; 0 means one for each CPU
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u16).range(..=256))]
    pub workers: u16,
    /// Where to compute
    #[arg(long, value_enum, default_value_t)]
    pub backend: BackendKind,
}

fn json_path(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    match path.extension().and_then(|extension| extension.to_str()) {
        Some(extension) if extension.eq_ignore_ascii_case("json") => Ok(path),
        _ => Err("must end in .json".to_string()),
    }
}

/// The result for one class.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClassScore {
    /// Name of the class.
    pub class: String,
    /// Its images.
    pub images: usize,
    /// Those that were recognised.
    pub correct: usize,
}

/// The result on a split. Every image of it is one of `images`, `unreadable` and `not_finite`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Evaluation {
    /// Images that were evaluated: those that the scores, the classes and the confusion matrix are of.
    pub images: usize,
    /// Images that could not be read.
    pub unreadable: usize,
    /// Images for which an output of the model is infinite or not a number.
    pub not_finite: usize,
    /// Loss (without label smoothing), accuracy and top-5.
    #[serde(flatten)]
    pub scores: Scores,
    /// By class, in the order of the labels.
    pub classes: Vec<ClassScore>,
    /// `confusion[label][prediction]`, numbers of images.
    pub confusion: Vec<Vec<usize>>,
}

impl fmt::Display for Evaluation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.classes.iter().map(|score| score.class.chars().count()).max().unwrap_or(0).max(5);
        writeln!(f, "{:width$}  accuracy  images  most often taken for", "class")?;
        for (label, score) in self.classes.iter().enumerate() {
            if score.images == 0 {
                writeln!(f, "{:width$}  no images", score.class)?;
                continue;
            }
            let accuracy = score.correct as f64 / score.images as f64;
            write!(f, "{:width$}  {accuracy:8.3}  {:6}", score.class, score.images)?;
            let row = &self.confusion[label];
            // The first of equals, so that the table does not depend on the order of a maximum.
            let wrong = (0..row.len()).filter(|other| *other != label).rev().max_by_key(|other| row[*other]);
            if let Some(wrong) = wrong.filter(|wrong| row[*wrong] > 0) {
                write!(f, "  {} ({})", self.classes[wrong].class, row[wrong])?;
            }
            writeln!(f)?;
        }
        if self.unreadable > 0 {
            writeln!(f, "left out: {} that could not be read", count(self.unreadable, "image", "images"))?;
        }
        if self.not_finite > 0 {
            let images = count(self.not_finite, "image", "images");
            writeln!(f, "left out: {images} for which the model's outputs are not finite")?;
        }
        let Scores { loss, accuracy, top5 } = self.scores;
        let images = count(self.images, "image", "images");
        write!(f, "{images}: top-1 {accuracy:.4}, top-5 {top5:.4}, loss {loss:.4}")
    }
}

impl Evaluation {
    /// Draws the confusion matrix: a row for each true class, a column for each predicted one, coloured by the share of the
    /// row. Up to 80 classes are named, and up to 20 have their numbers of images in the cells.
    pub fn draw_confusion(&self) -> Canvas {
        const TEXT: u32 = 13;
        const NUMBERS: usize = 20;
        const NAMES: usize = 80;
        // Longer names would leave no room for the matrix.
        const LONGEST_NAME: usize = 24;

        let classes = self.classes.len();
        let cell = match classes {
            0..=NUMBERS => 36,
            _ => (960 / classes as u32).clamp(1, 16),
        };
        let names: Vec<String> = match classes {
            0..=NAMES => {
                self.classes.iter().map(|score| score.class.chars().take(LONGEST_NAME).collect()).collect()
            }
            _ => Vec::new(),
        };
        let label = names.iter().map(|name| text_width(name, TEXT)).max().unwrap_or(0) + 12;
        let side = cell * classes as u32;
        let (left, top) = (i64::from(label) + 24, i64::from(label) + 48);
        let title = format!(
            "confusion of {}: top-1 {:.4}, top-5 {:.4}",
            count(self.images, "image", "images"),
            self.scores.accuracy,
            self.scores.top5
        );
        let width = (left as u32 + side + 110).max(text_width(&title, TEXT + 3) + 20);
        let mut canvas = Canvas::new(width, top as u32 + side.max(120) + 16);
        canvas.text(&title, 10, 6, TEXT + 3, Align::Left, BLACK);
        canvas.text("predicted", left, 28, TEXT, Align::Left, GREY);
        canvas.text_up("true", 6, top + i64::from(side), TEXT, GREY);

        let scale = Scale::Linear { low: 0.0, high: 1.0 };
        for (row, images) in self.confusion.iter().enumerate() {
            let total = images.iter().sum::<usize>().max(1);
            let y = top + row as i64 * i64::from(cell);
            for (column, images) in images.iter().enumerate() {
                let share = *images as f64 / total as f64;
                let x = left + column as i64 * i64::from(cell);
                canvas.fill(x, y, cell, cell, scale.colour(share));
                if classes <= NUMBERS && *images > 0 {
                    // The bright half of the scale takes dark ink.
                    let ink = if share > 0.6 { BLACK } else { WHITE };
                    let middle = i64::from(cell / 2);
                    let text = images.to_string();
                    canvas.text(
                        &text,
                        x + middle,
                        y + middle - i64::from(TEXT / 2),
                        TEXT,
                        Align::Centre,
                        ink,
                    );
                }
            }
        }
        canvas.frame(left, top, side, side, GREY);
        for (index, name) in names.iter().enumerate() {
            let middle = index as i64 * i64::from(cell) + i64::from(cell / 2) - i64::from(TEXT / 2);
            canvas.text(name, left - 6, top + middle, TEXT, Align::Right, BLACK);
            canvas.text_up(name, left + middle, top - 6, TEXT, BLACK);
        }
        let bar = left + i64::from(side) + 20;
        scale.draw_bar(&mut canvas, bar, top + 6, 16, side.clamp(108, 400));
        canvas.text("of the row", bar, top - 22, TEXT, Align::Left, GREY);
        canvas
    }
}

/// Runs `model` over all images of `loader`, on a device that comes with its index as in `--devices`.
///
/// `on_batch` gets the metrics of each batch and the sums so far, and returns whether to go on. If it ends the evaluation,
/// there is no result. Images whose outputs are not finite are counted and left out of the scores; if no others are left, the scores
/// are not numbers.
///
/// # Errors
///
/// [`Error::Unreadable`] if not a single image can be read; [`Error::Loader`]; [`Error::Device`] if the device cannot take a batch.
pub fn evaluate<B: WtConvBackend>(
    model: &WtConvNext<B>,
    loader: &Loader,
    batch_size: usize,
    device: &(usize, B::Device),
    mut on_batch: impl FnMut(Vec<MetricState>, &Totals) -> bool,
) -> Result<Option<Evaluation>, Error> {
    let files = loader.files();
    let classes = files.classes();
    let batcher = ImageBatcher { input_size: loader.input_size() };
    let mut metrics = EpochMetrics::<B>::new(classes.len(), Totals::default());
    let mut confusion = vec![vec![0; classes.len()]; classes.len()];
    let mut failures = Failures::default();
    let mut not_finite = 0;

    let plan = EpochPlan::sequential(files.len(), batch_size);
    let batches = loader.batches(0, plan.batches_of(0..plan.updates()));
    let mut batches = Feed::<B>::start(batches, std::slice::from_ref(device), batcher)?;
    for remaining in (1..=plan.updates()).rev() {
        let batch = batches.next().ok_or(LoaderError::Stopped { remaining })??;
        metrics.add_unreadable(batch.failures.len());
        failures.add(batch.failures);
        let Some(ImageBatch { images, labels }) = batch.parts.into_iter().flatten().next() else {
            continue;
        };
        let logits = model.forward(images);
        let rows = finite_rows(&logits);
        let [all, _] = logits.dims();
        not_finite += all - rows.len();
        if rows.is_empty() {
            if on_batch(Vec::new(), metrics.totals()) {
                continue;
            }
            return Ok(None);
        }
        let (logits, labels) = if rows.len() < all {
            let rows = Tensor::from_ints(rows.as_slice(), &device.1);
            (logits.select(0, rows.clone()), labels.select(0, rows))
        } else {
            (logits, labels)
        };
        let losses = cross_entropy(logits.clone(), labels.clone(), 0.0);
        let predictions = logits.clone().argmax(1).into_data();
        for (label, prediction) in labels.to_data().iter::<i64>().zip(predictions.iter::<i64>()) {
            confusion[label as usize][prediction as usize] += 1;
        }
        let states = metrics.update(&BatchOutput { losses, logits, labels });
        if !on_batch(states, metrics.totals()) {
            return Ok(None);
        }
    }
    if metrics.totals().images + not_finite == 0
        && let Some(first) = failures.first
    {
        return Err(Error::Unreadable { path: files.path().to_path_buf(), images: files.len(), first });
    }

    let score = |(label, class): (usize, &String)| ClassScore {
        class: class.clone(),
        images: confusion[label].iter().sum(),
        correct: confusion[label][label],
    };
    Ok(Some(Evaluation {
        images: metrics.totals().images,
        unreadable: failures.count,
        not_finite,
        scores: metrics.totals().scores(),
        classes: classes.iter().enumerate().map(score).collect(),
        confusion,
    }))
}

/// The images of a batch whose outputs are all finite: positions in `logits`, `[batch, classes]`.
fn finite_rows<B: WtConvBackend>(logits: &Tensor<B, 2>) -> Vec<i32> {
    let [_, classes] = logits.dims();
    let outputs: Vec<f32> = logits.clone().into_data().iter().collect();
    let rows = outputs.chunks_exact(classes).zip(0..);
    rows.filter(|(outputs, _)| outputs.iter().all(|output| output.is_finite())).map(|(_, row)| row).collect()
}

/// What `evaluate` writes.
#[derive(Serialize)]
struct Report<'a> {
    checkpoint: String,
    data: &'a str,
    #[serde(flatten)]
    evaluation: &'a Evaluation,
}

/// Where the evaluation of `checkpoint` on `data` goes unless it is told otherwise.
///
/// # Errors
///
/// [`Error::OtherEvaluation`] if that is where the evaluation on another data set is.
fn default_out(checkpoint: &Path, data: &Path, of_run: &Path) -> Result<PathBuf, Error> {
    let resolved = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
    let data = resolved(data);
    if data == resolved(of_run) {
        return Ok(checkpoint.join("evaluation.json"));
    }
    let name = data.file_name().map_or_else(|| "images".into(), |name| name.to_string_lossy());
    let path = checkpoint.join(format!("evaluation-{name}.json"));
    let ours = data.to_string_lossy();
    let written =
        fs::read(&path).ok().and_then(|bytes| serde_json::from_slice::<serde_json::Value>(&bytes).ok());
    match written.as_ref().and_then(|report| report["data"].as_str()) {
        Some(theirs) if theirs != ours => {
            Err(Error::OtherEvaluation { path, theirs: theirs.to_string(), ours: ours.into_owned() })
        }
        _ => Ok(path),
    }
}

/// The confusion matrix beside a report: of `evaluation.json` and `evaluation-NAME.json` `confusion.png` and
/// `confusion-NAME.png`, of another name the same as `.png`.
fn confusion_path(report: &Path) -> PathBuf {
    let name = report.file_stem().unwrap_or_default().to_string_lossy();
    match name.strip_prefix("evaluation") {
        Some(rest) => report.with_file_name(format!("confusion{rest}.png")),
        None => report.with_extension("png"),
    }
}

/// `imagenet evaluate`: prints the result, writes it and draws the confusion matrix, by default into the checkpoint's folder.
///
/// # Errors
///
/// Any [`Error`] of the checkpoint, the data or the backend; [`Error::Unwritable`] and [`Error::OtherEvaluation`] before the work;
/// [`Error::NotFinite`] if there is no image to evaluate.
pub fn run(args: EvaluateArgs) -> Result<(), Error> {
    args.backend.check()?;
    let (checkpoint, state) = runs::open_checkpoint(args.checkpoint.as_deref(), args.best)?;
    let data = args.data.clone().unwrap_or_else(|| state.data.clone());
    let files = ImageFolder::with_classes(&split_folder(&data, "val")?, &state.classes)?;
    let path = match &args.out {
        Some(out) => out.clone(),
        None => default_out(checkpoint.path(), &data, &state.data)?,
    };
    let picture = confusion_path(&path);
    output::check_files(&[&path, &picture])?;
    let subject = format!("{} on {}", checkpoint.path().display(), files.path().display());

    let split = files.path().to_path_buf();
    let backend = args.backend;
    let evaluation = backend.run(Task { args, checkpoint: checkpoint.clone(), state, files })??;
    if evaluation.images == 0 {
        let Evaluation { unreadable, not_finite, .. } = evaluation;
        return Err(Error::NotFinite { path: split, not_finite, images: unreadable + not_finite });
    }
    let data = data.canonicalize().unwrap_or(data);
    let report = Report {
        checkpoint: checkpoint.path().to_string_lossy().into_owned(),
        data: &data.to_string_lossy(),
        evaluation: &evaluation,
    };
    let json = serde_json::to_vec_pretty(&report).expect("a report has string keys only");
    atomic::write_file(&path, &json).map_err(|source| Error::Io { path: path.clone(), source })?;
    evaluation.draw_confusion().save(&picture)?;
    output::line(format_args!("{subject}\n{evaluation}"))?;
    output::line(format_args!("written to {} and {}", path.display(), picture.display()))
}

struct Task {
    args: EvaluateArgs,
    checkpoint: Checkpoint,
    state: State,
    files: ImageFolder,
}

impl BackendTask for Task {
    type Output = Result<Evaluation, Error>;

    fn run<B: TrainBackend>(self, device: B::Device) -> Self::Output {
        let model: WtConvNext<B::InnerBackend> = self.checkpoint.model(&self.state, &device)?;
        let transform = eval_transform(&self.state);
        let workers = Workers::start(usize::from(self.args.workers))?;
        let bar = progress::bar(self.files.len(), "images");
        let loader = Loader::new(Arc::new(self.files), transform, 0, workers);
        let evaluation = evaluate::<<B as AutodiffBackend>::InnerBackend>(
            &model,
            &loader,
            usize::from(self.args.batch_size),
            &(0, device),
            |_, totals| {
                bar.set_position(totals.seen() as u64);
                true
            },
        )?;
        bar.finish_and_clear();
        Ok(evaluation.expect("nothing ends this evaluation"))
    }
}

/// How the model of a checkpoint wants its images.
pub fn eval_transform(state: &State) -> Transform {
    Transform::Eval { input_size: state.input_size, crop_fraction: state.crop_fraction }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn evaluation() -> Evaluation {
        let class = |class: &str, images, correct| ClassScore { class: class.to_string(), images, correct };
        Evaluation {
            images: 7,
            unreadable: 1,
            not_finite: 2,
            scores: Scores { loss: 0.5, accuracy: 5.0 / 7.0, top5: 1.0 },
            classes: vec![class("cat", 4, 2), class("a long name", 3, 3), class("empty", 0, 0)],
            confusion: vec![vec![2, 1, 1], vec![0, 3, 0], vec![0, 0, 0]],
        }
    }

    #[test]
    fn the_confusion_matrix_is_drawn_cell_by_cell() {
        let picture = evaluation().draw_confusion();
        let share = |share| Scale::Linear { low: 0.0, high: 1.0 }.colour(share);
        let found = |colour| picture.image().pixels().filter(|pixel| **pixel == colour).count();
        // A cell is 36 x 36 pixels, less those of its number.
        let cell = 36 * 36;
        assert!((cell / 2..cell).contains(&found(share(0.5))), "2 of 4 cats");
        assert!((cell..2 * cell).contains(&found(share(0.25))), "1 of 4, twice");
        // These two are side by side, in the row of the cats.
        let quarter = picture.image().enumerate_pixels().filter(|(_, _, pixel)| **pixel == share(0.25));
        let (columns, rows): (BTreeSet<u32>, BTreeSet<u32>) = quarter.map(|(x, y, _)| (x, y)).unzip();
        assert_eq!((columns.len(), rows.len()), (72, 36));
        // Five cells are empty: two beside the long name and the row without images. The bar has the colours of 1 and 0 too.
        assert!((5 * cell..6 * cell).contains(&found(share(0.0))));
        assert!((cell / 2..cell + 200).contains(&found(share(1.0))));

        // A thousand classes still give a picture, of one pixel a cell.
        let class = |index: usize| ClassScore { class: format!("class {index}"), images: 1, correct: 1 };
        let many = Evaluation {
            classes: (0..1000).map(class).collect(),
            confusion: (0..1000)
                .map(|row| (0..1000).map(|column| usize::from(row == column)).collect())
                .collect(),
            ..evaluation()
        };
        let picture = many.draw_confusion();
        assert!(picture.image().width() < 1200 && picture.image().height() < 1200);
        assert!(picture.image().pixels().filter(|pixel| **pixel == share(1.0)).count() >= 1000);
    }

    #[test]
    fn evaluations_on_two_data_sets_have_two_names() {
        let root = tempfile::tempdir().unwrap();
        let path = |name: &str| root.path().join(name);
        for folder in ["checkpoint", "photos", "other/photos", "drawings"] {
            fs::create_dir_all(path(folder)).unwrap();
        }
        let out = |data: &str| default_out(&path("checkpoint"), &path(data), &path("photos"));
        assert_eq!(out("photos").unwrap(), path("checkpoint/evaluation.json"));
        assert_eq!(out("drawings/../photos").unwrap(), path("checkpoint/evaluation.json"));
        assert_eq!(out("drawings").unwrap(), path("checkpoint/evaluation-drawings.json"));
        let of_other = path("checkpoint/evaluation-photos.json");
        assert_eq!(out("other/photos").unwrap(), of_other);
        // The same name again is another data set's: not without being told so.
        let canonical = path("other/photos").canonicalize().unwrap();
        fs::write(&of_other, serde_json::json!({ "data": canonical.to_str() }).to_string()).unwrap();
        assert_eq!(out("other/photos").unwrap(), of_other);
        fs::write(&of_other, r#"{ "data": "/third/photos" }"#).unwrap();
        let error = out("other/photos").unwrap_err().to_string();
        assert!(
            error.contains("holds the evaluation on /third/photos") && error.contains("--out"),
            "{error}"
        );

        assert_eq!(confusion_path(Path::new("a/evaluation-b.json")), Path::new("a/confusion-b.png"));
        assert_eq!(confusion_path(Path::new("a/evaluation.json")), Path::new("a/confusion.png"));
        assert_eq!(confusion_path(Path::new("a/mine.json")), Path::new("a/mine.png"));
    }

    #[test]
    fn the_table_names_the_most_frequent_mistake() {
        let evaluation = evaluation();
        let lines: Vec<_> = evaluation.to_string().lines().map(str::to_string).collect();
        assert_eq!(
            lines,
            [
                "class        accuracy  images  most often taken for",
                "cat             0.500       4  a long name (1)",
                "a long name     1.000       3",
                "empty        no images",
                "left out: 1 image that could not be read",
                "left out: 2 images for which the model's outputs are not finite",
                "7 images: top-1 0.7143, top-5 1.0000, loss 0.5000",
            ]
        );
        let json = serde_json::to_string(&evaluation).unwrap();
        assert_eq!(serde_json::from_str::<Evaluation>(&json).unwrap(), evaluation);
    }
}
