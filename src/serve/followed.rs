//! Runs as the server knows them: each is read once, and from then on only what is new, whoever asks.
//!
//! Enters: run folders. Leaves: the view of a run, its steps, and whether its trainer lives. Reading waits
//! for the disk, so it belongs into threads where that is allowed.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use axum::body::Bytes;
use sparktune_app::runs::planned;
use sparktune_runlog::{Error, EventTailer, Kind, Limit, Liveness, RunDir, RunView, RunsRoot, Sample};

use crate::ids;
use crate::locked::lock;
use crate::problem::Problem;
use crate::steps::Steps;

/// The number of runs that are kept in memory, the most recently asked ones.
const KEPT: usize = 16;
/// The most steps of all of them together, 28 bytes each, unless one alone has more.
const MOST_STEPS: usize = 4_000_000;
/// The age up to which the last reading of a run answers.
const FRESH: Duration = Duration::from_millis(200);
/// The number of samples that are kept.
const SAMPLES: usize = 2000;
/// The number of answers about the same position that are kept.
const ANSWERS: usize = 16;
/// The number of problems of the files that are kept.
const NOTICES: usize = 20;

/// The runs that were asked for.
#[derive(Default)]
pub(crate) struct FollowedRuns {
    runs: Mutex<Vec<Arc<Followed>>>,
}

/// A run that was asked for.
pub(crate) struct Followed {
    /// Its folder.
    pub run: RunDir,
    known: Mutex<Known>,
}

/// What is known about a run.
pub(crate) struct Known {
    /// All events, folded.
    pub view: RunView,
    /// The steps that count.
    pub steps: Steps,
    /// Whether its trainer lives.
    pub liveness: Liveness,
    /// Attempt and number of the last event.
    pub position: (u32, u64),
    /// The newest samples, each with whether a later attempt repeated its step.
    pub samples: Vec<(Sample, bool)>,
    /// Problems of the files, the newest last.
    pub notices: Vec<String>,
    /// Answers about this position, by their question: many watchers ask the same.
    pub answers: HashMap<String, Bytes>,
    tailer: EventTailer,
    read: Option<Instant>,
}

/// Returns the run of this name.
///
/// # Errors
/// It is no name of a run, or cannot be opened.
pub(crate) fn find(runs: &RunsRoot, id: &str) -> Result<RunDir, Problem> {
    ids::checked(id)?;
    let advise = |problem: Problem| problem.advise("GET /api/v1/runs lists the runs");
    let path = runs.path().join(id);
    // A link is a run only if the list says so, which knows whose it is.
    let is_folder = path.symlink_metadata().is_ok_and(|found| found.is_dir());
    if !is_folder {
        let listed = runs.list()?.into_iter().find(|run| run.name() == id);
        return listed.ok_or_else(|| advise(Problem::not_found("run", id)));
    }
    RunDir::open(&path).map_err(|error| match error {
        Error::NotARun { .. } => advise(Problem::not_found("run", id)),
        error => error.into(),
    })
}

impl FollowedRuns {
    /// Returns the run of this name.
    ///
    /// # Errors
    /// There is none.
    pub(crate) fn get(&self, runs: &RunsRoot, id: &str) -> Result<Arc<Followed>, Problem> {
        let run = find(runs, id)?;
        let mut followed = lock(&self.runs);
        let found = match followed.iter().position(|known| known.run == run) {
            Some(at) => followed.remove(at),
            None => Arc::new(Followed::new(run)),
        };
        followed.push(found.clone());
        // One that is being read at this moment is in use, and is counted the next time.
        let steps_of = |known: &Arc<Followed>| known.known.try_lock().map_or(0, |known| known.steps.len());
        while followed.len() > KEPT
            || followed.len() > 1 && followed.iter().map(steps_of).sum::<usize>() > MOST_STEPS
        {
            followed.remove(0);
        }
        Ok(found)
    }
}

impl Followed {
    fn new(run: RunDir) -> Self {
        let mut view = RunView::default();
        if let Some(planned) = planned(&run) {
            view.expect(planned);
        }
        let known = Known {
            view,
            steps: Steps::default(),
            liveness: Liveness::NotStarted,
            position: (0, 0),
            samples: Vec::new(),
            notices: Vec::new(),
            answers: HashMap::new(),
            tailer: EventTailer::new(&run),
            read: None,
        };
        Self { run, known: Mutex::new(known) }
    }

    /// Reads what is new, unless somebody has just done so, and returns what is known.
    ///
    /// # Errors
    /// The run cannot be read.
    pub(crate) fn read(&self) -> Result<MutexGuard<'_, Known>, Problem> {
        let mut known = lock(&self.known);
        if known.read.is_none_or(|read| read.elapsed() >= FRESH) {
            known.catch_up(&self.run)?;
            known.read = Some(Instant::now());
        }
        Ok(known)
    }
}

impl Known {
    fn catch_up(&mut self, run: &RunDir) -> Result<(), Error> {
        // Before the events, so that the last ones of a trainer that ends are read.
        let liveness = self.view.liveness(run)?;
        let before = self.position;
        loop {
            let Self { view, steps, position, samples, .. } = self;
            let polled = self.tailer.poll_with(Limit::NONE, |event, _| {
                let at = (event.attempt, event.seq);
                if at <= *position {
                    return;
                }
                *position = at;
                match &event.kind {
                    Kind::RunStarted(started) => {
                        let step = started.resumed_from_step.unwrap_or(0);
                        steps.cut_after(step);
                        let repeated = samples.iter_mut().filter(|(sample, _)| sample.step > step);
                        repeated.for_each(|(_, discarded)| *discarded = true);
                    }
                    Kind::Sample(sample) => {
                        if samples.len() == SAMPLES {
                            samples.remove(0);
                        }
                        samples.push((sample.clone(), false));
                    }
                    Kind::Step(step) => steps.push(step),
                    _ => {}
                }
                view.apply(&event);
            })?;
            self.notices.extend(polled.notices.iter().map(ToString::to_string));
            self.notices.drain(..self.notices.len().saturating_sub(NOTICES));
            if polled.at_end {
                break;
            }
        }
        if self.position != before || self.answers.len() > ANSWERS {
            self.answers.clear();
        }
        self.liveness = if liveness.is_live() { liveness } else { self.view.liveness(run)? };
        Ok(())
    }
}
