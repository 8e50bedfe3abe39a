//! Launching plans: buffers and strides in, buffers out. Nothing here waits for the device.

use cubecl::prelude::*;
use cubecl::server::Handle;

use crate::device::DeviceLimits;
use crate::filter_gradient::filter_gradient as filter_gradient_kernel;
use crate::low_pass::low_pass;
use crate::memo::{filter_gradient_plan, operator_plan};
use crate::operator::{FilterBankLaunch, operator};
use crate::plan::{Cover, Deeper, GradientPlan, Operands, OperatorPlan, Refusal, Strategy};
use crate::problem::{Dtype, Problem, Strided};
use crate::reduction::reduction;
use crate::source::SOURCE;
use crate::window::{GridLaunch, ViewLaunch};

/// A `[batch, channels, height, width]` tensor in device memory.
#[derive(Clone, Copy, Debug)]
pub struct Tensor<'a> {
    /// The buffer.
    pub handle: &'a Handle,
    /// Batch, channels, height, width.
    pub shape: [usize; 4],
    /// Where the elements lie in the buffer.
    pub strided: Strided,
    /// Element type.
    pub dtype: Dtype,
}

/// The packed parameters. Filter 0 of a channel is the base filter, filter `1 + 4 (l - 1) + s` belongs to subband `s` (LL, LH, HL,
/// HH) of level `l`. Allocators pad the rows of small tensors, so that filters and scales are read by strides.
#[derive(Clone, Copy, Debug)]
pub struct Parameters<'a> {
    /// `[channels, 1 + 4 levels, kernel_size, kernel_size]`.
    pub filters: &'a Handle,
    /// Elements from one channel, filter and row of taps to the next; the taps of a row are neighbours.
    pub filter_strides: [usize; 3],
    /// `[channels, 1 + 4 levels]`; all 1 where there are none.
    pub scales: Option<&'a Handle>,
    /// Elements from one channel and scale to the next.
    pub scale_strides: [usize; 2],
    /// `[channels]`, contiguous.
    pub bias: Option<&'a Handle>,
    /// Side of the filters.
    pub kernel_size: usize,
    /// Wavelet levels.
    pub levels: usize,
    /// Element type of all of them.
    pub dtype: Dtype,
}

impl Parameters<'_> {
    /// `filter_strides` of contiguous filters.
    pub const fn contiguous_filters(kernel_size: usize, levels: usize) -> [usize; 3] {
        let taps = kernel_size * kernel_size;
        [(1 + 4 * levels) * taps, taps, kernel_size]
    }

    /// `scale_strides` of contiguous scales.
    pub const fn contiguous_scales(levels: usize) -> [usize; 2] {
        [1 + 4 * levels, 1]
    }

    /// Elements that the filters and the scales of `channels` channels span; `None` where that overflows.
    fn spans(&self, channels: usize) -> [Option<usize>; 2] {
        let filters = 1 + 4 * self.levels;
        let span = |extents: &[usize], strides: &[usize]| {
            let last = extents.iter().zip(strides).try_fold(0usize, |last, (extent, stride)| {
                (extent - 1).checked_mul(*stride).and_then(|far| last.checked_add(far))
            });
            last.and_then(|last| last.checked_add(1))
        };
        let [channel, filter, row] = self.filter_strides;
        let side = self.kernel_size;
        [
            span(&[channels, filters, side, side], &[channel, filter, row, 1]),
            span(&[channels, filters], &self.scale_strides),
        ]
    }
}

/// A tensor that a launch has allocated, of its input's shape and type.
#[derive(Clone, Debug)]
pub struct Output {
    /// The buffer.
    pub handle: Handle,
    /// Contiguous in the input's order of axes: NCHW, or NHWC memory where the input's channels are its fastest axis.
    pub strided: Strided,
}

