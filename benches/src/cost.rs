//! Launches and bytes of a call by the plans of the fused kernels, and what the published models say.

use wtconv_kernels::traffic::{
    filter_gradient_traffic, operator_traffic, published_fused_elements, reference_elements,
};
use wtconv_kernels::{
    DeviceLimits, Operands, Problem, Refusal, Strategy, Strided, plan_filter_gradient, plan_operator,
};

use crate::cases::{Case, Dtype, Layout, Pass};

/// Of one pass by the fused kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FusedCost {
    pub(crate) launches: usize,
    pub(crate) bytes: usize,
}

/// Tensors of the input's size that a pass cannot do without: `x` and `y` forward; `x`, `dy` and `dx` backward.
pub(crate) fn floor_tensors(pass: Pass) -> usize {
    match pass {
        Pass::Forward => 2,
        Pass::Backward => 3,
        Pass::Train => 5,
    }
}

/// Bytes of what a pass returns, which are in use at its end: `y`, or the gradients of the input and the parameters.
pub(crate) fn result_bytes(case: &Case, dtype: Dtype, pass: Pass) -> u64 {
    let (channels, bands) = (case.shape.0[1], 1 + 4 * case.levels);
    let filters = channels * bands * case.kernel_size * case.kernel_size;
    let elements = match pass {
        Pass::Forward => case.shape.elements(),
        Pass::Backward | Pass::Train => case.shape.elements() + filters,
    };
    (elements * dtype.size()) as u64
}

/// Bytes of tensors that a row has in use at once, at least: `x` and `dy`, which are drawn for every pass, the
/// parameters and what the pass returns.
pub(crate) fn least_bytes(case: &Case, dtype: Dtype, pass: Pass) -> u64 {
    let (channels, bands) = (case.shape.0[1], 1 + 4 * case.levels);
    let parameters = channels * (bands * (case.kernel_size * case.kernel_size + 1) + 1);
    let elements = 2 * case.shape.elements() + parameters;
    (elements * dtype.size()) as u64 + result_bytes(case, dtype, pass)
}

/// Plans a pass.
///
/// # Errors
///
/// The planner's refusal.
pub(crate) fn fused(
    case: &Case,
    dtype: Dtype,
    layout: Layout,
    pass: Pass,
    limits: &DeviceLimits,
) -> Result<FusedCost, Refusal> {
    let [batch, channels, height, width] = case.shape.0;
    let Case { kernel_size, levels, .. } = *case;
    let problem = Problem { batch, channels, height, width, kernel_size, levels };
    let strided = match layout {
        Layout::Nchw => Strided::contiguous(case.shape.0),
        Layout::Nhwc => Strided::channels_last(case.shape.0),
    };
    let dtype = dtype.of_kernels();
    let operands = Operands { x: strided, y: strided, dtype, parameter_dtype: dtype };
    let mut cost = FusedCost { launches: 0, bytes: 0 };
    let mut operator = |rotate| -> Result<(), Refusal> {
        let plan = plan_operator(&problem, &operands, rotate, limits, Strategy::Auto)?;
        cost.launches += plan.launches();
        cost.bytes += operator_traffic(&plan, &problem, dtype).bytes;
        Ok(())
    };
    if pass != Pass::Backward {
        operator(false)?;
    }
    if pass != Pass::Forward {
        operator(true)?;
        let plan = plan_filter_gradient(&problem, &operands, limits, Strategy::Auto)?;
        cost.launches += plan.launches();
        cost.bytes += filter_gradient_traffic(&plan, &problem, dtype).bytes;
    }
    Ok(cost)
}

/// Bytes that the reference layer and the fused kernels of Aflalo et al. move by their model, which is of the forward.
pub(crate) fn published_bytes(case: &Case, dtype: Dtype, pass: Pass) -> Option<[f64; 2]> {
    let bytes = (case.shape.elements() * dtype.size()) as f64;
    let models = [reference_elements(case.levels), published_fused_elements(case.levels)];
    (pass == Pass::Forward).then(|| models.map(|elements| elements * bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cases::Shape;

    #[test]
    fn a_resident_plane_moves_the_floor_forward() {
        let case = Case { shape: Shape([64, 96, 56, 56]), levels: 5, kernel_size: 5 };
        let tensor = case.shape.elements() * 4;
        let forward = fused(&case, Dtype::F32, Layout::Nchw, Pass::Forward, &DeviceLimits::HOPPER).unwrap();
        assert_eq!(forward, FusedCost { launches: 1, bytes: floor_tensors(Pass::Forward) * tensor });
        let [backward, train] = [Pass::Backward, Pass::Train]
            .map(|pass| fused(&case, Dtype::F32, Layout::Nchw, pass, &DeviceLimits::HOPPER).unwrap());
        assert!(backward.bytes > floor_tensors(Pass::Backward) * tensor);
        assert_eq!(train.bytes, forward.bytes + backward.bytes);
        assert_eq!(train.launches, forward.launches + backward.launches);
        let half = fused(&case, Dtype::F16, Layout::Nhwc, Pass::Forward, &DeviceLimits::HOPPER).unwrap();
        assert_eq!(half.bytes, forward.bytes / 2);
    }

    #[test]
    fn results_are_the_output_or_the_gradients() {
        let case = Case { shape: Shape([2, 3, 10, 10]), levels: 1, kernel_size: 5 };
        assert_eq!(result_bytes(&case, Dtype::F32, Pass::Forward), 600 * 4);
        assert_eq!(result_bytes(&case, Dtype::F16, Pass::Train), (600 + 3 * 5 * 25) * 2);
    }

    #[test]
    fn a_row_holds_its_input_its_parameters_and_its_results() {
        let case = Case { shape: Shape([2, 3, 10, 10]), levels: 1, kernel_size: 5 };
        let parameters = 3 * 5 * 25 + 3 * 5 + 3;
        assert_eq!(least_bytes(&case, Dtype::F32, Pass::Forward), (3 * 600 + parameters) * 4);
        assert_eq!(least_bytes(&case, Dtype::F16, Pass::Train), (3 * 600 + parameters + 3 * 5 * 25) * 2);
    }

    #[test]
    fn published_models_are_of_the_forward() {
        let case = Case { shape: Shape([1, 1, 10, 10]), levels: 1, kernel_size: 5 };
        assert_eq!(published_bytes(&case, Dtype::F32, Pass::Forward), Some([17.75 * 400.0, 7.0 * 400.0]));
        assert_eq!(published_bytes(&case, Dtype::F32, Pass::Train), None);
    }
}
