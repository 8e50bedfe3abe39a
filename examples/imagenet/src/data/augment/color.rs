//! Changes of colour, pixel by pixel or by statistics of the whole picture, with the numbers of Pillow's `ImageOps` and
//! `ImageEnhance`.

use image::{Rgb, RgbImage};

/// Passes each channel through its table.
fn look_up(image: &RgbImage, tables: [[u8; 256]; 3]) -> RgbImage {
    let mut image = image.clone();
    for pixel in image.pixels_mut() {
        for (value, table) in pixel.0.iter_mut().zip(&tables) {
            *value = table[usize::from(*value)];
        }
    }
    image
}

/// A table by rule.
fn table(rule: impl Fn(u8) -> u8) -> [u8; 256] {
    let mut table = [0; 256];
    for (value, entry) in (0..=255).zip(&mut table) {
        *entry = rule(value);
    }
    table
}

/// How often each value occurs in each channel.
fn histograms(image: &RgbImage) -> [[u32; 256]; 3] {
    let mut histograms = [[0; 256]; 3];
    for pixel in image.pixels() {
        for (value, histogram) in pixel.0.iter().zip(&mut histograms) {
            histogram[usize::from(*value)] += 1;
        }
    }
    histograms
}

/// Stretches each channel to 0 to 255.
pub fn auto_contrast(image: &RgbImage) -> RgbImage {
    let stretch = |histogram: [u32; 256]| {
        let used = |count: &u32| *count > 0;
        let lowest = histogram.iter().position(used).unwrap_or(0) as f64;
        let highest = histogram.iter().rposition(used).unwrap_or(0) as f64;
        if highest <= lowest {
            return table(|value| value);
        }
        let scale = 255.0 / (highest - lowest);
        let offset = -lowest * scale;
        table(|value| (f64::from(value) * scale + offset).clamp(0.0, 255.0) as u8)
    };
    look_up(image, histograms(image).map(stretch))
}

/// Makes the values of each channel about equally frequent.
pub fn equalize(image: &RgbImage) -> RgbImage {
    let equal = |histogram: [u32; 256]| {
        // The pixels of the highest value do not count.
        let highest = histogram.iter().rfind(|count| **count > 0).copied().unwrap_or(0);
        let step = (histogram.iter().sum::<u32>() - highest) / 255;
        if step == 0 {
            return table(|value| value);
        }
        let mut below = step / 2;
        let mut table = [0; 256];
        for (entry, count) in table.iter_mut().zip(histogram) {
            *entry = (below / step).min(255) as u8;
            below += count;
        }
        table
    };
    look_up(image, histograms(image).map(equal))
}

/// The negative.
pub fn invert(image: &RgbImage) -> RgbImage {
    look_up(image, [table(|value| 255 - value); 3])
}

/// Keeps the `bits` highest bits of each value, at most 8.
pub fn posterize(image: &RgbImage, bits: u32) -> RgbImage {
    let mask = !(u32::from(u8::MAX) >> bits) as u8;
    look_up(image, [table(|value| value & mask); 3])
}

/// Inverts the values from `threshold` on; 256 inverts none.
pub fn solarize(image: &RgbImage, threshold: u32) -> RgbImage {
    let solar = |value| if u32::from(value) < threshold { value } else { 255 - value };
    look_up(image, [table(solar); 3])
}

/// Adds `add` to the values below 128.
pub fn solarize_add(image: &RgbImage, add: u8) -> RgbImage {
    let solar = |value: u8| if value < 128 { value.saturating_add(add) } else { value };
    look_up(image, [table(solar); 3])
}

/// Brightness of a pixel by ITU-R 601-2, in integers as Pillow has it.
fn luma(pixel: &Rgb<u8>) -> u8 {
    let [red, green, blue] = pixel.0.map(u32::from);
    ((19595 * red + 38470 * green + 7471 * blue + 0x8000) >> 16) as u8
}

/// `from + factor * (to - from)`, cut to a whole number of 0 to 255: nothing of `to` at 0, all of it at 1, more above.
fn blend(from: u8, to: u8, factor: f32) -> u8 {
    let (from, to) = (f32::from(from), f32::from(to));
    (from + factor * (to - from)).clamp(0.0, 255.0) as u8
}

