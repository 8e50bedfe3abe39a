//! The low-pass kernel of split plans: `LL_m` of every plane, written once.
//!
//! A thread sums one `2^m x 2^m` block: `LL_m[i, j] = 2^-m * sum of x over the block (i, j)`. Lanes run along the axis that is
//! contiguous in memory, columns or channels, and the result keeps that order, so that the plan for the deeper levels finds
//! the layout it is best at. Reads `N`, writes `N / 4^m` elements in `f32`.

use cubecl::prelude::*;

use crate::window::{Grid, View, cube_index, load};

/// Everything the low-pass kernel is compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LowPassKernel {
    /// Analysis levels between the input and the result.
    pub levels: usize,
    /// Elements that one load moves: 4, 2 or 1, at most the side of a block.
    pub load: usize,
    /// Whether lanes run over channels.
    pub channel_lanes: bool,
    /// Threads of a cube.
    pub threads: usize,
}

/// One launch of the low-pass kernel; `grid` gives the extents of `x`, `out` is contiguous in the lanes' order.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(crate) fn low_pass<F: Float>(
    x: &Array<F>,
    out: &mut Array<f32>,
    x_view: View,
    grid: Grid,
    #[comptime] kernel: LowPassKernel,
    #[comptime] _source: u64,
    #[define(F)] _dtype: StorageType,
) {
    let side = comptime!(1usize << kernel.levels);
    let height = grid.height.div_ceil(side);
    let width = grid.width.div_ceil(side);
    let i = cube_index() * comptime!(kernel.threads) + UNIT_POS as usize;
    if i < grid.batch * grid.channels * height * width {
        let mut column = i % width;
        let mut row = i / width % height;
        let mut channel = i / (width * height) % grid.channels;
        if kernel.channel_lanes {
            channel = i % grid.channels;
            column = i / grid.channels % width;
            row = i / (grid.channels * width) % height;
        }
        let batch = i / (width * height * grid.channels);
        let first = x_view.offset + batch * x_view.batch + channel * x_view.channel;
        let mut sum = 0.0f32;
        let mut samples = Array::<F>::new(kernel.load);
        #[unroll]
        for r in 0..side {
            #[unroll]
            for e in 0..comptime!(side / kernel.load) {
                let y = row * side + r;
                let x_at = column * side + comptime!(e * kernel.load);
                if y < grid.height && x_at < grid.width {
                    let from = first + y * x_view.row + x_at * x_view.column;
                    load::<F>(x, from, &mut samples, 0usize, kernel.load);
                    #[unroll]
                    for c in 0..kernel.load {
                        sum += f32::cast_from(samples[c]);
                    }
                }
            }
        }
        out[i] = sum * comptime!(1.0 / (1u32 << kernel.levels) as f32);
    }
}
