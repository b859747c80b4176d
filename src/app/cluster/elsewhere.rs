//! Whether a run that was led here goes on elsewhere: in a swarm, a *successor*, another rank, takes the
//! place of a rank 0 that is lost. If the run were resumed here too, there would be two of it.

use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use sparktune_base::escape::escape;
use sparktune_base::program_name;
use sparktune_base::units::{count, counted};
use sparktune_cluster::membership::messages::{GoesOn, Successor};
use sparktune_cluster::membership::{Cancelled, goes_on};
use sparktune_cluster::{ClusterToken, Error};
use sparktune_plan::Plan;
use sparktune_runlog::{RunDir, RunView, RunsRoot};

use super::membership::Membership;
use crate::failure::{Exit, Failure};
use crate::shell::run_argument;

/// How long the members are asked.
const PATIENCE: Duration = Duration::from_secs(10);
/// The pause between two looks at whether the user has asked for the end.
const LOOK: Duration = Duration::from_millis(50);

/// Refuses a run with which a successor has gone on, on this machine or on another member. Returns a
/// sentence for each member that cannot be asked. A run that has never had more than two ranks has no
/// successor. `note` receives a line if others are asked, which may take a while.
///
/// # Errors
/// A successor is further, or trains now; a member trains the run; the user has asked for the end; the run
/// cannot be read.
pub fn refuse_succeeded(
    run: &RunDir,
    cancelled: impl Fn() -> bool + Send + Sync + 'static,
    note: impl Fn(&str),
) -> Result<Vec<String>, Failure> {
    if !Plan::from_toml(&run.read_plan()?, "plan.toml")?.ranks.swarm {
        return Ok(Vec::new());
    }
    let view = RunView::replay(run)?;
    if view.most_ranks <= 2 {
        return Ok(Vec::new());
    }
    let mut names = run.continued();
    names.retain(|name| *name != run.name());
    names.push(run.name());
    let mut heard = Heard { successors: on_this_machine(run, &names)?, ..Heard::default() };
    // A file that is damaged does not keep anybody from resuming.
    match Membership::find() {
        Ok(None) => {}
        Ok(Some(membership)) => {
            note("asking the other members of the cluster whether they go on with this run");
            let cancelled: Cancelled = Arc::new(cancelled);
            on_members(&membership, &names, &cancelled, &mut heard)?;
        }
        Err(failure) => heard.cannot_ask("the other members", &failure.text),
    }
    heard.refuse(run, view.steps_done())?;
    Ok(heard.unasked)
}

/// The same, where nobody could be told that a member cannot be asked: that is refused too.
///
/// # Errors
/// Those of [`refuse_succeeded`], or a member cannot be asked.
pub fn refuse_if_possibly_succeeded(
    run: &RunDir,
    cancelled: impl Fn() -> bool + Send + Sync + 'static,
) -> Result<(), Failure> {
    let unasked = refuse_succeeded(run, cancelled, |_| ())?;
    if unasked.is_empty() {
        return Ok(());
    }
    Err(Failure::new(Exit::Network, unasked.join("; ")).hint(format!(
        "If the run does not go on there, `{} resume {}` on a terminal continues it",
        program_name(),
        run_argument(run)
    )))
}

/// What is known of a run elsewhere.
#[derive(Default)]
struct Heard {
    /// With the machine of each.
    successors: Vec<(String, Successor)>,
    /// Members that train the run now.
    training: Vec<String>,
    /// In whole sentences.
    unasked: Vec<String>,
}

impl Heard {
    fn cannot_ask(&mut self, who: &str, why: &str) {
        self.unasked.push(format!("{who} cannot be asked whether the run goes on there: {}", escape(why)));
    }

    fn refuse(&self, run: &RunDir, own_step: u64) -> Result<(), Failure> {
        let program = program_name();
        let second = format!(
            "`{program} resume --accept-changes {}` continues it here all the same, as a second run",
            run_argument(run)
        );
        let furthest = self.successors.iter().max_by_key(|(_, there)| (there.trains, there.step));
        if let Some((name, there)) = furthest.filter(|(_, there)| there.trains || there.step > own_step) {
            let Successor { run: other, step, trains } = there;
            let text = format!(
                "{name} {} with this run in place of the machine that had it: {} {} done there, and {} here",
                if *trains { "goes on" } else { "has gone on" },
                counted(*step, "step"),
                if *step == 1 { "is" } else { "are" },
                count(own_step)
            );
            let next = if *trains {
                format!("`{program} watch {other}` shows it there, and `{program} stop {other}` stops it")
            } else {
                format!("`{program} resume --cluster {other}` continues it there, unless it is complete")
            };
            return Err(Failure::usage(text).hint(next).hint(second));
        }
        if self.training.is_empty() {
            return Ok(());
        }
        let by = self.training.join(" and ");
        let text = format!("this run goes on without this machine: it is trained by {by}");
        let hint = format!("`{program} cluster status` shows it");
        Err(Failure::usage(text).hint(hint).hint(second))
    }
}

/// Returns the successors of a run that are next to it.
fn on_this_machine(run: &RunDir, names: &[String]) -> Result<Vec<(String, Successor)>, Failure> {
    let path = run.path().canonicalize().map_err(|error| Failure::io("open", run.path(), &error))?;
    let Some(root) = path.parent().map(RunsRoot::new) else { return Ok(Vec::new()) };
    let mut found = Vec::new();
    for name in names {
        let others = root.successors_of(name)?.into_iter().filter(|other| other.name() != run.name());
        found.extend(others.map(|other| ("this machine".to_owned(), described(&other))));
    }
    Ok(found)
}

