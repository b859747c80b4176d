//! Long work that a request starts: it goes on when the client leaves, reports its progress, and can be
//! cancelled. Each task has a thread of its own, because the functions of `app` wait.
//!
//! Tasks are in memory: a server that ends ends them. A trainer that a task has started goes on.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use serde::Serialize;
use serde_json::Value;
use sparktune_app::failure::{Exit, Failure};
use sparktune_app::listener::{Progress, Reporter, Unit};
use sparktune_runlog::now_us;
use tokio::sync::watch;
use utoipa::ToSchema;

use crate::ids;
use crate::locked::lock;
use crate::problem::Problem;

/// The number of tasks that have ended and can still be read, and the most bytes of their results as text.
const KEPT: usize = 200;
const KEPT_BYTES: usize = 128 << 20;
/// The share of one task in these bytes. Forgetting results that are not larger would hardly make room.
const SHARE: usize = KEPT_BYTES / KEPT;
/// How long a large result stays in any case, so that a client that has waited for it can read it.
const STAYS: Duration = Duration::from_secs(60);
/// The number of tasks that only wait, beside those that compute.
const MOST_WAITING: usize = 32;
/// The time between two looks at whether a task was cancelled.
const BETWEEN_LOOKS: Duration = Duration::from_millis(100);

/// A task and how far it is.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct Task {
    /// Its name.
    pub id: String,
    /// What it does: `export`, `check`, `fetch`, ….
    pub kind: &'static str,
    /// Whether it runs, and otherwise how it ended.
    pub state: TaskState,
    /// How far it is, once that is known.
    pub progress: Option<TaskProgress>,
    /// What it has found or made, when it is done. The list of all tasks leaves it out.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Object, nullable)]
    pub result: Option<Value>,
    /// Why it failed.
    pub error: Option<Problem>,
    /// When it started, in microseconds since the Unix epoch.
    pub created_us: u64,
}

impl Task {
    /// Returns a copy without the result, which may have megabytes.
    fn without_result(&self) -> Self {
        Self {
            id: self.id.clone(),
            kind: self.kind,
            state: self.state,
            progress: self.progress.clone(),
            result: None,
            error: self.error.clone(),
            created_us: self.created_us,
        }
    }
}

/// Whether a task runs, and otherwise how it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum TaskState {
    /// It runs.
    Running,
    /// It has reached its goal.
    Done,
    /// It failed; see `error`.
    Failed,
    /// It ended because somebody wanted it to.
    Cancelled,
}

/// How far a task is.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct TaskProgress {
    /// What it does now, in a few words.
    pub what: String,
    /// The amount that is done.
    pub done: u64,
    /// The whole amount, if it is known.
    pub total: Option<u64>,
    /// What is counted: `bytes` or `count`.
    pub unit: &'static str,
    /// What else is to be said.
    pub note: Option<String>,
}

impl From<Progress> for TaskProgress {
    fn from(progress: Progress) -> Self {
        let Progress { what, done, total, unit, note } = progress;
        let unit = match unit {
            Unit::Bytes => "bytes",
            Unit::Count => "count",
        };
        Self { what, done, total, unit, note }
    }
}

/// A task as the work itself sees it.
#[derive(Clone)]
pub(crate) struct Work {
    sender: Arc<watch::Sender<Task>>,
    cancel: Arc<AtomicBool>,
    /// The bytes of its result as text.
    bytes: Arc<AtomicUsize>,
    /// When it ended.
    ended: Arc<OnceLock<Instant>>,
}

impl Work {
    /// Returns the flag that is set when the task should end.
    pub(crate) fn cancel(&self) -> Arc<AtomicBool> {
        self.cancel.clone()
    }

