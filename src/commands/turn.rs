//! `train --after RUN`: waits for the end of another run.

use std::time::Duration;

use sparktune_app::failure::{Exit, Failure};
use sparktune_app::runs::planned;
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

/// The number of looks in a row that may fail, so that a disk that is away for a minute ends nothing.
const TRIES: u32 = 120;

/// Waits until nobody trains `run`, and says what it waits for and how it ended. A run that nobody trains is
/// not waited for, even if it is not finished, and neither is one that no longer exists.
///
/// # Errors
/// For a minute it cannot be found out whether the run is being trained; or Ctrl-C was pressed.
pub(crate) fn wait_for(run: &RunDir, interrupts: &Interrupts) -> Result<(), Failure> {
    let name = escape(&run.name()).into_owned();
    let (mut looks, mut failed) = (0, 0);
    loop {
        match Lease::is_held(run) {
            Ok(false) => break,
            Ok(true) => failed = 0,
            Err(error) if failed == TRIES => return Err(error.into()),
            Err(_) => failed += 1,
        }
        if interrupts.count() > 0 {
            return Err(Failure::new(
                Exit::Interrupted,
                format!("interrupted while waiting for {name}; nothing was started"),
            ));
        }
        if looks % LOOKS == 0 {
            note(&format!(
                "waiting for the end of {name}{} (Ctrl-C gives up; `{} watch {name}` shows it)",
                time_left(run).map(|left| format!(", about {left} left")).unwrap_or_default(),
                program_name()
            ));
        }
        looks += 1;
        std::thread::sleep(PAUSE);
    }
    // However the other run ended, this one starts.
    match RunView::glance(run).and_then(|view| Ok((view.liveness(run)?, view))) {
        Ok((liveness, view)) => note(&how_it_stands(run, liveness, &view)),
        Err(_) if !run.path().exists() => note(&format!("{name} is not there any more")),
        Err(error) => note(&format!("how {name} ended cannot be read: {}", escape(&error.to_string()))),
    }
    Ok(())
}

/// Returns the remaining time of a run in words, if it is known.
fn time_left(run: &RunDir) -> Option<String> {
    let mut view = RunView::glance(run).ok()?;
    if let Some(planned) = planned(run) {
        view.expect(planned);
    }
    view.eta().map(|eta| duration(eta.seconds))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use sparktune_runlog::{EventWriter, Kind, RunStarted, RunsRoot, Step};

    use super::*;

    #[test]
    fn a_run_that_is_deleted_damaged_or_moved_is_not_waited_for_and_stops_nothing() {
        let root = tempfile::tempdir().unwrap();
        let create = || RunsRoot::new(root.path()).create("m", "lora").unwrap();
        let gone = create();
        fs::remove_dir_all(gone.path()).unwrap();
        wait_for(&gone, &Interrupts::default()).unwrap();

        // Its events cannot be read, neither while it is trained nor afterwards.
        let damaged = create();
        let lease = Lease::acquire(&damaged).unwrap();
        fs::remove_dir(damaged.events()).unwrap();
        fs::write(damaged.events(), "").unwrap();
        std::thread::scope(|threads| {
            let waits = threads.spawn(|| wait_for(&damaged, &Interrupts::default()));
            std::thread::sleep(PAUSE / 2);
            assert!(!waits.is_finished());
            drop(lease);
            waits.join().unwrap().unwrap();
        });
    }

    #[test]
    fn ctrl_c_ends_the_waiting() {
        let root = tempfile::tempdir().unwrap();
        let run = RunsRoot::new(root.path()).create("m", "lora").unwrap();
        let _lease = Lease::acquire(&run).unwrap();
        let interrupts = Interrupts::default();
        interrupts.hear();
        assert_eq!(wait_for(&run, &interrupts).unwrap_err().exit, Exit::Interrupted);
    }

    #[test]
    fn the_time_left_includes_what_follows_the_steps() {
        let root = tempfile::tempdir().unwrap();
        let run = RunsRoot::new(root.path()).create("m", "lora").unwrap();
        let lease = Lease::acquire(&run).unwrap();
        let events = EventWriter::open(&lease).unwrap();
        events.emit(Kind::RunStarted(RunStarted { total_steps: Some(3), ..RunStarted::default() }));
        for step in [1, 2] {
            let step = Step { step, loss_nats: 1.0, step_ms: Some(1000.0), ..Step::default() };
            events.emit(Kind::Step(step));
        }
        assert!(time_left(&run).is_some());
        // Its head takes 128 times as long as one of its steps.
        run.write_plan(include_str!("../../tests/fixtures/run-261c35e/run/plan.toml")).unwrap();
        let left = time_left(&run).unwrap();
        assert!(left.starts_with("2 min "), "{left}");
    }
}
