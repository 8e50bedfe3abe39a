//! Ctrl-C: the first stops after the update at hand, with a checkpoint; the second stops at once.

use burn::train::Interrupter;
use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::is_raw_mode_enabled;

/// Exit status of a run that was interrupted: 128 + SIGINT, as a shell reports it.
pub const EXIT_INTERRUPTED: u8 = 130;

/// Makes Ctrl-C, SIGTERM and SIGHUP call [`request`]. To be called once in a process.
///
/// # Errors
///
/// What the system says.
pub fn install(interrupter: Interrupter) -> Result<(), ctrlc::Error> {
    ctrlc::set_handler(move || request(&interrupter))
}

/// Asks the run to stop, or ends the process if it was asked before.
pub fn request(interrupter: &Interrupter) {
    if interrupter.should_stop() {
        // The dashboard is on the screen if and only if the terminal is in raw mode.
        if is_raw_mode_enabled().unwrap_or(false) {
            let _ = ratatui::try_restore();
            let _ = execute!(std::io::stdout(), Show);
        }
        std::process::exit(EXIT_INTERRUPTED.into());
    }
    interrupter.stop(Some("interrupted"));
}
