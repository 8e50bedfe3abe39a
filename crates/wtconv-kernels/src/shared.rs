//! Wide accesses to shared memory.
//!
//! CUDA reads scalar shared memory through vector views, one instruction for 2 or 4 floats; wgpu has no such views. The
//! choice is made at compile time, and kernels are written once in terms of quads (4 floats at an index that counts
//! quads) and pairs (2 floats at an index that counts pairs).

use cubecl::ir::{IndexAssignOperator, IndexOperator, Instruction, Operator};
use cubecl::prelude::*;

use crate::layout::{Access, QUAD};

/// Quads that a thread zeroes in a turn of a loop.
const ZEROED_TOGETHER: usize = 8;

/// `at + offset`, as a sum of 64-bit numbers if addresses are asked for: CUDA's compiler then computes one address of `at` for all
/// accesses around it, and makes `offset` a part of their instructions. A sum of 32-bit numbers could wrap for all it knows, so that
/// it computes each address by itself.
#[cube]
fn beside(at: usize, #[comptime] offset: i32, #[comptime] access: Access) -> usize {
    if comptime!(access == Access::Addresses) {
        index_of(u64::cast_from(at) + comptime!(offset as i64 as u64))
    } else {
        if comptime!(offset < 0) {
            at - comptime!(offset.unsigned_abs() as usize)
        } else {
            at + comptime!(offset.unsigned_abs() as usize)
        }
    }
}

/// `at + rows * pitch`, as in [`beside`].
#[cube]
pub(crate) fn below(at: usize, pitch: usize, #[comptime] rows: usize, #[comptime] access: Access) -> usize {
    if comptime!(access == Access::Addresses) {
        index_of(u64::cast_from(at) + comptime!(rows as u64) * u64::cast_from(pitch))
    } else {
        at + rows * pitch
    }
}

/// A 64-bit index; indices are of 32 bits otherwise.
#[cube]
#[allow(unused_variables, reason = "only its expansion uses what it is given")]
fn index_of(at: u64) -> usize {
    intrinsic!(|_| at.expand.into())
}

/// Vector `at` of shared memory, counted in vectors, by an index of any width: a slice's would become one of 32 bits.
#[cube]
#[allow(unused_variables, reason = "only its expansion uses what it is given")]
fn read_vector<N: Size>(shared: &SharedMemory<f32>, at: usize) -> Vector<f32, N> {
    intrinsic!(|scope| {
        let vector_size = N::__expand_value(scope);
        let list = *shared.expand;
        let out = scope.create_local(list.ty.with_vector_size(vector_size));
        let index = IndexOperator { list, index: *at.expand, vector_size, unroll_factor: 1 };
        scope.register(Instruction::new(Operator::UncheckedIndex(index), *out));
        out.into()
    })
}

/// Writes vector `at` of shared memory, as [`read_vector`] reads it.
#[cube]
#[allow(unused_variables, reason = "only its expansion uses what it is given")]
fn write_vector<N: Size>(shared: &mut SharedMemory<f32>, at: usize, value: Vector<f32, N>) {
    intrinsic!(|scope| {
        let vector_size = N::__expand_value(scope);
        let index = *at.expand;
        let assign = IndexAssignOperator { index, value: *value.expand, vector_size, unroll_factor: 1 };
        scope.register(Instruction::new(Operator::UncheckedIndexAssign(assign), *shared.expand));
    })
}

/// Float `at + offset` of shared memory.
#[cube]
pub(crate) fn read(
    shared: &SharedMemory<f32>,
    at: usize,
    #[comptime] offset: i32,
    #[comptime] access: Access,
) -> f32 {
    shared[beside(at, offset, access)]
}

/// Writes float `at + offset` of shared memory.
#[cube]
pub(crate) fn write(
    shared: &mut SharedMemory<f32>,
    at: usize,
    #[comptime] offset: i32,
    value: f32,
    #[comptime] access: Access,
) {
    shared[beside(at, offset, access)] = value;
}

/// Copies quad `at + offset` of shared memory to `into[first .. first + 4]`.
#[cube]
pub(crate) fn read_quad(
    shared: &SharedMemory<f32>,
    at: usize,
    #[comptime] offset: i32,
    into: &mut Array<f32>,
    #[comptime] first: usize,
    #[comptime] access: Access,
) {
    let at = beside(at, offset, access);
    if comptime!(access.vectors()) {
        let quad = read_vector::<Const<4>>(shared, at);
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

/// Copies `from[first .. first + 4]` to quad `at + offset` of shared memory.
#[cube]
pub(crate) fn write_quad(
    shared: &mut SharedMemory<f32>,
    at: usize,
    #[comptime] offset: i32,
    from: &Array<f32>,
    #[comptime] first: usize,
    #[comptime] access: Access,
) {
    let at = beside(at, offset, access);
    if comptime!(access.vectors()) {
        let mut quad = Vector::<f32, Const<4>>::empty();
        #[unroll]
        for i in 0..QUAD {
            quad[i] = from[comptime!(first + i)];
        }
        write_vector::<Const<4>>(shared, at, quad);
    } else {
        #[unroll]
        for i in 0..QUAD {
            shared[at * QUAD + i] = from[comptime!(first + i)];
        }
    }
}

/// The two floats of pair `at + offset` of shared memory.
#[cube]
pub(crate) fn read_pair(
    shared: &SharedMemory<f32>,
    at: usize,
    #[comptime] offset: i32,
    #[comptime] access: Access,
) -> (f32, f32) {
    let at = beside(at, offset, access);
    if comptime!(access.vectors()) {
        let pair = read_vector::<Const<2>>(shared, at);
        (pair[0usize], pair[1usize])
    } else {
        (shared[at * 2], shared[at * 2 + 1])
    }
}

/// Writes two floats to pair `at + offset` of shared memory.
#[cube]
pub(crate) fn write_pair(
    shared: &mut SharedMemory<f32>,
    at: usize,
    #[comptime] offset: i32,
    a: f32,
    b: f32,
    #[comptime] access: Access,
) {
    let at = beside(at, offset, access);
    if comptime!(access.vectors()) {
        let mut pair = Vector::<f32, Const<2>>::empty();
        pair[0usize] = a;
        pair[1usize] = b;
        write_vector::<Const<2>>(shared, at, pair);
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
    #[comptime] access: Access,
) {
    let mut zeros = Array::<f32>::new(QUAD);
    #[unroll]
    for i in 0..QUAD {
        zeros[i] = 0.0f32;
    }
    let unit = UNIT_POS as usize;
    let first = comptime!((from / QUAD) as i32);
    let rounds = comptime!((to - from) / QUAD / threads);
    let chunks = comptime!((to - from) / QUAD / threads / ZEROED_TOGETHER);
    for chunk in 0..chunks {
        #[unroll]
        for round in 0..ZEROED_TOGETHER {
            let offset = comptime!(first + (round * threads) as i32);
            write_quad(shared, unit + chunk * (ZEROED_TOGETHER * threads), offset, &zeros, 0usize, access);
        }
    }
    #[unroll]
    for round in comptime!(chunks * ZEROED_TOGETHER)..rounds {
        write_quad(shared, unit, comptime!(first + (round * threads) as i32), &zeros, 0usize, access);
    }
    let rest = comptime!((to - from) / QUAD % threads);
    if rest > 0 && unit < rest {
        write_quad(shared, unit, comptime!(first + (rounds * threads) as i32), &zeros, 0usize, access);
    }
}
