//! From device memory to the pyramid in shared memory: load, analyse, zero padding.
//!
//! Planes are loaded in 4x4 blocks, one block a thread at a time, into registers ([`fetch`]). Two analysis steps run there,
//! and the block leaves its 16 samples of level 0, the 2x2 coefficients of the four subbands of level 1 and the one of each
//! subband of level 2 in shared memory ([`scatter`]). Deeper levels are analysed from shared memory ([`analyse`]); only
//! resident planes have them.
//!
//! Samples outside the plane are loaded as 0. A coefficient whose block lies outside is then 0 as well, which is exactly
//! the padding that each level wants: extents are ceil-halvings, so that no coefficient beyond a level's extent sees a
//! sample of the plane.
//!
//! Fetching and scattering are two steps so that a kernel can put independent work between them, while the loads fly. What is
//! fetched keeps its type: a conversion behind a load that only happens within bounds would wait for that load on the spot.

use cubecl::prelude::*;

use crate::haar::butterflies;
use crate::layout::{BLOCK, BLOCK_LEVELS, Layout};
use crate::shared::{read, write, write_pair};

/// Samples of a block.
pub(crate) const BLOCK_SAMPLES: usize = BLOCK * BLOCK;

/// Strides of a `[batch, channels, height, width]` tensor, in elements.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
pub(crate) struct View {
    /// Index of the first element.
    pub(crate) offset: usize,
    /// Elements from one image to the next.
    pub(crate) batch: usize,
    /// Elements from one channel to the next.
    pub(crate) channel: usize,
    /// Elements from one row to the next.
    pub(crate) row: usize,
    /// Elements from one column to the next.
    pub(crate) column: usize,
}

/// Extents of the tensor that the windows are cut from, and how cubes are numbered over it.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
pub(crate) struct Grid {
    /// Images.
    pub(crate) batch: usize,
    /// Channels.
    pub(crate) channels: usize,
    /// Rows of a plane.
    pub(crate) height: usize,
    /// Columns of a plane.
    pub(crate) width: usize,
    /// Windows along y.
    pub(crate) windows_y: usize,
    /// Windows along x.
    pub(crate) windows_x: usize,
    /// Groups of channels: as many as channels, or fewer where a cube takes several neighbouring ones.
    pub(crate) channel_groups: usize,
}

/// A cube's window: its first plane and its first sample.
#[derive(CubeType, Clone, Copy)]
pub(crate) struct Place {
    /// First image.
    pub(crate) batch: usize,
    /// First channel.
    pub(crate) channel: usize,
    /// First row.
    pub(crate) row: usize,
    /// First column.
    pub(crate) column: usize,
}

/// Index of this cube in a two-dimensional launch.
#[cube]
pub(crate) fn cube_index() -> usize {
    CUBE_POS_X as usize + CUBE_POS_Y as usize * CUBE_COUNT_X as usize
}

/// The window number `index` of a channel group: windows of one plane are neighbours, groups of images come last.
#[cube]
pub(crate) fn place_window(index: usize, channel: usize, grid: &Grid, #[comptime] layout: Layout) -> Place {
    let images = comptime!(layout.images());
    if layout.resident {
        Place { batch: index * images, channel, row: 0usize, column: 0usize }
    } else {
        let across = index % grid.windows_x;
        let rest = index / grid.windows_x;
        Place {
            batch: rest / grid.windows_y * images,
            channel,
            row: rest % grid.windows_y * comptime!(layout.height),
            column: across * comptime!(layout.width),
        }
    }
}

/// Image and channel of plane `plane` of a cube.
#[cube]
pub(crate) fn plane_of(place: &Place, plane: usize, #[comptime] layout: Layout) -> (usize, usize) {
    (place.batch + plane / comptime!(layout.channels), place.channel + plane % comptime!(layout.channels))
}

/// Plane, row and column (in blocks) of a block task; lanes run over channels first, so that their accesses are neighbours
/// where channels are neighbours in memory.
#[cube]
fn block_of(task: usize, #[comptime] layout: Layout) -> (usize, usize, usize) {
    let per_plane = comptime!(layout.blocks_y() * layout.blocks_x());
    let blocks_x = comptime!(layout.blocks_x());
    let (plane, block) = over_channels(task, per_plane, layout);
    (plane, block / blocks_x, block % blocks_x)
}

/// Plane and item of a task, of `per_plane` items a plane: channels run fastest, then items, then images.
#[cube]
pub(crate) fn over_channels(
    task: usize,
    #[comptime] per_plane: usize,
    #[comptime] layout: Layout,
) -> (usize, usize) {
    let channel = task % comptime!(layout.channels);
    let rest = task / comptime!(layout.channels);
    (rest / per_plane * comptime!(layout.channels) + channel, rest % per_plane)
}

