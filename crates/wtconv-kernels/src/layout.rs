//! Shared-memory layout of the pyramid and the mapping of threads to it: the numbers that the kernels know when they
//! are compiled.
//!
//! A cube holds a *window* of each of its planes: the whole plane ("resident"), or a piece of it with a halo. Level 0 is
//! the window itself, level `l >= 1` has the four subbands of that level, each in a buffer of its own. A buffer is rows of
//! `pitch` floats; sample `(y, x)` of buffer `q` is read at
//!
//! ```text
//! offset(l) + q * stride(l) + (gap(l) + y) * pitch(l) + lead(l) + x        q = subband * planes + plane
//! ```
//!
//! so that the taps left of and above the first sample fall on `lead` columns and `gap` rows that hold zeros (resident)
//! or the halo. A convolution writes its results over its input, shifted to column 0 where a row is 16-byte aligned:
//!
//! ```text
//! offset(l) + q * stride(l) + (gap(l) + y) * pitch(l) + x
//! ```
//!
//! Resident planes share the gap rows between neighbours: the rows below one plane are the rows above the next.
//!
//! A *tile* is what one thread convolves at a time in registers: `tile_rows` rows of 4 columns. A level whose planes are
//! at most `clip` on a side is convolved by one thread a subband instead ("clipped"): taps outside are left out at compile
//! time, so that such a level needs neither gap nor lead.

use crate::problem::halved;

/// Columns of a register tile, and floats of a 128-bit shared-memory access.
pub const QUAD: usize = 4;
/// Side of the blocks in which planes are loaded: two analysis steps run on such a block in registers.
pub const BLOCK: usize = 4;
/// Analysis levels that a block yields.
pub const BLOCK_LEVELS: usize = 2;

/// Where the tiles of a subband level fall in the rounds of a convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Schedule {
    /// First round.
    pub round: usize,
    /// First thread in each of its rounds.
    pub first: usize,
    /// Whole buffers in each of its rounds.
    pub per_round: usize,
}

/// How shared memory is read and written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Access {
    /// Float by float.
    Floats,
    /// As vectors of 2 and 4 floats.
    Vectors,
    /// As vectors, by sums of 64-bit numbers, which CUDA's compiler can take apart: 7 to 14 % fewer instructions. Not for windows: with
    /// cheap addresses it fetches so far ahead that the operator takes more registers than three cubes of a multiprocessor have.
    Addresses,
}

impl Access {
    /// Whether more than one float is read or written at once.
    pub(crate) const fn vectors(self) -> bool {
        !matches!(self, Self::Floats)
    }
}

/// Layout of one pyramid in shared memory; every field is known when the kernel is compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Layout {
    /// Side of the filters, odd; 1 for a pyramid that is only read point by point (the cotangent's).
    pub kernel_size: usize,
    /// Rows of the window at level 0, halo not counted.
    pub height: usize,
    /// Columns of the window at level 0, halo not counted.
    pub width: usize,
    /// Wavelet levels in shared memory.
    pub levels: usize,
    /// Planes of a cube: `channels` neighbouring channels of `planes / channels` images, channels first.
    pub planes: usize,
    /// Channels of a cube; more than 1 where they are neighbours in memory.
    pub channels: usize,
    /// Whether the window is the whole plane.
    pub resident: bool,
    /// Whether level 0 is kept; it is not where only the wavelet branch is wanted.
    pub base: bool,
    /// Rows of a register tile at level 0.
    pub base_rows: usize,
    /// Rows of a register tile at the subband levels.
    pub tile_rows: usize,
    /// Largest side of a level that one thread convolves whole; 0 for none.
    pub clip: usize,
    /// Threads of a cube.
    pub threads: usize,
    /// First float of the pyramid in shared memory, a multiple of 4.
    pub start: usize,
    /// Whether shared and global memory may be read as vectors of 2 and 4 (CUDA), or only float by float.
    pub vectors: bool,
    /// Whether convolutions are unrolled over all taps, as far as registers go, or run row by row of taps.
    pub unroll: bool,
}

impl Layout {
    /// How its kernels read and write shared memory.
    pub(crate) const fn access(&self) -> Access {
        match (self.vectors, self.resident) {
            (false, _) => Access::Floats,
            (true, false) => Access::Vectors,
            (true, true) => Access::Addresses,
        }
    }

