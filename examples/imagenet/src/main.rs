//! `imagenet train`, `imagenet evaluate`, `imagenet predict IMAGE...`: see the README.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    imagenet::cli::main()
}
