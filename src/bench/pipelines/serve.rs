//! The process of one measurement: reads its job, does it, and answers in lines of JSON.

use std::io::Write;
use std::path::Path;

use sparktune_plan::Plan;

use super::job::{BUG, Job, Reply, USAGE, Work};
use super::{lines, loading, training};
use crate::error::BenchError;

/// Does what the file of a job asks for.
///
/// # Errors
/// The job cannot be read or the answer not written; other failures are answers.
pub fn serve(job: &Path, mut out: impl Write) -> Result<(), BenchError> {
    let text = std::fs::read_to_string(job).map_err(BenchError::io("read", job))?;
    let read = serde_json::from_str(&text).map_err(std::io::Error::from);
    let job: Job = read.map_err(BenchError::io("read", job))?;
    let mut put = |reply: &Reply| {
        let line = serde_json::to_string(reply).expect("plain fields serialise");
        writeln!(out, "{line}").and_then(|()| out.flush()).map_err(BenchError::Output)
    };
    let answer = answer(&job, &mut |step| put(&Reply::Step(step)));
    put(&answer.unwrap_or_else(|error| {
        let exit_code = match &error {
            BenchError::Unsuitable { .. } => USAGE,
            BenchError::Train(error) => error.exit_code(),
            _ => BUG,
        };
        Reply::Failed { message: error.to_string(), exit_code }
    }))
}

fn answer(job: &Job, progress: &mut dyn FnMut(u64) -> Result<(), BenchError>) -> Result<Reply, BenchError> {
    let text = std::fs::read_to_string(&job.plan).map_err(BenchError::io("read", &job.plan))?;
    let plan = Plan::from_toml(&text, &job.plan.display().to_string())?;
    Ok(match &job.work {
        Work::Lines => Reply::Written(lines::write(job, &plan)?),
        Work::Load { rounds } => Reply::Loading(Box::new(loading::measure(job, &plan, *rounds)?)),
        Work::Train { adapter } => {
            Reply::Training(Box::new(training::measure(job, plan, adapter.as_deref(), progress)?))
        }
    })
}
