use burn::tensor::DType;

/// The side of the smallest image: one pixel is left after the stem's 4 and three halvings.
pub(crate) const MIN_SIDE: usize = 32;

/// Why a model does not take an input.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InputError {
    /// The images have another number of channels than the model.
    #[error("expected images of {expected} channels, got {got}")]
    Channels {
        /// The model's `in_channels`.
        expected: usize,
        /// The images' channels.
        got: usize,
    },
    /// An image from which nothing is left in the last stage.
    #[error("expected images of at least {MIN_SIDE}x{MIN_SIDE} pixels, got {height}x{width}")]
    TooSmall {
        /// Rows of the images.
        height: usize,
        /// Columns of the images.
        width: usize,
    },
    /// The images have another element type than the parameters.
    #[error("expected images of dtype {expected:?}, got {got:?}")]
    DType {
        /// The parameters' dtype.
        expected: DType,
        /// The images' dtype.
        got: DType,
    },
    /// The images are on another device than the parameters.
    #[error("expected images on device {expected}, got {got}")]
    Device {
        /// The parameters' device.
        expected: String,
        /// The images' device.
        got: String,
    },
}
