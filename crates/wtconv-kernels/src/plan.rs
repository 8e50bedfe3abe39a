//! The planner: `(problem, operands, device limits, strategy) -> plan`, or a refusal that says why.
//!
//! A pure function of plain data. It chooses between three shapes of a launch:
//!
//! * **resident**: a cube holds whole planes with all their levels; one launch, every element moves once;
//! * **windows**: the planes do not fit, the levels are few: a cube holds a window with a halo;
//! * **split**: windows for the first levels, and the same planner again for the low-pass subband below them.

use crate::depthwise::MAX_REGISTER_KERNEL;
use crate::device::DeviceLimits;
use crate::layout::{BLOCK, BLOCK_LEVELS, Layout, QUAD};
use crate::problem::{Dtype, Problem, Strided};

pub use crate::filter_gradient::GradientKernel;
pub use crate::low_pass::LowPassKernel;
pub use crate::operator::OperatorKernel;
pub use crate::reduction::ReductionKernel;

/// Largest filter side that the kernels take: a row of taps must fit a thread's registers.
pub const MAX_KERNEL_SIZE: usize = 63;

/// Registers of a multiprocessor.
const REGISTERS: usize = 65_536;

/// Registers of a gradient thread, as compiled for CUDA.
const GRADIENT_REGISTERS: usize = 72;

/// Window cubes of the operator that a multiprocessor should hold; smaller windows for more of them are not looked for.
const WINDOWS_TOGETHER: usize = 3;

/// Why there is no plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The kernels pad by the same number of zeros on both sides, which an even filter side does not allow.
    #[error("the kernels take odd filter sizes only, got {kernel_size}")]
    EvenKernel {
        /// Side of the filters.
        kernel_size: usize,
    },
    /// The filters are larger than a thread's registers can serve.
    #[error("the kernels take filter sizes up to {largest}, got {kernel_size}")]
    LargeKernel {
        /// Side of the filters.
        kernel_size: usize,
        /// Largest side.
        largest: usize,
    },
    /// A plane without samples, or no channels.
    #[error("channels, height and width must be at least 1, got {channels} x {height} x {width}")]
    EmptyPlane {
        /// Channels.
        channels: usize,
        /// Rows.
        height: usize,
        /// Columns.
        width: usize,
    },
    /// The device cannot read and write the type.
    #[error("the device does not support {dtype} tensors")]
    Dtype {
        /// Element type.
        dtype: Dtype,
    },
    /// Not even the smallest window fits.
    #[error("the smallest window needs {needed} bytes of shared memory, the device has {available}")]
    SharedMemory {
        /// Bytes that the smallest window takes.
        needed: usize,
        /// Bytes that a cube may have.
        available: usize,
    },
    /// A window that fits shared memory needs more threads than a cube may have.
    #[error("the smallest window needs {needed} threads, a cube of the device has at most {available}")]
    Threads {
        /// Threads of the smallest window.
        needed: usize,
        /// Threads of a cube.
        available: usize,
    },
    /// More cubes than one launch may have.
    #[error("the launch needs {needed} cubes, the device allows {} x {}; use a smaller batch", available[0], available[1])]
    Cubes {
        /// Cubes.
        needed: usize,
        /// Cubes of a launch along x and y.
        available: [usize; 2],
    },
    /// Element indices that the device cannot express.
    #[error("the last element has index {last}, the device addresses up to {limit}; use a smaller batch")]
    IndexRange {
        /// Largest element index; `usize::MAX` stands for anything above.
        last: usize,
        /// Largest index of the device.
        limit: usize,
    },
    /// The forced strategy does not apply to the problem.
    #[error("the forced strategy {strategy:?} does not apply to {levels} levels")]
    Strategy {
        /// What was asked for.
        strategy: Strategy,
        /// Levels of the problem.
        levels: usize,
    },
    /// Tensors of different shapes where one is wanted.
    #[error("expected shape {expected:?}, got {found:?}")]
    Shape {
        /// The other tensor's shape.
        expected: [usize; 4],
        /// The shape that differs.
        found: [usize; 4],
    },
    /// Tensors of different types where one is wanted.
    #[error("expected {expected} elements, got {found}")]
    DtypeMismatch {
        /// The other tensor's type.
        expected: Dtype,
        /// The type that differs.
        found: Dtype,
    },
    /// A parameter buffer of the wrong size.
    #[error("the {name} need {expected} elements, the buffer has {found}")]
    Parameter {
        /// Which parameter.
        name: &'static str,
        /// Elements by the problem.
        expected: usize,
        /// Elements in the buffer.
        found: usize,
    },
}

