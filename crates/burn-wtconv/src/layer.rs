use burn::config::Config;
use burn::module::{Content, DisplaySettings, Initializer, Module, ModuleDisplay, Param};
use burn::nn::PaddingConfig2d;
use burn::nn::conv::Conv2d;
use burn::tensor::backend::Backend;
use burn::tensor::{Tensor, s};

use crate::op::{problem, try_wtconv2d, wtconv2d};
use crate::{Route, RouteKind, WtConvBackend, WtConvError};

/// Scale of a wavelet filter before training; the base filter's is 1.
const INITIAL_WAVELET_SCALE: f64 = 0.1;

/// Configuration of a [`WtConv2d`] layer.
///
/// ```
/// use burn_wtconv::WtConv2dConfig;
///
/// let config = WtConv2dConfig::new(32).with_levels(3).with_stride(2).with_bias(false);
/// assert_eq!(config.kernel_size, 5);
/// ```
#[derive(Config, Debug, PartialEq, Eq)]
pub struct WtConv2dConfig {
    /// Channels of the input and of the output: the convolution is depthwise.
    pub channels: usize,
    /// Height and width of every filter. Even sizes pad as PyTorch's `padding="same"` does.
    #[config(default = 5)]
    pub kernel_size: usize,
    /// Wavelet levels; 0 is a plain scaled depthwise convolution. Never clamped to the extent of the input.
    #[config(default = 1)]
    pub levels: usize,
    /// The output keeps every `stride`-th row and column.
    #[config(default = 1)]
    pub stride: usize,
    /// Whether the base path has a bias.
    #[config(default = true)]
    pub bias: bool,
}

/// A wavelet convolution: depthwise convolutions on every subband of a Haar decomposition.
///
/// ```text
/// y = s0 * (w0 (*) x + b)  +  sum over l = 1..L, s in {LL, LH, HL, HH} of  A_l^T_s ( s_ls * ( w_ls (*) A_l_s x ) )
/// ```
///
/// (Finder et al., arXiv 2407.05848; see [`reference`](mod@crate::reference) for the terms.) Built by [`WtConv2dConfig`].
#[derive(Module, Debug)]
#[module(custom_display)]
pub struct WtConv2d<B: Backend> {
    /// `[channels, 1 + 4 * levels, kernel_size, kernel_size]`: index 0 is the base filter, `1 + 4 * (l - 1) + s` the
    /// filter of level `l` and subband `s` (LL, LH, HL, HH).
    pub filters: Param<Tensor<B, 4>>,
    /// `[channels, 1 + 4 * levels]`, one scale a filter.
    pub scales: Param<Tensor<B, 2>>,
    /// `[channels]`, added on the base path before its scale.
    pub bias: Option<Param<Tensor<B, 1>>>,
    /// The output keeps every `stride`-th row and column.
    pub stride: usize,
}

impl WtConv2dConfig {
    /// Checks the sizes.
    ///
    /// # Errors
    ///
    /// If the channels, the kernel size or the stride are 0.
    pub fn validate(&self) -> Result<(), WtConvError> {
        WtConvError::check_sizes(self.channels, self.kernel_size, self.stride)
    }

    /// Initialises a layer as the reference implementation does: filters and bias uniform in
    /// `+-1 / kernel_size` (PyTorch's default for a depthwise convolution), base scale 1, wavelet scales 0.1.
    ///
    /// # Panics
    ///
    /// Where [`try_init`](Self::try_init) returns an error, with its message.
    pub fn init<B: Backend>(&self, device: &B::Device) -> WtConv2d<B> {
        self.try_init(device).unwrap_or_else(|error| panic!("{error}"))
    }

    /// [`init`](Self::init) with an error instead of a panic.
    ///
    /// # Errors
    ///
    /// Those of [`validate`](Self::validate).
    pub fn try_init<B: Backend>(&self, device: &B::Device) -> Result<WtConv2d<B>, WtConvError> {
        self.validate()?;
        let Self { channels, kernel_size, levels, stride, bias } = *self;
        let bands = 1 + 4 * levels;
        let bound = 1.0 / kernel_size as f64;
        let uniform = Initializer::Uniform { min: -bound, max: bound };
        Ok(WtConv2d {
            filters: uniform.init([channels, bands, kernel_size, kernel_size], device),
            scales: Param::from_tensor(initial_scales(channels, bands, INITIAL_WAVELET_SCALE, device)),
            bias: bias.then(|| uniform.init([channels], device)),
            stride,
        })
    }
}

