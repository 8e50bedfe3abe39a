//! What is to be computed, in plain numbers: the shape facts that the planner reads.

use cubecl::ir::{ElemType, FloatKind, StorageType};

/// Element type of a tensor in device memory. Arithmetic is `f32` whatever the storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dtype {
    /// 32-bit float.
    F32,
    /// IEEE half.
    F16,
    /// Brain float, 8 exponent bits.
    BF16,
}

impl Dtype {
    /// Size of one element in bytes.
    pub const fn size(self) -> usize {
        match self {
            Dtype::F32 => 4,
            Dtype::F16 | Dtype::BF16 => 2,
        }
    }

    /// The same type in CubeCL's words.
    pub fn storage(self) -> StorageType {
        let kind = match self {
            Dtype::F32 => FloatKind::F32,
            Dtype::F16 => FloatKind::F16,
            Dtype::BF16 => FloatKind::BF16,
        };
        StorageType::Scalar(ElemType::Float(kind))
    }
}

impl core::fmt::Display for Dtype {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Dtype::F32 => "f32",
            Dtype::F16 => "f16",
            Dtype::BF16 => "bf16",
        })
    }
}

/// A wavelet convolution over `[batch, channels, height, width]`: one base filter and four filters a level for each
/// channel, all depthwise and square, stride 1, zero "same" padding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Problem {
    /// Images; may be 0.
    pub batch: usize,
    /// Channels, at least 1.
    pub channels: usize,
    /// Rows of a plane, at least 1.
    pub height: usize,
    /// Columns of a plane, at least 1.
    pub width: usize,
    /// Side of every filter, odd.
    pub kernel_size: usize,
    /// Wavelet levels; 0 is a plain scaled depthwise convolution. Never clamped: subbands may be 1x1.
    pub levels: usize,
}

impl Problem {
    /// Elements of the input: `N` of the traffic model.
    pub const fn elements(&self) -> usize {
        self.batch * self.channels * self.height * self.width
    }

    /// Filters of one channel: the base filter and four a level.
    pub const fn filters(&self) -> usize {
        1 + 4 * self.levels
    }

    /// Extents of the subbands of `level` (level 0 is the input): `level` times halved, rounded up.
    pub const fn extents(&self, level: usize) -> (usize, usize) {
        (halved(self.height, level), halved(self.width, level))
    }
}

/// `extent` halved `times` times, rounding up each time.
pub(crate) const fn halved(extent: usize, times: usize) -> usize {
    if times >= usize::BITS as usize - 1 { 1 } else { extent.div_ceil(1 << times) }
}

/// Where the elements of a `[batch, channels, height, width]` tensor lie in its buffer, in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Strided {
    /// Index of element `[0, 0, 0, 0]`.
    pub offset: usize,
    /// Strides of batch, channel, row and column; 0 along an expanded axis.
    pub strides: [usize; 4],
}

impl Strided {
    /// Contiguous `[batch, channels, height, width]`.
    pub const fn contiguous(shape: [usize; 4]) -> Self {
        let [_, channels, height, width] = shape;
        Strided { offset: 0, strides: [channels * height * width, height * width, width, 1] }
    }

    /// The same axes over memory that is contiguous as `[batch, height, width, channels]`.
    pub const fn channels_last(shape: [usize; 4]) -> Self {
        let [_, channels, height, width] = shape;
        Strided { offset: 0, strides: [channels * height * width, 1, width * channels, channels] }
    }

    /// Index of the last element of `shape`, `None` when it does not fit a `usize`.
    pub fn last(&self, shape: [usize; 4]) -> Option<usize> {
        let mut last = self.offset;
        for (extent, stride) in shape.into_iter().zip(self.strides) {
            last = last.checked_add(extent.saturating_sub(1).checked_mul(stride)?)?;
        }
        Some(last)
    }

    /// Whether neighbouring channels, and not neighbouring columns, are neighbours in memory.
    pub const fn is_channels_last(&self, shape: [usize; 4]) -> bool {
        self.strides[1] == 1 && shape[1] > 1 && shape[3] > 1 && self.strides[3] != 1
    }

    /// Elements of a row that one load or store may move together: 4, 2 or 1.
    pub fn vector(&self, shape: [usize; 4]) -> usize {
        let fits = |width: usize| {
            shape[3].is_multiple_of(width)
                && self.strides[3] == 1
                && self.offset.is_multiple_of(width)
                && (0..3).all(|axis| shape[axis] == 1 || self.strides[axis].is_multiple_of(width))
        };
        [4, 2].into_iter().find(|&width| fits(width)).unwrap_or(1)
    }
}
