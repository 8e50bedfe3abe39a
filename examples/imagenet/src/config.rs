//! What a run depends on: defaults, then a preset, then a TOML file, then flags.
//!
//! A [`ConfigLayer`] is both the set of command-line flags and the content of a `--config` file or a [`Preset`], under the same
//! names. The sum of the layers is a [`TrainConfig`], which is written beside the checkpoints and can be given to `--config`
//! again.

use crate::backend::BackendKind;
use crate::data::augment::Transform;
use crate::data::augment::mix::Mix;
use crate::data::augment::rand_augment::{MAX_MAGNITUDE, RandAugment};
use crate::data::folder::{FolderError, shipped};
use crate::model::{Arch, MAX_LEVELS, Size, largest_useful_levels, map_sides};
use crate::preset::Preset;
use crate::train::dtype::ForwardDtype;
use clap::{Args, Command, ValueHint};
use serde::{Deserialize, Serialize};
use std::fs;
use std::io;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use toml::{Table, Value};

/// Sides of the model's input in pixels.
pub const INPUT_SIZES: RangeInclusive<u32> = 32..=4096;

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The file is not a configuration: not TOML, an unknown key, a value of another type.
    #[error("{}: {source}", path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// The cause, with the line.
        source: Box<toml::de::Error>,
    },
    /// A value that no run can use.
    #[error("{key} = {value}: {reason}")]
    Invalid {
        /// The key, which is the flag's name too.
        key: &'static str,
        /// Its value.
        value: String,
        /// What is allowed.
        reason: &'static str,
    },
    /// A flag that does nothing with the others.
    #[error("--{flag} does nothing without {needed}; leave it out, or add what it needs")]
    Unused {
        /// The flag.
        flag: &'static str,
        /// What it needs.
        needed: &'static str,
    },
    /// A number that no configuration file can hold.
    #[error("a number is larger than {}, the largest of a configuration", i64::MAX)]
    TooLarge,
    /// A data folder that neither a configuration file nor a checkpoint can name.
    #[error("{}: the path of the data folder is not UTF-8, as the files of a run have to be; rename what is not", path.display())]
    NotUtf8 {
        /// The folder.
        path: PathBuf,
    },
    /// More wavelet levels than any image has.
    #[error(
        "levels = {levels:?}: must be at most {MAX_LEVELS}; at input_size = {input_size} the stages' maps are {sides:?} pixels \
         wide, and levels beyond {useful:?} add nothing"
    )]
    Levels {
        /// The value.
        levels: [usize; 4],
        /// Side of the model's input in pixels.
        input_size: u32,
        /// Sides of the stages' maps.
        sides: [usize; 4],
        /// The levels whose subbands are single pixels.
        useful: [usize; 4],
    },
    /// A resumed run was given another number of epochs.
    #[error(
        "epochs is {stored} in this run and cannot become {given} when it is resumed: the learning rate falls along a cosine over \
         all epochs, so that another number is another run; start it with --epochs {given} --out DIR"
    )]
    Epochs {
        /// Value in the run's configuration.
        stored: String,
        /// Value given now.
        given: String,
    },
    /// A resumed run was given another value for something that it depends on.
    #[error(
        "{key} is {stored} in this run and cannot become {given} when it is resumed; leave it out, or start another run with --out DIR"
    )]
    Changed {
        /// The key.
        key: String,
        /// Value in the run's configuration.
        stored: String,
        /// Value given now.
        given: String,
    },
}

/// Threads that decode, at most: thousands would bring a machine down.
const MAX_WORKERS: usize = 256;

/// Keys that may change when a run is resumed, because its result does not depend on them.
const FREE_AT_RESUME: [&str; 4] = ["backend", "data", "keep", "workers"];

/// Operations that one picture can be put through, at most.
const MAX_RAND_AUGMENT_LAYERS: usize = 15;

/// Keys that the configurations of older runs lack: those runs had nothing of it, which is the default too.
const ADDED_LATER: [&str; 12] = [
    "rand_augment_layers",
    "rand_augment_magnitude",
    "rand_augment_std",
    "rand_augment_prob",
    "random_erasing",
    "mixup",
    "cutmix",
    "mixup_prob",
    "mixup_switch_prob",
    "ema_decay",
    "clip_grad",
    "dtype",
];

/// Where the configuration comes from: the flags of the commands that have one.
#[derive(Args, Clone, Debug, Default)]
pub struct ConfigArgs {
    /// Configuration that comes with the program; file and flags win over it
    #[arg(long, value_enum, value_name = "NAME")]
    pub preset: Option<Preset>,
    /// TOML file with any of the keys below (with _ for -); flags win over it
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub config: Option<PathBuf>,
    /// What the run depends on.
    #[command(flatten, next_help_heading = "Configuration")]
    pub layer: ConfigLayer,
}

impl ConfigArgs {
    /// Defaults, preset, file and flags.
    ///
    /// # Errors
    ///
    /// Those of [`ConfigLayer::read`] and [`TrainConfig::with_preset`]; [`ConfigError::Unused`] for a flag. (In a file, such keys
    /// are fine: a printed configuration has them all.)
    pub fn resolve(&self) -> Result<TrainConfig, ConfigError> {
        let config = TrainConfig::with_preset(self.preset, self.given()?)?;
        self.layer.used_in(&config)?;
        Ok(config)
    }

    /// The stored configuration of a run that is to be resumed, with what may be changed.
    ///
    /// # Errors
    ///
    /// Those of [`ConfigLayer::read`] and [`TrainConfig::resume`].
    pub fn resume(&self, stored: TrainConfig) -> Result<TrainConfig, ConfigError> {
        let given = self.given()?;
        let warmup_epochs = given.warmup_epochs;
        let mut layer = match self.preset {
            Some(preset) => given.over(preset.layer()),
            None => given,
        };
        // The preset's may have been shortened for the run.
        layer.warmup_epochs = warmup_epochs;
        TrainConfig::resume(stored, &layer)
    }

