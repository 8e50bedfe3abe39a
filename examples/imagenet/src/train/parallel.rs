//! Data-parallel training: one replica of the model on each device, which all take the same step.
//!
//! Every batch is loaded, augmented and mixed as it is on one device, then cut into one part for each device. The loss
//! of a part is divided by the images of the whole update, so the sum of the devices' gradients is the gradient of the mean over
//! all images, whatever the parts' sizes. That sum is the one thing the devices exchange: an all-reduce of all gradients in
//! one tensor. Each then clips and steps by itself. The all-reduce hands every device the same numbers, so that the replicas stay
//! equal without being compared or sent. The first device is the trainer's own; it also keeps the average of the weights,
//! validates and writes.
//!
//! The all-reduce is Burn's `burn-collective`, which works on any backend: it adds along a tree of devices, by copies between them.
//! `GradientsParams::all_reduce` is not used: it makes an exchange for each parameter, and waits for ever if one device has no
//! gradient of a parameter that another has. So does any exchange with a device that has died. So all must report that their
//! gradients are there, and that they go into the exchange, before the first device does, and the trainer never waits in the
//! exchange itself, but for reports, and for them no longer than ten minutes. Of a device that does not answer, the thread stays
//! behind; the process ends nevertheless. The first device computes in the trainer's own thread, in which nobody watches it.
//!
//! Before an exchange all devices are waited for, though that leaves a GPU idle while its thread prepares the step that follows. Without
//! it the numbers would not be safe: by its source, a copy from one GPU to another (`send` and `recv` in `src/compute/server.rs` of
//! `cubecl-cuda` 0.10.0) goes into memory that the receiving GPU may still have work queued on, and the memory that is sent is not kept
//! until it has been. (With waiting in every 16th update only, two H200s made 1531 instead of 1273 images a second in f32.)
//!
//! Burn's other engine, `DistributedBackend` with NCCL, panics as unimplemented on a backend without it, so that it could not be
//! tested where there is no GPU; it is not used. Nor are burn-train's own strategies: `ddp` steps the learning rate's schedule as many
//! times an iteration as there are peers, and `multi` adds the devices' gradients without a mean.
//!
//! # One machine
//!
//! `burn-collective` also has nodes, processes on several machines that a coordinator brings together. With 0.21.0 they
//! cannot train:
//!
//! - The barrier at the end of a sum over nodes clears a copy of its list of those that have arrived (`src/global/node/sync.rs`,
//!   lines 71 and 79), so that the barrier of the next is never passed, whatever the strategy. `tests/nodes.rs` shows it and will fail
//!   when it no longer holds. With that line corrected in a copy of the engine, two processes on one machine made 3,000 sums of 1,000
//!   numbers, all right, in 4.9 ms each (2 cores, AMD EPYC, Flex, dev profile).
//! - To register anew for each sum is no way round. The coordinator numbers a node by how many are registered
//!   (`src/global/orchestrator/state.rs`, line 188): one that is ahead gets the number of one that has not left yet, the two count as
//!   complete, and it sums by itself, without an error. Of the same two processes one did so after 305 right sums; with two coordinators
//!   in turn, which keep them apart, they waited for ever in the 1,046th, and the coordinators had 2,106 files open.
//! - Nothing tells a node which other is lost. One that is killed makes the others' engine panic (`src/global/node/tree.rs`, line 56;
//!   `sync.rs`, line 60), and their callers get `LocalServerMissing`. A coordinator that cannot be reached is tried for ever
//!   (`src/global/node/worker.rs`, lines 122 and 129).
//!
//! NCCL's engine has no nodes at all: the id that its peers meet by stays in the process (`src/compute/communication.rs` of
//! `cubecl-cuda` 0.10.0, line 10).
//!
//! Stochastic depth and dropout draw from a generator that all devices of a process share, in the order in which
//! they come to it: with either, a run on several devices does not repeat bit for bit.

use burn::collective::{self, AllReduceStrategy, CollectiveConfig, CollectiveError, PeerId, ReduceOperation};
use burn::module::Module;
use burn::optim::{GradientsParams, Optimizer};
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{Tensor, TensorPrimitive};
use std::any::Any;
use std::collections::BTreeSet;
use std::io;
use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};
use wtconvnext::WtConvNext;

use super::dtype::ForwardDtype;
use super::gradients::{flatten, unflatten};
use super::step::{BatchOutput, UpdateGradients, clip_and_step};
use crate::backend::TrainBackend;
use crate::config::TrainConfig;
use crate::data::batch::ImageBatch;

mod registration;

/// How long the trainer waits for the other devices: for their part of a batch once that is loaded, for their gradients once it has its
/// own, and for the exchange. As long as PyTorch waits for NCCL.
pub(super) const PATIENCE: Duration = Duration::from_secs(600);

/// The next peer of the engine. No two runs of a process have one in common, so that a device that was given up takes no part in the
/// exchanges of a later run.
static NEXT_PEER: AtomicU32 = AtomicU32::new(0);

/// The time of an exchange is measured in the last of so many updates, because the device has to be waited for, which takes time of
/// its own. So it has to after the last update of an epoch, where it is measured too. The first exchange of a call waits for kernels to
/// be compiled, and is not measured.
const MEASURED: usize = 16;

