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
//! Burn's other engine, `DistributedBackend` with NCCL, panics as unimplemented on a backend without it, so that it could not be
//! tested where there is no GPU; it is not used. `GradientsParams::all_reduce` is not used either: it makes an
//! exchange for each parameter, and waits for ever if one device has no gradient of a parameter that another has. So does any
//! exchange with a device that has died. So all must report that their gradients are there before any begins, and
//! the trainer never waits in the exchange itself, but for reports.
//!
//! Nor are burn-train's own strategies: `ddp` steps the learning rate's schedule as many times an iteration as there are peers, and
//! `multi` adds the devices' gradients without a mean.
//!
//! Stochastic depth and dropout draw from a generator that all devices of a process share, in the order in which
//! they come to it: with either, a run on several devices does not repeat bit for bit.

use burn::collective::{self, AllReduceStrategy, CollectiveConfig, CollectiveError, PeerId, ReduceOperation};
use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::{GradientsParams, Optimizer};
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{Tensor, TensorPrimitive};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};
use wtconvnext::WtConvNext;

use super::clip::clip_by_norm;
use super::dtype::ForwardDtype;
use super::step::{BatchOutput, UpdateGradients};
use crate::backend::TrainBackend;
use crate::data::batch::{ImageBatcher, Sample};

/// A device that failed.
#[derive(Debug, thiserror::Error)]
#[error("device {device} failed: {reason}; the last checkpoint, if there is one, is usable")]
pub struct DeviceFailed {
    /// Its index, as in `--devices`.
    pub device: usize,
    /// What it said.
    pub reason: String,
}

/// What all devices do with their batches.
#[derive(Clone, Debug)]
pub struct Recipe {
    /// Side of the images in pixels.
    pub batcher: ImageBatcher,
    /// Type that the model computes in.
    pub dtype: ForwardDtype,
    /// Label smoothing.
    pub label_smoothing: f64,
    /// Largest norm of the gradient; 0 for any.
    pub clip_grad: f64,
}

/// What the trainer asks of a device.
enum Order {
    /// Forward and backward of the device's part of a batch of an update of `planned` images.
    Batch { samples: Vec<Sample>, lambda: Option<f64>, planned: usize },
    /// The gradients are complete; `seen` images went through the model on all devices.
    Finish { seen: usize },
    /// Sum the gradients and step.
    Step { lr: f64 },
}

/// What a device reports.
enum Report<B: AutodiffBackend> {
    /// Its gradients are there. An output for each batch, `None` for one of which it had no image.
    Ready(Vec<Option<BatchOutput<B::InnerBackend>>>),
    /// The first device has the sum of all gradients.
    Reduced(Tensor<B::InnerBackend, 1>),
    /// It has stepped.
    Stepped,
    /// It will do nothing more.
    Failed(String),
}

/// The devices of a run but for the first, each a thread with its replica.
pub struct Replicas<B: AutodiffBackend> {
    /// Indices as in `--devices`, the first device's included.
    indices: Vec<usize>,
    orders: Vec<Sender<Order>>,
    reports: Receiver<(usize, Report<B>)>,
    /// For the thread that exchanges the first device's gradients.
    reporter: Sender<(usize, Report<B>)>,
    exchanging: Duration,
}