/// Colour, from grey at 0 over the picture itself at 1 to beyond.
pub fn saturation(image: &RgbImage, factor: f32) -> RgbImage {
    let mut image = image.clone();
    for pixel in image.pixels_mut() {
        let grey = luma(pixel);
        pixel.0 = pixel.0.map(|value| blend(grey, value, factor));
    }
    image
}

/// Contrast, from the mean brightness at 0 over the picture itself at 1 to beyond.
pub fn contrast(image: &RgbImage, factor: f32) -> RgbImage {
    let sum: u64 = image.pixels().map(|pixel| u64::from(luma(pixel))).sum();
    let pixels = u64::from(image.width()) * u64::from(image.height());
    let mean = (sum as f64 / pixels as f64 + 0.5) as u8;
    look_up(image, [table(|value| blend(mean, value, factor)); 3])
}

/// Brightness, from black at 0 over the picture itself at 1 to beyond.
pub fn brightness(image: &RgbImage, factor: f32) -> RgbImage {
    look_up(image, [table(|value| blend(0, value, factor)); 3])
}

/// Sharpness, from a smoothed picture at 0 over the picture itself at 1 to beyond. The outermost pixels stay.
pub fn sharpness(image: &RgbImage, factor: f32) -> RgbImage {
    let (width, height) = image.dimensions();
    let mut output = image.clone();
    for y in 1..height.saturating_sub(1) {
        for x in 1..width.saturating_sub(1) {
            let mut sum = image.get_pixel(x, y).0.map(|value| 4 * u32::from(value));
            for (dx, dy) in (0..9).map(|index| (index % 3, index / 3)) {
                let neighbour = image.get_pixel(x + dx - 1, y + dy - 1).0;
                for (sum, value) in sum.iter_mut().zip(neighbour) {
                    *sum += u32::from(value);
                }
            }
            for (value, sum) in output.get_pixel_mut(x, y).0.iter_mut().zip(sum) {
                // The weights add up to 13. Rounded; there is no half of a thirteenth.
                let smooth = ((2 * sum + 13) / 26) as u8;
                *value = blend(smooth, *value, factor);
            }
        }
    }
    output
}

#[cfg(test)]
mod tests {
    use super::super::pillow::{picture, planes};
    use super::*;

    /// One row of grey pixels.
    fn row(values: &[u8]) -> RgbImage {
        RgbImage::from_fn(values.len() as u32, 1, |x, _| Rgb([values[x as usize]; 3]))
    }

    fn values(image: &RgbImage) -> Vec<u8> {
        image.pixels().map(|pixel| pixel.0[0]).collect()
    }

    #[test]
    fn tables_by_hand() {
        let image = row(&[0, 63, 64, 127, 128, 200, 255]);
        assert_eq!(values(&invert(&image)), [255, 192, 191, 128, 127, 55, 0]);
        assert_eq!(values(&posterize(&image, 2)), [0, 0, 64, 64, 128, 192, 192]);
        assert_eq!(values(&posterize(&image, 0)), [0; 7]);
        assert_eq!(values(&posterize(&image, 8)), values(&image));
        assert_eq!(values(&solarize(&image, 128)), [0, 63, 64, 127, 127, 55, 0]);
        assert_eq!(solarize(&image, 256), image);
        assert_eq!(solarize(&image, 0), invert(&image));
        assert_eq!(values(&solarize_add(&image, 100)), [100, 163, 164, 227, 128, 200, 255]);
        assert_eq!(values(&solarize_add(&row(&[120]), 200)), [255]);
    }

    #[test]
    fn auto_contrast_by_hand() {
        // From 50..=110 to 0..=255: 255/60 = 4.25 a step.
        assert_eq!(values(&auto_contrast(&row(&[50, 60, 80, 110]))), [0, 42, 127, 255]);
        assert_eq!(values(&auto_contrast(&row(&[7, 7]))), [7, 7]);
        assert_eq!(
            planes(&auto_contrast(&picture()))[0],
            [
                [0, 59, 118, 177, 237],
                [4, 63, 123, 182, 241],
                [8, 68, 127, 186, 246],
                [13, 72, 131, 191, 250],
                [17, 77, 136, 195, 255]
            ]
        );
    }