/// A device that cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// It failed.
    #[error("device {device} failed: {reason}; the last checkpoint, if there is one, is usable")]
    Failed {
        /// Its index, as in `--devices`.
        device: usize,
        /// What it said.
        reason: String,
    },
    /// It hangs, or is many times slower than the first device.
    #[error(
        "device {device} has not answered for {} s; the last checkpoint, if there is one, is usable",
        waited.as_secs_f64()
    )]
    Silent {
        /// Its index, as in `--devices`; the first of those that do not answer.
        device: usize,
        /// How long it was waited for.
        waited: Duration,
    },
    /// All devices are there, but Burn's engine does not take them.
    #[error("Burn's collective engine has not registered the devices within {} s", waited.as_secs_f64())]
    Registration {
        /// How long it was waited for.
        waited: Duration,
    },
    /// All devices have their gradients, but not their sum.
    #[error(
        "the devices' exchange of gradients has not ended for {} s; the last checkpoint, if there is one, is usable",
        waited.as_secs_f64()
    )]
    Exchange {
        /// How long it was waited for.
        waited: Duration,
    },
}

/// What all devices do with their batches.
#[derive(Clone, Copy, Debug)]
pub struct Recipe {
    /// Type that the model computes in.
    pub dtype: ForwardDtype,
    /// Label smoothing.
    pub label_smoothing: f64,
    /// Largest norm of the gradient; 0 for any.
    pub clip_grad: f64,
}

impl Recipe {
    /// That of a run.
    pub fn of(config: &TrainConfig) -> Self {
        Self { dtype: config.dtype, label_smoothing: config.label_smoothing, clip_grad: config.clip_grad }
    }
}

/// What the trainer asks of a device.
enum Order<B: Backend> {
    /// Forward and backward of the device's part of a batch of an update of `planned` images; `None` if it has none.
    Batch { part: Option<ImageBatch<B>>, lambda: Option<f64>, planned: usize },
    /// The update is complete; `seen` images went through the model on all devices. If there were none, it has no gradients, and
    /// no `Step` follows.
    Finish { seen: Option<NonZeroUsize> },
    /// Sum the gradients and step.
    Step { lr: f64 },
}

/// What a device reports.
enum Report<B: AutodiffBackend> {
    /// Its gradients are there. An output for each batch, `None` for one of which it had no image.
    Ready(Vec<Option<BatchOutput<B::InnerBackend>>>),
    /// It goes into the exchange.
    Exchanging,
    /// The first device has the sum of all gradients.
    Reduced(Tensor<B::InnerBackend, 1>),
    /// It will do nothing more.
    Failed(String),
}

/// What the batches of an update come to, over all devices.
pub struct Finished<B: AutodiffBackend> {
    /// An output for each batch that had images.
    pub outputs: Vec<BatchOutput<B::InnerBackend>>,
    /// The gradient of the mean over all images, unless there were none.
    pub gradients: Option<GradientsParams>,
}

/// The devices of a run but for the first, each a thread with its replica.
pub struct Replicas<B: AutodiffBackend> {
    /// Indices as in `--devices`, the first device's included.
    indices: Vec<usize>,
    orders: Vec<Sender<Order<B>>>,
    reports: Receiver<(usize, Report<B>)>,
    /// For the thread that exchanges the first device's gradients.
    reporter: Sender<(usize, Report<B>)>,
    first: B::Device,
    first_peer: PeerId,
    patience: Duration,
    exchanges: Exchanges,
}

/// Exchanges of gradients in an epoch.
#[derive(Default)]
struct Exchanges {
    /// Those of earlier epochs.
    earlier: usize,
    count: usize,
    measured: usize,
    /// Of those that were measured.
    time: Duration,
}

