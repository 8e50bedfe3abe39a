//! Words that can be pasted into a shell.

use std::ffi::{OsStr, OsString};
use std::path::Path;

/// `text` as one word of a POSIX shell.
pub fn quoted(text: &OsStr) -> String {
    let text = text.to_string_lossy();
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+:,@%".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        text.into_owned()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

/// `path` as one word of a POSIX shell that no program takes for a flag.
pub fn quoted_path(path: &Path) -> String {
    let mut path = path.as_os_str().to_os_string();
    if path.as_encoded_bytes().starts_with(b"-") {
        let name = std::mem::replace(&mut path, OsString::from("./"));
        path.push(name);
    }
    quoted(&path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_where_they_must_be() {
        let path = |text: &str| quoted_path(text.as_ref());
        assert_eq!(path("runs/wtconvnext-micro-fashion10"), "runs/wtconvnext-micro-fashion10");
        assert_eq!(path("/a b/imagenet"), "'/a b/imagenet'");
        assert_eq!(path("it's $HOME"), r"'it'\''s $HOME'");
        assert_eq!(path("-x"), "./-x");
        assert_eq!(quoted("-x".as_ref()), "-x");
        assert_eq!(quoted("".as_ref()), "''");
    }
}