/// Base scales 1, the others `wavelet_scale`.
fn initial_scales<B: Backend>(
    channels: usize,
    bands: usize,
    wavelet_scale: f64,
    device: &B::Device,
) -> Tensor<B, 2> {
    let base = Tensor::ones([channels, 1], device);
    Tensor::full([channels, bands], wavelet_scale, device).slice_assign(s![.., 0..1], base)
}

impl<B: Backend> WtConv2d<B> {
    /// Takes over a trained depthwise convolution as the base path.
    ///
    /// The wavelet scales start at 0, so that the output is that of `conv`, and the wavelet filters as
    /// [`WtConv2dConfig::init`] leaves them, so that the scales have a gradient and fine-tuning can begin.
    ///
    /// # Errors
    ///
    /// [`WtConvError::NotDepthwise`] if `conv` is not a depthwise convolution with a square filter, one stride for
    /// both axes, dilation 1 and padding that keeps the extent at stride 1.
    pub fn from_conv2d(conv: Conv2d<B>, levels: usize) -> Result<Self, WtConvError> {
        let (kernel_size, stride) = depthwise_geometry(&conv)?;
        let channels = conv.weight.dims()[0];
        let config = WtConv2dConfig::new(channels)
            .with_kernel_size(kernel_size)
            .with_levels(levels)
            .with_stride(stride)
            .with_bias(false);
        let device = conv.weight.device();
        let fresh = config.try_init::<B>(&device)?;
        let base = conv.weight.val().cast(fresh.filters.dtype());
        let filters = fresh.filters.val().slice_assign(s![.., 0..1, .., ..], base);
        Ok(Self {
            // Detached: a parameter is a leaf of the autodiff graph.
            filters: Param::from_tensor(filters.detach()),
            scales: Param::from_tensor(initial_scales(channels, 1 + 4 * levels, 0.0, &device)),
            bias: conv.bias,
            stride,
        })
    }

    /// Channels of the input and of the output.
    pub fn channels(&self) -> usize {
        self.filters.dims()[0]
    }

    /// Height and width of every filter.
    pub fn kernel_size(&self) -> usize {
        self.filters.dims()[2]
    }

    /// Wavelet levels.
    pub fn levels(&self) -> usize {
        self.filters.dims()[1] / 4
    }

    /// Side of the square of input pixels that one output pixel depends on, borders apart:
    /// `kernel_size * 2^levels`.
    pub fn receptive_field(&self) -> usize {
        u32::try_from(self.levels())
            .ok()
            .and_then(|levels| 2usize.checked_pow(levels))
            .and_then(|cell| cell.checked_mul(self.kernel_size()))
            .unwrap_or(usize::MAX)
    }

    /// The base filter, without its scale.
    ///
    /// # Shapes
    ///
    /// - output: `[channels, kernel_size, kernel_size]`
    pub fn base_filter(&self) -> Tensor<B, 3> {
        self.filters.val().slice(s![.., 0..1, .., ..]).squeeze_dim(1)
    }

    /// The filters of level `level`, counted from 1, without their scales.
    ///
    /// # Shapes
    ///
    /// - output: `[channels, 4, kernel_size, kernel_size]`, the second axis in the order LL, LH, HL, HH
    ///
    /// # Panics
    ///
    /// If there is no such level.
    pub fn level_filters(&self, level: usize) -> Tensor<B, 4> {
        let bands = self.level_bands(level);
        self.filters.val().slice(s![.., bands, .., ..])
    }

    /// The scales of level `level`, counted from 1.
    ///
    /// # Shapes
    ///
    /// - output: `[channels, 4]`, the second axis in the order LL, LH, HL, HH
    ///
    /// # Panics
    ///
    /// If there is no such level.
    pub fn level_scales(&self, level: usize) -> Tensor<B, 2> {
        let bands = self.level_bands(level);
        self.scales.val().slice(s![.., bands])
    }

