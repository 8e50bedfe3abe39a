//! The kernels on wgpu.
#![cfg(feature = "wgpu")]

#[path = "device_suite/filter_gradient.rs"]
mod filter_gradient;
#[path = "device_suite/operator.rs"]
mod operator;
mod support;

type Device = cubecl::wgpu::WgpuRuntime;
