//! Peak memory that a call adds to what was in use before it, and whether there is memory for it at all.

use indicatif::HumanBytes;
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

/// Where tensors lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TensorMemory {
    /// In the memory of the host.
    Host,
    /// In the device's own, of so many bytes if it tells.
    #[cfg_attr(
        not(any(feature = "cuda", feature = "wgpu")),
        allow(dead_code, reason = "only GPUs have memory of their own")
    )]
    Device(Option<u64>),
}

/// Memory that there is. An allocation that fails ends the whole process on a CPU: what surely does not fit is refused
/// before.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    tensors: TensorMemory,
    /// Bytes free on the host, if the system tells.
    host: Option<u64>,
}

impl Room {
    /// As of now. Of a device it is all: its allocator reuses what it holds.
    pub(crate) fn now(tensors: TensorMemory) -> Self {
        Self { tensors, host: free_on_host() }
    }

    /// Why tensors of so many bytes and arrays of the host of so many more do not fit, if so.
    pub(crate) fn refusal(&self, tensors: u64, arrays: u64) -> Option<String> {
        let lacking = |needed: u64, there_is: Option<u64>, place: &str| {
            let there_is = there_is.filter(|there_is| needed > *there_is)?;
            Some(format!("at least {} are needed and {place} {}", HumanBytes(needed), HumanBytes(there_is)))
        };
        match self.tensors {
            TensorMemory::Host => lacking(tensors.saturating_add(arrays), self.host, "the host has free"),
            TensorMemory::Device(all) => lacking(tensors, all, "the device has")
                .or_else(|| lacking(arrays, self.host, "the host has free")),
        }
    }
}

/// Bytes that this process can still have, without what its control group does not allow.
fn free_on_host() -> Option<u64> {
    let mut system = sysinfo::System::new();
    system.refresh_memory();
    // Systems that do not tell have none.
    let available = Some(system.available_memory()).filter(|available| *available > 0)?;
    // The group's limit, not what is left of it: files that are cached count against that and give way.
    let limit = system.cgroup_limits().map_or(u64::MAX, |limits| limits.total_memory);
    Some(available.min(limit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_refused_with_both_numbers() {
        const GIB: u64 = 1 << 30;
        let host = Room { tensors: TensorMemory::Host, host: Some(8 * GIB) };
        assert_eq!(host.refusal(6 * GIB, 2 * GIB), None);
        let refusal = host.refusal(6 * GIB, 3 * GIB);
        assert_eq!(refusal.unwrap(), "at least 9.00 GiB are needed and the host has free 8.00 GiB");
        let device = Room { tensors: TensorMemory::Device(Some(16 * GIB)), host: Some(8 * GIB) };
        assert_eq!(device.refusal(16 * GIB, 8 * GIB), None);
        assert_eq!(
            device.refusal(17 * GIB, 9 * GIB).unwrap(),
            "at least 17.00 GiB are needed and the device has 16.00 GiB"
        );
        assert!(device.refusal(GIB, 9 * GIB).unwrap().contains("the host has free"));
        let silent = Room { tensors: TensorMemory::Device(None), host: None };
        assert_eq!(silent.refusal(u64::MAX, u64::MAX), None);
    }

    #[test]
    fn the_host_tells_of_its_memory() {
        let free = free_on_host().expect("this system tells");
        assert!(free > 1 << 20 && free < 1 << 50, "{free}");
    }

    #[test]
    fn the_peak_of_the_heap_is_counted_though_it_is_given_back() {
        let bytes = 64 << 20;
        let peak = peak_of_heap(&mut || drop(std::hint::black_box(vec![1u8; bytes])));
        // Other tests allocate at the same time.
        assert!(peak >= bytes as u64 && peak < 2 * bytes as u64, "{peak}");
    }
}