impl<B: TrainBackend> Replicas<B> {
    /// Copies `model` and `optimizer` to all `devices` but the first, which holds them.
    ///
    /// # Errors
    ///
    /// [`DeviceFailed`] if Burn's engine refuses a device.
    pub fn start<O: Optimizer<WtConvNext<B>, B> + 'static>(
        devices: &[(usize, B::Device)],
        model: &WtConvNext<B>,
        optimizer: &O,
        recipe: &Recipe,
    ) -> Result<Self, DeviceFailed> {
        // A run of this process that failed may have left its devices registered.
        collective::reset_collective::<B::InnerBackend>();
        let config = CollectiveConfig::default()
            .with_num_devices(devices.len())
            .with_local_all_reduce_strategy(AllReduceStrategy::Tree(2));
        // Each call returns when all have been made.
        let registered: Vec<_> = thread::scope(|scope| {
            let calls: Vec<_> = devices
                .iter()
                .enumerate()
                .map(|(rank, (_, device))| {
                    let (device, config) = (device.clone(), config.clone());
                    scope.spawn(move || {
                        collective::register::<B::InnerBackend>(PeerId::from(rank as u32), device, config)
                    })
                })
                .collect();
            calls
                .into_iter()
                .map(|call| call.join().unwrap_or(Err(CollectiveError::LocalServerMissing)))
                .collect()
        });
        for ((device, _), registered) in devices.iter().zip(registered) {
            registered.map_err(|error| DeviceFailed { device: *device, reason: format!("{error:?}") })?;
        }

        let (reporter, reports) = channel();
        let mut orders = Vec::new();
        for (rank, (index, device)) in devices.iter().enumerate().skip(1) {
            let (sender, receiver) = channel();
            orders.push(sender);
            let replica = Replica {
                rank,
                model: model.clone().fork(device),
                optimizer: optimizer.clone(),
                device: device.clone(),
                recipe: recipe.clone(),
            };
            let reporter = reporter.clone();
            let spawned = thread::Builder::new().name(format!("device-{index}")).spawn(move || {
                let failed = catch_unwind(AssertUnwindSafe(|| replica.work(&receiver, &reporter)));
                let reason = match failed {
                    Ok(Ok(())) => return,
                    Ok(Err(reason)) => reason,
                    Err(panic) => panic_message(&*panic),
                };
                // The trainer may have ended.
                let _ = reporter.send((rank, Report::Failed(reason)));
            });
            spawned.map_err(|error| DeviceFailed { device: *index, reason: error.to_string() })?;
        }
        let indices = devices.iter().map(|(index, _)| *index).collect();
        Ok(Self { indices, orders, reports, reporter, exchanging: Duration::ZERO })
    }

    /// Gives each device its part of a batch, and returns that of the first.
    pub fn share(&self, samples: Vec<Sample>, lambda: Option<f64>, planned: usize) -> Vec<Sample> {
        let cut = if lambda.is_some() { split_pairs } else { split };
        let mut parts = cut(samples, self.indices.len()).into_iter();
        let first = parts.next().unwrap_or_default();
        for (orders, samples) in self.orders.iter().zip(parts) {
            // A device that is gone has reported why, which is read at the end of the update.
            let _ = orders.send(Order::Batch { samples, lambda, planned });
        }
        first
    }

    /// Waits until the other devices have the gradients of an update, in which `seen` images went through the model on all
    /// devices. `own` are the first device's outputs; returned are those of all devices, put together batch by batch.
    ///
    /// # Errors
    ///
    /// [`DeviceFailed`] for the first device that reports it.
    pub fn finish(
        &self,
        seen: usize,
        own: Vec<Option<BatchOutput<B::InnerBackend>>>,
        device: &B::Device,
    ) -> Result<Vec<BatchOutput<B::InnerBackend>>, DeviceFailed> {
        self.send(|| Order::Finish { seen });
        let mut outputs = vec![own];
        outputs.resize_with(self.indices.len(), Vec::new);
        for _ in &self.orders {
            if let (rank, Report::Ready(ready)) = self.report()? {
                outputs[rank] = ready;
            }
        }
        let batches = outputs[0].len();
        let batch = |index: usize| {
            let parts: Vec<_> = outputs.iter().filter_map(|parts| parts[index].clone()).collect();
            join(parts, device)
        };
        Ok((0..batches).filter_map(batch).collect())
    }

    /// Sums the gradients of all devices, of which `gradients` are the first's, and lets the others step with `lr`.
    ///
    /// # Errors
    ///
    /// [`DeviceFailed`] for the first device that reports it.
    pub fn sum(
        &mut self,
        gradients: GradientsParams,
        model: &WtConvNext<B>,
        lr: f64,
        device: &B::Device,
    ) -> Result<GradientsParams, DeviceFailed> {
        let flat = flatten(gradients, model, device);
        let failed = |reason: String| DeviceFailed { device: self.indices[0], reason };
        B::sync(device).map_err(|error| failed(error.to_string()))?;
        let started = Instant::now();
        self.send(|| Order::Step { lr });
        let reporter = self.reporter.clone();
        thread::spawn(move || {
            let report = match catch_unwind(AssertUnwindSafe(|| all_reduce::<B>(0, flat))) {
                Ok(Ok(sum)) => Report::Reduced(sum),
                Ok(Err(error)) => Report::Failed(format!("{error:?}")),
                Err(panic) => Report::Failed(panic_message(&*panic)),
            };
            let _ = reporter.send((0, report));
        });
        let mut sum = None;
        for _ in &self.indices {
            if let (_, Report::Reduced(reduced)) = self.report()? {
                B::sync(device).map_err(|error| failed(error.to_string()))?;
                self.exchanging += started.elapsed();
                sum = Some(reduced);
            }
        }
        let sum = sum.ok_or_else(|| failed("its gradients were not summed".to_string()))?;
        Ok(unflatten(sum, model))
    }

    /// Takes the time that the first device has waited for sums of gradients since the last call.
    pub fn take_exchanging(&mut self) -> Duration {
        std::mem::take(&mut self.exchanging)
    }

    fn send(&self, order: impl Fn() -> Order) {
        for orders in &self.orders {
            // As in `share`.
            let _ = orders.send(order());
        }
    }

    fn report(&self) -> Result<(usize, Report<B>), DeviceFailed> {
        match self.reports.recv().expect("one sender is this one's own") {
            (rank, Report::Failed(reason)) => Err(DeviceFailed { device: self.indices[rank], reason }),
            report => Ok(report),
        }
    }
}

