//! The depthwise convolution of one register tile, and its correlation counterpart for filter gradients.
//!
//! A thread owns a tile of `rows` x 4 outputs and slides down the `rows + K - 1` input rows that they see. Each input row
//! is read once as quads and serves all the output rows that it touches, so that a 5x5 filter costs one 128-bit read for
//! 32 multiply-adds. Index equation, `lead` and `R` as in [`crate::layout`]:
//!
//! ```text
//! out[y, x] = sum over ky, kx of taps[ky, kx] * in[y + ky - R, x + kx - R]      (stored at column lead + x + kx - R)
//! ```
//!
//! Filters up to [`MAX_REGISTER_KERNEL`] on a side are held in registers and the whole tile is unrolled. Larger ones would
//! neither fit registers nor the instruction cache: the loop over filter rows is then a run-time loop that holds one row of
//! taps, and an input row is read again for each filter row.

use cubecl::prelude::*;

use crate::layout::{Access, Layout, QUAD};
use crate::shared::{below, read_quad};

/// Largest filter side whose taps are held in registers.
pub(crate) const MAX_REGISTER_KERNEL: usize = 7;

/// Floats between filters in shared memory: an odd number of quads, so that lanes with different filters meet different
/// banks. The number of taps is odd: there is room for one value more.
pub(crate) const fn filter_pitch(kernel_size: usize) -> usize {
    ((kernel_size * kernel_size).div_ceil(QUAD) | 1) * QUAD
}

/// Loads the taps of filter `filter` from shared memory.
#[cube]
pub(crate) fn load_taps(
    shared: &SharedMemory<f32>,
    filter: usize,
    taps: &mut Array<f32>,
    #[comptime] kernel_size: usize,
    #[comptime] access: Access,
) {
    let count = comptime!(kernel_size * kernel_size);
    let mut quad = Array::<f32>::new(QUAD);
    #[unroll]
    for q in 0..comptime!((kernel_size * kernel_size).div_ceil(QUAD)) {
        read_quad(
            shared,
            filter * comptime!(filter_pitch(kernel_size) / QUAD),
            comptime!(q as i32),
            &mut quad,
            0usize,
            access,
        );
        #[unroll]
        for i in 0..QUAD {
            if comptime!(q * QUAD + i < count) {
                taps[comptime!(q * QUAD + i)] = quad[i];
            }
        }
    }
}

/// Reads input row `row` of a tile. `origin` is the quad of its first input row, `pitch` the quads from one to the next.
#[cube]
fn read_row(
    shared: &SharedMemory<f32>,
    origin: usize,
    pitch: usize,
    input: &mut Array<f32>,
    #[comptime] row: usize,
    #[comptime] layout: Layout,
) {
    let at = below(origin, pitch, row, comptime!(layout.access()));
    #[unroll]
    for q in 0..comptime!(layout.tile_quads()) {
        read_quad(shared, at, comptime!(q as i32), input, comptime!(q * QUAD), comptime!(layout.access()));
    }
}

/// Adds the convolution of one tile to `sums[row * 4 + column]`. `origin` is the quad of the tile's first input row,
/// `pitch` the quads from one input row to the next.
#[cube]
pub(crate) fn convolve_tile(
    shared: &SharedMemory<f32>,
    origin: usize,
    pitch: usize,
    taps: &Array<f32>,
    sums: &mut Array<f32>,
    #[comptime] rows: usize,
    #[comptime] layout: Layout,
) {
    let kernel_size = comptime!(layout.kernel_size);
    let skipped = comptime!(layout.radius().next_multiple_of(2) - layout.radius());
    let mut input = Array::<f32>::new(comptime!(layout.tile_quads() * QUAD));
    #[unroll]
    for r in 0..comptime!(rows + layout.kernel_size - 1) {
        read_row(shared, origin, pitch, &mut input, r, layout);
        #[unroll]
        for ky in 0..kernel_size {
            if comptime!(r >= ky && r - ky < rows) {
                #[unroll]
                for kx in 0..kernel_size {
                    #[unroll]
                    for x in 0..QUAD {
                        let at = comptime!((r - ky) * QUAD + x);
                        sums[at] = fma(
                            taps[comptime!(ky * kernel_size + kx)],
                            input[comptime!(x + kx + skipped)],
                            sums[at],
                        );
                    }
                }
            }
        }
    }
}