impl<B: TrainBackend> Replicas<B> {
    /// Copies `model` and `optimizer` to all `devices` but the first, which holds them.
    ///
    /// # Errors
    ///
    /// [`DeviceError`], if Burn's engine does not take all devices, or one has no thread or no room for the model.
    pub fn start<O: Optimizer<WtConvNext<B>, B> + 'static>(
        devices: &[(usize, B::Device)],
        model: &WtConvNext<B>,
        optimizer: &O,
        recipe: &Recipe,
    ) -> Result<Self, DeviceError> {
        let config = CollectiveConfig::default()
            .with_num_devices(devices.len())
            .with_local_all_reduce_strategy(AllReduceStrategy::Tree(2));
        let count = devices.len() as u32;
        let first_peer = NEXT_PEER.fetch_add(count, Ordering::Relaxed);
        let peers: Vec<_> = (first_peer..first_peer + count).map(PeerId::from).collect();
        registration::register::<B::InnerBackend>(devices, &peers, &config, registration::PATIENCE)?;

        let (reporter, reports) = channel();
        let mut orders = Vec::new();
        for (rank, (index, device)) in devices.iter().enumerate().skip(1) {
            let (sender, receiver) = channel();
            orders.push(sender);
            let failed = |reason| DeviceError::Failed { device: *index, reason };
            let copied = catch_unwind(AssertUnwindSafe(|| {
                #[cfg(test)]
                fault::strike(rank, fault::Place::Copy);
                model.clone().fork(device)
            }));
            let replica = Replica {
                rank,
                peer: peers[rank],
                model: copied.map_err(|panic| failed(panic_message(&*panic)))?,
                optimizer: optimizer.clone(),
                device: device.clone(),
                recipe: *recipe,
            };
            let reporter = reporter.clone();
            let work = move || {
                let failed = catch_unwind(AssertUnwindSafe(|| replica.work(&receiver, &reporter)));
                let reason = match failed {
                    Ok(Ok(())) => return,
                    Ok(Err(reason)) => reason,
                    Err(panic) => panic_message(&*panic),
                };
                // The trainer may have ended.
                let _ = reporter.send((rank, Report::Failed(reason)));
            };
            spawn(rank, format!("device-{index}"), work).map_err(|error| failed(error.to_string()))?;
        }
        let indices = devices.iter().map(|(index, _)| *index).collect();
        Ok(Self {
            indices,
            orders,
            reports,
            reporter,
            first: devices[0].1.clone(),
            first_peer: peers[0],
            patience: PATIENCE,
            exchanges: Exchanges::default(),
        })
    }

    /// Gives each device its part of a batch, and returns that of the first.
    pub fn share(
        &self,
        parts: Vec<Option<ImageBatch<B>>>,
        lambda: Option<f64>,
        planned: usize,
    ) -> Option<ImageBatch<B>> {
        let mut parts = parts.into_iter();
        let first = parts.next().flatten();
        for (orders, part) in self.orders.iter().zip(parts) {
            // A device that is gone has reported why, which is read at the end of the update.
            let _ = orders.send(Order::Batch { part, lambda, planned });
        }
        first
    }

    /// Completes an update in which `seen` images went through the model on all devices.
    ///
    /// `update` and `outputs` are the first device's, with an output for each batch, `None` for one of which it had no image.
    /// With the same gradient as is returned, the other devices step with `lr`. `last` says whether it is the last of its epoch.
    ///
    /// # Errors
    ///
    /// [`DeviceError`] for the first device that reports a failure or does not answer.
    pub fn finish(
        &mut self,
        update: UpdateGradients<B>,
        outputs: Vec<Option<BatchOutput<B::InnerBackend>>>,
        seen: usize,
        model: &WtConvNext<B>,
        lr: f64,
        last: bool,
    ) -> Result<Finished<B>, DeviceError> {
        let seen = NonZeroUsize::new(seen);
        self.send(|| Order::Finish { seen });
        let part = match seen {
            Some(seen) => {
                let part = flatten(update.finish_part(model, seen), model, &self.first);
                // As the other devices do.
                B::sync(&self.first).map_err(|error| self.failed(0, error.to_string()))?;
                Some(part)
            }
            None => None,
        };
        let outputs = self.gather(outputs)?;
        let gradients = match part {
            Some(part) => {
                let started = Instant::now();
                let gradients = unflatten(self.exchange(part, lr)?, model);
                self.exchanges.count += 1;
                let number = self.exchanges.earlier + self.exchanges.count;
                if number > 1 && (last || number.is_multiple_of(MEASURED)) {
                    // Only what this thread has made of the sum is waited for: the engine adds in a thread of its own.
                    B::sync(&self.first).map_err(|error| self.failed(0, error.to_string()))?;
                    self.exchanges.measured += 1;
                    self.exchanges.time += started.elapsed();
                }
                Some(gradients)
            }
            None => None,
        };
        Ok(Finished { outputs, gradients })
    }

    /// Waits until the other devices have their gradients, and puts their outputs together with the first device's `own`.
    fn gather(
        &self,
        own: Vec<Option<BatchOutput<B::InnerBackend>>>,
    ) -> Result<Vec<BatchOutput<B::InnerBackend>>, DeviceError> {
        let mut outputs = vec![own];
        outputs.resize_with(self.indices.len(), Vec::new);
        self.wait_for_others(|rank, report| {
            if let Report::Ready(ready) = report {
                outputs[rank] = ready;
            }
        })?;
        let batches = outputs[0].len();
        let batch = |index: usize| {
            let parts: Vec<_> = outputs.iter().filter_map(|parts| parts[index].clone()).collect();
            join(parts, &self.first)
        };
        Ok((0..batches).filter_map(batch).collect())
    }

    /// Sums the gradients of all devices, of which `part` are the first's, and lets the others step with `lr`. One that fails to step
    /// says so in the next update.
    fn exchange(
        &self,
        part: Tensor<B::InnerBackend, 1>,
        lr: f64,
    ) -> Result<Tensor<B::InnerBackend, 1>, DeviceError> {
        self.send(|| Order::Step { lr });
        self.wait_for_others(|_, _| {})?;
        let (peer, reporter) = (self.first_peer, self.reporter.clone());
        let exchange = move || {
            let report = match catch_unwind(AssertUnwindSafe(|| all_reduce::<B>(peer, part))) {
                Ok(Ok(sum)) => Report::Reduced(sum),
                Ok(Err(error)) => Report::Failed(format!("{error:?}")),
                Err(panic) => Report::Failed(panic_message(&*panic)),
            };
            // The trainer may have ended.
            let _ = reporter.send((0, report));
        };
        spawn(0, "exchange".to_string(), exchange).map_err(|error| self.failed(0, error.to_string()))?;
        let deadline = Instant::now() + self.patience;
        loop {
            match self.report(deadline)? {
                Some((_, Report::Reduced(sum))) => return Ok(sum),
                Some(_) => {}
                None => return Err(DeviceError::Exchange { waited: self.patience }),
            }
        }
    }

    /// The time that the first device has waited for sums of gradients since the last call, by those that were measured; `None` if
    /// none was.
    pub fn take_exchanging(&mut self) -> Option<Duration> {
        let Exchanges { earlier, count, measured, time } = std::mem::take(&mut self.exchanges);
        self.exchanges.earlier = earlier + count;
        (measured > 0).then(|| time.mul_f64(count as f64 / measured as f64))
    }

    fn send(&self, order: impl Fn() -> Order<B>) {
        for orders in &self.orders {
            // As in `share`.
            let _ = orders.send(order());
        }
    }

    /// Takes one report of each device but the first.
    fn wait_for_others(&self, mut take: impl FnMut(usize, Report<B>)) -> Result<(), DeviceError> {
        let deadline = Instant::now() + self.patience;
        let mut silent: BTreeSet<usize> = (1..self.indices.len()).collect();
        while let Some(next) = silent.first() {
            let Some((rank, report)) = self.report(deadline)? else {
                return Err(DeviceError::Silent { device: self.indices[*next], waited: self.patience });
            };
            silent.remove(&rank);
            take(rank, report);
        }
        Ok(())
    }

    /// The next report, or `None` if there is none until `deadline`. That of a failure is an error.
    fn report(&self, deadline: Instant) -> Result<Option<(usize, Report<B>)>, DeviceError> {
        match self.reports.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok((rank, Report::Failed(reason))) => Err(self.failed(rank, reason)),
            Ok(report) => Ok(Some(report)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => unreachable!("one sender is this one's own"),
        }
    }

    fn failed(&self, rank: usize, reason: String) -> DeviceError {
        DeviceError::Failed { device: self.indices[rank], reason }
    }
}

