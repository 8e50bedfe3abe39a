//! How far a run is: a bar on a terminal, and a plain line a row where there is none (a log, a pipe).

use std::time::{Duration, Instant};

use indicatif::{HumanDuration, ProgressBar, ProgressStyle};

use crate::output;

/// Of `total` rows.
pub(crate) struct Progress {
    /// Hidden without a terminal.
    bar: ProgressBar,
    total: usize,
    done: usize,
    start: Instant,
}

impl Progress {
    pub(crate) fn new(total: usize) -> Self {
        let style =
            ProgressStyle::with_template("{bar:30} {pos}/{len} rows, {elapsed} gone, {eta} left: {msg}")
                .expect("a template in order");
        let bar = ProgressBar::new(total as u64).with_style(style);
        Self { bar, total, done: 0, start: Instant::now() }
    }

    /// Says what is being measured, if there is a terminal.
    pub(crate) fn say(&self, words: String) {
        self.bar.set_message(words);
    }

    /// Counts a row that ended as `words` say.
    pub(crate) fn finish(&mut self, words: &str) {
        self.done += 1;
        self.bar.inc(1);
        if self.bar.is_hidden() {
            let line = line(self.done, self.total, self.start.elapsed(), words);
            output::line(&mut std::io::stderr().lock(), format_args!("{line}"));
        }
    }

    /// Counts a row that is not measured, of which there is nothing to be said here.
    pub(crate) fn skip(&mut self) {
        self.done += 1;
        self.bar.inc(1);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// One finished row; the rows to come are taken to last as long as those before them.
fn line(done: usize, total: usize, gone: Duration, words: &str) -> String {
    let left = gone.mul_f64(total.saturating_sub(done) as f64 / done.max(1) as f64);
    format!("{done}/{total} rows, {} gone, about {} left: {words}", HumanDuration(gone), HumanDuration(left))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_counts_and_estimates() {
        let words = line(3, 12, Duration::from_secs(60), "1x2x3x4: measured");
        assert_eq!(words, "3/12 rows, 60 seconds gone, about 3 minutes left: 1x2x3x4: measured");
        assert!(line(12, 12, Duration::from_secs(60), "").contains("about 0 seconds left"));
    }
}
