//! The reduction kernel: shares of the filter gradients to gradients of the parameters.
//!
//! A cube takes one filter of one channel. Each thread adds the shares of its taps in order; then the scales unfold, `w` and
//! `s` being the parameters and `dw~` the gradient of the scaled filter:
//!
//! ```text
//! dw = s * dw~      ds = sum over taps of w * dw~ (+ bias * sum dy on the base path)      db = s0 * sum dy
//! ```

use cubecl::prelude::*;

use crate::operator::{FilterBank, filter_at, filter_number, haar_norm, scale_of, tap_at};
use crate::window::cube_index;

/// Everything the reduction kernel is compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ReductionKernel {
    /// Side of the filters.
    pub kernel_size: usize,
    /// Wavelet levels of the shares.
    pub levels: usize,
    /// Whether the shares hold the base filter.
    pub base: bool,
    /// Threads of a cube.
    pub threads: usize,
}

/// One launch of the reduction kernel, one cube for each channel and filter. Without scales `scales_gradient` is not written.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(crate) fn reduction<P: Float>(
    partials: &Array<f32>,
    filters: &Array<P>,
    scales: &ComptimeOption<Array<P>>,
    bias: &ComptimeOption<Array<P>>,
    filters_gradient: &mut Array<P>,
    scales_gradient: &mut Array<P>,
    bias_gradient: &mut Array<P>,
    bank: FilterBank,
    per_channel: usize,
    channels: usize,
    chunks: usize,
    #[comptime] kernel: ReductionKernel,
    #[comptime] _source: u64,
    #[define(P)] _dtype: StorageType,
) {
    let taps = comptime!(kernel.kernel_size * kernel.kernel_size);
    let filter_count = comptime!(4 * kernel.levels + kernel.base as usize);
    let share =
        comptime!((4 * kernel.levels + kernel.base as usize) * kernel.kernel_size * kernel.kernel_size + 1);
    let mut products = SharedMemory::<f32>::new(kernel.threads);
    let unit = UNIT_POS as usize;
    let index = cube_index();
    let slot = index % filter_count;
    let channel = index / filter_count;
    let inside = channel < channels;
    let filter = slot + comptime!(1 - kernel.base as usize);
    let norm = haar_norm(filter);
    // The gradients are contiguous, the parameters need not be.
    let parameter = channel * per_channel + filter_number(&bank, filter);
    let from = filter_at(&bank, channel, filter);
    let has_scales = comptime!(scales.is_some());
    let mut product = 0.0f32;
    let mut scale = 0.0f32;
    if inside {
        scale = scale_of::<P>(scales, &bank, channel, filter);
        let mut tap = unit;
        while tap < taps {
            let mut sum = 0.0f32;
            for chunk in 0..chunks {
                sum += partials[(chunk * channels + channel) * share + slot * taps + tap];
            }
            let gradient = sum * norm;
            filters_gradient[parameter * taps + tap] = P::cast_from(gradient * scale);
            product += gradient * f32::cast_from(filters[from + tap_at(&bank, tap, kernel.kernel_size)]);
            tap += comptime!(kernel.threads);
        }
    }
    products[unit] = product;
    sync_cube();
    if inside && unit == 0 {
        let mut sum = 0.0f32;
        for i in 0..comptime!(kernel.threads) {
            sum += products[i];
        }
        if comptime!(kernel.base) && filter == 0 {
            let mut total = 0.0f32;
            for chunk in 0..chunks {
                total += partials[(chunk * channels + channel) * share + comptime!(share - 1)];
            }
            bias_gradient[channel] = P::cast_from(scale * total);
            let bias: ComptimeOption<P> = bias.as_ref().map(|bias| bias[channel]);
            sum += f32::cast_from(bias.unwrap_or(P::new(0.0))) * total;
        }
        if has_scales {
            scales_gradient[parameter] = P::cast_from(sum);
        }
    }
}
