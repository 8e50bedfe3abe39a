//! A contact sheet of training images as the model is given them, to look at before a long run.

use ab_glyph::{Font, FontRef, PxScale, ScaleFont, point};
use burn::data::dataset::Dataset;
use clap::{Args, ValueHint};
use image::codecs::png::PngEncoder;
use image::imageops::{self, FilterType};
use image::{ImageEncoder, Rgb, RgbImage};
use std::path::PathBuf;
use std::sync::Arc;

use crate::atomic;
use crate::config::ConfigArgs;
use crate::count::count;
use crate::data::augment::denormalize;
use crate::data::batch::Sample;
use crate::data::decode::Failures;
use crate::data::folder::ImageFolder;
use crate::data::loader::{HostBatch, Loader, Workers};
use crate::data::plan::EpochPlan;
use crate::error::Error;

/// Smaller images are enlarged to this many pixels at least, by a whole factor.
const CELL: u32 = 112;
/// Pixels around an image.
const MARGIN: u32 = 4;
/// Height of a line of text, of which an image has two.
const LINE: u32 = 14;
const BACKGROUND: Rgb<u8> = Rgb([255, 255, 255]);

/// Flags of `preview`.
#[derive(Args, Clone, Debug)]
pub struct PreviewArgs {
    /// PNG file to write
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, default_value = "preview.png")]
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
    let io_error = |source| Error::Io { path: args.out.clone(), source };
    atomic::write_file(&args.out, &png(&sheet)).map_err(io_error)?;
    println!(
        "{}: {} of {}, the first {} of each",
        args.out.display(),
        count(batches.len(), "batch", "batches"),
        files.path().display(),
        count(usize::from(args.columns), "image", "images")
    );
    Ok(())
}

fn png(image: &RgbImage) -> Vec<u8> {
    let mut bytes = Vec::new();
    PngEncoder::new(&mut bytes)
        .write_image(image, image.width(), image.height(), image::ExtendedColorType::Rgb8)
        .expect("memory takes every image");
    bytes
}

/// One row for each batch, one column for each of its first images, with the labels below.
fn sheet(batches: &[HostBatch], classes: &[String], side: u32, columns: u32) -> RgbImage {
    let font = FontRef::try_from_slice(dejavu::sans::regular()).expect("the font is one");
    let factor = CELL.div_ceil(side);
    let (width, height) = (side * factor + 2 * MARGIN, side * factor + 2 * LINE + 2 * MARGIN);
    let mut sheet = RgbImage::from_pixel(columns * width, batches.len() as u32 * height, BACKGROUND);
    for (row, batch) in (0..).zip(batches) {
        for (column, sample) in (0..columns).zip(&batch.samples) {
            let (left, top) = (column * width + MARGIN, row * height + MARGIN);
            let picture = denormalize(&sample.pixels, side);
            let picture = imageops::resize(&picture, side * factor, side * factor, FilterType::Nearest);
            imageops::replace(&mut sheet, &picture, left.into(), top.into());
            for (line, text) in (0..).zip(labels(batch, column as usize, classes)) {
                let line_top = top + side * factor + line * LINE;
                write(&mut sheet, &font, [left, line_top], side * factor, &text);
            }
        }
    }
    sheet
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

/// Writes `text` in black into the line at `[left, top]`, cut off after `width` pixels.
fn write(sheet: &mut RgbImage, font: &FontRef<'_>, [left, top]: [u32; 2], width: u32, text: &str) {
    let scaled = font.as_scaled(PxScale::from(LINE as f32 - 1.0));
    let end = (left + width) as f32;
    let mut pen = point(left as f32, top as f32 + scaled.ascent());
    for character in text.chars() {
        let glyph = scaled.scaled_glyph(character);
        let advance = scaled.h_advance(glyph.id);
        if pen.x + advance > end {
            break;
        }
        let glyph = font.outline_glyph(ab_glyph::Glyph { position: pen, ..glyph });
        pen.x += advance;
        let Some(outline) = glyph else { continue };
        let bounds = outline.px_bounds();
        outline.draw(|x, y, coverage| {
            let (x, y) = (bounds.min.x + x as f32, bounds.min.y + y as f32);
            if x >= 0.0
                && y >= 0.0
                && let Some(pixel) = sheet.get_pixel_mut_checked(x as u32, y as u32)
            {
                pixel.0 = pixel.0.map(|value| (f32::from(value) * (1.0 - coverage.min(1.0))) as u8);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::augment::normalize;

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
    fn ink(sheet: &RgbImage, left: u32, top: u32, width: u32, height: u32) -> usize {
        imageops::crop_imm(sheet, left, top, width, height)
            .to_image()
            .pixels()
            .filter(|pixel| **pixel != BACKGROUND)
            .count()
    }

    #[test]
    fn images_are_drawn_as_they_are_and_enlarged() {
        // 50 pixels are enlarged three times: cells of 158 x 186.
        let sheet = sheet(&[batch(None), batch(None)], &classes(), 50, 2);
        assert_eq!(sheet.dimensions(), (2 * 158, 2 * 186));
        for (row, column, color) in [(0, 0, [10, 20, 30]), (0, 1, [40, 50, 60]), (1, 0, [10, 20, 30])] {
            let drawn = imageops::crop_imm(&sheet, column * 158 + 4, row * 186 + 4, 150, 150).to_image();
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
