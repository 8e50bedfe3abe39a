//! Sums over an epoch, made of the batch values of Burn's metrics.
//!
//! Burn's metrics keep their running state to themselves, so a run that stops in the middle of an epoch could not carry it
//! on. [`Totals`] can be stored; it holds the same sums.

use burn::data::dataloader::Progress;
use burn::tensor::backend::Backend;
use burn::train::metric::{
    AccuracyInput, AccuracyMetric, LearningRateMetric, LossInput, LossMetric, Metric, MetricAttributes,
    MetricDefinition, MetricEntry, MetricId, MetricMetadata, MetricName, Numeric, NumericAttributes,
    NumericEntry, SerializedEntry, TopKAccuracyInput, TopKAccuracyMetric,
};
use burn::train::renderer::{MetricState, MetricsRenderer};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

use super::step::BatchOutput;

/// Sums over the images of an epoch so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Totals {
    /// Images that went through the model.
    pub images: usize,
    /// Images that could not be read.
    pub unreadable: usize,
    /// Sum of the losses.
    pub loss: f64,
    /// Images whose most probable class is the right one.
    pub correct: usize,
    /// Images whose right class is among the five most probable.
    pub correct_top5: usize,
}

impl Totals {
    /// Images so far, whether they could be read or not.
    pub fn seen(&self) -> usize {
        self.images + self.unreadable
    }

    /// Means over the images.
    pub fn scores(&self) -> Scores {
        let images = self.images as f64;
        Scores {
            loss: self.loss / images,
            accuracy: self.correct as f64 / images,
            top5: self.correct_top5 as f64 / images,
        }
    }
}

/// Means over the images of an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Scores {
    /// Cross-entropy (with smoothed labels in training, and soft targets of mixed images).
    pub loss: f64,
    /// Share of right answers, 0 to 1.
    pub accuracy: f64,
    /// Share of images whose class is among the five most probable (or all, if there are fewer), 0 to 1.
    pub top5: f64,
}

impl fmt::Display for Scores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "loss {:.3} acc {:.3} top-5 {:.3}", self.loss, self.accuracy, self.top5)
    }
}

/// How an update went.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Its learning rate.
    pub lr: f64,
    /// Training images a second, reading and augmenting included.
    pub images_per_second: f64,
}

/// The metrics of one split.
#[derive(Clone)]
pub struct EpochMetrics<B: Backend> {
    loss: LossMetric<B>,
    accuracy: AccuracyMetric<B>,
    top5: TopKAccuracyMetric<B>,
    rate: LearningRateMetric,
    speed: ImagesPerSecond,
    totals: Totals,
}

impl<B: Backend> EpochMetrics<B> {
    /// Metrics of a model with so many classes, continuing from `totals`.
    pub fn new(classes: usize, totals: Totals) -> Self {
        Self {
            loss: LossMetric::new(),
            accuracy: AccuracyMetric::new(),
            top5: TopKAccuracyMetric::new(classes.min(5)),
            rate: LearningRateMetric::new(),
            speed: ImagesPerSecond::default(),
            totals,
        }
    }

    /// Tells the renderer which metrics to expect.
    pub fn register(&self, renderer: &mut dyn MetricsRenderer) {
        fn definition<M: Metric>(metric: &M) -> MetricDefinition {
            MetricDefinition::new(MetricId::new(metric.name()), metric)
        }
        renderer.register_metric(definition(&self.loss));
        renderer.register_metric(definition(&self.accuracy));
        renderer.register_metric(definition(&self.top5));
        renderer.register_metric(definition(&self.rate));
        renderer.register_metric(definition(&self.speed));
    }

    /// The sums so far.
    pub fn totals(&self) -> &Totals {
        &self.totals
    }

    /// Counts images that could not be read.
    pub fn add_unreadable(&mut self, images: usize) {
        self.totals.unreadable += images;
    }

