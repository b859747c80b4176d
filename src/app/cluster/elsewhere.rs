//! Whether other members go on with a run that was led on this machine: in a swarm, another rank takes the
//! place of a rank 0 that is lost. Resumed here, it would then become two runs.

use sparktune_base::escape::escape;
use sparktune_base::program_name;
use sparktune_base::units::counted;
use sparktune_cluster::membership::messages::TakenOver;
use sparktune_cluster::membership::{Cancelled, taken_over};
use sparktune_runlog::{RunDir, RunView};

use super::job::ask;
use super::membership::Membership;
use crate::failure::Failure;
use crate::next_steps::may_have_gone_on;

/// Refuses a run with which another member has gone on. `note` receives a line for each member that cannot be
/// asked.
///
/// # Errors
/// A member is further, or trains it now.
pub fn refuse_taken_over(
    run: &RunDir,
    view: &RunView,
    cancelled: Cancelled,
    note: impl Fn(&str),
) -> Result<(), Failure> {
    if !may_have_gone_on(view) {
        return Ok(());
    }
    let Some(membership) = Membership::find()? else { return Ok(()) };
    let unasked = |who: &str, why: &str| {
        note(&format!("{who} cannot be asked whether the run goes on there: {}", escape(why)));
    };
    let all = match ask(&membership, cancelled.clone()) {
        Ok(all) => all,
        Err(failure) => {
            unasked("the other members", &failure.text);
            return Ok(());
        }
    };
    let token = membership.token()?;
    for found in all.into_iter().filter(|found| found.member.introduction.id != membership.id) {
        let name = escape(&found.member.introduction.name);
        if let Some(why) = &found.member.gone {
            unasked(&name, why);
            continue;
        }
        let port = found.member.introduction.port;
        match taken_over(&found.host, port, &token, &run.name(), cancelled.clone()) {
            Ok(there) => refuse_further(&name, there.as_ref(), view.steps_done())?,
            Err(error) => unasked(&name, &error.to_string()),
        }
    }
    Ok(())
}

fn refuse_further(name: &str, there: Option<&TakenOver>, own_step: u64) -> Result<(), Failure> {
    let Some(TakenOver { folder, step, trains }) =
        there.filter(|there| there.trains || there.step > own_step)
    else {
        return Ok(());
    };
    let does = if *trains { "goes on" } else { "has gone on" };
    let text = format!(
        "{name} {does} with this run in place of this machine, which has {} of it: it has {} there, in {}",
        counted(own_step, "step"),
        counted(*step, "step"),
        escape(folder)
    );
    let program = program_name();
    let there = if *trains { "watch` and `stop` it there" } else { "resume` it there" };
    Err(Failure::usage(text).hint(format!("`{program} {there}")).hint(format!(
        "`{program} resume --accept-changes` trains on here all the same, which makes another run of it"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_run_that_is_further_elsewhere_or_trains_there_is_refused() {
        let there = |step, trains| TakenOver { folder: "/runs/a\u{1b}".into(), step, trains };
        assert!(refuse_further("spark2", None, 4).is_ok());
        assert!(refuse_further("spark2", Some(&there(4, false)), 4).is_ok(), "nobody could resume it");
        assert!(refuse_further("spark2", Some(&there(3, false)), 4).is_ok());
        for (step, trains, words) in [(5, false, "has gone on"), (4, true, "goes on"), (3, true, "goes on")] {
            let failure = refuse_further("spark2", Some(&there(step, trains)), 4).unwrap_err();
            assert!(failure.text.contains(words) && !failure.text.contains('\u{1b}'), "{failure}");
        }
    }
}
