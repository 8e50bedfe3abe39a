//! The operator kernel: the whole wavelet convolution of a window, forward or (filters rotated) for the input gradient.
//!
//! A cube holds a window of each of its planes in shared memory and goes through five stages:
//!
//! 1. load the samples, analyse them to the deepest level ([`crate::window`]), load the scaled filters;
//! 2. convolve every subband of every level in place ([`crate::depthwise`]);
//! 3. add what levels 2 and deeper give to the low-pass subband of level 1, walking from the deepest level up with one
//!    number per coefficient of level 2;
//! 4. convolve level 0 tile by tile in registers, add the last synthesis step, and store.
//!
//! Device memory is read once and written once; no subband ever leaves the chip.
//!
//! ```text
//! y[i, j] = sum of base taps over x around (i, j) + s0 * bias
//!         + sum over l, s of sign(s, bit l-1 of i, bit l-1 of j) * conv_ls[i >> l, j >> l]
//! ```
//!
//! A cube that has a multiprocessor to itself goes through several windows and fetches the next one's samples into registers
//! while it works on the one before (`prefetch`).
//!
//! A window that is only part of its plane carries a halo of `R * 2^levels` samples, and what deeper levels contribute comes
//! in as `carried`, a value for each coefficient of its deepest level: the walk of stage 3 just starts there. A resident
//! plane is a window without neighbours and without a carried value, in the same code.
//!
//! The convolution is its own adjoint up to rotating each filter by 180 degrees, because synthesis is the adjoint of
//! analysis: `rotate` makes this kernel the input gradient.

use cubecl::prelude::*;

use crate::depthwise::{
    MAX_REGISTER_KERNEL, convolve_clipped, convolve_tile, convolve_tile_row, filter_pitch, load_taps,
};
use crate::haar::butterflies;
use crate::layout::{Layout, QUAD};
use crate::shared::{read_pair, write_pair, write_quad, zero};
use crate::window::{
    BLOCK_SAMPLES, Grid, Place, View, analyse, cube_index, fetch, over_channels, place_window, plane_of,
    scatter, store,
};

/// Taps of a filter that a lane loads.
const TAPS_PER_LANE: usize = 4;

/// Everything the operator kernel is compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OperatorKernel {
    /// Shared memory and threads.
    pub layout: Layout,
    /// Elements that one load moves: 4, 2 or 1.
    pub load: usize,
    /// Elements that one store moves: 4, 2 or 1.
    pub store: usize,
    /// Whether the filters are rotated by 180 degrees.
    pub rotate: bool,
    /// Whether a cube visits several windows and fetches the next one's samples while it works on one.
    pub prefetch: bool,
}

impl OperatorKernel {
    /// Whether all taps of a filter are held in registers, and the filters of a cube in shared memory.
    pub const fn register_taps(&self) -> bool {
        self.layout.unroll && self.layout.kernel_size <= MAX_REGISTER_KERNEL
    }

    /// Filters that a cube works with.
    const fn filters(&self) -> usize {
        self.layout.channels * (1 + 4 * self.layout.levels)
    }

    /// Lanes that load a filter, a power of two.
    const fn lanes_per_filter(&self) -> usize {
        let taps = (self.layout.kernel_size * self.layout.kernel_size).next_power_of_two();
        if taps > TAPS_PER_LANE { taps / TAPS_PER_LANE } else { 1 }
    }

    /// Lanes that load the filters, over all rounds.
    const fn filter_lanes(&self) -> usize {
        self.filters() * self.lanes_per_filter()
    }

    /// Rounds of filter loads that are in flight together.
    const fn filters_together(&self) -> usize {
        let rounds = self.filter_lanes().div_ceil(self.layout.threads);
        if rounds < 2 { rounds } else { 2 }
    }

    /// Floats between the base filters of two channels in shared memory.
    const fn bias_pitch(&self) -> usize {
        (1 + 4 * self.layout.levels) * filter_pitch(self.layout.kernel_size)
    }

    /// Floats of shared memory before the pyramid: the scaled filters.
    pub const fn filter_floats(&self) -> usize {
        if self.register_taps() { self.filters() * filter_pitch(self.layout.kernel_size) } else { 0 }
    }

    /// Floats of shared memory.
    pub const fn shared_floats(&self) -> usize {
        self.layout.end()
    }

    /// Block rounds whose samples a thread holds in registers at once.
    const fn fetched(&self) -> usize {
        let rounds = self.layout.blocks().div_ceil(self.layout.threads);
        if rounds < 2 || !self.layout.unroll { 1 } else { 2 }
    }

    /// Samples that a thread holds in registers at once while they are fetched.
    pub const fn fetched_samples(&self) -> usize {
        self.fetched() * BLOCK_SAMPLES
    }
}