    /// Takes in one batch and returns loss, accuracy and top-5 for display.
    pub fn update(&mut self, output: &BatchOutput<B>) -> Vec<MetricState> {
        let metadata = metadata(None);
        let [images] = output.losses.dims();
        let (logits, labels) = (output.logits.clone(), output.labels.clone());
        let loss = state(&mut self.loss, &LossInput::new(output.losses.clone()), &metadata);
        let accuracy =
            state(&mut self.accuracy, &AccuracyInput::new(logits.clone(), labels.clone()), &metadata);
        let top5 = state(&mut self.top5, &TopKAccuracyInput::new(logits, labels), &metadata);

        self.totals.images += images;
        self.totals.loss += self.loss.value().current() * images as f64;
        // Both are percentages of whole numbers of images.
        let count = |percent: f64| (percent / 100.0 * images as f64).round() as usize;
        self.totals.correct += count(self.accuracy.value().current());
        self.totals.correct_top5 += count(self.top5.value().current());
        vec![loss, accuracy, top5]
    }

    /// Learning rate and speed of an update, for display.
    pub fn pace(&mut self, pace: Pace) -> Vec<MetricState> {
        vec![
            state(&mut self.rate, &(), &metadata(Some(pace.lr))),
            state(&mut self.speed, &pace.images_per_second, &metadata(None)),
        ]
    }
}

fn metadata(lr: Option<f64>) -> MetricMetadata {
    let progress = Progress::new(0, 0);
    MetricMetadata { progress: progress.clone(), global_progress: progress, iteration: None, lr }
}

fn state<M: Metric + Numeric>(metric: &mut M, input: &M::Input, metadata: &MetricMetadata) -> MetricState {
    let entry = metric.update(input, metadata);
    MetricState::Numeric(MetricEntry::new(MetricId::new(metric.name()), entry), metric.value())
}

/// Images a second, reading and augmenting included.
#[derive(Clone)]
struct ImagesPerSecond {
    name: MetricName,
    current: f64,
}

impl Default for ImagesPerSecond {
    fn default() -> Self {
        Self { name: Arc::new("Images a second".to_string()), current: f64::NAN }
    }
}

impl Metric for ImagesPerSecond {
    type Input = f64;

    fn name(&self) -> MetricName {
        self.name.clone()
    }

    fn attributes(&self) -> MetricAttributes {
        NumericAttributes { unit: Some("images/s".to_string()), higher_is_better: true }.into()
    }

    fn update(&mut self, rate: &f64, _metadata: &MetricMetadata) -> SerializedEntry {
        self.current = *rate;
        SerializedEntry::new(format!("{rate:.0} images/s"), rate.to_string())
    }

    fn clear(&mut self) {
        self.current = f64::NAN;
    }
}

impl Numeric for ImagesPerSecond {
    fn value(&self) -> NumericEntry {
        NumericEntry::Value(self.current)
    }

    fn running_value(&self) -> NumericEntry {
        self.value()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TestBackend;
    use burn::tensor::Tensor;

    #[test]
    fn totals_by_hand() {
        let device = Default::default();
        let mut metrics = EpochMetrics::<TestBackend>::new(6, Totals { unreadable: 1, ..Totals::default() });
        // Row 0: label is first. Row 1: label is fifth. Row 2: label is last of six.
        let logits = [[6., 5., 4., 3., 2., 1.], [6., 5., 4., 3., 2., 1.], [6., 5., 4., 3., 2., 1.]];
        let output = BatchOutput {
            losses: Tensor::from_data([1.0, 2.0, 6.0], &device),
            logits: Tensor::from_data(logits, &device),
            labels: Tensor::from_data([0, 4, 5], &device),
        };
        assert_eq!(metrics.update(&output).len(), 3);
        metrics.update(&output);
        let expected = Totals { images: 6, unreadable: 1, loss: 18.0, correct: 2, correct_top5: 4 };
        assert_eq!(*metrics.totals(), expected);
        let scores = metrics.totals().scores();
        assert_eq!((scores.loss, scores.accuracy, scores.top5), (3.0, 1.0 / 3.0, 2.0 / 3.0));
    }

    #[test]
    fn with_three_classes_top5_is_everything() {
        let device = Default::default();
        let mut metrics = EpochMetrics::<TestBackend>::new(3, Totals::default());
        let output = BatchOutput {
            losses: Tensor::from_data([1.0], &device),
            logits: Tensor::from_data([[3.0, 2.0, 1.0]], &device),
            labels: Tensor::from_data([2], &device),
        };
        metrics.update(&output);
        assert_eq!((metrics.totals().correct, metrics.totals().correct_top5), (0, 1));
    }
}