    /// Returns whether the task should end.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancel.load(Ordering::Relaxed)
    }

    /// Returns once the task should end, for work that the runtime waits for.
    pub(crate) async fn cancelled(&self) {
        while !self.is_cancelled() {
            tokio::time::sleep(BETWEEN_LOOKS).await;
        }
    }

    /// Reports how far the work is.
    pub(crate) fn progress(&self, progress: TaskProgress) {
        self.sender.send_modify(|task| task.progress = Some(progress));
    }

    /// Reports what the work does, if its amount is not known.
    pub(crate) fn says(&self, what: impl Into<String>) {
        self.progress(TaskProgress { what: what.into(), done: 0, total: None, unit: "count", note: None });
    }

    /// Returns a listener for functions of `app` that reports their progress as that of the task.
    pub(crate) fn listener(&self) -> Reporter<impl Fn(Progress) + Sync + use<>> {
        let work = self.clone();
        Reporter::new(self.cancel(), move |progress| work.progress(progress.into()))
    }
}

/// All tasks of this server, the oldest first.
pub(crate) struct Tasks {
    tasks: Arc<Mutex<Vec<Work>>>,
    most: usize,
}

impl Tasks {
    /// No tasks yet, and at most this many at a time.
    pub(crate) fn new(most: usize) -> Self {
        Self { tasks: Arc::default(), most }
    }

    /// Starts work in a thread of its own.
    ///
    /// # Errors
    /// Too many tasks run, or the system has no more threads.
    pub(crate) fn start<F>(&self, kind: &'static str, work: F) -> Result<Task, Problem>
    where
        F: FnOnce(&Work) -> Result<Value, Problem> + Send + 'static,
    {
        self.place_below(self.most, kind)?.start(work)
    }

    /// Takes a place for work that only waits, such as for a trainer that is asked to stop. The tasks that
    /// compute leave room for it. Take it before you ask for what is waited for, so that who is refused has
    /// asked for nothing.
    ///
    /// # Errors
    /// Very many tasks run.
    pub(crate) fn place_to_wait(&self, kind: &'static str) -> Result<Place<'_>, Problem> {
        self.place_below(self.most + MOST_WAITING, kind)
    }

    fn place_below(&self, most: usize, kind: &'static str) -> Result<Place<'_>, Problem> {
        let task = Task {
            id: ids::new(),
            kind,
            state: TaskState::Running,
            progress: None,
            result: None,
            error: None,
            created_us: now_us(),
        };
        let sender = Arc::new(watch::Sender::new(task));
        let own = Work { sender, cancel: Arc::default(), bytes: Arc::default(), ended: Arc::default() };
        let mut tasks = lock(&self.tasks);
        let running = tasks.iter().filter(|task| task.is_running()).count();
        if running >= most {
            let text = format!("{running} tasks are running, which is the most at a time");
            return Err(Problem::new(StatusCode::TOO_MANY_REQUESTS, text)
                .advise("Wait until one has ended, or cancel one with DELETE /api/v1/tasks/{id}"));
        }
        tasks.push(own.clone());
        Ok(Place { tasks: self, work: own, is_taken: false })
    }

    /// Forgets the oldest tasks that have ended, if there are too many.
    fn forget_oldest(&self) {
        let mut tasks = lock(&self.tasks);
        while tasks.len() > KEPT
            && let Some(oldest) = tasks.iter().position(|task| !task.is_running())
        {
            tasks.remove(oldest);
        }
    }

    /// Returns all tasks without their results, the newest first.
    pub(crate) fn list(&self) -> Vec<Task> {
        lock(&self.tasks).iter().rev().map(|task| task.sender.borrow().without_result()).collect()
    }

    /// Returns the changes of a task.
    ///
    /// # Errors
    /// There is no such task.
    pub(crate) fn watch(&self, id: &str) -> Result<watch::Receiver<Task>, Problem> {
        self.find(id).map(|task| task.sender.subscribe())
    }

    /// Asks a task to end.
    ///
    /// # Errors
    /// There is no such task.
    pub(crate) fn cancel(&self, id: &str) -> Result<Task, Problem> {
        let task = self.find(id)?;
        task.cancel.store(true, Ordering::Relaxed);
        Ok(task.sender.borrow().clone())
    }

    fn find(&self, id: &str) -> Result<Work, Problem> {
        let tasks = lock(&self.tasks);
        let found = tasks.iter().find(|task| task.sender.borrow().id == id).cloned();
        found.ok_or_else(|| {
            Problem::not_found("task", id).advise(
                "The server was started again since then, or forgot the task to make room for others and their results. Start the task again if you still need its result",
            )
        })
    }
}

/// Forgets the oldest tasks with large results, if all results together are too large.
fn forget_large(tasks: &mut Vec<Work>, now: Instant) {
    let bytes = |task: &Work| task.bytes.load(Ordering::Relaxed);
    let may_go = |task: &Work| {
        bytes(task) > SHARE && task.ended.get().is_some_and(|ended| now.duration_since(*ended) >= STAYS)
    };
    while tasks.iter().map(bytes).sum::<usize>() > KEPT_BYTES
        && let Some(oldest) = tasks.iter().position(may_go)
    {
        tasks.remove(oldest);
    }
}

/// A task that has no work yet. Without any it leaves no trace.
pub(crate) struct Place<'a> {
    tasks: &'a Tasks,
    work: Work,
    is_taken: bool,
}

impl Place<'_> {
    /// Starts its work in a thread of its own.
    ///
    /// # Errors
    /// The system has no more threads.
    pub(crate) fn start<F>(mut self, work: F) -> Result<Task, Problem>
    where
        F: FnOnce(&Work) -> Result<Value, Problem> + Send + 'static,
    {
        let (in_thread, all) = (self.work.clone(), self.tasks.tasks.clone());
        let task = in_thread.sender.borrow().clone();
        let body = move || {
            let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| work(&in_thread)));
            in_thread.end(ended.unwrap_or_else(|_| {
                Err(Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "a bug in sparktune ended this task"))
            }));
            forget_large(&mut lock(&all), Instant::now());
        };
        std::thread::Builder::new().name(task.kind.into()).spawn(body).map_err(|error| {
            Problem::new(StatusCode::SERVICE_UNAVAILABLE, format!("no thread can be started: {error}"))
        })?;
        self.is_taken = true;
        self.tasks.forget_oldest();
        forget_large(&mut lock(&self.tasks.tasks), Instant::now());
        Ok(task)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if !self.is_taken {
            lock(&self.tasks.tasks).retain(|task| !Arc::ptr_eq(&task.sender, &self.work.sender));
        }
    }
}

