//! What each level and subband of a wavelet convolution sees of an image, and what it returns.

use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{Tensor, TensorData};
use burn_wtconv::reference::haar;
use burn_wtconv::{WtConv2d, WtConv2dConfig, WtConvBackend, depthwise_conv2d};
use clap::{Args, ValueHint};
use fast_image_resize::Resizer;
use image::RgbImage;
use serde::Serialize;
use std::fmt;
use std::path::{Path, PathBuf};
use wtconvnext::{Mixing, WtConvNext};

use crate::atomic;
use crate::backend::{BackendKind, BackendTask, TrainBackend};
use crate::data::augment::{Transform, normalize};
use crate::data::decode::decode_rgb;
use crate::data::{Stream, stream};
use crate::drawing::{Align, BLACK, Canvas, GREY, Scale, png_path, short};
use crate::error::Error;
use crate::model::MAX_LEVELS;
use crate::output;
use crate::train::checkpoint::{Checkpoint, State};

/// The subbands of a level, in the order of the layer's filters.
const SUBBANDS: [&str; 4] = ["LL", "LH", "HL", "HH"];

/// Side of the input without a checkpoint, unless the picture is smaller.
const LARGEST_SIDE: u32 = 224;

/// Flags that are those of a trained model. (`requires` alone would not do: clap lets it go where what is required conflicts with another
/// flag that is there.)
const OF_CHECKPOINTS: [&str; 5] = ["checkpoint", "best", "stage", "block", "channel"];

/// Flags of `subbands`.
#[derive(Args, Clone, Debug)]
pub struct SubbandsArgs {
    /// Image file
    #[arg(value_name = "IMAGE", value_hint = ValueHint::FilePath)]
    pub image: PathBuf,
    /// A run's folder, or one of its checkpoints, whose layer is shown; without it, a layer before training, on the brightness
    /// of the image
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub checkpoint: Option<PathBuf>,
    /// The run's best checkpoint in validation instead of its last
    #[arg(long, requires = "checkpoint")]
    pub best: bool,
    /// With --checkpoint: the stage of the layer
    #[arg(long, value_name = "N", default_value_t = 1, requires = "checkpoint", value_parser = clap::value_parser!(u8).range(1..=4))]
    pub stage: u8,
    /// With --checkpoint: the block of the layer within its stage
    #[arg(long, value_name = "N", default_value_t = 1, requires = "checkpoint", value_parser = clap::value_parser!(u16).range(1..))]
    pub block: u16,
    /// With --checkpoint: the channel, counted from 0 [default: the one whose output varies most]
    #[arg(long, value_name = "N", requires = "checkpoint")]
    pub channel: Option<usize>,
    /// Without --checkpoint: wavelet levels
    #[arg(long, value_name = "N", default_value_t = 3, conflicts_with_all = OF_CHECKPOINTS, value_parser = clap::value_parser!(u16).range(1..=MAX_LEVELS as i64))]
    pub levels: u16,
    /// Without --checkpoint: side of the filters
    #[arg(long, value_name = "K", default_value_t = 5, conflicts_with_all = OF_CHECKPOINTS, value_parser = clap::value_parser!(u16).range(1..=255))]
    pub kernel_size: u16,
    /// Without --checkpoint: seed of the filters
    #[arg(long, value_name = "N", default_value_t = 0, conflicts_with_all = OF_CHECKPOINTS, value_parser = clap::value_parser!(u64).range(..=i64::MAX as u64))]
    pub seed: u64,
    /// Picture to write; the numbers go beside it, as .json
    #[arg(long, value_name = "FILE.png", default_value = "subbands.png", value_parser = png_path)]
    pub out: PathBuf,
    /// Where to compute
    #[arg(long, value_enum, default_value_t)]
    pub backend: BackendKind,
}

