//! A contact sheet of training images as the model is given them, to look at before a long run.

use burn::data::dataset::Dataset;
use clap::{Args, ValueHint};
use std::path::PathBuf;
use std::sync::Arc;

use crate::config::ConfigArgs;
use crate::count::count;
use crate::data::augment::denormalize;
use crate::data::batch::Sample;
use crate::data::decode::Failures;
use crate::data::folder::ImageFolder;
use crate::data::loader::{HostBatch, Loader, Workers};
use crate::data::plan::EpochPlan;
use crate::drawing::{Align, BLACK, Canvas, png_path, text_width};
use crate::error::Error;
use crate::output;

/// Smaller images are enlarged to this many pixels at least, by a whole factor.
const CELL: u32 = 112;
/// Pixels around an image.
const MARGIN: u32 = 4;
/// Height of a line of text, of which an image has two.
const LINE: u32 = 14;
/// Height of its letters.
const LETTERS: u32 = LINE - 1;

/// Pixels that are held at once: 3 GiB.
const MOST_PIXELS: u64 = 1 << 28;

/// Flags of `preview`.
#[derive(Args, Clone, Debug)]
pub struct PreviewArgs {
    /// PNG file to write
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, value_parser = png_path, default_value = "preview.png")]
    pub out: PathBuf,
    /// Rows of the sheet: batches, from the first of the first epoch on
    #[arg(long, value_name = "N", default_value_t = 6, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub rows: u16,
    /// Columns of the sheet: the first images of each batch
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub columns: u16,
    /// What the run would depend on.
    #[command(flatten)]
    pub settings: ConfigArgs,
}

/// `imagenet preview`: draws what `train` with the same configuration begins with.
///
/// # Errors
///
/// Any [`Error`] of the configuration, the data or the file.
pub fn run(args: &PreviewArgs) -> Result<(), Error> {
    let config = args.settings.resolve()?;
    output::check_files(&[&args.out])?;
    let [rows, columns] = [args.rows, args.columns].map(u64::from);
    let side = u64::from(config.input_size);
    // Pixels of the sheet, and of the batches that it is drawn from, which are held as three floats each.
    let images = rows.saturating_mul(columns.saturating_add(config.batch_size as u64));
    let pixels = images.saturating_mul(side * side);
    if pixels > MOST_PIXELS {
        return Err(Error::Preview { pixels, most: MOST_PIXELS });
    }
    let files = Arc::new(ImageFolder::train(&config.data_folder()?.join("train"))?);
    let loader = Loader::for_training(files.clone(), &config, Workers::start(config.workers)?);
    let plan = EpochPlan::shuffled(files.len(), config.seed, 1, config.batch_size, config.accumulate);
    let mut planned = plan.batches_of(0..plan.updates());
    planned.truncate(usize::from(args.rows));

    let mut failures = Failures::default();
    let mut batches = Vec::new();
    for batch in loader.batches(1, planned) {
        let mut batch = batch?;
        failures.add(std::mem::take(&mut batch.failures));
        batches.push(batch);
    }
    if batches.iter().all(|batch| batch.samples.is_empty())
        && let Some(first) = failures.first
    {
        return Err(Error::Unreadable { path: files.path().to_path_buf(), images: files.len(), first });
    }
    let sheet = sheet(&batches, files.classes(), loader.input_size() as u32, u32::from(args.columns));
    sheet.save(&args.out)?;
    output::line(format_args!(
        "{}: {} of {}, the first {} of each",
        args.out.display(),
        count(batches.len(), "batch", "batches"),
        files.path().display(),
        count(usize::from(args.columns), "image", "images")
    ))
}

/// One row for each batch, one column for each of its first images, with the labels below.
fn sheet(batches: &[HostBatch], classes: &[String], side: u32, columns: u32) -> Canvas {
    let factor = CELL.div_ceil(side);
    let (width, height) = (side * factor + 2 * MARGIN, side * factor + 2 * LINE + 2 * MARGIN);
    let mut sheet = Canvas::new(columns * width, batches.len() as u32 * height);
    for (row, batch) in (0..).zip(batches) {
        for (column, sample) in (0..columns).zip(&batch.samples) {
            let (left, top) = (i64::from(column * width + MARGIN), i64::from(row * height + MARGIN));
            sheet.picture(&denormalize(&sample.pixels, side), left, top, factor);
            for (line, text) in (0..).zip(labels(batch, column as usize, classes)) {
                let line_top = top + i64::from(side * factor + line * LINE);
                let text = fitted(&text, side * factor);
                sheet.text(text, left, line_top, LETTERS, Align::Left, BLACK);
            }
        }
    }
    sheet
}

