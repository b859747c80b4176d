//! Answers that are given one at a time, and the resulting plan.
//!
//! Enters: answers from files, variables and flags, then those of a user; the facts, as soon as they are
//! known. Leaves: a plan that always belongs to the answers, or the problem that prevents one. It must not
//! ask questions or open files.

use sparktune_data::Report;
use sparktune_plan::setting::Heading;
use sparktune_plan::{Answer, Answers, Facts, Origin, Plan, PlanError, SETTINGS, Setting, resolve};

use crate::data::limit_that_accepts;
use crate::failure::Failure;
use crate::presets::Preset;

/// The reason why the answers give no plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The problem, its place, and the remedy.
    pub text: String,
    /// The setting that causes it, by its key in `plan.toml`.
    pub key: Option<&'static str>,
}

impl From<&PlanError> for Problem {
    fn from(error: &PlanError) -> Self {
        Self { text: error.to_string(), key: error.setting().map(|setting| setting.key) }
    }
}

/// Answers that are given one at a time, and the resulting plan.
#[derive(Debug, Clone)]
pub struct Planner {
    /// All answers so far.
    pub answers: Answers,
    /// The answers of presets, files and the environment, even if an answer of the user overrides them.
    underlying: Answers,
    facts: Option<Facts>,
    /// The last valid plan for the current facts.
    pub plan: Option<Plan>,
    /// The problem, if the answers give no plan.
    pub problem: Option<Problem>,
}

/// The answers of the user that override a preset that was just loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Overriding(pub Vec<&'static str>);

impl Overriding {
    /// Returns a sentence about the loaded preset. `reset` says how the user can remove their own values in
    /// this interface; it may be empty.
    pub fn in_words(&self, preset: &str, reset: &str) -> String {
        let reset = if reset.is_empty() { String::new() } else { format!(" ({reset})") };
        match self.0.as_slice() {
            [] => format!("preset {preset} is loaded"),
            [one] => format!("preset {preset} is loaded; your own value of {one} overrides it{reset}"),
            several => format!(
                "preset {preset} is loaded; {} of your own values override it{reset}: {}",
                several.len(),
                several.join(", ")
            ),
        }
    }
}

impl Planner {
    /// Creates a planner with earlier answers.
    pub fn new(answers: Answers) -> Self {
        Self { underlying: below_flags(&answers), answers, facts: None, plan: None, problem: None }
    }

    /// Replaces all answers. The facts are kept.
    pub fn start_from(&mut self, answers: Answers) {
        self.underlying = below_flags(&answers);
        self.answers = answers;
    }

    /// Sets the facts. Without them there is no plan, and no problem.
    pub fn set_facts(&mut self, facts: Option<Facts>) {
        self.facts = facts;
        if self.facts.is_none() {
            (self.plan, self.problem) = (None, None);
        }
        self.replan();
    }

    /// Returns the facts, if they are known.
    pub fn facts(&self) -> Option<&Facts> {
        self.facts.as_ref()
    }

    /// Makes the plan again from the answers. If that fails, the last plan is kept and the problem is stored.
    pub fn replan(&mut self) {
        match self.plan_of(&self.answers) {
            Some(Ok(plan)) => (self.plan, self.problem) = (Some(plan), None),
            Some(Err(problem)) => self.problem = Some(problem),
            None => {}
        }
    }

    fn plan_of(&self, answers: &Answers) -> Option<Result<Plan, Problem>> {
        Some(resolve(answers, self.facts.as_ref()?).map_err(|error| Problem::from(&error)))
    }

    /// Returns the plan with one answer changed, or removed if `text` is `None`.
    pub fn plan_with(&self, setting: &Setting, text: Option<&str>) -> Option<Result<Plan, Problem>> {
        let mut answers = self.answers.clone();
        answers.clear(setting.name);
        match text.map(|text| answers.set(setting.name, text, Origin::Flag)) {
            Some(Err(error)) => Some(Err(Problem::from(&error))),
            _ => self.plan_of(&answers),
        }
    }

