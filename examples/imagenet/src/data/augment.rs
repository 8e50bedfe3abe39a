//! From an RGB image of any size to the model's input: crop, resize, flip, RandAugment, normalise, random erasing.
//!
//! ```text
//! rand_augment.rs   which operation how strongly, of affine.rs and color.rs
//! random_erasing.rs noise in a rectangle of the normalised picture
//! mix.rs            mixup and CutMix, of whole batches
//! ```

mod affine;
mod color;
pub mod mix;
#[cfg(test)]
mod pillow;
pub mod rand_augment;
pub mod random_erasing;

use fast_image_resize::images::{CroppedImage, Image, ImageRef};
use fast_image_resize::{FilterType, PixelType, ResizeAlg, ResizeOptions, Resizer};
use image::{RgbImage, imageops};
use rand::{Rng, RngExt};

use rand_augment::RandAugment;
use random_erasing::random_erasing;

/// Mean of each channel over ImageNet, in units of the full range.
pub const MEAN: [f32; 3] = [0.485, 0.456, 0.406];
/// Standard deviation of each channel over ImageNet, in units of the full range.
pub const STD: [f32; 3] = [0.229, 0.224, 0.225];

/// Attempts to draw a crop before falling back to the centre, as torchvision makes.
const CROP_ATTEMPTS: usize = 10;

/// A rectangle of pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CropBox {
    /// First column.
    pub left: u32,
    /// First row.
    pub top: u32,
    /// Columns.
    pub width: u32,
    /// Rows.
    pub height: u32,
}

/// How the images of a split become the model's input.
#[derive(Clone, Debug, PartialEq)]
pub enum Transform {
    /// Random resized crop, horizontal flip, RandAugment, and random erasing after normalisation: for training.
    Train {
        /// Side of the result in pixels.
        input_size: u32,
        /// Share of the area that a crop covers, smallest and largest.
        crop_scale: [f64; 2],
        /// Width over height of a crop, smallest and largest.
        crop_ratio: [f64; 2],
        /// Probability of a horizontal flip.
        flip: f64,
        /// Random operations on the picture.
        rand_augment: Option<RandAugment>,
        /// Probability that a rectangle is erased.
        erasing: f64,
    },
    /// The shorter side to `input_size / crop_fraction`, then the centre: for validation and prediction.
    Eval {
        /// Side of the result in pixels.
        input_size: u32,
        /// Share of the shorter side that is kept.
        crop_fraction: f64,
    },
}

impl Transform {
    /// Side of the result in pixels.
    pub fn input_size(&self) -> u32 {
        match self {
            Self::Train { input_size, .. } | Self::Eval { input_size, .. } => *input_size,
        }
    }

    /// The model's input.
    ///
    /// # Shapes
    ///
    /// - output: `[3, input_size, input_size]`, flat.
    pub fn input(&self, image: &RgbImage, rng: &mut impl Rng, resizer: &mut Resizer) -> Vec<f32> {
        let mut pixels = normalize(&self.apply(image, rng, resizer));
        if let Self::Train { input_size, erasing, .. } = *self
            && erasing > 0.0
        {
            random_erasing(&mut pixels, input_size, erasing, rng);
        }
        pixels
    }

    /// The picture that the model sees, before normalisation and erasing.
    pub fn apply(&self, image: &RgbImage, rng: &mut impl Rng, resizer: &mut Resizer) -> RgbImage {
        let (width, height) = image.dimensions();
        match *self {
            Self::Train { input_size, crop_scale, crop_ratio, flip, rand_augment, .. } => {
                let crop = random_crop(width, height, crop_scale, crop_ratio, rng);
                let mut image = resize(image, crop, input_size, input_size, resizer);
                if rng.random_bool(flip) {
                    imageops::flip_horizontal_in_place(&mut image);
                }
                match rand_augment {
                    Some(rand_augment) => rand_augment.apply(image, rng),
                    None => image,
                }
            }
            Self::Eval { input_size, crop_fraction } => {
                let (scaled_width, scaled_height) = scaled_size(width, height, input_size, crop_fraction);
                // Only the centre of the enlarged picture is computed, which would not fit memory if the picture is one pixel high
                // and very long.
                let columns = centre(width, scaled_width, input_size);
                let rows = centre(height, scaled_height, input_size);
                let whole = CropBox { left: 0, top: 0, width, height };
                resample(image, whole, [columns, rows], [input_size; 2], resizer)
            }
        }
    }
}