/// Which of a channel's filters the kernel uses, and where they lie.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
pub(crate) struct FilterBank {
    /// Filters between the base filter and the first one used: four for each level above this kernel's level 1.
    pub(crate) skipped: usize,
    /// Elements from the filters of one channel to those of the next.
    pub(crate) filter_channel: usize,
    /// Elements from one filter to the next.
    pub(crate) filter: usize,
    /// Elements from one row of taps to the next; the taps of a row are neighbours.
    pub(crate) filter_row: usize,
    /// Elements from the scales of one channel to those of the next.
    pub(crate) scale_channel: usize,
    /// Elements from one scale to the next.
    pub(crate) scale: usize,
}

/// Number, among a channel's filters in the parameter tensors, of the kernel's filter `filter`.
#[cube]
pub(crate) fn filter_number(bank: &FilterBank, filter: usize) -> usize {
    let mut number = filter;
    if filter > 0 {
        number += bank.skipped;
    }
    number
}

/// Index of the first tap of the kernel's filter `filter` of `channel`.
#[cube]
pub(crate) fn filter_at(bank: &FilterBank, channel: usize, filter: usize) -> usize {
    channel * bank.filter_channel + filter_number(bank, filter) * bank.filter
}

/// Elements from the first tap of a filter to tap number `tap`.
#[cube]
pub(crate) fn tap_at(bank: &FilterBank, tap: usize, #[comptime] kernel_size: usize) -> usize {
    tap / kernel_size * bank.filter_row + tap % kernel_size
}

/// The scale of the kernel's filter `filter` of `channel`: 1 where there are no scales.
#[cube]
pub(crate) fn scale_of<P: Float>(
    scales: &ComptimeOption<Array<P>>,
    bank: &FilterBank,
    channel: usize,
    filter: usize,
) -> f32 {
    let at = channel * bank.scale_channel + filter_number(bank, filter) * bank.scale;
    let scale: ComptimeOption<P> = scales.as_ref().map(|scales| scales[at]);
    f32::cast_from(scale.unwrap_or(P::new(1.0)))
}

/// The power of two that the unnormalised Haar steps leave to the filter `filter`: `4^-level`.
#[cube]
pub(crate) fn haar_norm(filter: usize) -> f32 {
    let level = (filter as u32 + 3u32) >> 2u32;
    // The level goes straight into the exponent.
    f32::reinterpret((127u32 - 2u32 * level) << 23u32)
}

/// One launch of the wavelet convolution; see the module. `visits` is the number of windows of a cube where it prefetches.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(crate) fn operator<F: Float, P: Float>(
    x: &Array<F>,
    filters: &Array<P>,
    scales: &ComptimeOption<Array<P>>,
    bias: &ComptimeOption<Array<P>>,
    carried: &ComptimeOption<Array<f32>>,
    y: &mut Array<F>,
    x_view: View,
    y_view: View,
    carried_view: View,
    bank: FilterBank,
    grid: Grid,
    visits: usize,
    #[comptime] kernel: OperatorKernel,
    #[comptime] _source: u64,
    #[define(F)] _dtype: StorageType,
    #[define(P)] _parameter_dtype: StorageType,
) {
    let layout = comptime!(kernel.layout);
    let mut shared = SharedMemory::<f32>::new_aligned(comptime!(kernel.shared_floats()), 16usize);
    let unit = UNIT_POS as usize;
    let index = cube_index();
    let channel = index % grid.channel_groups * comptime!(layout.channels);
    let visits = if kernel.prefetch { visits } else { 1usize.runtime() };
    let first_window = index / grid.channel_groups * visits;
    let first_place = place_window(first_window, channel, &grid, layout);

    // Stage 1. The first blocks are in flight while shared memory is cleared and the filters arrive.
    let fetched = comptime!(kernel.fetched());
    let mut blocks = Array::<F>::new(comptime!(kernel.fetched_samples()));
    fetch::<F>(x, &x_view, &grid, &first_place, unit, &mut blocks, fetched, kernel.load, layout);
    clear(&mut shared, comptime!(layout.start), kernel);
    if comptime!(kernel.register_taps()) {
        load_filters::<P>(filters, scales, &mut shared, unit, channel, &bank, &grid, kernel);
        load_biases::<P>(scales, bias, &mut shared, unit, channel, &bank, &grid, kernel);
    }
    for visit in 0..visits {
        let place = place_window(first_window + visit, channel, &grid, layout);
        if comptime!(layout.resident || kernel.prefetch) {
            sync_cube();
        }
        scatter::<F>(&mut shared, unit, &blocks, fetched, layout);
        if comptime!(kernel.fetched() * layout.threads < layout.blocks()) {
            let mut first = unit + comptime!(kernel.fetched() * layout.threads);
            while first < comptime!(layout.blocks()) {
                fetch::<F>(x, &x_view, &grid, &place, first, &mut blocks, fetched, kernel.load, layout);
                scatter::<F>(&mut shared, first, &blocks, fetched, layout);
                first += comptime!(kernel.fetched() * layout.threads);
            }
        }
        if comptime!(kernel.prefetch) && visit + 1 < visits {
            let next = place_window(first_window + visit + 1, channel, &grid, layout);
            fetch::<F>(x, &x_view, &grid, &next, unit, &mut blocks, fetched, kernel.load, layout);
        }
        analyse(&mut shared, unit, layout);

        // Stages 2 and 3.
        if comptime!(layout.levels > 0) {
            convolve_subbands::<P>(&mut shared, filters, scales, unit, channel, &bank, &grid, kernel);
            collect_deeper(&mut shared, carried, &carried_view, &grid, &place, unit, layout);
        }

        // Stage 4.
        if comptime!(layout.clipped(0)) {
            finish_clipped::<F, P>(&mut shared, scales, bias, y, &y_view, &grid, &place, unit, &bank, kernel);
        } else {
            finish_tiles::<F, P>(
                &shared, filters, scales, bias, y, &y_view, &grid, &place, unit, &bank, kernel,
            );
        }
        if kernel.prefetch {
            sync_cube();
            // Nothing but samples is written to level 0: what it reads beyond them stays zero.
            clear(
                &mut shared,
                comptime!(if layout.clipped(0) { layout.start } else { layout.offset(1) }),
                kernel,
            );
        }
    }
}

