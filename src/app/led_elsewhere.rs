//! Runs that this machine only takes part in: another machine leads them and has their folders.

use sparktune_base::program_name;
use sparktune_runlog::{Lease, RunDir, RunsRoot, may_be_called};

use crate::failure::Failure;

/// Says where a run is of which a process of this machine trains as one of several ranks. `latest` is any.
pub(crate) fn led_elsewhere(root: &RunsRoot, name: &str) -> Option<Failure> {
    let folders = root.rank_folders().unwrap_or_default();
    let trains = folders.iter().filter(|folder| Lease::is_held(folder).unwrap_or(false));
    let run = trains.filter_map(RunDir::followed).find(|run| name == "latest" || may_be_called(run, name))?;
    let text = format!("this machine trains as a rank of {run}, which is led from another machine");
    Some(Failure::usage(text).hint(format!(
        "Watch and stop it there; `{} cluster status` shows which machine is rank 0, if --cluster started the run",
        program_name()
    )))
}