    /// What file and flags say.
    fn given(&self) -> Result<ConfigLayer, ConfigError> {
        let flags = self.layer.clone();
        flags.fits_toml()?;
        Ok(match &self.config {
            Some(path) => {
                let file = ConfigLayer::read(path)?;
                file.fits_toml()?;
                flags.over(file)
            }
            None => flags,
        })
    }
}

/// Fails if a path cannot be written into a file of text.
pub(crate) fn check_utf8(path: &Path) -> Result<(), ConfigError> {
    path.to_str().map(|_| ()).ok_or_else(|| ConfigError::NotUtf8 { path: path.to_path_buf() })
}

/// Flags of `train`, and the keys of a configuration file. What is not given is left to the layer below.
#[derive(Args, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ConfigLayer {
    /// Folder with train/CLASS/*.jpg and val/CLASS/*.jpg; switches to the defaults "with --data" below [default: the shipped
    /// fashion10]
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<PathBuf>,
    /// Network: wavelet convolutions, or the plain ConvNeXt to compare with
    #[arg(long, value_enum)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arch: Option<Arch>,
    /// Depths and widths by name
    #[arg(long, value_enum)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<Size>,
    /// Blocks of each stage, for example 1,1,2,1 [default: the size's]
    #[arg(long, value_name = "A,B,C,D", value_parser = four)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub depths: Option<[usize; 4]>,
    /// Channels of each stage [default: the size's]
    #[arg(long, value_name = "A,B,C,D", value_parser = four)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dims: Option<[usize; 4]>,
    /// Kernel size of each stage's depthwise convolutions: those of all wavelet levels, or with convnext the plain
    /// ones [default: 5, with convnext 7]
    #[arg(long, value_name = "A,B,C,D", value_parser = four)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel_sizes: Option<[usize; 4]>,
    /// Wavelet levels of each stage; not for convnext [default: the size's]
    #[arg(long, value_name = "A,B,C,D", value_parser = four)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub levels: Option<[usize; 4]>,
    /// Initial layer scale
    #[arg(long, value_name = "X")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub layer_scale: Option<f64>,
    /// Stochastic depth: probability to skip the last block
    #[arg(long, value_name = "P")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drop_path: Option<f64>,
    /// Dropout before the classifier
    #[arg(long, value_name = "P")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dropout: Option<f64>,
    /// Side of the model's input in pixels
    #[arg(long, value_name = "PIXELS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input_size: Option<u32>,
    /// Share of the area that a random crop covers, smallest and largest
    #[arg(long, value_name = "MIN,MAX", value_parser = two)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub crop_scale: Option<[f64; 2]>,
    /// Width over height of a random crop, smallest and largest
    #[arg(long, value_name = "MIN,MAX", value_parser = two)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub crop_ratio: Option<[f64; 2]>,
    /// Probability of a horizontal flip
    #[arg(long, value_name = "P")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flip: Option<f64>,
    /// Validation: share of the shorter side that the centre crop keeps
    #[arg(long, value_name = "X")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub crop_fraction: Option<f64>,
    /// RandAugment: operations drawn for each training image, of timm's fifteen; 0 for none
    #[arg(long, value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rand_augment_layers: Option<usize>,
    /// RandAugment: mean magnitude, 0 to 10, by timm's increasing rules
    #[arg(long, value_name = "X")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rand_augment_magnitude: Option<f64>,
    /// RandAugment: standard deviation of the magnitude
    #[arg(long, value_name = "X")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rand_augment_std: Option<f64>,
    /// RandAugment: probability that a drawn operation is applied
    #[arg(long, value_name = "P")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rand_augment_prob: Option<f64>,
    /// Probability that a rectangle of a training image is erased by noise
    #[arg(long, value_name = "P")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub random_erasing: Option<f64>,
    /// Mixup of the images of a batch, with shares drawn from Beta(X, X); 0 for none
    #[arg(long, value_name = "X")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mixup: Option<f64>,
    /// CutMix of the images of a batch, with shares drawn from Beta(X, X); 0 for none
    #[arg(long, value_name = "X")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cutmix: Option<f64>,
    /// Probability that a batch is mixed, if --mixup or --cutmix is on
    #[arg(long, value_name = "P")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mixup_prob: Option<f64>,
    /// Probability of CutMix rather than mixup, if both are on
    #[arg(long, value_name = "P")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mixup_switch_prob: Option<f64>,
    /// Passes over the training images
    #[arg(long, value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub epochs: Option<usize>,
    /// Images that go through the model at once
    #[arg(long, value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batch_size: Option<usize>,
    /// Batches whose gradients are averaged for one update
    #[arg(long, value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accumulate: Option<usize>,
    /// Highest learning rate
    #[arg(long, value_name = "X")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lr: Option<f64>,
    /// Learning rate at the end of the cosine
    #[arg(long, value_name = "X")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_lr: Option<f64>,
    /// Epochs of linear warm-up (counted in updates; may be a fraction; unless given, at most a quarter of the epochs)
    #[arg(long, value_name = "X")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warmup_epochs: Option<f64>,
    /// AdamW's weight decay, of weights only: not of biases, norms and scales
    #[arg(long, value_name = "X")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight_decay: Option<f64>,
    /// Largest norm of an update's gradient over all parameters; 0 for any
    #[arg(long, value_name = "X")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clip_grad: Option<f64>,
    /// Average the weights over the updates, each weighing so much less than the next, and validate, predict and export with
    /// the average; 0 for no average
    #[arg(long, value_name = "X")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ema_decay: Option<f64>,
    /// Label smoothing
    #[arg(long, value_name = "X")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label_smoothing: Option<f64>,
    /// Floating-point type that the model computes in while it is trained; weights, gradients of updates and losses stay f32
    #[arg(long, value_enum)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dtype: Option<ForwardDtype>,
    /// Seed of everything random
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(..=i64::MAX as u64))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// Threads that decode images; 0 means one for each CPU
    #[arg(long, value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workers: Option<usize>,
    /// Checkpoints to keep, apart from the best
    #[arg(long, value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep: Option<usize>,
    /// Where to compute
    #[arg(long, value_enum)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backend: Option<BackendKind>,
}