/// Zeroes the pyramid of resident planes from float `from` on: what tiles read beyond the planes. A window's halo is loaded.
#[cube]
fn clear(shared: &mut SharedMemory<f32>, #[comptime] from: usize, #[comptime] kernel: OperatorKernel) {
    let layout = comptime!(kernel.layout);
    if layout.resident {
        zero(
            shared,
            from,
            comptime!(kernel.shared_floats() / QUAD * QUAD),
            layout.threads,
            comptime!(layout.access()),
        );
    }
}

/// Channel of the cube and filter of that channel in slot `slot` of the filters in shared memory.
#[cube]
fn filter_of(slot: usize, #[comptime] kernel: OperatorKernel) -> (usize, usize) {
    if comptime!(kernel.layout.channels == 1) {
        (0usize.runtime(), slot)
    } else {
        let per_channel = comptime!(1 + 4 * kernel.layout.levels);
        (slot / per_channel, slot % per_channel)
    }
}

/// Loads the scaled filters of the cube's channels into shared memory, rotated if asked.
#[cube]
fn load_filters<P: Float>(
    filters: &Array<P>,
    scales: &ComptimeOption<Array<P>>,
    shared: &mut SharedMemory<f32>,
    unit: usize,
    channel: usize,
    bank: &FilterBank,
    grid: &Grid,
    #[comptime] kernel: OperatorKernel,
) {
    // A power of two of lanes for each filter: which taps a lane loads is a matter of shifts, the lanes' loads are neighbours.
    let taps = comptime!(kernel.layout.kernel_size * kernel.layout.kernel_size);
    let lanes = comptime!(kernel.lanes_per_filter());
    let per_lane = comptime!(taps.div_ceil(kernel.lanes_per_filter()));
    let threads = comptime!(kernel.layout.threads);
    // All loads of a lane, and those of two rounds, fly together: waiting for each in turn would take as long as a convolution.
    // Their indices are clamped rather than guarded, for no branch may come between them.
    let together = comptime!(kernel.filters_together());
    let mut first = unit;
    while first < comptime!(kernel.filter_lanes()) {
        let mut values = Array::<f32>::new(comptime!(together * per_lane));
        let mut factors = Array::<f32>::new(together);
        #[unroll]
        for k in 0..together {
            let i = first + comptime!(k * threads);
            let slot =
                select(i / lanes < comptime!(kernel.filters()), i / lanes, comptime!(kernel.filters() - 1));
            let (set, filter) = filter_of(slot, kernel);
            let owner = select(channel + set < grid.channels, channel + set, grid.channels - 1);
            let from = filter_at(bank, owner, filter);
            factors[k] = scale_of::<P>(scales, bank, owner, filter) * haar_norm(filter);
            #[unroll]
            for j in 0..per_lane {
                let tap = last_tap(i % lanes + comptime!(j * lanes), comptime!((j + 1) * lanes), taps);
                let source = if comptime!(kernel.rotate) { comptime!(taps - 1) - tap } else { tap };
                values[comptime!(k * per_lane + j)] =
                    f32::cast_from(filters[from + tap_at(bank, source, kernel.layout.kernel_size)]);
            }
        }
        #[unroll]
        for k in 0..together {
            let i = first + comptime!(k * threads);
            if i < comptime!(kernel.filter_lanes()) {
                let to = i / lanes * comptime!(filter_pitch(kernel.layout.kernel_size)) + i % lanes;
                #[unroll]
                for j in 0..per_lane {
                    if comptime!((j + 1) * lanes <= taps) || i % lanes + comptime!(j * lanes) < taps {
                        shared[to + comptime!(j * lanes)] = values[comptime!(k * per_lane + j)] * factors[k];
                    }
                }
            }
        }
        first += comptime!(together * threads);
    }
}

/// `tap`, or the last of `taps` where it lies past that; `end` is one past the largest `tap` can be.
#[cube]
fn last_tap(tap: usize, #[comptime] end: usize, #[comptime] taps: usize) -> usize {
    if comptime!(end <= taps) { tap } else { select(tap < taps, tap, comptime!(taps - 1)) }
}