/// Draws a crop as torchvision's `RandomResizedCrop` does: area uniform in `scale`, log of the ratio uniform; after ten
/// draws that do not fit, the largest centred crop whose ratio is allowed.
pub fn random_crop(width: u32, height: u32, scale: [f64; 2], ratio: [f64; 2], rng: &mut impl Rng) -> CropBox {
    let area = f64::from(width) * f64::from(height);
    for _ in 0..CROP_ATTEMPTS {
        let target = area * rng.random_range(scale[0]..=scale[1]);
        let aspect = rng.random_range(ratio[0].ln()..=ratio[1].ln()).exp();
        let crop_width = (target * aspect).sqrt().round() as u32;
        let crop_height = (target / aspect).sqrt().round() as u32;
        if (1..=width).contains(&crop_width) && (1..=height).contains(&crop_height) {
            let top = rng.random_range(0..=height - crop_height);
            let left = rng.random_range(0..=width - crop_width);
            return CropBox { left, top, width: crop_width, height: crop_height };
        }
    }
    fallback_crop(width, height, ratio)
}

/// The largest centred crop whose width over height lies within `ratio`.
fn fallback_crop(width: u32, height: u32, ratio: [f64; 2]) -> CropBox {
    let aspect = f64::from(width) / f64::from(height);
    let (crop_width, crop_height) = if aspect < ratio[0] {
        (width, (f64::from(width) / ratio[0]).round() as u32)
    } else if aspect > ratio[1] {
        ((f64::from(height) * ratio[1]).round() as u32, height)
    } else {
        (width, height)
    };
    // An image of 1 x 1000 pixels has no crop of an allowed ratio that is one pixel high or more: take what there is.
    let (crop_width, crop_height) = (crop_width.clamp(1, width), crop_height.clamp(1, height));
    CropBox {
        left: (width - crop_width) / 2,
        top: (height - crop_height) / 2,
        width: crop_width,
        height: crop_height,
    }
}

/// Size after the shorter side is brought to `floor(input_size / crop_fraction)`, the longer one in proportion, rounded
/// down, as timm and torchvision do.
fn scaled_size(width: u32, height: u32, input_size: u32, crop_fraction: f64) -> (u64, u64) {
    let shorter = u64::from(((f64::from(input_size) / crop_fraction).floor() as u32).max(input_size));
    let longer = |long: u32, short: u32| shorter * u64::from(long) / u64::from(short);
    if width <= height { (shorter, longer(height, width)) } else { (longer(width, height), shorter) }
}

/// First row or column of a centred window, rounded as torchvision's `center_crop` (half to even) does.
fn centre_offset(size: u64, window: u32) -> u64 {
    ((size - u64::from(window)) as f64 / 2.0).round_ties_even() as u64
}

/// The rows or columns of a picture that a centred window of the picture brought from `size` to `scaled_size` shows.
fn centre(size: u32, scaled_size: u64, window: u32) -> Span {
    let scale = f64::from(size) / scaled_size as f64;
    let start = centre_offset(scaled_size, window) as f64 * scale;
    // Rounding must not lead over the border.
    Span { start, length: (f64::from(window) * scale).min(f64::from(size) - start) }
}

/// Rows or columns of a picture, and parts of such.
#[derive(Clone, Copy, Debug)]
struct Span {
    start: f64,
    length: f64,
}

impl Span {
    /// All of them.
    fn whole(size: u32) -> Self {
        Self { start: 0.0, length: f64::from(size) }
    }
}

/// Resamples `crop` of `image` to `width` x `height`, of nothing but what lies within it.
fn resize(image: &RgbImage, crop: CropBox, width: u32, height: u32, resizer: &mut Resizer) -> RgbImage {
    resample(image, crop, [Span::whole(crop.width), Span::whole(crop.height)], [width, height], resizer)
}

/// Resamples `[columns, rows]` of `crop` of `image` to `[width, height]`, with a bicubic filter (a = -0.5) that is widened when it
/// shrinks, as Pillow's is. It reaches beyond columns and rows, but not beyond the crop.
///
/// Rows first, then columns, each rounded and clipped to 8 bits, in the order of Pillow (to 12; 13 begins with the columns of
/// some portraits): at sharp edges the filter overshoots, and what is clipped between the passes depends on their order by up
/// to a tenth of the range. One call for both passes would begin with the columns.
fn resample(
    image: &RgbImage,
    crop: CropBox,
    [columns, rows]: [Span; 2],
    [width, height]: [u32; 2],
    resizer: &mut Resizer,
) -> RgbImage {
    let image = ImageRef::new(image.width(), image.height(), image.as_raw(), PixelType::U8x3)
        .expect("an RGB image has three bytes a pixel");
    let source = CroppedImage::new(&image, crop.left, crop.top, crop.width, crop.height)
        .expect("the crop lies within the image");
    let options =
        ResizeOptions::new().resize_alg(ResizeAlg::Convolution(FilterType::CatmullRom)).use_alpha(false);
    let across = options.crop(columns.start, 0.0, columns.length, crop.height.into());
    let mut resampled = Image::new(width, crop.height, PixelType::U8x3);
    resizer.resize(&source, &mut resampled, &across).expect("the columns lie within the crop");
    let down = options.crop(0.0, rows.start, width.into(), rows.length);
    let mut target = Image::new(width, height, PixelType::U8x3);
    resizer.resize(&resampled, &mut target, &down).expect("the rows lie within the crop");
    RgbImage::from_raw(width, height, target.into_vec()).expect("an RGB image has three bytes a pixel")
}

