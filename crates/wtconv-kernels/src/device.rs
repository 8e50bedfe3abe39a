//! What the planner knows of a device.

use cubecl::ir::AddressType;
use cubecl::prelude::*;

use crate::problem::Dtype;

/// The limits of a device that a plan must respect. Plain data: tests make devices up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DeviceLimits {
    /// Shared memory of a cube, in bytes.
    pub shared_memory: usize,
    /// Threads of a cube.
    pub threads: usize,
    /// Cubes of a launch along x and y.
    pub cubes: [usize; 2],
    /// Largest plane (warp, subgroup) size: cubes are whole planes. No kernel relies on it otherwise.
    pub plane_size: usize,
    /// Multiprocessors, where known.
    pub multiprocessors: Option<usize>,
    /// Whether scalar shared memory can be read as vectors.
    pub vectors: bool,
    /// Whether kernels are unrolled over all taps of a filter. Software devices would spend seconds in their compiler on
    /// such code.
    pub unroll: bool,
    /// Whether element indices may exceed 32 bits.
    pub wide_indices: bool,
    /// Whether `f16` tensors can be read and written.
    pub f16: bool,
    /// Whether `bf16` tensors can be read and written.
    pub bf16: bool,
}

impl DeviceLimits {
    /// Bytes that CUDA takes for itself beside every cube's; one cube's are not counted in `shared_memory`.
    const RESERVED: usize = 1024;

    /// GPUs of NVIDIA's Hopper generation (H100, H200): for plans where there is no device.
    pub const HOPPER: Self = DeviceLimits {
        shared_memory: 232_448,
        threads: 1024,
        cubes: [2_147_483_647, 65_535],
        plane_size: 32,
        multiprocessors: Some(132),
        vectors: true,
        unroll: true,
        wide_indices: true,
        f16: true,
        bf16: true,
    };

    /// The limits of the device behind `client`.
    pub fn of<R: Runtime>(client: &ComputeClient<R>) -> Self {
        let properties = client.properties();
        let hardware = &properties.hardware;
        let (x, y, _) = hardware.max_cube_count;
        DeviceLimits {
            shared_memory: hardware.max_shared_memory_size,
            threads: (hardware.max_units_per_cube as usize).min(hardware.max_cube_dim.0 as usize),
            cubes: [x as usize, y as usize],
            plane_size: hardware.plane_size_max as usize,
            multiprocessors: hardware.num_streaming_multiprocessors.map(|count| count as usize),
            vectors: R::name(client) == "cuda",
            unroll: R::name(client) == "cuda",
            wide_indices: properties.supports_address(AddressType::U64),
            f16: properties.supports_type(Dtype::F16.storage()),
            bf16: properties.supports_type(Dtype::BF16.storage()),
        }
    }

    /// Whether tensors of `dtype` can be read and written.
    pub const fn supports(&self, dtype: Dtype) -> bool {
        match dtype {
            Dtype::F32 => true,
            Dtype::F16 => self.f16,
            Dtype::BF16 => self.bf16,
        }
    }

    /// Bytes of shared memory that each of `cubes` cubes may have for a multiprocessor to hold them together.
    pub const fn memory_of_each(&self, cubes: usize) -> usize {
        ((self.shared_memory + Self::RESERVED) / cubes).saturating_sub(Self::RESERVED)
    }

    /// Cubes of `bytes` of shared memory that a multiprocessor holds together.
    pub const fn cubes_together(&self, bytes: usize) -> usize {
        (self.shared_memory + Self::RESERVED) / (bytes + Self::RESERVED)
    }

    /// A two-dimensional launch of at least `count` cubes, as square as the limits ask for; `None` if they do not fit.
    pub fn cube_count(&self, count: usize) -> Option<[u32; 2]> {
        let count = count.max(1);
        let rows = count.div_ceil(self.cubes[0]);
        let columns = count.div_ceil(rows);
        if rows > self.cubes[1] {
            return None;
        }
        Some([u32::try_from(columns).ok()?, u32::try_from(rows).ok()?])
    }
}
