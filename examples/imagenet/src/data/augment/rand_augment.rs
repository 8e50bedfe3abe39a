//! RandAugment (Cubuk et al., 2019, [1909.13719](https://arxiv.org/abs/1909.13719)) with the operations and magnitudes of
//! timm's `rand-m9-mstd0.5-inc1`.

use image::{Rgb, RgbImage};
use rand::seq::IndexedRandom;
use rand::{Rng, RngExt};
use rand_distr::{Distribution, Normal};

use super::affine::{rotation, warp};
use super::{MEAN, color};

/// The magnitude at which the operations are strongest. Larger ones are cut to it.
pub const MAX_MAGNITUDE: f64 = 10.0;

/// How strongly pictures are changed at random.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RandAugment {
    /// Operations drawn for each picture, one after the other; the same may come twice.
    pub layers: usize,
    /// Mean of the normal distribution that an operation's magnitude is drawn from, 0 to [`MAX_MAGNITUDE`].
    pub magnitude: f64,
    /// Its standard deviation.
    pub std: f64,
    /// Probability that a drawn operation is applied.
    pub prob: f64,
}

impl RandAugment {
    /// Draws operations and applies them.
    pub fn apply(&self, mut image: RgbImage, rng: &mut impl Rng) -> RgbImage {
        for _ in 0..self.layers {
            if let Some(operation) = self.draw(rng) {
                image = operation.apply(&image);
            }
        }
        image
    }

    /// Draws one operation; `None` if it is not to be applied.
    fn draw(&self, rng: &mut impl Rng) -> Option<Operation> {
        let kind = Kind::ALL.choose(rng).expect("there are fifteen");
        if !rng.random_bool(self.prob) {
            return None;
        }
        let normal = Normal::new(self.magnitude, self.std).expect("the configuration was checked");
        let magnitude = normal.sample(rng).clamp(0.0, MAX_MAGNITUDE);
        Some(kind.at(magnitude, rng.random_bool(0.5)))
    }
}

/// The operations by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    AutoContrast,
    Equalize,
    Invert,
    Rotate,
    Posterize,
    Solarize,
    SolarizeAdd,
    Color,
    Contrast,
    Brightness,
    Sharpness,
    ShearX,
    ShearY,
    TranslateX,
    TranslateY,
}

impl Kind {
    const ALL: [Self; 15] = [
        Self::AutoContrast,
        Self::Equalize,
        Self::Invert,
        Self::Rotate,
        Self::Posterize,
        Self::Solarize,
        Self::SolarizeAdd,
        Self::Color,
        Self::Contrast,
        Self::Brightness,
        Self::Sharpness,
        Self::ShearX,
        Self::ShearY,
        Self::TranslateX,
        Self::TranslateY,
    ];

    /// The operation at a magnitude of 0 to [`MAX_MAGNITUDE`]: the larger, the further from the picture as it is (timm's
    /// "increasing" rules). `negative` chooses between left and right, darker and brighter, and so on.
    fn at(self, magnitude: f64, negative: bool) -> Operation {
        let level = magnitude / MAX_MAGNITUDE;
        let signed = |largest: f64| if negative { -level * largest } else { level * largest };
        let factor = || (1.0 + signed(0.9)).max(0.1) as f32;
        match self {
            Self::AutoContrast => Operation::AutoContrast,
            Self::Equalize => Operation::Equalize,
            Self::Invert => Operation::Invert,
            Self::Rotate => Operation::Rotate { degrees: signed(30.0) },
            Self::Posterize => Operation::Posterize { bits: 4 - (level * 4.0) as u32 },
            Self::Solarize => Operation::Solarize { threshold: 256 - (level * 256.0) as u32 },
            Self::SolarizeAdd => Operation::SolarizeAdd { add: (level * 110.0) as u8 },
            Self::Color => Operation::Color { factor: factor() },
            Self::Contrast => Operation::Contrast { factor: factor() },
            Self::Brightness => Operation::Brightness { factor: factor() },
            Self::Sharpness => Operation::Sharpness { factor: factor() },
            Self::ShearX => Operation::ShearX { factor: signed(0.3) },
            Self::ShearY => Operation::ShearY { factor: signed(0.3) },
            Self::TranslateX => Operation::TranslateX { share: signed(0.45) },
            Self::TranslateY => Operation::TranslateY { share: signed(0.45) },
        }
    }
}