/// Loads the blocks `first`, `first + threads`, ... (`count` of them) into `blocks`.
#[cube]
pub(crate) fn fetch<F: Float>(
    x: &Array<F>,
    view: &View,
    grid: &Grid,
    place: &Place,
    first: usize,
    blocks: &mut Array<F>,
    #[comptime] count: usize,
    #[comptime] vector: usize,
    #[comptime] layout: Layout,
) {
    let margin = comptime!(layout.margin() * BLOCK);
    #[unroll]
    for k in 0..count {
        let task = first + k * comptime!(layout.threads);
        if task < comptime!(layout.blocks()) {
            let (plane, block_y, block_x) = block_of(task, layout);
            let (batch, channel) = plane_of(place, plane, layout);
            let inside = batch < grid.batch && channel < grid.channels;
            let mut height = grid.height;
            let mut width = grid.width;
            if layout.resident {
                height = comptime!(layout.height).runtime();
                width = comptime!(layout.width).runtime();
            }
            let plane_offset = view.offset + batch * view.batch + channel * view.channel;
            // Counted from `margin` samples above and left of the plane, so that the halo needs no sign. Windows and margins are
            // whole blocks: a block is not cut by the plane's upper and left edge.
            let first_y = place.row + block_y * BLOCK;
            let first_x = place.column + block_x * BLOCK;
            let inside = inside && (comptime!(margin == 0) || (first_y >= margin && first_x >= margin));
            #[unroll]
            for r in 0..BLOCK {
                let y = first_y + r;
                let whole_y = comptime!(layout.resident && layout.height.is_multiple_of(BLOCK));
                let inside_y = inside && (whole_y || y < height + margin);
                #[unroll]
                for e in 0..comptime!(BLOCK / vector) {
                    let x_at = first_x + comptime!(e * vector);
                    let at = comptime!(k * BLOCK_SAMPLES + r * BLOCK + e * vector);
                    let whole_x = comptime!(layout.resident && layout.width.is_multiple_of(BLOCK));
                    if inside_y && (whole_x || x_at < width + margin) {
                        let from = plane_offset + (y - margin) * view.row + (x_at - margin) * view.column;
                        load::<F>(x, from, blocks, at, vector);
                    } else {
                        #[unroll]
                        for i in 0..vector {
                            blocks[comptime!(at + i)] = F::new(0.0);
                        }
                    }
                }
            }
        }
    }
}

/// Loads `vector` neighbouring elements.
#[cube]
pub(crate) fn load<F: Float>(
    x: &Array<F>,
    from: usize,
    into: &mut Array<F>,
    #[comptime] at: usize,
    #[comptime] vector: usize,
) {
    if comptime!(vector == 4) {
        let quad = x.to_slice().into_vectorized().with_vector_size::<Const<4>>()[from / 4];
        #[unroll]
        for i in 0..4usize {
            into[comptime!(at + i)] = quad[i];
        }
    } else {
        if comptime!(vector == 2) {
            let pair = x.to_slice().into_vectorized().with_vector_size::<Const<2>>()[from / 2];
            #[unroll]
            for i in 0..2usize {
                into[comptime!(at + i)] = pair[i];
            }
        } else {
            into[at] = x[from];
        }
    }
}

/// Stores `vector` neighbouring elements, `from[at ..]`.
#[cube]
pub(crate) fn store<F: Float>(
    y: &mut Array<F>,
    to: usize,
    from: &Array<f32>,
    #[comptime] at: usize,
    #[comptime] vector: usize,
) {
    if comptime!(vector == 4) {
        let mut quad = Vector::<F, Const<4>>::empty();
        #[unroll]
        for i in 0..4usize {
            quad[i] = F::cast_from(from[comptime!(at + i)]);
        }
        y.to_slice_mut().into_vectorized().with_vector_size::<Const<4>>()[to / 4] = quad;
    } else {
        if comptime!(vector == 2) {
            let mut pair = Vector::<F, Const<2>>::empty();
            #[unroll]
            for i in 0..2usize {
                pair[i] = F::cast_from(from[comptime!(at + i)]);
            }
            y.to_slice_mut().into_vectorized().with_vector_size::<Const<2>>()[to / 2] = pair;
        } else {
            y[to] = F::cast_from(from[at]);
        }
    }
}