/// Adds the convolution of one tile with the kernel's filter `filter` of cube channel `set` to `sums`.
#[cube]
fn convolve<P: Float>(
    shared: &SharedMemory<f32>,
    filters: &Array<P>,
    scales: &ComptimeOption<Array<P>>,
    origin: usize,
    pitch: usize,
    set: usize,
    filter: usize,
    channel: usize,
    bank: &FilterBank,
    sums: &mut Array<f32>,
    #[comptime] rows: usize,
    #[comptime] kernel: OperatorKernel,
) {
    let layout = comptime!(kernel.layout);
    let kernel_size = comptime!(layout.kernel_size);
    if comptime!(kernel.register_taps()) {
        let mut taps = Array::<f32>::new(comptime!(layout.kernel_size * layout.kernel_size));
        load_taps(
            shared,
            set * comptime!(1 + 4 * layout.levels) + filter,
            &mut taps,
            kernel_size,
            comptime!(layout.access()),
        );
        convolve_tile(shared, origin, pitch, &taps, sums, rows, layout);
    } else {
        let first = filter_at(bank, channel + set, filter);
        let scale = scale_of::<P>(scales, bank, channel + set, filter) * haar_norm(filter);
        for ky in 0..kernel_size {
            let mut taps = Array::<f32>::new(kernel_size);
            #[unroll]
            for kx in 0..kernel_size {
                let tap = ky * kernel_size + kx;
                let source = if comptime!(kernel.rotate) {
                    comptime!(layout.kernel_size * layout.kernel_size - 1) - tap
                } else {
                    tap
                };
                taps[kx] = f32::cast_from(filters[first + tap_at(bank, source, kernel_size)]) * scale;
            }
            convolve_tile_row(shared, origin + ky * pitch, pitch, &taps, sums, rows, layout);
        }
    }
}

/// Buffer, tile row and tile column of tile slot `slot` of `level`. At level 0 lanes run over channels first, as
/// the loads do.
#[cube]
pub(crate) fn tile_of(
    slot: usize,
    #[comptime] level: usize,
    #[comptime] layout: Layout,
) -> (usize, usize, usize) {
    let mut buffer = slot / comptime!(layout.buffer_slots(level));
    let mut tile = slot % comptime!(layout.buffer_slots(level));
    if comptime!(layout.channels > 1 && level == 0) {
        let (plane, item) = over_channels(slot, comptime!(layout.buffer_slots(level)), layout);
        buffer = plane;
        tile = item;
    }
    if comptime!(layout.column_lanes(level)) {
        (buffer, tile % comptime!(layout.tiles_y(level)), tile / comptime!(layout.tiles_y(level)))
    } else {
        (buffer, tile / comptime!(layout.lanes_x(level)), tile % comptime!(layout.lanes_x(level)))
    }
}

/// Quad of the first input row of a tile (its gap rows and lead columns included).
#[cube]
pub(crate) fn tile_origin(
    buffer: usize,
    tile_y: usize,
    tile_x: usize,
    #[comptime] level: usize,
    #[comptime] layout: Layout,
) -> usize {
    comptime!(layout.offset(level) / QUAD)
        + buffer * comptime!(layout.stride(level) / QUAD)
        + tile_y * comptime!(layout.tile(level) * layout.pitch(level) / QUAD)
        + tile_x
}

/// Float at which the result `(y, x)` of buffer `buffer` lies.
#[cube]
fn result_at(
    buffer: usize,
    y: usize,
    x: usize,
    #[comptime] level: usize,
    #[comptime] layout: Layout,
) -> usize {
    comptime!(layout.offset(level) + layout.gap(level) * layout.pitch(level))
        + buffer * comptime!(layout.stride(level))
        + y * comptime!(layout.pitch(level))
        + x
}