/// How a plan is chosen. A forced strategy is refused where it does not work, never replaced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Strategy {
    /// The planner decides.
    #[default]
    Auto,
    /// Whole planes in shared memory.
    Resident,
    /// Windows of at most this height and width (multiples of 4) with `levels` levels (1 or 2, or 0 without wavelet
    /// levels); deeper levels by a plan of their own.
    Windows {
        /// Levels of the window kernel.
        levels: usize,
        /// Rows of a window.
        height: usize,
        /// Columns of a window.
        width: usize,
    },
}

/// The tensors of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Operands {
    /// What is read: the input, or the cotangent for the input gradient.
    pub x: Strided,
    /// What is written (operator), or the cotangent (filter gradient).
    pub y: Strided,
    /// Element type of both.
    pub dtype: Dtype,
    /// Element type of the parameters.
    pub parameter_dtype: Dtype,
}

/// A number of cubes and how they cover the tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cover {
    /// Windows along y.
    pub windows_y: usize,
    /// Windows along x.
    pub windows_x: usize,
    /// Groups of channels.
    pub channel_groups: usize,
    /// Cubes along x and y.
    pub cubes: [u32; 2],
}

/// A plan for the operator: forward, or the input gradient.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperatorPlan {
    /// The kernel that writes the output.
    pub kernel: OperatorKernel,
    /// Its cubes.
    pub cover: Cover,
    /// Windows that a cube visits: 1 unless the kernel prefetches.
    pub visits: usize,
    /// What runs before it when the plan is split.
    pub deeper: Option<Box<Deeper<OperatorPlan>>>,
    /// Whether element indices need more than 32 bits.
    pub wide_indices: bool,
}

/// A plan for the filter gradients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GradientPlan {
    /// The kernel that writes the shares.
    pub kernel: GradientKernel,
    /// Its cubes.
    pub cover: Cover,
    /// Windows that a cube visits.
    pub visits: usize,
    /// Shares of each channel; 0 for an empty batch.
    pub chunks: usize,
    /// The kernel that adds the shares.
    pub reduction: ReductionKernel,
    /// Its cubes along x and y.
    pub reduction_cubes: [u32; 2],
    /// What runs besides when the plan is split.
    pub deeper: Option<Box<Deeper<GradientPlan>>>,
    /// Whether element indices need more than 32 bits.
    pub wide_indices: bool,
}

/// The deeper levels of a split plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deeper<P> {
    /// The kernel that writes the low-pass subband.
    pub low_pass: LowPassKernel,
    /// Its cubes along x and y.
    pub low_pass_cubes: [u32; 2],
    /// The problem on that subband.
    pub problem: Problem,
    /// Layout of the subband, and of what the deeper levels give back.
    pub scratch: Strided,
    /// How the deeper levels are computed.
    pub plan: P,
}

impl OperatorPlan {
    /// Launches of the plan.
    pub fn launches(&self) -> usize {
        1 + self.deeper.as_ref().map_or(0, |deeper| 1 + deeper.plan.launches())
    }
}

impl GradientPlan {
    /// Launches of the plan.
    pub fn launches(&self) -> usize {
        2 + self.deeper.as_ref().map_or(0, |deeper| 2 + deeper.plan.launches())
    }
}

/// Plans the operator; `rotate` for the input gradient.
///
/// # Errors
///
/// A [`Refusal`] with the numbers where the device cannot run the problem.
pub fn plan_operator(
    problem: &Problem,
    operands: &Operands,
    rotate: bool,
    limits: &DeviceLimits,
    strategy: Strategy,
) -> Result<OperatorPlan, Refusal> {
    let wide_indices = check(problem, operands, limits)?;
    operator_branch(problem, operands, rotate, true, wide_indices, limits, strategy)
}

