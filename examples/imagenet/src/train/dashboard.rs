//! The dashboard on a terminal.
//!
//! Burn's own (`TuiMetricsRendererWrapper`) is not used: while it waits for news it keeps a CPU core busy, half of what a small
//! machine has, and it swallows Ctrl-C. This one draws when there is news, at most four times a second.

use burn::data::dataloader::Progress;
use burn::train::Interrupter;
use burn::train::metric::MetricDefinition;
use burn::train::renderer::{
    EvaluationName, EvaluationProgress, MetricState, MetricsRenderer, MetricsRendererEvaluation,
    MetricsRendererTraining, ProgressType, TrainingProgress,
};
use ratatui::DefaultTerminal;
use ratatui::buffer::Buffer;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style};
use ratatui::symbols::Marker;
use ratatui::text::Line;
use ratatui::widgets::{Axis, Block, Cell, Chart, Dataset, Gauge, GraphType, Paragraph, Row, Table, Widget};
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::history::EpochRecord;
use super::interrupt;
use super::metrics::Scores;

/// Time between two drawings.
const INTERVAL: Duration = Duration::from_millis(250);

const TRAIN: Color = Color::Cyan;
const VAL: Color = Color::Magenta;

/// Owns the terminal while a run goes on.
pub(super) struct Dashboard {
    /// Never dropped: its own drop panics where the terminal has gone away.
    terminal: ManuallyDrop<DefaultTerminal>,
    view: View,
    last_drawing: Option<Instant>,
    keys: Keys,
}

impl Dashboard {
    /// Takes the screen. q and Ctrl-C set `interrupter`, as Ctrl-C does elsewhere.
    pub(super) fn new(interrupter: Interrupter) -> Self {
        let terminal = ManuallyDrop::new(ratatui::init());
        let keys = Keys::watch(interrupter.clone());
        Self { terminal, view: View::new(interrupter), last_drawing: None, keys }
    }

    /// Adds an epoch to the curves.
    pub(super) fn epoch(&mut self, record: &EpochRecord) {
        self.view.history.push(record.clone());
    }

    fn draw(&mut self) {
        if self.last_drawing.is_some_and(|last| last.elapsed() < INTERVAL) {
            return;
        }
        self.last_drawing = Some(Instant::now());
        let view = &self.view;
        if let Err(error) = self.terminal.draw(|frame| frame.render_widget(view, frame.area())) {
            log::warn!("cannot draw the dashboard: {error}");
        }
    }
}

impl Drop for Dashboard {
    fn drop(&mut self) {
        self.keys.stop();
        // A terminal that has gone away cannot be restored. Ratatui's own ways would panic about it.
        let _ = self.terminal.show_cursor();
        let _ = ratatui::try_restore();
    }
}

impl MetricsRendererTraining for Dashboard {
    fn update_train(&mut self, state: MetricState) {
        self.view.update(state, |metric| &mut metric.train);
    }

    fn update_valid(&mut self, state: MetricState) {
        self.view.update(state, |metric| &mut metric.val);
    }

    fn render_train(&mut self, item: TrainingProgress, _indicators: Vec<ProgressType>) {
        self.view.advance("training", item);
        self.draw();
    }

    fn render_valid(&mut self, item: TrainingProgress, _indicators: Vec<ProgressType>) {
        self.view.advance("validation", item);
        self.draw();
    }
}

impl MetricsRendererEvaluation for Dashboard {
    fn update_test(&mut self, _name: EvaluationName, _state: MetricState) {}

    fn render_test(&mut self, _item: EvaluationProgress, _indicators: Vec<ProgressType>) {}
}

impl MetricsRenderer for Dashboard {
    fn manual_close(&mut self) {}

    fn register_metric(&mut self, definition: MetricDefinition) {
        self.view.metrics.push(Metric { definition, train: String::new(), val: String::new() });
    }
}

/// The thread that reads the keyboard: in raw mode, Ctrl-C is a key like any other.
struct Keys {
    done: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Keys {
    fn watch(interrupter: Interrupter) -> Self {
        let done = Arc::new(AtomicBool::new(false));
        let stop = done.clone();
        let thread = std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                // Sleeps until a key is pressed or the time is over.
                match event::poll(INTERVAL) {
                    Ok(false) => {}
                    Ok(true) => {
                        if event::read().is_ok_and(|event| asks_to_stop(&event)) {
                            interrupt::request(&interrupter);
                        }
                    }
                    Err(error) => {
                        log::warn!("cannot read the keyboard: {error}");
                        return;
                    }
                }
            }
        });
        Self { done, thread: Some(thread) }
    }

    fn stop(&mut self) {
        self.done.store(true, Ordering::Relaxed);
        // On a terminal that has gone away the thread may never come back from reading it: it ends with the process then.
        let patience = Instant::now() + 4 * INTERVAL;
        if let Some(thread) = self.thread.take() {
            while !thread.is_finished() && Instant::now() < patience {
                std::thread::sleep(INTERVAL / 10);
            }
        }
    }
}