/// Convolves all subbands in place. Starts after and ends with a barrier.
#[cube]
fn convolve_subbands<P: Float>(
    shared: &mut SharedMemory<f32>,
    filters: &Array<P>,
    scales: &ComptimeOption<Array<P>>,
    unit: usize,
    channel: usize,
    bank: &FilterBank,
    grid: &Grid,
    #[comptime] kernel: OperatorKernel,
) {
    let layout = comptime!(kernel.layout);
    let threads = comptime!(layout.threads);
    #[unroll]
    for level in 1..comptime!(layout.levels + 1) {
        if comptime!(layout.clipped(level)) {
            let mut buffer = unit;
            while buffer < comptime!(layout.buffers(level)) {
                convolve_clipped_in_place(shared, buffer, level, kernel);
                buffer += threads;
            }
        }
    }
    for round in 0..comptime!(layout.rounds()) {
        let mut origin = 0usize;
        let mut pitch = 0usize;
        let mut filter = 0usize;
        let mut set = 0usize;
        let mut result = 0usize;
        let mut active = false;
        #[unroll]
        for level in 1..comptime!(layout.levels + 1) {
            if comptime!(!layout.clipped(level)) {
                let schedule = comptime!(layout.schedule(level));
                let slots = comptime!(schedule.per_round * layout.buffer_slots(level));
                if round >= schedule.round
                    && unit >= schedule.first
                    && unit < comptime!(schedule.first + slots)
                {
                    let slot = (round - schedule.round) * slots + unit - schedule.first;
                    let (buffer, tile_y, tile_x) = tile_of(slot, level, layout);
                    if buffer < comptime!(layout.buffers(level)) && tile_x < comptime!(layout.tiles_x(level))
                    {
                        origin = tile_origin(buffer, tile_y, tile_x, level, layout);
                        pitch = comptime!(layout.pitch(level) / QUAD).runtime();
                        result = origin + comptime!(layout.gap(level) * layout.pitch(level) / QUAD);
                        filter = buffer / comptime!(layout.planes) + comptime!(4 * level - 3);
                        set = buffer % comptime!(layout.planes) % comptime!(layout.channels);
                        active = channel + set < grid.channels;
                    }
                }
            }
        }
        let mut sums = Array::<f32>::new(comptime!(layout.tile_rows * QUAD));
        #[unroll]
        for e in 0..comptime!(layout.tile_rows * QUAD) {
            sums[e] = 0.0f32;
        }
        if active {
            convolve::<P>(
                shared,
                filters,
                scales,
                origin,
                pitch,
                set,
                filter,
                channel,
                bank,
                &mut sums,
                layout.tile_rows,
                kernel,
            );
        }
        sync_cube();
        if active {
            #[unroll]
            for r in 0..layout.tile_rows {
                write_quad(
                    shared,
                    result + r * pitch,
                    0i32,
                    &sums,
                    comptime!(r * QUAD),
                    comptime!(layout.access()),
                );
            }
        }
    }
    sync_cube();
}

/// Convolves a clipped buffer of `level` in place, by this thread alone.
#[cube]
fn convolve_clipped_in_place(
    shared: &mut SharedMemory<f32>,
    buffer: usize,
    #[comptime] level: usize,
    #[comptime] kernel: OperatorKernel,
) {
    let layout = comptime!(kernel.layout);
    let set = buffer % comptime!(layout.planes) % comptime!(layout.channels);
    let filter =
        set * comptime!(1 + 4 * layout.levels) + buffer / comptime!(layout.planes) + comptime!(4 * level - 3);
    let mut taps = Array::<f32>::new(comptime!(layout.kernel_size * layout.kernel_size));
    load_taps(shared, filter, &mut taps, layout.kernel_size, comptime!(layout.access()));
    let mut sums = Array::<f32>::new(comptime!(layout.rows(level) * layout.cols(level)));
    #[unroll]
    for e in 0..comptime!(layout.rows(level) * layout.cols(level)) {
        sums[e] = 0.0f32;
    }
    let origin = comptime!(layout.offset(level) / QUAD) + buffer * comptime!(layout.stride(level) / QUAD);
    convolve_clipped(shared, origin, &taps, &mut sums, level, layout);
    write_clipped(shared, origin, &sums, level, layout);
}

/// Writes the results of a clipped buffer; columns past the last become 0.
#[cube]
fn write_clipped(
    shared: &mut SharedMemory<f32>,
    origin: usize,
    sums: &Array<f32>,
    #[comptime] level: usize,
    #[comptime] layout: Layout,
) {
    let cols = comptime!(layout.cols(level));
    let mut quad = Array::<f32>::new(QUAD);
    #[unroll]
    for r in 0..comptime!(layout.rows(level)) {
        #[unroll]
        for q in 0..comptime!(layout.pitch(level) / QUAD) {
            #[unroll]
            for i in 0..QUAD {
                if comptime!(q * QUAD + i < cols) {
                    quad[i] = sums[comptime!(r * cols + q * QUAD + i)];
                } else {
                    quad[i] = 0.0f32;
                }
            }
            write_quad(
                shared,
                origin,
                comptime!((r * (layout.pitch(level) / QUAD) + q) as i32),
                &quad,
                0usize,
                comptime!(layout.access()),
            );
        }
    }
}

