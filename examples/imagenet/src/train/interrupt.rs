//! Ctrl-C: the first stops after the update at hand, with a checkpoint; the second stops at once.

use burn::train::Interrupter;

/// Exit status of a run that was interrupted: 128 + SIGINT, as a shell reports it.
pub const EXIT_INTERRUPTED: u8 = 130;

/// Makes Ctrl-C, SIGTERM and SIGHUP set `interrupter`. To be called once in a process.
///
/// # Errors
///
/// What the system says.
pub fn install(interrupter: Interrupter) -> Result<(), ctrlc::Error> {
    let terminal = terminal::State::now();
    ctrlc::set_handler(move || {
        if interrupter.should_stop() {
            terminal.restore();
            std::process::exit(EXIT_INTERRUPTED.into());
        }
        interrupter.stop(Some("interrupted"));
    })
}

/// Lets Ctrl-C through while Burn's dashboard is on the screen. The dashboard puts the terminal in raw mode, in which
/// Ctrl-C is a key like any other, and it ignores that key.
pub use terminal::allow_ctrl_c;

#[cfg(unix)]
mod terminal {
    use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
    use std::io::{Write, stdin, stdout};
    use std::time::Duration;

    /// How the terminal was before the dashboard.
    pub(super) struct State(Option<Termios>);

    impl State {
        pub(super) fn now() -> Self {
            Self(tcgetattr(stdin()).ok())
        }

        /// Leaves the dashboard's screen and raw mode, if they are on.
        pub(super) fn restore(&self) {
            let Some(before) = &self.0 else { return };
            let raw = tcgetattr(stdin()).is_ok_and(|now| !now.local_modes.contains(LocalModes::ICANON));
            if raw {
                // Leave the alternate screen, show the cursor. The process ends next, so errors have no reader.
                let _ = stdout().write_all(b"\x1b[?1049l\x1b[?25h");
                let _ = stdout().flush();
                let _ = tcsetattr(stdin(), OptionalActions::Now, before);
            }
        }
    }

    /// See the re-export.
    pub fn allow_ctrl_c() {
        // The dashboard's own thread switches to raw mode; wait for it.
        for _ in 0..200 {
            let Ok(mut terminal) = tcgetattr(stdin()) else { return };
            if !terminal.local_modes.contains(LocalModes::ICANON) {
                terminal.local_modes |= LocalModes::ISIG;
                if let Err(error) = tcsetattr(stdin(), OptionalActions::Now, &terminal) {
                    log::warn!("Ctrl-C will not work, press q instead: {error}");
                }
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

#[cfg(not(unix))]
mod terminal {
    pub(super) struct State;

    impl State {
        pub(super) fn now() -> Self {
            Self
        }

        pub(super) fn restore(&self) {}
    }

    /// Elsewhere the dashboard's own key, q, stops a run.
    pub fn allow_ctrl_c() {}
}
