//! The effective receptive field: which pixels the centre of the output depends on, and how much.
//!
//! ```text
//! field[i,j] = mean over images of  sum over channels c of  | d ( sum over channels of y[centre] ) / d x[c,i,j] |
//! ```
//!
//! (Luo et al., *Understanding the Effective Receptive Field*, NeurIPS 2016, arXiv 1701.04128; as a figure of networks with
//! large filters in Ding et al., *Scaling Up Your Kernels to 31x31*, CVPR 2022, arXiv 2203.06717, where `y` is the last feature
//! map before pooling. That protocol enlarges its images to 1024 pixels and clips negative outputs and gradients where this
//! one takes absolute values.) Of a bare layer, which is linear, the gradient is the same whatever the image.

use burn::tensor::Tensor;
use burn::tensor::backend::AutodiffBackend;
use burn_wtconv::{DepthwiseConv2dConfig, WtConv2dConfig};
use clap::{Args, ValueHint};
use image::Rgb;
use indicatif::ProgressBar;
use serde::Serialize;
use std::fmt;
use std::path::{Path, PathBuf};
use wtconvnext::WtConvNext;

use crate::atomic;
use crate::backend::{BackendKind, BackendTask, TrainBackend};
use crate::count::count;
use crate::data::augment::Transform;
use crate::data::batch::{ImageBatch, ImageBatcher};
use crate::data::decode::Failures;
use crate::data::folder::{images_among, split_folder};
use crate::data::loader::Workers;
use crate::drawing::{Align, BLACK, Canvas, GREY, Scale, text_width};
use crate::error::Error;
use crate::model::MAX_LEVELS;
use crate::output;
use crate::progress;
use crate::runs;
use crate::train::checkpoint::{Checkpoint, State};
use burn::data::dataloader::batcher::Batcher;

/// The shares of all contributions whose squares are reported, as in the papers on large filters.
pub const CONTRIBUTIONS: [f64; 4] = [0.2, 0.3, 0.5, 0.99];

/// Flags that are those of bare layers. (`requires` alone would not do: clap lets it go where what is required conflicts with another flag
/// that is there.)
const OF_LAYERS: [&str; 6] = ["layer", "levels", "kernel_size", "depthwise", "channels", "seed"];

/// Flags of `erf`.
#[derive(Args, Clone, Debug)]
pub struct ErfArgs {
    /// Runs, or checkpoints of runs, each a panel of the picture [default: the newest run under runs]
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath, conflicts_with_all = OF_LAYERS)]
    pub checkpoint: Vec<PathBuf>,
    /// The best checkpoint of each run in validation instead of its last
    #[arg(long, conflicts_with_all = OF_LAYERS)]
    pub best: bool,
    /// Image files or folders to average over [default: the validation images of the run]
    #[arg(long, value_name = "PATH", num_args = 1.., value_hint = ValueHint::AnyPath, conflicts_with_all = OF_LAYERS)]
    pub images: Vec<PathBuf>,
    /// Images to average over at most, taken evenly from all that there are
    #[arg(long, value_name = "N", default_value_t = 50, conflicts_with_all = OF_LAYERS, value_parser = clap::value_parser!(u16).range(1..))]
    pub count: u16,
    /// A bare layer before training in the place of a model: a wavelet convolution of each of --levels, and a depthwise one
    #[arg(long)]
    pub layer: bool,
    /// With --layer: wavelet levels
    #[arg(long, requires = "layer", value_name = "N,...", value_delimiter = ',', default_value = "1,2,3,4,5", value_parser = levels)]
    pub levels: Vec<usize>,
    /// With --layer: side of the wavelet convolution's filters
    #[arg(long, requires = "layer", value_name = "K", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=255))]
    pub kernel_size: u16,
    /// With --layer: side of the depthwise convolution's filter
    #[arg(long, requires = "layer", value_name = "K", default_value_t = 7, value_parser = clap::value_parser!(u16).range(1..=255))]
    pub depthwise: u16,
    /// With --layer: channels, whose filters are drawn independently; the field is their sum
    #[arg(long, requires = "layer", value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..))]
    pub channels: u16,
    /// With --layer: seed of the filters
    #[arg(long, requires = "layer", value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u64).range(..=i64::MAX as u64))]
    pub seed: u64,
    /// Side of the input in pixels [default: the model's; with --layer 224]
    #[arg(long, value_name = "PIXELS", value_parser = clap::value_parser!(u32).range(32..=4096))]
    pub input_size: Option<u32>,
    /// Images that go through the model at once
    #[arg(long, value_name = "N", default_value_t = 4, conflicts_with_all = OF_LAYERS, value_parser = clap::value_parser!(u16).range(1..))]
    pub batch_size: u16,
    /// Picture to write; the numbers go beside it, as .json
    #[arg(long, value_name = "FILE.png", default_value = "erf.png", value_parser = crate::drawing::png_path)]
    pub out: PathBuf,
    /// Where to compute
    #[arg(long, value_enum, default_value_t)]
    pub backend: BackendKind,
}