    fn level_bands(&self, level: usize) -> std::ops::Range<usize> {
        let levels = self.levels();
        assert!((1..=levels).contains(&level), "expected a level in 1..={levels}, got {level}");
        4 * level - 3..4 * level + 1
    }
}

impl<B: WtConvBackend> WtConv2d<B> {
    /// Applies the layer.
    ///
    /// # Shapes
    ///
    /// - `x`: `[batch, channels, height, width]`, any `height, width >= 1`; the batch may be empty
    /// - output: `[batch, channels, ceil(height / stride), ceil(width / stride)]`
    ///
    /// # Panics
    ///
    /// Where [`try_forward`](Self::try_forward) returns an error, with its message.
    pub fn forward(&self, x: Tensor<B, 4>) -> Tensor<B, 4> {
        wtconv2d(x, self.filters.val(), self.scales.val(), self.bias_value(), self.stride)
    }

    /// [`forward`](Self::forward) with errors instead of panics, and with a route that can be forced.
    ///
    /// # Errors
    ///
    /// If `x` has another number of channels, dtype or device than the layer or an empty plane, or if
    /// [`RouteKind::Fused`] is forced and the fused kernels do not take the call. A forced route never falls back.
    pub fn try_forward(
        &self,
        x: Tensor<B, 4>,
        forced: Option<RouteKind>,
    ) -> Result<Tensor<B, 4>, WtConvError> {
        try_wtconv2d(x, self.filters.val(), self.scales.val(), self.bias_value(), self.stride, forced)
    }

    /// The way [`forward`](Self::forward) and its backward would go for `x`, and why.
    pub fn route(&self, x: &Tensor<B, 4>) -> Route {
        B::route(&problem(x, &self.filters.val(), self.stride), &x.device())
    }

    fn bias_value(&self) -> Option<Tensor<B, 1>> {
        self.bias.as_ref().map(Param::val)
    }
}

impl<B: Backend> ModuleDisplay for WtConv2d<B> {
    fn custom_settings(&self) -> Option<DisplaySettings> {
        DisplaySettings::new().with_new_line_after_attribute(false).optional()
    }

    fn custom_content(&self, content: Content) -> Option<Content> {
        content
            .add("channels", &self.channels())
            .add("kernel_size", &self.kernel_size())
            .add("levels", &self.levels())
            .add("stride", &self.stride)
            .add("bias", &self.bias.is_some())
            .optional()
    }
}

/// Kernel size and stride of a convolution that can be the base path of a wavelet convolution.
pub(crate) fn depthwise_geometry<B: Backend>(conv: &Conv2d<B>) -> Result<(usize, usize), WtConvError> {
    let refuse = |expected, got| Err(WtConvError::NotDepthwise { expected, got });
    let [channels_out, group_channels, kernel_height, kernel_width] = conv.weight.dims();
    if group_channels != 1 || conv.groups != channels_out {
        let channels_in = group_channels * conv.groups;
        let got = format!("{channels_in} channels in, {channels_out} out, {} groups", conv.groups);
        return refuse("as many groups as input and output channels", got);
    }
    if kernel_height != kernel_width {
        return refuse("a square filter", format!("{kernel_height}x{kernel_width}"));
    }
    if conv.dilation != [1, 1] {
        return refuse("dilation [1, 1]", format!("{:?}", conv.dilation));
    }
    let [stride, stride_x] = conv.stride;
    if stride != stride_x || stride == 0 {
        return refuse("one stride for both axes", format!("{:?}", conv.stride));
    }
    let (before, after) = ((kernel_height - 1) / 2, kernel_height / 2);
    let keeps_extent = match conv.padding {
        // Burn's Same padding of a strided convolution depends on the extent of the input.
        PaddingConfig2d::Same => stride == 1,
        PaddingConfig2d::Valid => kernel_height == 1,
        PaddingConfig2d::Explicit(top, left, bottom, right) => {
            [top, left] == [before; 2] && [bottom, right] == [after; 2]
        }
    };
    if !keeps_extent {
        let got = format!("{:?} at kernel size {kernel_height} and stride {stride}", conv.padding);
        return refuse("padding of (kernel_size - 1) / 2 before and kernel_size / 2 after", got);
    }
    Ok((kernel_height, stride))
}