/// As much of `text` as fits `width` pixels.
fn fitted(text: &str, width: u32) -> &str {
    let ends = text.char_indices().map(|(index, character)| index + character.len_utf8());
    let end = ends.take_while(|&end| text_width(&text[..end], LETTERS) <= width).last();
    &text[..end.unwrap_or(0)]
}

/// The label of an image, or the shares of its own and its counterpart's.
fn labels(batch: &HostBatch, index: usize, classes: &[String]) -> Vec<String> {
    let name = |sample: &Sample| &classes[sample.label];
    let (own, other) = (&batch.samples[index], &batch.samples[batch.samples.len() - 1 - index]);
    match batch.lambda {
        None => vec![name(own).clone()],
        Some(lambda) => {
            vec![format!("{lambda:.2} {}", name(own)), format!("{:.2} {}", 1.0 - lambda, name(other))]
        }
    }
}

#[cfg(test)]
mod tests {
    use image::{Rgb, RgbImage, imageops};

    use super::*;
    use crate::data::augment::normalize;
    use crate::drawing::WHITE;

    fn picture(color: [u8; 3]) -> RgbImage {
        RgbImage::from_fn(50, 50, |x, y| Rgb([color[0] + x as u8, color[1] + y as u8, color[2]]))
    }

    fn batch(lambda: Option<f64>) -> HostBatch {
        let sample = |label, color| Sample { pixels: normalize(&picture(color)), label };
        let samples = vec![sample(0, [10, 20, 30]), sample(1, [40, 50, 60]), sample(2, [100, 110, 120])];
        HostBatch { samples, lambda, failures: Vec::new() }
    }

    fn classes() -> Vec<String> {
        ["ant", "bee", "cat"].map(String::from).to_vec()
    }

    /// Pixels that are not background.
    fn ink(sheet: &Canvas, left: u32, top: u32, width: u32, height: u32) -> usize {
        imageops::crop_imm(sheet.image(), left, top, width, height)
            .to_image()
            .pixels()
            .filter(|pixel| **pixel != WHITE)
            .count()
    }

    #[test]
    fn images_are_drawn_as_they_are_and_enlarged() {
        // 50 pixels are enlarged three times: cells of 158 x 186.
        let sheet = sheet(&[batch(None), batch(None)], &classes(), 50, 2);
        assert_eq!(sheet.image().dimensions(), (2 * 158, 2 * 186));
        for (row, column, color) in [(0, 0, [10, 20, 30]), (0, 1, [40, 50, 60]), (1, 0, [10, 20, 30])] {
            let drawn =
                imageops::crop_imm(sheet.image(), column * 158 + 4, row * 186 + 4, 150, 150).to_image();
            let expected = RgbImage::from_fn(150, 150, |x, y| *picture(color).get_pixel(x / 3, y / 3));
            assert_eq!(drawn, expected, "row {row}, column {column}");
        }
    }

    #[test]
    fn labels_are_written_below_the_images() {
        let plain = sheet(&[batch(None)], &classes(), 50, 4);
        // The first line has text, the second none, and the fourth image is not there.
        assert!(ink(&plain, 4, 154, 150, LINE) > 20);
        assert_eq!(ink(&plain, 4, 154 + LINE, 150, LINE), 0);
        assert_eq!(ink(&plain, 3 * 158, 0, 158, 186), 0);
        let mixed = sheet(&[batch(Some(0.75))], &classes(), 50, 4);
        assert!(ink(&mixed, 4, 154 + LINE, 150, LINE) > 20);
        assert_eq!(ink(&mixed, 0, 154, 4, 2 * LINE), 0, "nothing in the margin");
    }

    #[test]
    fn mixed_images_have_both_labels_and_their_shares() {
        assert_eq!(labels(&batch(None), 0, &classes()), ["ant"]);
        assert_eq!(labels(&batch(Some(0.75)), 0, &classes()), ["0.75 ant", "0.25 cat"]);
        assert_eq!(labels(&batch(Some(0.75)), 2, &classes()), ["0.75 cat", "0.25 ant"]);
        assert_eq!(labels(&batch(Some(0.75)), 1, &classes()), ["0.75 bee", "0.25 bee"]);
    }

    #[test]
    fn long_names_are_cut_off_at_the_cell() {
        let names = vec!["W".repeat(300), "\u{e9}t\u{e9} \u{6c34}".to_string(), String::new()];
        let sheet = sheet(&[batch(None)], &names, 50, 3);
        assert!(ink(&sheet, 4, 154, 150, LINE) > 500);
        assert_eq!(ink(&sheet, 154, 154, 8, LINE), 0, "the next cell's name begins at its image");
    }
}
