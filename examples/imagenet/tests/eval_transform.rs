//! Decoding and the validation transform against Pillow's pixels, made by `pillow/generate.py`.

use fast_image_resize::Resizer;
use imagenet::data::augment::Transform;
use imagenet::data::decode::decode_rgb;
use imagenet::data::{Stream, stream};
use std::fs;
use std::path::Path;

/// Largest difference of a channel's value, of 255. Both programs round to whole numbers after each of two passes.
const TOLERANCE: u8 = 1;

#[test]
fn decoded_jpeg_pixels_are_exactly_those_of_pillow() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/pillow");
    let mut compared = 0;
    for entry in fs::read_dir(&folder).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let Some(picture) = name.strip_suffix(".decoded.png") else { continue };
        let got = decode_rgb(&folder.join(picture)).unwrap();
        let expected = image::open(folder.join(&name)).unwrap().into_rgb8();
        assert_eq!(got.dimensions(), expected.dimensions(), "{picture}");
        let difference = got.iter().zip(expected.iter()).map(|(a, b)| a.abs_diff(*b)).max().unwrap();
        assert_eq!(difference, 0, "{picture}");
        compared += 1;
    }
    assert_eq!(compared, 9);
}

#[test]
fn pixels_are_those_of_pillow() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/pillow");
    let (mut compared, mut report, mut within) = (0, String::new(), true);
    for entry in fs::read_dir(&folder).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let Some((picture, side)) = name.strip_suffix(".expected.png").and_then(|name| name.rsplit_once('.'))
        else {
            continue;
        };
        let input_size: u32 = side.parse().unwrap();
        let image = decode_rgb(&folder.join(picture)).unwrap();
        let transform = Transform::Eval { input_size, crop_fraction: 0.875 };
        let got = transform.apply(&image, &mut stream(0, Stream::Augment, 0, 0), &mut Resizer::new());
        let expected = image::open(folder.join(&name)).unwrap().into_rgb8();
        assert_eq!(got.dimensions(), expected.dimensions(), "{name}");

        let difference = got.iter().zip(expected.iter()).map(|(a, b)| a.abs_diff(*b)).max().unwrap();
        compared += 1;
        report += &format!("{name}: {difference} of 255, {TOLERANCE} allowed\n");
        within &= difference <= TOLERANCE;
    }
    println!("{report}");
    assert!(within, "{report}");
    assert_eq!(compared, 17);
}