/// The model on another device than the first.
struct Replica<B: AutodiffBackend, O> {
    rank: usize,
    peer: PeerId,
    device: B::Device,
    model: WtConvNext<B>,
    optimizer: O,
    recipe: Recipe,
}

impl<B: TrainBackend, O: Optimizer<WtConvNext<B>, B>> Replica<B, O> {
    /// Follows orders until the trainer ends.
    fn work(
        mut self,
        orders: &Receiver<Order<B>>,
        reporter: &Sender<(usize, Report<B>)>,
    ) -> Result<(), String> {
        let rank = self.rank;
        // The trainer may have ended, which the next order, or rather the lack of it, tells.
        let report = |report| {
            let _ = reporter.send((rank, report));
        };
        let mut update: Option<UpdateGradients<B>> = None;
        let mut outputs = Vec::new();
        let mut part = None;
        while let Ok(order) = orders.recv() {
            #[cfg(test)]
            fault::strike(rank, fault::Place::of(&order));
            match order {
                Order::Batch { part, lambda, planned } => {
                    let Recipe { dtype, label_smoothing, .. } = self.recipe;
                    let update = update.get_or_insert_with(|| UpdateGradients::new(planned, dtype));
                    outputs.push(part.map(|part| update.add(&self.model, part, lambda, label_smoothing)));
                }
                Order::Finish { seen } => {
                    if let (Some(update), Some(seen)) = (update.take(), seen) {
                        let gradients = update.finish_part(&self.model, seen);
                        part = Some(flatten(gradients, &self.model, &self.device));
                        // A device that cannot do what it was told says so here.
                        B::sync(&self.device).map_err(|error| error.to_string())?;
                    }
                    report(Report::Ready(std::mem::take(&mut outputs)));
                }
                Order::Step { lr } => {
                    let part = part.take().ok_or("it has no gradients")?;
                    report(Report::Exchanging);
                    #[cfg(test)]
                    fault::strike(rank, fault::Place::Exchange);
                    let sum = all_reduce::<B>(self.peer, part).map_err(|error| format!("{error:?}"))?;
                    let gradients = unflatten(sum, &self.model);
                    let clip_grad = self.recipe.clip_grad;
                    self.model = clip_and_step(&mut self.optimizer, lr, self.model, gradients, clip_grad);
                }
            }
        }
        Ok(())
    }
}

/// Starts a thread for the device of that rank.
#[cfg_attr(not(test), allow(unused_variables, reason = "faults of a rank are planned by tests"))]
fn spawn(rank: usize, name: String, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    #[cfg(test)]
    fault::refuse_thread(rank)?;
    thread::Builder::new().name(name).spawn(work).map(drop)
}

fn all_reduce<B: AutodiffBackend>(
    peer: PeerId,
    flat: Tensor<B::InnerBackend, 1>,
) -> Result<Tensor<B::InnerBackend, 1>, CollectiveError> {
    let flat = flat.into_primitive().tensor();
    let sum = collective::all_reduce::<B::InnerBackend>(peer, flat, ReduceOperation::Sum)?;
    Ok(Tensor::from_primitive(TensorPrimitive::Float(sum)))
}