/// Writes the samples and coefficients of fetched blocks to shared memory.
#[cube]
pub(crate) fn scatter<F: Float>(
    shared: &mut SharedMemory<f32>,
    first: usize,
    blocks: &Array<F>,
    #[comptime] count: usize,
    #[comptime] layout: Layout,
) {
    #[unroll]
    for k in 0..count {
        let task = first + k * comptime!(layout.threads);
        if task < comptime!(layout.blocks()) {
            let (plane, block_y, block_x) = block_of(task, layout);
            let mut samples = Array::<f32>::new(BLOCK_SAMPLES);
            #[unroll]
            for i in 0..BLOCK_SAMPLES {
                samples[i] = f32::cast_from(blocks[comptime!(k * BLOCK_SAMPLES + i)]);
            }
            if layout.base {
                #[unroll]
                for r in 0..BLOCK {
                    #[unroll]
                    for pair in 0..2usize {
                        let at = comptime!(r * BLOCK + pair * 2);
                        put_pair(
                            shared,
                            plane,
                            block_y,
                            block_x,
                            0usize,
                            r,
                            pair,
                            samples[at],
                            samples[comptime!(at + 1)],
                            layout,
                            0usize,
                        );
                    }
                }
            }
            if comptime!(layout.levels > 0) {
                // Coefficients of level 1: [row][subband][column].
                let mut level1 = Array::<f32>::new(BLOCK_SAMPLES);
                #[unroll]
                for y in 0..2usize {
                    #[unroll]
                    for x in 0..2usize {
                        let at = comptime!(y * 2 * BLOCK + x * 2);
                        let (ll, lh, hl, hh) = butterflies(
                            samples[at],
                            samples[comptime!(at + 1)],
                            samples[comptime!(at + BLOCK)],
                            samples[comptime!(at + BLOCK + 1)],
                        );
                        level1[comptime!(y * 8 + x)] = ll;
                        level1[comptime!(y * 8 + 2 + x)] = lh;
                        level1[comptime!(y * 8 + 4 + x)] = hl;
                        level1[comptime!(y * 8 + 6 + x)] = hh;
                    }
                }
                #[unroll]
                for y in 0..2usize {
                    #[unroll]
                    for s in 0..4usize {
                        let at = comptime!(y * 8 + s * 2);
                        put_pair(
                            shared,
                            plane,
                            block_y,
                            block_x,
                            s,
                            y,
                            0usize,
                            level1[at],
                            level1[comptime!(at + 1)],
                            layout,
                            1usize,
                        );
                    }
                }
                if comptime!(layout.levels > 1) {
                    let (ll, lh, hl, hh) = butterflies(level1[0], level1[1], level1[8], level1[9]);
                    put(shared, plane, block_y, block_x, 0usize, ll, layout, 2usize);
                    put(shared, plane, block_y, block_x, 1usize, lh, layout, 2usize);
                    put(shared, plane, block_y, block_x, 2usize, hl, layout, 2usize);
                    put(shared, plane, block_y, block_x, 3usize, hh, layout, 2usize);
                }
            }
        }
    }
}

/// Writes pair `pair` of row `row` of a block to its level where the level keeps that place. Blocks are counted from the
/// first one, halo included.
///
/// Addresses are counted in pairs and bounds in blocks, so that what is known at compile time is not computed for each pair.
#[cube]
fn put_pair(
    shared: &mut SharedMemory<f32>,
    plane: usize,
    block_y: usize,
    block_x: usize,
    #[comptime] subband: usize,
    #[comptime] row: usize,
    #[comptime] pair: usize,
    a: f32,
    b: f32,
    #[comptime] layout: Layout,
    #[comptime] level: usize,
) {
    let side = comptime!(BLOCK >> level);
    // Rows and pairs between the first block and the first that the buffer holds.
    let above = comptime!(((layout.margin() * BLOCK) >> level).saturating_sub(layout.gap(level)));
    let left = comptime!((((layout.margin() * BLOCK) >> level) / 2).saturating_sub(layout.lead(level) / 2));
    let mut kept = true;
    if layout.resident {
        if comptime!(!layout.rows(level).is_multiple_of(side)) {
            kept = block_y < comptime!((layout.rows(level) - row.min(layout.rows(level))).div_ceil(side));
        }
    } else {
        let below = comptime!(above + layout.rows(level) + 2 * layout.gap(level));
        let right = comptime!(left + layout.pitch(level) / 2);
        kept = block_y >= comptime!(above.saturating_sub(row).div_ceil(side))
            && block_y < comptime!((below - row).div_ceil(side))
            && block_x >= comptime!(left.saturating_sub(pair).div_ceil(side / 2))
            && block_x < comptime!((right - pair).div_ceil(side / 2));
    }
    if kept {
        let first = if layout.resident {
            comptime!(layout.gap(level) * (layout.pitch(level) / 2) + layout.lead(level) / 2)
        } else {
            comptime!(0)
        };
        let to = plane * comptime!(layout.stride(level) / 2)
            + block_y * comptime!(side * (layout.pitch(level) / 2))
            + block_x * comptime!(side / 2);
        let offset = comptime!(
            ((layout.offset(level) + subband * layout.subband_stride(level)) / 2
                + row * (layout.pitch(level) / 2)
                + pair
                + first) as i32
                - (above * (layout.pitch(level) / 2) + left) as i32
        );
        write_pair(shared, to, offset, a, b, comptime!(layout.access()));
    }
}

