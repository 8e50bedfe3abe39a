//! Standard output.

use std::fmt;
use std::io::{self, Write};

/// Prints a line to standard output. Everything that is printed is in the result files too: a reader that has closed the pipe,
/// such as `head`, must not end the command.
macro_rules! say {
    ($($format:tt)*) => {
        $crate::output::line(&mut std::io::stdout().lock(), format_args!($($format)*))
    };
}
pub(crate) use say;

pub(crate) fn line(to: &mut impl Write, text: fmt::Arguments<'_>) {
    if let Err(error) = writeln!(to, "{text}")
        && error.kind() != io::ErrorKind::BrokenPipe
    {
        eprintln!("cannot write to standard output: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Closed;

    impl Write for Closed {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::BrokenPipe.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_line_arrives_and_a_closed_pipe_is_no_panic() {
        let mut text = Vec::new();
        line(&mut text, format_args!("{} rows", 3));
        assert_eq!(text, b"3 rows\n");
        line(&mut Closed, format_args!("{} rows", 3));
    }
}
