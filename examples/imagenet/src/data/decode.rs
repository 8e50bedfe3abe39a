//! One image file as 8-bit RGB.

use image::{DynamicImage, ImageError, ImageReader, RgbImage};
use std::io;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};

/// Why a file gives no image.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// The file cannot be opened or read.
    #[error("{}: {source}", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The content is not a JPEG or PNG image, or a damaged one.
    #[error("{}: {source}", path.display())]
    Decode {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: ImageError,
    },
    /// The decoder itself failed on this content.
    #[error("{}: the decoder failed on this file", path.display())]
    Panicked {
        /// The file.
        path: PathBuf,
    },
}

/// Decodes a JPEG or PNG file, whatever its extension says, to 8-bit RGB.
///
/// Grey images are repeated over the three channels, 16-bit values are scaled to 8 bits, an alpha channel is dropped as
/// Pillow's `convert("RGB")` does.
///
/// # Errors
///
/// A [`DecodeError`] that names the file. Images that would need more than 512 MiB to decode are refused.
pub fn decode_rgb(path: &Path) -> Result<RgbImage, DecodeError> {
    let open_error = |source| DecodeError::Open { path: path.to_path_buf(), source };
    let reader = ImageReader::open(path).map_err(open_error)?.with_guessed_format().map_err(open_error)?;
    // A decoder that panics on damaged input must cost one image and not the run.
    let decoded = catch_unwind(move || reader.decode().map(DynamicImage::into_rgb8));
    decoded
        .map_err(|_| DecodeError::Panicked { path: path.to_path_buf() })?
        .map_err(|source| DecodeError::Decode { path: path.to_path_buf(), source })
}

/// Counts images that cannot be read and reports the first few.
#[derive(Debug, Default)]
pub struct Failures {
    /// How many there were.
    pub count: usize,
    /// The first of them.
    pub first: Option<DecodeError>,
}

impl Failures {
    /// Failures that are reported one by one.
    const REPORTED: usize = 5;

    /// Takes in the failures of a batch.
    pub fn add(&mut self, failures: Vec<DecodeError>) {
        for failure in failures {
            self.count += 1;
            match self.count {
                1..Self::REPORTED => log::warn!("left out: {failure}"),
                Self::REPORTED => log::warn!("left out: {failure} (more will only be counted)"),
                _ => {}
            }
            self.first.get_or_insert(failure);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use image::{ColorType, GrayImage, ImageBuffer, Luma, Rgb, Rgba};
    use std::fs;

    fn round_trip<I>(name: &str, save: impl Fn(&Path) -> I) -> [u8; 3] {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join(name);
        save(&path);
        decode_rgb(&path).unwrap().get_pixel(0, 0).0
    }

    #[test]
    fn every_pixel_type_becomes_rgb8() {
        let grey = GrayImage::from_pixel(2, 2, Luma([7]));
        assert_eq!(round_trip("grey.png", |p| grey.save(p).unwrap()), [7, 7, 7]);
        let grey16: ImageBuffer<Luma<u16>, Vec<u16>> = ImageBuffer::from_pixel(2, 2, Luma([257 * 9]));
        assert_eq!(round_trip("grey16.png", |p| grey16.save(p).unwrap()), [9, 9, 9]);
        let rgb16: ImageBuffer<Rgb<u16>, Vec<u16>> =
            ImageBuffer::from_pixel(2, 2, Rgb([257, 257 * 2, 257 * 3]));
        assert_eq!(round_trip("rgb16.png", |p| rgb16.save(p).unwrap()), [1, 2, 3]);
        let rgba: ImageBuffer<Rgba<u8>, Vec<u8>> = ImageBuffer::from_pixel(2, 2, Rgba([1, 2, 3, 0]));
        assert_eq!(round_trip("rgba.png", |p| rgba.save(p).unwrap()), [1, 2, 3]);
        let jpeg = GrayImage::from_pixel(8, 8, Luma([128]));
        assert_eq!(round_trip("grey.jpg", |p| jpeg.save(p).unwrap()), [128, 128, 128]);
    }

    #[test]
    fn the_content_decides_and_not_the_extension() {
        let png = RgbImage::from_pixel(2, 2, Rgb([4, 5, 6]));
        let pixel = round_trip("png_in_disguise.jpg", |p| {
            png.save_with_format(p, image::ImageFormat::Png).unwrap();
        });
        assert_eq!(pixel, [4, 5, 6]);
    }

    #[test]
    fn broken_files_are_named() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("broken.png");
        let error = |bytes: &[u8]| {
            fs::write(&path, bytes).unwrap();
            decode_rgb(&path).unwrap_err().to_string()
        };
        let mut png = Vec::new();
        let image = RgbImage::from_fn(32, 32, |x, y| Rgb([x as u8, y as u8, (x * y) as u8]));
        let encoder = image::codecs::png::PngEncoder::new(&mut png);
        image::ImageEncoder::write_image(encoder, &image, 32, 32, ColorType::Rgb8.into()).unwrap();

        assert!(error(b"").contains("broken.png"));
        assert!(error(b"this is a text").contains("broken.png"));
        assert!(error(&png[..png.len() / 2]).contains("broken.png"));
        let missing = decode_rgb(&root.path().join("absent.png")).unwrap_err();
        assert!(matches!(missing, DecodeError::Open { .. }) && missing.to_string().contains("absent.png"));
    }
}
