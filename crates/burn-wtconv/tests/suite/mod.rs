//! The tests that every backend runs, against the f64 oracle and the golden files.
//!
//! `tests/BACKEND.rs` names a backend, its device and its tolerances and takes in all tests by [`suite`].
#![allow(dead_code, reason = "each backend uses a part")]

mod agreement;
mod autodiff_contract;
mod depthwise;
mod layouts;
#[cfg(feature = "cubecl")]
mod memory;
mod tensors;
mod validation;

pub use agreement::*;
pub use autodiff_contract::*;
pub use depthwise::*;
pub use layouts::*;
#[cfg(feature = "cubecl")]
#[allow(unused_imports, reason = "for the backends whose allocator can be asked")]
pub use memory::*;
pub use tensors::{Precision, the_device_answers};
pub use validation::*;

/// Makes a `#[test]` of every function of the suite for one backend and precision.
macro_rules! suite {
    ($backend:ty, $precision:expr) => {
        suite!(@tests $backend, $precision,
            the_device_answers,
            every_golden_case_agrees,
            every_golden_case_agrees_under_gradient_checkpointing,
            every_golden_case_agrees_through_burns_autodiff,
            random_problems_agree_with_the_oracle,
            small_and_awkward_extents_agree_with_the_oracle,
            even_kernel_sizes_agree_with_the_oracle,
            large_kernels_agree_with_the_oracle,
            no_levels_is_a_scaled_depthwise_convolution,
            integers_are_exact,
            interleaved_configurations_do_not_mix,
            depthwise_convolutions_agree_with_the_oracle,
            every_mix_of_tracked_depthwise_arguments_agrees,
            a_depthwise_convolution_of_integers_is_exact,
            depthwise_arguments_are_refused_in_words,
            channels_last_views_agree,
            slices_at_odd_offsets_agree,
            expanded_inputs_agree,
            expanded_cotangents_agree,
            every_mix_of_tracked_arguments_agrees,
            a_layer_used_twice_sums_its_gradients,
            frozen_parameters_have_no_gradient,
            an_empty_batch_works_forward_and_backward,
            twenty_backward_runs_give_equal_bits,
            an_untracked_call_equals_a_tracked_one,
            mismatched_arguments_are_refused_in_words,
            the_route_is_told_and_can_be_forced,
        );
    };
    (@tests $backend:ty, $precision:expr, $($test:ident),* $(,)?) => {
        $(
            #[test]
            fn $test() {
                $crate::suite::$test::<$backend>(&Default::default(), $precision);
            }
        )*
    };
}
pub(crate) use suite;
