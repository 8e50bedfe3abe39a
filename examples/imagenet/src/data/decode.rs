//! One image file as 8-bit RGB.

use image::{DynamicImage, ImageError, ImageReader, RgbImage};
use libjpeg_turbo_rs::{DecodeLimits, Decoder, Image, JpegError, PixelFormat};
use std::fs::{self, FileType};
use std::io::{self, Cursor};
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};

use crate::count::count;

/// How a JPEG file begins: the start-of-image marker and the first byte of the next one.
const JPEG_START: [u8; 3] = [0xFF, 0xD8, 0xFF];

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
    /// A symbolic link to nothing.
    #[error("{}: a symbolic link to {}, which is not there", path.display(), target.display())]
    BrokenLink {
        /// The link.
        path: PathBuf,
        /// Where it points.
        target: PathBuf,
    },
    /// A pipe or a device, which may never end or never begin, or a folder.
    #[error("{}: a {kind}, not a regular file", path.display())]
    NotAFile {
        /// The file.
        path: PathBuf,
        /// What it is, in words.
        kind: &'static str,
    },
    /// The content is not a JPEG or PNG image, or a damaged PNG.
    #[error("{}: {source}", path.display())]
    Decode {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: ImageError,
    },
    /// A damaged JPEG image, or one of a kind that is not decoded.
    #[error("{}: {source}", path.display())]
    Jpeg {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: JpegError,
    },
    /// A JPEG file without its end: the decoder would make up the rest of the picture.
    #[error("{}: truncated: a JPEG image that does not end within its {}", path.display(), count(*.bytes, "byte", "bytes"))]
    Truncated {
        /// The file.
        path: PathBuf,
        /// The file's size.
        bytes: usize,
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
/// Grey images are repeated over the three channels, 16-bit values are scaled to 8 bits, an alpha channel is dropped and CMYK becomes
/// RGB as Pillow's `convert("RGB")` does it. The pixels of a JPEG are exactly Pillow's. As with Pillow, an orientation in the EXIF
/// data is not applied.
///
/// # Errors
///
/// A [`DecodeError`] that names the file. Only regular files, and links to them, are opened. A truncated file is an error, as it
/// is to Pillow, though only a byte may be missing. Images that would need more than 512 MiB to decode are refused.
pub fn decode_rgb(path: &Path) -> Result<RgbImage, DecodeError> {
    let open_error = |source| DecodeError::Open { path: path.to_path_buf(), source };
    // To open a named pipe would be to wait for a writer, and a device may have no end.
    let file_type = match fs::metadata(path) {
        Ok(metadata) => metadata.file_type(),
        Err(error) => {
            return Err(match fs::read_link(path) {
                Ok(target) if error.kind() == io::ErrorKind::NotFound => {
                    DecodeError::BrokenLink { path: path.to_path_buf(), target }
                }
                _ => open_error(error),
            });
        }
    };
    if !file_type.is_file() {
        return Err(DecodeError::NotAFile { path: path.to_path_buf(), kind: kind(file_type) });
    }
    let bytes = fs::read(path).map_err(open_error)?;
    // A decoder that panics on damaged input must cost one image and not the run.
    let panicked = |_| DecodeError::Panicked { path: path.to_path_buf() };
    if bytes.starts_with(&JPEG_START) {
        if is_truncated_jpeg(&bytes) {
            return Err(DecodeError::Truncated { path: path.to_path_buf(), bytes: bytes.len() });
        }
        return catch_unwind(|| decode_jpeg(&bytes))
            .map_err(panicked)?
            .map_err(|source| DecodeError::Jpeg { path: path.to_path_buf(), source });
    }
    let reader = ImageReader::new(Cursor::new(bytes)).with_guessed_format().map_err(open_error)?;
    catch_unwind(move || reader.decode().map(DynamicImage::into_rgb8))
        .map_err(panicked)?
        .map_err(|source| DecodeError::Decode { path: path.to_path_buf(), source })
}

/// Decodes a JPEG image in the arithmetic of libjpeg-turbo, which Pillow and torchvision use.
///
/// Damaged pixel data is an error, where Pillow warns and makes up the rest.
///
/// The image crate's decoder differs by 1 of 255 after the inverse cosine transform, and by much more where it enlarges subsampled
/// colours, above all at the right edge of a picture of odd width.
fn decode_jpeg(bytes: &[u8]) -> Result<RgbImage, JpegError> {
    // What the image crate allows a PNG.
    const MOST_MEMORY: u64 = 512 << 20;

    let limits = DecodeLimits { max_memory: Some(MOST_MEMORY), ..DecodeLimits::default() };
    let mut decoder = Decoder::new_with_limits(bytes, limits)?;
    decoder.set_output_format(PixelFormat::Rgb);
    let Image { width, height, data, .. } = decoder.decode_image()?;
    Ok(RgbImage::from_raw(width as u32, height as u32, data).expect("three bytes a pixel"))
}

/// What a file is that is not a regular one.
fn kind(file_type: FileType) -> &'static str {
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt;
        if file_type.is_fifo() {
            return "named pipe";
        }
        if file_type.is_socket() {
            return "socket";
        }
        if file_type.is_block_device() || file_type.is_char_device() {
            return "device";
        }
    }
    if file_type.is_dir() { "folder" } else { "special file" }
}