/// Why a checkpoint has no layer to show.
#[derive(Debug, thiserror::Error)]
pub enum SubbandsError {
    /// The network mixes by plain convolutions.
    #[error("{}: this network has no wavelet convolutions, it mixes by a {mixer}", path.display())]
    NoWavelets {
        /// The checkpoint.
        path: PathBuf,
        /// What it has.
        mixer: wtconvnext::Mixer,
    },
    /// There is no such block.
    #[error("{}: --block {block}: stage {stage} has {blocks}", path.display())]
    NoBlock {
        /// The checkpoint.
        path: PathBuf,
        /// The stage, counted from 1.
        stage: u8,
        /// The block that was asked for, counted from 1.
        block: u16,
        /// Blocks of the stage.
        blocks: usize,
    },
    /// There is no such channel.
    #[error("{}: --channel {channel}: the layers of stage {stage} have channels 0 to {last}", path.display())]
    NoChannel {
        /// The checkpoint.
        path: PathBuf,
        /// The stage, counted from 1.
        stage: u8,
        /// The channel that was asked for.
        channel: usize,
        /// The last channel.
        last: usize,
    },
}

/// What a layer makes of a map, part by part.
#[derive(Clone, Debug)]
pub struct Decomposition<B: Backend> {
    /// The base path, `s0 * (w0 (*) x + b)`: `[batch, channels, height, width]`.
    pub base: Tensor<B, 4>,
    /// The levels, the first one first.
    pub levels: Vec<Level<B>>,
    /// The sum of everything: `[batch, channels, height, width]`.
    pub output: Tensor<B, 4>,
}

/// A level's subbands, each `[batch, channels, 4, rows, cols]` in the order LL, LH, HL, HH.
#[derive(Clone, Debug)]
pub struct Level<B: Backend> {
    /// As the analysis leaves them, `A_l_s x`.
    pub seen: Tensor<B, 5>,
    /// Filtered and scaled, `s_ls * (w_ls (*) A_l_s x)`, as they go into the synthesis.
    pub returned: Tensor<B, 5>,
}

/// Takes the forward pass of a layer of stride 1 apart.
///
/// # Shapes
///
/// - `x`: `[batch, channels, height, width]`
pub fn decompose<B: WtConvBackend>(layer: &WtConv2d<B>, x: Tensor<B, 4>) -> Decomposition<B> {
    let [batch, channels, _, _] = x.dims();
    let kernel_size = layer.kernel_size();
    let base_scale = layer.scales.val().narrow(1, 0, 1).reshape([1, channels, 1, 1]);
    let base_filter = layer.base_filter().unsqueeze_dim(1);
    let bias = layer.bias.as_ref().map(|bias| bias.val());
    let base = depthwise_conv2d(x.clone(), base_filter, bias, 1) * base_scale;

    let mut levels = Vec::with_capacity(layer.levels());
    let mut low = x.clone();
    for level in 1..=layer.levels() {
        let seen = haar::analysis(low);
        let [_, _, _, rows, cols] = seen.dims();
        // Channel `4c + s` is subband `s` of channel `c`, of the maps and of the filters.
        let maps = seen.clone().reshape([batch, 4 * channels, rows, cols]);
        let filters = layer.level_filters(level).reshape([4 * channels, 1, kernel_size, kernel_size]);
        let scales = layer.level_scales(level).reshape([1, channels, 4, 1, 1]);
        let filtered = depthwise_conv2d(maps, filters, None, 1).reshape([batch, channels, 4, rows, cols]);
        low = seen.clone().narrow(2, 0, 1).squeeze_dim(2);
        levels.push(Level { seen, returned: filtered * scales });
    }
    Decomposition { base, levels, output: layer.forward(x) }
}

/// One channel of a map on the host.
#[derive(Clone, Debug, PartialEq)]
struct Map {
    values: Vec<f64>,
    rows: usize,
    cols: usize,
}

impl Map {
    /// `channel` of the only image of `tensor`.
    fn of<B: Backend>(tensor: &Tensor<B, 4>, channel: usize) -> Self {
        let [_, _, rows, cols] = tensor.dims();
        let values = tensor.clone().narrow(1, channel, 1).into_data().iter::<f64>().collect();
        Self { values, rows, cols }
    }

    /// Subband `subband` of `channel`.
    fn of_subband<B: Backend>(tensor: &Tensor<B, 5>, channel: usize, subband: usize) -> Self {
        Self::of(&tensor.clone().narrow(2, subband, 1).squeeze_dim(2), channel)
    }