/// The outputs of a batch's parts as one, on `device`.
fn join<B: Backend>(parts: Vec<BatchOutput<B>>, device: &B::Device) -> Option<BatchOutput<B>> {
    if parts.is_empty() {
        return None;
    }
    let (mut losses, mut logits, mut labels) = (Vec::new(), Vec::new(), Vec::new());
    for part in parts {
        losses.push(part.losses.to_device(device));
        logits.push(part.logits.to_device(device));
        labels.push(part.labels.to_device(device));
    }
    Some(BatchOutput {
        losses: Tensor::cat(losses, 0),
        logits: Tensor::cat(logits, 0),
        labels: Tensor::cat(labels, 0),
    })
}

/// What a panic said.
pub(super) fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text =
        panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("it panicked").to_string()
}

/// Faults of the devices other than the first, for tests.
#[cfg(test)]
pub(super) mod fault {
    use super::Order;
    use burn::tensor::backend::Backend;
    use std::io;
    use std::sync::{Mutex, MutexGuard, PoisonError};
    use std::thread;
    use std::time::Duration;

    /// What happens.
    #[derive(Clone, Copy, Debug)]
    pub enum Kind {
        /// The device's thread panics.
        Death,
        /// It does nothing more, until the fault is taken back.
        Silence,
        /// The system has no thread for it.
        NoThread,
    }

    /// Before what it happens.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Place {
        /// Before a thread is started for the device.
        Thread,
        /// Before Burn's engine is started; it has the first device's rank.
        Engine,
        /// Before the device says that it is ready to be registered.
        Register,
        /// Before the model is copied to the device.
        Copy,
        /// Before a part of a batch is copied to the device.
        Feed,
        Batch,
        Finish,
        Step,
        /// After the device has said that it goes into the exchange.
        Exchange,
    }

    impl Place {
        pub(super) fn of<B: Backend>(order: &Order<B>) -> Self {
            match order {
                Order::Batch { .. } => Self::Batch,
                Order::Finish { .. } => Self::Finish,
                Order::Step { .. } => Self::Step,
            }
        }
    }

    struct Fault {
        kind: Kind,
        rank: usize,
        place: Place,
        /// How often the device passes the place before.
        after: usize,
    }

    static FAULT: Mutex<Option<Fault>> = Mutex::new(None);

    fn fault() -> MutexGuard<'static, Option<Fault>> {
        FAULT.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the fault back when it is dropped.
    pub struct Planned;

    impl Drop for Planned {
        fn drop(&mut self) {
            *fault() = None;
        }
    }

    /// Plans a fault in the device of `rank`, when it has passed the place as many times. To be called by whoever has the one
    /// group of devices of this process.
    #[must_use]
    pub fn plan(kind: Kind, rank: usize, place: Place, after: usize) -> Planned {
        *fault() = Some(Fault { kind, rank, place, after });
        Planned
    }

    /// The fault that is due.
    fn due(rank: usize, place: Place) -> Option<Kind> {
        match &mut *fault() {
            Some(fault) if fault.rank == rank && fault.place == place => {
                if fault.after > 0 {
                    fault.after -= 1;
                    return None;
                }
                Some(fault.kind)
            }
            _ => None,
        }
    }

    pub fn strike(rank: usize, place: Place) {
        match due(rank, place) {
            Some(Kind::Death) => panic!("struck at {place:?}"),
            Some(Kind::Silence) => {
                while fault().is_some() {
                    thread::sleep(Duration::from_millis(5));
                }
            }
            Some(Kind::NoThread) | None => {}
        }
    }

    /// What the system says where there is no thread for the device.
    pub fn refuse_thread(rank: usize) -> io::Result<()> {
        match due(rank, Place::Thread) {
            Some(Kind::NoThread) => Err(io::ErrorKind::WouldBlock.into()),
            _ => Ok(()),
        }
    }
}

