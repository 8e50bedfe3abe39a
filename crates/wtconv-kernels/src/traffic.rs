//! The traffic model: elements and bytes that a plan moves through device memory, beside the published models.
//!
//! In elements of the input, `N = B C H W`, and with `n_l = N / 4^(l-1)` the elements that level `l` analyses:
//!
//! * the reference layer moves `7 N` on the base path and `10.75 n_l` for each level: 17.75 N at one level, 21.32 N at five;
//! * the fused kernels of Aflalo et al. move `3 N + 4 n_l` summed over the levels: 7 N at one level, 8.33 N at five;
//! * a resident plan moves 2 N, whatever the levels: the floor.

use crate::plan::{GradientPlan, OperatorPlan};
use crate::problem::{Dtype, Problem};

/// Elements and bytes read and written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Elements read.
    pub read: usize,
    /// Elements written.
    pub written: usize,
    /// Bytes read and written.
    pub bytes: usize,
}

impl Traffic {
    fn of(read: usize, written: usize, dtype: Dtype) -> Self {
        Traffic { read, written, bytes: (read + written) * dtype.size() }
    }

    /// Elements read and written.
    pub const fn elements(&self) -> usize {
        self.read + self.written
    }
}

impl core::ops::Add for Traffic {
    type Output = Traffic;

    fn add(self, other: Traffic) -> Traffic {
        Traffic {
            read: self.read + other.read,
            written: self.written + other.written,
            bytes: self.bytes + other.bytes,
        }
    }
}

/// Elements that the reference layer moves forward, in units of the input's elements.
pub fn reference_elements(levels: usize) -> f64 {
    7.0 + 10.75 * analysed(levels)
}

/// Elements that the fused kernels of Aflalo et al. move forward, in units of the input's elements.
pub fn published_fused_elements(levels: usize) -> f64 {
    3.0 + 4.0 * analysed(levels)
}

/// Elements that the levels analyse, in units of the input's.
fn analysed(levels: usize) -> f64 {
    (0..levels).map(|level| 0.25f64.powi(level as i32)).sum()
}

/// What an operator plan moves. Parameters are left out; halos are counted each time they are read.
pub fn operator_traffic(plan: &OperatorPlan, problem: &Problem, dtype: Dtype) -> Traffic {
    let kernel = Traffic::of(windows_read(problem, &plan.kernel.layout), problem.elements(), dtype);
    let deeper = plan.deeper.as_ref().map_or(Traffic::default(), |deeper| {
        let carried = Traffic::of(deeper.problem.elements(), 0, Dtype::F32);
        let low_pass =
            Traffic::of(problem.elements(), 0, dtype) + Traffic::of(0, deeper.problem.elements(), Dtype::F32);
        low_pass + carried + operator_traffic(&deeper.plan, &deeper.problem, Dtype::F32)
    });
    kernel + deeper
}

/// What a filter-gradient plan moves, shares included; parameters and their gradients are left out.
pub fn filter_gradient_traffic(plan: &GradientPlan, problem: &Problem, dtype: Dtype) -> Traffic {
    let read = windows_read(problem, &plan.kernel.x) + windows_read(problem, &plan.kernel.dy);
    let shares = plan.chunks * problem.channels * plan.kernel.share();
    let kernel =
        Traffic::of(read * plan.kernel.tap_groups(), 0, dtype) + Traffic::of(shares, shares, Dtype::F32);
    let deeper = plan.deeper.as_ref().map_or(Traffic::default(), |deeper| {
        let low_pass = Traffic::of(2 * problem.elements(), 0, dtype)
            + Traffic::of(0, 2 * deeper.problem.elements(), Dtype::F32);
        low_pass + filter_gradient_traffic(&deeper.plan, &deeper.problem, Dtype::F32)
    });
    kernel + deeper
}

/// Elements that windows of `layout` read, each with its halo as far as it lies in the plane.
fn windows_read(problem: &Problem, layout: &crate::layout::Layout) -> usize {
    let margin = layout.margin() * crate::layout::BLOCK;
    let along = |extent: usize, window: usize| -> usize {
        (0..extent.div_ceil(window))
            .map(|i| (i * window + window + margin).min(extent) - (i * window).saturating_sub(margin))
            .sum()
    };
    problem.batch
        * problem.channels
        * along(problem.height, layout.height)
        * along(problem.width, layout.width)
}
