use burn::tensor::backend::Backend;
use burn::tensor::{DType, Tensor};
use thiserror::Error;

/// Why a wavelet convolution cannot be built or called with the given arguments.
///
/// Every message says what was expected and what was got. All checks come before any computation.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum WtConvError {
    /// A size that has to be at least 1 is 0.
    #[error("expected {what} >= 1, got 0")]
    Zero {
        /// `channels`, `kernel_size` or `stride`.
        what: &'static str,
    },
    /// The input has another number of channels than the layer. A wavelet convolution is depthwise: it returns as
    /// many channels as it takes.
    #[error(
        "expected an input of {expected} channels, got {got} (input shape {shape:?}, [batch, channels, height, width])"
    )]
    Channels {
        /// Channels of the filters.
        expected: usize,
        /// Channels of the input.
        got: usize,
        /// Shape of the input.
        shape: [usize; 4],
    },
    /// The planes of the input have no pixel.
    #[error("expected height >= 1 and width >= 1, got {height}x{width}")]
    EmptyPlane {
        /// Height of the input.
        height: usize,
        /// Width of the input.
        width: usize,
    },
    /// The filters are not packed as `[channels, 1 + 4 * levels, kernel_size, kernel_size]`.
    #[error("expected filters of shape [channels, 1 + 4 * levels, kernel_size, kernel_size], got {got:?}")]
    FilterShape {
        /// Shape of the filters.
        got: [usize; 4],
    },
    /// The weight of a depthwise convolution is not `[channels, 1, kernel_size, kernel_size]`.
    #[error("expected a weight of shape [channels, 1, kernel_size, kernel_size], got {got:?}")]
    WeightShape {
        /// Shape of the weight.
        got: [usize; 4],
    },
    /// The scales are not `[channels, 1 + 4 * levels]` of the filters.
    #[error("expected scales of shape {expected:?}, got {got:?}")]
    ScaleShape {
        /// The first two extents of the filters.
        expected: [usize; 2],
        /// Shape of the scales.
        got: [usize; 2],
    },
    /// The bias is not `[channels]` of the filters.
    #[error("expected a bias of {expected} elements, got {got}")]
    BiasShape {
        /// Channels of the filters.
        expected: usize,
        /// Elements of the bias.
        got: usize,
    },
    /// A parameter has another dtype than the input.
    #[error("expected {what} of the input's dtype {expected:?}, got {got:?}: cast one of them")]
    DType {
        /// `filters`, `scales` or `bias`.
        what: &'static str,
        /// Dtype of the input.
        expected: DType,
        /// Dtype of the parameter.
        got: DType,
    },
    /// A parameter is on another device than the input.
    #[error("expected {what} on the input's device {expected}, got {got}: move one of them with to_device")]
    Device {
        /// `filters`, `scales` or `bias`.
        what: &'static str,
        /// Device of the input.
        expected: String,
        /// Device of the parameter.
        got: String,
    },
    /// A `Conv2d` that no wavelet convolution can take over.
    #[error("expected a depthwise Conv2d with {expected}, got {got}")]
    NotDepthwise {
        /// The property that is needed.
        expected: &'static str,
        /// What the convolution has.
        got: String,
    },
    /// The fused route was forced and does not take the call.
    #[error("the fused route was forced, but {reason}")]
    Refused {
        /// Why the fused route does not take the call.
        reason: String,
    },
}

impl WtConvError {
    /// Refuses sizes of 0.
    pub(crate) fn check_sizes(channels: usize, kernel_size: usize, stride: usize) -> Result<(), Self> {
        let sizes = [("channels", channels), ("kernel_size", kernel_size), ("stride", stride)];
        match sizes.into_iter().find(|(_, size)| *size == 0) {
            Some((what, _)) => Err(Self::Zero { what }),
            None => Ok(()),
        }
    }
}

/// Checks that the arguments of a wavelet convolution belong together.
pub(crate) fn check_wtconv2d<B: Backend>(
    x: &Tensor<B, 4>,
    filters: &Tensor<B, 4>,
    scales: Option<&Tensor<B, 2>>,
    bias: Option<&Tensor<B, 1>>,
    stride: usize,
) -> Result<(), WtConvError> {
    let [channels, bands, kernel_height, kernel_width] = filters.dims();
    if channels == 0 || bands % 4 != 1 || kernel_height == 0 || kernel_height != kernel_width {
        return Err(WtConvError::FilterShape { got: filters.dims() });
    }
    if stride == 0 {
        return Err(WtConvError::Zero { what: "stride" });
    }
    if let Some(scales) = scales
        && scales.dims() != [channels, bands]
    {
        return Err(WtConvError::ScaleShape { expected: [channels, bands], got: scales.dims() });
    }
    if let Some(bias) = bias
        && bias.dims() != [channels]
    {
        return Err(WtConvError::BiasShape { expected: channels, got: bias.dims()[0] });
    }
    let [_, input_channels, height, width] = x.dims();
    if input_channels != channels {
        return Err(WtConvError::Channels { expected: channels, got: input_channels, shape: x.dims() });
    }
    if height == 0 || width == 0 {
        return Err(WtConvError::EmptyPlane { height, width });
    }
    check_companion("filters", x, filters)?;
    if let Some(scales) = scales {
        check_companion("scales", x, scales)?;
    }
    if let Some(bias) = bias {
        check_companion("bias", x, bias)?;
    }
    Ok(())
}

/// Checks that the arguments of a depthwise convolution belong together.
pub(crate) fn check_depthwise_conv2d<B: Backend>(
    x: &Tensor<B, 4>,
    weight: &Tensor<B, 4>,
    bias: Option<&Tensor<B, 1>>,
    stride: usize,
) -> Result<(), WtConvError> {
    let [channels, group_channels, kernel_height, kernel_width] = weight.dims();
    if channels == 0 || group_channels != 1 || kernel_height == 0 || kernel_height != kernel_width {
        return Err(WtConvError::WeightShape { got: weight.dims() });
    }
    check_wtconv2d(x, weight, None, bias, stride)
}

fn check_companion<B: Backend, const D: usize>(
    what: &'static str,
    x: &Tensor<B, 4>,
    parameter: &Tensor<B, D>,
) -> Result<(), WtConvError> {
    if parameter.dtype() != x.dtype() {
        return Err(WtConvError::DType { what, expected: x.dtype(), got: parameter.dtype() });
    }
    let (expected, got) = (x.device(), parameter.device());
    if expected != got {
        let (expected, got) = (format!("{expected:?}"), format!("{got:?}"));
        return Err(WtConvError::Device { what, expected, got });
    }
    Ok(())
}
