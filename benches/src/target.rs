//! What a backend tells about its device.

use burn_wtconv::WtConvBackend;
use wtconv_kernels::DeviceLimits;

use crate::measure::Measured;
use crate::memory::TensorMemory;
use crate::{copy, memory};

/// A device in words.
pub(crate) struct Description {
    pub(crate) device: String,
    pub(crate) driver: Option<String>,
}

/// A backend that can be measured.
#[allow(private_interfaces, reason = "the binary only names the trait")]
pub trait Target: WtConvBackend {
    /// How [`peak_memory`](Self::peak_memory) measures.
    #[doc(hidden)]
    const MEMORY_METHOD: &'static str = memory::HEAP_METHOD;

    /// The device and its driver.
    #[doc(hidden)]
    fn describe(device: &Self::Device) -> Description {
        let _ = device;
        Description { device: processor().0, driver: None }
    }

    /// What the planner of the fused kernels knows of the device; `None` without fused kernels.
    #[doc(hidden)]
    fn limits(device: &Self::Device) -> Option<DeviceLimits> {
        let _ = device;
        None
    }

    /// Where the backend's tensors lie.
    #[doc(hidden)]
    fn tensor_memory(device: &Self::Device) -> TensorMemory {
        let _ = device;
        TensorMemory::Host
    }

    /// Times a copy of `bytes` bytes within the device's memory.
    #[doc(hidden)]
    fn copy(device: &Self::Device, bytes: usize) -> anyhow::Result<Measured> {
        let _ = device;
        copy::host(bytes)
    }

    /// Bytes that `work`, which waits for the device, adds at its peak.
    #[doc(hidden)]
    fn peak_memory(device: &Self::Device, work: &mut dyn FnMut()) -> Option<u64> {
        let _ = device;
        Some(memory::peak_of_heap(work))
    }
}

/// The processor's name and how many of its threads this process may use.
pub(crate) fn processor() -> (String, usize) {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let name = std::fs::read_to_string("/proc/cpuinfo").ok().and_then(|text| {
        let line = text.lines().find(|line| line.starts_with("model name"))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    });
    (name.unwrap_or_else(|| std::env::consts::ARCH.to_owned()), threads)
}

#[cfg(feature = "flex")]
impl Target for burn::backend::Flex {}

#[cfg(feature = "ndarray")]
impl Target for burn::backend::NdArray {}

#[cfg(feature = "wgpu")]
#[allow(private_interfaces, reason = "the binary only names the trait")]
impl Target for burn::backend::Wgpu {
    const MEMORY_METHOD: &'static str = memory::DEVICE_METHOD;

    fn describe(device: &Self::Device) -> Description {
        use burn::backend::wgpu::graphics::AutoGraphicsApi;

        // The adapter can be asked only while the client is set up, which happens once a process.
        static ADAPTER: std::sync::OnceLock<(String, String)> = std::sync::OnceLock::new();
        let (device, driver) = ADAPTER.get_or_init(|| {
            let setup = burn::backend::wgpu::init_setup::<AutoGraphicsApi>(device, Default::default());
            let info = setup.adapter.get_info();
            (format!("{} ({})", info.name, info.backend), format!("{} {}", info.driver, info.driver_info))
        });
        Description { device: device.clone(), driver: Some(driver.trim().to_owned()) }
    }

    fn limits(device: &Self::Device) -> Option<DeviceLimits> {
        use cubecl::prelude::Runtime;
        Some(DeviceLimits::of(&cubecl::wgpu::WgpuRuntime::client(device)))
    }

    fn tensor_memory(_: &Self::Device) -> TensorMemory {
        TensorMemory::Device(None)
    }

    fn copy(device: &Self::Device, bytes: usize) -> anyhow::Result<Measured> {
        use cubecl::prelude::Runtime;
        copy::device::time(&cubecl::wgpu::WgpuRuntime::client(device), bytes)
    }

    fn peak_memory(device: &Self::Device, work: &mut dyn FnMut()) -> Option<u64> {
        use cubecl::prelude::Runtime;
        memory::device::peak(&cubecl::wgpu::WgpuRuntime::client(device), work)
    }
}

#[cfg(feature = "cuda")]
#[allow(private_interfaces, reason = "the binary only names the trait")]
impl Target for burn::backend::Cuda {
    const MEMORY_METHOD: &'static str = memory::DEVICE_METHOD;

    fn describe(device: &Self::Device) -> Description {
        Description {
            device: nvidia_smi(device, "name").unwrap_or_else(|_| "an NVIDIA GPU".to_owned()),
            driver: nvidia_smi(device, "driver_version").ok(),
        }
    }

    fn tensor_memory(device: &Self::Device) -> TensorMemory {
        let mebibytes = nvidia_smi(device, "memory.total").ok().and_then(|text| text.parse::<u64>().ok());
        TensorMemory::Device(mebibytes.map(|mebibytes| mebibytes << 20))
    }

    fn limits(device: &Self::Device) -> Option<DeviceLimits> {
        use cubecl::prelude::Runtime;
        Some(DeviceLimits::of(&cubecl::cuda::CudaRuntime::client(device)))
    }

    fn copy(device: &Self::Device, bytes: usize) -> anyhow::Result<Measured> {
        use cubecl::prelude::Runtime;
        copy::device::time(&cubecl::cuda::CudaRuntime::client(device), bytes)
    }

    fn peak_memory(device: &Self::Device, work: &mut dyn FnMut()) -> Option<u64> {
        use cubecl::prelude::Runtime;
        memory::device::peak(&cubecl::cuda::CudaRuntime::client(device), work)
    }
}

/// What the driver's own program says of a field, without its unit.
#[cfg(feature = "cuda")]
fn nvidia_smi(device: &burn::backend::cuda::CudaDevice, field: &str) -> anyhow::Result<String> {
    use anyhow::Context;

    let output = std::process::Command::new("nvidia-smi")
        .args([format!("--query-gpu={field}"), "--format=csv,noheader,nounits".to_owned()])
        .arg(format!("--id={}", device.index))
        .output()?;
    let text = String::from_utf8(output.stdout)?;
    Ok(text.lines().next().context("nvidia-smi says nothing")?.trim().to_owned())
}