impl ConfigLayer {
    /// Reads a layer from a TOML file.
    ///
    /// # Errors
    ///
    /// [`ConfigError::Read`] or [`ConfigError::Parse`], which names the file and the line.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let text = fs::read_to_string(path)
            .map_err(|source| ConfigError::Read { path: path.to_path_buf(), source })?;
        toml::from_str(&text)
            .map_err(|source| ConfigError::Parse { path: path.to_path_buf(), source: Box::new(source) })
    }

    /// Fails if a file cannot hold a path or an integer.
    fn fits_toml(&self) -> Result<(), ConfigError> {
        if let Some(data) = &self.data {
            check_utf8(data)?;
        }
        Table::try_from(self).map(|_| ()).map_err(|_| ConfigError::TooLarge)
    }

    /// Fails if this layer has a key for a part that is off in `config`.
    fn used_in(&self, config: &TrainConfig) -> Result<(), ConfigError> {
        let augmented = config.rand_augment_layers > 0;
        let mixed = config.mixup > 0.0 || config.cutmix > 0.0;
        let both = config.mixup > 0.0 && config.cutmix > 0.0;
        for (given, used, flag, needed) in [
            (
                self.rand_augment_magnitude.is_some(),
                augmented,
                "rand-augment-magnitude",
                "--rand-augment-layers",
            ),
            (self.rand_augment_std.is_some(), augmented, "rand-augment-std", "--rand-augment-layers"),
            (self.rand_augment_prob.is_some(), augmented, "rand-augment-prob", "--rand-augment-layers"),
            (self.mixup_prob.is_some(), mixed, "mixup-prob", "--mixup or --cutmix"),
            (self.mixup_switch_prob.is_some(), both, "mixup-switch-prob", "both --mixup and --cutmix"),
        ] {
            if given && !used {
                return Err(ConfigError::Unused { flag, needed });
            }
        }
        Ok(())
    }

    /// This layer on top of `below`.
    pub fn over(self, mut below: Self) -> Self {
        // The shape that a file gives in detail belongs to the size that it names, and kernels and levels to the network.
        if self.size.is_some() {
            below.depths = None;
            below.dims = None;
        }
        if self.size.is_some() || self.arch.is_some() {
            below.kernel_sizes = None;
            below.levels = None;
        }
        let mut table = table(&below);
        table.extend(self::table(&self));
        Value::Table(table).try_into().expect("the union of two layers is a layer")
    }
}

/// The configuration of a run. `None` for the shape of the model means that of [`TrainConfig::size`].
///
/// The keys are explained at the flags of the same names: `imagenet train --help`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs, reason = "the fields are documented where they are flags, in ConfigLayer")]
pub struct TrainConfig {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<PathBuf>,
    pub arch: Arch,
    pub size: Size,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub depths: Option<[usize; 4]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dims: Option<[usize; 4]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel_sizes: Option<[usize; 4]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub levels: Option<[usize; 4]>,
    pub layer_scale: f64,
    pub drop_path: f64,
    pub dropout: f64,
    pub input_size: u32,
    pub crop_scale: [f64; 2],
    pub crop_ratio: [f64; 2],
    pub flip: f64,
    pub crop_fraction: f64,
    pub rand_augment_layers: usize,
    pub rand_augment_magnitude: f64,
    pub rand_augment_std: f64,
    pub rand_augment_prob: f64,
    pub random_erasing: f64,
    pub mixup: f64,
    pub cutmix: f64,
    pub mixup_prob: f64,
    pub mixup_switch_prob: f64,
    pub epochs: usize,
    pub batch_size: usize,
    pub accumulate: usize,
    pub lr: f64,
    pub min_lr: f64,
    pub warmup_epochs: f64,
    pub weight_decay: f64,
    pub clip_grad: f64,
    pub ema_decay: f64,
    pub label_smoothing: f64,
    pub dtype: ForwardDtype,
    pub seed: u64,
    pub workers: usize,
    pub keep: usize,
    pub backend: BackendKind,
}

impl TrainConfig {
    /// Defaults for the shipped pictures: a small model that two CPU cores train in minutes. No flips, as the shoes all point
    /// the same way.
    pub fn for_shipped_images() -> Self {
        Self {
            size: Size::Micro,
            layer_scale: 1.0,
            drop_path: 0.0,
            input_size: 32,
            crop_scale: [0.8, 1.0],
            flip: 0.0,
            crop_fraction: 1.0,
            epochs: 16,
            batch_size: 32,
            lr: 3e-3,
            warmup_epochs: 2.0,
            ..Self::for_a_folder()
        }
    }