/// Adds the contribution of the levels below level 1 to its low-pass subband. Ends with a barrier if it does anything.
#[cube]
fn collect_deeper(
    shared: &mut SharedMemory<f32>,
    carried: &ComptimeOption<Array<f32>>,
    carried_view: &View,
    grid: &Grid,
    place: &Place,
    unit: usize,
    #[comptime] layout: Layout,
) {
    if comptime!(layout.levels > 1) {
        let cols = comptime!(layout.cols(2));
        let per_plane = comptime!(layout.rows(2) * layout.cols(2));
        let mut i = unit;
        while i < comptime!(layout.planes * layout.rows(2) * layout.cols(2)) {
            let plane = i / per_plane;
            let y = i % per_plane / cols;
            let x = i % cols;
            let mut deeper = carried_value(carried, carried_view, grid, place, plane, y, x, 2usize, layout);
            #[unroll]
            for step in 0..comptime!(layout.levels - 2) {
                let level = comptime!(layout.levels - step);
                let at =
                    result_at(plane, y >> comptime!(level - 2), x >> comptime!(level - 2), level, layout);
                let subband = comptime!(layout.subband_stride(level));
                let sign_y = 1.0f32 - 2.0f32 * f32::cast_from((y >> comptime!(level - 3)) & 1);
                let sign_x = 1.0f32 - 2.0f32 * f32::cast_from((x >> comptime!(level - 3)) & 1);
                let even = fma(sign_y, shared[at + subband], shared[at] + deeper);
                let odd = fma(sign_y, shared[at + 3 * subband], shared[at + 2 * subband]);
                deeper = fma(sign_x, odd, even);
            }
            let at = result_at(plane, y, x, 2usize, layout);
            let subband = comptime!(layout.subband_stride(2));
            let (a, b, c, d) = butterflies(
                shared[at] + deeper,
                shared[at + subband],
                shared[at + 2 * subband],
                shared[at + 3 * subband],
            );
            let to = result_at(plane, y * 2, x * 2, 1usize, layout) / 2;
            let (a1, b1) = read_pair(shared, to, 0i32, comptime!(layout.access()));
            write_pair(shared, to, 0i32, a1 + a, b1 + b, comptime!(layout.access()));
            if comptime!(layout.rows(1).is_multiple_of(2)) || y * 2 + 1 < comptime!(layout.rows(1)) {
                let to = to + comptime!(layout.pitch(1) / 2);
                let (c1, d1) = read_pair(shared, to, 0i32, comptime!(layout.access()));
                write_pair(shared, to, 0i32, c1 + c, d1 + d, comptime!(layout.access()));
            }
            i += comptime!(layout.threads);
        }
        sync_cube();
    } else {
        if comptime!(carried.is_some()) {
            let cols = comptime!(layout.cols(1));
            let per_plane = comptime!(layout.rows(1) * layout.cols(1));
            let mut i = unit;
            while i < comptime!(layout.planes * layout.rows(1) * layout.cols(1)) {
                let plane = i / per_plane;
                let y = i % per_plane / cols;
                let x = i % cols;
                let at = result_at(plane, y, x, 1usize, layout);
                shared[at] += carried_value(carried, carried_view, grid, place, plane, y, x, 1usize, layout);
                i += comptime!(layout.threads);
            }
            sync_cube();
        }
    }
}

/// What deeper levels contribute to the low-pass coefficient `(y, x)` of `level`, the window's deepest, in the units of the
/// unnormalised synthesis; 0 where nothing is carried.
#[cube]
fn carried_value(
    carried: &ComptimeOption<Array<f32>>,
    view: &View,
    grid: &Grid,
    place: &Place,
    plane: usize,
    y: usize,
    x: usize,
    #[comptime] level: usize,
    #[comptime] layout: Layout,
) -> f32 {
    let mut value = 0.0f32;
    if comptime!(carried.is_some()) {
        let (batch, channel) = plane_of(place, plane, layout);
        let row = (place.row >> level) + y;
        let column = (place.column >> level) + x;
        if batch < grid.batch
            && channel < grid.channels
            && row << level < grid.height
            && column << level < grid.width
        {
            let at = view.offset
                + batch * view.batch
                + channel * view.channel
                + row * view.row
                + column * view.column;
            let norm = comptime!(1.0 / (1u32 << level) as f32);
            let carried: ComptimeOption<f32> = carried.as_ref().map(|carried| carried[at]);
            value = carried.unwrap_or(0.0f32) * norm;
        }
    }
    value
}

/// `s0 * bias` of `channel`, 0 without a bias.
#[cube]
fn scaled_bias<P: Float>(
    scales: &ComptimeOption<Array<P>>,
    bias: &ComptimeOption<Array<P>>,
    channel: usize,
    bank: &FilterBank,
    grid: &Grid,
) -> f32 {
    let mut value = 0.0f32;
    if comptime!(bias.is_some()) && channel < grid.channels {
        let bias: ComptimeOption<P> = bias.as_ref().map(|bias| bias[channel]);
        value = f32::cast_from(bias.unwrap_or(P::new(0.0))) * scale_of::<P>(scales, bank, channel, 0usize);
    }
    value
}

/// Loads `s0 * bias` of the cube's channels to the place behind the taps of their base filters.
#[cube]
fn load_biases<P: Float>(
    scales: &ComptimeOption<Array<P>>,
    bias: &ComptimeOption<Array<P>>,
    shared: &mut SharedMemory<f32>,
    unit: usize,
    channel: usize,
    bank: &FilterBank,
    grid: &Grid,
    #[comptime] kernel: OperatorKernel,
) {
    if comptime!(bias.is_some()) {
        let mut set = unit;
        while set < comptime!(kernel.layout.channels) {
            shared[set * comptime!(kernel.bias_pitch()) + comptime!(kernel.layout.kernel_size.pow(2))] =
                scaled_bias::<P>(scales, bias, channel + set, bank, grid);
            set += comptime!(kernel.layout.threads);
        }
    }
}