/// Says how far a successor is.
pub(super) fn described(run: &RunDir) -> Successor {
    Successor {
        // On a disk without links, its folder is hidden while it trains.
        run: run.followed().map_or_else(|| run.name(), str::to_owned),
        // Its log may be damaged, and it trains all the same.
        step: RunView::glance(run).map_or(0, |view| view.steps_done()),
        trains: sparktune_runlog::Lease::is_held(run).unwrap_or(false),
    }
}

/// Asks all members that this one has heard of, at the same time: the coordinator may be lost too.
fn on_members(
    membership: &Membership,
    names: &[String],
    cancelled: &Cancelled,
    heard: &mut Heard,
) -> Result<(), Failure> {
    let token = membership.token()?;
    let own = ("127.0.0.1".to_owned(), membership.port);
    let (sender, answers) = mpsc::channel();
    let mut awaited = membership.places();
    for place in awaited.clone() {
        let (token, names) = (token.clone(), names.to_vec());
        let (sender, cancelled) = (sender.clone(), Cancelled::clone(cancelled));
        std::thread::spawn(move || {
            let answer = at_place(&place, &token, &names, &cancelled);
            sender.send((place, answer))
        });
    }
    drop(sender);
    let deadline = Instant::now() + PATIENCE;
    let named = |(host, port): &(String, u16)| format!("the member at {}:{port}", escape(host));
    while let Some((place, answer)) = next(&answers, deadline, cancelled)? {
        awaited.retain(|other| *other != place);
        let answers = match answer {
            Ok(answers) => answers,
            // What is on this machine is known without its agent.
            Err(_) if place == own => continue,
            Err(error) => {
                heard.cannot_ask(&named(&place), &error.to_string());
                continue;
            }
        };
        for GoesOn { member, trains, successor } in answers {
            let name = if place == own { "this machine".to_owned() } else { escape(&member).into_owned() };
            heard.training.extend(trains.then(|| name.clone()));
            heard.successors.extend(successor.map(|there| (name, there)));
        }
    }
    awaited
        .iter()
        .filter(|place| **place != own)
        .for_each(|place| heard.cannot_ask(&named(place), "it does not answer"));
    Ok(())
}

fn at_place(
    (host, port): &(String, u16),
    token: &ClusterToken,
    names: &[String],
    cancelled: &Cancelled,
) -> Result<Vec<GoesOn>, Error> {
    names.iter().map(|run| goes_on(host, *port, token, run, Cancelled::clone(cancelled))).collect()
}

/// Waits for what a thread has found out: `None` after the deadline, or when all have said it.
fn next<T>(said: &mpsc::Receiver<T>, deadline: Instant, cancelled: &Cancelled) -> Result<Option<T>, Failure> {
    loop {
        if cancelled() {
            return Err(Failure::new(Exit::Interrupted, "interrupted before the run was resumed"));
        }
        match said.recv_timeout(LOOK) {
            Ok(said) => return Ok(Some(said)),
            Err(RecvTimeoutError::Timeout) if Instant::now() < deadline => {}
            Err(_) => return Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use sparktune_runlog::Lease;

    use super::*;

    fn never() -> Cancelled {
        Arc::new(|| false)
    }

    #[test]
    fn only_a_run_that_is_further_elsewhere_or_trains_there_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let run = RunsRoot::new(folder.path()).create("a", "lora").unwrap();
        let refused = |step, trains| {
            let there = Successor { run: "a-1".into(), step, trains };
            Heard { successors: vec![("spark2".into(), there)], ..Heard::default() }.refuse(&run, 4)
        };
        // If both refused at the same step, nobody could resume the run.
        assert!(refused(4, false).is_ok() && refused(3, false).is_ok());
        for (step, trains, words) in [(5, false, "has gone on"), (4, true, "goes on"), (3, true, "goes on")] {
            assert!(refused(step, trains).unwrap_err().text.contains(words));
        }
        let training = vec!["spark2".to_owned(), "spark3".to_owned()];
        let follows = Heard { training, unasked: vec!["the leader".into()], ..Heard::default() };
        assert!(follows.refuse(&run, 4).unwrap_err().text.contains("by spark2 and spark3"));
    }

    #[test]
    fn a_successor_beside_the_run_is_found_and_the_run_itself_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let root = RunsRoot::new(folder.path());
        let run = root.create("a", "lora").unwrap();
        let found = || on_this_machine(&run, &[run.name()]).unwrap();
        assert!(found().is_empty());
        let (rank, _) = root.of_rank(&run.name(), 1).unwrap();
        let _lease = Lease::acquire(&rank).unwrap();
        rank.become_successor().unwrap();
        let [(_, there)] = &found()[..] else { panic!("{:?}", found()) };
        assert!(there.trains && there.run == rank.name());
        let again = root.resolve(&rank.name()).unwrap();
        assert!(on_this_machine(&again, &[again.name(), run.name()]).unwrap().is_empty());
    }

    #[test]
    fn members_that_do_not_answer_are_named_and_ctrl_c_ends_the_question() {
        // It accepts connections, and says nothing.
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut membership = Membership::new(&ClusterToken::generate(), None, 7300, None);
        membership.known = vec![silent.local_addr().unwrap()];
        let asked = |cancelled: Cancelled| {
            let mut heard = Heard::default();
            on_members(&membership, &["a-run".to_owned()], &cancelled, &mut heard).map(|()| heard)
        };
        let Err(ended) = asked(Arc::new(|| true)) else { panic!("it went on") };
        assert_eq!(ended.exit, Exit::Interrupted);
        let heard = asked(never()).unwrap();
        assert!(heard.successors.is_empty() && heard.unasked[0].contains(&membership.known[0].to_string()));
    }
}