    /// Sets one answer if there is a plan with it, or if the facts are not known yet.
    ///
    /// # Errors
    /// The reason why there is no plan with it. Nothing has changed then.
    pub fn try_answer(&mut self, setting: &Setting, text: &str) -> Result<(), Problem> {
        let mut answers = self.answers.clone();
        answers.clear(setting.name);
        answers.set(setting.name, text, Origin::Flag).map_err(|error| Problem::from(&error))?;
        match self.plan_of(&answers) {
            Some(Err(problem)) => return Err(problem),
            Some(Ok(plan)) => (self.plan, self.problem) = (Some(plan), None),
            None => {}
        }
        self.answers = answers;
        Ok(())
    }

    /// Returns the current value of a setting as text, from the plan or else from the answers; empty if it is
    /// not set.
    pub fn value(&self, setting: &Setting) -> String {
        let mut rows = self.plan.iter().flat_map(|plan| &plan.advice).flat_map(|advice| &advice.explain);
        let planned = rows.find(|row| row.key == setting.key).map(|row| row.value.clone());
        planned.or_else(|| Some(self.answers.get(setting.name)?.0)).unwrap_or_default()
    }

    /// Sets one answer as typed. An empty line removes it.
    ///
    /// # Errors
    /// The same as for [`try_answer`](Self::try_answer).
    pub fn answer_as_typed(&mut self, setting: &Setting, typed: &str) -> Result<(), Problem> {
        match typed.trim() {
            "" => {
                self.take_back(setting);
                Ok(())
            }
            text => self.try_answer(setting, text),
        }
    }

    /// Removes one answer. The value of a preset, a file or the environment then applies again. If there is
    /// none, or the answer itself came from there, the plan decides.
    pub fn take_back(&mut self, setting: &Setting) {
        let is_own = self.answers.origin(setting.key) == Some(Origin::Flag);
        self.answers.clear(setting.name);
        if is_own {
            self.fall_back();
        } else {
            self.underlying.clear(setting.name);
        }
        self.replan();
    }

    /// Removes all answers of the user except those that name model and data.
    pub fn take_back_all(&mut self) {
        self.answers = self.answers.without(|origin, setting| origin == Origin::Flag && !setting.of_one_run);
        self.fall_back();
        self.replan();
    }

    /// Restores the underlying answers where the user has none.
    fn fall_back(&mut self) {
        self.answers = self.underlying.clone().merge(std::mem::take(&mut self.answers));
    }

    /// Replaces the loaded preset. Answers that the user gave in other ways override it, and are returned.
    ///
    /// # Errors
    /// The preset cannot be read or does not contain answers. Nothing has changed then.
    pub fn use_preset(&mut self, preset: &Preset) -> Result<Overriding, Failure> {
        let answers = preset.answers()?;
        let is_of_last = |origin, setting: &Setting| origin == Origin::Preset && !setting.of_one_run;
        self.underlying = answers.merge(self.underlying.without(is_of_last));
        self.answers = self.answers.without(is_of_last);
        self.fall_back();
        self.answers.preset = Some(Answer::flag(preset.name.clone()));
        self.replan();
        let is_own = |setting: &&Setting| {
            self.answers.origin(setting.key) == Some(Origin::Flag) && !setting.of_one_run
        };
        Ok(Overriding(SETTINGS.iter().filter(is_own).map(|setting| setting.name).collect()))
    }

    /// Leaves the demo, whose settings suit its own model and data alone: takes back what its preset decided,
    /// apart from the model and the data. Returns whether it was the demo.
    pub fn leave_demo(&mut self) -> bool {
        if self.answers.preset.as_ref().is_none_or(|preset| preset.value != DEMO) {
            return false;
        }
        let (model, data) = (self.answers.model.take(), self.answers.data.take());
        let of_preset = |origin: Origin, _: &Setting| origin == Origin::Preset;
        self.answers = self.answers.without(of_preset);
        self.answers.preset = None;
        self.underlying = self.underlying.without(of_preset);
        (self.answers.model, self.answers.data) = (model, data);
        true
    }

    /// Returns whether a model or data is chosen, and not those of the demo.
    pub fn has_own_choice(&self) -> bool {
        let is_demo = self.answers.preset.as_ref().is_some_and(|preset| preset.value == DEMO);
        !is_demo && (self.answers.model.is_some() || self.answers.data.is_some())
    }

    /// Chooses a model. Answers about the previous one, such as its revision and its architecture, are
    /// removed.
    pub fn choose_model(&mut self, name: &str) {
        if self.answers.model.as_ref().is_none_or(|answer| answer.value != name) {
            self.drop_model();
            self.answers.model = Some(Answer::flag(name.to_owned()));
        }
    }

