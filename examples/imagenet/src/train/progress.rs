//! What a run shows: the dashboard on a terminal, plain lines elsewhere. Both are renderers as Burn's training takes them.

use burn::data::dataloader::Progress;
use burn::train::Interrupter;
use burn::train::metric::MetricDefinition;
use burn::train::renderer::{
    EvaluationName, EvaluationProgress, MetricState, MetricsRenderer, MetricsRendererEvaluation,
    MetricsRendererTraining, ProgressType, TrainingProgress,
};
use std::io::IsTerminal;
use std::time::{Duration, Instant};

use super::dashboard::Dashboard;
use super::history::EpochRecord;

/// Time between two plain lines within an epoch.
const INTERVAL: Duration = Duration::from_secs(10);

/// Where a run stands, for display.
#[derive(Clone, Copy, Debug)]
pub struct Position {
    /// Counted from 1.
    pub epoch: usize,
    /// Epochs of the run.
    pub epochs: usize,
    /// Updates or batches done in the epoch.
    pub iteration: usize,
    /// Images done in the epoch.
    pub images: usize,
    /// Images of the epoch.
    pub images_total: usize,
}

/// Shows a run.
pub struct Display(Renderer);

enum Renderer {
    Dashboard(Box<Dashboard>),
    Plain(PlainRenderer),
}

impl Display {
    /// Whether [`Self::new`] would open the dashboard.
    pub fn wants_dashboard() -> bool {
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        std::io::stdout().is_terminal() && std::io::stdin().is_terminal() && !dumb
    }

    /// The dashboard if stdout is a terminal, or else plain lines. The dashboard's keys set `interrupter`.
    pub fn new(interrupter: Interrupter) -> Self {
        if Self::wants_dashboard() {
            Self(Renderer::Dashboard(Box::new(Dashboard::new(interrupter))))
        } else {
            Self::plain()
        }
    }

    /// Plain lines.
    pub fn plain() -> Self {
        Self(Renderer::Plain(PlainRenderer::new()))
    }

    /// The renderer, to register metrics with.
    pub fn renderer(&mut self) -> &mut dyn MetricsRenderer {
        match &mut self.0 {
            Renderer::Dashboard(dashboard) => dashboard.as_mut(),
            Renderer::Plain(plain) => plain,
        }
    }

    /// Shows a training update.
    pub fn train(&mut self, states: Vec<MetricState>, position: Position) {
        let renderer = self.renderer();
        for state in states {
            renderer.update_train(state);
        }
        renderer.render_train(position.progress(), Vec::new());
    }

    /// Shows a validation batch.
    pub fn val(&mut self, states: Vec<MetricState>, position: Position) {
        let renderer = self.renderer();
        for state in states {
            renderer.update_valid(state);
        }
        renderer.render_valid(position.progress(), Vec::new());
    }

    /// Shows a complete epoch.
    pub fn epoch(&mut self, record: &EpochRecord, epochs: usize) {
        match &mut self.0 {
            Renderer::Dashboard(dashboard) => dashboard.epoch(record),
            Renderer::Plain(_) => println!("epoch {}/{epochs}: {record}", record.epoch),
        }
    }

    /// Prints a line, unless the dashboard has the screen.
    pub fn line(&self, text: impl std::fmt::Display) {
        if matches!(self.0, Renderer::Plain(_)) {
            println!("{text}");
        }
    }
}

impl Position {
    fn progress(&self) -> TrainingProgress {
        TrainingProgress {
            progress: Some(Progress::new(self.images, self.images_total)),
            global_progress: Progress::new(self.epoch, self.epochs),
            iteration: Some(self.iteration),
        }
    }
}

/// A line now and then, for logs and pipes.
struct PlainRenderer {
    last_line: Instant,
    metrics: Vec<(MetricDefinition, Option<String>)>,
}

impl PlainRenderer {
    fn new() -> Self {
        Self { last_line: Instant::now(), metrics: Vec::new() }
    }

    fn update(&mut self, state: MetricState) {
        let (MetricState::Generic(entry) | MetricState::Numeric(entry, _)) = state;
        if let Some(metric) = self.metrics.iter_mut().find(|metric| metric.0.metric_id == entry.metric_id) {
            metric.1 = Some(entry.serialized_entry.formatted);
        }
    }

    fn line(&mut self, split: &str, item: &TrainingProgress) {
        let Some(progress) = &item.progress else { return };
        if self.last_line.elapsed() < INTERVAL {
            return;
        }
        self.last_line = Instant::now();
        let Progress { items_processed: epoch, items_total: epochs } = item.global_progress;
        let Progress { items_processed: images, items_total } = progress;
        print!("epoch {epoch}/{epochs}: {split} {images}/{items_total} images");
        for (definition, value) in &self.metrics {
            if let Some(value) = value {
                print!(" | {}: {value}", definition.name);
            }
        }
        println!();
    }
}

impl MetricsRendererTraining for PlainRenderer {
    fn update_train(&mut self, state: MetricState) {
        self.update(state);
    }

    fn update_valid(&mut self, state: MetricState) {
        self.update(state);
    }

    fn render_train(&mut self, item: TrainingProgress, _indicators: Vec<ProgressType>) {
        self.line("trained on", &item);
    }

    fn render_valid(&mut self, item: TrainingProgress, _indicators: Vec<ProgressType>) {
        self.line("validated on", &item);
    }
}

impl MetricsRendererEvaluation for PlainRenderer {
    fn update_test(&mut self, _name: EvaluationName, _state: MetricState) {}

    fn render_test(&mut self, _item: EvaluationProgress, _indicators: Vec<ProgressType>) {}
}

impl MetricsRenderer for PlainRenderer {
    fn manual_close(&mut self) {}

    fn register_metric(&mut self, definition: MetricDefinition) {
        self.metrics.push((definition, None));
    }
}