/// Writes one sample of a block, as [`put_pair`] does with two.
#[cube]
fn put(
    shared: &mut SharedMemory<f32>,
    plane: usize,
    y: usize,
    x: usize,
    #[comptime] subband: usize,
    value: f32,
    #[comptime] layout: Layout,
    #[comptime] level: usize,
) {
    let margin = comptime!((layout.margin() * BLOCK) >> level);
    let (gap, lead) = comptime!((layout.gap(level), layout.lead(level)));
    let pitch = comptime!(layout.pitch(level));
    let at = plane * comptime!(layout.stride(level)) + y * pitch + x;
    let first = comptime!(layout.offset(level) + subband * layout.subband_stride(level) + gap * pitch + lead);
    if layout.resident {
        write(shared, at, comptime!(first as i32), value, comptime!(layout.access()));
    } else {
        if y + gap >= margin
            && y + gap < comptime!(margin + layout.rows(level) + 2 * layout.gap(level))
            && x + lead >= margin
            && x + lead < comptime!(margin + layout.pitch(level))
        {
            let first = comptime!(first as i32 - (margin * layout.pitch(level) + margin) as i32);
            write(shared, at, first, value, comptime!(layout.access()));
        }
    }
}

/// Analyses the levels that blocks do not reach, each from the low-pass subband above it. Starts and ends with a barrier.
#[cube]
pub(crate) fn analyse(shared: &mut SharedMemory<f32>, unit: usize, #[comptime] layout: Layout) {
    sync_cube();
    #[unroll]
    for level in comptime!(BLOCK_LEVELS + 1)..comptime!(layout.levels + 1) {
        analyse_level(shared, unit, level, layout);
        sync_cube();
    }
}

/// As [`analyse`] for two pyramids at once; the threads of one begin where those of the other end.
#[cube]
pub(crate) fn analyse_both(
    shared: &mut SharedMemory<f32>,
    unit: usize,
    #[comptime] one: Layout,
    #[comptime] other: Layout,
) {
    sync_cube();
    #[unroll]
    for level in comptime!(BLOCK_LEVELS + 1)..comptime!(one.levels + 1) {
        analyse_level(shared, unit, level, one);
        analyse_level(shared, comptime!(other.threads - 1) - unit, level, other);
        sync_cube();
    }
}

/// Coefficients `first`, `first + threads`, ... of `level`, a level that blocks do not reach.
#[cube]
fn analyse_level(
    shared: &mut SharedMemory<f32>,
    first: usize,
    #[comptime] level: usize,
    #[comptime] layout: Layout,
) {
    let above = comptime!(level - 1);
    let cols = comptime!(layout.cols(level));
    let per_plane = comptime!(layout.rows(level) * layout.cols(level));
    let mut i = first;
    while i < comptime!(layout.planes * layout.rows(level) * layout.cols(level)) {
        let plane = i / per_plane;
        let y = i % per_plane / cols;
        let x = i % cols;
        let from = plane * comptime!(layout.stride(above)) + y * comptime!(2 * layout.pitch(above)) + x * 2;
        let first = comptime!(
            (layout.offset(above) + layout.gap(above) * layout.pitch(above) + layout.lead(above)) as i32
        );
        let below = comptime!(first + layout.pitch(above) as i32);
        let mut b = 0.0f32;
        let mut c = 0.0f32;
        let mut d = 0.0f32;
        let has_right =
            comptime!(layout.cols(above).is_multiple_of(2)) || x * 2 + 1 < comptime!(layout.cols(above));
        let has_below =
            comptime!(layout.rows(above).is_multiple_of(2)) || y * 2 + 1 < comptime!(layout.rows(above));
        if has_right {
            b = read(shared, from, comptime!(first + 1), comptime!(layout.access()));
        }
        if has_below {
            c = read(shared, from, below, comptime!(layout.access()));
        }
        if has_right && has_below {
            d = read(shared, from, comptime!(below + 1), comptime!(layout.access()));
        }
        let (ll, lh, hl, hh) = butterflies(read(shared, from, first, comptime!(layout.access())), b, c, d);
        put(shared, plane, y, x, 0usize, ll, layout, level);
        put(shared, plane, y, x, 1usize, lh, layout, level);
        put(shared, plane, y, x, 2usize, hl, layout, level);
        put(shared, plane, y, x, 3usize, hh, layout, level);
        i += comptime!(layout.threads);
    }
}