/// The model on another device than the first.
struct Replica<B: AutodiffBackend, O> {
    rank: usize,
    device: B::Device,
    model: WtConvNext<B>,
    optimizer: O,
    recipe: Recipe,
}

impl<B: TrainBackend, O: Optimizer<WtConvNext<B>, B>> Replica<B, O> {
    /// Follows orders until the trainer ends.
    fn work(mut self, orders: &Receiver<Order>, reporter: &Sender<(usize, Report<B>)>) -> Result<(), String> {
        let mut update: Option<UpdateGradients<B>> = None;
        let mut outputs = Vec::new();
        let mut ready = None;
        while let Ok(order) = orders.recv() {
            match order {
                Order::Batch { samples, lambda, planned } => {
                    let Recipe { batcher, dtype, label_smoothing, .. } = &self.recipe;
                    let update = update.get_or_insert_with(|| UpdateGradients::new(planned, *dtype));
                    outputs.push((!samples.is_empty()).then(|| {
                        update.add(&self.model, samples, lambda, batcher, &self.device, *label_smoothing)
                    }));
                }
                Order::Finish { seen } => {
                    if let Some(update) = update.take() {
                        let gradients = update.finish_part(&self.model, seen);
                        ready = Some(flatten(gradients, &self.model, &self.device));
                        // A device that cannot do what it was told says so here.
                        B::sync(&self.device).map_err(|error| error.to_string())?;
                    }
                    let report = Report::Ready(std::mem::take(&mut outputs));
                    if reporter.send((self.rank, report)).is_err() {
                        return Ok(());
                    }
                }
                Order::Step { lr } => {
                    let flat = ready.take().ok_or("it has no gradients")?;
                    let sum = all_reduce::<B>(self.rank, flat).map_err(|error| format!("{error:?}"))?;
                    let mut gradients = unflatten(sum, &self.model);
                    if self.recipe.clip_grad > 0.0 {
                        clip_by_norm(&mut gradients, &self.model, self.recipe.clip_grad);
                    }
                    self.model = self.optimizer.step(lr, self.model, gradients);
                    if reporter.send((self.rank, Report::Stepped)).is_err() {
                        return Ok(());
                    }
                }
            }
        }
        Ok(())
    }
}

fn all_reduce<B: AutodiffBackend>(
    rank: usize,
    flat: Tensor<B::InnerBackend, 1>,
) -> Result<Tensor<B::InnerBackend, 1>, CollectiveError> {
    let flat = flat.into_primitive().tensor();
    let sum =
        collective::all_reduce::<B::InnerBackend>(PeerId::from(rank as u32), flat, ReduceOperation::Sum)?;
    Ok(Tensor::from_primitive(TensorPrimitive::Float(sum)))
}

/// Cuts `samples` into `parts` contiguous parts, of which the first ones are larger by one if need be.
fn split(mut samples: Vec<Sample>, parts: usize) -> Vec<Vec<Sample>> {
    let (size, larger) = (samples.len() / parts, samples.len() % parts);
    (0..parts)
        .map(|part| {
            let rest = samples.split_off(size + usize::from(part < larger));
            std::mem::replace(&mut samples, rest)
        })
        .collect()
}