    fn minus(&self, other: &Self) -> Self {
        let values = self.values.iter().zip(&other.values).map(|(a, b)| a - b).collect();
        Self { values, ..*self }
    }

    fn bound(&self) -> f64 {
        self.values.iter().fold(0.0, |bound, value| value.abs().max(bound))
    }

    /// Root of the mean square.
    fn rms(&self) -> f64 {
        (self.values.iter().map(|value| value * value).sum::<f64>() / self.values.len() as f64).sqrt()
    }

    fn picture(&self) -> RgbImage {
        Scale::Signed { bound: self.bound() }.picture(&self.values, self.cols as u32, self.rows as u32)
    }
}

/// The maps of one channel of a layer.
#[derive(Debug)]
struct Maps {
    title: String,
    channel: usize,
    input: Map,
    base: Map,
    output: Map,
    /// For each level and subband what it sees, what it returns, and its scale.
    levels: Vec<[(Map, Map, f64); 4]>,
}

impl Maps {
    fn new<B: WtConvBackend>(
        title: String,
        layer: &WtConv2d<B>,
        x: Tensor<B, 4>,
        channel: Option<usize>,
    ) -> Self {
        let parts = decompose(layer, x.clone());
        let channel = channel.unwrap_or_else(|| most_varied(&parts.output));
        let levels = parts.levels.iter().enumerate().map(|(index, level)| {
            let scales = layer.level_scales(index + 1).narrow(0, channel, 1);
            let scales: Vec<f64> = scales.into_data().iter().collect();
            std::array::from_fn(|subband| {
                let of = |tensor| Map::of_subband(tensor, channel, subband);
                (of(&level.seen), of(&level.returned), scales[subband])
            })
        });
        Self {
            title,
            channel,
            input: Map::of(&x, channel),
            base: Map::of(&parts.base, channel),
            output: Map::of(&parts.output, channel),
            levels: levels.collect(),
        }
    }

    fn rows(&self) -> Vec<Row> {
        let levels = self.levels.iter().enumerate();
        levels
            .flat_map(|(index, subbands)| {
                SUBBANDS.into_iter().zip(subbands).map(move |(subband, (seen, returned, scale))| Row {
                    level: index + 1,
                    subband,
                    rows: seen.rows,
                    cols: seen.cols,
                    seen: seen.rms(),
                    returned: returned.rms(),
                    scale: *scale,
                })
            })
            .collect()
    }
}

/// The channel of the largest variance; the first of equals.
fn most_varied<B: Backend>(output: &Tensor<B, 4>) -> usize {
    let variances: Vec<f64> = output.clone().flatten::<2>(1, 3).into_data().iter().collect();
    let channels = output.dims()[1];
    let plane = variances.len() / channels;
    let variance = |values: &[f64]| {
        let mean = values.iter().sum::<f64>() / plane as f64;
        values.iter().map(|value| (value - mean).powi(2)).sum::<f64>()
    };
    let variances: Vec<f64> = variances.chunks_exact(plane).map(variance).collect();
    (0..channels).rev().max_by(|a, b| variances[*a].total_cmp(&variances[*b])).unwrap_or(0)
}

/// Numbers about a subband.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Row {
    level: usize,
    subband: &'static str,
    rows: usize,
    cols: usize,
    /// Root mean square of what it sees.
    seen: f64,
    /// Root mean square of what it returns.
    returned: f64,
    /// Its scale.
    scale: f64,
}

#[derive(Serialize)]
struct Report<'a> {
    layer: &'a str,
    channel: usize,
    input_rms: f64,
    base_rms: f64,
    output_rms: f64,
    subbands: Vec<Row>,
}

impl fmt::Display for Report<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}, channel {}", self.layer, self.channel)?;
        writeln!(f, "level  subband  pixels    rms seen  returned     scale")?;
        for Row { level, subband, rows, cols, seen, returned, scale } in &self.subbands {
            let pixels = format!("{rows}x{cols}");
            writeln!(f, "{level:5}  {subband:7}  {pixels:7}  {seen:9.4} {returned:9.4} {scale:9.4}")?;
        }
        let Self { input_rms, base_rms, output_rms, .. } = self;
        writeln!(f, "input rms {input_rms:.4}, base path {base_rms:.4}, output {output_rms:.4}")
    }
}