/// Plans the filter gradients; `operands.y` is the cotangent.
///
/// # Errors
///
/// A [`Refusal`] with the numbers where the device cannot run the problem.
pub fn plan_filter_gradient(
    problem: &Problem,
    operands: &Operands,
    limits: &DeviceLimits,
    strategy: Strategy,
) -> Result<GradientPlan, Refusal> {
    let wide_indices = check(problem, operands, limits)?;
    gradient_branch(problem, operands, true, wide_indices, limits, strategy)
}

/// Refuses what no plan can serve; otherwise says whether indices are wide.
fn check(problem: &Problem, operands: &Operands, limits: &DeviceLimits) -> Result<bool, Refusal> {
    let &Problem { channels, height, width, kernel_size, .. } = problem;
    if channels == 0 || height == 0 || width == 0 {
        return Err(Refusal::EmptyPlane { channels, height, width });
    }
    if kernel_size.is_multiple_of(2) {
        return Err(Refusal::EvenKernel { kernel_size });
    }
    if kernel_size > MAX_KERNEL_SIZE {
        return Err(Refusal::LargeKernel { kernel_size, largest: MAX_KERNEL_SIZE });
    }
    for dtype in [operands.dtype, operands.parameter_dtype] {
        if !limits.supports(dtype) {
            return Err(Refusal::Dtype { dtype });
        }
    }
    let shape = [problem.batch, channels, height, width];
    let filters = channels
        .checked_mul(problem.filters())
        .and_then(|count| count.checked_mul(kernel_size * kernel_size))
        .unwrap_or(usize::MAX);
    let elements = shape.into_iter().try_fold(1usize, |count, extent| count.checked_mul(extent));
    let last = [&operands.x, &operands.y]
        .into_iter()
        .map(|tensor| tensor.last(shape).unwrap_or(usize::MAX))
        .fold(filters.max(elements.unwrap_or(usize::MAX)), usize::max);
    // Indices are counted from a margin outside the plane and in steps of whole tiles: room for that below the limit.
    let narrow = (u32::MAX - (1 << 16)) as usize;
    let limit = if limits.wide_indices { usize::MAX - (1 << 16) } else { narrow };
    if last > limit {
        return Err(Refusal::IndexRange { last, limit });
    }
    Ok(last > narrow)
}

fn operator_branch(
    problem: &Problem,
    operands: &Operands,
    rotate: bool,
    base: bool,
    wide_indices: bool,
    limits: &DeviceLimits,
    strategy: Strategy,
) -> Result<OperatorPlan, Refusal> {
    let shape = [problem.batch, problem.channels, problem.height, problem.width];
    let channels = neighbouring_channels(operands, shape, limits);
    let vector = |tensor: &Strided| if limits.vectors { tensor.vector(shape) } else { 1 };
    let finish = |layout: Layout| {
        let (load, store) = (vector(&operands.x), vector(&operands.y));
        let kernel = OperatorKernel { layout, load, store, rotate, prefetch: false };
        OperatorKernel { layout: Layout { start: kernel.filter_floats(), ..layout }, ..kernel }
    };
    let measure = |layout: &Layout| {
        let kernel = finish(*layout);
        (4 * kernel.shared_floats(), kernel.layout.largest_buffer())
    };
    let plan = |layout: Layout, deeper| {
        let kernel = finish(layout);
        let mut cover = cover(problem, &layout, limits)?;
        let visits = operator_visits(problem, &kernel, &cover, limits);
        cover.cubes = cubes(items(problem, &layout).div_ceil(visits) * cover.channel_groups, limits)?;
        let kernel = OperatorKernel { prefetch: visits > 1, ..kernel };
        Ok(OperatorPlan { kernel, cover, visits, deeper, wide_indices })
    };

    let resident = || resident_layout(problem, base, channels, operator_planes, limits, &measure);
    match strategy {
        Strategy::Resident => return plan(resident()?, None),
        Strategy::Auto => {
            if let Ok(layout) = resident() {
                return plan(layout, None);
            }
        }
        Strategy::Windows { .. } => {}
    }
    let layout =
        window_layout(problem, base, channels, limits, &Waits::of_operator(channels), strategy, &measure)?;
    let deeper = deeper(problem, layout.levels, channels > 1, vector(&operands.x), limits)?;
    let deeper = match deeper {
        None => None,
        Some((low_pass, low_pass_cubes, problem, scratch)) => {
            let operands = Operands { x: scratch, y: scratch, dtype: Dtype::F32, ..*operands };
            let plan =
                operator_branch(&problem, &operands, rotate, false, wide_indices, limits, Strategy::Auto)?;
            Some(Box::new(Deeper { low_pass, low_pass_cubes, problem, scratch, plan }))
        }
    };
    plan(layout, deeper)
}

