//! An ImageNet-style folder as a Burn [`Dataset`] of file names and labels.
//!
//! Burn's own `ImageFolderDataset` is not used: it panics on pictures that it cannot read and knows neither a `val` that
//! must share the labels of `train` nor a way to skip a file.

use crate::count::count;
use burn::data::dataset::Dataset;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Extensions that are taken for images (any case).
pub const EXTENSIONS: [&str; 3] = ["jpg", "jpeg", "png"];

/// Why a folder cannot be used as an image data set.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// The folder is not there.
    #[error("{}: no such folder; expected {expected}", path.display())]
    Missing {
        /// The folder that was looked for.
        path: PathBuf,
        /// What should be there.
        expected: &'static str,
    },
    /// The data set is in a folder nearby.
    #[error("{}: no such folder; did you mean {}?", path.display(), meant.display())]
    Misplaced {
        /// The split that was looked for.
        path: PathBuf,
        /// The folder that has such a split.
        meant: PathBuf,
    },
    /// The pictures that come with the example are not where they were when it was built.
    #[error("{}: the shipped images are gone (was the project moved after it was built?); build again or pass --data DIR", path.display())]
    ShippedMoved {
        /// Where they were at compile time.
        path: PathBuf,
    },
    /// A split folder without class folders.
    #[error("{}: no class folders in it; expected one folder for each class, with .jpg, .jpeg or .png files", path.display())]
    NoClasses {
        /// The split folder.
        path: PathBuf,
    },
    /// A class folder without images.
    #[error("{}: no .jpg, .jpeg or .png files for this class; add some or remove the folder", path.display())]
    EmptyClass {
        /// The class folder.
        path: PathBuf,
    },
    /// A folder without images.
    #[error("{}: no .jpg, .jpeg or .png files in this folder", path.display())]
    NoImages {
        /// The folder.
        path: PathBuf,
    },
    /// A class that the model has no output for.
    #[error("{}: class \"{class}\" is not among the {} of the training set", path.display(), count(*.known, "class", "classes"))]
    UnknownClass {
        /// The class folder.
        path: PathBuf,
        /// Its name.
        class: String,
        /// Number of classes that are known.
        known: usize,
    },
    /// Fewer than two classes.
    #[error("{}: only one class; a classifier needs at least 2", path.display())]
    OneClass {
        /// The split folder.
        path: PathBuf,
    },
    /// A class folder whose name is not UTF-8.
    #[error("{}: the folder's name is not UTF-8", path.display())]
    Name {
        /// The folder.
        path: PathBuf,
    },
    /// The file system refused.
    #[error("{}: {source}", path.display())]
    Io {
        /// What was read.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

/// One image file and the index of its class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageFile {
    /// Where it lies.
    pub path: PathBuf,
    /// Index into [`ImageFolder::classes`].
    pub label: usize,
}

/// One split (`train` or `val`): a folder with a folder of images for each class.
///
/// Classes and files are in byte order of their names, so that labels and order are the same on every machine.
#[derive(Clone, Debug)]
pub struct ImageFolder {
    path: PathBuf,
    classes: Vec<String>,
    files: Vec<ImageFile>,
    ignored: Vec<PathBuf>,
    hidden: Vec<PathBuf>,
}

impl ImageFolder {
    /// Scans a training split: its folders are the classes.
    ///
    /// # Errors
    ///
    /// A missing folder, fewer than two classes, a class without images.
    pub fn train(path: &Path) -> Result<Self, FolderError> {
        let folders = class_folders(path)?;
        let classes: Vec<String> = folders.iter().map(|(name, _)| name.clone()).collect();
        if classes.len() == 1 {
            return Err(FolderError::OneClass { path: path.to_path_buf() });
        }
        Self::scan(path, classes, folders)
    }