/// Gradients of the parameters: contiguous, in the parameters' order of axes and type.
#[derive(Clone, Debug)]
pub struct FilterGradients {
    /// `[channels, 1 + 4 levels, kernel_size, kernel_size]`.
    pub filters: Handle,
    /// `[channels, 1 + 4 levels]`, if there are scales.
    pub scales: Option<Handle>,
    /// `[channels]`; meaningful whether or not there is a bias.
    pub bias: Handle,
}

/// Runs wavelet convolutions on the device of a client.
///
/// ```ignore
/// let y = Launcher::new(&client).forward(&x, &parameters)?;
/// ```
///
/// Making one is cheap, and plans are made once for each shape: a call does no work on the host that could be kept for the next.
#[derive(Clone)]
pub struct Launcher<'a, R: Runtime> {
    /// The client of the tensors' device.
    pub client: &'a ComputeClient<R>,
    /// What the plans must respect.
    pub limits: DeviceLimits,
    /// How plans are chosen.
    pub strategy: Strategy,
}

impl<'a, R: Runtime> Launcher<'a, R> {
    /// A launcher for the device of `client` that lets the planner decide.
    pub fn new(client: &'a ComputeClient<R>) -> Self {
        Launcher { client, limits: DeviceLimits::of(client), strategy: Strategy::Auto }
    }

    /// The same launcher with a forced strategy.
    pub fn with_strategy(self, strategy: Strategy) -> Self {
        Launcher { strategy, ..self }
    }

    /// The wavelet convolution of `x`, into a new tensor.
    ///
    /// # Errors
    ///
    /// A [`Refusal`] where the kernels cannot run the problem on this device; nothing is launched then.
    pub fn forward(&self, x: &Tensor<'_>, parameters: &Parameters<'_>) -> Result<Output, Refusal> {
        let output = self.allocate_like(x);
        let y = Tensor { handle: &output.handle, strided: output.strided, ..*x };
        self.forward_into(x, parameters, &y)?;
        Ok(output)
    }

    /// The wavelet convolution of `x`, written to `y`: any strided view whose elements are distinct.
    ///
    /// # Errors
    ///
    /// A [`Refusal`] where the kernels cannot run the problem on this device; nothing is launched then.
    pub fn forward_into(
        &self,
        x: &Tensor<'_>,
        parameters: &Parameters<'_>,
        y: &Tensor<'_>,
    ) -> Result<(), Refusal> {
        self.apply(x, parameters, y, false)
    }

    /// The gradient of the input for the cotangent `dy`, into a new tensor.
    ///
    /// # Errors
    ///
    /// A [`Refusal`] where the kernels cannot run the problem on this device; nothing is launched then.
    pub fn input_gradient(&self, dy: &Tensor<'_>, parameters: &Parameters<'_>) -> Result<Output, Refusal> {
        let output = self.allocate_like(dy);
        let dx = Tensor { handle: &output.handle, strided: output.strided, ..*dy };
        self.input_gradient_into(dy, parameters, &dx)?;
        Ok(output)
    }

    /// The gradient of the input for the cotangent `dy`, written to `dx`: any strided view whose elements are distinct.
    ///
    /// # Errors
    ///
    /// A [`Refusal`] where the kernels cannot run the problem on this device; nothing is launched then.
    pub fn input_gradient_into(
        &self,
        dy: &Tensor<'_>,
        parameters: &Parameters<'_>,
        dx: &Tensor<'_>,
    ) -> Result<(), Refusal> {
        self.apply(dy, &Parameters { bias: None, ..*parameters }, dx, true)
    }

