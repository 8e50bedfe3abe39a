//! A folder of generated pictures, and a configuration that trains on it in a second.

use image::{Rgb, RgbImage};
use std::fs;
use std::path::{Path, PathBuf};

/// Names of the classes.
pub const CLASSES: [&str; 3] = ["columns", "plain", "rows"];

/// Writes `train` pictures a class to `root/train` and `val` a class to `root/val`.
pub fn pictures(root: &Path, train: usize, val: usize) {
    for (split, count) in [("train", train), ("val", val)] {
        for class in CLASSES {
            let folder = root.join(split).join(class);
            fs::create_dir_all(&folder).unwrap();
            for index in 0..count {
                picture(class, index).save(folder.join(format!("{index}.png"))).unwrap();
            }
        }
    }
}

/// Stripes of a class, with a brightness and a phase that differ from picture to picture.
fn picture(class: &str, index: usize) -> RgbImage {
    let bright = 120 + (index * 37 % 100) as u8;
    RgbImage::from_fn(40, 36, |x, y| {
        let along = match class {
            "columns" => x,
            "rows" => y,
            _ => 0,
        };
        let on = (along as usize + index).is_multiple_of(8) || (along as usize + index + 1).is_multiple_of(8);
        Rgb(if on { [bright, bright / 2, 40] } else { [20, bright / 4, 60] })
    })
}

/// Writes a configuration file for `root/data`, with extra lines, and returns its path.
pub fn config(root: &Path, extra: &str) -> PathBuf {
    let path = root.join("config.toml");
    let data = root.join("data");
    let text = format!(
        "data = '{}'\n\
         size = 'micro'\n\
         depths = [1, 1, 1, 1]\n\
         dims = [6, 8, 8, 8]\n\
         levels = [2, 1, 1, 1]\n\
         layer_scale = 1.0\n\
         input_size = 32\n\
         crop_scale = [0.5, 1.0]\n\
         workers = 2\n\
         {extra}\n",
        data.display()
    );
    fs::write(&path, text).unwrap();
    path
}