fn levels(text: &str) -> Result<usize, String> {
    let levels = text.trim().parse().map_err(|_| "expected numbers with commas between them".to_string())?;
    match levels {
        0..=MAX_LEVELS => Ok(levels),
        _ => Err(format!("must be 0 to {MAX_LEVELS}")),
    }
}

/// The contributions of the pixels of a square input.
#[derive(Clone, Debug, PartialEq)]
pub struct ReceptiveField {
    /// What the field is of.
    pub name: String,
    /// Images in the mean; none for a bare layer, whose field does not depend on the image.
    pub images: Option<usize>,
    side: usize,
    map: Vec<f64>,
}

/// The smallest centred square that holds a share of all contributions.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Square {
    /// The share.
    pub contribution: f64,
    /// Side of the square in pixels: odd, unless it is the whole input.
    pub side: usize,
    /// Area of the square over the area of the input.
    pub area: f64,
}

impl ReceptiveField {
    /// A field of `side * side` contributions, row by row.
    ///
    /// # Errors
    ///
    /// [`Error::NoField`] if they are all 0 or not all finite: then there is nothing to draw.
    ///
    /// # Panics
    ///
    /// If there is another number of contributions.
    pub fn new(name: String, images: Option<usize>, side: usize, map: Vec<f64>) -> Result<Self, Error> {
        assert_eq!(map.len(), side * side);
        let total: f64 = map.iter().sum();
        if !(total > 0.0 && total.is_finite()) {
            return Err(Error::NoField { name, total });
        }
        Ok(Self { name, images, side, map })
    }

    /// Side of the input in pixels.
    pub fn side(&self) -> usize {
        self.side
    }

    /// The contributions, `[side, side]`, row by row.
    pub fn map(&self) -> &[f64] {
        &self.map
    }

    /// The smallest square around pixel `(side / 2, side / 2)`, cut off at the border, that holds `contribution` of the sum.
    pub fn square(&self, contribution: f64) -> Square {
        let centre = self.side / 2;
        let wanted = contribution * self.map.iter().sum::<f64>();
        let (mut radius, mut held) = (0, self.map[centre * self.side + centre]);
        while held < wanted && radius < centre {
            radius += 1;
            held += self.ring(radius);
        }
        let side = (2 * radius + 1).min(self.side);
        Square { contribution, side, area: (side * side) as f64 / (self.side * self.side) as f64 }
    }

    /// The squares of all [`CONTRIBUTIONS`].
    pub fn squares(&self) -> [Square; 4] {
        CONTRIBUTIONS.map(|contribution| self.square(contribution))
    }

    /// Sum over the pixels whose larger distance from the centre along an axis is `radius`.
    fn ring(&self, radius: usize) -> f64 {
        let centre = self.side / 2;
        let (first, last) = (centre - radius, (centre + radius).min(self.side - 1));
        let on_ring = |position: usize| position.abs_diff(centre) == radius;
        let mut sum = 0.0;
        for row in first..=last {
            let values = &self.map[row * self.side + first..=row * self.side + last];
            sum += if on_ring(row) {
                values.iter().sum()
            } else {
                // Of an even side, the last column within reach may lie nearer.
                values[0] + if on_ring(last) { values[values.len() - 1] } else { 0.0 }
            };
        }
        sum
    }
}

