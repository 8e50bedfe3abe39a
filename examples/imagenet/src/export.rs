//! A trained model for other programs: its parameters under the official names, and how to feed it.

use clap::{Args, ValueEnum, ValueHint};
use serde::Serialize;
use std::fs;
use std::path::PathBuf;
use wtconvnext::{Mixer, OfficialScheme, save_official};

use crate::atomic;
use crate::backend::{BackendKind, BackendTask, TrainBackend};
use crate::data::augment::{MEAN, STD};
use crate::error::Error;
use crate::output;
use crate::runs;
use crate::train::checkpoint::{Checkpoint, State};
use burn::module::Module;
use burn::tensor::backend::AutodiffBackend;
use wtconvnext::WtConvNext;

/// Flags of `export`.
#[derive(Args, Clone, Debug)]
pub struct ExportArgs {
    /// A run's folder, or one of its checkpoints [default: the newest run under runs]
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub checkpoint: Option<PathBuf>,
    /// The run's best checkpoint in validation instead of its last
    #[arg(long)]
    pub best: bool,
    /// File to write; classes, shape and preprocessing go beside it, as .json
    #[arg(long, value_name = "FILE.safetensors", default_value = "model.safetensors", value_parser = safetensors_path)]
    pub out: PathBuf,
    /// Which of the PyTorch layers is to load it; a network without wavelet convolutions is the same in both
    #[arg(long, value_enum, default_value_t)]
    pub scheme: Scheme,
    /// Where to load the model; nothing is computed
    #[arg(long, value_enum, default_value_t)]
    pub backend: BackendKind,
}

fn safetensors_path(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("safetensors") => Ok(path),
        _ => Err("must end in .safetensors".to_string()),
    }
}

/// How the parameters of the wavelet convolutions are named.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Scheme {
    /// As the reference layer of the authors, built of modules, names them: base_conv.weight, wavelet_convs.0.weight.
    #[default]
    Modules,
    /// As their fused layers, built of parameters, do: base_weight, wt_weights.0.
    Parameters,
}

impl From<Scheme> for OfficialScheme {
    fn from(scheme: Scheme) -> Self {
        match scheme {
            Scheme::Modules => Self::Modules,
            Scheme::Parameters => Self::Parameters,
        }
    }
}

/// What a program needs to know to use the file, with the names that timm gives it.
#[derive(Serialize)]
struct ModelCard<'a> {
    architecture: &'static str,
    num_classes: usize,
    model_args: ModelArgs,
    label_names: &'a [String],
    pretrained_cfg: Preprocessing,
}

#[derive(Serialize)]
struct ModelArgs {
    depths: [usize; 4],
    dims: [usize; 4],
    kernel_sizes: [usize; 4],
    #[serde(skip_serializing_if = "Option::is_none")]
    wt_levels: Option<[usize; 4]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    scheme: Option<Scheme>,
}

/// Resize the shorter side to `floor(input_size / crop_pct)`, take the centre, `(pixel / 255 - mean) / std`.
#[derive(Serialize)]
struct Preprocessing {
    /// Channels, height and width.
    input_size: [u32; 3],
    crop_pct: f64,
    crop_mode: &'static str,
    interpolation: &'static str,
    mean: [f32; 3],
    std: [f32; 3],
}

impl<'a> ModelCard<'a> {
    fn of(state: &'a State, scheme: Scheme) -> Self {
        let wavelets = state.model.mixer == Mixer::WtConv;
        Self {
            architecture: if wavelets { "wtconvnext" } else { "convnext" },
            num_classes: state.model.num_classes,
            model_args: ModelArgs {
                depths: state.model.depths,
                dims: state.model.dims,
                kernel_sizes: state.model.kernel_sizes,
                wt_levels: wavelets.then_some(state.model.levels),
                scheme: wavelets.then_some(scheme),
            },
            label_names: &state.classes,
            pretrained_cfg: Preprocessing {
                input_size: [3, state.input_size, state.input_size],
                crop_pct: state.crop_fraction,
                crop_mode: "center",
                interpolation: "bicubic",
                mean: MEAN,
                std: STD,
            },
        }
    }
}

/// `imagenet export`: writes the model as safetensors and what belongs to it as JSON.
///
/// # Errors
///
/// Any [`Error`] of the checkpoint; [`Error::Export`] if the file cannot be written.
pub fn run(args: ExportArgs) -> Result<(), Error> {
    args.backend.check()?;
    let (checkpoint, state) = runs::open_checkpoint(args.checkpoint.as_deref(), args.best)?;
    let card = args.out.with_extension("json");
    output::check_files(&[&args.out, &card])?;
    let json =
        serde_json::to_vec_pretty(&ModelCard::of(&state, args.scheme)).expect("a card has string keys only");
    // Nothing is computed, so that any backend will do.
    let parameters =
        BackendKind::default().run(Task { args: &args, checkpoint: &checkpoint, state: &state })??;
    let io_error = |path: &PathBuf, source| Error::Io { path: path.clone(), source };
    atomic::write_file(&card, &json).map_err(|source| io_error(&card, source))?;
    // The weights were written as a private temporary file; they are as public as any other file of this user.
    let permissions = fs::metadata(&card).map_err(|source| io_error(&card, source))?.permissions();
    fs::set_permissions(&args.out, permissions).map_err(|source| io_error(&args.out, source))?;
    output::line(format_args!("{}: {parameters} parameters", checkpoint.path().display()))?;
    output::line(format_args!("written to {} and {}", args.out.display(), card.display()))
}

struct Task<'a> {
    args: &'a ExportArgs,
    checkpoint: &'a Checkpoint,
    state: &'a State,
}

impl BackendTask for Task<'_> {
    type Output = Result<usize, Error>;

    fn run<B: TrainBackend>(self, device: B::Device) -> Self::Output {
        let Self { args, checkpoint, state } = self;
        let model: WtConvNext<<B as AutodiffBackend>::InnerBackend> = checkpoint.model(state, &device)?;
        save_official(&model, &args.out, args.scheme.into())?;
        Ok(model.num_params())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_safetensors_files_are_written() {
        assert_eq!(safetensors_path("a/b.safetensors"), Ok(PathBuf::from("a/b.safetensors")));
        // The card of a file without an extension would replace the file.
        for path in ["model", "model.json", "model.pth", ""] {
            assert_eq!(safetensors_path(path), Err("must end in .safetensors".to_string()), "{path}");
        }
    }
}