    /// The gradients of filters, scales and bias for the input `x` and the cotangent `dy`. Sums run in a fixed order: the
    /// same input gives the same bits.
    ///
    /// # Errors
    ///
    /// A [`Refusal`] where the kernels cannot run the problem on this device; nothing is launched then.
    pub fn filter_gradient(
        &self,
        x: &Tensor<'_>,
        dy: &Tensor<'_>,
        parameters: &Parameters<'_>,
    ) -> Result<FilterGradients, Refusal> {
        let (problem, operands) = describe(x, dy, parameters)?;
        let plan = filter_gradient_plan(&problem, &operands, &self.limits, self.strategy)?;
        let size = parameters.dtype.size();
        let filters = problem.channels * problem.filters();
        let gradients = FilterGradients {
            filters: self.client.empty(filters * problem.kernel_size.pow(2) * size),
            scales: parameters.scales.map(|_| self.client.empty(filters * size)),
            bias: self.client.empty(problem.channels * size),
        };
        let inputs =
            GradientInputs { x, dy, parameters, gradients: &gradients, problem: &problem, skipped: 0 };
        launch_gradient(self.client, &plan, &inputs);
        Ok(gradients)
    }

    fn apply(
        &self,
        x: &Tensor<'_>,
        parameters: &Parameters<'_>,
        y: &Tensor<'_>,
        rotate: bool,
    ) -> Result<(), Refusal> {
        let (problem, operands) = describe(x, y, parameters)?;
        let plan = operator_plan(&problem, &operands, rotate, &self.limits, self.strategy)?;
        if problem.batch > 0 {
            launch_operator(self.client, &plan, x, parameters, y, &problem, 0);
        }
        Ok(())
    }

    fn allocate_like(&self, x: &Tensor<'_>) -> Output {
        let strided = if x.strided.is_channels_last(x.shape) {
            Strided::channels_last(x.shape)
        } else {
            Strided::contiguous(x.shape)
        };
        let elements: usize = x.shape.iter().product();
        Output { handle: self.client.empty(elements * x.dtype.size()), strided }
    }
}

/// The problem and operands of a call, if its tensors fit together.
fn describe(
    x: &Tensor<'_>,
    y: &Tensor<'_>,
    parameters: &Parameters<'_>,
) -> Result<(Problem, Operands), Refusal> {
    if x.shape != y.shape {
        return Err(Refusal::Shape { expected: x.shape, found: y.shape });
    }
    if x.dtype != y.dtype {
        return Err(Refusal::DtypeMismatch { expected: x.dtype, found: y.dtype });
    }
    let [batch, channels, height, width] = x.shape;
    let Parameters { kernel_size, levels, dtype, .. } = *parameters;
    let problem = Problem { batch, channels, height, width, kernel_size, levels };
    let empty = channels == 0 || kernel_size == 0;
    let spans = if empty { [Some(0); 2] } else { parameters.spans(channels) };
    let [filters, scales] = spans.map(|span| span.unwrap_or(usize::MAX));
    let sizes = [
        ("filters", Some(parameters.filters), filters),
        ("scales", parameters.scales, scales),
        ("biases", parameters.bias, channels),
    ];
    for (name, handle, expected) in sizes {
        let found = handle.map_or(expected, |handle| elements(handle, dtype));
        if found < expected {
            return Err(Refusal::Parameter { name, expected, found });
        }
    }
    let operands = Operands { x: aligned(x), y: aligned(y), dtype: x.dtype, parameter_dtype: dtype };
    Ok((problem, operands))
}

/// The tensor's strides as the planner should see them: a buffer that begins at an odd address must not be read in vectors.
fn aligned(tensor: &Tensor<'_>) -> Strided {
    let start = tensor.handle.offset_start.unwrap_or(0);
    if start.is_multiple_of(16) {
        tensor.strided
    } else {
        // An odd offset is what tells the planner; the launch uses the true one.
        Strided { offset: tensor.strided.offset | 1, ..tensor.strided }
    }
}

fn elements(handle: &Handle, dtype: Dtype) -> usize {
    (handle.size_in_used() / dtype.size() as u64) as usize
}

fn array<R: Runtime>(handle: &Handle, dtype: Dtype) -> ArrayArg<R> {
    // SAFETY: the length is the buffer's own.
    unsafe { ArrayArg::from_raw_parts(handle.clone(), elements(handle, dtype)) }
}

