//! Peak memory that a call adds to what was in use before it.

use peak_alloc::PeakAlloc;

/// Counts the heap of the process: the memory of backends that compute on the CPU.
#[global_allocator]
static HEAP: PeakAlloc = PeakAlloc;

/// How [`peak_of_heap`] measures, in words.
pub(crate) const HEAP_METHOD: &str = "highest heap use of the process during one call, less that before it";

/// Bytes that one run of `work` adds to the heap at its peak.
pub(crate) fn peak_of_heap(work: &mut dyn FnMut()) -> u64 {
    let before = HEAP.current_usage();
    HEAP.reset_peak_usage();
    work();
    HEAP.peak_usage().saturating_sub(before) as u64
}

/// How [`device::peak`] measures, in words.
#[cfg(any(feature = "cuda", feature = "wgpu"))]
pub(crate) const DEVICE_METHOD: &str = "highest of the bytes in use that CubeCL's allocator reports while a second \
     thread asks it as often as it answers, over half a second of calls (at most 200, at least 3), less those before; it \
     is a lower bound, since a peak between two answers is missed, of a \
     sweep's row never below the size of what the call returns; what the pools reserve beyond it is not counted";

#[cfg(any(feature = "cuda", feature = "wgpu"))]
pub(crate) mod device {
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    use std::time::{Duration, Instant};

    use cubecl::prelude::*;
    use cubecl::stream_id::StreamId;

    const LEAST_CALLS: usize = 3;
    const MOST_CALLS: usize = 200;
    /// After which no further call starts.
    const LIMIT: Duration = Duration::from_millis(500);

    /// Ends the sampling however the calls end.
    struct Finish<'a>(&'a AtomicBool);

    impl Drop for Finish<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Release);
        }
    }

    /// Bytes that a run of `work`, which waits for the device, adds at its peak; `None` where the allocator does not
    /// tell.
    pub(crate) fn peak<R: Runtime>(client: &ComputeClient<R>, work: &mut dyn FnMut()) -> Option<u64> {
        // Every thread is a stream, and every stream has its own memory: the samples have to be of this one's.
        let stream = StreamId::current();
        let in_use = || client.memory_usage().map(|usage| usage.bytes_in_use).ok();
        let before = in_use()?;
        let (peak, done, ready) = (AtomicU64::new(before), AtomicBool::new(false), Barrier::new(2));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                ready.wait();
                stream.executes(|| {
                    while !done.load(Ordering::Acquire) {
                        peak.fetch_max(in_use().unwrap_or(0), Ordering::Relaxed);
                    }
                });
            });
            let finish = Finish(&done);
            ready.wait();
            let start = Instant::now();
            for call in 0..MOST_CALLS {
                if call >= LEAST_CALLS && start.elapsed() >= LIMIT {
                    break;
                }
                work();
            }
            drop(finish);
        });
        Some(peak.into_inner() - before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_of_the_heap_is_counted_though_it_is_given_back() {
        let bytes = 64 << 20;
        let peak = peak_of_heap(&mut || drop(std::hint::black_box(vec![1u8; bytes])));
        // Other tests allocate at the same time.
        assert!(peak >= bytes as u64 && peak < 2 * bytes as u64, "{peak}");
    }
}
