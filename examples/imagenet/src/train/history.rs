//! Numbers and curves of past epochs.

use plotters::prelude::*;
use serde::{Deserialize, Serialize};
use std::fmt;

use super::metrics::Scores;

/// One epoch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EpochRecord {
    /// Counted from 1.
    pub epoch: usize,
    /// Updates since the start of the run.
    pub updates: usize,
    /// Learning rate of the last update.
    pub lr: f64,
    /// Over the training images, while the model changed, with augmentation and label smoothing. Of mixed images, the loss is
    /// that of the soft targets, and an image is right if the model names its own label.
    pub train: Scores,
    /// Over the validation images, after the epoch, with the averaged weights if the run has them.
    pub val: Scores,
    /// Images of both splits that could not be read.
    pub unreadable: usize,
    /// Time that training took; of the last call only if the epoch was interrupted.
    pub seconds: f64,
    /// Training images a second.
    pub images_per_second: f64,
}

impl fmt::Display for EpochRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "train loss {:.3} acc {:.3} | val {} | lr {:.2e} | {:.0} images/s",
            self.train.loss, self.train.accuracy, self.val, self.lr, self.images_per_second
        )
    }
}

const SIZE: (u32, u32) = (900, 360);
const TRAIN: RGBColor = RGBColor(0x1f, 0x77, 0xb4);
const VAL: RGBColor = RGBColor(0xd6, 0x27, 0x28);

/// Draws loss and accuracy over the epochs as SVG.
///
/// # Errors
///
/// What the drawing library says.
pub fn curves(history: &[EpochRecord]) -> Result<String, Box<dyn std::error::Error>> {
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        area.fill(&WHITE)?;
        let (left, right) = area.split_horizontally(SIZE.0 / 2);
        let largest = history.iter().flat_map(|r| [r.train.loss, r.val.loss]).fold(0.0, f64::max);
        chart(&left, "loss", largest.max(f64::MIN_POSITIVE) * 1.05, history, |scores| scores.loss)?;
        chart(&right, "accuracy", 1.0, history, |scores| scores.accuracy)?;
        area.present()?;
    }
    Ok(svg)
}

fn chart<DB: DrawingBackend>(
    area: &DrawingArea<DB, plotters::coord::Shift>,
    title: &str,
    top: f64,
    history: &[EpochRecord],
    value: impl Fn(&Scores) -> f64,
) -> Result<(), Box<dyn std::error::Error>>
where
    DB::ErrorType: 'static,
{
    let last = history.last().map_or(1, |record| record.epoch).max(2);
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 18))
        .margin(10)
        .x_label_area_size(30)
        .y_label_area_size(45)
        .build_cartesian_2d(1..last, 0.0..top)?;
    chart.configure_mesh().x_desc("epoch").light_line_style(WHITE).draw()?;
    for (name, color, of) in [
        ("train", TRAIN, (|record| &record.train) as fn(&EpochRecord) -> &Scores),
        ("val", VAL, |record| &record.val),
    ] {
        let points = history.iter().map(|record| (record.epoch, value(of(record))));
        chart
            .draw_series(LineSeries::new(points, color.stroke_width(2)))?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], color.stroke_width(2)));
    }
    chart.configure_series_labels().border_style(BLACK).background_style(WHITE).draw()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn curves_show_both_splits() {
        let scores = |x| Scores { loss: x, accuracy: 1.0 - x / 4.0, top5: 1.0 };
        let record = |epoch| EpochRecord {
            epoch,
            updates: epoch * 3,
            lr: 0.1,
            train: scores(2.0 / epoch as f64),
            val: scores(3.0 / epoch as f64),
            unreadable: 0,
            seconds: 1.0,
            images_per_second: 1.0,
        };
        for epochs in [0, 1, 5] {
            let history: Vec<_> = (1..=epochs).map(record).collect();
            let svg = curves(&history).unwrap();
            for text in ["<svg", "loss", "accuracy", "epoch", "train", "val"] {
                assert!(svg.contains(text), "{epochs} epochs: no {text}");
            }
        }
    }
}
