//! The whole life of a rank other than 0, which has no run of its own.
//!
//! Rank 0 plans, has the run folder and is followed like any run. The others get the plan and the tokens from
//! it, in a hidden folder next to their runs, where they log too; it is removed when the run is complete.
//!
//! A rank that an agent has started removes the file [`KEPT`] at its end, unless it has met others, they may
//! go on without it, and nothing was wrong here. If the file is still there, also because the rank was
//! killed, its agent starts it again.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sparktune_app::answers::runs_dir;
use sparktune_app::cluster::{KEPT, MET};
use sparktune_app::failure::{Exit, Failure};
use sparktune_app::program::Program;
use sparktune_app::run_folder::refuse_unready_gpu;
use sparktune_base::escape::escape;
use sparktune_cluster::{Collective, Error as ClusterError, Placement, share_files_and_tell};
use sparktune_plan::Plan;
use sparktune_runlog::{Lease, Outcome, RunDir, RunView, RunsRoot};
use sparktune_train::{AfterMeeting, TrainOptions};
use sparktune_tui::output::{note, print};

use crate::crash;
use crate::engine::say_again;
use crate::failure::from_training;
use crate::interrupt::StopSignals;
use crate::meeting_places;
use crate::rank::{join_within, places, refuse_second_gpu, share_run_again, telling};
use crate::trainer::{guard_tokenizer, make_files_private, options};

/// The time that a rank which was left out or is started again waits for rank 0 to answer: the others may be
/// meeting.
const WAIT_TO_RETURN: Duration = Duration::from_secs(120);

/// Trains as a rank other than 0, from meeting the others to the end of the text model.
///
/// # Errors
/// Any failure that ended the training early.
pub(crate) fn follow_rank_0(
    program: &Program,
    placement: &Placement,
    runs_dir_flag: Option<PathBuf>,
) -> Result<Exit, Failure> {
    let mut others = Others::default();
    let done = follow(program, placement, runs_dir_flag.clone(), &mut others);
    let may_come_back = others.may_let_in_again(&done);
    if let Some(kept) = std::env::var_os(KEPT).filter(|_| !may_come_back) {
        // An agent that cannot find it does not start this rank again.
        let _ = fs::remove_file(kept);
    }
    if done.is_err() && !may_come_back {
        show_taken_over(&runs_dir(runs_dir_flag)?, placement)?;
    }
    done
}

/// Gives the run that this rank has led in rank 0's place its name for good, if the rank was killed before it
/// could, and says which one it is.
fn show_taken_over(runs_dir: &Path, placement: &Placement) -> Result<(), Failure> {
    for folder in meeting_places::folders(runs_dir, placement) {
        let run = RunDir::open(&folder.path)?;
        // Another process of this rank may train in it.
        if run.is_successor() && !Lease::is_held(&run)? {
            let run = RunsRoot::new(runs_dir).named(&run)?;
            note(&format!(
                "what this rank has trained in rank 0's place is the run {} on this machine",
                escape(&run.path().display().to_string())
            ));
        }
    }
    Ok(())
}

/// What a rank knows of the others at its end.
#[derive(Default)]
struct Others {
    /// Whether it has met them and was sent the run, now or before it was started again.
    were_met: bool,
    /// Whether it trained with them and has lost them, and they may go on without it.
    are_lost: bool,
}

impl Others {
    /// Returns whether they may go on without this rank, which has ended like this, and let it in again.
    fn may_let_in_again(&self, done: &Result<Exit, Failure>) -> bool {
        let may_go_on = match done {
            Ok(_) => self.are_lost,
            // It has not reached them, or has lost them before it trained.
            Err(failure) => matches!(failure.exit, Exit::Network | Exit::Stopped),
        };
        // They do not begin without a rank that they have never met.
        self.were_met && may_go_on
    }
}

