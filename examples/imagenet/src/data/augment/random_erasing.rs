//! Random erasing (Zhong et al., 2017, [1708.04896](https://arxiv.org/abs/1708.04896)) as timm does it in mode `pixel`.

use rand::{Rng, RngExt};
use rand_distr::StandardNormal;

use super::CropBox;

/// Share of the area that is erased, smallest and largest.
const AREA: [f64; 2] = [0.02, 1.0 / 3.0];
/// Height over width of the rectangle, smallest and largest.
const RATIO: [f64; 2] = [0.3, 1.0 / 0.3];
/// Attempts to draw a rectangle that fits, after which nothing is erased.
const ATTEMPTS: usize = 10;

/// With probability `prob`, replaces one rectangle of a normalised picture by standard normal noise.
///
/// # Shapes
///
/// - pixels: `[3, height, width]`, flat
pub fn random_erasing(pixels: &mut [f32], width: u32, prob: f64, rng: &mut impl Rng) {
    let height = (pixels.len() / 3) as u32 / width;
    if rng.random_bool(prob)
        && let Some(area) = rectangle(width, height, rng)
    {
        erase(pixels, width, area, rng);
    }
}

/// Draws a rectangle: its area uniform, its log ratio uniform, its place uniform. It is smaller than the picture in both
/// directions.
fn rectangle(width: u32, height: u32, rng: &mut impl Rng) -> Option<CropBox> {
    for _ in 0..ATTEMPTS {
        let area = f64::from(width) * f64::from(height) * rng.random_range(AREA[0]..=AREA[1]);
        let ratio = rng.random_range(RATIO[0].ln()..=RATIO[1].ln()).exp();
        let (erased_width, erased_height) = sides(area, ratio);
        if erased_width < width && erased_height < height {
            let top = rng.random_range(0..=height - erased_height);
            let left = rng.random_range(0..=width - erased_width);
            return Some(CropBox { left, top, width: erased_width, height: erased_height });
        }
    }
    None
}

/// Width and height of a rectangle of `area` pixels whose height over width is `ratio`, rounded.
fn sides(area: f64, ratio: f64) -> (u32, u32) {
    ((area / ratio).sqrt().round_ties_even() as u32, (area * ratio).sqrt().round_ties_even() as u32)
}

/// Replaces a rectangle in all three channels.
fn erase(pixels: &mut [f32], width: u32, area: CropBox, rng: &mut impl Rng) {
    let plane = pixels.len() / 3;
    for channel in pixels.chunks_exact_mut(plane) {
        for row in area.top..area.top + area.height {
            let start = (row * width + area.left) as usize;
            for value in &mut channel[start..start + area.width as usize] {
                *value = rng.sample(StandardNormal);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{Stream, stream};

    #[test]
    fn sides_by_hand() {
        // 144 pixels: 12 x 12, 6 wide and 24 high, and sqrt(288) = 16.97, sqrt(72) = 8.49.
        assert_eq!((sides(144.0, 1.0), sides(144.0, 4.0), sides(144.0, 0.5)), ((12, 12), (6, 24), (17, 8)));
    }

    #[test]
    fn exactly_the_rectangle_becomes_noise() {
        let mut rng = stream(1, Stream::Augment, 0, 0);
        let mut pixels = vec![7.0_f32; 3 * 6 * 5];
        erase(&mut pixels, 5, CropBox { left: 1, top: 2, width: 3, height: 4 }, &mut rng);
        for (index, value) in pixels.iter().enumerate() {
            let (row, column) = (index / 5 % 6, index % 5);
            let inside = (2..6).contains(&row) && (1..4).contains(&column);
            assert_eq!(*value != 7.0, inside, "index {index}");
        }
        // Each value is drawn by itself.
        let mut noise: Vec<u32> = pixels.iter().filter(|v| **v != 7.0).map(|v| v.to_bits()).collect();
        noise.sort_unstable();
        noise.dedup();
        assert_eq!(noise.len(), 3 * 3 * 4);
    }

    #[test]
    fn noise_is_standard_normal() {
        let mut rng = stream(1, Stream::Augment, 0, 1);
        let mut pixels = vec![9.0_f32; 3 * 64 * 64];
        erase(&mut pixels, 64, CropBox { left: 0, top: 0, width: 64, height: 64 }, &mut rng);
        let count = pixels.len() as f64;
        let mean = pixels.iter().map(|v| f64::from(*v)).sum::<f64>() / count;
        let variance = pixels.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / count;
        assert!(mean.abs() < 0.05 && (variance - 1.0).abs() < 0.08, "{mean}, {variance}");
    }

    #[test]
    fn rectangles_lie_within_the_picture_and_the_ranges() {
        let (mut left, mut right) = (false, false);
        for index in 0..500 {
            let mut rng = stream(7, Stream::Augment, 0, index);
            let CropBox { left: x, top: y, width, height } = rectangle(60, 90, &mut rng).unwrap();
            assert!(x + width <= 60 && y + height <= 90 && width < 60 && height < 90);
            let share = f64::from(width * height) / 5400.0;
            let ratio = f64::from(height) / f64::from(width);
            assert!((0.018..=0.345).contains(&share) && (0.27..=3.7).contains(&ratio), "{share} {ratio}");
            left |= x == 0;
            right |= x + width == 60;
        }
        assert!(left && right, "the edges are reached");
        // One pixel cannot be erased: a rectangle is smaller than the picture.
        let mut pixel = [7.0; 3];
        random_erasing(&mut pixel, 1, 1.0, &mut stream(7, Stream::Augment, 0, 0));
        assert_eq!(pixel, [7.0; 3]);
    }

    #[test]
    fn the_probability_is_kept_and_draws_repeat() {
        let run = |index, prob| {
            let mut pixels = vec![7.0_f32; 3 * 9 * 9];
            random_erasing(&mut pixels, 9, prob, &mut stream(2, Stream::Augment, 0, index));
            pixels
        };
        let erased = |prob| (0..1000).filter(|index| run(*index, prob).iter().any(|v| *v != 7.0)).count();
        assert_eq!((erased(0.0), erased(1.0)), (0, 1000));
        // Six standard deviations around a quarter.
        assert!((167..=333).contains(&erased(0.25)), "{}", erased(0.25));
        assert_eq!(run(3, 1.0), run(3, 1.0));
        assert_ne!(run(3, 1.0), run(4, 1.0));
    }
}