/// Burn's engine has one group of devices a process, which a test holds as long as the result of this.
#[cfg(test)]
pub(super) fn one_group() -> std::sync::MutexGuard<'static, ()> {
    static ONE_GROUP: std::sync::Mutex<()> = std::sync::Mutex::new(());
    ONE_GROUP.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::fault::{Kind, Place};
    use super::*;
    use crate::TestAutodiff;
    use crate::data::batch::{ImageBatcher, Sample};
    use crate::train::feed;
    use burn::module::{ModuleVisitor, Param, ParamId};
    use burn::optim::SgdConfig;
    use wtconvnext::WtConvNextConfig;

    const SIZE: usize = 32;
    const BATCHER: ImageBatcher = ImageBatcher { input_size: SIZE };
    const LR: f64 = 0.05;

    fn recipe(clip_grad: f64) -> Recipe {
        Recipe { dtype: ForwardDtype::F32, label_smoothing: 0.1, clip_grad }
    }

    fn model<B: TrainBackend>(device: &B::Device) -> WtConvNext<B> {
        /// The same values in every run.
        struct Fill(usize);
        impl<B: Backend> burn::module::ModuleMapper<B> for Fill {
            fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
                self.0 += 1;
                let id: ParamId = param.id;
                let tensor = param.val();
                let value = |index: usize| ((index * 37 + self.0 * 11) % 23) as f32 / 46.0 - 0.2;
                let values = (0..tensor.shape().num_elements()).map(value).collect();
                let data = burn::tensor::TensorData::new(values, tensor.shape());
                Param::initialized(id, Tensor::from_data(data, &tensor.device()).require_grad())
            }
        }

        let config = WtConvNextConfig::new(3).with_depths([1, 1, 1, 1]).with_dims([4, 4, 4, 4]);
        config.with_levels([2, 1, 1, 1]).with_layer_scale_init(1.0).init(device).map(&mut Fill(0))
    }

    fn samples(update: usize, count: usize) -> Vec<Sample> {
        let pixel = |sample: usize, index: usize| {
            ((sample * 131 + update * 57 + index * 17) % 29) as f32 / 14.0 - 1.0
        };
        let sample = |sample| Sample {
            pixels: (0..3 * SIZE * SIZE).map(|index| pixel(sample, index)).collect(),
            label: (sample + update) % 3,
        };
        (0..count).map(sample).collect()
    }

    /// Sizes of the batches of an update that should have ten images: whole ones, of one image, of none, too small ones.
    const UPDATES: [[usize; 2]; 10] =
        [[6, 4], [5, 5], [1, 1], [6, 1], [3, 0], [6, 4], [0, 0], [1, 0], [4, 6], [6, 4]];

    fn parameters<B: Backend>(model: &WtConvNext<B>) -> Vec<f32> {
        struct Collect(Vec<f32>);
        impl<B: Backend> ModuleVisitor<B> for Collect {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
                self.0.extend(param.val().into_data().iter::<f32>());
            }
        }
        let mut collect = Collect(Vec::new());
        model.visit(&mut collect);
        collect.0
    }

    /// Parameters and the losses of all images after ten updates with SGD, by `replicas` of the model or by the model alone.
    fn ten_updates<B: TrainBackend>(
        model: WtConvNext<B>,
        mut replicas: Option<Replicas<B>>,
        devices: &[(usize, B::Device)],
        updates: &[[usize; 2]],
        clip_grad: f64,
    ) -> (Vec<f32>, Vec<f32>) {
        let (mut model, recipe) = (model, recipe(clip_grad));
        let mut optimizer = SgdConfig::new().init::<B, WtConvNext<B>>();
        let mut losses = Vec::new();
        for (number, &sizes) in updates.iter().enumerate() {
            let mut gradients = UpdateGradients::new(10, ForwardDtype::F32);
            let mut outputs = Vec::new();
            for size in sizes {
                let mut parts = feed::parts(samples(number, size), devices, BATCHER);
                let part = match &replicas {
                    Some(replicas) => replicas.share(parts, None, 10),
                    None => parts.remove(0),
                };
                outputs.push(part.map(|part| gradients.add(&model, part, None, recipe.label_smoothing)));
            }
            let Finished { outputs, gradients } = match &mut replicas {
                None => Finished {
                    outputs: outputs.into_iter().flatten().collect(),
                    gradients: gradients.finish(&model),
                },
                Some(replicas) => {
                    replicas.finish(gradients, outputs, sizes[0] + sizes[1], &model, LR, false).unwrap()
                }
            };
            assert_eq!(gradients.is_some(), sizes[0] + sizes[1] > 0, "an update without images is no step");
            if let Some(gradients) = gradients {
                model = clip_and_step(&mut optimizer, LR, model, gradients, clip_grad);
            }
            losses.extend(
                outputs.iter().flat_map(|output| output.losses.to_data().iter::<f32>().collect::<Vec<_>>()),
            );
        }
        (parameters(&model), losses)
    }

    fn sequential<B: TrainBackend>(
        device: &B::Device,
        updates: &[[usize; 2]],
        clip_grad: f64,
    ) -> (Vec<f32>, Vec<f32>) {
        ten_updates::<B>(model(device), None, &[(0, device.clone())], updates, clip_grad)
    }

    fn parallel<B: TrainBackend>(
        devices: &[(usize, B::Device)],
        updates: &[[usize; 2]],
        clip_grad: f64,
    ) -> (Vec<f32>, Vec<f32>) {
        let model = model(&devices[0].1);
        let replicas = started::<B>(devices, &model, clip_grad);
        ten_updates(model, Some(replicas), devices, updates, clip_grad)
    }

    fn started<B: TrainBackend>(
        devices: &[(usize, B::Device)],
        model: &WtConvNext<B>,
        clip_grad: f64,
    ) -> Replicas<B> {
        let optimizer = SgdConfig::new().init::<B, WtConvNext<B>>();
        Replicas::start(devices, model, &optimizer, &recipe(clip_grad)).unwrap()
    }

    #[track_caller]
    fn assert_close(left: &[f32], right: &[f32], tolerance: f32) {
        assert_eq!(left.len(), right.len());
        for (index, (left, right)) in left.iter().zip(right).enumerate() {
            assert!((left - right).abs() <= tolerance, "{index}: {left} is not {right}");
        }
    }

    #[test]
    fn several_devices_equal_one() {
        let _one_group = one_group();
        let device = burn::tensor::Device::<TestAutodiff>::default();
        for clip_grad in [0.0, 0.5] {
            let (one, losses) = sequential::<TestAutodiff>(&device, &UPDATES, clip_grad);
            let start = parameters(&model::<TestAutodiff>(&device));
            assert!(one.iter().zip(&start).any(|(one, start)| (one - start).abs() > 1e-2));
            // With three, batches of six, five, four and one image are cut differently.
            for count in [2, 3] {
                let devices: Vec<_> = (0..count).map(|index| (index, device)).collect();
                let (several, several_losses) = parallel::<TestAutodiff>(&devices, &UPDATES, clip_grad);
                assert_close(&several, &one, 1e-6);
                assert_close(&several_losses, &losses, 1e-5);
            }
        }
    }

    #[test]
    fn one_replica_is_the_model_alone_bit_for_bit() {
        let _one_group = one_group();
        let device = burn::tensor::Device::<TestAutodiff>::default();
        let bits = |(parameters, losses): (Vec<f32>, Vec<f32>)| {
            [parameters, losses].map(|values| values.into_iter().map(f32::to_bits).collect::<Vec<_>>())
        };
        for clip_grad in [0.0, 0.5] {
            let alone = sequential::<TestAutodiff>(&device, &UPDATES, clip_grad);
            let replica = parallel::<TestAutodiff>(&[(0, device)], &UPDATES, clip_grad);
            assert_eq!(bits(replica), bits(alone));
        }
    }

    #[test]
    fn the_time_of_exchanges_is_that_of_all_by_those_measured() {
        let mut replicas = {
            let _one_group = one_group();
            let device = burn::tensor::Device::<TestAutodiff>::default();
            started(&[(0, device)], &model::<TestAutodiff>(&device), 0.0)
        };
        replicas.exchanges = Exchanges { earlier: 0, count: 40, measured: 3, time: Duration::from_millis(6) };
        assert_eq!(replicas.take_exchanging(), Some(Duration::from_millis(80)));
        // The next epoch begins anew; one of which no update was measured does not tell.
        assert_eq!(replicas.take_exchanging(), None);
        assert_eq!(replicas.exchanges.earlier, 40);
    }

    /// Which of the first exchanges of a call are measured in epochs of `updates`, and in which epochs the time is known.
    fn measured(exchanges: usize, updates: usize) -> (Vec<usize>, Vec<usize>) {
        let _one_group = one_group();
        let device = burn::tensor::Device::<TestAutodiff>::default();
        let devices = [(0, device)];
        let model = model::<TestAutodiff>(&device);
        let mut replicas = started(&devices, &model, 0.0);
        let (mut measured, mut known) = (Vec::new(), Vec::new());
        for exchange in 1..=exchanges {
            let mut update = UpdateGradients::new(1, ForwardDtype::F32);
            let part = replicas.share(feed::parts(samples(0, 1), &devices, BATCHER), None, 1);
            let output = update.add(&model, part.expect("its image"), None, 0.0);
            let (before, last) = (replicas.exchanges.measured, exchange % updates == 0);
            replicas.finish(update, vec![Some(output)], 1, &model, LR, last).unwrap();
            if replicas.exchanges.measured > before {
                measured.push(exchange);
            }
            if last && replicas.take_exchanging().is_some() {
                known.push(exchange / updates);
            }
        }
        (measured, known)
    }

    #[test]
    fn every_sixteenth_exchange_is_measured_and_the_last_of_an_epoch() {
        assert_eq!(measured(20, 5), (vec![5, 10, 15, 16, 20], vec![1, 2, 3, 4]));
    }

    #[test]
    fn the_first_exchange_of_a_call_is_not_measured() {
        assert_eq!(measured(3, 1), (vec![2, 3], vec![2, 3]));
    }

    /// What ends an update of three images on devices 4, 7 and 5, with the `patience` of the trainer.
    fn failed_update(patience: Duration) -> DeviceError {
        let device = burn::tensor::Device::<TestAutodiff>::default();
        let model = model::<TestAutodiff>(&device);
        let devices = [(4, device), (7, device), (5, device)];
        let mut replicas = started(&devices, &model, 0.0);
        replicas.patience = patience;
        let seen = 3;
        let part = replicas.share(feed::parts(samples(0, seen), &devices, BATCHER), None, seen);
        let mut update = UpdateGradients::new(seen, ForwardDtype::F32);
        let part = part.expect("an image for each device");
        let output = update.add(&model, part, None, recipe(0.0).label_smoothing);
        match replicas.finish(update, vec![Some(output)], seen, &model, LR, false) {
            Err(error) => error,
            Ok(_) => panic!("the update is complete"),
        }
    }

    #[test]
    fn a_device_that_dies_is_named_and_holds_nobody_up() {
        let _one_group = one_group();
        for place in [Place::Batch, Place::Finish, Place::Step, Place::Exchange] {
            let _fault = fault::plan(Kind::Death, 2, place, 0);
            let error = failed_update(PATIENCE).to_string();
            assert!(error.starts_with(&format!("device 5 failed: struck at {place:?};")), "{error}");
        }
        // Before the run has begun: its thread, the second after that which registers it, and the model.
        for (kind, place, after, reason) in [
            (Kind::NoThread, Place::Thread, 1, "operation would block"),
            (Kind::Death, Place::Copy, 0, "struck at Copy"),
        ] {
            let _fault = fault::plan(kind, 2, place, after);
            let device = burn::tensor::Device::<TestAutodiff>::default();
            let devices = [(4, device), (7, device), (5, device)];
            let model = model::<TestAutodiff>(&device);
            let optimizer = SgdConfig::new().init::<TestAutodiff, WtConvNext<TestAutodiff>>();
            let error = Replicas::start(&devices, &model, &optimizer, &recipe(0.0)).err().expect("no start");
            assert!(error.to_string().starts_with(&format!("device 5 failed: {reason};")), "{error}");
        }
        // The next run does not suffer from it.
        let device = burn::tensor::Device::<TestAutodiff>::default();
        parallel::<TestAutodiff>(&[(0, device), (1, device)], &UPDATES, 0.0);
    }

    #[test]
    fn a_device_that_does_not_answer_is_named_in_time() {
        let _one_group = one_group();
        let patience = Duration::from_millis(1500);
        for place in [Place::Batch, Place::Step] {
            let _fault = fault::plan(Kind::Silence, 1, place, 0);
            let error = failed_update(patience);
            assert!(matches!(error, DeviceError::Silent { device: 7, .. }), "{error}");
            assert!(error.to_string().starts_with("device 7 has not answered for 1.5 s;"), "{error}");
        }
        let planned = fault::plan(Kind::Silence, 1, Place::Exchange, 0);
        let error = failed_update(patience);
        assert!(matches!(error, DeviceError::Exchange { .. }), "{error}");
        assert!(error.to_string().contains("exchange of gradients has not ended for 1.5 s;"), "{error}");
        // Once there is another run, the device goes on, into an exchange that is no longer its own.
        let device = burn::tensor::Device::<TestAutodiff>::default();
        let model = model::<TestAutodiff>(&device);
        let devices = [(0, device), (1, device)];
        let replicas = started(&devices, &model, 0.0);
        drop(planned);
        thread::sleep(Duration::from_millis(100));
        let (two, losses) = ten_updates(model, Some(replicas), &devices, &UPDATES, 0.0);
        let (one, one_losses) = sequential::<TestAutodiff>(&device, &UPDATES, 0.0);
        assert_close(&two, &one, 1e-6);
        assert_close(&losses, &one_losses, 1e-5);
    }

    /// Needs two NVIDIA GPUs: `cargo test -p imagenet --features cuda --lib two_gpus -- --ignored`.
    #[cfg(feature = "cuda")]
    mod two_gpus {
        use super::*;
        use burn::backend::cuda::CudaDevice;

        type Cuda = burn::backend::Autodiff<burn::backend::Cuda>;

        #[test]
        #[ignore = "needs two NVIDIA GPUs"]
        fn two_gpus_equal_one() {
            let _one_group = one_group();
            let device = |index| (index, CudaDevice { index });
            let start = parameters(&model::<Cuda>(&device(0).1));
            // Every other size of a batch would be tuned for, which takes minutes.
            let updates = [[4, 4]; 10];
            let (one, losses) = sequential::<Cuda>(&device(0).1, &updates, 0.5);
            let (two, two_losses) = parallel::<Cuda>(&[device(0), device(1)], &updates, 0.5);
            let largest = |left: &[f32], right: &[f32]| {
                left.iter().zip(right).map(|(left, right)| (left - right).abs()).fold(0.0, f32::max)
            };
            let way = largest(&one, &start);
            println!(
                "of a way of {way:e} parameters differ by {:e}; losses by {:e}",
                largest(&one, &two),
                largest(&losses, &two_losses)
            );
            assert!(way > 1e-2, "{way}");
            assert_close(&two, &one, 1e-5);
            assert_close(&two_losses, &losses, 1e-4);
        }

        #[test]
        #[ignore = "needs two NVIDIA GPUs"]
        fn a_wavelet_convolution_on_the_second_of_two_gpus_is_that_of_the_first() {
            let first = CudaDevice { index: 0 };
            let conv = burn_wtconv::WtConv2dConfig::new(6).with_levels(2).init::<Cuda>(&first);
            // Parameters are drawn at the first use.
            conv.forward(Tensor::zeros([1, 6, 8, 8], &first));
            let bits = |index| {
                let device = CudaDevice { index };
                let filled = |shape: [usize; 4], step: usize| {
                    let values: Vec<f32> = (0..shape.iter().product())
                        .map(|index: usize| (index * step % 29) as f32 / 14.0 - 1.0)
                        .collect();
                    Tensor::<Cuda, 4>::from_data(burn::tensor::TensorData::new(values, shape), &device)
                };
                let conv = conv.clone().fork(&device);
                let x = filled([2, 6, 19, 23], 17).require_grad();
                let y = conv.forward(x.clone());
                let gradient = (y.clone() * filled([2, 6, 19, 23], 13)).sum().backward();
                let x_grad = x.grad(&gradient).expect("a gradient of the input");
                [y.into_data(), x_grad.into_data()]
                    .map(|data| data.iter::<f32>().map(f32::to_bits).collect::<Vec<_>>())
            };
            assert_eq!(bits(0), bits(1));
        }
    }
}