    #[test]
    fn equalize_by_hand() {
        // 602 pixels of 10, 298 of 20, 100 of 30: a step is (1000 - 100) / 255 = 3, and the running count starts at 1.
        let image = RgbImage::from_fn(1000, 1, |x, _| {
            Rgb([if x < 602 {
                10
            } else if x < 900 {
                20
            } else {
                30
            }; 3])
        });
        let output = values(&equalize(&image));
        // 1 / 3 = 0, 603 / 3 = 201, 901 / 3 = 300, cut to 255.
        assert_eq!((output[0], output[602], output[900]), (0, 201, 255));
        // Too few pixels for a step, or one value only.
        assert_eq!(equalize(&picture()), picture());
        let plain = RgbImage::from_pixel(40, 40, Rgb([9, 9, 9]));
        assert_eq!(equalize(&plain), plain);
    }

    #[test]
    fn blends_by_hand() {
        // 100 + 0.25 * (200 - 100), 100 + 1.5 * (200 - 100), 100 + 2 * (0 - 100)
        assert_eq!((blend(100, 200, 0.25), blend(100, 200, 1.5), blend(100, 0, 2.0)), (125, 250, 0));
        assert_eq!(values(&brightness(&row(&[10, 101, 200]), 1.5)), [15, 151, 255]);
        assert_eq!(values(&brightness(&row(&[10, 101, 200]), 0.5)), [5, 50, 100]);
        // The mean is 100.5, rounded to 101.
        assert_eq!(values(&contrast(&row(&[50, 151]), 0.5)), [75, 126]);
        // (19595 * 255 + 0x8000) >> 16 = 76
        assert_eq!(saturation(&RgbImage::from_pixel(1, 1, Rgb([255, 0, 0])), 0.0).get_pixel(0, 0).0, [76; 3]);
        for enhanced in [saturation, contrast, brightness, sharpness] {
            assert_eq!(enhanced(&picture(), 1.0), picture());
        }
    }

    #[test]
    fn enhancements_are_those_of_pillow() {
        let middle = |image: RgbImage| planes(&image).map(|plane| plane[2]);
        assert_eq!(
            middle(saturation(&picture(), 0.19)),
            [[103, 113, 125, 139, 132], [138, 137, 139, 142, 124], [121, 125, 136, 153, 105]]
        );
        assert_eq!(
            middle(saturation(&picture(), 1.81)),
            [[0, 0, 46, 112, 199], [245, 212, 176, 139, 123], [78, 96, 151, 244, 0]]
        );
        assert_eq!(
            middle(contrast(&picture(), 0.19)),
            [[108, 116, 124, 131, 139], [144, 140, 137, 134, 131], [126, 128, 135, 145, 111]]
        );
        assert_eq!(
            middle(contrast(&picture(), 1.81)),
            [[0, 0, 47, 120, 192], [239, 209, 178, 147, 116], [73, 93, 152, 252, 0]]
        );
        assert_eq!(
            middle(brightness(&picture(), 1.81)),
            [[10, 83, 155, 228, 255], [255, 255, 255, 255, 224], [181, 200, 255, 255, 36]]
        );
        let blue = |factor| planes(&sharpness(&picture(), factor))[2];
        assert_eq!(
            blue(0.19),
            [
                [0, 11, 44, 99, 176],
                [50, 65, 98, 136, 226],
                [100, 115, 148, 171, 20],
                [150, 165, 181, 189, 70],
                [200, 211, 244, 43, 120]
            ]
        );
        assert_eq!(
            blue(1.81),
            [
                [0, 11, 44, 99, 176],
                [50, 56, 89, 161, 226],
                [100, 106, 139, 226, 20],
                [150, 156, 206, 255, 70],
                [200, 211, 244, 43, 120]
            ]
        );
    }

    #[test]
    fn tiny_pictures_have_no_inside_to_smooth() {
        for (width, height) in [(1, 1), (2, 2), (1, 5)] {
            let image = RgbImage::from_pixel(width, height, Rgb([1, 2, 3]));
            assert_eq!(sharpness(&image, 0.0), image);
        }
    }
}
