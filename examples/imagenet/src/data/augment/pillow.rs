//! For tests: a picture of 5 x 5 pixels, all of whose 75 values differ in neighbourhood. What the tests expect of it is what
//! Pillow 13.0 makes of the same picture.

use image::{Rgb, RgbImage};

/// ImageNet's mean colour.
pub const FILL: Rgb<u8> = Rgb([124, 116, 104]);

pub fn picture() -> RgbImage {
    RgbImage::from_fn(5, 5, |x, y| {
        Rgb([(40 * x + 3 * y) as u8, (250 - 17 * x - 29 * y) as u8, ((11 * x * x + 50 * y) % 256) as u8])
    })
}

/// `[channel][row][column]`
pub fn planes(image: &RgbImage) -> [[[u8; 5]; 5]; 3] {
    let value = |channel, row: usize, column: usize| image.get_pixel(column as u32, row as u32).0[channel];
    [0, 1, 2]
        .map(|channel| [0, 1, 2, 3, 4].map(|row| [0, 1, 2, 3, 4].map(|column| value(channel, row, column))))
}