/// As [`convolve_tile`] for one filter row `taps[0 .. K]`, whose input rows begin at quad `origin`.
#[cube]
pub(crate) fn convolve_tile_row(
    shared: &SharedMemory<f32>,
    origin: usize,
    pitch: usize,
    taps: &Array<f32>,
    sums: &mut Array<f32>,
    #[comptime] rows: usize,
    #[comptime] layout: Layout,
) {
    let skipped = comptime!(layout.radius().next_multiple_of(2) - layout.radius());
    let mut input = Array::<f32>::new(comptime!(layout.tile_quads() * QUAD));
    #[unroll]
    for r in 0..rows {
        read_row(shared, origin, pitch, &mut input, r, layout);
        #[unroll]
        for kx in 0..comptime!(layout.kernel_size) {
            #[unroll]
            for x in 0..QUAD {
                let at = comptime!(r * QUAD + x);
                sums[at] = fma(taps[kx], input[comptime!(x + kx + skipped)], sums[at]);
            }
        }
    }
}

/// Adds the convolution of a whole clipped buffer of `rows` x `cols` samples to `sums[row * cols + column]`; taps that fall
/// outside are left out.
#[cube]
pub(crate) fn convolve_clipped(
    shared: &SharedMemory<f32>,
    origin: usize,
    taps: &Array<f32>,
    sums: &mut Array<f32>,
    #[comptime] level: usize,
    #[comptime] layout: Layout,
) {
    let kernel_size = comptime!(layout.kernel_size);
    let radius = comptime!(layout.radius());
    let rows = comptime!(layout.rows(level));
    let cols = comptime!(layout.cols(level));
    let quads = comptime!(layout.pitch(level) / QUAD);
    let mut input = Array::<f32>::new(comptime!(layout.pitch(level)));
    #[unroll]
    for r in 0..rows {
        #[unroll]
        for q in 0..quads {
            read_quad(
                shared,
                origin,
                comptime!((r * quads + q) as i32),
                &mut input,
                comptime!(q * QUAD),
                comptime!(layout.access()),
            );
        }
        #[unroll]
        for ky in 0..kernel_size {
            if comptime!(r + radius >= ky && r + radius - ky < rows) {
                #[unroll]
                for kx in 0..kernel_size {
                    #[unroll]
                    for x in 0..cols {
                        if comptime!(x + kx >= radius && x + kx - radius < cols) {
                            let at = comptime!((r + radius - ky) * cols + x);
                            sums[at] = fma(
                                taps[comptime!(ky * kernel_size + kx)],
                                input[comptime!(x + kx - radius)],
                                sums[at],
                            );
                        }
                    }
                }
            }
        }
    }
}

/// Adds the correlation of one cotangent tile with the input around it to `sums[ky * K + kx]`, for `tap_rows` rows of taps.
///
/// ```text
/// sums[ky, kx] += sum over y, x of dy[y, x] * in[y + ky - R, x + kx - R]
/// ```
///
/// `origin` is the quad of the first input row that the first row of taps sees. `total` takes the sum of the tile itself,
/// which is the bias gradient's share.
#[cube]
pub(crate) fn correlate_tile(
    shared: &SharedMemory<f32>,
    origin: usize,
    pitch: usize,
    cotangent_origin: usize,
    cotangent_pitch: usize,
    sums: &mut Array<f32>,
    #[comptime] tap_rows: usize,
    #[comptime] layout: Layout,
) {
    let kernel_size = comptime!(layout.kernel_size);
    let rows = comptime!(layout.tile_rows);
    let skipped = comptime!(layout.radius().next_multiple_of(2) - layout.radius());
    let mut cotangent = Array::<f32>::new(comptime!(layout.tile_rows * QUAD));
    let mut input = Array::<f32>::new(comptime!(layout.tile_quads() * QUAD));
    #[unroll]
    for r in 0..comptime!(rows + tap_rows - 1) {
        if comptime!(r < rows) {
            read_quad(
                shared,
                below(cotangent_origin, cotangent_pitch, r, comptime!(layout.access())),
                0i32,
                &mut cotangent,
                comptime!(r * QUAD),
                comptime!(layout.access()),
            );
        }
        read_row(shared, origin, pitch, &mut input, r, layout);
        #[unroll]
        for x in 0..QUAD {
            #[unroll]
            for ky in 0..tap_rows {
                if comptime!(r >= ky && r - ky < rows) {
                    #[unroll]
                    for kx in 0..kernel_size {
                        let at = comptime!(ky * kernel_size + kx);
                        sums[at] = fma(
                            cotangent[comptime!((r - ky) * QUAD + x)],
                            input[comptime!(x + kx + skipped)],
                            sums[at],
                        );
                    }
                }
            }
        }
    }
    // One sum past the taps: the cotangent itself.
    let total = comptime!(tap_rows * kernel_size);
    #[unroll]
    for e in 0..comptime!(layout.tile_rows * QUAD) {
        sums[total] = sums[total] + cotangent[e];
    }
}