    /// Scans a split whose labels are those of `classes`. Classes that it lacks are fine ([`Self::missing_classes`]).
    ///
    /// # Errors
    ///
    /// A missing folder, a class without images, a class that is not in `classes`.
    pub fn with_classes(path: &Path, classes: &[String]) -> Result<Self, FolderError> {
        let folders = class_folders(path)?;
        if let Some((class, path)) = folders.iter().find(|(name, _)| !classes.contains(name)) {
            return Err(FolderError::UnknownClass {
                path: path.clone(),
                class: class.clone(),
                known: classes.len(),
            });
        }
        Self::scan(path, classes.to_vec(), folders)
    }

    fn scan(path: &Path, classes: Vec<String>, folders: Vec<(String, PathBuf)>) -> Result<Self, FolderError> {
        let hidden = hidden_folders(path)?;
        let mut folder =
            Self { path: path.to_path_buf(), classes, files: Vec::new(), ignored: Vec::new(), hidden };
        for (name, class_path) in folders {
            let label = folder.classes.iter().position(|class| *class == name);
            let label = label.expect("the caller has checked that every folder is a known class");
            let mut images = Vec::new();
            collect(&class_path, &mut images, &mut folder.ignored)?;
            if images.is_empty() {
                return Err(FolderError::EmptyClass { path: class_path });
            }
            folder.files.extend(images.into_iter().map(|path| ImageFile { path, label }));
        }
        Ok(folder)
    }

    /// The folder of the split.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Class names; the position of a name is its label.
    pub fn classes(&self) -> &[String] {
        &self.classes
    }

    /// Files in the class folders that are not images by their extension.
    pub fn ignored(&self) -> &[PathBuf] {
        &self.ignored
    }

    /// Folders with images that are not taken for classes, because their names begin with a dot.
    pub fn hidden(&self) -> &[PathBuf] {
        &self.hidden
    }

    /// Classes without an image in this split.
    pub fn missing_classes(&self) -> Vec<&str> {
        let mut present = vec![false; self.classes.len()];
        for file in &self.files {
            present[file.label] = true;
        }
        self.classes
            .iter()
            .zip(present)
            .filter(|(_, present)| !present)
            .map(|(name, _)| name.as_str())
            .collect()
    }
}

impl Dataset<ImageFile> for ImageFolder {
    fn get(&self, index: usize) -> Option<ImageFile> {
        self.files.get(index).cloned()
    }

    fn len(&self) -> usize {
        self.files.len()
    }
}

/// The two splits of a data set.
#[derive(Clone, Debug)]
pub struct Splits {
    /// `train/`.
    pub train: ImageFolder,
    /// `val/`.
    pub val: ImageFolder,
}

impl Splits {
    /// Scans `root/train` and `root/val`.
    ///
    /// # Errors
    ///
    /// See [`ImageFolder::train`] and [`ImageFolder::with_classes`].
    pub fn open(root: &Path) -> Result<Self, FolderError> {
        if !root.is_dir() {
            return Err(FolderError::Missing {
                path: root.to_path_buf(),
                expected: "a folder with train/CLASS/*.jpg and val/CLASS/*.jpg",
            });
        }
        let train = ImageFolder::train(&split_folder(root, "train")?)?;
        let val = ImageFolder::with_classes(&split_folder(root, "val")?, train.classes())?;
        for split in [&train, &val] {
            if let Some(first) = split.ignored().first() {
                left_out(split.path(), split.ignored().len(), first);
            }
            for folder in split.hidden() {
                log::warn!(
                    "{}: its images are left out: a folder whose name begins with a dot is no class",
                    folder.display()
                );
            }
        }
        let missing = val.missing_classes();
        if !missing.is_empty() {
            log::warn!(
                "{}: no validation image for {} of {}; the first is \"{}\"",
                val.path().display(),
                missing.len(),
                count(train.classes().len(), "class", "classes"),
                missing[0]
            );
        }
        Ok(Self { train, val })
    }
}