/// `s0 * bias` of the cube's channel `set`, from where [`load_biases`] has put it if the kernel keeps filters there.
#[cube]
fn bias_of<P: Float>(
    shared: &SharedMemory<f32>,
    scales: &ComptimeOption<Array<P>>,
    bias: &ComptimeOption<Array<P>>,
    set: usize,
    channel: usize,
    bank: &FilterBank,
    grid: &Grid,
    #[comptime] kernel: OperatorKernel,
) -> f32 {
    if comptime!(bias.is_some() && kernel.register_taps()) {
        shared[set * comptime!(kernel.bias_pitch()) + comptime!(kernel.layout.kernel_size.pow(2))]
    } else {
        scaled_bias::<P>(scales, bias, channel, bank, grid)
    }
}

/// Level 0 in register tiles: convolution, last synthesis step, store.
#[cube]
fn finish_tiles<F: Float, P: Float>(
    shared: &SharedMemory<f32>,
    filters: &Array<P>,
    scales: &ComptimeOption<Array<P>>,
    bias: &ComptimeOption<Array<P>>,
    y: &mut Array<F>,
    view: &View,
    grid: &Grid,
    place: &Place,
    unit: usize,
    bank: &FilterBank,
    #[comptime] kernel: OperatorKernel,
) {
    let layout = comptime!(kernel.layout);
    let rows = comptime!(layout.base_rows);
    let vector = comptime!(kernel.store);
    let mut slot = unit;
    while slot < comptime!(layout.slots(0)) {
        let (plane, tile_y, tile_x) = tile_of(slot, 0usize, layout);
        let (batch, channel) = plane_of(place, plane, layout);
        if tile_x < comptime!(layout.tiles_x(0)) && batch < grid.batch && channel < grid.channels {
            let mut sums = Array::<f32>::new(comptime!(layout.base_rows * QUAD));
            let set = plane % comptime!(layout.channels);
            let initial = bias_of::<P>(shared, scales, bias, set, channel, bank, grid, kernel);
            #[unroll]
            for e in 0..comptime!(layout.base_rows * QUAD) {
                sums[e] = initial;
            }
            if layout.base {
                let origin = tile_origin(plane, tile_y, tile_x, 0usize, layout);
                let pitch = comptime!(layout.pitch(0) / QUAD).runtime();
                convolve::<P>(
                    shared,
                    filters,
                    scales,
                    origin,
                    pitch,
                    set,
                    0usize,
                    place.channel,
                    bank,
                    &mut sums,
                    rows,
                    kernel,
                );
            }
            if comptime!(layout.levels > 0) {
                synthesise_tile(shared, plane, tile_y, tile_x, &mut sums, layout);
            }
            let first = view.offset
                + batch * view.batch
                + channel * view.channel
                + (place.row + tile_y * rows) * view.row
                + (place.column + tile_x * QUAD) * view.column;
            #[unroll]
            for r in 0..rows {
                let row = tile_y * rows + r;
                if (comptime!(layout.height.is_multiple_of(layout.base_rows))
                    || row < comptime!(layout.height))
                    && (comptime!(layout.resident) || place.row + row < grid.height)
                {
                    #[unroll]
                    for e in 0..comptime!(QUAD / vector) {
                        let column = tile_x * QUAD + comptime!(e * vector);
                        if (comptime!(layout.width.is_multiple_of(QUAD)) || column < comptime!(layout.width))
                            && (comptime!(layout.resident) || place.column + column < grid.width)
                        {
                            store::<F>(
                                y,
                                first + r * view.row + comptime!(e * vector) * view.column,
                                &sums,
                                comptime!(r * QUAD + e * vector),
                                vector,
                            );
                        }
                    }
                }
            }
        }
        slot += comptime!(layout.threads);
    }
}

/// Adds the last synthesis step to a tile of level 0.
#[cube]
fn synthesise_tile(
    shared: &SharedMemory<f32>,
    plane: usize,
    tile_y: usize,
    tile_x: usize,
    sums: &mut Array<f32>,
    #[comptime] layout: Layout,
) {
    let rows = comptime!(layout.base_rows);
    // A tile of odd height starts in the middle of a coefficient's 2x2 block in every second tile row.
    let steps = comptime!(layout.base_rows / 2 + layout.base_rows % 2);
    let subband = comptime!(layout.subband_stride(1) / 2);
    let first = result_at(plane, tile_y * rows / 2, tile_x * 2, 1usize, layout) / 2;
    let mut synthesis = Array::<f32>::new(comptime!((layout.base_rows + layout.base_rows % 2) * QUAD));
    #[unroll]
    for r in 0..steps {
        let at = first + r * comptime!(layout.pitch(1) / 2);
        let (ll0, ll1) = read_pair(shared, at, 0i32, comptime!(layout.access()));
        let (lh0, lh1) = read_pair(shared, at + subband, 0i32, comptime!(layout.access()));
        let (hl0, hl1) = read_pair(shared, at + 2 * subband, 0i32, comptime!(layout.access()));
        let (hh0, hh1) = read_pair(shared, at + 3 * subband, 0i32, comptime!(layout.access()));
        let (a0, b0, c0, d0) = butterflies(ll0, lh0, hl0, hh0);
        let (a1, b1, c1, d1) = butterflies(ll1, lh1, hl1, hh1);
        let to = comptime!(2 * r * QUAD);
        synthesis[to] = a0;
        synthesis[comptime!(to + 1)] = b0;
        synthesis[comptime!(to + 2)] = a1;
        synthesis[comptime!(to + 3)] = b1;
        synthesis[comptime!(to + 4)] = c0;
        synthesis[comptime!(to + 5)] = d0;
        synthesis[comptime!(to + 6)] = c1;
        synthesis[comptime!(to + 7)] = d1;
    }
    if comptime!(layout.base_rows.is_multiple_of(2) || layout.tiles_y(0) == 1) {
        #[unroll]
        for e in 0..comptime!(layout.base_rows * QUAD) {
            sums[e] = sums[e] + synthesis[e];
        }
    } else {
        if tile_y % 2 == 1 {
            #[unroll]
            for e in 0..comptime!(layout.base_rows * QUAD) {
                sums[e] = sums[e] + synthesis[comptime!(e + QUAD)];
            }
        } else {
            #[unroll]
            for e in 0..comptime!(layout.base_rows * QUAD) {
                sums[e] = sums[e] + synthesis[e];
            }
        }
    }
}

