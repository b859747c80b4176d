//! A plan as an answer: every value with its origin and reason, memory, time, and what prevents it.
//!
//! Enters: answers and what is known. Leaves: [`Planned`]. Nothing is read here except the state of the
//! machine.

use std::path::PathBuf;

use serde::Serialize;
use serde_json::Value;
use sparktune_app::data::refusal;
use sparktune_app::models;
use sparktune_base::units::{bytes, count, counted, duration, parameters, percent, tokens_per_s};
use sparktune_plan::plan::DurationPlan;
use sparktune_plan::render::epochs_in_words;
use sparktune_plan::{
    Answer, CostPoint, Facts, Memory, Method, Origin, Plan, PlanError, SETTINGS, Setting, Time, command_line,
    missing, resolve,
};
use utoipa::ToSchema;

use crate::asked::{Gathered, Obstacle};
use crate::data_files::Data;
use crate::facts::Known;
use crate::state::Served;

/// A plan, or what prevents it.
#[derive(Debug, Default, Serialize, ToSchema)]
pub(crate) struct Planned {
    /// Every value as in `plan.toml`; null if something prevents the plan.
    #[schema(value_type = Object, nullable)]
    plan: Option<Value>,
    /// Every value with its origin and reason, in the order of `plan.toml`.
    settings: Vec<Explained>,
    /// The plan in a few lines.
    summary: Vec<PlanLine>,
    /// The memory by part.
    memory: Option<PlanMemory>,
    /// Steps, speed and duration.
    eta: Option<PlanEta>,
    /// The cost of each pack length.
    #[schema(value_type = Vec<Object>)]
    curve: Vec<CostPoint>,
    /// Answers that are far from what is recommended, one sentence each.
    warnings: Vec<String>,
    /// What prevents the plan.
    problems: Vec<Obstacle>,
    /// What is known about model and data, as soon as they have been read.
    facts: Option<PlanFacts>,
    /// The command line that starts the same run.
    command: Option<String>,
}

/// A value of a plan.
#[derive(Debug, Serialize, ToSchema)]
struct Explained {
    /// The name of the setting; absent for values that are no setting.
    name: Option<&'static str>,
    /// The key in `plan.toml`.
    key: String,
    /// The group.
    heading: Option<&'static str>,
    /// What the value would be without the answer of this request; null if there is none.
    recommended: Option<String>,
    /// The value as text; empty if it is not set.
    value: String,
    /// `built-in`, `preset`, `user-file`, `environment`, or `flag` for an answer of this request.
    origin: &'static str,
    /// The reason, with figures.
    reason: String,
}

/// A line of a summary.
#[derive(Debug, Serialize, ToSchema)]
struct PlanLine {
    /// What it is about.
    label: &'static str,
    /// What the plan says.
    value: String,
    /// Why, or more about it.
    reason: String,
}

/// The memory that a plan needs.
#[derive(Debug, Serialize, ToSchema)]
struct PlanMemory {
    /// The parts, without those that are zero.
    parts: Vec<MemoryPart>,
    /// The sum of the parts.
    needed_bytes: u64,
    /// The memory that may be used.
    available_bytes: u64,
    /// What that memory is.
    budget: String,
    /// What the reserve is for.
    reserve_reason: String,
    /// Whether it fits.
    fits: bool,
}

/// A part of the memory.
#[derive(Debug, Serialize, ToSchema)]
struct MemoryPart {
    /// Its name.
    name: &'static str,
    /// Its size.
    bytes: u64,
}

/// Steps, speed and duration of a plan.
#[derive(Debug, Serialize, ToSchema)]
struct PlanEta {
    /// Optimizer steps in all.
    steps: u64,
    /// Whether that is an estimate: packs are counted when the run makes them.
    steps_are_estimated: bool,
    /// Optimizer steps of an epoch.
    steps_per_epoch: u64,
    /// The average number of tokens of a step.
    tokens_per_step: u64,
    /// Tokens per second, if there is a basis for an estimate.
    tokens_per_s: Option<f64>,
    /// The duration of loading the model, and of what the first step takes longer than the others.
    start_s: Option<f64>,
    /// The duration of the optimizer steps.
    train_s: Option<f64>,
    /// The duration of all evaluations.
    eval_s: Option<f64>,
    /// The duration of the MTP head's training.
    mtp_s: Option<f64>,
    /// The seconds in which the head is measured, and the outputs are written and checked.
    finish_s: Option<f64>,
    /// The duration of the run without its export.
    total_s: Option<f64>,
    /// The basis of the speed: `measured-here`, `measured`, `original-recipe`, `estimate`, `unknown`.
    basis: String,
    /// The formula with its figures.
    formula: String,
}

