//! Affine maps of a picture: bicubic, with a fill colour where there is no picture.

use image::{Rgb, RgbImage};

/// Where each pixel of the result comes from: `(x, y)` from `(m[0] x + m[1] y + m[2], m[3] x + m[4] y + m[5])`, in
/// coordinates in which the centre of the first pixel is `(0.5, 0.5)`.
pub type Affine = [f64; 6];

/// Counter-clockwise by `degrees` around the centre of a picture of `width` x `height`.
pub fn rotation(degrees: f64, width: u32, height: u32) -> Affine {
    let (sin, cos) = degrees.to_radians().sin_cos();
    let (x, y) = (f64::from(width) / 2.0, f64::from(height) / 2.0);
    [cos, -sin, x - cos * x + sin * y, sin, cos, y - sin * x - cos * y]
}

/// Red, green, blue and nothing: four, so that a pixel fills vector registers.
type Pixel = [f64; 4];

/// Applies `map` with Pillow's bicubic filter (a = -1, edges repeated, results cut to whole numbers). Pixels that come from
/// outside of the picture are `fill`.
pub fn warp(image: &RgbImage, map: Affine, fill: Rgb<u8>) -> RgbImage {
    let (width, height) = image.dimensions();
    let pixels: Vec<Pixel> = image.pixels().map(|Rgb([r, g, b])| [*r, *g, *b, 0].map(f64::from)).collect();
    let mut output = RgbImage::from_pixel(width, height, fill);
    for (column, row, pixel) in output.enumerate_pixels_mut() {
        let (x, y) = (f64::from(column) + 0.5, f64::from(row) + 0.5);
        let from_x = map[0] * x + map[1] * y + map[2];
        let from_y = map[3] * x + map[4] * y + map[5];
        let inside =
            0.0 <= from_x && from_x < f64::from(width) && 0.0 <= from_y && from_y < f64::from(height);
        if inside {
            let (columns, along_x) = taps(from_x - 0.5, width as usize);
            let (rows, along_y) = taps(from_y - 0.5, height as usize);
            let rows = rows.map(|row| {
                let row = &pixels[row * width as usize..][..width as usize];
                cubic(columns.map(|column| row[column]), along_x)
            });
            let [red, green, blue, _] = cubic(rows, along_y);
            // As Pillow does, the value is cut and not rounded.
            *pixel = Rgb([red, green, blue].map(|value| value.clamp(0.0, 255.0) as u8));
        }
    }
    output
}

/// The four positions around `position`, where the centre of the first pixel is 0, on the edge where there is nothing further
/// out, and how far it lies from the second to the third.
fn taps(position: f64, length: usize) -> ([usize; 4], f64) {
    // Rounded down: it is never below -0.5.
    let next = (position + 1.0) as usize;
    let taps = [next.saturating_sub(2), next.saturating_sub(1), next, next + 1];
    (taps.map(|tap| tap.min(length - 1)), position + 1.0 - next as f64)
}

/// The cubic through `b` and `c`, at `t` between them, whose slopes there are the differences of the values on either side.
fn cubic([a, b, c, d]: [Pixel; 4], t: f64) -> Pixel {
    std::array::from_fn(|i| {
        b[i] + t
            * ((c[i] - a[i]) + t * ((2.0 * (a[i] - b[i]) + c[i] - d[i]) + t * (b[i] - a[i] + d[i] - c[i])))
    })
}

#[cfg(test)]
mod tests {
    use super::super::pillow::{FILL, picture, planes};
    use super::*;

    fn warped(map: Affine) -> [[[u8; 5]; 5]; 3] {
        planes(&warp(&picture(), map, FILL))
    }

    #[test]
    fn whole_pixels_move_without_change() {
        assert_eq!(warp(&picture(), [1.0, 0.0, 0.0, 0.0, 1.0, 0.0], FILL), picture());
        // Every pixel from two columns to the right and one row down.
        let moved =
            RgbImage::from_fn(
                5,
                5,
                |x, y| {
                    if x < 3 && y < 4 { *picture().get_pixel(x + 2, y + 1) } else { FILL }
                },
            );
        assert_eq!(warp(&picture(), [1.0, 0.0, 2.0, 0.0, 1.0, 1.0], FILL), moved);
    }

    #[test]
    fn a_quarter_turn_goes_counter_clockwise() {
        let turned = RgbImage::from_fn(5, 5, |x, y| *picture().get_pixel(4 - y, x));
        // The sine of 90 degrees is exact, its cosine is not quite 0.
        assert_eq!(warp(&picture(), rotation(90.0, 5, 5).map(|m| (m * 1e9).round() / 1e9), FILL), turned);
    }

    #[test]
    fn halfway_between_pixels_by_hand() {
        // (0, 40, 80, 160) halfway: 40 + (80 - 0)/2 + (2 (0 - 40) + 80 - 160)/4 + (40 - 0 + 160 - 80)/8 = 55.
        let cubic = |values: [f64; 4], t| cubic(values.map(|value| [value; 4]), t);
        assert_eq!(cubic([0.0, 40.0, 80.0, 160.0], 0.5), [55.0; 4]);
        assert_eq!(
            (cubic([9.0, 1.0, 2.0, 7.0], 0.0), cubic([9.0, 1.0, 2.0, 7.0], 1.0)),
            ([1.0; 4], [2.0; 4])
        );
        // 2 + 2 t - 3 t^2 + 2 t^3: with a = -1 not even a line stays one.
        assert_eq!(cubic([1.0, 2.0, 3.0, 4.0], 0.25), [2.0 + 0.5 - 0.1875 + 0.03125; 4]);
    }

    #[test]
    fn shears_are_those_of_pillow() {
        assert_eq!(
            warped([1.0, 0.3, 0.0, 0.0, 1.0, 0.0])[0],
            [
                [5, 49, 89, 130, 164],
                [16, 61, 101, 146, 168],
                [30, 72, 112, 157, 124],
                [52, 92, 132, 170, 124],
                [68, 108, 151, 177, 124]
            ]
        );
        assert_eq!(
            warped([1.0, 0.0, 0.0, -0.2, 1.0, 0.0])[2],
            [
                [0, 3, 37, 104, 104],
                [40, 38, 62, 110, 182],
                [91, 91, 119, 168, 209],
                [141, 141, 169, 234, 7],
                [195, 199, 225, 194, 79]
            ]
        );
    }

    #[test]
    fn rotations_are_those_of_pillow() {
        assert_eq!(
            warped(rotation(30.0, 5, 5)),
            [
                [
                    [124, 88, 120, 157, 124],
                    [25, 64, 103, 145, 172],
                    [11, 53, 86, 118, 160],
                    [0, 26, 68, 107, 146],
                    [124, 14, 51, 83, 124]
                ],
                [
                    [116, 216, 192, 165, 116],
                    [235, 209, 172, 144, 115],
                    [217, 185, 158, 130, 98],
                    [200, 171, 143, 106, 80],
                    [116, 150, 123, 99, 116]
                ],
                [
                    [104, 46, 109, 228, 104],
                    [9, 49, 131, 154, 0],
                    [51, 90, 144, 255, 120],
                    [87, 123, 157, 217, 58],
                    [104, 169, 200, 255, 104]
                ]
            ]
        );
        assert_eq!(
            warped(rotation(-27.0, 5, 5))[1],
            [
                [116, 231, 225, 220, 116],
                [193, 196, 189, 193, 186],
                [164, 158, 158, 157, 151],
                [129, 122, 126, 119, 122],
                [116, 95, 90, 84, 116]
            ]
        );
    }
}