    /// Taps on each side of a filter's centre.
    pub const fn radius(&self) -> usize {
        self.kernel_size / 2
    }

    /// Rows of the window at `level`.
    pub const fn rows(&self, level: usize) -> usize {
        halved(self.height, level)
    }

    /// Columns of the window at `level`.
    pub const fn cols(&self, level: usize) -> usize {
        halved(self.width, level)
    }

    /// Buffers a plane has at `level`.
    pub const fn subbands(&self, level: usize) -> usize {
        if level == 0 { 1 } else { 4 }
    }

    /// Buffers of `level`.
    pub const fn buffers(&self, level: usize) -> usize {
        self.planes * self.subbands(level)
    }

    /// Whether one thread convolves a whole buffer of `level`.
    pub const fn clipped(&self, level: usize) -> bool {
        self.resident
            && (self.base || level > 0)
            && self.rows(level) <= self.clip
            && self.cols(level) <= self.clip
    }

    /// Rows between a buffer's start and its first sample.
    pub const fn gap(&self, level: usize) -> usize {
        if self.clipped(level) { 0 } else { self.radius() }
    }

    /// Columns between a row's start and its first sample; even, so that pairs stay aligned.
    pub const fn lead(&self, level: usize) -> usize {
        if self.clipped(level) { 0 } else { self.radius().next_multiple_of(2) }
    }

    /// Rows of a register tile at `level`.
    pub const fn tile(&self, level: usize) -> usize {
        if level == 0 { self.base_rows } else { self.tile_rows }
    }

    /// Tiles that cover the rows of `level`.
    pub const fn tiles_y(&self, level: usize) -> usize {
        self.rows(level).div_ceil(self.tile(level))
    }

    /// Tiles that cover the columns of `level`.
    pub const fn tiles_x(&self, level: usize) -> usize {
        self.cols(level).div_ceil(QUAD)
    }

    /// Quads of an input row that a tile reads: its columns and the taps beside them.
    pub const fn tile_quads(&self) -> usize {
        (self.radius().next_multiple_of(2) + self.radius() + QUAD).div_ceil(QUAD)
    }

    /// Floats from one row of `level` to the next, a multiple of 4.
    pub const fn pitch(&self, level: usize) -> usize {
        if self.clipped(level) {
            self.cols(level).next_multiple_of(QUAD)
        } else {
            QUAD * (self.tiles_x(level) - 1 + self.tile_quads())
        }
    }

    /// Floats from one buffer of `level` to the next, a multiple of 4.
    pub const fn stride(&self, level: usize) -> usize {
        let floats = if self.clipped(level) {
            self.rows(level) * self.pitch(level)
        } else {
            let gaps = if self.resident { 1 } else { 2 };
            (gaps * self.gap(level) + self.tiles_y(level) * self.tile(level)) * self.pitch(level)
        };
        // Lanes on neighbouring buffers meet different banks: one thread a buffer reads quads, so that their number must be odd;
        // lanes over a few channels and then along a row leave each channel its share of the eight quads that the banks hold.
        let apart = if self.clipped(level) || self.channels >= 8 {
            1
        } else if self.channels > 1 {
            8 / self.channels
        } else {
            return floats;
        };
        let mut quads = floats / QUAD;
        while quads % (2 * apart) != apart {
            quads += 1;
        }
        quads * QUAD
    }

    /// Floats from one subband of `level` to the next.
    pub const fn subband_stride(&self, level: usize) -> usize {
        self.planes * self.stride(level)
    }

    /// Images of a cube.
    pub const fn images(&self) -> usize {
        self.planes / self.channels
    }

    /// Floats of `level`.
    pub const fn size(&self, level: usize) -> usize {
        if level == 0 && !self.base {
            return 0;
        }
        let below = if self.resident { self.gap(level) * self.pitch(level) } else { 0 };
        self.buffers(level) * self.stride(level) + below
    }

    /// First float of `level`.
    pub const fn offset(&self, level: usize) -> usize {
        let mut offset = self.start;
        let mut l = 0;
        while l < level {
            offset += self.size(l);
            l += 1;
        }
        offset
    }