/// What reading model and data has found.
#[derive(Debug, Serialize, ToSchema)]
struct PlanFacts {
    /// The model's parameters, without MTP head and vision tower.
    parameters: u64,
    /// Whether the model has an MTP head.
    has_mtp: bool,
    /// The bytes of the model that are still to be downloaded.
    missing_bytes: u64,
    /// The commit of a model from the hub.
    commit: Option<String>,
    /// The largest number of tokens of an example.
    context_tokens: usize,
    /// The examples of the data.
    examples: u64,
    /// Their tokens.
    tokens: u64,
    /// Those of them that are trained.
    trained_tokens: u64,
    /// Rejected lines.
    rejected_lines: u64,
    /// Notes on the data, one line each.
    findings: Vec<String>,
}

/// Stands for the data in a plan without any.
const ASSUMED: &str = "typical data, assumed";

/// Makes the plan of these answers.
pub(crate) fn planned(state: &Served, gathered: &Gathered, known: &Known) -> Planned {
    let mut gathered = gathered.clone();
    let mut planned = Planned { facts: Some(PlanFacts::of(known)), ..Planned::default() };
    planned.command = command_line(&gathered.answers).ok();
    let missing = missing(&gathered.answers);
    if !missing.is_empty() {
        planned.problems = Obstacle::of_error(PlanError::Missing(missing));
        gathered.answers.data = Some(Answer::flag(vec![PathBuf::from(ASSUMED)]));
    }
    let answers = &gathered.answers;
    let mut facts: Facts = known.facts.clone();
    if let Ok((machine, rates)) = state.facts.machine(&state.program, answers) {
        (facts.machine, facts.rates) = (machine, rates);
    }
    if let Some(report) = &known.report
        && let Some(refusal) = refusal(answers, report)
    {
        let rejected = report.lines_to_correct() > 0;
        let hint = report.map_hint().filter(|_| rejected);
        let refusal = hint.into_iter().fold(refusal, |refusal, hint| refusal.hint(hint));
        let mut obstacle =
            Obstacle::of_failure(refusal, Some(if rejected { "max-rejected" } else { "data" }));
        if rejected && obstacle.advice.is_none() {
            obstacle.advice = Some(
                "Correct the lines, which the data's page shows with their reasons, or raise max-rejected"
                    .into(),
            );
        }
        planned.problems.push(obstacle);
    }
    match resolve(answers, &facts) {
        Ok(plan) => {
            planned.fill(plan, known);
            planned.recommend(&gathered, &facts);
        }
        Err(error) => planned.problems.extend(Obstacle::of_error(error)),
    }
    planned.name_by_ids(state, &gathered.data);
    planned
}

impl Planned {
    /// No plan, because of these.
    pub(crate) fn prevented(problems: Vec<Obstacle>) -> Self {
        Self { problems, ..Self::default() }
    }

    fn fill(&mut self, mut plan: Plan, known: &Known) {
        self.warnings = plan.warnings().to_vec();
        if let Some(advice) = plan.advice.take() {
            self.summary = summary(&plan, &advice.memory, &advice.time, known);
            self.memory = Some(PlanMemory::of(&advice.memory));
            self.eta = Some(PlanEta::of(&advice.time, &plan.duration));
            self.curve = advice.curve;
            let row = |row: sparktune_plan::Explained| {
                let setting = Setting::of(&row.key);
                Explained {
                    name: setting.map(|setting| setting.name),
                    heading: setting.map(|setting| setting.heading.title()),
                    recommended: None,
                    key: row.key,
                    value: row.value,
                    origin: row.origin.word(),
                    reason: row.reason,
                }
            };
            self.settings = advice.explain.into_iter().map(row).collect();
        }
        self.plan = serde_json::to_value(plan).ok();
    }

    /// Adds what would be recommended in place of each answer of the request. Each takes a plan of its own.
    fn recommend(&mut self, gathered: &Gathered, facts: &Facts) {
        let Gathered { answers, underlying, .. } = gathered;
        let answered =
            |setting: &&Setting| answers.origin(setting.key) == Some(Origin::Flag) && !setting.of_one_run;
        for setting in SETTINGS.iter().filter(answered) {
            let mut without = answers.clone();
            without.clear(setting.name);
            let without = underlying.clone().merge(without);
            let advice = resolve(&without, facts).ok().and_then(|plan| plan.advice);
            let row = advice.and_then(|advice| advice.explain.into_iter().find(|row| row.key == setting.key));
            if let Some(own) = self.settings.iter_mut().find(|row| row.key == setting.key) {
                own.recommended = row.map(|row| row.value);
            }
        }
    }

