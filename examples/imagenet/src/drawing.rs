//! Pictures with text in them, drawn without a screen and without a font of the system.
//!
//! A [`Canvas`] is an RGB picture to put text, pictures and heat maps on. All lengths are in pixels, the origin is the top left
//! corner, and whatever lies beyond an edge is cut off.

use ab_glyph::{Font, FontRef, Glyph, PxScale, ScaleFont, point};
use image::{ImageFormat, Rgb, RgbImage, imageops};
use std::io::Cursor;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use crate::atomic;
use crate::error::Error;

/// Paper.
pub const WHITE: Rgb<u8> = Rgb([255; 3]);
/// Ink.
pub const BLACK: Rgb<u8> = Rgb([0; 3]);
/// Ink of frames and ticks.
pub const GREY: Rgb<u8> = Rgb([120; 3]);

/// DejaVu Sans, which the program carries: machines without a screen often have no font.
static FONT: LazyLock<FontRef<'static>> = LazyLock::new(|| {
    FontRef::try_from_slice(dejavu::sans::regular()).expect("the font that is compiled in is a font")
});

/// A path for a PNG file, as flags take it.
///
/// # Errors
///
/// What is wrong with another extension.
pub fn png_path(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    match path.extension().and_then(|extension| extension.to_str()) {
        Some(extension) if extension.eq_ignore_ascii_case("png") => Ok(path),
        _ => Err("must end in .png".to_string()),
    }
}

/// Which part of a text stands at the given column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    /// Its left end.
    Left,
    /// Its middle.
    Centre,
    /// Its right end.
    Right,
}

/// Width of a line of text of height `size`.
pub fn text_width(text: &str, size: u32) -> u32 {
    let (_, width) = glyphs(text, size);
    width.ceil() as u32
}

/// The glyphs of a line whose top left corner is the origin, and the line's width.
fn glyphs(text: &str, size: u32) -> (Vec<Glyph>, f32) {
    let scale = PxScale::from(size as f32);
    let font = FONT.as_scaled(scale);
    let (mut glyphs, mut pen, mut last) = (Vec::new(), 0.0, None);
    for character in text.chars() {
        let id = font.glyph_id(character);
        if let Some(last) = last {
            pen += font.kern(last, id);
        }
        glyphs.push(id.with_scale_and_position(scale, point(pen, font.ascent())));
        pen += font.h_advance(id);
        last = Some(id);
    }
    (glyphs, pen)
}

/// A picture to draw on.
#[derive(Clone, Debug, PartialEq)]
pub struct Canvas(RgbImage);

impl Canvas {
    /// A white picture.
    pub fn new(width: u32, height: u32) -> Self {
        Self(RgbImage::from_pixel(width, height, WHITE))
    }

    /// What has been drawn.
    pub fn image(&self) -> &RgbImage {
        &self.0
    }

    /// Writes a line of text: its top at row `y`, `size` pixels high, aligned at column `x`.
    pub fn text(&mut self, text: &str, x: i64, y: i64, size: u32, align: Align, ink: Rgb<u8>) {
        let (glyphs, width) = glyphs(text, size);
        let left = x - match align {
            Align::Left => 0,
            Align::Centre => (width / 2.0).round() as i64,
            Align::Right => width.round() as i64,
        };
        for outline in glyphs.into_iter().filter_map(|glyph| FONT.outline_glyph(glyph)) {
            let corner = outline.px_bounds().min;
            let (left, top) = (left + corner.x as i64, y + corner.y as i64);
            outline.draw(|column, row, coverage| {
                self.blend(left + i64::from(column), top + i64::from(row), ink, coverage);
            });
        }
    }

    /// Writes a line of text upwards: its left end at row `y`, the top of the letters at column `x`.
    pub fn text_up(&mut self, text: &str, x: i64, y: i64, size: u32, ink: Rgb<u8>) {
        let mut line = Self::new(text_width(text, size) + 1, size + size / 2);
        line.text(text, 0, 0, size, Align::Left, ink);
        let line = imageops::rotate270(&line.0);
        let top = y - i64::from(line.height());
        for (column, row, pixel) in line.enumerate_pixels() {
            if *pixel != WHITE {
                self.blend(x + i64::from(column), top + i64::from(row), *pixel, 1.0);
            }
        }
    }

    /// Draws a picture with its top left corner at `(x, y)`, each of its pixels as a square of `scale` pixels.
    pub fn picture(&mut self, picture: &RgbImage, x: i64, y: i64, scale: u32) {
        let (width, height) = picture.dimensions();
        let enlarged =
            imageops::resize(picture, width * scale, height * scale, imageops::FilterType::Nearest);
        imageops::replace(&mut self.0, &enlarged, x, y);
    }

    /// Fills a rectangle.
    pub fn fill(&mut self, x: i64, y: i64, width: u32, height: u32, ink: Rgb<u8>) {
        for row in y..y + i64::from(height) {
            for column in x..x + i64::from(width) {
                self.blend(column, row, ink, 1.0);
            }
        }
    }