fn gradient_branch(
    problem: &Problem,
    operands: &Operands,
    base: bool,
    wide_indices: bool,
    limits: &DeviceLimits,
    strategy: Strategy,
) -> Result<GradientPlan, Refusal> {
    let shape = [problem.batch, problem.channels, problem.height, problem.width];
    let channels = neighbouring_channels(operands, shape, limits);
    let vector = |tensor: &Strided| if limits.vectors { tensor.vector(shape) } else { 1 };
    // One layout serves both pyramids: no level is clipped, all levels have the same tiles.
    let finish = |layout: &Layout, threads: usize| {
        let rows = tile_rows(layout.height, limits);
        let x = Layout { clip: 0, start: 0, base_rows: rows, tile_rows: rows, threads, ..*layout };
        GradientKernel {
            x,
            dy: Layout { kernel_size: 1, start: x.end(), ..x },
            load_x: vector(&operands.x),
            load_dy: vector(&operands.y),
            tap_rows: tap_rows(problem.kernel_size, limits),
            repeats: 1,
        }
    };
    // As few tiles a thread as the thread limit allows; where memory holds one cube only, that may have the registers of two.
    let fit = |layout: &Layout| {
        let with_most = |most: usize| {
            let mut kernel = finish(layout, most);
            while kernel.working() > most && kernel.repeats < kernel.tiles(kernel.first_level()) {
                kernel.repeats += 1;
            }
            let threads = kernel.working().next_multiple_of(limits.plane_size);
            let repeats = kernel.repeats;
            GradientKernel { repeats, ..finish(layout, threads) }
        };
        let kernel = with_most(gradient_threads(limits, 2));
        if limits.cubes_together(4 * kernel.shared_floats()) < 2 {
            with_most(gradient_threads(limits, 1))
        } else {
            kernel
        }
    };
    let measure = |layout: &Layout| {
        let kernel = fit(layout);
        (4 * kernel.shared_floats(), kernel.x.threads)
    };
    let plan = |layout: Layout, deeper| {
        let kernel = fit(&layout);
        let mut cover = cover(problem, &layout, limits)?;
        let items = items(problem, &layout);
        let groups = cover.channel_groups * kernel.tap_groups();
        let chunks = (resident_cubes(&kernel, limits) / groups).clamp(1, items.max(1));
        let visits = items.div_ceil(chunks);
        let chunks = if items == 0 { 0 } else { items.div_ceil(visits) };
        cover.cubes = cubes(groups * chunks, limits)?;
        let reduction = ReductionKernel {
            kernel_size: problem.kernel_size,
            levels: layout.levels,
            base,
            threads: (problem.kernel_size * problem.kernel_size)
                .next_multiple_of(32)
                .min(256)
                .min(limits.threads),
        };
        let reduction_cubes = cubes(problem.channels * kernel.filters(), limits)?;
        Ok(GradientPlan { kernel, cover, visits, chunks, reduction, reduction_cubes, deeper, wide_indices })
    };

    let resident = || resident_layout(problem, base, channels, gradient_planes, limits, &measure);
    match strategy {
        Strategy::Resident => return plan(resident()?, None),
        Strategy::Auto => {
            if let Ok(layout) = resident() {
                return plan(layout, None);
            }
        }
        Strategy::Windows { .. } => {}
    }
    let layout = window_layout(problem, base, channels, limits, &Waits::OF_GRADIENT, strategy, &measure)?;
    let deeper = deeper(problem, layout.levels, channels > 1, vector(&operands.x), limits)?;
    let deeper = match deeper {
        None => None,
        Some((low_pass, low_pass_cubes, problem, scratch)) => {
            let operands = Operands { x: scratch, y: scratch, dtype: Dtype::F32, ..*operands };
            let plan = gradient_branch(&problem, &operands, false, wide_indices, limits, Strategy::Auto)?;
            Some(Box::new(Deeper { low_pass, low_pass_cubes, problem, scratch, plan }))
        }
    };
    plan(layout, deeper)
}

