//! The filter-gradient kernel: correlations of the two pyramids, summed in registers over the batch.
//!
//! ```text
//! dw~_ls[ky, kx] = sum over b, i, j of (A_l_s dy)[i, j] * (A_l_s x)[i + ky - R, j + kx - R]
//! ```
//!
//! A cube holds a window of `x` (with gaps or halo) and the same window of `dy` (without) with all their levels in shared
//! memory, and visits one window after another: all images of its share of the batch, all windows of a split plane. A
//! thread belongs to one filter for good: it correlates the same few tiles of every window and keeps the sums of all taps in
//! registers. At the end the lanes of a filter are added in a fixed order and the cube's share goes to `partials`; a second
//! kernel ([`crate::reduction`]) adds the shares in a fixed order. There is no atomic, so the same input gives the same bits.
//!
//! Where a filter has more taps than fit registers, a cube takes only some rows of taps, and there are as many cubes more.

use cubecl::prelude::*;

use crate::depthwise::correlate_tile;
use crate::layout::{Layout, QUAD};
use crate::operator::{tile_of, tile_origin};
use crate::shared::{write, zero};
use crate::window::{BLOCK_SAMPLES, Grid, View, analyse_both, cube_index, fetch, place_window, scatter};

/// Everything the filter-gradient kernel is compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GradientKernel {
    /// Pyramid of the input.
    pub x: Layout,
    /// Pyramid of the cotangent: no gaps, no halo, behind the input's.
    pub dy: Layout,
    /// Elements that one load of the input moves.
    pub load_x: usize,
    /// Elements that one load of the cotangent moves.
    pub load_dy: usize,
    /// Rows of taps that a cube computes; divides the filter side.
    pub tap_rows: usize,
    /// Tiles that a thread correlates per window.
    pub repeats: usize,
}

impl GradientKernel {
    /// First level with filters of this kernel.
    pub const fn first_level(&self) -> usize {
        if self.x.base { 0 } else { 1 }
    }

    /// Filters of a channel in this kernel.
    pub const fn filters(&self) -> usize {
        4 * self.x.levels + self.x.base as usize
    }

    /// Tile slots of one filter of `level` in a window.
    pub const fn tiles(&self, level: usize) -> usize {
        self.x.buffer_slots(level) * self.x.images()
    }

    /// Threads of one filter of `level`.
    pub const fn lanes(&self, level: usize) -> usize {
        self.tiles(level).div_ceil(self.repeats)
    }

    /// First thread of `level`.
    pub const fn first_thread(&self, level: usize) -> usize {
        let mut threads = 0;
        let mut l = self.first_level();
        while l < level {
            threads += self.x.channels * self.x.subbands(l) * self.lanes(l);
            l += 1;
        }
        threads
    }

    /// Threads that have work.
    pub const fn working(&self) -> usize {
        self.first_thread(self.x.levels + 1)
    }

    /// Groups of tap rows: cubes that share the taps of a filter.
    pub const fn tap_groups(&self) -> usize {
        self.x.kernel_size / self.tap_rows
    }

    /// Sums a thread keeps: its taps and one for the cotangent itself.
    pub const fn sums(&self) -> usize {
        self.tap_rows * self.x.kernel_size + 1
    }

    /// Floats between two sums of a thread in shared memory: odd, so that lanes on different sums meet different banks.
    pub const fn sum_pitch(&self) -> usize {
        self.x.threads | 1
    }

    /// Floats of a channel in one share: all taps of all filters, then the sum of the cotangent.
    pub const fn share(&self) -> usize {
        self.filters() * self.x.kernel_size * self.x.kernel_size + 1
    }

    /// Floats of shared memory: both pyramids, or the final sums of all threads.
    pub const fn shared_floats(&self) -> usize {
        let sums = (self.sums() * self.sum_pitch()).next_multiple_of(QUAD);
        if self.dy.end() > sums { self.dy.end() } else { sums }
    }
}

