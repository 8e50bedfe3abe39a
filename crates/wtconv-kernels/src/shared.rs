//! Wide accesses to shared memory.
//!
//! CUDA reads scalar shared memory through vector views, one instruction for 2 or 4 floats; wgpu has no such views. The
//! choice is made at compile time, and kernels are written once in terms of quads (4 floats at an index that counts
//! quads) and pairs (2 floats at an index that counts pairs).

use cubecl::prelude::*;

use crate::layout::QUAD;

/// Copies quad `at` of shared memory to `into[first .. first + 4]`.
#[cube]
pub(crate) fn read_quad(
    shared: &SharedMemory<f32>,
    at: usize,
    into: &mut Array<f32>,
    #[comptime] first: usize,
    #[comptime] vectors: bool,
) {
    if vectors {
        let quad = shared.to_slice().into_vectorized().with_vector_size::<Const<4>>()[at];
        #[unroll]
        for i in 0..QUAD {
            into[comptime!(first + i)] = quad[i];
        }
    } else {
        #[unroll]
        for i in 0..QUAD {
            into[comptime!(first + i)] = shared[at * QUAD + i];
        }
    }
}

/// Copies `from[first .. first + 4]` to quad `at` of shared memory.
#[cube]
pub(crate) fn write_quad(
    shared: &mut SharedMemory<f32>,
    at: usize,
    from: &Array<f32>,
    #[comptime] first: usize,
    #[comptime] vectors: bool,
) {
    if vectors {
        let mut quad = Vector::<f32, Const<4>>::empty();
        #[unroll]
        for i in 0..QUAD {
            quad[i] = from[comptime!(first + i)];
        }
        shared.to_slice_mut().into_vectorized().with_vector_size::<Const<4>>()[at] = quad;
    } else {
        #[unroll]
        for i in 0..QUAD {
            shared[at * QUAD + i] = from[comptime!(first + i)];
        }
    }
}

/// The two floats of pair `at` of shared memory.
#[cube]
pub(crate) fn read_pair(shared: &SharedMemory<f32>, at: usize, #[comptime] vectors: bool) -> (f32, f32) {
    if vectors {
        let pair = shared.to_slice().into_vectorized().with_vector_size::<Const<2>>()[at];
        (pair[0usize], pair[1usize])
    } else {
        (shared[at * 2], shared[at * 2 + 1])
    }
}

/// Writes two floats to pair `at` of shared memory.
#[cube]
pub(crate) fn write_pair(
    shared: &mut SharedMemory<f32>,
    at: usize,
    a: f32,
    b: f32,
    #[comptime] vectors: bool,
) {
    if vectors {
        let mut pair = Vector::<f32, Const<2>>::empty();
        pair[0usize] = a;
        pair[1usize] = b;
        shared.to_slice_mut().into_vectorized().with_vector_size::<Const<2>>()[at] = pair;
    } else {
        shared[at * 2] = a;
        shared[at * 2 + 1] = b;
    }
}

/// Zeroes the floats `from..to` (multiples of 4) with all threads of the cube.
#[cube]
pub(crate) fn zero(
    shared: &mut SharedMemory<f32>,
    #[comptime] from: usize,
    #[comptime] to: usize,
    #[comptime] threads: usize,
    #[comptime] vectors: bool,
) {
    let mut zeros = Array::<f32>::new(QUAD);
    #[unroll]
    for i in 0..QUAD {
        zeros[i] = 0.0f32;
    }
    let mut at = UNIT_POS as usize + comptime!(from / QUAD);
    while at < comptime!(to / QUAD) {
        write_quad(shared, at, &zeros, 0usize, vectors);
        at += threads;
    }
}
