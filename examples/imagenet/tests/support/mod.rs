//! A folder of generated pictures, and a configuration that trains on it in a second.

use image::{Rgb, RgbImage};
use std::fs;
use std::path::{Path, PathBuf};

/// Names of the classes.
pub const CLASSES: [&str; 3] = ["blue", "green", "red"];

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

/// A gradient in the colour of its class, whose brightness differs from picture to picture.
fn picture(class: &str, index: usize) -> RgbImage {
    let bright = 100 + (index * 37 % 80) as u8;
    let channel = CLASSES.iter().rev().position(|other| *other == class).unwrap();
    RgbImage::from_fn(40, 36, |x, y| {
        let mut pixel = [x as u8, y as u8, (x + y) as u8];
        pixel[channel] += bright;
        Rgb(pixel)
    })
}

/// Writes a configuration file for `root/data`, with extra lines, and returns its path.
pub fn config(root: &Path, extra: &str) -> PathBuf {
    let path = root.join("config.toml");
    let data = root.join("data");
    // The plain network has no levels.
    let levels = if extra.contains("convnext") { "" } else { "levels = [2, 1, 1, 1]" };
    let text = format!(
        "data = '{}'\n\
         size = 'micro'\n\
         depths = [1, 1, 1, 1]\n\
         dims = [6, 8, 8, 8]\n\
         {levels}\n\
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
