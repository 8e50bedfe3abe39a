//! The commands and how they end.

use burn::train::Interrupter;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::OnceLock;

use crate::config::with_default_help;
use crate::erf::{self, ErfArgs};
use crate::error::Error;
use crate::evaluate::{self, EvaluateArgs};
use crate::export::{self, ExportArgs};
use crate::output;
use crate::predict::{self, PredictArgs};
use crate::preview::{self, PreviewArgs};
use crate::shell::{quoted, quoted_path};
use crate::subbands::{self, SubbandsArgs};
use crate::throughput::{self, ThroughputArgs};
use crate::train::devices::DeviceSelection;
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
    /// Write a trained model as safetensors under the official PyTorch names
    Export(ExportArgs),
    /// Draw the effective receptive field of a trained model, or of bare layers
    Erf(ErfArgs),
    /// Draw what the subbands of a wavelet convolution see of an image, and what they return
    Subbands(SubbandsArgs),
    /// Draw training images as a run with the same configuration would see them
    Preview(Box<PreviewArgs>),
    /// Measure how fast training images can be decoded and augmented
    Throughput(Box<ThroughputArgs>),
}

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    let matches = command().get_matches();
    init_log();
    let result = match Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit()).command {
        Command::Train(args) => train(*args),
        Command::Evaluate(args) => evaluate::run(args).map(|()| ExitCode::SUCCESS),
        Command::Predict(args) => predict::run(args).map(|()| ExitCode::SUCCESS),
        Command::Export(args) => export::run(args).map(|()| ExitCode::SUCCESS),
        Command::Erf(args) => erf::run(args).map(|()| ExitCode::SUCCESS),
        Command::Subbands(args) => subbands::run(args).map(|()| ExitCode::SUCCESS),
        Command::Preview(args) => preview::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Throughput(args) => throughput::run(&args).map(|()| ExitCode::SUCCESS),
    };
    result.unwrap_or_else(|error| match error {
        // Whoever read it has had enough, as `head` has.
        Error::Output(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        error => {
            // There is nowhere left to say that stderr is closed.
            let _ = writeln!(io::stderr(), "error: {error}");
            ExitCode::FAILURE
        }
    })
}

/// The command line, with the defaults of a configuration in the help of the commands that have one.
fn command() -> clap::Command {
    ["train", "preview", "throughput"]
        .into_iter()
        .fold(Cli::command(), |command, name| command.mut_subcommand(name, with_default_help))
}

fn train(args: TrainArgs) -> Result<ExitCode, Error> {
    if args.print_config {
        output::text(args.settings.resolve()?.to_toml())?;
        return Ok(ExitCode::SUCCESS);
    }
    let devices = args.devices.clone();
    let prepared = Prepared::new(args)?;
    let folder = prepared.folder().to_path_buf();
    if Display::wants_dashboard() {
        let io_error = |source| Error::Io { path: folder.clone(), source };
        std::fs::create_dir_all(&folder).map_err(io_error)?;
        let path = folder.join("train.log");
        append(&path).map_err(io_error)?;
        // There is one training in a process.
        let _ = LOG_FILE.set(path);
    }
    let interrupter = Interrupter::new();
    interrupt::install(interrupter.clone())?;
    let display = Display::new(interrupter.clone());
    match prepared.train(interrupter, display)? {
        Outcome::Finished { val_accuracy } => {
            output::line(format_args!(
                "checkpoints, history.json and curves.svg are in {}",
                folder.display()
            ))?;
            output::line(format_args!("val accuracy: {val_accuracy:.4}"))?;
            Ok(ExitCode::SUCCESS)
        }
        Outcome::Interrupted { checkpoint } => {
            let program = std::env::args_os().next().unwrap_or_else(|| "imagenet".into());
            let saved = format_args!("interrupted; saved {}", checkpoint.display());
            // The terminal may be gone, and the exit status says it too.
            let resume = resume_command(&program, &folder, devices.as_ref());
            let _ = output::line(format_args!("{saved}\ncontinue with: {resume}"));
            Ok(ExitCode::from(EXIT_INTERRUPTED))
        }
    }
}

/// The command that continues the run in `folder`: this program as it was called (`cargo run` calls it by its path), so that
/// it can be pasted into the shell of the same folder. The run's configuration has the rest, but for the devices, which belong to a
/// call; `--stop-after` does too, but to go on is not to stop again.
fn resume_command(program: &OsStr, folder: &Path, devices: Option<&DeviceSelection>) -> String {
    let devices = devices.map_or(String::new(), |devices| format!(" --devices {devices}"));
    format!("{} train --resume --out {}{devices}", quoted(program), quoted_path(folder))
}

/// Where the log goes while the dashboard has the screen. Opened for each record: the run's folder may be removed and written again.
static LOG_FILE: OnceLock<PathBuf> = OnceLock::new();

fn append(path: &Path) -> io::Result<File> {
    File::options().create(true).append(true).open(path)
}

/// stderr, or [`LOG_FILE`] once there is one.
struct LogWriter;

impl Write for LogWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match LOG_FILE.get() {
            Some(path) => append(path)?.write(bytes),
            None => io::stderr().write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match LOG_FILE.get() {
            Some(_) => Ok(()),
            None => io::stderr().flush(),
        }
    }
}

/// Logs warnings and errors, or what RUST_LOG asks for.
fn init_log() {
    env_logger::Builder::from_env(env_logger::Env::default().default_filter_or("warn"))
        .target(env_logger::Target::Pipe(Box::new(LogWriter)))
        .init();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        command().debug_assert();
    }

    #[test]
    fn the_command_to_resume_can_be_pasted() {
        let command = |program: &str, folder: &str| resume_command(program.as_ref(), folder.as_ref(), None);
        assert_eq!(
            command("target/release/imagenet", "runs/wtconvnext-micro-fashion10"),
            "target/release/imagenet train --resume --out runs/wtconvnext-micro-fashion10"
        );
        assert_eq!(
            command("/a b/imagenet", "it's $HOME"),
            r"'/a b/imagenet' train --resume --out 'it'\''s $HOME'"
        );
        assert_eq!(command("imagenet", "-x"), "imagenet train --resume --out ./-x");
        for devices in ["all", "2,0"] {
            let selection = devices.parse().unwrap();
            assert_eq!(
                resume_command("imagenet".as_ref(), "run".as_ref(), Some(&selection)),
                format!("imagenet train --resume --out run --devices {devices}")
            );
        }
    }
}
