//! One rank of several processes that train together: who it is, how it joins, and what rank 0 gives the
//! others.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use sparktune_app::cluster::PLACES;
use sparktune_app::failure::Failure;
use sparktune_app::program::Program;
use sparktune_base::units::bytes;
use sparktune_cluster::tcp;
use sparktune_cluster::{
    Collective, Error as ClusterError, JobToken, Limits, Placement, share_files_and_tell,
};
use sparktune_plan::{Device, Plan};
use sparktune_runlog::{Models, RunDir};
use sparktune_tui::output::note;

use crate::engine;

/// The time that the others wait for rank 0, which may first have to download a model and tokenise data.
const WAIT_FOR_RANK_0: Duration = Duration::from_secs(6 * 3600);
/// The time that a rank waits that an agent started: rank 0 has everything then.
const WAIT_OF_MEMBER: Duration = Duration::from_secs(600);
/// The time between two lines about what has been sent.
const BETWEEN_LINES: Duration = Duration::from_secs(5);

/// Returns the place that a launcher gave this process, or `None` if it trains alone.
///
/// # Errors
/// The launcher's variables are incomplete or contradict each other.
pub(crate) fn placement() -> Result<Option<Placement>, Failure> {
    let get = |name: &str| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned());
    Ok(Placement::from_environment(get)?)
}

/// Returns this process's place if it is a rank other than 0.
///
/// # Errors
/// The same as for [`placement`].
pub(crate) fn other_rank() -> Result<Option<Placement>, Failure> {
    Ok(placement()?.filter(|placement| placement.rank > 0))
}

/// Meets the other ranks. `asked` is the engine that this one asks for, which counts at rank 0.
///
/// # Errors
/// They do not come, or do not belong to this job.
pub(crate) fn join(
    program: &Program,
    placement: &Placement,
    stop: &Arc<AtomicBool>,
    asked: &str,
) -> Result<Box<dyn Collective>, Failure> {
    join_within(program, placement, stop, asked, None, Vec::new())
}

/// Like [`join`], with a limit on the wait for rank 0, whose place may have been taken at one of the places
/// `also`.
///
/// # Errors
/// The same as for [`join`].
pub(crate) fn join_within(
    program: &Program,
    placement: &Placement,
    stop: &Arc<AtomicBool>,
    asked: &str,
    limit: Option<Duration>,
    also: Vec<(String, u16)>,
) -> Result<Box<dyn Collective>, Failure> {
    let token = token()?;
    let stop = Arc::clone(stop);
    let interrupted = Arc::new(move || stop.load(Ordering::SeqCst));
    let build = program.build_hash()?;
    let mut limits = Limits::default();
    if placement.rank > 0 {
        limits.meeting = limit.unwrap_or(if places().is_some() { WAIT_OF_MEMBER } else { WAIT_FOR_RANK_0 });
    }
    let tell = Arc::new(|line: String| note(&line));
    let tcp = tcp::join_and_tell(placement, token.as_ref(), &build, limits, interrupted, tell, also)?;
    engine::opened(tcp, placement, token.as_ref(), asked)
}

/// Refuses a rank 0 without the token that it needs, before it plans and tokenises.
///
/// # Errors
/// There is none, or it is too short.
pub(crate) fn refuse_missing_token(placement: &Placement) -> Result<(), Failure> {
    Ok(sparktune_cluster::refuse_missing_token(placement, token()?.as_ref())?)
}

fn token() -> Result<Option<JobToken>, ClusterError> {
    let text = std::env::var_os(JobToken::VARIABLE);
    text.map(|text| JobToken::parse(&text.to_string_lossy())).transpose()
}

/// Returns where the agent that started this rank has put the models, or `None` if no agent did.
pub(crate) fn places() -> Option<Models> {
    let [base, head] = PLACES.map(|name| std::env::var_os(name).map(PathBuf::from));
    base.map(|base| Models { base, head })
}

/// Gives the other ranks what they need of a run of this name, at rank 0.
///
/// # Errors
/// A file cannot be read, or a rank is gone.
pub(crate) fn share_run(ranks: &mut dyn Collective, run: &RunDir, name: &str) -> Result<(), Failure> {
    let names = names_of(run)?;
    Ok(send_run(ranks, run, name, &names)?)
}

/// Does the same when the ranks of a swarm have met again.
///
/// # Errors
/// The same as for [`share_run`], or the members have changed.
pub(crate) fn share_run_again(
    ranks: &mut dyn Collective,
    run: &RunDir,
    name: &str,
) -> Result<(), ClusterError> {
    let unshared = |failure: Failure| ClusterError::Agent { at: "the run".into(), why: failure.to_string() };
    let names = names_of(run).map_err(unshared)?;
    send_run(ranks, run, name, &names)
}

/// Returns the files of a run that other ranks need.
fn names_of(run: &RunDir) -> Result<Vec<String>, Failure> {
    let mut names = vec!["plan.toml".to_owned()];
    for folder in [run.data(), run.parent()] {
        names.extend(files_of(run, &folder)?);
    }
    for file in [run.chat_template(), run.earlier_runs()] {
        let name = file.strip_prefix(run.path()).unwrap_or(&file).to_string_lossy().into_owned();
        names.extend(file.exists().then_some(name));
    }
    Ok(names)
}

fn send_run(
    ranks: &mut dyn Collective,
    run: &RunDir,
    name: &str,
    names: &[String],
) -> Result<(), ClusterError> {
    ranks.broadcast(name.as_bytes())?;
    share_files_and_tell(ranks, run.path(), names, &mut telling("sent to the other ranks"))
}

/// Returns what says now and then how much of a run has been sent.
pub(crate) fn telling(what: &'static str) -> impl FnMut(u64, u64) {
    let mut told = Instant::now();
    move |done, all| {
        if told.elapsed() >= BETWEEN_LINES {
            told = Instant::now();
            note(&format!("{} of {} of the run {what}", bytes(done), bytes(all)));
        }
    }
}

/// Returns the files that a folder of a run has, by their names in the run.
fn files_of(run: &RunDir, folder: &Path) -> Result<Vec<String>, Failure> {
    let failed = |error| Failure::io("list", folder, &error);
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(failed)?,
    };
    let mut names = Vec::new();
    for entry in entries {
        let path = entry.map_err(failed)?.path();
        let name = path.strip_prefix(run.path()).unwrap_or(&path);
        names.extend(path.is_file().then(|| name.to_string_lossy().into_owned()));
    }
    names.sort();
    Ok(names)
}

/// Refuses a second rank on a machine with a GPU: each rank trains on the first one.
pub(crate) fn refuse_second_gpu(plan: &Plan, placement: &Placement) -> Result<(), Failure> {
    if plan.device == Device::Cuda && placement.local_rank > 0 {
        return Err(Failure::usage(
            "two ranks on one machine would train on the same GPU. Start one rank on each machine",
        ));
    }
    Ok(())
}