/// Bytes of shared memory and threads that a layout needs.
type Measure<'a> = &'a dyn Fn(&Layout) -> (usize, usize);

/// Whole planes: of the numbers a cube that `planes` suggests, the one of which the device holds the most planes together, the larger
/// if it makes no difference; as many as memory allows if none fits.
fn resident_layout(
    problem: &Problem,
    base: bool,
    channels: usize,
    planes: fn(&Layout) -> [usize; 2],
    limits: &DeviceLimits,
    measure: Measure<'_>,
) -> Result<Layout, Refusal> {
    let clip = clip(problem, limits);
    let layout = Layout {
        kernel_size: problem.kernel_size,
        height: problem.height,
        width: problem.width,
        levels: problem.levels,
        planes: channels,
        channels,
        resident: true,
        base,
        base_rows: tile_rows(problem.height, limits),
        tile_rows: tile_rows(problem.extents(1).0, limits),
        clip,
        threads: limits.threads,
        start: 0,
        vectors: limits.vectors,
        unroll: limits.unroll,
    };
    let most = channels * problem.batch.max(1).next_power_of_two();
    let of = |planes: usize| {
        let mut layout = Layout { planes, channels: channels.min(planes), ..layout };
        layout.threads = operator_threads(&layout, limits);
        fits(measure(&layout), limits).map(|()| layout)
    };
    let planes_together = |layout: &Layout| {
        let (bytes, _) = measure(layout);
        let by_registers = REGISTERS / (layout.threads * operator_registers(layout));
        let cubes = limits.cubes_together(bytes).min(by_registers) * limits.multiprocessors.unwrap_or(16);
        if items(problem, layout) * problem.channels.div_ceil(layout.channels) <= cubes {
            // All planes at once, by as many multiprocessors as there can be.
            (usize::MAX, usize::MAX - layout.planes)
        } else {
            (layout.planes * cubes, layout.planes)
        }
    };
    // At least eight neighbouring channels, a sector of f32, where memory can hold them.
    let mut planes = planes(&layout).map(|planes| planes.clamp(channels.min(8), most));
    loop {
        let layouts = planes.map(of);
        match layouts.iter().flatten().max_by_key(|layout| planes_together(layout)) {
            Some(layout) => return Ok(*layout),
            None if planes == [1; 2] => return layouts[0],
            None => planes = planes.map(|planes| (planes / 2).max(1)),
        }
    }
}

/// The window that moves and computes the least, halo and ragged edges counted in.
fn window_layout(
    problem: &Problem,
    base: bool,
    channels: usize,
    limits: &DeviceLimits,
    waits: &Waits,
    strategy: Strategy,
    measure: Measure<'_>,
) -> Result<Layout, Refusal> {
    let refused = Refusal::Strategy { strategy, levels: problem.levels };
    // A window of which a multiprocessor's memory holds `together`.
    let window = |levels: usize, height: usize, width: usize, together: usize| {
        let share = DeviceLimits { shared_memory: limits.memory_of_each(together), ..*limits };
        let height = height.min(problem.height.next_multiple_of(BLOCK));
        let width = width.min(problem.width.next_multiple_of(BLOCK));
        let mut layout = Layout {
            kernel_size: problem.kernel_size,
            height,
            width,
            levels,
            planes: 1,
            channels: 1,
            resident: false,
            base,
            base_rows: tile_rows(height, limits),
            tile_rows: tile_rows(height.div_ceil(2), limits),
            clip: 0,
            threads: limits.threads,
            start: 0,
            vectors: limits.vectors,
            unroll: limits.unroll,
        };
        // A few channels still make better loads than one where they are neighbours in memory.
        layout.channels = channels.min(4);
        layout.planes = layout.channels;
        loop {
            layout.threads = operator_threads(&layout, limits);
            let fitting = fits(measure(&layout), &share);
            if fitting.is_ok() {
                layout.threads = window_threads(&layout, measure(&layout).0, limits);
            }
            if layout.planes == 1 || fitting.is_ok() {
                return fitting.map(|()| layout);
            }
            layout.planes /= 2;
            layout.channels /= 2;
        }
    };
    if let Strategy::Windows { levels, height, width } = strategy {
        let applies = levels <= problem.levels.min(BLOCK_LEVELS)
            && (levels > 0 || problem.levels == 0)
            && height.is_multiple_of(BLOCK)
            && width.is_multiple_of(BLOCK)
            && height > 0
            && width > 0;
        if !applies {
            return Err(refused);
        }
        return window(levels, height, width, 1);
    }
    // Cubes of one multiprocessor hide each other's loads and barriers; a window that leaves no room for two is the last resort.
    let least = problem.levels.min(1);
    let mut smallest = Refusal::SharedMemory { needed: usize::MAX, available: limits.shared_memory };
    for together in [2..=waits.most_together, 1..=1] {
        for levels in (least..=problem.levels.min(BLOCK_LEVELS)).rev() {
            let mut best: Option<(usize, Layout)> = None;
            for together in together.clone() {
                for height in window_sides(problem.height) {
                    for width in window_sides(problem.width) {
                        match window(levels, height, width, together) {
                            Err(refusal) => smallest = refusal,
                            Ok(layout) => {
                                let cost =
                                    window_cost(problem, &layout) * (10 + waits.tenths(&layout, together));
                                if best.is_none_or(|(least, _)| cost < least) {
                                    best = Some((cost, layout));
                                }
                            }
                        }
                    }
                }
            }
            if let Some((_, layout)) = best {
                return Ok(layout);
            }
        }
    }
    Err(smallest)
}