    /// Writes the ids of data and model in place of paths, which the request does not know.
    fn name_by_ids(&mut self, state: &Served, data: &[Data]) {
        let mut names: Vec<(String, String)> =
            data.iter().map(|data| (data.answer().display().to_string(), data.id().to_owned())).collect();
        let folders = models::folders(&state.models);
        names.extend(folders.into_iter().map(|folder| (folder.path.display().to_string(), folder.id)));
        let named = |text: &mut String| {
            for (path, id) in names.iter().filter(|(path, id)| path != id) {
                if text.contains(path.as_str()) {
                    *text = text.replace(path.as_str(), id);
                }
            }
        };
        for row in &mut self.settings {
            named(&mut row.value);
            named(&mut row.reason);
        }
        for line in &mut self.summary {
            named(&mut line.value);
            named(&mut line.reason);
        }
        self.warnings.iter_mut().for_each(named);
        self.facts.iter_mut().flat_map(|facts| &mut facts.findings).for_each(named);
        for problem in &mut self.problems {
            named(&mut problem.what);
            problem.advice.iter_mut().for_each(named);
        }
    }
}

impl PlanMemory {
    fn of(memory: &Memory) -> Self {
        let parts = memory.parts().into_iter().filter(|(_, bytes)| *bytes > 0);
        Self {
            parts: parts.map(|(name, bytes)| MemoryPart { name, bytes }).collect(),
            needed_bytes: memory.needed_bytes(),
            available_bytes: memory.available_bytes,
            budget: memory.budget.clone(),
            reserve_reason: memory.reserve_reason.clone(),
            fits: memory.fits(),
        }
    }
}

impl PlanEta {
    fn of(time: &Time, duration: &DurationPlan) -> Self {
        let basis = serde_json::to_value(time.basis).ok().and_then(|basis| basis.as_str().map(str::to_owned));
        Self {
            steps: time.steps,
            steps_are_estimated: !duration.about(time.steps).is_empty(),
            steps_per_epoch: time.steps_per_epoch,
            tokens_per_step: time.tokens_per_step,
            tokens_per_s: time.tokens_per_s,
            start_s: time.start_s,
            train_s: time.train_s,
            eval_s: time.eval_s,
            mtp_s: time.mtp_s,
            finish_s: time.finish_s,
            total_s: time.total_s(),
            basis: basis.unwrap_or_default(),
            formula: time.formula.clone(),
        }
    }
}

impl PlanFacts {
    fn of(known: &Known) -> Self {
        let Facts { model, data, .. } = &known.facts;
        let findings = known.report.as_ref().map(|report| report.findings()).unwrap_or_default();
        Self {
            parameters: model.text_parameters(),
            has_mtp: model.has_mtp(),
            missing_bytes: known.missing_bytes,
            commit: known.commit.clone(),
            context_tokens: model.config.max_example_tokens(),
            examples: data.examples,
            tokens: data.total_tokens,
            trained_tokens: data.target_tokens,
            rejected_lines: known.report.as_ref().map_or(0, |report| report.rejected),
            findings: findings.iter().map(|line| line.trim().to_owned()).collect(),
        }
    }
}

/// Returns the plan in a few lines.
fn summary(plan: &Plan, memory: &Memory, time: &Time, known: &Known) -> Vec<PlanLine> {
    let line = |label, value: String, reason: String| PlanLine { label, value, reason };
    let Facts { model, data, .. } = &known.facts;
    let to_download = match known.missing_bytes {
        0 => "on this machine".to_owned(),
        missing => format!("{} to download", bytes(missing)),
    };
    let trained = data.target_tokens as f64 / data.total_tokens.max(1) as f64;
    let sets: Vec<String> = plan.data.train.iter().map(|path| path.display().to_string()).collect();
    let method = match plan.method {
        Method::Lora { rank, alpha, .. } => format!("LoRA of rank {rank}, alpha {alpha}"),
        Method::Full => "full fine-tuning".to_owned(),
        Method::Head => "only the MTP head".to_owned(),
    };
    let time_value = match time.total_s() {
        Some(total) => format!("about {}", duration(total)),
        None => "unknown until the first steps have been measured".to_owned(),
    };
    let speed =
        time.tokens_per_s.map_or_else(String::new, |rate| format!("{} tokens/s. ", tokens_per_s(rate)));
    vec![
        line(
            "Model",
            plan.model.id.clone(),
            format!("{} parameters, {to_download}", parameters(model.text_parameters())),
        ),
        line(
            "Data",
            sets.join(", "),
            format!(
                "{}, {}, {} of them trained",
                counted(data.examples, "example"),
                counted(data.total_tokens, "token"),
                percent(trained)
            ),
        ),
        line("Method", method, format!("on {}, MTP head {}", plan.device, plan.mtp.word())),
        line(
            "Packs",
            format!(
                "{} tokens, {} per step",
                count(plan.pack.length.into()),
                count(plan.batch.packs_per_step())
            ),
            format!("{} per step", counted(time.tokens_per_step, "token")),
        ),
        line(
            "Steps",
            format!("{}{}", plan.duration.about(time.steps), count(time.steps)),
            epochs_in_words(time, &plan.duration),
        ),
        line("Time", time_value, format!("{speed}{}", time.formula)),
        line(
            "Memory",
            format!("{} of {}", bytes(memory.needed_bytes()), bytes(memory.available_bytes)),
            memory.budget.clone(),
        ),
    ]
}
