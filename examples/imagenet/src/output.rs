//! Text on the standard output, which can be closed or full.

use std::fmt::Display;
use std::io::{self, Write};

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
