//! Files and folders that are there completely or not at all, whenever the process or the machine stops.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

/// Writes a file: a temporary one beside it, flushed to the disk, then renamed.
///
/// # Errors
///
/// What the file system says; a file that was there before is unharmed.
pub fn write_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let temporary = temporary(path)?;
    let written = write_synced(&temporary, bytes).and_then(|()| fs::rename(&temporary, path));
    if written.is_err() {
        // The error that matters is the one above.
        let _ = fs::remove_file(&temporary);
    }
    written?;
    sync_parent(path)
}

/// Whether [`write_file`] would find a folder that takes the file: to be asked before the work whose result it is to hold.
///
/// # Errors
///
/// What the file system says to an empty file beside `path`, which is removed again, or that `path` is a folder. A file that was
/// there before is not touched.
pub fn check_file(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name().ok_or(io::ErrorKind::InvalidInput)?);
    // Another process may be writing, or asking, at the same moment.
    name.push(format!(".{}.check", std::process::id()));
    let probe = path.with_file_name(name);
    File::create(&probe)?;
    fs::remove_file(&probe)
}

/// Writes a folder of files in the same way. There must be no folder of that name yet.
///
/// # Errors
///
/// What the file system says; nothing is left behind.
pub fn write_folder(path: &Path, files: &[(&str, &[u8])]) -> io::Result<()> {
    let temporary = temporary(path)?;
    let write = || {
        if temporary.exists() {
            // Left by a process that was killed.
            fs::remove_dir_all(&temporary)?;
        }
        fs::create_dir_all(&temporary)?;
        for (name, bytes) in files {
            write_synced(&temporary.join(name), bytes)?;
        }
        sync_folder(&temporary)?;
        fs::rename(&temporary, path)
    };
    let written = write();
    if written.is_err() {
        let _ = fs::remove_dir_all(&temporary);
    }
    written?;
    sync_parent(path)
}

/// `.NAME.tmp` beside `path`: hidden, and on the same file system.
fn temporary(path: &Path) -> io::Result<std::path::PathBuf> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let mut temporary = std::ffi::OsString::from(".");
    temporary.push(name);
    temporary.push(".tmp");
    Ok(path.with_file_name(temporary))
}

fn write_synced(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

fn sync_parent(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => sync_folder(parent),
        _ => sync_folder(Path::new(".")),
    }
}

/// Makes a rename in `path` last. Only Unix can open a folder for that.
fn sync_folder(path: &Path) -> io::Result<()> {
    if cfg!(unix) { File::open(path)?.sync_all() } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(path: &Path) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(path)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_is_replaced_as_a_whole() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("a.json");
        write_file(&path, b"first").unwrap();
        write_file(&path, b"second").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"second");
        assert_eq!(names(root.path()), ["a.json"]);
    }

    #[test]
    fn a_file_that_cannot_be_written_leaves_the_old_one() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("a.json");
        write_file(&path, b"first").unwrap();
        // A folder in the place of the temporary file.
        fs::create_dir(root.path().join(".a.json.tmp")).unwrap();
        write_file(&path, b"second").unwrap_err();
        assert_eq!(fs::read(&path).unwrap(), b"first");
    }

    #[test]
    fn where_nothing_can_be_written_is_known_before() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("a.json");
        check_file(&path).unwrap();
        assert!(names(root.path()).is_empty(), "nothing is left behind");
        write_file(&path, b"first").unwrap();
        check_file(&path).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"first");
        // No such folder, a file in the place of the folder, a folder in the place of the file, no name.
        let kind = |path: &Path| check_file(path).unwrap_err().kind();
        assert_eq!(kind(&root.path().join("absent/b.json")), io::ErrorKind::NotFound);
        assert_eq!(kind(&path.join("b.json")), io::ErrorKind::NotADirectory);
        assert_eq!(kind(root.path()), io::ErrorKind::IsADirectory);
        assert_eq!(kind(Path::new("")), io::ErrorKind::InvalidInput);
        assert_eq!(names(root.path()), ["a.json"]);
    }

    #[test]
    fn a_folder_is_complete_or_absent() {
        let root = tempfile::tempdir().unwrap();
        let good = root.path().join("good");
        write_folder(&good, &[("a", b"1"), ("b", b"2")]).unwrap();
        assert_eq!(names(&good), ["a", "b"]);
        // The second file cannot be created: the first must not stay.
        write_folder(&root.path().join("bad"), &[("a", b"1"), ("no/such/b", b"2")]).unwrap_err();
        assert_eq!(names(root.path()), ["good"]);
    }

    #[test]
    fn what_a_killed_process_left_is_replaced() {
        let root = tempfile::tempdir().unwrap();
        let left = root.path().join(".new.tmp");
        fs::create_dir(&left).unwrap();
        fs::write(left.join("half"), b"x").unwrap();
        let path = root.path().join("new");
        write_folder(&path, &[("a", b"1")]).unwrap();
        assert_eq!(names(root.path()), ["new"]);
        assert_eq!(names(&path), ["a"]);
    }
}