/// Level 0 where one thread convolves a whole plane: the results go back to shared memory, from where all threads store
/// them, so that neighbouring lanes store neighbouring elements.
#[cube]
fn finish_clipped<F: Float, P: Float>(
    shared: &mut SharedMemory<f32>,
    scales: &ComptimeOption<Array<P>>,
    bias: &ComptimeOption<Array<P>>,
    y: &mut Array<F>,
    view: &View,
    grid: &Grid,
    place: &Place,
    unit: usize,
    bank: &FilterBank,
    #[comptime] kernel: OperatorKernel,
) {
    let layout = comptime!(kernel.layout);
    let width = comptime!(layout.width);
    let mut plane = unit;
    while plane < layout.planes {
        let (_batch, channel) = plane_of(place, plane, layout);
        let mut sums = Array::<f32>::new(comptime!(layout.height * layout.width));
        let set = plane % comptime!(layout.channels);
        let initial = bias_of::<P>(shared, scales, bias, set, channel, bank, grid, kernel);
        #[unroll]
        for e in 0..comptime!(layout.height * layout.width) {
            sums[e] = initial;
        }
        if comptime!(layout.levels > 0) {
            synthesise_clipped(shared, plane, &mut sums, layout);
        }
        let mut taps = Array::<f32>::new(comptime!(layout.kernel_size * layout.kernel_size));
        load_taps(
            shared,
            set * comptime!(1 + 4 * layout.levels),
            &mut taps,
            layout.kernel_size,
            comptime!(layout.access()),
        );
        let origin = comptime!(layout.offset(0) / QUAD) + plane * comptime!(layout.stride(0) / QUAD);
        convolve_clipped(shared, origin, &taps, &mut sums, 0usize, layout);
        write_clipped(shared, origin, &sums, 0usize, layout);
        plane += comptime!(layout.threads);
    }
    sync_cube();
    let per_plane = comptime!(layout.height * layout.width);
    let mut i = unit;
    while i < comptime!(layout.planes * layout.height * layout.width) {
        let (plane, sample) = over_channels(i, per_plane, layout);
        let (batch, channel) = plane_of(place, plane, layout);
        if batch < grid.batch && channel < grid.channels {
            let row = sample / width;
            let column = sample % width;
            let to = view.offset
                + batch * view.batch
                + channel * view.channel
                + row * view.row
                + column * view.column;
            y[to] = F::cast_from(shared[result_at(plane, row, column, 0usize, layout)]);
        }
        i += comptime!(layout.threads);
    }
}

/// Adds the last synthesis step to a whole clipped plane.
#[cube]
fn synthesise_clipped(
    shared: &SharedMemory<f32>,
    plane: usize,
    sums: &mut Array<f32>,
    #[comptime] layout: Layout,
) {
    let (height, width) = comptime!((layout.height, layout.width));
    let subband = comptime!(layout.subband_stride(1));
    #[unroll]
    for r in 0..comptime!(layout.rows(1)) {
        #[unroll]
        for x in 0..comptime!(layout.cols(1)) {
            let at = result_at(plane, r, x, 1usize, layout);
            let (a, b, c, d) = butterflies(
                shared[at],
                shared[at + subband],
                shared[at + 2 * subband],
                shared[at + 3 * subband],
            );
            let to = comptime!(2 * r * width + 2 * x);
            sums[to] = sums[to] + a;
            if comptime!(2 * x + 1 < width) {
                sums[comptime!(to + 1)] = sums[comptime!(to + 1)] + b;
            }
            if comptime!(2 * r + 1 < height) {
                sums[comptime!(to + width)] = sums[comptime!(to + width)] + c;
            }
            if comptime!(2 * x + 1 < width && 2 * r + 1 < height) {
                sums[comptime!(to + width + 1)] = sums[comptime!(to + width + 1)] + d;
            }
        }
    }
}