    /// Draws a line of one pixel around a rectangle, outside it.
    pub fn frame(&mut self, x: i64, y: i64, width: u32, height: u32, ink: Rgb<u8>) {
        let (right, bottom) = (x + i64::from(width), y + i64::from(height));
        self.fill(x - 1, y - 1, width + 2, 1, ink);
        self.fill(x - 1, bottom, width + 2, 1, ink);
        self.fill(x - 1, y, 1, height, ink);
        self.fill(right, y, 1, height, ink);
    }

    /// Writes the picture as PNG, completely or not at all.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if the file cannot be written.
    pub fn save(&self, path: &Path) -> Result<(), Error> {
        let mut png = Cursor::new(Vec::new());
        self.0.write_to(&mut png, ImageFormat::Png).expect("an RGB picture in memory can be encoded as PNG");
        let io_error = |source| Error::Io { path: path.to_path_buf(), source };
        atomic::write_file(path, png.get_ref()).map_err(io_error)
    }

    fn blend(&mut self, x: i64, y: i64, ink: Rgb<u8>, coverage: f32) {
        let (Ok(x), Ok(y)) = (u32::try_from(x), u32::try_from(y)) else { return };
        let Some(pixel) = self.0.get_pixel_mut_checked(x, y) else { return };
        for (paper, ink) in pixel.0.iter_mut().zip(ink.0) {
            let mixed = f32::from(*paper) + (f32::from(ink) - f32::from(*paper)) * coverage.clamp(0.0, 1.0);
            *paper = mixed.round() as u8;
        }
    }
}

/// Colours for numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scale {
    /// From dark violet at `low` to yellow at `high`, in proportion.
    Linear {
        /// The number at the dark end.
        low: f64,
        /// The number at the bright end.
        high: f64,
    },
    /// The same in proportion to the logarithm. Numbers up to `low` have the darkest colour.
    Log {
        /// The number at the dark end, above 0.
        low: f64,
        /// The number at the bright end.
        high: f64,
    },
    /// From blue at `-bound` through white at 0 to red at `bound`.
    Signed {
        /// The number at the red end, above 0.
        bound: f64,
    },
}

impl Scale {
    /// The colour of a number; beyond the ends, that of the end.
    pub fn colour(self, value: f64) -> Rgb<u8> {
        let (gradient, share) = match self {
            Self::Linear { low, high } => (colorous::VIRIDIS, (value - low) / (high - low)),
            Self::Log { low, high } => (colorous::VIRIDIS, (value.max(low) / low).ln() / (high / low).ln()),
            // The gradient runs from red to blue.
            Self::Signed { bound } => (colorous::RED_BLUE, 0.5 - 0.5 * value / bound),
        };
        // A scale of no extent, such as that of a constant map, has one colour.
        let share = if share.is_finite() { share.clamp(0.0, 1.0) } else { 0.0 };
        Rgb(gradient.eval_continuous(share).into_array())
    }

    /// The number at a share of the way from the low end to the high end.
    fn value(self, share: f64) -> f64 {
        match self {
            Self::Linear { low, high } => low + (high - low) * share,
            Self::Log { low, high } => low * (high / low).powf(share),
            Self::Signed { bound } => bound * (2.0 * share - 1.0),
        }
    }

    /// `values`, row by row, as a picture of one pixel each.
    ///
    /// # Panics
    ///
    /// If there are not `width * height` values.
    pub fn picture(self, values: &[f64], width: u32, height: u32) -> RgbImage {
        assert_eq!(values.len(), width as usize * height as usize);
        RgbImage::from_fn(width, height, |x, y| self.colour(values[y as usize * width as usize + x as usize]))
    }

    /// Draws the colours as a bar, the high end on top, with the numbers at its ends and middle to the right of it.
    pub fn draw_bar(self, canvas: &mut Canvas, x: i64, y: i64, width: u32, height: u32) {
        const TEXT: u32 = 12;
        for row in 0..height {
            let share = 1.0 - f64::from(row) / f64::from(height.max(2) - 1);
            canvas.fill(x, y + i64::from(row), width, 1, self.colour(self.value(share)));
        }
        canvas.frame(x, y, width, height, GREY);
        let right = x + i64::from(width) + 1;
        for share in [0.0, 0.5, 1.0] {
            let row = y + (f64::from(height - 1) * (1.0 - share)).round() as i64;
            canvas.fill(right, row, 3, 1, GREY);
            let number = short(self.value(share));
            canvas.text(&number, right + 6, row - i64::from(TEXT / 2), TEXT, Align::Left, BLACK);
        }
    }
}