/// Does the same, and notes what this rank knows of the others.
fn follow(
    program: &Program,
    placement: &Placement,
    runs_dir_flag: Option<PathBuf>,
    others: &mut Others,
) -> Result<Exit, Failure> {
    let Placement { rank, world_size, ref host, port, .. } = *placement;
    make_files_private();
    guard_tokenizer()?;
    let signals = StopSignals::default();
    signals.listen()?;
    let stop = signals.stop();
    note(&format!("rank {rank} of {world_size} waits for the others at {}, port {port}", escape(host)));
    let also = meeting_places::known(&runs_dir(runs_dir_flag.clone())?, placement);
    others.were_met = !also.is_empty();
    // An agent starts it once more if that is too short.
    let limit = (places().is_some() && others.were_met).then_some(WAIT_TO_RETURN);
    let mut ranks = join_within(program, placement, stop, "", limit, also)?;
    let mut was_told = false;
    loop {
        let number = number_of(&*ranks);
        let (run, name) = match receive_run(&mut *ranks, number, runs_dir_flag.clone()) {
            Ok(received) => received,
            Err(failure) => {
                ranks.leave(Some(&failure.to_string()));
                if !ranks.is_left_out() {
                    return Err(failure);
                }
                ranks = return_to(program, placement, stop, ranks)?;
                continue;
            }
        };
        others.were_met = true;
        if places().is_some() && !std::mem::replace(&mut was_told, true) {
            // The agent that started this rank reads it.
            let _ = print(&format!("{MET}\n"));
        }
        let (number, world_size) = (number_of(&*ranks), ranks.world_size());
        note(&format!("rank {number} of {world_size} trains; its log is {}", run.path().display()));
        meeting_places::keep(&run, placement, &*ranks);
        let exit = train(program, &run, &name, placement, stop, &mut *ranks);
        if ranks.rank() == 0 {
            // It has taken the place of rank 0, so it has the run.
            let run = RunsRoot::new(runs_dir(runs_dir_flag)?).named(&run)?;
            note(&format!(
                "this rank has taken the place of the one that had the run: it is {} on this machine",
                run.path().display()
            ));
            return exit;
        }
        let exit = exit?;
        if let Some(blocks) = ranks.blocks_for_gpu() {
            note(&blocks.to_string());
        }
        if exit == Exit::Done {
            // Rank 0 has everything. What stays behind here is in nobody's way.
            let _ = fs::remove_dir_all(run.path());
        }
        if !ranks.is_left_out() {
            others.are_lost = ranks.has_lost_others() && !stop.load(Ordering::SeqCst);
            return Ok(exit);
        }
        ranks = return_to(program, placement, stop, ranks)?;
    }
}

/// Asks the ranks that go on without this one to let it in again.
fn return_to(
    program: &Program,
    placement: &Placement,
    stop: &Arc<AtomicBool>,
    ranks: Box<dyn Collective>,
) -> Result<Box<dyn Collective>, Failure> {
    note("this rank asks the others to be let in again");
    let also = ranks.addresses();
    drop(ranks);
    join_within(program, placement, stop, "", Some(WAIT_TO_RETURN), also)
}

/// Returns the number that its launcher gave to this rank, or another one if that was taken.
fn number_of(ranks: &dyn Collective) -> usize {
    ranks.launched_as().get(ranks.rank()).copied().unwrap_or(ranks.rank())
}

/// Receives the run into a folder that is named after the number that the launcher gave to this rank. Also
/// returns the name of the run.
fn receive_run(
    ranks: &mut dyn Collective,
    number: usize,
    runs_dir_flag: Option<PathBuf>,
) -> Result<(RunDir, String), Failure> {
    let name = String::from_utf8_lossy(&ranks.broadcast(&[])?).into_owned();
    let (run, kept) = RunsRoot::new(runs_dir(runs_dir_flag)?).of_rank(&name, number)?;
    if let Some(kept) = kept {
        note(&format!(
            "this rank had taken the place of rank 0 before: what it trained then is kept in {}",
            kept.path().display()
        ));
    }
    share_files_and_tell(ranks, run.path(), &[], &mut telling("received"))?;
    Ok((run, name))
}

/// Receives the run again, when the ranks of a swarm have met again, or gives it to the others, if this one
/// has taken rank 0's place.
fn share_again(
    ranks: &mut dyn Collective,
    run: &RunDir,
    name: &str,
    placement: &Placement,
) -> Result<(), ClusterError> {
    say_again(ranks)?;
    meeting_places::keep(run, placement, ranks);
    if ranks.rank() == 0 {
        return share_run_again(ranks, run, name);
    }
    ranks.broadcast(&[])?;
    share_files_and_tell(ranks, run.path(), &[], &mut telling("received"))
}

