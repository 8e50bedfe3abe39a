//! Training: one loop on Burn's optimizer, metrics, renderers and recorders.
//!
//! Burn 0.21's `SupervisedTraining` is not used, because it cannot do what a long run needs: it steps the learning rate for
//! each batch even when gradients are accumulated, adds accumulated gradients up instead of averaging them, drops those of
//! an incomplete last update, skips the checkpoint when it is interrupted, panics when a checkpoint cannot be written, and
//! cannot restore the state of its data loader and random numbers.
//!
//! ```text
//! prepare.rs    what is checked before a run begins    run.rs  the loop over epochs and updates
//! feed.rs       batches to the devices, ahead of them
//! step.rs       one update: gradients of a mean over several batches, and the step
//! gradients.rs  all gradients scaled, or as one tensor
//! dtype.rs      the model in bf16, all else in f32   clip.rs      clipping by the norm of all gradients
//! optimizer.rs  AdamW in two parameter groups        schedule.rs  warm-up and cosine
//! loss.rs       cross-entropy, of labels and mixed   metrics.rs   sums over an epoch, from Burn's metrics
//! ema.rs        average of the weights               history.rs   numbers and curves of past epochs
//! checkpoint.rs atomic checkpoints of a run          lock.rs      one process a run
//! progress.rs   dashboard.rs or plain lines          interrupt.rs Ctrl-C
//! parallel.rs   one update over several devices      devices.rs   --devices
//! ```

pub mod checkpoint;
pub mod clip;
mod dashboard;
pub mod devices;
pub mod dtype;
pub mod ema;
pub mod feed;
pub mod gradients;
pub mod history;
pub mod interrupt;
pub mod lock;
pub mod loss;
pub mod metrics;
pub mod optimizer;
pub mod parallel;
pub mod prepare;
pub mod progress;
pub mod run;
pub mod schedule;
pub mod step;
