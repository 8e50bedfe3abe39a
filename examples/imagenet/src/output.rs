//! Where results go: text to the standard output, which can be closed or full, and files.

use std::fmt::Display;
use std::io::{self, Write};
use std::path::Path;

use crate::atomic;
use crate::error::Error;

/// Prints a line.
///
/// # Errors
///
/// [`Error::Output`]; a long computation should not end for it.
pub fn line(text: impl Display) -> Result<(), Error> {
    self::text(format_args!("{text}\n"))
}

/// Prints text as it is.
///
/// # Errors
///
/// As [`line()`].
pub fn text(text: impl Display) -> Result<(), Error> {
    let mut stdout = io::stdout().lock();
    write!(stdout, "{text}").and_then(|()| stdout.flush()).map_err(Error::Output)
}

/// Asks for each of the files that a command is going to write whether it can be.
///
/// # Errors
///
/// [`Error::Unwritable`] about the first that cannot.
pub fn check_files(paths: &[&Path]) -> Result<(), Error> {
    for path in paths {
        atomic::check_file(path).map_err(|source| Error::Unwritable { path: path.to_path_buf(), source })?;
    }
    Ok(())
}