/// `root/split`, the folder of a split. One that is not there is reported by the scan of it.
///
/// # Errors
///
/// [`FolderError::Misplaced`] if it is not there but in a folder around `root` or in one within it.
pub fn split_folder(root: &Path, split: &str) -> Result<PathBuf, FolderError> {
    let path = root.join(split);
    if path.is_dir() || !root.is_dir() {
        return Ok(path);
    }
    // A relative path need not show what is around it.
    let absolute =
        root.canonicalize().map_err(|source| FolderError::Io { path: root.to_path_buf(), source })?;
    let around = absolute.ancestors().skip(1).take(2).map(Path::to_path_buf);
    let within = sorted_entries(root)?;
    match around.chain(within).find(|folder| folder.join(split).is_dir()) {
        Some(meant) => Err(FolderError::Misplaced { path, meant }),
        None => Ok(path),
    }
}

/// The images of a folder and of the folders in it, in byte order of their names. Other files are left out with a warning.
///
/// # Errors
///
/// [`FolderError::NoImages`] if there are none, [`FolderError::Io`].
pub fn images_in(path: &Path) -> Result<Vec<PathBuf>, FolderError> {
    let (mut images, mut ignored) = (Vec::new(), Vec::new());
    collect(path, &mut images, &mut ignored)?;
    if images.is_empty() {
        return Err(FolderError::NoImages { path: path.to_path_buf() });
    }
    if let Some(first) = ignored.first() {
        left_out(path, ignored.len(), first);
    }
    Ok(images)
}

/// The files among `paths`, and in the place of a folder its images. A path that is not there stays, to be reported where it
/// is read.
///
/// # Errors
///
/// Those of [`images_in`].
pub fn images_among(paths: &[PathBuf]) -> Result<Vec<PathBuf>, FolderError> {
    let mut files = Vec::new();
    for path in paths {
        if path.is_dir() {
            files.extend(images_in(path)?);
        } else {
            files.push(path.clone());
        }
    }
    Ok(files)
}

/// Takes the images of `path` and of the folders in it.
fn collect(path: &Path, images: &mut Vec<PathBuf>, ignored: &mut Vec<PathBuf>) -> Result<(), FolderError> {
    for path in sorted_entries(path)? {
        // Links to files are followed. Links to folders are not, as they may form a circle.
        if path.is_dir() && !path.is_symlink() {
            collect(&path, images, ignored)?;
        } else if is_image(&path) && !path.is_dir() {
            // Also a pipe or a broken link of that name, to be counted and named as an image that cannot be read.
            images.push(path);
        } else {
            ignored.push(path);
        }
    }
    Ok(())
}

fn left_out(folder: &Path, files: usize, first: &Path) {
    log::warn!(
        "{}: {} left out because of the name, which must end in .jpg, .jpeg or .png, or as a link to a folder; the first is {}",
        folder.display(),
        count(files, "file", "files"),
        first.display()
    );
}

/// The pictures that come with the example: `data/fashion10`, where it was when the example was built.
///
/// # Errors
///
/// [`FolderError::ShippedMoved`] if it is no longer there.
pub fn shipped() -> Result<PathBuf, FolderError> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("data").join("fashion10");
    if path.is_dir() { Ok(path) } else { Err(FolderError::ShippedMoved { path }) }
}

fn is_image(path: &Path) -> bool {
    let extension = path.extension().and_then(|extension| extension.to_str());
    extension.is_some_and(|extension| EXTENSIONS.iter().any(|known| extension.eq_ignore_ascii_case(known)))
}

/// What lies in `path`, sorted by name, without hidden files (`.DS_Store` and the like).
fn sorted_entries(path: &Path) -> Result<Vec<PathBuf>, FolderError> {
    Ok(entries(path)?.into_iter().filter(|path| !is_hidden(path)).collect())
}