/// `imagenet subbands`: draws a layer's subbands of an image, prints a table and writes the numbers.
///
/// # Errors
///
/// Any [`Error`] of the image, the checkpoint or the backend; [`SubbandsError`] for a layer that is not there.
pub fn run(args: SubbandsArgs) -> Result<(), Error> {
    args.backend.check()?;
    let json = args.out.with_extension("json");
    let check_files = || output::check_files(&[&args.out, &json]);
    let image = decode_rgb(&args.image)?;
    let maps = match &args.checkpoint {
        Some(path) => {
            let (checkpoint, state) = Checkpoint::open(path, args.best)?;
            check(&args, checkpoint.path(), &state)?;
            check_files()?;
            args.backend.run(ModelTask { args: &args, image, checkpoint, state })??
        }
        None => {
            check_files()?;
            args.backend.run(LayerTask { args: &args, image })?
        }
    };
    let report = Report {
        layer: &maps.title,
        channel: maps.channel,
        input_rms: maps.input.rms(),
        base_rms: maps.base.rms(),
        output_rms: maps.output.rms(),
        subbands: maps.rows(),
    };
    draw(&maps).save(&args.out)?;
    let bytes = serde_json::to_vec_pretty(&report).expect("a report has string keys only");
    atomic::write_file(&json, &bytes).map_err(|source| Error::Io { path: json.clone(), source })?;
    output::text(&report)?;
    output::line(format_args!("written to {} and {}", args.out.display(), json.display()))
}

/// Whether the model has the layer that is asked for.
fn check(args: &SubbandsArgs, path: &Path, state: &State) -> Result<(), SubbandsError> {
    let path = path.to_path_buf();
    let (stage, block, mixer) = (args.stage, args.block, state.model.mixer);
    let index = usize::from(stage) - 1;
    let (blocks, channels) = (state.model.depths[index], state.model.dims[index]);
    if mixer != wtconvnext::Mixer::WtConv {
        return Err(SubbandsError::NoWavelets { path, mixer });
    }
    if usize::from(block) > blocks {
        return Err(SubbandsError::NoBlock { path, stage, block, blocks });
    }
    match args.channel {
        Some(channel) if channel >= channels => {
            Err(SubbandsError::NoChannel { path, stage, channel, last: channels - 1 })
        }
        _ => Ok(()),
    }
}

/// The picture as a model sees it, `[1, 3, input_size, input_size]`.
fn input<B: Backend>(
    image: &RgbImage,
    input_size: u32,
    crop_fraction: f64,
    device: &B::Device,
) -> Tensor<B, 4> {
    let transform = Transform::Eval { input_size, crop_fraction };
    let image = transform.apply(image, &mut stream(0, Stream::Augment, 0, 0), &mut Resizer::new());
    let side = input_size as usize;
    Tensor::from_data(TensorData::new(normalize(&image), [1, 3, side, side]), device)
}

struct LayerTask<'a> {
    args: &'a SubbandsArgs,
    image: RgbImage,
}

impl BackendTask for LayerTask<'_> {
    type Output = Maps;

    fn run<B: TrainBackend>(self, device: B::Device) -> Self::Output {
        let Self { args, image } = self;
        let side = image.width().min(image.height()).min(LARGEST_SIDE);
        let x = input::<B::InnerBackend>(&image, side, 1.0, &device).mean_dim(1);
        <B::InnerBackend as Backend>::seed(&device, args.seed);
        let (kernel_size, levels) = (usize::from(args.kernel_size), usize::from(args.levels));
        let config = WtConv2dConfig::new(1).with_kernel_size(kernel_size).with_levels(levels);
        let title = format!("WtConv2d {kernel_size}x{kernel_size} L={levels} before training");
        Maps::new(title, &config.init(&device), x, Some(0))
    }
}

struct ModelTask<'a> {
    args: &'a SubbandsArgs,
    image: RgbImage,
    checkpoint: Checkpoint,
    state: State,
}