/// A number with three digits.
pub fn short(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_string(),
        size if (1e-2..1e4).contains(&size) => {
            let decimals = (2 - size.log10().floor() as i32).clamp(0, 4) as usize;
            let text = format!("{value:.decimals$}");
            match text.contains('.') {
                true => text.trim_end_matches('0').trim_end_matches('.').to_string(),
                false => text,
            }
        }
        _ => format!("{value:.1e}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Columns and rows that are not white: first and one past the last.
    fn extent(canvas: &Canvas) -> ([u32; 2], [u32; 2]) {
        let dark: Vec<(u32, u32)> = canvas
            .image()
            .enumerate_pixels()
            .filter(|(_, _, p)| **p != WHITE)
            .map(|(x, y, _)| (x, y))
            .collect();
        let range = |of: fn(&(u32, u32)) -> u32| {
            [dark.iter().map(of).min().unwrap(), dark.iter().map(of).max().unwrap() + 1]
        };
        (range(|p| p.0), range(|p| p.1))
    }

    #[test]
    fn text_stands_where_it_is_asked_for() {
        let width = text_width("HIH", 20);
        assert!((20..60).contains(&width), "{width}");
        for (align, left) in
            [(Align::Left, 100), (Align::Centre, 100 - width / 2), (Align::Right, 100 - width)]
        {
            let mut canvas = Canvas::new(200, 60);
            canvas.text("HIH", 100, 10, 20, align, BLACK);
            let ([first, last], [top, bottom]) = extent(&canvas);
            assert!(first >= left && first <= left + 4, "{align:?}: {first} is not {left}");
            assert!(last <= left + width + 1 && last + 5 >= left + width, "{align:?}: {last}");
            assert!(top >= 10 && bottom <= 30, "{top} {bottom}");
        }
    }

    #[test]
    fn text_upwards_is_the_same_text_turned() {
        let mut level = Canvas::new(80, 30);
        level.text("L1", 0, 0, 20, Align::Left, BLACK);
        let mut upwards = Canvas::new(30, 80);
        upwards.text_up("L1", 0, 80, 20, BLACK);
        assert_eq!(*upwards.image(), imageops::rotate270(level.image()));
    }

    #[test]
    fn what_lies_outside_is_cut_off() {
        let mut canvas = Canvas::new(10, 10);
        canvas.text("wide text", -20, -5, 20, Align::Left, BLACK);
        canvas.text_up("wide text", -5, 5, 20, BLACK);
        canvas.fill(-5, -5, 100, 100, GREY);
        canvas.picture(&RgbImage::from_pixel(3, 3, BLACK), 8, -1, 2);
        assert_eq!(canvas.image().dimensions(), (10, 10));
        assert_eq!((canvas.image().get_pixel(8, 4), canvas.image().get_pixel(7, 4)), (&BLACK, &GREY));
        assert_eq!(canvas.image().get_pixel(8, 5), &GREY);
    }

    #[test]
    fn a_frame_surrounds_its_rectangle() {
        let mut canvas = Canvas::new(9, 8);
        canvas.frame(2, 3, 4, 2, BLACK);
        let black = canvas.image().pixels().filter(|pixel| **pixel == BLACK).count();
        assert_eq!((black, extent(&canvas)), (2 * 6 + 2 * 2, ([1, 7], [2, 6])));
    }

    #[test]
    fn colours_of_the_ends_and_the_middle() {
        let (dark, bright) = (Rgb([68, 1, 84]), Rgb([253, 231, 37]));
        for scale in [Scale::Linear { low: 2.0, high: 6.0 }, Scale::Log { low: 2.0, high: 6.0 }] {
            assert_eq!((scale.colour(2.0), scale.colour(6.0)), (dark, bright), "{scale:?}");
            assert_eq!((scale.colour(-1.0), scale.colour(7.0)), (dark, bright), "{scale:?}");
        }
        // 0.1 is halfway from 0.01 to 1 by its logarithm.
        let middle = Scale::Linear { low: 0.0, high: 1.0 }.colour(0.5);
        assert_eq!(Scale::Log { low: 0.01, high: 1.0 }.colour(0.1), middle);
        let signed = Scale::Signed { bound: 2.0 };
        let [[low, _, low_blue], [zero, ..], [high, _, high_blue]] =
            [-2.0, 0.0, 2.0].map(|value| signed.colour(value).0);
        assert!(low < low_blue && high > high_blue && zero > 230, "blue, white, red");
        assert_eq!(Scale::Linear { low: 3.0, high: 3.0 }.colour(3.0), dark);
    }

    #[test]
    fn numbers_are_short() {
        for (value, text) in [
            (0.0, "0"),
            (1.0, "1"),
            (-0.5, "-0.5"),
            (0.012345, "0.0123"),
            (123.456, "123"),
            (100.0, "100"),
            (1234.5, "1234"),
            (0.001, "1.0e-3"),
            (-2.5e6, "-2.5e6"),
        ] {
            assert_eq!(short(value), text);
        }
    }
}