/// Absolute gradients of the centre of `forward(x)`, summed over its batch and channels, with respect to `x`.
///
/// # Shapes
///
/// - `x`: `[batch, channels, side, side]`
/// - `forward(x)`: `[batch, any, rows, cols]`; its centre is `(rows / 2, cols / 2)`
/// - output: `side * side` sums over batch and channels, row by row
pub fn contributions<B: AutodiffBackend>(
    x: Tensor<B, 4>,
    forward: impl FnOnce(Tensor<B, 4>) -> Tensor<B, 4>,
) -> Vec<f64> {
    let x = x.require_grad();
    let y = forward(x.clone());
    let [_, _, rows, cols] = y.dims();
    let centre = y.narrow(2, rows / 2, 1).narrow(3, cols / 2, 1).sum();
    let gradient = x.grad(&centre.backward()).expect("the input is tracked");
    let gradient = gradient.abs().sum_dim(0).sum_dim(1);
    gradient.into_data().iter::<f64>().collect()
}

/// Where the numbers of a field go: `OUT.json`.
#[derive(Serialize)]
struct Report<'a> {
    method: &'static str,
    fields: Vec<FieldReport<'a>>,
}

#[derive(Serialize)]
struct FieldReport<'a> {
    name: &'a str,
    input_size: usize,
    images: Option<usize>,
    squares: [Square; 4],
    /// The central row of the map, relative to the largest value.
    central_row: Vec<f64>,
}

/// `imagenet erf`: prints a table of squares, draws the fields and writes the numbers.
///
/// # Errors
///
/// Any [`Error`] of the checkpoints, the images or the backend; [`Error::NoField`].
pub fn run(args: ErfArgs) -> Result<(), Error> {
    args.backend.check()?;
    let json = args.out.with_extension("json");
    let check_files = || output::check_files(&[&args.out, &json]);
    let backend = args.backend;
    let fields = if args.layer {
        check_files()?;
        backend.run(LayerTask(&args))??
    } else {
        let mut models = Vec::new();
        let named: Vec<Option<&Path>> = match args.checkpoint.is_empty() {
            true => vec![None],
            false => args.checkpoint.iter().map(|path| Some(path.as_path())).collect(),
        };
        for path in named {
            let (checkpoint, state) = runs::open_checkpoint(path, args.best)?;
            let images = match args.images.is_empty() {
                true => images_among(&[split_folder(&state.data, "val")?])?,
                false => images_among(&args.images)?,
            };
            models.push(Model { checkpoint, state, images: evenly(images, usize::from(args.count)) });
        }
        check_files()?;
        backend.run(ModelTask { args: &args, models })??
    };
    draw(&fields).save(&args.out)?;
    let report = Report {
        method: "mean over images of the absolute gradient of the centre of the output, summed over channels",
        fields: fields.iter().map(FieldReport::of).collect(),
    };
    let bytes = serde_json::to_vec_pretty(&report).expect("a report has string keys only");
    atomic::write_file(&json, &bytes).map_err(|source| Error::Io { path: json.clone(), source })?;
    output::text(Table(&fields))?;
    output::line(format_args!("written to {} and {}", args.out.display(), json.display()))
}

/// At most `count` of `items`, at equal distances.
fn evenly<T>(items: Vec<T>, count: usize) -> Vec<T> {
    let total = items.len();
    let taken = |index: &usize| total <= count || (index * count) / total != ((index + 1) * count) / total;
    items.into_iter().enumerate().filter(|(index, _)| taken(index)).map(|(_, item)| item).collect()
}

impl<'a> FieldReport<'a> {
    fn of(field: &'a ReceptiveField) -> Self {
        let side = field.side;
        let highest = field.map.iter().copied().fold(0.0, f64::max);
        let row = &field.map[side / 2 * side..(side / 2 + 1) * side];
        Self {
            name: &field.name,
            input_size: side,
            images: field.images,
            squares: field.squares(),
            central_row: row.iter().map(|value| value / highest).collect(),
        }
    }
}

struct LayerTask<'a>(&'a ErfArgs);