fn view<R: Runtime>(strided: &Strided) -> ViewLaunch<R> {
    let [batch, channel, row, column] = strided.strides;
    ViewLaunch::new(strided.offset, batch, channel, row, column)
}

fn grid<R: Runtime>(problem: &Problem, cover: &Cover) -> GridLaunch<R> {
    GridLaunch::new(
        problem.batch,
        problem.channels,
        problem.height,
        problem.width,
        cover.windows_y,
        cover.windows_x,
        cover.channel_groups,
    )
}

fn bank<R: Runtime>(parameters: &Parameters<'_>, skipped: usize) -> FilterBankLaunch<R> {
    let [filter_channel, filter, filter_row] = parameters.filter_strides;
    let [scale_channel, scale] = parameters.scale_strides;
    FilterBankLaunch::new(skipped, filter_channel, filter, filter_row, scale_channel, scale)
}

fn count([x, y]: [u32; 2]) -> CubeCount {
    CubeCount::Static(x, y, 1)
}

fn dim(threads: usize) -> CubeDim {
    CubeDim::new_1d(threads as u32)
}

fn address(wide: bool) -> AddressType {
    if wide { AddressType::U64 } else { AddressType::U32 }
}

/// Writes the low-pass subband of `x` to a new `f32` buffer.
fn launch_low_pass<R: Runtime, P>(
    client: &ComputeClient<R>,
    deeper: &Deeper<P>,
    x: &Tensor<'_>,
    problem: &Problem,
    wide: bool,
) -> Handle {
    let out = client.empty(deeper.problem.elements() * Dtype::F32.size());
    let cover = Cover { windows_y: 1, windows_x: 1, channel_groups: 1, cubes: deeper.low_pass_cubes };
    // SAFETY: the kernel guards every access with the extents that the planner has checked against the buffers.
    unsafe {
        low_pass::launch_unchecked::<R>(
            client,
            count(deeper.low_pass_cubes),
            dim(deeper.low_pass.threads),
            address(wide),
            array(x.handle, x.dtype),
            array(&out, Dtype::F32),
            view(&x.strided),
            grid(problem, &cover),
            deeper.low_pass,
            SOURCE,
            x.dtype.storage(),
        );
    }
    out
}

fn launch_operator<R: Runtime>(
    client: &ComputeClient<R>,
    plan: &OperatorPlan,
    x: &Tensor<'_>,
    parameters: &Parameters<'_>,
    y: &Tensor<'_>,
    problem: &Problem,
    skipped: usize,
) {
    let carried = plan.deeper.as_deref().map(|deeper| {
        let low_pass = launch_low_pass(client, deeper, x, problem, plan.wide_indices);
        let below = deeper.problem;
        let out = client.empty(below.elements() * Dtype::F32.size());
        let tensor = |handle| Tensor {
            handle,
            shape: [below.batch, below.channels, below.height, below.width],
            strided: deeper.scratch,
            dtype: Dtype::F32,
        };
        let levels = plan.kernel.layout.levels;
        launch_operator(
            client,
            &deeper.plan,
            &tensor(&low_pass),
            &Parameters { bias: None, ..*parameters },
            &tensor(&out),
            &below,
            skipped + 4 * levels,
        );
        (out, deeper.scratch)
    });
    let nowhere = Strided { offset: 0, strides: [0; 4] };
    let carried_strided = carried.as_ref().map_or(nowhere, |(_, strided)| *strided);
    // SAFETY: the kernel guards every access with the extents that the planner has checked against the buffers.
    unsafe {
        operator::launch_unchecked::<R>(
            client,
            count(plan.cover.cubes),
            dim(plan.kernel.layout.threads),
            address(plan.wide_indices),
            array(x.handle, x.dtype),
            array(parameters.filters, parameters.dtype),
            parameters.scales.map(|scales| array(scales, parameters.dtype)).into(),
            parameters.bias.map(|bias| array(bias, parameters.dtype)).into(),
            carried.as_ref().map(|(handle, _)| array(handle, Dtype::F32)).into(),
            array(y.handle, y.dtype),
            view(&x.strided),
            view(&y.strided),
            view(&carried_strided),
            bank(parameters, skipped),
            grid(problem, &plan.cover),
            plan.visits,
            plan.kernel,
            SOURCE,
            x.dtype.storage(),
            parameters.dtype.storage(),
        );
    }
}