/// Sides that a window may have: even shares of the extent, and fixed ones for planes that are larger, or devices on which
/// those do not fit.
fn window_sides(extent: usize) -> impl Iterator<Item = usize> {
    let shares = (1..=8).map(move |parts| extent.div_ceil(parts).next_multiple_of(BLOCK));
    shares.filter(|side| (32..=128).contains(side)).chain([128, 64, 48, 40, 32, 16, 8, 4])
}

/// Samples loaded and outputs computed for one plane, up to a factor. The ends of a loaded row lie in lines of device memory of
/// which the window uses a part: of two windows of one area the wider one is faster.
fn window_cost(problem: &Problem, layout: &Layout) -> usize {
    /// Elements of a line, of which every loaded row wastes about one.
    const LINE: usize = 32;
    let windows = problem.height.div_ceil(layout.height) * problem.width.div_ceil(layout.width);
    let loaded = layout.blocks_y() * BLOCK * (layout.blocks_x() * BLOCK + LINE);
    let computed = layout.buffer_slots(0) * layout.base_rows * QUAD;
    windows * (loaded + 2 * computed)
}

/// What a kernel's windows wait for, besides what they load and compute.
struct Waits {
    /// Cubes that a multiprocessor should hold together, at least 2.
    most_together: usize,
    /// Whether all subbands should be convolved in one round.
    rounds: bool,
}

impl Waits {
    /// The operator waits at barriers: two cubes hide less of each other's waiting than three, and a second round for the deepest
    /// subbands is one more wait. Of neighbouring channels a smaller share of memory would hold fewer.
    const fn of_operator(channels: usize) -> Self {
        Waits { most_together: if channels > 1 { 2 } else { WINDOWS_TOGETHER }, rounds: true }
    }

    /// The filter gradients wait little: of the windows of which two cubes fit, the one that loads and computes the least.
    const OF_GRADIENT: Self = Waits { most_together: 2, rounds: false };

    /// A tenth of the time for each wait, as measured on planes of 224 and 512 samples a side.
    const fn tenths(&self, layout: &Layout, together: usize) -> usize {
        let rounds = if self.rounds { layout.rounds().saturating_sub(1) } else { 0 };
        self.most_together.saturating_sub(together) + rounds
    }
}

fn fits((shared, threads): (usize, usize), limits: &DeviceLimits) -> Result<(), Refusal> {
    if shared > limits.shared_memory {
        Err(Refusal::SharedMemory { needed: shared, available: limits.shared_memory })
    } else if threads > limits.threads {
        Err(Refusal::Threads { needed: threads, available: limits.threads })
    } else {
        Ok(())
    }
}

