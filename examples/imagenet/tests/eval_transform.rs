//! The validation transform against Pillow's pixels, made by `pillow/generate.py`.

use fast_image_resize::Resizer;
use imagenet::data::augment::Transform;
use imagenet::data::decode::decode_rgb;
use imagenet::data::{Stream, stream};
use std::fs;
use std::path::Path;

/// Largest difference of a channel's value, of 255. Both programs round to whole numbers after each of two passes.
const PNG_TOLERANCE: u8 = 2;
/// The same where two JPEG decoders rounded before, whose ways to enlarge subsampled colours differ too.
const JPEG_TOLERANCE: u8 = 3;

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
        let tolerance = if picture.ends_with(".jpg") { JPEG_TOLERANCE } else { PNG_TOLERANCE };
        compared += 1;
        report += &format!("{name}: {difference} of 255, {tolerance} allowed\n");
        within &= difference <= tolerance;
    }
    println!("{report}");
    assert!(within, "{report}");
    assert_eq!(compared, 17);
}
