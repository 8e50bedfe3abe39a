//! The commands and how they end.

use burn::train::Interrupter;
use clap::{Parser, Subcommand};
use std::fs::File;
use std::process::ExitCode;

use crate::error::Error;
use crate::evaluate::{self, EvaluateArgs};
use crate::predict::{self, PredictArgs};
use crate::train::interrupt::{self, EXIT_INTERRUPTED};
use crate::train::prepare::{Prepared, TrainArgs};
use crate::train::progress::Display;
use crate::train::run::Outcome;

/// Trains WTConvNeXt or ConvNeXt on a folder of images, and uses the result.
#[derive(Debug, Parser)]
#[command(name = "imagenet", version)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Train a model; without --data on the pictures that come with the example
    Train(Box<TrainArgs>),
    /// Measure a trained model on the validation images
    Evaluate(EvaluateArgs),
    /// Print the most probable classes of images
    Predict(PredictArgs),
}

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Train(args) => train(*args),
        Command::Evaluate(args) => {
            init_log(None);
            evaluate::run(args).map(|()| ExitCode::SUCCESS)
        }
        Command::Predict(args) => {
            init_log(None);
            predict::run(args).map(|()| ExitCode::SUCCESS)
        }
    };
    result.unwrap_or_else(|error| {
        eprintln!("error: {error}");
        ExitCode::FAILURE
    })
}

fn train(args: TrainArgs) -> Result<ExitCode, Error> {
    let dashboard = Display::wants_dashboard();
    if !dashboard {
        init_log(None);
    }
    let prepared = Prepared::new(args)?;
    let folder = prepared.folder().to_path_buf();
    if dashboard {
        let io_error = |source| Error::Io { path: folder.clone(), source };
        std::fs::create_dir_all(&folder).map_err(io_error)?;
        init_log(Some(
            File::options().create(true).append(true).open(folder.join("train.log")).map_err(io_error)?,
        ));
    }
    let interrupter = Interrupter::new();
    interrupt::install(interrupter.clone())?;
    let display = Display::new(interrupter.clone());
    match prepared.train(interrupter, display)? {
        Outcome::Finished { val_accuracy } => {
            println!("checkpoints, history.json and curves.svg are in {}", folder.display());
            println!("val accuracy: {val_accuracy:.4}");
            Ok(ExitCode::SUCCESS)
        }
        Outcome::Interrupted { checkpoint } => {
            println!("interrupted; saved {}", checkpoint.display());
            println!("continue with: train --resume --out {}", folder.display());
            Ok(ExitCode::from(EXIT_INTERRUPTED))
        }
    }
}

/// Warnings and errors (or what RUST_LOG asks for) go to stderr, or to `file` while the dashboard has the screen.
fn init_log(file: Option<File>) {
    let mut builder = env_logger::Builder::from_env(env_logger::Env::default().default_filter_or("warn"));
    if let Some(file) = file {
        builder.target(env_logger::Target::Pipe(Box::new(file)));
    }
    builder.init();
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
