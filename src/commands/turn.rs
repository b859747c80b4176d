//! `train --after RUN`: waits for the end of another run.

use std::time::Duration;

use sparktune_app::failure::{Exit, Failure};
use sparktune_base::escape::escape;
use sparktune_base::program_name;
use sparktune_base::units::duration;
use sparktune_runlog::{Lease, RunDir, RunView};
use sparktune_tui::how_it_stands;
use sparktune_tui::output::note;

use crate::interrupt::Interrupts;

/// The time between two looks at the other run.
const PAUSE: Duration = Duration::from_millis(500);
/// The number of looks after which it is said again what is waited for: every ten minutes.
const LOOKS: u32 = 1200;

/// Waits until nobody trains `run`, and says what it waits for and how it ended. A run that nobody trains is
/// not waited for, even if it is not finished.
///
/// # Errors
/// The run cannot be read; Ctrl-C.
pub(crate) fn wait_for(run: &RunDir, interrupts: &Interrupts) -> Result<(), Failure> {
    let name = escape(&run.name()).into_owned();
    let mut looks = 0;
    while Lease::is_held(run)? {
        if interrupts.count() > 0 {
            return Err(Failure::new(
                Exit::Interrupted,
                format!("interrupted while waiting for {name}; nothing was started"),
            ));
        }
        if looks % LOOKS == 0 {
            let left =
                RunView::glance(run)?.eta().map(|eta| format!(", about {} left", duration(eta.seconds)));
            note(&format!(
                "waiting for the end of {name}{} (Ctrl-C gives up; `{} watch {name}` shows it)",
                left.unwrap_or_default(),
                program_name()
            ));
        }
        looks += 1;
        std::thread::sleep(PAUSE);
    }
    let view = RunView::glance(run)?;
    note(&how_it_stands(run, view.liveness(run)?, &view));
    Ok(())
}