impl BackendTask for ModelTask<'_> {
    type Output = Result<Maps, Error>;

    fn run<B: TrainBackend>(self, device: B::Device) -> Self::Output {
        let Self { args, image, checkpoint, state } = self;
        let model: WtConvNext<<B as AutodiffBackend>::InnerBackend> = checkpoint.model(&state, &device)?;
        let x = input(&image, state.input_size, state.crop_fraction, &device);
        let (stage, block) = (usize::from(args.stage) - 1, usize::from(args.block) - 1);
        let x = model.stages[..stage].iter().fold(model.stem.forward(x), |x, stage| stage.forward(x));
        let stage = &model.stages[stage];
        let x = match &stage.downsample {
            Some(downsample) => downsample.forward(x),
            None => x,
        };
        let x = stage.blocks[..block].iter().fold(x, |x, block| block.forward(x));
        let Mixing::WtConv(layer) = &stage.blocks[block].mixing else {
            unreachable!("the configuration was checked for wavelet convolutions");
        };
        let title = format!("{}, stage {}, block {}", checkpoint.path().display(), args.stage, args.block);
        Ok(Maps::new(title, layer, x.permute([0, 3, 1, 2]), args.channel))
    }
}

/// Draws input and output of the layer, and below for each level what its subbands see and return. Every panel has its own
/// scale, from blue at minus its largest value through white at 0 to red.
fn draw(maps: &Maps) -> Canvas {
    const TEXT: u32 = 13;
    const PANEL: usize = 128;
    const LABEL: i64 = 20;
    const MARGIN: i64 = 20;
    const GAP: i64 = 10;
    // Between what is seen and what is returned.
    const BETWEEN: i64 = 24;
    const LEFT: i64 = 70;

    let magnify = |map: &Map| (PANEL / map.rows.max(map.cols)).max(1) as u32;
    let all = || {
        let levels = maps.levels.iter().flatten().flat_map(|(seen, returned, _)| [seen, returned]);
        [&maps.input, &maps.output].into_iter().chain(levels)
    };
    let panel = all().map(|map| map.rows.max(map.cols) as u32 * magnify(map)).max().unwrap_or(0);
    let (step, row_height) = (i64::from(panel) + GAP, i64::from(panel) + LABEL + GAP);
    let column = |index: usize| LEFT + index as i64 * step + if index >= 4 { BETWEEN } else { 0 };
    let top = 62;
    let width = column(7) + i64::from(panel) + MARGIN;
    let height = top + (maps.levels.len() as i64 + 1) * row_height + LABEL + MARGIN;
    let mut canvas = Canvas::new(width as u32, height as u32);
    let title = format!("{}, channel {}", maps.title, maps.channel);
    canvas.text(&title, MARGIN, 8, TEXT + 3, Align::Left, BLACK);
    let note = "each panel: blue is negative, red is positive, to the number beside its name";
    canvas.text(note, MARGIN, 32, TEXT, Align::Left, GREY);

    let panel_at = |canvas: &mut Canvas, map: &Map, name: &str, x: i64, y: i64| {
        canvas.text(&format!("{name}  ±{}", short(map.bound())), x, y, TEXT, Align::Left, BLACK);
        let magnify = magnify(map);
        canvas.picture(&map.picture(), x, y + LABEL, magnify);
        canvas.frame(x, y + LABEL, map.cols as u32 * magnify, map.rows as u32 * magnify, GREY);
    };
    panel_at(&mut canvas, &maps.input, "input", column(0), top);
    panel_at(&mut canvas, &maps.output, "output", column(4), top);
    panel_at(&mut canvas, &maps.base, "base path", column(5), top);
    panel_at(&mut canvas, &maps.output.minus(&maps.base), "all levels", column(6), top);
    let heading = top + row_height;
    canvas.text("seen by the filters", column(0), heading, TEXT + 1, Align::Left, BLACK);
    canvas.text("returned, filtered and scaled", column(4), heading, TEXT + 1, Align::Left, BLACK);
    for (index, subbands) in maps.levels.iter().enumerate() {
        let y = heading + LABEL + index as i64 * row_height;
        canvas.text(&format!("level {}", index + 1), MARGIN - 10, y + LABEL, TEXT, Align::Left, BLACK);
        for (subband, (seen, returned, _)) in subbands.iter().enumerate() {
            panel_at(&mut canvas, seen, SUBBANDS[subband], column(subband), y);
            panel_at(&mut canvas, returned, SUBBANDS[subband], column(4 + subband), y);
        }
    }
    canvas
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TestBackend;
    use burn::module::Param;
    use burn::tensor::Distribution;

    #[test]
    fn the_parts_add_up_to_the_output() {
        let device = Default::default();
        let mut layer =
            WtConv2dConfig::new(3).with_levels(3).with_kernel_size(3).init::<TestBackend>(&device);
        // No two scales are equal, so that a mix-up shows.
        layer.scales = Param::from_tensor(Tensor::random([3, 13], Distribution::Default, &device));
        let x = Tensor::random([1, 3, 13, 22], Distribution::Default, &device);
        let parts = decompose(&layer, x.clone());
        assert_eq!(parts.levels[2].returned.dims(), [1, 3, 4, 2, 3]);
        // The synthesis of what the levels return, from the last one up.
        let extents = [[13, 22], [7, 11], [4, 6]];
        let mut carried = None;
        for (level, extent) in parts.levels.iter().zip(extents).rev() {
            let [_, channels, _, rows, cols] = level.returned.dims();
            let subbands = level.returned.clone().reshape([1, 4 * channels, rows, cols]);
            carried = Some(haar::synthesis(subbands, carried, extent));
        }
        let sum = parts.base + carried.unwrap();
        sum.into_data().assert_approx_eq::<f32>(&layer.forward(x).into_data(), Default::default());
        assert_eq!(parts.output.dims(), [1, 3, 13, 22]);
    }

    #[test]
    fn a_subband_sees_the_edges_of_its_direction() {
        // Left half 0, right half 1, the edge within the third block of columns: only LL and HL see anything.
        let device = Default::default();
        let pixels: Vec<f32> = (0..64).map(|index| if index % 8 >= 5 { 1.0 } else { 0.0 }).collect();
        let x = Tensor::<TestBackend, 4>::from_data(TensorData::new(pixels, [1, 1, 8, 8]), &device);
        let layer = WtConv2dConfig::new(1).with_levels(2).init::<TestBackend>(&device);
        let maps = Maps::new("a".to_string(), &layer, x, None);
        let [ll, lh, hl, hh] = &maps.levels[0];
        // LL = (0+1+0+1)/2 and HL = (0-1+0-1)/2 at the edge; LL = 2 in the block of ones.
        assert_eq!(ll.0.values, [0.0, 0.0, 1.0, 2.0].repeat(4));
        assert_eq!(hl.0.values, [0.0, 0.0, -1.0, 0.0].repeat(4));
        assert_eq!([lh.0.bound(), hh.0.bound()], [0.0, 0.0]);
        // The second level analyses the LL of the first: (0+0+0+0)/2, (1+2+1+2)/2 and (1-2+1-2)/2.
        let [ll, _, hl, _] = &maps.levels[1];
        assert_eq!((&ll.0.values, &hl.0.values), (&[0.0, 3.0].repeat(2), &[0.0, -1.0].repeat(2)));
        let rows = maps.rows();
        assert_eq!((rows.len(), rows[2].level, rows[2].subband, rows[2].rows), (8, 1, "HL", 4));
        // One of four columns is -1.
        assert_eq!((rows[2].seen, rows[1].seen), (0.5, 0.0));
        assert!((rows[2].scale - 0.1).abs() < 1e-7);
        let picture = draw(&maps);
        let red = Scale::Signed { bound: 1.0 }.colour(1.0);
        assert!(picture.image().pixels().any(|pixel| *pixel == red));
    }

    #[test]
    fn the_most_varied_channel_is_shown() {
        let values = vec![9.0, 9.0, 9.0, 9.0, 0.0, 1.0, 0.0, 1.0, 1.0, 0.0, 1.0, 0.0];
        let output =
            Tensor::<TestBackend, 4>::from_data(TensorData::new(values, [1, 3, 2, 2]), &Default::default());
        assert_eq!(most_varied(&output), 1);
    }
}