/// What a gradient launch reads and writes; the same parameters and gradients on every level of a split plan.
struct GradientInputs<'a> {
    x: &'a Tensor<'a>,
    dy: &'a Tensor<'a>,
    parameters: &'a Parameters<'a>,
    gradients: &'a FilterGradients,
    problem: &'a Problem,
    skipped: usize,
}

fn launch_gradient<R: Runtime>(client: &ComputeClient<R>, plan: &GradientPlan, inputs: &GradientInputs<'_>) {
    let &GradientInputs { x, dy, parameters, gradients, problem, skipped } = inputs;
    if let Some(deeper) = plan.deeper.as_deref() {
        let below = deeper.problem;
        let handles = [x, dy]
            .map(|tensor| launch_low_pass_or_nothing(client, deeper, tensor, problem, plan.wide_indices));
        let [x, dy] = handles.each_ref().map(|handle| Tensor {
            handle,
            shape: [below.batch, below.channels, below.height, below.width],
            strided: deeper.scratch,
            dtype: Dtype::F32,
        });
        let skipped = skipped + 4 * plan.kernel.x.levels;
        let inputs = GradientInputs { x: &x, dy: &dy, problem: &below, skipped, ..*inputs };
        launch_gradient(client, &deeper.plan, &inputs);
    }
    let floats = (plan.chunks * problem.channels * plan.kernel.share()).max(1);
    let partials = client.empty(floats * Dtype::F32.size());
    // SAFETY: the kernels guard every access with the extents that the planner has checked against the buffers.
    unsafe {
        if plan.chunks > 0 {
            filter_gradient_kernel::launch_unchecked::<R>(
                client,
                count(plan.cover.cubes),
                dim(plan.kernel.x.threads),
                address(plan.wide_indices),
                array(x.handle, x.dtype),
                array(dy.handle, dy.dtype),
                array(&partials, Dtype::F32),
                view(&x.strided),
                view(&dy.strided),
                grid(problem, &plan.cover),
                plan.visits,
                0,
                plan.kernel,
                SOURCE,
                x.dtype.storage(),
            );
        }
        reduction::launch_unchecked::<R>(
            client,
            count(plan.reduction_cubes),
            dim(plan.reduction.threads),
            address(plan.wide_indices),
            array(&partials, Dtype::F32),
            array(parameters.filters, parameters.dtype),
            parameters.scales.map(|scales| array(scales, parameters.dtype)).into(),
            parameters.bias.map(|bias| array(bias, parameters.dtype)).into(),
            array(&gradients.filters, parameters.dtype),
            // Without scales nothing is written there.
            array(gradients.scales.as_ref().unwrap_or(&gradients.filters), parameters.dtype),
            array(&gradients.bias, parameters.dtype),
            bank(parameters, skipped),
            1 + 4 * parameters.levels,
            problem.channels,
            plan.chunks,
            plan.reduction,
            SOURCE,
            parameters.dtype.storage(),
        );
    }
}

/// The low-pass subband, or an empty stand-in for an empty batch.
fn launch_low_pass_or_nothing<R: Runtime, P>(
    client: &ComputeClient<R>,
    deeper: &Deeper<P>,
    x: &Tensor<'_>,
    problem: &Problem,
    wide: bool,
) -> Handle {
    if problem.batch == 0 {
        return client.empty(Dtype::F32.size());
    }
    launch_low_pass(client, deeper, x, problem, wide)
}