impl BackendTask for LayerTask<'_> {
    type Output = Result<Vec<ReceptiveField>, Error>;

    fn run<B: TrainBackend>(self, device: B::Device) -> Self::Output {
        let args = self.0;
        let (channels, side) = (usize::from(args.channels), args.input_size.unwrap_or(224) as usize);
        let x = || Tensor::<B, 4>::zeros([1, channels, side, side], &device);
        let mut fields = Vec::new();
        for &levels in &args.levels {
            let kernel_size = usize::from(args.kernel_size);
            B::seed(&device, args.seed);
            let layer = WtConv2dConfig::new(channels)
                .with_kernel_size(kernel_size)
                .with_levels(levels)
                .init::<B>(&device);
            let name = format!("WtConv2d {kernel_size}x{kernel_size} L={levels}");
            let map = contributions(x(), |x| layer.forward(x));
            fields.push(ReceptiveField::new(name, None, side, map)?);
        }
        let kernel_size = usize::from(args.depthwise);
        B::seed(&device, args.seed);
        let layer = DepthwiseConv2dConfig::new(channels, kernel_size).init::<B>(&device);
        let name = format!("DepthwiseConv2d {kernel_size}x{kernel_size}");
        let map = contributions(x(), |x| layer.forward(x));
        fields.push(ReceptiveField::new(name, None, side, map)?);
        Ok(fields)
    }
}

struct Model {
    checkpoint: Checkpoint,
    state: State,
    images: Vec<PathBuf>,
}

struct ModelTask<'a> {
    args: &'a ErfArgs,
    models: Vec<Model>,
}

impl BackendTask for ModelTask<'_> {
    type Output = Result<Vec<ReceptiveField>, Error>;

    fn run<B: TrainBackend>(self, device: B::Device) -> Self::Output {
        let workers = Workers::start(0)?;
        let images = self.models.iter().map(|model| model.images.len()).sum();
        let bar = progress::bar(images, "images");
        let field = |model: &Model| field_of_model::<B>(model, self.args, &workers, &bar, &device);
        let fields = self.models.iter().map(field).collect();
        bar.finish_and_clear();
        fields
    }
}

fn field_of_model<B: TrainBackend>(
    Model { checkpoint, state, images }: &Model,
    args: &ErfArgs,
    workers: &Workers,
    bar: &ProgressBar,
    device: &B::Device,
) -> Result<ReceptiveField, Error> {
    let mut state = state.clone();
    // On a backend with autodiff, blocks would be dropped at random as in training.
    state.model.drop_path_rate = 0.0;
    let model: WtConvNext<B> = burn::module::Module::no_grad(checkpoint.model(&state, device)?);
    let input_size = args.input_size.unwrap_or(state.input_size);
    let transform = Transform::Eval { input_size, crop_fraction: state.crop_fraction };
    let batcher = ImageBatcher { input_size: input_size as usize };

    let mut sum = vec![0.0; input_size as usize * input_size as usize];
    let (mut seen, mut failures) = (0, Failures::default());
    for images in images.chunks(usize::from(args.batch_size)) {
        let (mut samples, mut failed) = (Vec::new(), Vec::new());
        for read in workers.read(images, &transform) {
            match read {
                Ok(sample) => samples.push(sample),
                Err(error) => failed.push(error),
            }
        }
        failures.add(failed);
        bar.inc(images.len() as u64);
        if samples.is_empty() {
            continue;
        }
        seen += samples.len();
        let batch: ImageBatch<B> = batcher.batch(samples, device);
        let last = |x| {
            let [.., last] = model.forward_features(x);
            last
        };
        for (sum, value) in sum.iter_mut().zip(contributions(batch.images, last)) {
            *sum += value;
        }
    }
    let path = checkpoint.path().to_path_buf();
    if seen == 0
        && let Some(first) = failures.first
    {
        return Err(Error::Unreadable { path, images: images.len(), first });
    }
    let mean = sum.into_iter().map(|value| value / seen as f64).collect();
    ReceptiveField::new(path.display().to_string(), Some(seen), input_size as usize, mean)
}

