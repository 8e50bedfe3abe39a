//! A copy in the memory of the device: every byte read once and written once, the floor that calls are held against.

use std::time::Duration;

use crate::measure::{Measured, Schedule, Work, measure};

/// Copies are short and steady.
fn schedule() -> Schedule {
    Schedule { limit: Duration::from_secs(2), ..Schedule::default() }
}

/// A copy by all cores.
pub(crate) fn host(bytes: usize) -> anyhow::Result<Measured> {
    struct Copy {
        from: Vec<u8>,
        to: Vec<u8>,
    }

    impl Work for Copy {
        fn call(&mut self) -> anyhow::Result<()> {
            use rayon::prelude::*;

            /// Enough that handing a piece to another core does not matter.
            const PIECE: usize = 1 << 20;
            let pieces = self.to.par_chunks_mut(PIECE).zip(self.from.par_chunks(PIECE));
            pieces.for_each(|(to, from)| to.copy_from_slice(from));
            std::hint::black_box(&self.to);
            Ok(())
        }

        fn sync(&self) -> anyhow::Result<()> {
            Ok(())
        }
    }

    measure(&mut Copy { from: vec![1; bytes], to: vec![0; bytes] }, &schedule())
}

/// A copy by a kernel that moves 16 bytes a thread.
#[cfg(any(feature = "cuda", feature = "wgpu"))]
pub(crate) mod device {
    use anyhow::{Context, anyhow};
    use cubecl::prelude::*;
    use cubecl::server::Handle;
    use wtconv_kernels::DeviceLimits;

    use super::*;

    const THREADS: usize = 256;

    #[cube(launch_unchecked)]
    fn copy(from: &Array<Vector<f32, Const<4>>>, to: &mut Array<Vector<f32, Const<4>>>, quads: usize) {
        let cube = CUBE_POS_X as usize + CUBE_POS_Y as usize * CUBE_COUNT_X as usize;
        let at = cube * 256 + UNIT_POS as usize;
        if at < quads {
            to[at] = from[at];
        }
    }

    struct Copy<R: Runtime> {
        client: ComputeClient<R>,
        from: Handle,
        to: Handle,
        quads: usize,
        cubes: [u32; 2],
    }

    impl<R: Runtime> Work for Copy<R> {
        #[allow(unsafe_code, reason = "a launch reads and writes raw buffers")]
        fn call(&mut self) -> anyhow::Result<()> {
            let [x, y] = self.cubes;
            // SAFETY: both buffers hold `quads` groups of four floats, and the kernel goes no further.
            unsafe {
                copy::launch_unchecked::<R>(
                    &self.client,
                    CubeCount::Static(x, y, 1),
                    CubeDim::new_1d(THREADS as u32),
                    ArrayArg::from_raw_parts(self.from.clone(), self.quads),
                    ArrayArg::from_raw_parts(self.to.clone(), self.quads),
                    self.quads,
                );
            }
            Ok(())
        }

        fn sync(&self) -> anyhow::Result<()> {
            cubecl::future::block_on(self.client.sync())
                .map_err(|error| anyhow!("the device failed: {error:?}"))
        }
    }

    /// Times a copy of `bytes` bytes, rounded up to 16.
    pub(crate) fn time<R: Runtime>(client: &ComputeClient<R>, bytes: usize) -> anyhow::Result<Measured> {
        let quads = bytes.div_ceil(16);
        let cubes = DeviceLimits::of(client)
            .cube_count(quads.div_ceil(THREADS))
            .context("the copy has more threads than the device can launch")?;
        let [from, to] = [(); 2].map(|()| client.empty(quads * 16));
        measure(&mut Copy { client: client.clone(), from, to, quads, cubes }, &schedule())
    }
}