/// The hidden folders in `path` that have images.
fn hidden_folders(path: &Path) -> Result<Vec<PathBuf>, FolderError> {
    let mut folders = Vec::new();
    for path in entries(path)?.into_iter().filter(|path| is_hidden(path) && path.is_dir()) {
        let mut images = Vec::new();
        // One that may not be read is passed over, as any hidden folder.
        if collect(&path, &mut images, &mut Vec::new()).is_ok() && !images.is_empty() {
            folders.push(path);
        }
    }
    Ok(folders)
}

/// Everything in `path`, sorted by name.
fn entries(path: &Path) -> Result<Vec<PathBuf>, FolderError> {
    let entries = fs::read_dir(path).and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect());
    let mut entries: Vec<PathBuf> =
        entries.map_err(|source| FolderError::Io { path: path.to_path_buf(), source })?;
    entries.sort();
    Ok(entries)
}

fn is_hidden(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."))
}

/// Names and paths of the folders in `path`, sorted.
fn class_folders(path: &Path) -> Result<Vec<(String, PathBuf)>, FolderError> {
    if !path.is_dir() {
        return Err(FolderError::Missing {
            path: path.to_path_buf(),
            expected: "one folder for each class, with .jpg, .jpeg or .png files",
        });
    }
    let mut folders = Vec::new();
    for path in sorted_entries(path)?.into_iter().filter(|path| path.is_dir()) {
        match path.file_name().and_then(|name| name.to_str()) {
            Some(name) => folders.push((name.to_string(), path)),
            None => return Err(FolderError::Name { path }),
        }
    }
    if folders.is_empty() {
        return Err(FolderError::NoClasses { path: path.to_path_buf() });
    }
    Ok(folders)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates empty files; the scan reads names only.
    fn tree(files: &[&str]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for file in files {
            let path = root.path().join(file);
            if file.ends_with('/') {
                fs::create_dir_all(path).unwrap();
            } else {
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, b"").unwrap();
            }
        }
        root
    }

    fn error(files: &[&str]) -> String {
        let root = tree(files);
        let error = Splits::open(root.path()).unwrap_err().to_string();
        error.replace(&root.path().display().to_string(), "ROOT")
    }

    #[test]
    fn labels_are_positions_of_sorted_names() {
        let root = tree(&["train/b/2.PNG", "train/b/10.jpg", "train/a/deep/x.jpeg", "val/b/1.png"]);
        let splits = Splits::open(root.path()).unwrap();
        assert_eq!(splits.train.classes(), ["a", "b"]);
        let files: Vec<_> = (0..splits.train.len()).map(|i| splits.train.get(i).unwrap()).collect();
        let names: Vec<_> =
            files.iter().map(|f| (f.path.file_name().unwrap().to_str().unwrap(), f.label)).collect();
        assert_eq!(names, [("x.jpeg", 0), ("10.jpg", 1), ("2.PNG", 1)]);
        // The val split has class "b" only: its label is still 1.
        assert_eq!(splits.val.get(0).unwrap().label, 1);
        assert_eq!(splits.val.get(1), None);
        assert_eq!(splits.val.missing_classes(), ["a"]);
    }

    #[test]
    fn other_and_hidden_files_are_left_out() {
        let root = tree(&[
            "train/a/1.png",
            "train/a/notes.txt",
            "train/a/.DS_Store",
            "train/b/1.png",
            "train/list.csv",
            "train/.cache/notes.txt",
            "train/.net/deep/1.png",
            "val/a/1.png",
        ]);
        let Splits { train, val } = Splits::open(root.path()).unwrap();
        assert_eq!(train.len(), 2);
        assert_eq!(train.classes(), ["a", "b"]);
        assert_eq!(train.ignored(), [root.path().join("train/a/notes.txt")]);
        assert_eq!(train.hidden(), [root.path().join("train/.net")]);
        assert!(val.hidden().is_empty());
    }

    #[test]
    fn a_folder_is_searched_for_images() {
        let root = tree(&["b.png", "a/2.JPG", "a/1.jpeg", "notes.txt", "empty/", ".hidden.png"]);
        let names = |images: Vec<PathBuf>| -> Vec<String> {
            let name = |path: &PathBuf| path.strip_prefix(root.path()).unwrap().display().to_string();
            images.iter().map(name).collect()
        };
        assert_eq!(names(images_in(root.path()).unwrap()), ["a/1.jpeg", "a/2.JPG", "b.png"]);
        let empty = root.path().join("empty");
        let error = images_in(&empty).unwrap_err();
        assert!(matches!(&error, FolderError::NoImages { path } if *path == empty), "{error}");
    }

    #[cfg(unix)]
    #[test]
    fn whatever_is_named_as_an_image_is_counted_unless_it_is_a_folder() {
        use std::os::unix::fs::symlink;
        let root = tree(&["a/1.png", "deep.png/2.png"]);
        symlink("nowhere", root.path().join("a/broken.png")).unwrap();
        symlink("/dev/null", root.path().join("a/device.png")).unwrap();
        symlink("a", root.path().join("circle.png")).unwrap();
        let (mut images, mut ignored) = (Vec::new(), Vec::new());
        collect(root.path(), &mut images, &mut ignored).unwrap();
        let paths =
            |names: &[&str]| -> Vec<PathBuf> { names.iter().map(|name| root.path().join(name)).collect() };
        assert_eq!(images, paths(&["a/1.png", "a/broken.png", "a/device.png", "deep.png/2.png"]));
        assert_eq!(ignored, paths(&["circle.png"]));
    }

    #[test]
    fn errors_name_the_folder() {
        assert_eq!(
            error(&["val/a/1.png"]),
            "ROOT/train: no such folder; expected one folder for each class, with .jpg, .jpeg or .png files"
        );
        assert!(error(&["train/a/1.png", "train/b/1.png"]).starts_with("ROOT/val: no such folder"));
        assert!(error(&["train/1.png", "val/a/1.png"]).starts_with("ROOT/train: no class folders in it"));
        assert!(error(&["train/a/1.png", "val/a/1.png"]).starts_with("ROOT/train: only one class"));
        assert!(
            error(&["train/a/1.png", "train/b/", "val/a/1.png"])
                .starts_with("ROOT/train/b: no .jpg, .jpeg or .png files for this class")
        );
        assert!(error(&["train/a/1.png", "train/b/1.png", "val/a/"]).starts_with("ROOT/val/a: no .jpg"));
        assert_eq!(
            error(&["train/a/1.png", "train/b/1.png", "val/a/1.png", "val/c/1.png"]),
            "ROOT/val/c: class \"c\" is not among the 2 classes of the training set"
        );
        let missing = Splits::open(Path::new("/no/such/folder")).unwrap_err().to_string();
        assert!(missing.starts_with("/no/such/folder: no such folder; expected a folder with train/CLASS"));
    }

    #[test]
    fn a_data_set_nearby_is_pointed_out() {
        let root = tree(&["photos/train/a/1.png", "photos/train/b/1.png", "photos/val/a/1.png"]);
        let root = root.path().canonicalize().unwrap();
        for (given, meant) in [("photos/train", "photos"), ("photos/train/a", "photos"), ("", "photos")] {
            let error = Splits::open(&root.join(given)).unwrap_err().to_string();
            let (given, meant) = (root.join(given).join("train"), root.join(meant));
            assert_eq!(
                error,
                format!("{}: no such folder; did you mean {}?", given.display(), meant.display())
            );
        }
        Splits::open(&root.join("photos")).unwrap();
    }

    #[test]
    fn the_shipped_images_are_complete() {
        let splits = Splits::open(&shipped().unwrap()).unwrap();
        assert_eq!((splits.train.classes().len(), splits.train.len(), splits.val.len()), (10, 1600, 400));
        assert!(splits.val.missing_classes().is_empty());
    }
}