fn asks_to_stop(event: &Event) -> bool {
    let Event::Key(key) = event else { return false };
    let ctrl_c = key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
    key.kind == KeyEventKind::Press && (ctrl_c || key.code == KeyCode::Char('q'))
}

struct Metric {
    definition: MetricDefinition,
    train: String,
    val: String,
}

/// What is on the screen.
struct View {
    interrupter: Interrupter,
    metrics: Vec<Metric>,
    task: &'static str,
    item: TrainingProgress,
    /// Share of the run that was done at a time, to tell how long the rest takes.
    first: Option<(f64, Instant)>,
    history: Vec<EpochRecord>,
}

impl View {
    fn new(interrupter: Interrupter) -> Self {
        let item = TrainingProgress::none();
        Self { interrupter, metrics: Vec::new(), task: "training", item, first: None, history: Vec::new() }
    }

    fn update(&mut self, state: MetricState, split: impl Fn(&mut Metric) -> &mut String) {
        let (MetricState::Generic(entry) | MetricState::Numeric(entry, _)) = state;
        let metric = self.metrics.iter_mut().find(|metric| metric.definition.metric_id == entry.metric_id);
        if let Some(metric) = metric {
            *split(metric) = entry.serialized_entry.formatted;
        }
    }

    fn advance(&mut self, task: &'static str, item: TrainingProgress) {
        self.task = task;
        self.item = item;
        let share = self.share();
        self.first.get_or_insert_with(|| (share, Instant::now()));
    }

    /// Share of the epoch that is done.
    fn share_of_epoch(&self) -> f64 {
        match &self.item.progress {
            Some(Progress { items_processed, items_total }) if *items_total > 0 => {
                (*items_processed as f64 / *items_total as f64).min(1.0)
            }
            _ => 0.0,
        }
    }

    /// Share of the run that is done. An epoch's validation counts as its end.
    fn share(&self) -> f64 {
        let Progress { items_processed: epoch, items_total: epochs } = self.item.global_progress;
        let of_epoch = if self.task == "training" { self.share_of_epoch() } else { 1.0 };
        if epochs == 0 { 0.0 } else { (epoch as f64 - 1.0 + of_epoch) / epochs as f64 }
    }

    fn time_left(&self) -> Option<Duration> {
        let (share, time) = self.first?;
        let done = self.share() - share;
        (done > 0.0).then(|| time.elapsed().mul_f64((1.0 - self.share()) / done))
    }
}

impl Widget for &View {
    fn render(self, area: Rect, buffer: &mut Buffer) {
        let rows = [
            Constraint::Length(3),
            Constraint::Length(3),
            Constraint::Length(self.metrics.len() as u16 + 3),
            Constraint::Min(6),
            Constraint::Length(1),
        ];
        let [task, run, metrics, charts, keys] = Layout::vertical(rows).areas(area);

        let title = format!(
            "{} in epoch {} of {}",
            self.task, self.item.global_progress.items_processed, self.item.global_progress.items_total
        );
        gauge(title, self.share_of_epoch(), TRAIN).render(task, buffer);
        let left = self
            .time_left()
            .map_or_else(|| "run".to_string(), |left| format!("run, {} to go", minutes(left)));
        gauge(left, self.share(), Color::Yellow).render(run, buffer);

        let lines = self.metrics.iter().map(|metric| {
            Row::new([
                Cell::new(metric.definition.name.as_str()),
                Cell::new(metric.train.as_str()).style(TRAIN),
                Cell::new(metric.val.as_str()).style(VAL),
            ])
        });
        let widths = [Constraint::Fill(2), Constraint::Fill(3), Constraint::Fill(3)];
        let header = Row::new(["", "train", "val"]);
        Table::new(lines, widths)
            .header(header)
            .block(Block::bordered().title("metrics"))
            .render(metrics, buffer);

        let [loss, accuracy] = Layout::horizontal([Constraint::Fill(1), Constraint::Fill(1)]).areas(charts);
        self.chart("loss", loss, buffer, |scores| scores.loss);
        self.chart("accuracy", accuracy, buffer, |scores| scores.accuracy);

        let text = if self.interrupter.should_stop() {
            "stopping after this update, with a checkpoint; press again to stop at once"
        } else {
            "q or Ctrl-C: stop with a checkpoint"
        };
        Paragraph::new(Line::from(text)).render(keys, buffer);
    }
}

