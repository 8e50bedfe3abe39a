//! What a run shows: the dashboard on a terminal (a renderer as Burn's training takes them), plain lines elsewhere.

use burn::data::dataloader::Progress;
use burn::tensor::backend::Backend;
use burn::train::Interrupter;
use burn::train::renderer::{MetricState, MetricsRendererTraining, TrainingProgress};
use std::io::IsTerminal;
use std::time::{Duration, Instant};

use super::dashboard::Dashboard;
use super::history::EpochRecord;
use super::metrics::{EpochMetrics, Pace, Totals};
use crate::output;

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
    /// Images of the epoch.
    pub images_total: usize,
    /// Sums over the images so far.
    pub totals: Totals,
}

/// Shows a run.
pub struct Display(Kind);

enum Kind {
    Dashboard(Box<Dashboard>),
    Plain(PlainLines),
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
            Self(Kind::Dashboard(Box::new(Dashboard::new(interrupter))))
        } else {
            Self::plain()
        }
    }

    /// Plain lines.
    pub fn plain() -> Self {
        Self(Kind::Plain(PlainLines { last: Instant::now() }))
    }

    /// Tells the dashboard which metrics to expect.
    pub fn register<B: Backend>(&mut self, metrics: &EpochMetrics<B>) {
        if let Kind::Dashboard(dashboard) = &mut self.0 {
            metrics.register(dashboard.as_mut());
        }
    }

    /// Shows a training update.
    pub fn train(&mut self, states: Vec<MetricState>, position: Position, pace: Pace) {
        match &mut self.0 {
            Kind::Dashboard(dashboard) => {
                states.into_iter().for_each(|state| dashboard.update_train(state));
                dashboard.render_train(position.progress(), Vec::new());
            }
            Kind::Plain(lines) => lines.now_and_then(|| train_line(&position, pace)),
        }
    }

    /// Shows a validation batch.
    pub fn val(&mut self, states: Vec<MetricState>, position: Position) {
        match &mut self.0 {
            Kind::Dashboard(dashboard) => {
                states.into_iter().for_each(|state| dashboard.update_valid(state));
                dashboard.render_valid(position.progress(), Vec::new());
            }
            Kind::Plain(lines) => lines.now_and_then(|| position.text("val")),
        }
    }

    /// Shows a complete epoch.
    pub fn epoch(&mut self, record: &EpochRecord, epochs: usize) {
        match &mut self.0 {
            Kind::Dashboard(dashboard) => dashboard.epoch(record),
            Kind::Plain(_) => print(epoch_line(record, epochs)),
        }
    }

    /// Prints a line, unless the dashboard has the screen.
    pub fn line(&self, text: impl std::fmt::Display) {
        if matches!(self.0, Kind::Plain(_)) {
            print(text);
        }
    }
}

/// Prints a line. A run goes on where nobody reads what it says, or the disk is full that its lines go to.
fn print(text: impl std::fmt::Display) {
    let _ = output::line(text);
}

impl Position {
    fn progress(&self) -> TrainingProgress {
        TrainingProgress {
            progress: Some(Progress::new(self.totals.seen(), self.images_total)),
            global_progress: Progress::new(self.epoch, self.epochs),
            iteration: Some(self.iteration),
        }
    }

    fn text(&self, split: &str) -> String {
        let Self { epoch, epochs, images_total, totals, .. } = self;
        let (seen, scores) = (totals.seen(), totals.scores());
        format!("epoch {epoch}/{epochs}: {split} {seen}/{images_total} images | {scores}")
    }
}

/// Lines for logs and pipes; they fit in 120 columns.
struct PlainLines {
    last: Instant,
}

impl PlainLines {
    /// Prints what `text` makes, unless the last line was less than [`INTERVAL`] ago.
    fn now_and_then(&mut self, text: impl FnOnce() -> String) {
        if self.last.elapsed() >= INTERVAL {
            self.last = Instant::now();
            print(text());
        }
    }
}

fn train_line(position: &Position, pace: Pace) -> String {
    let Pace { lr, images_per_second } = pace;
    format!("{} | lr {lr:.2e} | {images_per_second:.0} images/s", position.text("train"))
}

fn epoch_line(record: &EpochRecord, epochs: usize) -> String {
    format!("epoch {}/{epochs}: {record}", record.epoch)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::train::metrics::Scores;

    fn position(epochs: usize, images: usize) -> Position {
        let totals = Totals {
            images,
            unreadable: 1,
            loss: 2.5 * images as f64,
            correct: images / 2,
            correct_top5: images,
        };
        Position { epoch: epochs, epochs, iteration: 1, images_total: images + 1, totals }
    }

    #[test]
    fn lines_say_where_the_run_stands() {
        let pace = Pace { lr: 3e-3, images_per_second: 41.7 };
        assert_eq!(
            train_line(&position(3, 100), pace),
            "epoch 3/3: train 101/101 images | loss 2.500 acc 0.500 top-5 1.000 | lr 3.00e-3 | 42 images/s"
        );
        assert_eq!(
            position(3, 100).text("val"),
            "epoch 3/3: val 101/101 images | loss 2.500 acc 0.500 top-5 1.000"
        );
    }

    #[test]
    fn lines_fit_in_120_columns() {
        let pace = Pace { lr: 1.234e-12, images_per_second: 12_345.6 };
        let train = train_line(&position(300, 1_281_167), pace);
        assert!(train.len() <= 120, "{}: {train}", train.len());
        let scores = Scores { loss: 12.3456, accuracy: 0.123456, top5: 0.123456 };
        let record = EpochRecord {
            epoch: 300,
            updates: 1,
            lr: pace.lr,
            train: scores,
            val: scores,
            unreadable: 0,
            seconds: 1.0,
            images_per_second: pace.images_per_second,
        };
        let epoch = epoch_line(&record, 300);
        assert!(epoch.len() <= 120, "{}: {epoch}", epoch.len());
    }
}
