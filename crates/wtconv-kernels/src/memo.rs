//! Plans that were made before. A model calls with the same few shapes at every step, and a plan in windows is chosen from many
//! candidates.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, LazyLock, Mutex};

use crate::device::DeviceLimits;
use crate::plan::{
    GradientPlan, Operands, OperatorPlan, Refusal, Strategy, plan_filter_gradient, plan_operator,
};
use crate::problem::Problem;

/// Plans kept; more are only seen where sizes change all the time, and then all are forgotten.
const CAPACITY: usize = 1024;

type OperatorKey = (Problem, Operands, bool, DeviceLimits, Strategy);
type GradientKey = (Problem, Operands, DeviceLimits, Strategy);
type Memo<K, P> = LazyLock<Mutex<HashMap<K, Result<Arc<P>, Refusal>>>>;

static OPERATOR: Memo<OperatorKey, OperatorPlan> = LazyLock::new(Mutex::default);
static GRADIENT: Memo<GradientKey, GradientPlan> = LazyLock::new(Mutex::default);

/// [`plan_operator`], computed once for each call that differs.
///
/// # Errors
///
/// Those of [`plan_operator`].
pub fn operator_plan(
    problem: &Problem,
    operands: &Operands,
    rotate: bool,
    limits: &DeviceLimits,
    strategy: Strategy,
) -> Result<Arc<OperatorPlan>, Refusal> {
    remembered(&OPERATOR, (*problem, *operands, rotate, *limits, strategy), || {
        plan_operator(problem, operands, rotate, limits, strategy)
    })
}

/// [`plan_filter_gradient`], computed once for each call that differs.
///
/// # Errors
///
/// Those of [`plan_filter_gradient`].
pub fn filter_gradient_plan(
    problem: &Problem,
    operands: &Operands,
    limits: &DeviceLimits,
    strategy: Strategy,
) -> Result<Arc<GradientPlan>, Refusal> {
    remembered(&GRADIENT, (*problem, *operands, *limits, strategy), || {
        plan_filter_gradient(problem, operands, limits, strategy)
    })
}

fn remembered<K: Eq + Hash, P>(
    memo: &Memo<K, P>,
    key: K,
    plan: impl FnOnce() -> Result<P, Refusal>,
) -> Result<Arc<P>, Refusal> {
    let mut plans = memo.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if let Some(plan) = plans.get(&key) {
        return plan.clone();
    }
    let plan = plan().map(Arc::new);
    if plans.len() >= CAPACITY {
        plans.clear();
    }
    plans.insert(key, plan.clone());
    plan
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::{Dtype, Strided};

    fn limits() -> DeviceLimits {
        DeviceLimits {
            shared_memory: 65536,
            threads: 1024,
            cubes: [65535, 65535],
            plane_size: 32,
            multiprocessors: None,
            vectors: true,
            unroll: true,
            wide_indices: false,
            f16: true,
            bf16: true,
        }
    }

    #[test]
    fn a_plan_is_that_of_its_own_call_and_made_once() {
        let problem = |side, kernel_size| Problem {
            batch: 2,
            channels: 3,
            height: side,
            width: side,
            kernel_size,
            levels: 2,
        };
        let operands = |side| {
            let tensor = Strided::contiguous([2, 3, side, side]);
            Operands { x: tensor, y: tensor, dtype: Dtype::F32, parameter_dtype: Dtype::F32 }
        };
        for (side, kernel_size) in [(20, 5), (300, 5), (20, 7), (20, 4)] {
            let (problem, operands) = (problem(side, kernel_size), operands(side));
            for rotate in [false, true] {
                let planned = plan_operator(&problem, &operands, rotate, &limits(), Strategy::Auto);
                let get = || operator_plan(&problem, &operands, rotate, &limits(), Strategy::Auto);
                assert_eq!(get().map(|plan| (*plan).clone()), planned);
                if let (Ok(first), Ok(second)) = (get(), get()) {
                    assert!(Arc::ptr_eq(&first, &second));
                }
            }
            let planned = plan_filter_gradient(&problem, &operands, &limits(), Strategy::Auto);
            let got = filter_gradient_plan(&problem, &operands, &limits(), Strategy::Auto);
            assert_eq!(got.map(|plan| (*plan).clone()), planned);
        }
    }
}
