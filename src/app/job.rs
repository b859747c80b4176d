//! Makes a plan from answers: finds the model, tokenises the data, measures the machine, decides. No weights
//! are downloaded.

use sparktune_base::units::counted;
use sparktune_data::Prepared;
use sparktune_hub::{DownloadPlan, Hub};
use sparktune_plan::{Answers, Facts, Method, Plan, PlanError, resolve, resolve_head};

use crate::data::{accept, data_facts, prepare_data};
use crate::data_worker::ModelTokenizer;
use crate::failure::Failure;
use crate::folders::runs_dir_of;
use crate::listener::Listener;
use crate::machine::machine_and_rates;
use crate::model::{BaseModel, find_base, weigh};
use crate::parent::facts_of_parent;
use crate::program::Program;

/// Everything that is decided before a run exists.
pub struct Job {
    /// The plan.
    pub plan: Plan,
    /// The inputs of the plan.
    pub facts: Facts,
    /// The tokenised data.
    pub prepared: Prepared,
    /// The files of the model that exist and those still to be downloaded.
    pub download: DownloadPlan,
    /// The model's tokenizer, with the variables that suit the data.
    pub tokenizer: ModelTokenizer,
    /// The access to the model's files.
    pub hub: Hub,
}

/// Makes the plan of a run.
///
/// # Errors
/// Anything that prevents training: missing answers, the model, the data, the machine.
pub fn plan(program: &Program, answers: &Answers, listener: &dyn Listener) -> Result<Job, Failure> {
    plan_by(program, answers, listener, &resolve)
}

/// Makes the plan of a run that trains only the MTP head, on a finished text model that was trained with this
/// method.
///
/// # Errors
/// The same as for [`plan`]; the model has no head.
pub fn plan_head(
    program: &Program,
    answers: &Answers,
    finished: Method,
    listener: &dyn Listener,
) -> Result<Job, Failure> {
    plan_by(program, answers, listener, &|answers, facts| resolve_head(answers, facts, finished))
}

fn plan_by(
    program: &Program,
    answers: &Answers,
    listener: &dyn Listener,
    resolve: &dyn Fn(&Answers, &Facts) -> Result<Plan, PlanError>,
) -> Result<Job, Failure> {
    let missing = sparktune_plan::missing(answers);
    if !missing.is_empty() {
        return Err(PlanError::Missing(missing).into());
    }
    let mut base = find_base(answers, listener)?;
    let download = weigh(&mut base, listener)?;
    let prepared = prepare_data(answers, &base, listener)?;
    accept(answers, &prepared)?;
    let report = &prepared.report;
    let tokens = report.tokens.as_ref().map_or(String::new(), |tokens| format!(", {tokens}"));
    listener.note(&format!("data  {}{tokens}", counted(report.examples, "example")));
    for finding in report.findings() {
        listener.note(&format!("data  {}", finding.trim_start()));
    }
    let facts = gather_facts(program, answers, &base, &prepared, listener)?;
    let plan = resolve(answers, &facts)?;
    Ok(Job { plan, facts, prepared, download, tokenizer: base.tokenizer, hub: base.hub })
}

/// Gathers all inputs of the plan except the answers.
///
/// # Errors
/// Token files or measured speeds cannot be read, or the run cannot start from what the answers name.
pub fn gather_facts(
    program: &Program,
    answers: &Answers,
    base: &BaseModel,
    prepared: &Prepared,
    listener: &dyn Listener,
) -> Result<Facts, Failure> {
    let (machine, rates) = machine_and_rates(program, &runs_dir_of(answers), listener)?;
    let data = data_facts(answers, &base.tokenizer, prepared)?;
    let parent = facts_of_parent(answers, &base.facts.config)?;
    Ok(Facts { machine, model: base.facts.clone(), data, rates, parent })
}