/// Rows of a register tile for a level of `extent` rows: few wasted rows, few halo rows.
fn tile_rows(extent: usize, limits: &DeviceLimits) -> usize {
    let most = if limits.unroll { 8 } else { 4 };
    if extent <= most || most == 4 {
        return extent.min(most);
    }
    // A tile costs its own rows and about one row's worth of halo and set-up; 7 comes first because 56, 28 and 14 divide.
    [7, 8, 6, 5, 4]
        .into_iter()
        .min_by_key(|rows| extent.div_ceil(*rows) * (100 * rows + 90))
        .expect("the list is not empty")
}

/// Rows of taps a gradient thread holds: all of a small filter, else the most that divide the side and fit registers.
fn tap_rows(kernel_size: usize, limits: &DeviceLimits) -> usize {
    if !limits.unroll {
        return 1;
    }
    if kernel_size <= MAX_REGISTER_KERNEL {
        return kernel_size;
    }
    (1..kernel_size)
        .rev()
        .find(|&rows| kernel_size.is_multiple_of(rows) && rows * kernel_size <= 64)
        .unwrap_or(1)
}

/// Largest side of a level that one thread convolves whole. Small planes have most of their levels there; for larger planes
/// the registers that it takes cost more than the few levels win.
fn clip(problem: &Problem, limits: &DeviceLimits) -> usize {
    match problem.height.max(problem.width) {
        _ if problem.kernel_size > MAX_REGISTER_KERNEL || !limits.unroll => 0,
        0..=32 => 7,
        _ => 4,
    }
}

/// Threads for an operator layout: its widest stage, clipped levels counted half since they take two turns gladly.
fn operator_threads(layout: &Layout, limits: &DeviceLimits) -> usize {
    let widest = (0..=layout.levels)
        .map(
            |level| {
                if layout.clipped(level) { layout.buffers(level).div_ceil(2) } else { layout.slots(level) }
            },
        )
        .max()
        .unwrap_or(1);
    let threads = widest.max(layout.largest_buffer()).next_multiple_of(limits.plane_size);
    threads.min(limits.threads / limits.plane_size * limits.plane_size).min(1024)
}

/// Threads for a window that takes `bytes` of memory: all tiles of its subbands in one round where registers still let a
/// multiprocessor hold as many cubes as its memory does.
fn window_threads(layout: &Layout, bytes: usize, limits: &DeviceLimits) -> usize {
    let held = limits.cubes_together(bytes).clamp(1, WINDOWS_TOGETHER);
    let subbands: usize = (1..=layout.levels).map(|level| layout.slots(level)).sum();
    let threads = subbands.next_multiple_of(limits.plane_size).max(layout.threads);
    let fits =
        threads <= limits.threads.min(1024) && threads * operator_registers(layout) * held <= REGISTERS;
    if fits { threads } else { layout.threads }
}

/// Registers of an operator thread, about as compiled for CUDA: taps and sums of a tile, and what addresses take, a little less
/// of it at level 0.
fn operator_registers(layout: &Layout) -> usize {
    let kernel_size = layout.kernel_size;
    let taps = if kernel_size <= MAX_REGISTER_KERNEL { kernel_size * kernel_size } else { kernel_size };
    (taps + QUAD * layout.tile_rows.max(layout.base_rows.saturating_sub(1)) + 19).next_multiple_of(8)
}

/// Windows that a cube visits. A cube that a multiprocessor holds alone waits for its loads with nobody to take over: it fetches
/// the next window's samples into registers instead, while it works on the one before. As many visits as leave the fewest
/// multiprocessors idle in the last wave.
fn operator_visits(
    problem: &Problem,
    kernel: &OperatorKernel,
    cover: &Cover,
    limits: &DeviceLimits,
) -> usize {
    /// The last cube of a multiprocessor runs alone: long visits make for a long last wave.
    const MOST: usize = 4;
    let layout = &kernel.layout;
    let held = layout.threads * (operator_registers(layout) + kernel.fetched_samples());
    if limits.cubes_together(4 * kernel.shared_floats()) > 1 || held > REGISTERS {
        return 1;
    }
    let items = items(problem, layout);
    // Only the first visit's loads are waited for: about a third of a visit.
    let tenths = |visits: usize| {
        let cubes = items.div_ceil(visits) * cover.channel_groups;
        cubes.div_ceil(limits.multiprocessors.unwrap_or(16)) * (10 * visits + 3)
    };
    (1..=MOST).min_by_key(|visits| tenths(*visits)).expect("the range is not empty")
}