    /// One past the last float that the kernels touch.
    pub const fn end(&self) -> usize {
        let end = self.offset(self.levels + 1);
        if self.levels == 0 {
            return end;
        }
        // The last synthesis step reads level 1 under whole tiles of level 0, rows that do not exist included.
        let last_row = (self.tiles_y(0) - 1) * self.base_rows / 2 + self.base_rows / 2;
        let last = self.offset(1)
            + (self.buffers(1) - 1) * self.stride(1)
            + (self.gap(1) + last_row + 1) * self.pitch(1);
        if last > end { last } else { end }
    }

    /// Whether neighbouring lanes take tiles below each other: free of bank conflicts when a tile's height is an odd number
    /// of quads.
    pub const fn column_lanes(&self, level: usize) -> bool {
        self.tiles_y(level).is_multiple_of(8) && (self.tile(level) * self.pitch(level) / QUAD) % 2 == 1
    }

    /// Lanes along x: padded to a power of two where rows are short, so that the lanes of one row meet different banks.
    pub const fn lanes_x(&self, level: usize) -> usize {
        let tiles = self.tiles_x(level);
        if self.column_lanes(level) || tiles > 8 { tiles } else { tiles.next_power_of_two() }
    }

    /// Tile slots of one buffer of `level`, idle lanes included.
    pub const fn buffer_slots(&self, level: usize) -> usize {
        self.tiles_y(level) * self.lanes_x(level)
    }

    /// Tile slots of `level`.
    pub const fn slots(&self, level: usize) -> usize {
        self.buffers(level) * self.buffer_slots(level)
    }

    /// Rounds in which the cube's threads work through the tiles of all subband levels, and where `level` begins.
    ///
    /// A convolution in place must not begin on a buffer of which another tile is still to be read in a later round, so the
    /// tiles of one buffer never straddle two rounds: short levels share a round, a level that does not fit what is left of
    /// a round begins a new one and takes as many whole buffers of each round as fit.
    pub const fn schedule(&self, level: usize) -> Schedule {
        let mut place = Schedule { round: 0, first: 0, per_round: 0 };
        let mut used = 0;
        let mut round = 0;
        let mut l = 1;
        while l <= level {
            if l <= self.levels && !self.clipped(l) {
                let slots = self.buffer_slots(l);
                let fitting = self.threads / slots;
                if self.slots(l) + used <= self.threads {
                    place = Schedule { round, first: used, per_round: self.buffers(l) };
                    used += self.slots(l);
                } else {
                    if used > 0 {
                        round += 1;
                    }
                    place = Schedule { round, first: 0, per_round: fitting };
                    let rounds = self.buffers(l).div_ceil(if fitting > 0 { fitting } else { 1 });
                    round += rounds - 1;
                    used = (self.buffers(l) - (rounds - 1) * fitting) * slots;
                }
            }
            l += 1;
        }
        if level > self.levels {
            place = Schedule { round: if used > 0 { round + 1 } else { round }, first: 0, per_round: 0 };
        }
        place
    }

    /// Rounds of the subband convolution.
    pub const fn rounds(&self) -> usize {
        self.schedule(self.levels + 1).round
    }

    /// The largest number of tile slots of one subband buffer: a cube needs at least as many threads.
    pub const fn largest_buffer(&self) -> usize {
        let mut largest = 1;
        let mut level = 1;
        while level <= self.levels {
            if !self.clipped(level) && self.buffer_slots(level) > largest {
                largest = self.buffer_slots(level);
            }
            level += 1;
        }
        largest
    }

    /// Blocks that the halo needs on each side of a window.
    pub const fn margin(&self) -> usize {
        if self.resident { 0 } else { (self.radius() << self.levels).div_ceil(BLOCK) }
    }

    /// Blocks along y, halo included.
    pub const fn blocks_y(&self) -> usize {
        self.height.div_ceil(BLOCK) + 2 * self.margin()
    }

    /// Blocks along x, halo included.
    pub const fn blocks_x(&self) -> usize {
        self.width.div_ceil(BLOCK) + 2 * self.margin()
    }

    /// Blocks of all planes.
    pub const fn blocks(&self) -> usize {
        self.planes * self.blocks_y() * self.blocks_x()
    }
}
