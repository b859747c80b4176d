//! Answers that are given one at a time, and the plan that follows from them.
//!
//! Enters: answers from files, variables and flags, then those of a person; the facts, as soon as they are
//! known. Leaves: a plan that always belongs to the answers, or the problem that stands in its way. It asks
//! nobody and opens no file.

use sparktune_data::Report;
use sparktune_plan::setting::Heading;
use sparktune_plan::{Answer, Answers, Facts, Origin, Plan, PlanError, SETTINGS, Setting, resolve};

use crate::data::limit_that_accepts;
use crate::failure::Failure;
use crate::presets::Preset;

/// Why there is no plan for the answers as they are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The problem, its place, and the remedy.
    pub text: String,
    /// The setting at fault, by its place in `plan.toml`.
    pub key: Option<&'static str>,
}

impl From<&PlanError> for Problem {
    fn from(error: &PlanError) -> Self {
        Self { text: error.to_string(), key: error.setting().map(|setting| setting.key) }
    }
}

/// Answers that are given one at a time, and the plan that follows.
#[derive(Debug, Clone)]
pub struct Planner {
    /// All answers so far.
    pub answers: Answers,
    /// What presets, files and the environment say, also where an answer of the user overrides it.
    underlying: Answers,
    facts: Option<Facts>,
    /// The last valid plan for the present facts.
    pub plan: Option<Plan>,
    /// Why the answers give no plan, where they do not.
    pub problem: Option<Problem>,
}

/// The answers of the user that override a preset that was just loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Overriding(pub Vec<&'static str>);

impl Overriding {
    /// Returns a sentence about the loaded preset. `reset` says how the interface takes the user's values
    /// back; it may be empty.
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
    /// Starts from answers that were given before.
    pub fn new(answers: Answers) -> Self {
        Self { underlying: below_flags(&answers), answers, facts: None, plan: None, problem: None }
    }

    /// Starts over from other answers. The facts stay as they are.
    pub fn start_from(&mut self, answers: Answers) {
        self.underlying = below_flags(&answers);
        self.answers = answers;
    }

    /// Takes new facts; without them there is no plan, and no problem.
    pub fn set_facts(&mut self, facts: Option<Facts>) {
        self.facts = facts;
        if self.facts.is_none() {
            (self.plan, self.problem) = (None, None);
        }
        self.replan();
    }

    /// The facts, where they are known.
    pub fn facts(&self) -> Option<&Facts> {
        self.facts.as_ref()
    }

    /// Makes the plan that follows from the answers. Where they give none, the last one stays, and the
    /// problem is kept.
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

    /// Returns the plan that would follow if one answer were another; with `None`, if it were taken back.
    pub fn plan_with(&self, setting: &Setting, text: Option<&str>) -> Option<Result<Plan, Problem>> {
        let mut answers = self.answers.clone();
        answers.clear(setting.name);
        match text.map(|text| answers.set(setting.name, text, Origin::Flag)) {
            Some(Err(error)) => Some(Err(Problem::from(&error))),
            _ => self.plan_of(&answers),
        }
    }

    /// Gives one answer where a plan follows from it, or where the facts are not known yet.
    ///
    /// # Errors
    /// Why no plan follows. Then nothing has changed.
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

    /// Returns the present value of a setting as text: by the plan, else by the answers; empty where nothing
    /// is set.
    pub fn value(&self, setting: &Setting) -> String {
        let mut rows = self.plan.iter().flat_map(|plan| &plan.advice).flat_map(|advice| &advice.explain);
        let planned = rows.find(|row| row.key == setting.key).map(|row| row.value.clone());
        planned.or_else(|| Some(self.answers.get(setting.name)?.0)).unwrap_or_default()
    }

    /// Gives one answer as typed. An empty line takes it back.
    ///
    /// # Errors
    /// As [`try_answer`](Self::try_answer).
    pub fn answer_as_typed(&mut self, setting: &Setting, typed: &str) -> Result<(), Problem> {
        match typed.trim() {
            "" => {
                self.take_back(setting);
                Ok(())
            }
            text => self.try_answer(setting, text),
        }
    }

    /// Takes one answer back. What a preset, a file or the environment says applies again; where none of them
    /// says anything, or the answer itself came from there, the plan's own value does.
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

    /// Takes back all answers of the user but those that say what the run is made from.
    pub fn take_back_all(&mut self) {
        self.answers = self.answers.without(|origin, setting| origin == Origin::Flag && !setting.of_one_run);
        self.fall_back();
        self.replan();
    }

    /// Fills in what lies below the user's answers where there is none.
    fn fall_back(&mut self) {
        self.answers = self.underlying.clone().merge(std::mem::take(&mut self.answers));
    }

    /// Puts a preset in the place of the last one. Answers that the user gave in other ways override it, and
    /// are returned.
    ///
    /// # Errors
    /// A preset that cannot be read or does not hold answers. Then nothing has changed.
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

    /// Chooses a model. What was said of another one, as its revision and its architecture, would be wrong,
    /// so it is dropped.
    pub fn choose_model(&mut self, name: &str) {
        if self.answers.model.as_ref().is_none_or(|answer| answer.value != name) {
            self.drop_model();
            self.answers.model = Some(Answer::flag(name.to_owned()));
        }
    }

    /// Drops the model, and the answers that belong to it alone.
    pub fn drop_model(&mut self) {
        drop_model(&mut self.answers);
    }

    /// Raises the limit on rejected lines so that data with this report is accepted. Returns the new limit,
    /// or `None` where nothing had to be changed or nothing of the data is left.
    pub fn accept_the_rest(&mut self, report: &Report) -> Option<f64> {
        let limit = limit_that_accepts(&self.answers, report)?;
        self.answers.max_rejected = Some(Answer::flag(limit));
        self.replan();
        Some(limit)
    }
}

/// Drops the model from answers, and the answers that belong to it alone.
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