/// Cuts the samples of a mixed batch so that each stays with its counterpart, which is as far from the other end, in its part as in
/// the batch. The last part has the middle one of an odd number.
fn split_pairs(mut samples: Vec<Sample>, parts: usize) -> Vec<Vec<Sample>> {
    let (size, larger) = (samples.len() / 2 / parts, samples.len() / 2 % parts);
    (0..parts)
        .map(|part| {
            if part + 1 == parts {
                return std::mem::take(&mut samples);
            }
            let pairs = size + usize::from(part < larger);
            let mut ends = samples.split_off(samples.len() - pairs);
            let rest = samples.split_off(pairs);
            let mut part = std::mem::replace(&mut samples, rest);
            part.append(&mut ends);
            part
        })
        .collect()
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

/// All gradients of `model` in the order of its parameters, in one tensor. A parameter without one counts as zeros.
fn flatten<B: AutodiffBackend>(
    mut gradients: GradientsParams,
    model: &WtConvNext<B>,
    device: &B::Device,
) -> Tensor<B::InnerBackend, 1> {
    struct Flatten<'a, B: AutodiffBackend> {
        gradients: &'a mut GradientsParams,
        device: &'a B::Device,
        flat: Vec<Tensor<B::InnerBackend, 1>>,
    }

    impl<B: AutodiffBackend> ModuleVisitor<B> for Flatten<'_, B> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
            let elements = param.shape().num_elements();
            let gradient = self.gradients.remove::<B::InnerBackend, D>(param.id);
            self.flat.push(match gradient {
                Some(gradient) => gradient.reshape([elements]),
                None => Tensor::zeros([elements], self.device),
            });
        }
    }

    let mut flatten = Flatten::<B> { gradients: &mut gradients, device, flat: Vec::new() };
    model.visit(&mut flatten);
    Tensor::cat(flatten.flat, 0)
}

/// The opposite of [`flatten`].
fn unflatten<B: AutodiffBackend>(flat: Tensor<B::InnerBackend, 1>, model: &WtConvNext<B>) -> GradientsParams {
    struct Unflatten<B: AutodiffBackend> {
        flat: Tensor<B::InnerBackend, 1>,
        start: usize,
        gradients: GradientsParams,
    }

    impl<B: AutodiffBackend> ModuleVisitor<B> for Unflatten<B> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
            let shape = param.shape();
            let end = self.start + shape.num_elements();
            let gradient = self.flat.clone().slice(self.start..end).reshape::<D, _>(shape);
            self.gradients.register::<B::InnerBackend, D>(param.id, gradient);
            self.start = end;
        }
    }

    let mut unflatten = Unflatten::<B> { flat, start: 0, gradients: GradientsParams::new() };
    model.visit(&mut unflatten);
    unflatten.gradients
}

fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text =
        panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("it panicked").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TestAutodiff;
    use burn::module::ParamId;
    use burn::optim::SgdConfig;
    use std::sync::{Mutex, MutexGuard, PoisonError};
    use wtconvnext::WtConvNextConfig;

    const SIZE: usize = 32;
    const LR: f64 = 0.05;

    /// Burn's engine has one group of devices a process.
    fn one_group() -> MutexGuard<'static, ()> {
        static ONE_GROUP: Mutex<()> = Mutex::new(());
        ONE_GROUP.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn recipe(clip_grad: f64) -> Recipe {
        Recipe {
            batcher: ImageBatcher { input_size: SIZE },
            dtype: ForwardDtype::F32,
            label_smoothing: 0.1,
            clip_grad,
        }
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

    /// Parameters and the losses of all images after ten updates with SGD.
    fn ten_updates<B: TrainBackend>(devices: &[(usize, B::Device)], clip_grad: f64) -> (Vec<f32>, Vec<f32>) {
        let device = &devices[0].1;
        let (mut model, recipe) = (model::<B>(device), recipe(clip_grad));
        let mut optimizer = SgdConfig::new().init::<B, WtConvNext<B>>();
        let mut replicas =
            (devices.len() > 1).then(|| Replicas::start(devices, &model, &optimizer, &recipe).unwrap());
        let mut losses = Vec::new();
        for (number, sizes) in UPDATES.into_iter().enumerate() {
            let mut gradients = UpdateGradients::new(10, ForwardDtype::F32);
            let mut outputs = Vec::new();
            for size in sizes {
                let mut part = samples(number, size);
                if let Some(replicas) = &replicas {
                    part = replicas.share(part, None, 10);
                }
                outputs.push((!part.is_empty()).then(|| {
                    gradients.add(&model, part, None, &recipe.batcher, device, recipe.label_smoothing)
                }));
            }
            let seen = sizes[0] + sizes[1];
            let (outputs, gradients) = match &mut replicas {
                None => (outputs.into_iter().flatten().collect(), gradients.finish(&model)),
                Some(replicas) => {
                    let outputs = replicas.finish(seen, outputs, device).unwrap();
                    let sum = (seen > 0).then(|| {
                        replicas.sum(gradients.finish_part(&model, seen), &model, LR, device).unwrap()
                    });
                    (outputs, sum)
                }
            };
            if let Some(mut gradients) = gradients {
                if clip_grad > 0.0 {
                    clip_by_norm(&mut gradients, &model, clip_grad);
                }
                model = optimizer.step(LR, model, gradients);
            }
            losses.extend(
                outputs.iter().flat_map(|output| output.losses.to_data().iter::<f32>().collect::<Vec<_>>()),
            );
        }
        (parameters(&model), losses)
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
            let (one, losses) = ten_updates::<TestAutodiff>(&[(0, device)], clip_grad);
            let start = parameters(&model::<TestAutodiff>(&device));
            assert!(one.iter().zip(&start).any(|(one, start)| (one - start).abs() > 1e-2));
            // With three, batches of six, five, four and one image are cut differently.
            for count in [2, 3] {
                let devices: Vec<_> = (0..count).map(|index| (index, device)).collect();
                let (several, several_losses) = ten_updates::<TestAutodiff>(&devices, clip_grad);
                assert_close(&several, &one, 1e-6);
                assert_close(&several_losses, &losses, 1e-5);
            }
        }
    }

    #[test]
    fn a_device_that_dies_is_named_and_holds_nobody_up() {
        let _one_group = one_group();
        let device = burn::tensor::Device::<TestAutodiff>::default();
        let (model, recipe) = (model::<TestAutodiff>(&device), recipe(0.0));
        let optimizer = SgdConfig::new().init::<TestAutodiff, WtConvNext<TestAutodiff>>();
        let devices = [(4, device), (7, device), (5, device)];
        let replicas = Replicas::start(&devices, &model, &optimizer, &recipe).unwrap();
        let mut batch = samples(0, 3);
        // The second device's image has no pixels, which no tensor can be made of.
        batch[1].pixels.clear();
        replicas.share(batch, None, 3);
        let error = replicas.finish(3, vec![None], &device).unwrap_err();
        assert_eq!(error.device, 7, "{error}");
        assert!(error.to_string().starts_with("device 7 failed: "), "{error}");
        drop(replicas);
        // The next run does not suffer from it.
        Replicas::start(&devices, &model, &optimizer, &recipe).unwrap();
    }

    #[test]
    fn parts_by_hand() {
        let sizes = |count, parts| split(samples(0, count), parts).iter().map(Vec::len).collect::<Vec<_>>();
        assert_eq!(sizes(8, 2), [4, 4]);
        assert_eq!(sizes(8, 3), [3, 3, 2]);
        assert_eq!(sizes(1, 3), [1, 0, 0]);
        assert_eq!(sizes(0, 2), [0, 0]);
        let whole = samples(0, 5);
        assert_eq!(split(whole.clone(), 2).concat(), whole);
    }

    #[test]
    fn a_mixed_image_stays_with_its_counterpart() {
        for count in 0..12 {
            let numbered = (0..count).map(|label| Sample { pixels: vec![], label }).collect::<Vec<_>>();
            for parts in 1..=4 {
                let cut = split_pairs(numbered.clone(), parts);
                assert_eq!(cut.len(), parts);
                let mut seen = Vec::new();
                for part in cut {
                    let labels: Vec<_> = part.iter().map(|sample| sample.label).collect();
                    for (label, counterpart) in labels.iter().zip(labels.iter().rev()) {
                        assert_eq!(label + counterpart, count - 1, "{count} in {parts}: {labels:?}");
                    }
                    seen.extend(labels);
                }
                seen.sort_unstable();
                assert_eq!(seen, (0..count).collect::<Vec<_>>());
            }
        }
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
            let (one, losses) = ten_updates::<Cuda>(&[device(0)], 0.5);
            let (two, two_losses) = ten_updates::<Cuda>(&[device(0), device(1)], 0.5);
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