fn train(
    program: &Program,
    run: &RunDir,
    name: &str,
    placement: &Placement,
    stop: &AtomicBool,
    ranks: &mut (dyn Collective + 'static),
) -> Result<Exit, Failure> {
    let prepared = prepare(program, run, placement);
    let mut options = prepared.inspect_err(|failure| ranks.leave(Some(&failure.to_string())))?;
    let (received, name, of) = (run.clone(), name.to_owned(), placement.clone());
    let again = move |ranks: &mut dyn Collective| share_again(ranks, &received, &name, &of);
    options.after_meeting = Some(AfterMeeting(Arc::new(again)));
    crash::report_to(run.crash_report(run.next_attempt()?));
    let finished = sparktune_train::train_as_rank(run, stop, &options, ranks).map_err(from_training)?;
    match finished.outcome {
        outcome if outcome.is_complete() => Ok(Exit::Done),
        Outcome::Stopped => {
            let view = RunView::replay(run)?;
            let reason = view.finished().and_then(|finished| finished.reason.clone());
            const RESUMED: &str = "`resume` on all ranks continues from rank 0's checkpoint";
            note(&match reason {
                // Other reasons say themselves what to do.
                Some(reason) if reason.ends_with(" was stopped") => {
                    format!("stopped: {}. {RESUMED}", escape(&reason))
                }
                Some(reason) => format!("stopped: {}", escape(&reason)),
                None => format!("stopped. {RESUMED}"),
            });
            Ok(Exit::Stopped)
        }
        _ => Ok(Exit::Bug),
    }
}

fn prepare(program: &Program, run: &RunDir, placement: &Placement) -> Result<TrainOptions, Failure> {
    let plan = Plan::from_toml(&run.read_plan()?, "plan.toml")?;
    refuse_second_gpu(&plan, placement)?;
    refuse_unready_gpu(&plan)?;
    let places = places();
    let model = places.as_ref().map_or(plan.model.path.as_deref(), |places| Some(&places.base));
    if let Some(model) = model.filter(|path| !path.is_dir()) {
        return Err(Failure::usage(format!(
            "the model that rank 0 trains is in {}, which does not exist on this machine",
            escape(&model.display().to_string())
        ))
        .hint("Put the same files there, or start the run with `train --cluster`, which sends them"));
    }
    if let Some(models) = &places {
        // They are also there if this rank takes rank 0's place and the run is resumed here.
        run.note_models(models)?;
    }
    options(program, run)
}

#[cfg(test)]
mod tests {
    use sparktune_cluster::Launcher;

    use super::*;

    #[test]
    fn a_rank_comes_back_only_to_others_that_it_has_met_and_after_no_error_of_its_own() {
        let failed = |exit| Err(Failure::new(exit, "it has ended"));
        for were_met in [false, true] {
            let lost = Others { were_met, are_lost: true };
            let together = Others { were_met, are_lost: false };
            for done in [Ok(Exit::Stopped), failed(Exit::Network), failed(Exit::Stopped)] {
                assert_eq!(lost.may_let_in_again(&done), were_met, "{done:?}");
            }
            assert!(
                !together.may_let_in_again(&Ok(Exit::Done)) && !together.may_let_in_again(&Ok(Exit::Stopped))
            );
            for exit in [Exit::Usage, Exit::Device, Exit::Interrupted, Exit::Bug] {
                assert!(!lost.may_let_in_again(&failed(exit)), "{exit:?}");
            }
        }
    }

    #[test]
    fn a_run_that_this_rank_has_led_gets_its_name_and_no_other_one() {
        let root = tempfile::tempdir().unwrap();
        let runs = RunsRoot::new(root.path());
        let placement = Placement {
            rank: 1,
            world_size: 3,
            local_rank: 0,
            host: "spark1".into(),
            port: 29_500,
            launcher: Launcher::Torchrun,
        };
        let meeting = r#"{"first": ["spark1", 29500], "launched_as": 1, "places": []}"#;
        let of_rank = |name: &str, rank: usize, is_led: bool| {
            let (run, _) = runs.of_rank(name, rank).unwrap();
            fs::write(run.path().join("meeting.json"), meeting.replace("as\": 1", &format!("as\": {rank}")))
                .unwrap();
            if is_led {
                run.become_successor().unwrap();
            }
            run
        };
        let led = of_rank("led", 1, true);
        let others = [of_rank("followed", 1, false), of_rank("led", 2, true)];
        show_taken_over(root.path(), &Placement { port: 29_501, ..placement.clone() }).unwrap();
        assert!(led.path().is_dir(), "it belongs to another job");
        show_taken_over(root.path(), &placement).unwrap();
        assert!(root.path().join("led").is_dir() && !led.path().exists());
        assert!(others.iter().all(|other| other.path().is_dir()));
    }
}