    /// Removes the model, and the answers that belong to it.
    pub fn drop_model(&mut self) {
        drop_model(&mut self.answers);
    }

    /// Raises the limit on rejected lines so that data with this report is accepted. Returns the new limit,
    /// or `None` if nothing had to be changed or no example is left.
    pub fn accept_the_rest(&mut self, report: &Report) -> Option<f64> {
        let limit = limit_that_accepts(&self.answers, report)?;
        self.answers.max_rejected = Some(Answer::flag(limit));
        self.replan();
        Some(limit)
    }
}

/// The name of the preset that the demo fills in.
const DEMO: &str = "demo";

/// Removes the model from answers, and the answers that belong to it.
pub fn drop_model(answers: &mut Answers) {
    let of_model = SETTINGS.iter().filter(|setting| setting.heading == Heading::Model);
    of_model.for_each(|setting| answers.clear(setting.name));
}

fn below_flags(answers: &Answers) -> Answers {
    answers.without(|origin, _| origin == Origin::Flag)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setting(name: &str) -> &'static Setting {
        Setting::named(name).unwrap()
    }

    fn with(pairs: &[(&str, &str, Origin)]) -> Planner {
        let mut answers = Answers::default();
        for (name, text, origin) in pairs {
            answers.set(name, text, *origin).unwrap();
        }
        Planner::new(answers)
    }

    #[test]
    fn an_answer_taken_back_lets_the_one_below_apply_again() {
        let mut planner = with(&[("rank", "8", Origin::Environment)]);
        planner.try_answer(setting("rank"), "16").unwrap();
        assert_eq!(planner.answers.rank, Some(Answer::flag(16)));
        planner.take_back(setting("rank"));
        assert_eq!(planner.answers.rank, Some(Answer::new(8, Origin::Environment)));
        planner.take_back(setting("rank"));
        assert_eq!(planner.answers.rank, None);
    }

    #[test]
    fn a_wrong_value_changes_nothing_and_says_why() {
        let mut planner = with(&[("rank", "8", Origin::Flag)]);
        let problem = planner.try_answer(setting("rank"), "many").unwrap_err();
        assert!(problem.key == Some("method.rank") && problem.text.contains("many"), "{problem:?}");
        assert_eq!(planner.answers.rank, Some(Answer::flag(8)));
    }

    #[test]
    fn a_preset_replaces_the_last_one_and_what_the_user_said_overrides_it() {
        let preset = |toml: &str| Preset {
            name: "mine".into(),
            about: String::new(),
            toml: Ok(toml.into()),
            is_shipped: false,
        };
        let mut planner = with(&[("rank", "8", Origin::Flag), ("model", "m", Origin::Flag)]);
        planner.use_preset(&preset("[duration]\nepochs = 3\n")).unwrap();
        let overriding = planner.use_preset(&preset("[method]\nrank = 4\n")).unwrap();
        assert_eq!(overriding, Overriding(vec!["rank"]));
        assert!(overriding.in_words("mine", "").contains("your own value of rank overrides it"));
        assert_eq!(
            (planner.answers.epochs.clone(), planner.answers.rank.clone()),
            (None, Some(Answer::flag(8)))
        );
        planner.take_back_all();
        assert_eq!(planner.answers.rank, Some(Answer::new(4, Origin::Preset)));
        assert_eq!(planner.answers.model, Some(Answer::flag("m".into())));
        assert!(planner.use_preset(&preset("no toml")).is_err());
        assert_eq!(planner.answers.rank, Some(Answer::new(4, Origin::Preset)));
    }

    #[test]
    fn another_model_drops_what_belonged_to_the_last_one() {
        let said = [("revision", "main"), ("architecture", "llama"), ("ignore-config-field", "new_scale")];
        let mut planner = with(&[("model", "a", Origin::Flag), ("rank", "8", Origin::Flag)]);
        for (name, text) in said {
            planner.answers.set(name, text, Origin::Flag).unwrap();
        }
        planner.choose_model("a");
        assert!(said.iter().all(|(name, _)| planner.answers.get(name).is_some()));
        planner.choose_model("b");
        assert_eq!(planner.answers.get("model"), Some(("b".into(), Origin::Flag)));
        assert!(said.iter().all(|(name, _)| planner.answers.get(name).is_none()));
        assert!(planner.answers.rank.is_some());
    }
}