/// A line for each field, with side and area of each square.
struct Table<'a>(&'a [ReceptiveField]);

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.0.iter().map(|field| field.name.chars().count()).max().unwrap_or(0).max(5);
        write!(f, "{:width$}  input", "field")?;
        for contribution in CONTRIBUTIONS {
            write!(f, "  {:>14}", format!("{:.0} %: px, area", 100.0 * contribution))?;
        }
        writeln!(f)?;
        for field in self.0 {
            write!(f, "{:width$}  {:>5}", field.name, field.side)?;
            for Square { side, area, .. } in field.squares() {
                write!(f, "  {side:>5}  {:>5.1} %", 100.0 * area)?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

/// Ink of the squares.
const SQUARE: Rgb<u8> = Rgb([255, 80, 60]);

/// Draws the fields side by side, each relative to its largest value and on a logarithmic scale, with the four squares.
fn draw(fields: &[ReceptiveField]) -> Canvas {
    const TEXT: u32 = 13;
    const PANEL: usize = 224;
    const COLUMNS: usize = 3;
    const LEFT: i64 = 44;
    const TOP: i64 = 70;
    const GAP: i64 = 24;

    let scale = Scale::Log { low: 1e-5, high: 1.0 };
    let magnify = |field: &ReceptiveField| (PANEL / field.side).max(1) as u32;
    let panel = fields.iter().map(|field| field.side as u32 * magnify(field)).max().unwrap_or(1);
    let columns = fields.len().min(COLUMNS);
    let caption = |field: &ReceptiveField| {
        let sides: Vec<String> = field.squares().iter().map(|square| square.side.to_string()).collect();
        let images = field.images.map(|images| format!(", {}", count(images, "image", "images")));
        [field.name.clone(), format!("{} px{}", sides.join(" / "), images.unwrap_or_default())]
    };
    let caption_width =
        fields.iter().flat_map(caption).map(|line| text_width(&line, TEXT)).max().unwrap_or(0);
    let (step_x, step_y) = (i64::from(panel.max(caption_width)) + LEFT + GAP, i64::from(panel) + TOP + GAP);
    let rows = fields.len().div_ceil(columns.max(1));
    let title =
        "effective receptive field: |gradient of the centre|, relative; squares of 20 / 30 / 50 / 99 %";
    let width = (columns as i64 * step_x + 90).max(LEFT + i64::from(text_width(title, TEXT + 1)) + GAP);
    let mut canvas = Canvas::new(width as u32, (rows as i64 * step_y + GAP) as u32);
    canvas.text(title, LEFT, 6, TEXT + 1, Align::Left, BLACK);

    for (index, field) in fields.iter().enumerate() {
        let (x, y) = ((index % columns) as i64 * step_x + LEFT, (index / columns) as i64 * step_y + TOP);
        let (magnify, side) = (magnify(field), field.side as u32);
        let highest = field.map.iter().copied().fold(0.0, f64::max);
        let relative: Vec<f64> = field.map.iter().map(|value| value / highest).collect();
        canvas.picture(&scale.picture(&relative, side, side), x, y, magnify);
        canvas.frame(x, y, side * magnify, side * magnify, GREY);
        for (line, row) in caption(field).into_iter().zip([y - 36, y - 20]) {
            canvas.text(&line, x, row, TEXT, Align::Left, BLACK);
        }
        for square in field.squares() {
            let corner = (field.side / 2 - square.side / 2) as i64 * i64::from(magnify);
            let side = square.side as u32 * magnify;
            canvas.frame(x + corner, y + corner, side, side, SQUARE);
        }
        for pixel in [0, side / 2, side] {
            let at = i64::from(pixel * magnify);
            let bottom = y + i64::from(side * magnify);
            canvas.fill(x + at, bottom + 1, 1, 4, GREY);
            canvas.text(&pixel.to_string(), x + at, bottom + 6, TEXT - 2, Align::Centre, BLACK);
            canvas.fill(x - 5, y + at, 4, 1, GREY);
            canvas.text(&pixel.to_string(), x - 8, y + at - 6, TEXT - 2, Align::Right, BLACK);
        }
    }
    scale.draw_bar(&mut canvas, columns as i64 * step_x + 10, TOP, 16, panel);
    canvas
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TestAutodiff;
    use burn::module::Param;
    use burn::tensor::TensorData;
    use burn_wtconv::{DepthwiseConv2d, WtConv2d};

    fn zeros(channels: usize, side: usize) -> Tensor<TestAutodiff, 4> {
        Tensor::zeros([1, channels, side, side], &Default::default())
    }

    fn parameter<const D: usize>(values: Vec<f32>, shape: [usize; D]) -> Param<Tensor<TestAutodiff, D>> {
        Param::from_data(TensorData::new(values, shape), &Default::default())
    }

    /// First and last row and column that are not 0, of a field without a 0 between.
    fn support(map: &[f64], side: usize) -> [usize; 4] {
        let positions: Vec<_> = (0..map.len()).filter(|index| map[*index] != 0.0).collect();
        let rows = || positions.iter().map(|index| index / side);
        let columns = || positions.iter().map(|index| index % side);
        let found = [
            rows().min().unwrap(),
            rows().max().unwrap(),
            columns().min().unwrap(),
            columns().max().unwrap(),
        ];
        let [top, bottom, left, right] = found;
        assert_eq!(positions.len(), (bottom - top + 1) * (right - left + 1), "a hole in the field");
        found
    }

    #[test]
    fn the_field_of_a_depthwise_convolution_is_its_filter() {
        // Two channels, each filter known; the second one is negative in places. The outputs are one image's and its copy's.
        let first: Vec<f32> = (1..=9).map(|i| i as f32).collect();
        let second: Vec<f32> = (1..=9).map(|i| if i % 2 == 0 { -0.5 } else { 0.25 }).collect();
        let layer = DepthwiseConv2d {
            weight: parameter([first.clone(), second.clone()].concat(), [2, 1, 3, 3]),
            bias: Some(parameter(vec![7.0, 8.0], [2])),
            stride: 1,
        };
        let map = contributions(zeros(2, 7), |x| layer.forward(x));
        let mut expected = vec![0.0; 49];
        for tap in 0..9 {
            // The centre is (3, 3), so that the filter lies on rows and columns 2 to 4.
            expected[(2 + tap / 3) * 7 + 2 + tap % 3] = f64::from(first[tap].abs() + second[tap].abs());
        }
        assert_eq!(map, expected);

        let twice = contributions(zeros(2, 7).repeat_dim(0, 2), |x| layer.forward(x));
        assert_eq!(twice, expected.iter().map(|value| 2.0 * value).collect::<Vec<_>>());
    }

    #[test]
    fn the_field_of_one_level_of_single_weights_by_hand() {
        // Weights LL 1, LH 1/2, HL 1/4, HH 1/8 and a base of 2. Pixel (3, 3) is the last of its block a b / c d, and
        // d = (LL - LH - HL + HH) / 2 with LL = (a+b+c+d)/2, LH = (a+b-c-d)/2, HL = (a-b+c-d)/2, HH = (a-b-c+d)/2.
        let layer = WtConv2d::<TestAutodiff> {
            filters: parameter(vec![2.0, 1.0, 0.5, 0.25, 0.125], [1, 5, 1, 1]),
            scales: parameter(vec![1.0; 5], [1, 5]),
            bias: None,
            stride: 1,
        };
        let map = contributions(zeros(1, 7), |x| layer.forward(x));
        let mut expected = vec![0.0; 49];
        expected[2 * 7 + 2] = (1.0 - 0.5 - 0.25 + 0.125) / 4.0;
        expected[2 * 7 + 3] = (1.0 - 0.5 + 0.25 - 0.125) / 4.0;
        expected[3 * 7 + 2] = (1.0 + 0.5 - 0.25 - 0.125) / 4.0;
        expected[3 * 7 + 3] = (1.0 + 0.5 + 0.25 + 0.125) / 4.0 + 2.0;
        assert_eq!(map, expected);
    }

    #[test]
    fn a_level_reaches_the_blocks_under_its_filter() {
        let device = Default::default();
        for (kernel_size, levels) in [(1, 1), (3, 1), (3, 2), (5, 2), (3, 3)] {
            let side: usize = 61;
            let config = WtConv2dConfig::new(3).with_kernel_size(kernel_size).with_levels(levels);
            let layer = config.init::<TestAutodiff>(&device);
            let map = contributions(zeros(3, side), |x| layer.forward(x));
            // The centre, 30, lies in block 30 / 2^levels; the filter reaches R blocks to each side.
            let (block, reach) = (1 << levels, kernel_size / 2);
            let (first, last) = ((30 / block - reach) * block, (30 / block + reach + 1) * block - 1);
            assert_eq!(support(&map, side), [first, last, first, last], "K = {kernel_size}, L = {levels}");
            assert_eq!(last - first + 1, layer.receptive_field());
        }
    }

    #[test]
    fn squares_by_hand() {
        // 4 in the centre, 1 in each of the 8 pixels around, 1/2 in each of the 16 at the border: 20 in all.
        #[rustfmt::skip]
        let map = vec![
            0.5, 0.5, 0.5, 0.5, 0.5,
            0.5, 1.0, 1.0, 1.0, 0.5,
            0.5, 1.0, 4.0, 1.0, 0.5,
            0.5, 1.0, 1.0, 1.0, 0.5,
            0.5, 0.5, 0.5, 0.5, 0.5,
        ];
        let field = ReceptiveField::new("a".to_string(), None, 5, map).unwrap();
        let square = |contribution| {
            let Square { side, area, .. } = field.square(contribution);
            (side, area)
        };
        // The centre is a fifth, the inner nine are three fifths.
        assert_eq!([0.2, 0.21, 0.6].map(square), [(1, 1.0 / 25.0), (3, 9.0 / 25.0), (3, 9.0 / 25.0)]);
        assert_eq!([0.61, 0.99, 1.0].map(square), [(5, 1.0); 3]);
        assert_eq!(field.squares().map(|square| square.side), [1, 3, 3, 5]);
    }

    #[test]
    fn squares_of_an_even_side_are_cut_off() {
        // The centre of 4 x 4 is (2, 2). The square of radius 1 is rows and columns 1 to 3, that of radius 2 everything.
        let mut map = vec![0.0; 16];
        for (row, column) in [(2, 2), (3, 3), (1, 3), (2, 0)] {
            map[row * 4 + column] = 1.0;
        }
        let field = ReceptiveField::new("a".to_string(), None, 4, map).unwrap();
        assert_eq!([0.25, 0.26, 0.75, 0.76].map(|t| field.square(t).side), [1, 3, 3, 4]);
        assert_eq!(field.square(0.99).area, 1.0);
    }

    #[test]
    fn a_field_of_nothing_is_an_error() {
        for value in [0.0, f64::NAN, f64::INFINITY] {
            let error = ReceptiveField::new("a".to_string(), None, 2, vec![value; 4]).unwrap_err();
            assert!(matches!(error, Error::NoField { .. }), "{error}");
        }
    }

    #[test]
    fn images_are_taken_evenly() {
        assert_eq!(evenly((0..10).collect(), 3), [3, 6, 9]);
        assert_eq!(evenly((0..10).collect(), 10), (0..10).collect::<Vec<_>>());
        assert_eq!(evenly((0..4).collect(), 10), [0, 1, 2, 3]);
    }

    #[test]
    fn the_table_has_a_line_for_each_field() {
        let mut map = vec![0.0; 25];
        map[12] = 1.0;
        let fields = [ReceptiveField::new("point".to_string(), None, 5, map).unwrap()];
        assert_eq!(
            Table(&fields).to_string(),
            "field  input  20 %: px, area  30 %: px, area  50 %: px, area  99 %: px, area\n\
             point      5      1    4.0 %      1    4.0 %      1    4.0 %      1    4.0 %\n"
        );
        let picture = draw(&fields);
        // 25 pixels of 44 x 44, of which the central one is bright, less its frame.
        let bright = Scale::Linear { low: 0.0, high: 1.0 }.colour(1.0);
        let found = picture.image().pixels().filter(|pixel| **pixel == bright).count();
        assert!((44 * 44..44 * 44 + 100).contains(&found), "{found}");
    }
}