    /// Defaults for a user's folder of photographs: the tiny model at 224 pixels, which asks for a GPU.
    pub fn for_a_folder() -> Self {
        Self {
            data: None,
            arch: Arch::Wtconvnext,
            size: Size::Tiny,
            depths: None,
            dims: None,
            kernel_sizes: None,
            levels: None,
            layer_scale: 1e-6,
            drop_path: 0.1,
            dropout: 0.0,
            input_size: 224,
            crop_scale: [0.08, 1.0],
            crop_ratio: [3.0 / 4.0, 4.0 / 3.0],
            flip: 0.5,
            crop_fraction: 0.875,
            rand_augment_layers: 0,
            rand_augment_magnitude: 9.0,
            rand_augment_std: 0.5,
            rand_augment_prob: 0.5,
            random_erasing: 0.0,
            mixup: 0.0,
            cutmix: 0.0,
            mixup_prob: 1.0,
            mixup_switch_prob: 0.5,
            epochs: 100,
            batch_size: 64,
            accumulate: 1,
            lr: 5e-4,
            min_lr: 1e-6,
            warmup_epochs: 5.0,
            weight_decay: 0.05,
            clip_grad: 0.0,
            ema_decay: 0.0,
            label_smoothing: 0.1,
            dtype: ForwardDtype::F32,
            seed: 0,
            workers: 0,
            keep: 2,
            backend: BackendKind::default(),
        }
    }

    /// Defaults below, `layer` on top, checked.
    ///
    /// # Errors
    ///
    /// [`ConfigError::Invalid`] for the first value that no run can use.
    pub fn from_layer(layer: ConfigLayer) -> Result<Self, ConfigError> {
        Self::with_preset(None, layer)
    }

    /// Defaults below, then `preset`, `layer` on top, checked.
    ///
    /// # Errors
    ///
    /// [`ConfigError::Invalid`] for the first value that no run can use.
    pub fn with_preset(preset: Option<Preset>, layer: ConfigLayer) -> Result<Self, ConfigError> {
        let defaults = if layer.data.is_some() { Self::for_a_folder() } else { Self::for_shipped_images() };
        let warmup_given = layer.warmup_epochs.is_some();
        let layer = match preset {
            Some(preset) => layer.over(preset.layer()),
            None => layer,
        };
        let mut table = table(&defaults);
        table.extend(self::table(&layer));
        let mut config: Self =
            Value::Table(table).try_into().expect("a layer has the types of a configuration");
        if !warmup_given {
            // A short run is not to spend itself on a warm-up that nobody asked for.
            config.warmup_epochs = config.warmup_epochs.min(config.epochs as f64 / 4.0);
        }
        config.validate()?;
        Ok(config)
    }

    /// The stored configuration of a run that is to be resumed, with what `layer` may change.
    ///
    /// # Errors
    ///
    /// [`ConfigError::Changed`] if `layer` has another value for a key that the run depends on.
    pub fn resume(stored: Self, layer: &ConfigLayer) -> Result<Self, ConfigError> {
        let mut table = table(&stored);
        for (key, given) in self::table(layer) {
            if !FREE_AT_RESUME.contains(&key.as_str()) && table.get(&key) != Some(&given) {
                let stored = table.get(&key).map_or_else(|| "the default".to_string(), ToString::to_string);
                let given = given.to_string();
                return Err(match key.as_str() {
                    "epochs" => ConfigError::Epochs { stored, given },
                    _ => ConfigError::Changed { key, stored, given },
                });
            }
            table.insert(key, given);
        }
        let config: Self = Value::Table(table).try_into().expect("a layer has the types of a configuration");
        config.validate()?;
        Ok(config)
    }

