//! The progress bar of commands that go through many images. Without a terminal it stays away.

use indicatif::{ProgressBar, ProgressStyle};
use std::time::Duration;

/// A bar on stderr over `total` things, called `what`.
pub fn bar(total: usize, what: &str) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}, {per_sec}, {eta} to go")
        .expect("the template has known keys only");
    let bar = ProgressBar::new(total as u64).with_style(style).with_message(what.to_string());
    bar.enable_steady_tick(Duration::from_millis(500));
    bar
}