/// The picture that [`normalize`] made `pixels` of, `[3, height, width]` flat. What lies outside of a picture's range is cut off.
pub fn denormalize(pixels: &[f32], width: u32) -> RgbImage {
    let plane = pixels.len() / 3;
    RgbImage::from_fn(width, plane as u32 / width, |x, y| {
        let position = (y * width + x) as usize;
        image::Rgb([0, 1, 2].map(|channel: usize| {
            let share = pixels[channel * plane + position] * STD[channel] + MEAN[channel];
            (255.0 * share).round().clamp(0.0, 255.0) as u8
        }))
    })
}

/// `(pixel / 255 - MEAN) / STD`, channel by channel.
///
/// # Shapes
///
/// - output: `[3, height, width]`, flat.
pub fn normalize(image: &RgbImage) -> Vec<f32> {
    let plane = image.width() as usize * image.height() as usize;
    let mut output = vec![0.0; 3 * plane];
    for (channel, output) in output.chunks_exact_mut(plane).enumerate() {
        let scale = 1.0 / (255.0 * STD[channel]);
        let shift = MEAN[channel] / STD[channel];
        for (value, pixel) in output.iter_mut().zip(image.pixels()) {
            *value = f32::from(pixel.0[channel]) * scale - shift;
        }
    }
    output
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{Stream, stream};
    use image::Rgb;

    fn eval(image: &RgbImage, input_size: u32, crop_fraction: f64) -> RgbImage {
        let mut rng = stream(0, Stream::Augment, 0, 0);
        Transform::Eval { input_size, crop_fraction }.apply(image, &mut rng, &mut Resizer::new())
    }

    fn train(image: &RgbImage, input_size: u32, flip: f64) -> RgbImage {
        let mut rng = stream(0, Stream::Augment, 0, 0);
        whole(input_size, flip).apply(image, &mut rng, &mut Resizer::new())
    }

    /// A crop of the whole picture and a flip, nothing else.
    fn whole(input_size: u32, flip: f64) -> Transform {
        Transform::Train {
            input_size,
            crop_scale: [1.0, 1.0],
            crop_ratio: [1.0, 1.0],
            flip,
            rand_augment: None,
            erasing: 0.0,
        }
    }

    /// Red says the column, green the row.
    fn coordinates(width: u32, height: u32) -> RgbImage {
        RgbImage::from_fn(width, height, |x, y| Rgb([x as u8, y as u8, 0]))
    }

    #[test]
    fn a_whole_crop_is_the_image_and_a_flip_its_mirror() {
        let image = coordinates(6, 6);
        assert_eq!(train(&image, 6, 0.0), image);
        let mirror = RgbImage::from_fn(6, 6, |x, y| Rgb([5 - x as u8, y as u8, 0]));
        assert_eq!(train(&image, 6, 1.0), mirror);
    }

    #[test]
    fn eval_keeps_the_centre() {
        // 8 x 6, shorter side stays 6 (4 / 0.6667 = 6): the 4 x 4 window starts at (2, 1).
        let window = eval(&coordinates(8, 6), 4, 4.0 / 6.0);
        assert_eq!(window, RgbImage::from_fn(4, 4, |x, y| Rgb([x as u8 + 2, y as u8 + 1, 0])));
        // A fraction of 1 with the right size is the image itself.
        assert_eq!(eval(&coordinates(5, 5), 5, 1.0), coordinates(5, 5));
    }

    #[test]
    fn scaled_sizes_are_those_of_timm() {
        assert_eq!(scaled_size(500, 375, 224, 0.875), (341, 256));
        assert_eq!(scaled_size(375, 500, 224, 0.875), (256, 341));
        assert_eq!(scaled_size(28, 28, 56, 1.0), (56, 56));
        // 64 / 0.9 = 71.1
        assert_eq!(scaled_size(80, 107, 64, 0.9), (71, 94));
        // round((341 - 224) / 2) = round(58.5) = 58, round((259 - 224) / 2) = round(17.5) = 18
        assert_eq!((centre_offset(341, 224), centre_offset(259, 224)), (58, 18));
    }

    #[test]
    fn a_crop_sees_nothing_beside_it() {
        // Black within the crop, white around it.
        let crop = CropBox { left: 7, top: 5, width: 9, height: 11 };
        let within = |x: u32, y: u32| (7..16).contains(&x) && (5..16).contains(&y);
        let image = RgbImage::from_fn(31, 29, |x, y| Rgb([if within(x, y) { 0 } else { 255 }; 3]));
        for (width, height) in [(32, 32), (5, 3), (9, 11), (9, 20), (20, 11)] {
            let resized = resize(&image, crop, width, height, &mut Resizer::new());
            assert!(resized == RgbImage::new(width, height), "{width}x{height}");
        }
    }

    #[test]
    fn crops_lie_within_the_image_and_the_ranges() {
        for index in 0..500 {
            let mut rng = stream(7, Stream::Augment, 0, index);
            let crop = random_crop(90, 60, [0.25, 0.5], [0.75, 4.0 / 3.0], &mut rng);
            assert!(crop.left + crop.width <= 90 && crop.top + crop.height <= 60, "{crop:?}");
            let share = f64::from(crop.width * crop.height) / 5400.0;
            let ratio = f64::from(crop.width) / f64::from(crop.height);
            assert!((0.24..=0.51).contains(&share) && (0.73..=1.37).contains(&ratio), "{crop:?}");
        }
    }

    #[test]
    fn the_fallback_is_the_largest_centred_crop() {
        let ratio = [0.75, 4.0 / 3.0];
        let tall = CropBox { left: 0, top: 33, width: 25, height: 33 };
        // 25 / 0.75 = 33.3
        assert_eq!(fallback_crop(25, 100, ratio), tall);
        // 30 * 4 / 3 = 40
        assert_eq!(fallback_crop(100, 30, ratio), CropBox { left: 30, top: 0, width: 40, height: 30 });
        assert_eq!(fallback_crop(10, 10, ratio), CropBox { left: 0, top: 0, width: 10, height: 10 });
        // No crop of the whole area has an allowed ratio, so that every draw falls back.
        let mut rng = stream(0, Stream::Augment, 0, 0);
        assert_eq!(random_crop(25, 100, [1.0, 1.0], ratio, &mut rng), tall);
    }

    #[test]
    fn extreme_shapes_give_an_input() {
        for (width, height) in [(1, 1), (1, 1000), (1000, 1), (3, 2)] {
            let image = RgbImage::from_pixel(width, height, Rgb([10, 20, 30]));
            for output in [eval(&image, 16, 0.875), train(&image, 16, 0.5)] {
                assert_eq!(output, RgbImage::from_pixel(16, 16, Rgb([10, 20, 30])), "{width}x{height}");
            }
        }
    }

    #[test]
    fn of_a_very_long_picture_only_the_centre_is_computed() {
        // Enlarged as a whole, these would take 12 GB.
        let (length, middle) = (60_001, 30_000);
        let colour = |position: u32| match position.abs_diff(middle) {
            0..=9 => Rgb([10, 20, 30]),
            _ => Rgb([255, 0, 255]),
        };
        let wide = RgbImage::from_fn(length, 1, |x, _| colour(x));
        let tall = RgbImage::from_fn(1, length, |_, y| colour(y));
        for image in [wide, tall] {
            assert_eq!(eval(&image, 224, 0.875), RgbImage::from_pixel(224, 224, Rgb([10, 20, 30])));
        }
        // 256 * 2^25 columns are more than 32 bits can count.
        assert_eq!(scaled_size(1 << 25, 1, 224, 0.875), (1 << 33, 256));
    }

    #[test]
    fn normalisation_by_hand() {
        let image = RgbImage::from_fn(2, 1, |x, _| if x == 0 { Rgb([0, 0, 0]) } else { Rgb([255, 51, 102]) });
        let values = normalize(&image);
        let expected = [
            -0.485 / 0.229,
            (1.0 - 0.485) / 0.229,
            -0.456 / 0.224,
            (0.2 - 0.456) / 0.224,
            -0.406 / 0.225,
            (0.4 - 0.406) / 0.225,
        ];
        for (value, expected) in values.iter().zip(expected) {
            assert!((value - expected).abs() < 1e-6, "{value} is not {expected}");
        }
    }

    #[test]
    fn normalisation_is_undone() {
        let image = RgbImage::from_fn(256, 3, |x, y| Rgb([x as u8, 255 - x as u8, (x / 2 + 60 * y) as u8]));
        assert_eq!(denormalize(&normalize(&image), 256), image);
        // Noise can be darker than black and brighter than white.
        let values = [-9.0, 9.0, 0.0, 9.0, 0.0, -9.0];
        let expected =
            RgbImage::from_fn(2, 1, |x, _| if x == 0 { Rgb([0, 116, 104]) } else { Rgb([255, 255, 0]) });
        assert_eq!(denormalize(&values, 2), expected);
    }
}