    /// Reads a configuration that [`Self::to_toml`] has written, now or in an older version.
    ///
    /// # Errors
    ///
    /// [`ConfigError::Read`] or [`ConfigError::Parse`].
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let text = fs::read_to_string(path)
            .map_err(|source| ConfigError::Read { path: path.to_path_buf(), source })?;
        let parse_error = |source| ConfigError::Parse { path: path.to_path_buf(), source: Box::new(source) };
        let mut stored: Table = toml::from_str(&text).map_err(parse_error)?;
        let off = table(&Self::for_a_folder());
        for key in ADDED_LATER {
            stored.entry(key).or_insert_with(|| off[key].clone());
        }
        Value::Table(stored).try_into().map_err(parse_error)
    }

    /// The data set: the user's or the shipped one.
    ///
    /// # Errors
    ///
    /// [`FolderError`] if the shipped one is not where it should be.
    pub fn data_folder(&self) -> Result<PathBuf, FolderError> {
        self.data.clone().map_or_else(shipped, Ok)
    }

    /// How training images become the model's input.
    pub fn augmentation(&self) -> Transform {
        Transform::Train {
            input_size: self.input_size,
            crop_scale: self.crop_scale,
            crop_ratio: self.crop_ratio,
            flip: self.flip,
            rand_augment: self.rand_augment(),
            erasing: self.random_erasing,
        }
    }

    /// RandAugment, if it is on.
    pub fn rand_augment(&self) -> Option<RandAugment> {
        (self.rand_augment_layers > 0).then_some(RandAugment {
            layers: self.rand_augment_layers,
            magnitude: self.rand_augment_magnitude,
            std: self.rand_augment_std,
            prob: self.rand_augment_prob,
        })
    }

    /// How the images of a batch are mixed.
    pub fn mix(&self) -> Mix {
        Mix {
            mixup: self.mixup,
            cutmix: self.cutmix,
            prob: self.mixup_prob,
            switch_prob: self.mixup_switch_prob,
        }
    }

    /// The configuration as TOML.
    pub fn to_toml(&self) -> String {
        toml::to_string(self).expect("numbers, names and paths are TOML")
    }

    /// Checks every value that needs neither data nor device.
    fn validate(&self) -> Result<(), ConfigError> {
        fn check(
            ok: bool,
            key: &'static str,
            value: &dyn std::fmt::Debug,
            reason: &'static str,
        ) -> Result<(), ConfigError> {
            if ok { Ok(()) } else { Err(ConfigError::Invalid { key, value: format!("{value:?}"), reason }) }
        }
        let probability = |x: f64| (0.0..=1.0).contains(&x);
        let below_one = |x: f64| (0.0..1.0).contains(&x);
        let positive = |x: f64| x > 0.0 && x.is_finite();
        let not_negative = |x: f64| x >= 0.0 && x.is_finite();
        let range = |[min, max]: [f64; 2], top: f64| 0.0 < min && min <= max && max <= top;

        check(self.epochs >= 1, "epochs", &self.epochs, "must be at least 1")?;
        check(self.batch_size >= 1, "batch_size", &self.batch_size, "must be at least 1")?;
        check(
            self.batch_size >= 2 || (self.mixup == 0.0 && self.cutmix == 0.0),
            "batch_size",
            &self.batch_size,
            "must be at least 2 with mixup or cutmix, which mix images of a batch",
        )?;
        check(self.accumulate >= 1, "accumulate", &self.accumulate, "must be at least 1")?;
        check(self.keep >= 1, "keep", &self.keep, "must be at least 1")?;
        check(self.workers <= MAX_WORKERS, "workers", &self.workers, "must be at most 256")?;
        check(
            INPUT_SIZES.contains(&self.input_size),
            "input_size",
            &self.input_size,
            "must be 32 to 4096: the network halves its input five times",
        )?;
        let most =
            |value: Option<[usize; 4]>, bound| value.is_none_or(|value| value.iter().all(|x| *x <= bound));
        let list = |value: Option<[usize; 4]>| value.unwrap_or_default();
        check(most(self.depths, 256), "depths", &list(self.depths), "each must be at most 256")?;
        check(most(self.dims, 16384), "dims", &list(self.dims), "each must be at most 16384")?;
        check(
            most(self.kernel_sizes, 255),
            "kernel_sizes",
            &list(self.kernel_sizes),
            "each must be at most 255",
        )?;
        if let Some(levels) = self.levels {
            check(
                self.arch == Arch::Wtconvnext,
                "levels",
                &levels,
                "the network convnext has no wavelet levels; leave --levels out, or train --arch wtconvnext",
            )?;
            if levels.iter().any(|levels| *levels > MAX_LEVELS) {
                let (sides, useful) = (map_sides(self.input_size), largest_useful_levels(self.input_size));
                return Err(ConfigError::Levels { levels, input_size: self.input_size, sides, useful });
            }
        }
        check(positive(self.lr), "lr", &self.lr, "must be above 0 and finite")?;
        check(
            not_negative(self.min_lr) && self.min_lr <= self.lr,
            "min_lr",
            &self.min_lr,
            "must be at least 0 and at most lr",
        )?;
        check(
            not_negative(self.warmup_epochs) && self.warmup_epochs <= self.epochs as f64,
            "warmup_epochs",
            &self.warmup_epochs,
            "must be at least 0 and at most epochs",
        )?;
        check(not_negative(self.clip_grad), "clip_grad", &self.clip_grad, "must be at least 0")?;
        check(below_one(self.ema_decay), "ema_decay", &self.ema_decay, "must be at least 0 and below 1")?;
        check(
            self.rand_augment_layers <= MAX_RAND_AUGMENT_LAYERS,
            "rand_augment_layers",
            &self.rand_augment_layers,
            "must be at most 15",
        )?;
        check(
            (0.0..=MAX_MAGNITUDE).contains(&self.rand_augment_magnitude),
            "rand_augment_magnitude",
            &self.rand_augment_magnitude,
            "must be 0 to 10",
        )?;
        check(
            not_negative(self.rand_augment_std),
            "rand_augment_std",
            &self.rand_augment_std,
            "must be at least 0",
        )?;
        for (key, value) in [
            ("rand_augment_prob", self.rand_augment_prob),
            ("random_erasing", self.random_erasing),
            ("mixup_prob", self.mixup_prob),
            ("mixup_switch_prob", self.mixup_switch_prob),
        ] {
            check(probability(value), key, &value, "must be 0 to 1")?;
        }
        for (key, value) in [("mixup", self.mixup), ("cutmix", self.cutmix)] {
            let ok = value == 0.0 || (0.01..=100.0).contains(&value);
            check(ok, key, &value, "must be 0, or 0.01 to 100")?;
        }
        check(not_negative(self.weight_decay), "weight_decay", &self.weight_decay, "must be at least 0")?;
        check(
            below_one(self.label_smoothing),
            "label_smoothing",
            &self.label_smoothing,
            "must be at least 0 and below 1",
        )?;
        check(below_one(self.drop_path), "drop_path", &self.drop_path, "must be at least 0 and below 1")?;
        check(below_one(self.dropout), "dropout", &self.dropout, "must be at least 0 and below 1")?;
        check(not_negative(self.layer_scale), "layer_scale", &self.layer_scale, "must be at least 0")?;
        check(probability(self.flip), "flip", &self.flip, "must be 0 to 1")?;
        check(range(self.crop_scale, 1.0), "crop_scale", &self.crop_scale, "must be 0 < MIN <= MAX <= 1")?;
        check(range(self.crop_ratio, f64::MAX), "crop_ratio", &self.crop_ratio, "must be 0 < MIN <= MAX")?;
        check(
            range([self.crop_fraction, 1.0], 1.0),
            "crop_fraction",
            &self.crop_fraction,
            "must be above 0 and at most 1",
        )
    }
}

fn table(layer: &impl Serialize) -> Table {
    Table::try_from(layer).expect("numbers, names and paths are TOML")
}

