use burn::config::Config;
use burn::module::{Content, DisplaySettings, Initializer, Module, ModuleDisplay, Param};
use burn::nn::conv::Conv2d;
use burn::tensor::Tensor;
use burn::tensor::backend::Backend;

use crate::layer::depthwise_geometry;
use crate::op::{depthwise_conv2d, problem, try_depthwise_conv2d};
use crate::{Route, RouteKind, WtConvBackend, WtConvError};

/// Configuration of a [`DepthwiseConv2d`] layer.
///
/// ```
/// use burn_wtconv::DepthwiseConv2dConfig;
///
/// let config = DepthwiseConv2dConfig::new(32, 7).with_stride(2).with_bias(false);
/// assert_eq!(config.kernel_size, 7);
/// ```
#[derive(Config, Debug, PartialEq, Eq)]
pub struct DepthwiseConv2dConfig {
    /// Channels of the input and of the output.
    pub channels: usize,
    /// Height and width of every filter. Even sizes pad as PyTorch's `padding="same"` does.
    pub kernel_size: usize,
    /// The output keeps every `stride`-th row and column.
    #[config(default = 1)]
    pub stride: usize,
    /// Whether there is a bias.
    #[config(default = true)]
    pub bias: bool,
}

/// A depthwise convolution with zero "same" padding.
///
/// ```text
/// y[b,c,i,j] = bias[c] + sum over ky,kx of weight[c,0,ky,kx] * x[b,c,i+ky-R,j+kx-R]      R = (kernel_size - 1) / 2
/// ```
///
/// The same numbers as a [`Conv2d`] with as many groups as channels, under the same parameter names and shapes; but by the
/// kernels of the wavelet convolution where the backend has them, and with a gradient of the weight that does not cost a
/// launch for each channel. Built by [`DepthwiseConv2dConfig`], or [from a `Conv2d`](Self::from_conv2d).
#[derive(Module, Debug)]
#[module(custom_display)]
pub struct DepthwiseConv2d<B: Backend> {
    /// `[channels, 1, kernel_size, kernel_size]`
    pub weight: Param<Tensor<B, 4>>,
    /// `[channels]`
    pub bias: Option<Param<Tensor<B, 1>>>,
    /// The output keeps every `stride`-th row and column.
    pub stride: usize,
}

impl DepthwiseConv2dConfig {
    /// Checks the sizes.
    ///
    /// # Errors
    ///
    /// If the channels, the kernel size or the stride are 0.
    pub fn validate(&self) -> Result<(), WtConvError> {
        WtConvError::check_sizes(self.channels, self.kernel_size, self.stride)
    }

    /// Initialises a layer as Burn and PyTorch initialise a depthwise convolution: weight and bias uniform in
    /// `+-1 / kernel_size`.
    ///
    /// # Panics
    ///
    /// Where [`try_init`](Self::try_init) returns an error, with its message.
    pub fn init<B: Backend>(&self, device: &B::Device) -> DepthwiseConv2d<B> {
        self.try_init(device).unwrap_or_else(|error| panic!("{error}"))
    }

    /// [`init`](Self::init) with an error instead of a panic.
    ///
    /// # Errors
    ///
    /// Those of [`validate`](Self::validate).
    pub fn try_init<B: Backend>(&self, device: &B::Device) -> Result<DepthwiseConv2d<B>, WtConvError> {
        self.validate()?;
        let Self { channels, kernel_size, stride, bias } = *self;
        let bound = 1.0 / kernel_size as f64;
        let uniform = Initializer::Uniform { min: -bound, max: bound };
        Ok(DepthwiseConv2d {
            weight: uniform.init([channels, 1, kernel_size, kernel_size], device),
            bias: bias.then(|| uniform.init([channels], device)),
            stride,
        })
    }
}

impl<B: Backend> DepthwiseConv2d<B> {
    /// Takes over the weight and the bias of a depthwise convolution; the output stays the same.
    ///
    /// # Errors
    ///
    /// [`WtConvError::NotDepthwise`] if `conv` is not a depthwise convolution with a square filter, one stride for
    /// both axes, dilation 1 and padding that keeps the extent at stride 1.
    pub fn from_conv2d(conv: Conv2d<B>) -> Result<Self, WtConvError> {
        let (_, stride) = depthwise_geometry(&conv)?;
        Ok(Self { weight: conv.weight, bias: conv.bias, stride })
    }

    /// Channels of the input and of the output.
    pub fn channels(&self) -> usize {
        self.weight.dims()[0]
    }

    /// Height and width of every filter.
    pub fn kernel_size(&self) -> usize {
        self.weight.dims()[2]
    }
}

impl<B: WtConvBackend> DepthwiseConv2d<B> {
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
        depthwise_conv2d(x, self.weight.val(), self.bias_value(), self.stride)
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
        try_depthwise_conv2d(x, self.weight.val(), self.bias_value(), self.stride, forced)
    }

    /// The way [`forward`](Self::forward) and its backward would go for `x`, and why.
    pub fn route(&self, x: &Tensor<B, 4>) -> Route {
        B::route(&problem(x, &self.weight.val(), self.stride), &x.device())
    }

    fn bias_value(&self) -> Option<Tensor<B, 1>> {
        self.bias.as_ref().map(Param::val)
    }
}

impl<B: Backend> ModuleDisplay for DepthwiseConv2d<B> {
    fn custom_settings(&self) -> Option<DisplaySettings> {
        DisplaySettings::new().with_new_line_after_attribute(false).optional()
    }

    fn custom_content(&self, content: Content) -> Option<Content> {
        content
            .add("channels", &self.channels())
            .add("kernel_size", &self.kernel_size())
            .add("stride", &self.stride)
            .add("bias", &self.bias.is_some())
            .optional()
    }
}
