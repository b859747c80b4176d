//! The question about the multi-token-prediction (MTP) head, with the cost and benefit of each choice.

use sparktune_base::units::parameters;
use sparktune_plan::{Mtp, Plan, Setting};

use crate::planner::Planner;

/// The choices for the MTP head of a model that has one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MtpQuestion {
    /// A description of the head.
    pub explanation: String,
    /// The choices in their order.
    pub choices: Vec<MtpChoice>,
    /// The choice that the plan recommends.
    pub recommended: Option<Mtp>,
}

/// One choice for the MTP head.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MtpChoice {
    /// The answer.
    pub value: Mtp,
    /// The cost, or why it cannot be chosen.
    pub cost: Result<String, String>,
}

impl MtpChoice {
    /// Returns the cost in one line, or that it cannot be chosen.
    pub fn cost_in_words(&self) -> &str {
        self.cost.as_deref().unwrap_or("not possible")
    }

    /// Returns the benefit, or why it cannot be chosen.
    pub fn note(&self) -> &str {
        self.cost.as_ref().err().map_or(self.value.benefit(), String::as_str)
    }
}

/// Returns the setting that the question answers.
pub fn setting() -> &'static Setting {
    Setting::of("mtp").expect("the table has the MTP head")
}

impl MtpQuestion {
    /// Computes the cost of each choice. Returns `None` while the facts are not known.
    pub fn new(planner: &Planner) -> Option<Self> {
        let parameter_count = planner.facts()?.model.mtp_parameters();
        let plan_of = |value: Mtp| planner.plan_with(setting(), Some(value.word()));
        let needed = |plan: &Plan| plan.advice.as_ref().map(|advice| advice.memory.needed_bytes());
        let without = plan_of(Mtp::Default).and_then(Result::ok).and_then(|plan| needed(&plan));
        let choice = |value: &Mtp| {
            let cost = |plan: Plan| {
                let more =
                    needed(&plan).zip(without).map_or(0, |(with, without)| with.saturating_sub(without));
                // The head is written in bf16, two bytes per parameter.
                value.cost(plan.advice.and_then(|advice| advice.time.mtp_s), more, parameter_count * 2)
            };
            Some(MtpChoice {
                value: *value,
                cost: plan_of(*value)?.map(cost).map_err(|problem| problem.text),
            })
        };
        Some(Self {
            explanation: format!(
                "The MTP (multi-token prediction) head has {} parameters. It proposes the next few tokens, which makes serving faster and never changes what the model writes.",
                parameters(parameter_count)
            ),
            choices: Mtp::ALL.iter().filter_map(choice).collect(),
            recommended: planner.plan_with(setting(), None).and_then(Result::ok).map(|plan| plan.mtp),
        })
    }
}