/// An operation with its strength.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Operation {
    AutoContrast,
    Equalize,
    Invert,
    /// Counter-clockwise.
    Rotate {
        degrees: f64,
    },
    /// Highest bits that are kept.
    Posterize {
        bits: u32,
    },
    /// Values from this one on are inverted.
    Solarize {
        threshold: u32,
    },
    /// Added to the values below 128.
    SolarizeAdd {
        add: u8,
    },
    /// 1 leaves the picture as it is, here and in the next three.
    Color {
        factor: f32,
    },
    Contrast {
        factor: f32,
    },
    Brightness {
        factor: f32,
    },
    Sharpness {
        factor: f32,
    },
    /// Columns to the left that a row moves for each row above it.
    ShearX {
        factor: f64,
    },
    /// Rows upwards that a column moves for each column before it.
    ShearY {
        factor: f64,
    },
    /// To the left, as a share of the width.
    TranslateX {
        share: f64,
    },
    /// Upwards, as a share of the height.
    TranslateY {
        share: f64,
    },
}

impl Operation {
    fn apply(self, image: &RgbImage) -> RgbImage {
        let (width, height) = image.dimensions();
        // What the model takes for nothing: the mean of each channel.
        let fill = Rgb(MEAN.map(|mean| (255.0 * mean).round() as u8));
        let affine = |map| warp(image, map, fill);
        match self {
            Self::AutoContrast => color::auto_contrast(image),
            Self::Equalize => color::equalize(image),
            Self::Invert => color::invert(image),
            Self::Rotate { degrees } => affine(rotation(degrees, width, height)),
            Self::Posterize { bits } => color::posterize(image, bits),
            Self::Solarize { threshold } => color::solarize(image, threshold),
            Self::SolarizeAdd { add } => color::solarize_add(image, add),
            Self::Color { factor } => color::saturation(image, factor),
            Self::Contrast { factor } => color::contrast(image, factor),
            Self::Brightness { factor } => color::brightness(image, factor),
            Self::Sharpness { factor } => color::sharpness(image, factor),
            Self::ShearX { factor } => affine([1.0, factor, 0.0, 0.0, 1.0, 0.0]),
            Self::ShearY { factor } => affine([1.0, 0.0, 0.0, factor, 1.0, 0.0]),
            Self::TranslateX { share } => affine([1.0, 0.0, share * f64::from(width), 0.0, 1.0, 0.0]),
            Self::TranslateY { share } => affine([1.0, 0.0, 0.0, 0.0, 1.0, share * f64::from(height)]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::pillow::{FILL, picture, planes};
    use super::*;
    use crate::data::{Stream, stream};

    #[test]
    fn strengths_at_magnitude_nine_by_hand() {
        let at = |kind: Kind, negative| kind.at(9.0, negative);
        assert_eq!(at(Kind::Rotate, false), Operation::Rotate { degrees: 27.0 });
        assert_eq!(at(Kind::Rotate, true), Operation::Rotate { degrees: -27.0 });
        // 0.9 * 4 = 3.6, 0.9 * 256 = 230.4, 0.9 * 110 = 99
        assert_eq!(at(Kind::Posterize, false), Operation::Posterize { bits: 1 });
        assert_eq!(at(Kind::Solarize, false), Operation::Solarize { threshold: 26 });
        assert_eq!(at(Kind::SolarizeAdd, true), Operation::SolarizeAdd { add: 99 });
        // 1 + 0.81 and 1 - 0.81
        assert_eq!(at(Kind::Color, false), Operation::Color { factor: 1.81 });
        assert_eq!(at(Kind::Contrast, true), Operation::Contrast { factor: 0.19 });
        assert_eq!(at(Kind::Brightness, false), Operation::Brightness { factor: 1.81 });
        assert_eq!(at(Kind::Sharpness, true), Operation::Sharpness { factor: 0.19 });
        assert_eq!(at(Kind::ShearX, false), Operation::ShearX { factor: 0.9 * 0.3 });
        assert_eq!(at(Kind::ShearY, true), Operation::ShearY { factor: -0.9 * 0.3 });
        assert_eq!(at(Kind::TranslateX, true), Operation::TranslateX { share: -0.9 * 0.45 });
        assert_eq!(at(Kind::TranslateY, false), Operation::TranslateY { share: 0.9 * 0.45 });
    }

    #[test]
    fn strengths_grow_from_nothing_to_the_end_of_the_range() {
        for (kind, none, most) in [
            (Kind::Posterize, Operation::Posterize { bits: 4 }, Operation::Posterize { bits: 0 }),
            (Kind::Solarize, Operation::Solarize { threshold: 256 }, Operation::Solarize { threshold: 0 }),
            (Kind::SolarizeAdd, Operation::SolarizeAdd { add: 0 }, Operation::SolarizeAdd { add: 110 }),
            (Kind::Color, Operation::Color { factor: 1.0 }, Operation::Color { factor: 1.9 }),
            (Kind::Rotate, Operation::Rotate { degrees: 0.0 }, Operation::Rotate { degrees: 30.0 }),
        ] {
            assert_eq!((kind.at(0.0, false), kind.at(10.0, false)), (none, most));
        }
        assert_eq!(Kind::Brightness.at(10.0, true), Operation::Brightness { factor: 0.1 });
    }

    #[test]
    fn moves_have_timms_directions() {
        // 0.2 of 5 pixels: each pixel comes from one column to the right, or one row below.
        let left = RgbImage::from_fn(5, 5, |x, y| if x < 4 { *picture().get_pixel(x + 1, y) } else { FILL });
        assert_eq!(Operation::TranslateX { share: 0.2 }.apply(&picture()), left);
        let up = RgbImage::from_fn(5, 5, |x, y| if y < 4 { *picture().get_pixel(x, y + 1) } else { FILL });
        assert_eq!(Operation::TranslateY { share: 0.2 }.apply(&picture()), up);
        // 0.45 of 5 is 2.25 pixels. These and the next are Pillow's.
        let quarter = planes(&Operation::TranslateX { share: 0.45 }.apply(&picture()));
        assert_eq!(quarter[0][0], [93, 135, 165, 124, 124]);
        let sheared = planes(&Operation::ShearX { factor: 0.3 }.apply(&picture()));
        assert_eq!(sheared[1][4], [109, 92, 74, 63, 116]);
        let sheared = planes(&Operation::ShearY { factor: -0.2 }.apply(&picture()));
        assert_eq!(sheared[1][1], [226, 216, 205, 192, 179]);
        let turned = planes(&Operation::Rotate { degrees: -27.0 }.apply(&picture()));
        assert_eq!(turned[0][1], [0, 24, 64, 100, 139]);
    }

    #[test]
    fn color_operations_reach_the_picture() {
        for operation in [
            Operation::AutoContrast,
            Operation::Invert,
            Operation::Posterize { bits: 2 },
            Operation::Solarize { threshold: 100 },
            Operation::SolarizeAdd { add: 9 },
            Operation::Color { factor: 0.5 },
            Operation::Contrast { factor: 0.5 },
            Operation::Brightness { factor: 0.5 },
            Operation::Sharpness { factor: 0.5 },
        ] {
            assert_ne!(operation.apply(&picture()), picture(), "{operation:?}");
        }
        assert_eq!(
            planes(&Operation::Solarize { threshold: 100 }.apply(&picture()))[1][3],
            [92, 109, 126, 143, 95]
        );
        assert_eq!(planes(&Operation::Posterize { bits: 2 }.apply(&picture()))[0][3], [0, 0, 64, 128, 128]);
    }

    #[test]
    fn draws_repeat_and_cover_everything() {
        let augment = RandAugment { layers: 2, magnitude: 9.0, std: 0.5, prob: 0.5 };
        let draw = |index| augment.draw(&mut stream(3, Stream::Augment, 1, index));
        let drawn: Vec<_> = (0..3000).map(draw).collect();
        assert_eq!(drawn, (0..3000).map(draw).collect::<Vec<_>>());
        let applied: Vec<_> = drawn.iter().flatten().collect();
        // Six standard deviations of a binomial around half.
        assert!((1336..=1664).contains(&applied.len()), "{}", applied.len());
        for kind in Kind::ALL {
            let of_kind = |operation: &&&Operation| {
                std::mem::discriminant(**operation) == std::mem::discriminant(&kind.at(9.0, false))
            };
            // 100 are expected of each.
            let count = applied.iter().filter(of_kind).count();
            assert!((45..=160).contains(&count), "{kind:?}: {count}");
        }
        let degrees: Vec<f64> = applied
            .iter()
            .filter_map(|operation| match operation {
                Operation::Rotate { degrees } => Some(*degrees),
                _ => None,
            })
            .collect();
        assert!(degrees.iter().any(|angle| *angle > 0.0) && degrees.iter().any(|angle| *angle < 0.0));
        // Magnitude 9 +- 0.5 is 27 +- 1.5 degrees, and 10 is the most.
        assert!(degrees.iter().all(|angle| (18.0..=30.0).contains(&angle.abs())), "{degrees:?}");
        assert!(degrees.iter().any(|angle| (angle.abs() - 27.0).abs() > 0.5));
    }

    #[test]
    fn layers_and_probability_are_kept() {
        let rng = || stream(3, Stream::Augment, 1, 2);
        let augment = |layers, prob| RandAugment { layers, magnitude: 9.0, std: 0.5, prob };
        assert_eq!(augment(2, 0.0).apply(picture(), &mut rng()), picture());
        assert_eq!(augment(0, 1.0).apply(picture(), &mut rng()), picture());
        // Two layers are one after the other, from one stream.
        let mut stream = rng();
        let twice = augment(1, 1.0).apply(picture(), &mut stream);
        let twice = augment(1, 1.0).apply(twice, &mut stream);
        assert_eq!(augment(2, 1.0).apply(picture(), &mut rng()), twice);
    }
}
