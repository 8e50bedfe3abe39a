//! Where runs lie and how one is found.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::config::TrainConfig;
use crate::error::Error;
use crate::train::checkpoint::{Checkpoint, RunFolder, State};

/// The folder for runs, under the current one.
pub const RUNS: &str = "runs";

/// `runs/NETWORK-SIZE-DATA`, where a run goes unless it is told otherwise.
pub fn default_folder(config: &TrainConfig, data: &Path) -> PathBuf {
    let data = data.file_name().map_or_else(|| "images".into(), |name| name.to_string_lossy());
    Path::new(RUNS).join(format!("{}-{}-{data}", config.arch.name(), config.size.name()))
}

/// The checkpoint at `path`, or that of the run under `runs` whose checkpoint is the newest, with its state.
///
/// # Errors
///
/// [`Error::NoRuns`], or that of [`Checkpoint::open`].
pub fn open_checkpoint(path: Option<&Path>, best: bool) -> Result<(Checkpoint, State), Error> {
    let path = match path {
        Some(path) => path.to_path_buf(),
        None => newest(Path::new(RUNS))?,
    };
    Ok(Checkpoint::open(&path, best)?)
}

/// The run whose last checkpoint is the newest.
fn newest(runs: &Path) -> Result<PathBuf, Error> {
    let mut newest: Option<(SystemTime, PathBuf)> = None;
    // A folder that is not there holds no runs.
    for entry in fs::read_dir(runs).into_iter().flatten() {
        let io_error = |source| Error::Io { path: runs.to_path_buf(), source };
        let run = RunFolder::new(entry.map_err(io_error)?.path());
        // Loose files among the runs have no checkpoints. A run that cannot be read is an error: another would be taken for it.
        let Some(last) = run.checkpoints()?.pop() else { continue };
        // The folder changes whenever an evaluation is written into it.
        let written = fs::metadata(last.state_file()).or_else(|_| fs::metadata(last.path()));
        let written = written.and_then(|data| data.modified()).map_err(io_error)?;
        if newest.as_ref().is_none_or(|(time, _)| written > *time) {
            newest = Some((written, run.path().to_path_buf()));
        }
    }
    newest.map(|(_, run)| run).ok_or_else(|| Error::NoRuns { path: runs.to_path_buf() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn folders_are_named_after_what_is_trained() {
        let config = TrainConfig::for_shipped_images();
        assert_eq!(
            default_folder(&config, Path::new("/x/fashion10")),
            Path::new("runs/wtconvnext-micro-fashion10")
        );
    }

    #[test]
    fn the_newest_run_is_found() {
        let runs = tempfile::tempdir().unwrap();
        assert!(matches!(newest(runs.path()), Err(Error::NoRuns { .. })));
        assert!(matches!(newest(Path::new("/no/runs")), Err(Error::NoRuns { .. })));
        fs::write(runs.path().join("loose.txt"), b"").unwrap();
        fs::create_dir(runs.path().join("empty")).unwrap();
        let now = SystemTime::now();
        for (name, age) in [("a", 30), ("b", 10), ("c", 20)] {
            let checkpoint = runs.path().join(name).join("checkpoints").join("epoch-0001");
            fs::create_dir_all(&checkpoint).unwrap();
            let time = now - Duration::from_secs(age);
            let state = fs::File::create(checkpoint.join("state.json")).unwrap();
            state.set_modified(time).unwrap();
            // The older a checkpoint, the later it was evaluated.
            let time = now + Duration::from_secs(age);
            fs::File::open(&checkpoint).unwrap().set_modified(time).unwrap();
        }
        assert_eq!(newest(runs.path()).unwrap(), runs.path().join("b"));
    }
}