/// Whether `bytes` begin as a JPEG file and end before its end-of-image marker.
///
/// Decoders take a missing end for granted once they have all pixels, and of a progressive file they have them after its first scan.
fn is_truncated_jpeg(bytes: &[u8]) -> bool {
    const STUFFED_ZERO: u8 = 0x00;
    const TEM: u8 = 0x01;
    const RESTARTS: std::ops::RangeInclusive<u8> = 0xD0..=0xD7;
    const END_OF_IMAGE: u8 = 0xD9;
    const FILL: u8 = 0xFF;

    if !bytes.starts_with(&JPEG_START) {
        return false;
    }
    let mut rest = &bytes[2..];
    loop {
        // Entropy-coded data, or garbage between two segments.
        let Some(marker) = rest.iter().position(|byte| *byte == FILL) else { return true };
        rest = &rest[marker + 1..];
        match rest.split_first() {
            None => return true,
            Some((&END_OF_IMAGE, _)) => return false,
            // The next byte may be the marker's.
            Some((&FILL, _)) => {}
            Some((&(STUFFED_ZERO | TEM), after)) => rest = after,
            Some((code, after)) if RESTARTS.contains(code) => rest = after,
            Some((_, segment)) => {
                // A segment begins with its length, which includes the two bytes of the length itself.
                let Some(&[high, low]) = segment.first_chunk() else { return true };
                let length = usize::from(u16::from_be_bytes([high, low])).max(2);
                let Some(after) = segment.get(length..) else { return true };
                rest = after;
            }
        }
    }
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
    fn a_jpeg_that_would_not_fit_memory_is_refused_by_its_header() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("huge.jpg");
        let mut bytes =
            fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/pillow/baseline.jpg")).unwrap();
        // Height and width follow marker, length and precision of the frame header.
        let frame = bytes.windows(2).position(|marker| marker == [0xFF, 0xC0]).unwrap();
        bytes[frame + 5..frame + 9].copy_from_slice(&[0x7F, 0xFF, 0x7F, 0xFF]);
        fs::write(&path, bytes).unwrap();
        let error = decode_rgb(&path).unwrap_err();
        assert!(matches!(error, DecodeError::Jpeg { .. }), "{error}");
        assert!(error.to_string().contains("huge.jpg") && error.to_string().contains("limit"), "{error}");
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

    #[cfg(unix)]
    #[test]
    fn only_regular_files_and_links_to_them_are_opened() {
        use std::os::unix::fs::symlink;
        use std::os::unix::net::UnixListener;
        use std::process::Command;
        use std::sync::mpsc::channel;
        use std::time::Duration;

        let root = tempfile::tempdir().unwrap();
        let path = |name: &str| root.path().join(name);
        RgbImage::from_pixel(2, 2, Rgb([4, 5, 6])).save(path("picture.png")).unwrap();
        symlink("picture.png", path("link.png")).unwrap();
        symlink("gone/picture.png", path("broken.png")).unwrap();
        symlink("/dev/zero", path("device.png")).unwrap();
        fs::create_dir(path("folder.png")).unwrap();
        let _socket = UnixListener::bind(path("socket.png")).unwrap();
        assert!(Command::new("mkfifo").arg(path("pipe.png")).status().unwrap().success());

        assert_eq!(decode_rgb(&path("link.png")).unwrap().get_pixel(1, 1).0, [4, 5, 6]);
        for (name, expected) in [
            ("broken.png", "a symbolic link to gone/picture.png, which is not there"),
            ("folder.png", "a folder, not a regular file"),
            ("socket.png", "a socket, not a regular file"),
            ("pipe.png", "a named pipe, not a regular file"),
            ("device.png", "a device, not a regular file"),
        ] {
            // On another thread, as waiting for a pipe or reading a device would have no end.
            let (sender, receiver) = channel();
            let file = path(name);
            std::thread::spawn(move || sender.send(decode_rgb(&file).map(|_| ()).unwrap_err().to_string()));
            let error = receiver.recv_timeout(Duration::from_secs(5)).expect(name);
            assert_eq!(error, format!("{}: {expected}", path(name).display()));
        }
    }

    #[test]
    fn a_truncated_jpeg_is_refused_wherever_it_ends() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("cut.jpg");
        // Pillow refuses each of these cuts, down to a single byte.
        for file in ["baseline.jpg", "progressive.jpg", "grey.jpg"] {
            let whole =
                fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/pillow").join(file)).unwrap();
            for length in
                [whole.len() - 1, whole.len() - 2, whole.len() - 3, whole.len() - 50, whole.len() / 2]
            {
                fs::write(&path, &whole[..length]).unwrap();
                let error = decode_rgb(&path).unwrap_err();
                assert!(
                    matches!(error, DecodeError::Truncated { bytes, .. } if bytes == length),
                    "{file}, {length} of {} bytes: {error}",
                    whole.len()
                );
            }
            // Bytes after the end, as cameras and editors leave them, are no damage.
            fs::write(&path, [&whole[..], b"trailer"].concat()).unwrap();
            decode_rgb(&path).unwrap();
        }
        let error = DecodeError::Truncated { path: PathBuf::from("cut.jpg"), bytes: 1 };
        assert_eq!(error.to_string(), "cut.jpg: truncated: a JPEG image that does not end within its 1 byte");
    }

    #[test]
    fn an_end_marker_counts_only_where_a_marker_can_stand() {
        let file = |parts: &[&[u8]]| parts.concat();
        let (start, end): (&[u8], &[u8]) = (b"\xFF\xD8", b"\xFF\xD9");
        // A segment of five bytes of content with a thumbnail's end in it, then scan data with a stuffed byte and a restart.
        let segment: &[u8] = b"\xFF\xE1\x00\x07a\xFF\xD9bc";
        let scan: &[u8] = b"\xFF\xDA\x00\x02\x12\xFF\x00\xD9\xFF\xD3\x34";
        assert!(!is_truncated_jpeg(&file(&[start, segment, scan, end])));
        assert!(!is_truncated_jpeg(&file(&[start, segment, scan, b"\xFF", end])), "fill byte");
        assert!(is_truncated_jpeg(&file(&[start, segment, scan])));
        assert!(is_truncated_jpeg(&file(&[start, segment])));
        assert!(is_truncated_jpeg(&file(&[start, &segment[..6]])), "ends within the segment");
        assert!(is_truncated_jpeg(&file(&[start, &segment[..3]])), "ends within the length");
        assert!(is_truncated_jpeg(b"\xFF\xD8\xFF"));
        assert!(!is_truncated_jpeg(b""), "no JPEG, another error's business");
        assert!(!is_truncated_jpeg(b"\x89PNG\r\n\x1a\n"));
    }
}