/// Adds the defaults to the help of `train`: for each flag the one without --data and, where it differs, the one with it.
pub fn with_default_help(command: Command) -> Command {
    let folder = table(&TrainConfig::for_a_folder());
    let command = command.after_help(
        "Without --data, the defaults are those for the shipped pictures: a small network at 32 pixels, for a CPU. With --data DIR, \
         all of them are those for photographs: WTConvNeXt-T at 224 pixels, for a GPU. Where the two differ, both are shown.",
    );
    table(&TrainConfig::for_shipped_images()).into_iter().fold(command, |command, (key, shipped)| {
        let (shipped, folder) = (flag_value(&shipped), flag_value(&folder[&key]));
        let defaults = if shipped == folder {
            format!("[default: {shipped}]")
        } else {
            format!("[default: {shipped}; with --data: {folder}]")
        };
        command.mut_arg(key, |flag| {
            let help = flag.get_help().map(ToString::to_string).unwrap_or_default();
            flag.help(format!("{help} {defaults}"))
        })
    })
}

/// A value as it is typed after its flag.
fn flag_value(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(values) => values.iter().map(flag_value).collect::<Vec<_>>().join(","),
        // Enough digits to type; 4/3 has no end.
        Value::Float(number) => ((number * 1e6).round() / 1e6).to_string(),
        other => other.to_string(),
    }
}

/// Four numbers between commas.
fn four(text: &str) -> Result<[usize; 4], String> {
    list(text)
}

/// Two numbers between commas.
fn two(text: &str) -> Result<[f64; 2], String> {
    list(text)
}