impl View {
    /// Draws the curves of both splits over the epochs.
    fn chart(&self, title: &str, area: Rect, buffer: &mut Buffer, value: impl Fn(&Scores) -> f64) {
        let points = |of: fn(&EpochRecord) -> &Scores| -> Vec<(f64, f64)> {
            self.history.iter().map(|record| (record.epoch as f64, value(of(record)))).collect()
        };
        let (train, val) = (points(|record| &record.train), points(|record| &record.val));
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        for (_, y) in train.iter().chain(&val) {
            low = low.min(*y);
            high = high.max(*y);
        }
        if low > high {
            (low, high) = (0.0, 1.0);
        }
        let epochs = self.item.global_progress.items_total.max(2) as f64;
        let line = |name, points, color| {
            Dataset::default()
                .name(name)
                .marker(Marker::Braille)
                .graph_type(GraphType::Line)
                .style(Style::new().fg(color))
                .data(points)
        };
        Chart::new(vec![line("train", &train, TRAIN), line("val", &val, VAL)])
            .block(Block::bordered().title(title))
            .x_axis(Axis::default().bounds([1.0, epochs]).labels(["1".to_string(), format!("{epochs}")]))
            .y_axis(Axis::default().bounds([low, high]).labels([format!("{low:.2}"), format!("{high:.2}")]))
            .render(area, buffer);
    }
}

fn gauge(title: String, share: f64, color: Color) -> Gauge<'static> {
    Gauge::default().block(Block::bordered().title(title)).gauge_style(color).ratio(share.clamp(0.0, 1.0))
}

fn minutes(time: Duration) -> String {
    let seconds = time.as_secs();
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, seconds) => format!("{seconds} s"),
        (0, minutes, seconds) => format!("{minutes} min {seconds} s"),
        (hours, minutes, _) => format!("{hours} h {minutes} min"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::train::metric::{LossMetric, Metric as _, MetricEntry, MetricId, SerializedEntry};
    use ratatui::crossterm::event::KeyEvent;

    fn text(view: &View) -> String {
        let area = Rect::new(0, 0, 90, 30);
        let mut buffer = Buffer::empty(area);
        view.render(area, &mut buffer);
        let row = |y| (0..area.width).map(|x| buffer[(x, y)].symbol()).collect::<String>() + "\n";
        (0..area.height).map(row).collect()
    }

    fn progress(epoch: usize, images: usize) -> TrainingProgress {
        TrainingProgress {
            progress: Some(Progress::new(images, 200)),
            global_progress: Progress::new(epoch, 4),
            iteration: Some(1),
        }
    }

    #[test]
    fn the_screen_shows_progress_metrics_and_keys() {
        let interrupter = Interrupter::new();
        let mut view = View::new(interrupter.clone());
        assert!(text(&view).contains("training in epoch 0 of 0"), "an empty view can be drawn");

        let loss = LossMetric::<crate::TestBackend>::new();
        let id = MetricId::new(loss.name());
        let definition = MetricDefinition::new(id.clone(), &loss);
        view.metrics.push(Metric { definition, train: String::new(), val: String::new() });
        let entry = |value: &str| SerializedEntry::new(value.to_string(), String::new());
        view.update(MetricState::Generic(MetricEntry::new(id.clone(), entry("1.25"))), |metric| {
            &mut metric.train
        });
        view.update(MetricState::Generic(MetricEntry::new(id, entry("2.75"))), |metric| &mut metric.val);
        view.advance("training", progress(3, 100));
        // Two of four epochs and a half.
        assert!((view.share() - 0.625).abs() < 1e-12, "{}", view.share());
        let screen = text(&view);
        for expected in ["training in epoch 3 of 4", "50%", "63%", "Loss", "1.25", "2.75", "Ctrl-C: stop"] {
            assert!(screen.contains(expected), "no {expected} in\n{screen}");
        }

        view.advance("validation", progress(3, 50));
        assert_eq!(view.share(), 0.75);
        interrupter.stop(None);
        assert!(text(&view).contains("press again to stop at once"));
    }

    #[test]
    fn the_curves_follow_the_epochs() {
        let mut view = View::new(Interrupter::new());
        let scores = |loss| Scores { loss, accuracy: 0.25, top5: 1.0 };
        for epoch in 1..=3 {
            view.history.push(EpochRecord {
                epoch,
                updates: epoch,
                lr: 0.1,
                train: scores(3.0 / epoch as f64),
                val: scores(4.5 / epoch as f64),
                unreadable: 0,
                seconds: 1.0,
                images_per_second: 1.0,
            });
        }
        let screen = text(&view);
        for expected in ["loss", "accuracy", "1.00", "4.50", "0.25", "train", "val"] {
            assert!(screen.contains(expected), "no {expected} in\n{screen}");
        }
    }

    #[test]
    fn keys_that_stop() {
        let press = |code, modifiers| Event::Key(KeyEvent::new(code, modifiers));
        assert!(asks_to_stop(&press(KeyCode::Char('c'), KeyModifiers::CONTROL)));
        assert!(asks_to_stop(&press(KeyCode::Char('q'), KeyModifiers::NONE)));
        assert!(!asks_to_stop(&press(KeyCode::Char('c'), KeyModifiers::NONE)));
        assert!(!asks_to_stop(&Event::Resize(80, 24)));
    }

    #[test]
    fn times_in_words() {
        let text = [59, 61, 3661].map(|seconds| minutes(Duration::from_secs(seconds)));
        assert_eq!(text, ["59 s", "1 min 1 s", "1 h 1 min"]);
    }
}
