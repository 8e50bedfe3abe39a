//! A run belongs to one process, as long as that one has the file `.lock` in its folder.

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};

use super::checkpoint::CheckpointError;

/// The run of this process, until it is dropped.
#[derive(Debug)]
pub struct RunLock {
    path: PathBuf,
    file: File,
}

impl RunLock {
    /// Creates the folder and takes its run.
    ///
    /// # Errors
    ///
    /// [`CheckpointError::Busy`] if another process has it; [`CheckpointError::Write`].
    pub(super) fn take(folder: &Path) -> Result<Self, CheckpointError> {
        let write_error = |path: &Path, source| CheckpointError::Write { path: path.to_path_buf(), source };
        fs::create_dir_all(folder).map_err(|source| write_error(folder, source))?;
        let path = folder.join(".lock");
        let file = File::options().create(true).append(true).open(&path);
        let file = file.map_err(|source| write_error(&path, source))?;
        match file.try_lock() {
            Ok(()) => Ok(Self { path, file }),
            Err(TryLockError::WouldBlock) => Err(CheckpointError::Busy { path: folder.to_path_buf() }),
            Err(TryLockError::Error(source)) => Err(write_error(&path, source)),
        }
    }

    /// Where the file is now that was locked.
    pub(super) fn place(&self) -> Place {
        match fs::metadata(&self.path) {
            Ok(there) if self.is(&there) => Place::There,
            Ok(_) => Place::Replaced,
            Err(_) => Place::Gone,
        }
    }

    /// A file that is open keeps its number, so that no other has it.
    #[cfg(unix)]
    fn is(&self, there: &fs::Metadata) -> bool {
        use std::os::unix::fs::MetadataExt;
        let number = |file: &fs::Metadata| (file.dev(), file.ino());
        self.file.metadata().is_ok_and(|own| number(&own) == number(there))
    }

    /// Elsewhere a folder with an open file is not removed.
    #[cfg(not(unix))]
    fn is(&self, _there: &fs::Metadata) -> bool {
        let _ = &self.file;
        true
    }
}

/// What has become of the file that was locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// It is where it was.
    There,
    /// Another is there: another run has begun in the folder since.
    Replaced,
    /// None is there, or it cannot be seen.
    Gone,
}