/// One launch of the filter-gradient kernel; see the module. `visits` is the number of windows of a cube, `zero_index` is 0
/// and unknown to the compiler: it keeps addresses that do not change from one window to the next from being hoisted into
/// registers, of which the sums need most.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(crate) fn filter_gradient<F: Float>(
    x: &Array<F>,
    dy: &Array<F>,
    partials: &mut Array<f32>,
    x_view: View,
    dy_view: View,
    grid: Grid,
    visits: usize,
    zero_index: usize,
    #[comptime] kernel: GradientKernel,
    #[comptime] _source: u64,
    #[define(F)] _dtype: StorageType,
) {
    let layout = comptime!(kernel.x);
    let mut shared = SharedMemory::<f32>::new_aligned(comptime!(kernel.shared_floats()), 16usize);
    let unit = UNIT_POS as usize;
    let index = cube_index();
    let channel = index % grid.channel_groups * comptime!(layout.channels);
    let rest = index / grid.channel_groups;
    let tap_row = rest % comptime!(kernel.tap_groups()) * kernel.tap_rows;
    let chunk = rest / comptime!(kernel.tap_groups());

    // What tiles read beyond the planes stays zero for good.
    zero(&mut shared, 0usize, comptime!(kernel.shared_floats()), layout.threads, comptime!(layout.access()));
    sync_cube();

    let mut sums = Array::<f32>::new(comptime!(kernel.sums()));
    #[unroll]
    for e in 0..comptime!(kernel.sums()) {
        sums[e] = 0.0f32;
    }
    let (origin, pitch, cotangent_origin, cotangent_pitch, active) = tile_at(unit, 0usize.runtime(), kernel);
    for visit in 0..visits {
        let hidden = visit * zero_index;
        let place = place_window(chunk * visits + visit, channel, &grid, layout);
        load_window::<F>(x, &x_view, &grid, &place, &mut shared, unit + hidden, kernel.load_x, kernel.x);
        load_window::<F>(dy, &dy_view, &grid, &place, &mut shared, unit + hidden, kernel.load_dy, kernel.dy);
        analyse_both(&mut shared, unit + hidden, kernel.x, kernel.dy);
        if active {
            correlate_tile(
                &shared,
                origin + tap_row * pitch + hidden,
                pitch + hidden,
                cotangent_origin + hidden,
                cotangent_pitch + hidden,
                &mut sums,
                kernel.tap_rows,
                layout,
            );
        }
        // Large windows have more tiles than threads.
        if comptime!(kernel.repeats > 1) {
            for repeat in 1..kernel.repeats {
                let (origin, pitch, cotangent_origin, cotangent_pitch, active) =
                    tile_at(unit + hidden, repeat, kernel);
                if active {
                    correlate_tile(
                        &shared,
                        origin + tap_row * pitch,
                        pitch,
                        cotangent_origin,
                        cotangent_pitch,
                        &mut sums,
                        kernel.tap_rows,
                        layout,
                    );
                }
            }
        }
        sync_cube();
    }

    // Lanes of a filter, added in order by one thread a tap.
    #[unroll]
    for e in 0..comptime!(kernel.sums()) {
        write(
            &mut shared,
            unit,
            comptime!((e * kernel.sum_pitch()) as i32),
            sums[e],
            comptime!(layout.access()),
        );
    }
    sync_cube();
    let taps = comptime!(kernel.tap_rows * layout.kernel_size);
    let filters = comptime!(kernel.filters());
    let mut i = unit;
    while i < comptime!(layout.channels * kernel.filters() * kernel.sums()) {
        let tap = i % comptime!(kernel.sums());
        let filter = i / comptime!(kernel.sums()) % filters;
        let set = i / comptime!(kernel.sums() * kernel.filters());
        let mut first = 0usize;
        let mut lanes = 0usize;
        #[unroll]
        for level in comptime!(kernel.first_level())..comptime!(layout.levels + 1) {
            let below = comptime!(if level == 0 { 0 } else { 4 * level - 4 + kernel.x.base as usize });
            if filter >= below && filter < comptime!(below + layout.subbands(level)) {
                lanes = comptime!(kernel.lanes(level)).runtime();
                first = comptime!(kernel.first_thread(level))
                    + ((filter - below) * layout.channels + set) * lanes;
            }
        }
        let mut sum = 0.0f32;
        for lane in 0..lanes {
            sum += shared[tap * comptime!(kernel.sum_pitch()) + first + lane];
        }
        if channel + set < grid.channels {
            let share = (chunk * grid.channels + channel + set) * comptime!(kernel.share());
            if tap < taps {
                let filter_taps = comptime!(layout.kernel_size * layout.kernel_size);
                partials[share + filter * filter_taps + tap_row * comptime!(layout.kernel_size) + tap] = sum;
            } else {
                if comptime!(layout.base) && filter == 0 && tap_row == 0 {
                    partials[share + comptime!(kernel.share() - 1)] = sum;
                }
            }
        }
        i += comptime!(layout.threads);
    }
}

/// The thread's tile number `repeat` of a window: quad and pitch of its input, quad and pitch of its cotangent, and whether
/// there is one.
#[cube]
fn tile_at(
    unit: usize,
    repeat: usize,
    #[comptime] kernel: GradientKernel,
) -> (usize, usize, usize, usize, bool) {
    let layout = comptime!(kernel.x);
    let mut origin = 0usize;
    let mut pitch = 0usize;
    let mut cotangent_origin = 0usize;
    let mut cotangent_pitch = 0usize;
    let mut active = false;
    #[unroll]
    for level in comptime!(kernel.first_level())..comptime!(layout.levels + 1) {
        let first = comptime!(kernel.first_thread(level));
        let lanes = comptime!(kernel.lanes(level));
        if unit >= first && unit < comptime!(kernel.first_thread(level + 1)) {
            let slot = (unit - first) % lanes + repeat * lanes;
            let owner = (unit - first) / lanes;
            // One filter's tiles: those of its buffer in each of the cube's images.
            let (image, tile_y, tile_x) =
                tile_of(slot, level, comptime!(Layout { channels: 1, planes: layout.images(), ..layout }));
            if slot < comptime!(kernel.tiles(level)) && tile_x < comptime!(layout.tiles_x(level)) {
                let buffer = owner / layout.channels * layout.planes
                    + image * layout.channels
                    + owner % layout.channels;
                origin = tile_origin(buffer, tile_y, tile_x, level, kernel.x);
                pitch = comptime!(kernel.x.pitch(level) / QUAD).runtime();
                cotangent_origin = tile_origin(buffer, tile_y, tile_x, level, kernel.dy);
                cotangent_pitch = comptime!(kernel.dy.pitch(level) / QUAD).runtime();
                active = true;
            }
        }
    }
    (origin, pitch, cotangent_origin, cotangent_pitch, active)
}

/// Loads one pyramid's window, block round by block round.
#[cube]
fn load_window<F: Float>(
    x: &Array<F>,
    view: &View,
    grid: &Grid,
    place: &crate::window::Place,
    shared: &mut SharedMemory<f32>,
    unit: usize,
    #[comptime] vector: usize,
    #[comptime] layout: Layout,
) {
    let mut first = unit;
    while first < comptime!(layout.blocks()) {
        let mut blocks = Array::<F>::new(BLOCK_SAMPLES);
        fetch::<F>(x, view, grid, place, first, &mut blocks, 1usize, vector, layout);
        scatter::<F>(shared, first, &blocks, 1usize, layout);
        first += comptime!(layout.threads);
    }
}