fn list<T: std::str::FromStr, const N: usize>(text: &str) -> Result<[T; N], String> {
    let values: Option<Vec<T>> = text.split(',').map(|number| number.trim().parse().ok()).collect();
    values
        .and_then(|values| values.try_into().ok())
        .ok_or_else(|| format!("expected {N} numbers with commas between them"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{CommandFactory, Parser};

    #[derive(Parser)]
    struct TrainConfigFlags {
        #[command(flatten)]
        _layer: ConfigLayer,
    }

    fn layer(text: &str) -> ConfigLayer {
        toml::from_str(text).unwrap()
    }

    fn written(text: &str) -> (tempfile::TempDir, PathBuf) {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("run.toml");
        fs::write(&path, text).unwrap();
        (root, path)
    }

    #[test]
    fn layers_add_up() {
        let file = layer("epochs = 7\nlr = 0.1\nseed = 3");
        let flags = layer("lr = 0.2");
        let config = TrainConfig::from_layer(flags.over(file)).unwrap();
        assert_eq!((config.epochs, config.lr, config.seed), (7, 0.2, 3));
        let defaults = TrainConfig::for_shipped_images();
        assert_eq!((config.size, config.input_size), (defaults.size, defaults.input_size));
        let folder = TrainConfig::from_layer(layer("data = 'x'")).unwrap();
        assert_eq!((folder.size, folder.input_size), (Size::Tiny, 224));
    }

    #[test]
    fn a_preset_is_above_the_defaults_and_below_the_file() {
        let (_root, path) = written("mixup = 0.3\nlr = 0.002\nwarmup_epochs = 9.0");
        let args =
            ConfigArgs { preset: Some(Preset::Imagenet300), config: Some(path), layer: layer("lr = 0.001") };
        let config = args.resolve().unwrap();
        // Flag, file, file, preset, preset, default.
        assert_eq!((config.lr, config.mixup, config.warmup_epochs), (0.001, 0.3, 9.0));
        assert_eq!((config.cutmix, config.epochs, config.seed), (1.0, 300, 0));
        // A short run shortens the warm-up of the preset like that of the defaults, and is resumed so.
        let args = ConfigArgs { config: None, layer: layer("epochs = 8"), ..args };
        let config = args.resolve().unwrap();
        assert_eq!(config.warmup_epochs, 2.0);
        assert_eq!(args.resume(config.clone()).unwrap(), config);
        let other = ConfigArgs { preset: Some(Preset::ShippedRecipe), ..args };
        assert!(matches!(other.resume(config).unwrap_err(), ConfigError::Changed { .. }));
    }

    #[test]
    fn the_configuration_of_an_older_run_is_read() {
        let mut stored = table(&TrainConfig::for_shipped_images());
        for key in ADDED_LATER {
            stored.remove(key).unwrap();
        }
        let (_root, path) = written(&stored.to_string());
        assert_eq!(TrainConfig::read(&path).unwrap(), TrainConfig::for_shipped_images());
        // Anything else that is missing is an error.
        stored.remove("seed").unwrap();
        let (_root, path) = written(&stored.to_string());
        assert!(TrainConfig::read(&path).unwrap_err().to_string().contains("seed"));
    }

    #[test]
    fn the_default_warmup_is_at_most_a_quarter_of_the_run() {
        let warmup = |text: &str| TrainConfig::from_layer(layer(text)).unwrap().warmup_epochs;
        let default = TrainConfig::for_shipped_images().warmup_epochs;
        assert_eq!(warmup("epochs = 100"), default);
        assert_eq!(warmup("epochs = 2"), 0.5);
        assert_eq!(warmup("epochs = 2\nwarmup_epochs = 2"), 2.0);
    }

    #[test]
    fn a_size_replaces_the_shape_of_the_layers_below() {
        let file = layer("size = 'micro'\ndims = [8, 8, 8, 8]");
        let both = layer("size = 'small'").over(file.clone());
        assert_eq!((both.size, both.dims), (Some(Size::Small), None));
        let both = layer("epochs = 2").over(file);
        assert_eq!((both.size, both.dims), (Some(Size::Micro), Some([8; 4])));
    }

    #[test]
    fn every_configuration_is_read_back_unchanged() {
        let shaped =
            layer("data = '/x'\ndepths = [1, 2, 3, 4]\nlevels = [3, 2, 1, 1]\nlr = 1e-7\nmin_lr = 0");
        let preset = |preset| TrainConfig::with_preset(Some(preset), ConfigLayer::default()).unwrap();
        for config in [
            TrainConfig::for_shipped_images(),
            TrainConfig::for_a_folder(),
            TrainConfig::from_layer(shaped).unwrap(),
            preset(Preset::Imagenet300),
            preset(Preset::ShippedRecipe),
        ] {
            let (_root, path) = written(&config.to_toml());
            assert_eq!(TrainConfig::read(&path).unwrap(), config);
            // The same file is a layer that sets everything.
            assert_eq!(TrainConfig::from_layer(ConfigLayer::read(&path).unwrap()).unwrap(), config);
        }
    }

    #[test]
    fn a_bad_file_is_named_with_the_line() {
        let message = |text: &str| {
            let (_root, path) = written(text);
            ConfigLayer::read(&path).unwrap_err().to_string()
        };
        let unknown = message("epochs = 3\nlearning_rate = 1.0\n");
        assert!(unknown.contains("run.toml") && unknown.contains("line 2"), "{unknown}");
        assert!(unknown.contains("learning_rate"), "{unknown}");
        assert!(message("epochs = 'many'").contains("line 1"));
        assert!(message("epochs = ").contains("run.toml"));
        assert!(message("depths = [1, 2]").contains("run.toml"));
        let absent = ConfigLayer::read(Path::new("/no/run.toml")).unwrap_err();
        assert!(matches!(absent, ConfigError::Read { .. }) && absent.to_string().starts_with("/no/run.toml"));
    }

    #[test]
    fn values_no_run_can_use_are_refused() {
        for (text, expected) in [
            ("epochs = 0", "epochs = 0: must be at least 1"),
            ("batch_size = 0", "batch_size = 0: must be at least 1"),
            ("workers = 257", "workers = 257: must be at most 256"),
            ("depths = [1, 1, 257, 1]", "depths = [1, 1, 257, 1]: each must be at most 256"),
            ("dims = [16385, 1, 1, 1]", "dims = [16385, 1, 1, 1]: each must be at most 16384"),
            ("kernel_sizes = [5, 5, 5, 256]", "kernel_sizes = [5, 5, 5, 256]: each must be at most 255"),
            ("accumulate = 0", "accumulate = 0: must be at least 1"),
            ("keep = 0", "keep = 0: must be at least 1"),
            ("input_size = 16", "input_size = 16: must be 32 to 4096"),
            ("lr = -0.1", "lr = -0.1: must be above 0"),
            ("lr = nan", "lr = NaN: must be above 0"),
            ("lr = inf", "lr = inf: must be above 0 and finite"),
            ("lr = 0.1\nmin_lr = 0.2", "min_lr = 0.2: must be at least 0 and at most lr"),
            ("epochs = 3\nwarmup_epochs = 4", "warmup_epochs = 4.0: must be at least 0 and at most epochs"),
            ("weight_decay = -1", "weight_decay = -1.0: must be at least 0"),
            ("label_smoothing = 1", "label_smoothing = 1.0: must be at least 0 and below 1"),
            ("drop_path = 1", "drop_path = 1.0: must be at least 0 and below 1"),
            ("dropout = 2", "dropout = 2.0: must be at least 0 and below 1"),
            ("layer_scale = inf", "layer_scale = inf: must be at least 0"),
            ("flip = 1.5", "flip = 1.5: must be 0 to 1"),
            ("crop_scale = [0.5, 0.4]", "crop_scale = [0.5, 0.4]: must be 0 < MIN <= MAX <= 1"),
            ("crop_ratio = [0, 1]", "crop_ratio = [0.0, 1.0]: must be 0 < MIN <= MAX"),
            ("crop_fraction = 0", "crop_fraction = 0.0: must be above 0 and at most 1"),
            ("clip_grad = -1", "clip_grad = -1.0: must be at least 0"),
            ("ema_decay = 1", "ema_decay = 1.0: must be at least 0 and below 1"),
            ("rand_augment_layers = 16", "rand_augment_layers = 16: must be at most 15"),
            ("rand_augment_magnitude = 11", "rand_augment_magnitude = 11.0: must be 0 to 10"),
            ("rand_augment_std = inf", "rand_augment_std = inf: must be at least 0"),
            ("rand_augment_prob = 2", "rand_augment_prob = 2.0: must be 0 to 1"),
            ("random_erasing = -1", "random_erasing = -1.0: must be 0 to 1"),
            ("mixup = 0.001", "mixup = 0.001: must be 0, or 0.01 to 100"),
            ("cutmix = nan", "cutmix = NaN: must be 0, or 0.01 to 100"),
            ("mixup_prob = 2", "mixup_prob = 2.0: must be 0 to 1"),
            ("mixup_switch_prob = 2", "mixup_switch_prob = 2.0: must be 0 to 1"),
        ] {
            let message = TrainConfig::from_layer(layer(text)).unwrap_err().to_string();
            assert!(message.starts_with(expected), "{text}: {message}");
        }
    }

    #[test]
    fn a_flag_that_does_nothing_is_refused_but_not_a_key_of_a_file() {
        let flags = |text: &str| ConfigArgs { layer: layer(text), ..ConfigArgs::default() };
        for (text, part, flag) in [
            ("rand_augment_magnitude = 5", "rand_augment_layers = 1", "--rand-augment-magnitude"),
            ("rand_augment_std = 0", "rand_augment_layers = 1", "--rand-augment-std"),
            ("rand_augment_prob = 1", "rand_augment_layers = 1", "--rand-augment-prob"),
            ("mixup_prob = 0.5", "mixup = 0.8", "--mixup-prob"),
            ("mixup_prob = 0.5", "cutmix = 1", "--mixup-prob"),
            ("mixup_switch_prob = 0.5", "mixup = 0.8\ncutmix = 1", "--mixup-switch-prob"),
        ] {
            let error = flags(text).resolve().unwrap_err().to_string();
            assert!(error.starts_with(&format!("{flag} does nothing without ")), "{text}: {error}");
            flags(&format!("{text}\n{part}")).resolve().unwrap();
            // The part may be on in the file, and the key may stand there by itself.
            let (_root, path) = written(part);
            ConfigArgs { config: Some(path), ..flags(text) }.resolve().unwrap();
            let (_root, path) = written(text);
            ConfigArgs { config: Some(path), ..ConfigArgs::default() }.resolve().unwrap();
        }
        // One of two is not both.
        for part in ["mixup = 0.8", "cutmix = 1"] {
            flags(&format!("mixup_switch_prob = 0.5\n{part}")).resolve().unwrap_err();
        }
    }

    #[test]
    fn a_resumed_run_keeps_what_it_depends_on() {
        let stored = TrainConfig::from_layer(layer("epochs = 7\nlr = 0.5\nworkers = 1")).unwrap();
        let same = TrainConfig::resume(stored.clone(), &layer("lr = 0.5\nworkers = 3")).unwrap();
        assert_eq!(same, TrainConfig { workers: 3, ..stored.clone() });
        let changed = TrainConfig::resume(stored.clone(), &layer("arch = 'convnext'")).unwrap_err();
        assert!(
            changed
                .to_string()
                .starts_with("arch is \"wtconvnext\" in this run and cannot become \"convnext\""),
            "{changed}"
        );
        let new = TrainConfig::resume(stored, &layer("depths = [1, 1, 1, 1]")).unwrap_err().to_string();
        assert!(new.starts_with("depths is the default in this run"), "{new}");
    }

    #[test]
    fn the_readme_has_the_defaults() {
        let readme = include_str!("../README.md");
        let folder = table(&TrainConfig::for_a_folder());
        for (key, shipped) in table(&TrainConfig::for_shipped_images()) {
            let flag = key.replace('_', "-");
            let row = format!("| `--{flag}` | {} | {} |", flag_value(&shipped), flag_value(&folder[&key]));
            assert!(readme.contains(&row), "README.md has no row {row}");
        }
    }

    #[test]
    fn the_help_has_both_defaults() {
        let command = with_default_help(TrainConfigFlags::command());
        let help = |flag: &str| {
            let flag = command.get_arguments().find(|argument| argument.get_id() == flag).unwrap();
            flag.get_help().unwrap().to_string()
        };
        assert!(help("epochs").ends_with("[default: 16; with --data: 100]"), "{}", help("epochs"));
        assert!(help("size").ends_with("[default: micro; with --data: tiny]"), "{}", help("size"));
        assert!(
            help("crop_scale").ends_with("[default: 0.8,1; with --data: 0.08,1]"),
            "{}",
            help("crop_scale")
        );
        assert!(help("seed").ends_with("[default: 0]"), "{}", help("seed"));
        // Whatever has no fixed value says so by itself.
        for flag in command.get_arguments() {
            assert_eq!(help(flag.get_id().as_str()).matches("[default: ").count(), 1, "{flag}");
        }
    }

    #[test]
    fn levels_without_wavelets_are_refused() {
        let message = |text: &str| TrainConfig::from_layer(layer(text)).unwrap_err().to_string();
        assert_eq!(
            message("arch = 'convnext'\nlevels = [2, 1, 1, 1]"),
            "levels = [2, 1, 1, 1]: the network convnext has no wavelet levels; leave --levels out, or train --arch wtconvnext"
        );
        TrainConfig::from_layer(layer("arch = 'convnext'")).unwrap();
        // Another network from the file of a run: its levels and kernels are not meant for it, its depths and widths are.
        let file = layer(
            "arch = 'wtconvnext'\nlevels = [2, 1, 1, 1]\nkernel_sizes = [4, 4, 4, 4]\ndims = [8, 8, 8, 8]",
        );
        let plain = TrainConfig::from_layer(layer("arch = 'convnext'").over(file)).unwrap();
        assert_eq!((plain.levels, plain.kernel_sizes, plain.dims), (None, None, Some([8; 4])));
    }

    #[test]
    fn absurd_levels_are_refused() {
        let text = |levels: usize| format!("data = 'x'\nlevels = [5, 4, {levels}, 2]");
        assert_eq!(
            TrainConfig::from_layer(layer(&text(40))).unwrap_err().to_string(),
            "levels = [5, 4, 40, 2]: must be at most 16; at input_size = 224 the stages' maps are [56, 28, 14, 7] pixels wide, \
             and levels beyond [6, 5, 4, 3] add nothing"
        );
        TrainConfig::from_layer(layer(&text(MAX_LEVELS + 1))).unwrap_err();
        TrainConfig::from_layer(layer(&text(MAX_LEVELS))).unwrap();
    }

    #[test]
    fn another_number_of_epochs_is_another_run() {
        let stored = TrainConfig::from_layer(layer("epochs = 12")).unwrap();
        for given in [11, 30] {
            let error = TrainConfig::resume(stored.clone(), &layer(&format!("epochs = {given}")))
                .unwrap_err()
                .to_string();
            let begin = format!(
                "epochs is 12 in this run and cannot become {given} when it is resumed: the learning rate"
            );
            assert!(error.starts_with(&begin), "{error}");
            assert!(error.ends_with(&format!("--epochs {given} --out DIR")), "{error}");
        }
        TrainConfig::resume(stored, &layer("epochs = 12")).unwrap();
    }

    #[test]
    fn lists_of_numbers() {
        assert_eq!(four("1, 2,3,4"), Ok([1, 2, 3, 4]));
        assert_eq!(two("0.5,1"), Ok([0.5, 1.0]));
        for text in ["1,2,3", "1,2,3,4,5", "1,x,3,4", "", "1,-2,3,4"] {
            assert_eq!(four(text), Err("expected 4 numbers with commas between them".to_string()));
        }
    }
}