/// Neighbouring channels that a cube takes where channels are the fastest axis: a 32-byte sector of device memory.
fn neighbouring_channels(operands: &Operands, shape: [usize; 4], limits: &DeviceLimits) -> usize {
    if !operands.x.is_channels_last(shape) {
        return 1;
    }
    let sector = if limits.unroll { 32 / operands.dtype.size() } else { 4 };
    sector.min(shape[1].next_power_of_two())
}

/// Numbers of planes that keep an operator cube busy. Cubes of moderate size hide each other's waiting; of neighbouring channels, whose
/// loads take longer, a cube that is alone on its multiprocessor and prefetches is faster.
fn operator_planes(layout: &Layout) -> [usize; 2] {
    if layout.clipped(0) {
        return [32, 64];
    }
    let threads = if layout.channels > 1 { [256, 512] } else { [128, 256] };
    threads.map(|threads| previous_power_of_two(threads / layout.buffer_slots(0)))
}

/// Planes that keep a gradient cube of moderate size busy.
fn gradient_planes(layout: &Layout) -> [usize; 2] {
    let slots: usize = (0..=layout.levels)
        .map(|level| Layout { clip: 0, ..*layout }.buffer_slots(level) * layout.subbands(level))
        .sum();
    [previous_power_of_two(256 / slots).min(8); 2]
}

fn previous_power_of_two(count: usize) -> usize {
    if count == 0 { 1 } else { 1 << count.ilog2() }
}

/// Threads of a gradient cube at most, of which a multiprocessor is to hold `together`.
fn gradient_threads(limits: &DeviceLimits, together: usize) -> usize {
    limits.threads.min(REGISTERS / GRADIENT_REGISTERS / together) / limits.plane_size * limits.plane_size
}

/// Gradient cubes that a device runs at once: one wave of them, so that none waits for a second.
fn resident_cubes(kernel: &GradientKernel, limits: &DeviceLimits) -> usize {
    let by_memory = limits.cubes_together(4 * kernel.shared_floats());
    let by_registers = REGISTERS / GRADIENT_REGISTERS / kernel.x.threads;
    limits.multiprocessors.unwrap_or(16) * by_memory.min(by_registers).clamp(1, 16)
}

/// How cubes of `layout` cover the problem, one window a cube.
fn cover(problem: &Problem, layout: &Layout, limits: &DeviceLimits) -> Result<Cover, Refusal> {
    let windows_y = problem.height.div_ceil(layout.height);
    let windows_x = problem.width.div_ceil(layout.width);
    let channel_groups = problem.channels.div_ceil(layout.channels);
    let count = items(problem, layout) * channel_groups;
    Ok(Cover { windows_y, windows_x, channel_groups, cubes: cubes(count, limits)? })
}

/// Windows of a channel group, over all groups of images.
fn items(problem: &Problem, layout: &Layout) -> usize {
    problem.batch.div_ceil(layout.images())
        * problem.height.div_ceil(layout.height)
        * problem.width.div_ceil(layout.width)
}

fn cubes(count: usize, limits: &DeviceLimits) -> Result<[u32; 2], Refusal> {
    limits.cube_count(count).ok_or(Refusal::Cubes { needed: count, available: limits.cubes })
}

/// The low-pass kernel below `levels`, and the problem that is left there; `None` if no level is left.
#[allow(clippy::type_complexity)]
fn deeper(
    problem: &Problem,
    levels: usize,
    channel_lanes: bool,
    vector: usize,
    limits: &DeviceLimits,
) -> Result<Option<(LowPassKernel, [u32; 2], Problem, Strided)>, Refusal> {
    if problem.levels <= levels {
        return Ok(None);
    }
    let (height, width) = problem.extents(levels);
    let below = Problem { height, width, levels: problem.levels - levels, ..*problem };
    let shape = [below.batch, below.channels, height, width];
    let scratch = if channel_lanes { Strided::channels_last(shape) } else { Strided::contiguous(shape) };
    let threads = limits.threads.min(256);
    let kernel = LowPassKernel { levels, load: vector.min(1 << levels), channel_lanes, threads };
    Ok(Some((kernel, cubes(below.elements().div_ceil(threads), limits)?, below, scratch)))
}
