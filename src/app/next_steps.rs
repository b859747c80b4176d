//! What a user can do next with a complete run, as commands and sentences for every interface.
//!
//! Enters: the run's plan and what it logged. Leaves: text, in which `run` is the name of the run, quoted for
//! a shell.

use sparktune_base::program_name;
use sparktune_plan::Plan;
use sparktune_runlog::{Outcome, RunView};

/// The end of the path of the demo's data.
const DEMO_DATA: &str = "presets/demo/train.jsonl";

/// Returns whether a run is trained on the demo's data, about which the suite `demo` asks.
pub fn is_of_demo(plan: &Plan) -> bool {
    matches!(&plan.data.train[..], [only] if only.ends_with(DEMO_DATA))
}

/// Returns the command that compares a run with the model it started from, by a suite that suits its data.
pub fn compare_command(run: &str, plan: Option<&Plan>) -> String {
    let suite = if plan.is_some_and(is_of_demo) { " --suite demo" } else { "" };
    format!("{} compare {run}{suite}", program_name())
}

/// Says how a completed run is trained on whose loss on the eval set was still falling at its end.
pub fn training_on(run: &str, plan: &Plan, view: &RunView) -> Option<String> {
    if view.outcome() != Some(Outcome::Completed) || !view.is_still_falling() {
        return None;
    }
    // What has ended the run is what has to become longer.
    let longer = match plan.duration.max_steps.filter(|most| view.total_steps() == Some(*most)) {
        Some(steps) => format!("--max-steps {}", 2 * steps),
        None => format!("--epochs {}", 2.0 * plan.duration.epochs),
    };
    let resume = resume_command(&format!("{run} {longer}"), view);
    Some(format!("The held-out loss was still falling; {resume} trains on"))
}

/// Returns the command that continues a run, in backticks; `run` may be followed by options. That of a run of
/// several ranks is another one.
pub fn resume_command(run: &str, view: &RunView) -> String {
    let program = program_name();
    let sampled = view.member_samples.as_ref().map_or(0, |samples| samples.ranks.len());
    if ranks_of_swarm(view).max(sampled) < 2 {
        return format!("`{program} resume {run}`");
    }
    format!(
        "`{program} resume --cluster {run}` (or `{program} resume {run}` on every rank, where another launcher started them)"
    )
}

/// Says that the ranks of a swarm may go on without the one that had the run, if that can be.
pub fn gone_on_elsewhere(view: &RunView) -> Option<String> {
    let program = program_name();
    (ranks_of_swarm(view) > 2).then(|| {
        format!(
            "The other ranks may go on without this one, and one of them has the run then: `{program} cluster status` shows what they do. Do not resume it here meanwhile, which would make a second run of it"
        )
    })
}

fn ranks_of_swarm(view: &RunView) -> usize {
    view.members.as_ref().map_or(0, |now| now.members.len())
}

#[cfg(test)]
mod tests {
    use sparktune_runlog::{Eval, Event, Kind, Members, RunFinished, RunStarted};

    use super::*;

    fn plan() -> Plan {
        Plan::from_toml(include_str!("../../tests/fixtures/run-261c35e/run/plan.toml"), "plan.toml").unwrap()
    }

    fn ended(outcome: Outcome, total_steps: u64, losses: &[f64]) -> RunView {
        let mut kinds =
            vec![Kind::RunStarted(RunStarted { total_steps: Some(total_steps), ..RunStarted::default() })];
        kinds.extend(
            (1..)
                .zip(losses)
                .map(|(step, loss_nats)| Kind::Eval(Eval { step, loss_nats: *loss_nats, ..Eval::default() })),
        );
        kinds.push(Kind::RunFinished(RunFinished { outcome, ..RunFinished::default() }));
        let mut view = RunView::default();
        for (seq, kind) in (1..).zip(kinds) {
            view.apply(&Event { attempt: 1, seq, time_us: seq, kind });
        }
        view
    }

    #[test]
    fn a_run_that_was_still_learning_is_told_how_it_goes_on() {
        let plan = plan();
        let said = |outcome, steps, losses: &[f64]| training_on("r", &plan, &ended(outcome, steps, losses));
        let falling = [7.0, 3.0, 2.0];
        for (steps, longer) in [(30, "--max-steps 60"), (29, "--epochs 6")] {
            let words = said(Outcome::Completed, steps, &falling).unwrap();
            let command = format!("`{} resume r {longer}` trains on", program_name());
            assert!(words.starts_with("The held-out loss was still falling; ") && words.ends_with(&command));
        }
        let mut of_ranks = ended(Outcome::Completed, 30, &falling);
        of_ranks.members = Some(Members { members: vec![0, 1], ..Members::default() });
        let words = training_on("r", &plan, &of_ranks).unwrap();
        assert!(words.contains("resume --cluster r --max-steps 60`"), "{words}");
        assert_eq!(said(Outcome::Stopped, 30, &falling), None, "it is resumed anyway");
        assert_eq!(said(Outcome::Completed, 30, &[7.0, 2.0, 1.99]), None);
    }

    #[test]
    fn a_run_of_the_demo_is_compared_by_what_the_demo_teaches() {
        let mut plan = plan();
        let command = |plan: &Plan| compare_command("r", Some(plan));
        assert!(command(&plan).ends_with(" compare r"));
        plan.data.train = vec!["/opt/sparktune/presets/demo/train.jsonl".into()];
        assert!(command(&plan).ends_with(" compare r --suite demo"));
        plan.data.train.push("mine.jsonl".into());
        assert!(command(&plan).ends_with(" compare r"));
    }
}