impl Work {
    fn is_running(&self) -> bool {
        self.sender.borrow().state == TaskState::Running
    }

    fn end(&self, ended: Result<Value, Problem>) {
        let bytes = ended.as_ref().map_or(0, |result| result.to_string().len());
        self.bytes.store(bytes, Ordering::Relaxed);
        let _ = self.ended.set(Instant::now());
        self.sender.send_modify(|task| match ended {
            Ok(result) => (task.state, task.result) = (TaskState::Done, Some(result)),
            Err(_) if self.is_cancelled() => task.state = TaskState::Cancelled,
            Err(problem) => (task.state, task.error) = (TaskState::Failed, Some(problem)),
        });
    }
}

/// Returns the failure of work that was cancelled.
pub(crate) fn cancelled() -> Problem {
    Failure::new(Exit::Interrupted, "cancelled").into()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn ended(tasks: &Tasks, id: &str) -> Task {
        for _ in 0..12_000 {
            let task = tasks.watch(id).unwrap().borrow().clone();
            if task.state != TaskState::Running {
                return task;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("it does not end");
    }

    #[test]
    fn a_task_ends_with_its_result_its_error_or_because_it_was_cancelled() {
        let tasks = Tasks::new(8);
        let start = |work: fn(&Work) -> Result<Value, Problem>| tasks.start("test", work).unwrap().id;
        let done = ended(
            &tasks,
            &start(|work| {
                work.says("counting");
                Ok(json!({"n": 1}))
            }),
        );
        assert_eq!((done.state, done.result), (TaskState::Done, Some(json!({"n": 1}))));
        assert_eq!(done.progress.unwrap().what, "counting");
        let failed = ended(&tasks, &start(|_| Err(Problem::bad_request("no"))));
        assert_eq!((failed.state, failed.error.unwrap().detail.as_str()), (TaskState::Failed, "no"));
        let failed = ended(&tasks, &start(|_| panic!("a bug")));
        assert!(failed.error.unwrap().detail.contains("bug"));
        let id = start(|work| {
            while !work.is_cancelled() {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(cancelled())
        });
        tasks.cancel(&id).unwrap();
        assert_eq!(ended(&tasks, &id).state, TaskState::Cancelled);
        let listed = tasks.list();
        assert!(listed.len() == 4 && listed.iter().all(|task| task.result.is_none()), "{listed:?}");
        assert_eq!(tasks.watch("other").unwrap_err().status, 404);
    }

    #[test]
    fn more_tasks_than_the_limit_are_refused_until_one_has_ended() {
        let tasks = Tasks::new(1);
        let first = tasks
            .start("test", |work| {
                while !work.is_cancelled() {
                    std::thread::sleep(Duration::from_millis(1));
                }
                Ok(Value::Null)
            })
            .unwrap();
        assert_eq!(tasks.start("test", |_| Ok(Value::Null)).unwrap_err().status, 429);
        tasks.cancel(&first.id).unwrap();
        ended(&tasks, &first.id);
        tasks.start("test", |_| Ok(Value::Null)).unwrap();
    }

    #[test]
    fn a_place_counts_before_its_work_begins_and_leaves_no_trace_without_any() {
        let tasks = Tasks::new(0);
        let places: Vec<_> = (0..MOST_WAITING).map(|_| tasks.place_to_wait("stop").unwrap()).collect();
        assert_eq!(tasks.place_to_wait("stop").err().map(|problem| problem.status), Some(429));
        drop(places);
        assert!(tasks.list().is_empty());
        let task = tasks.place_to_wait("stop").unwrap().start(|_| Ok(json!(1))).unwrap();
        assert_eq!(ended(&tasks, &task.id).result, Some(json!(1)));

        for _ in 0..KEPT {
            let task = tasks.place_to_wait("stop").unwrap().start(|_| Ok(json!(2))).unwrap();
            ended(&tasks, &task.id);
        }
        let first = |tasks: &Tasks| tasks.list().pop().unwrap().id;
        let (oldest, count) = (first(&tasks), tasks.list().len());
        assert!(count == KEPT && oldest != task.id, "{count}");
        drop(tasks.place_to_wait("stop").unwrap());
        assert_eq!((first(&tasks), tasks.list().len()), (oldest, KEPT));
    }

    #[test]
    fn of_results_that_take_much_memory_the_oldest_large_ones_are_forgotten_after_a_minute() {
        let tasks = Tasks::new(1);
        let start = || ended(&tasks, &tasks.start("test", |_| Ok(json!("12345"))).unwrap().id).id;
        let ids = [start(), start(), start(), start()];
        let bytes = |at: usize| lock(&tasks.tasks)[at].bytes.clone();
        assert_eq!(bytes(0).load(Ordering::Relaxed), 7);
        bytes(1).store(KEPT_BYTES, Ordering::Relaxed);
        bytes(2).store(KEPT_BYTES - 100, Ordering::Relaxed);
        let last = start();
        assert!(ids.iter().all(|id| tasks.watch(id).is_ok()), "all have just ended");
        forget_large(&mut lock(&tasks.tasks), Instant::now() + STAYS);
        let is_known = [0, 1, 2, 3].map(|at| tasks.watch(&ids[at]).is_ok());
        assert_eq!(is_known, [true, false, true, true]);
        assert!(tasks.watch(&last).is_ok());
        let advice = tasks.watch(&ids[1]).unwrap_err().advice.unwrap();
        assert!(advice.contains("started again") && advice.contains("make room"), "{advice}");
    }
}
