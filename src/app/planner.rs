//! Answers that are given one at a time, and the resulting plan.
//!
//! Enters: answers from files, variables and flags, then those of a user; the facts, as soon as they are
//! known. Leaves: a plan that always belongs to the answers, or the problem that prevents one. It must not
//! ask questions or open files.

use std::path::PathBuf;

use sparktune_data::Report;
use sparktune_plan::setting::Heading;
use sparktune_plan::{
    Answer, Answers, DataFormat, Facts, Origin, Plan, PlanError, SETTINGS, Setting, resolve,
};

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
    /// The answers that a key set for the present data alone.
    for_this_data: Vec<ForThisData>,
    facts: Option<Facts>,
    /// The last valid plan for the current facts.
    pub plan: Option<Plan>,
    /// The problem, if the answers give no plan.
    pub problem: Option<Problem>,
}

/// An answer that a key set for the present data alone, and what is restored when other data is chosen.
#[derive(Debug, Clone)]
struct ForThisData {
    /// The command-line name of the setting.
    name: &'static str,
    /// The previous answer to this setting, and no other answers.
    before: Answers,
    /// The answer that was set. One that the user changed later is the user's own.
    set: Option<(String, Origin)>,
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
        Self {
            underlying: below_flags(&answers),
            answers,
            for_this_data: Vec::new(),
            facts: None,
            plan: None,
            problem: None,
        }
    }

    /// Replaces all answers. The facts are kept.
    pub fn start_from(&mut self, answers: Answers) {
        self.underlying = below_flags(&answers);
        self.answers = answers;
        self.for_this_data.clear();
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
    fn leave_demo(&mut self) -> bool {
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
    /// removed. Returns whether the previous one was the demo's, whose settings are then reset.
    pub fn choose_model(&mut self, name: &str) -> bool {
        if self.answers.model.as_ref().is_some_and(|answer| answer.value == name) {
            return false;
        }
        // Flags about a model, such as --chat-template, wait for the first one.
        let was_demo = self.answers.model.is_some() && self.drop_model();
        self.answers.model = Some(Answer::flag(name.to_owned()));
        was_demo
    }

    /// Removes the model, and the answers that belong to it. Returns whether it was the demo's, whose
    /// settings are then reset.
    pub fn drop_model(&mut self) -> bool {
        let was_demo = self.answers.model.is_some() && self.leave_demo();
        let of_model = SETTINGS.iter().filter(|setting| setting.heading == Heading::Model);
        of_model.for_each(|setting| self.answers.clear(setting.name));
        was_demo
    }

    /// Chooses data. Answers about the previous data, such as the meaning of its columns, are removed, and so
    /// are the weights of data sets that are not there any more. Returns whether the previous data was the
    /// demo's, whose settings are then reset.
    pub fn choose_data(&mut self, paths: Vec<PathBuf>) -> bool {
        let is_replaced = self.answers.data.as_ref().is_some_and(|answer| answer.value != paths);
        let was_demo = is_replaced && self.drop_data();
        let is_there = |set: &str| paths.iter().any(|path| path.as_os_str() == set);
        for answers in [&mut self.answers, &mut self.underlying] {
            if let Some(weights) = &mut answers.weights {
                weights.value.0.retain(|set, _| is_there(set));
            }
            answers.weights = answers.weights.take().filter(|weights| !weights.value.is_empty());
        }
        self.answers.data = Some(Answer::flag(paths));
        was_demo
    }

    /// Removes the data, and the answers that were given for it alone. The weights of data sets wait for the
    /// next choice, which may name some of the same. Returns whether the data was the demo's, whose settings
    /// are then reset.
    pub fn drop_data(&mut self) -> bool {
        let was_demo = self.answers.data.is_some() && self.leave_demo();
        self.answers.data = None;
        (self.answers.map, self.underlying.map) = (None, None);
        self.answers = self.answers_for_other_data();
        self.for_this_data.clear();
        was_demo
    }

    /// Removes data that does not exist, such as a path with a mistake in it. In contrast to
    /// [`drop_data`](Self::drop_data), the meaning of the columns waits for the next choice, because it was
    /// given for the data that was meant. Returns whether the data was the demo's, whose settings are then
    /// reset.
    pub fn drop_missing_data(&mut self) -> bool {
        let (given, underlying) = (self.answers.map.clone(), self.underlying.map.clone());
        let was_demo = self.drop_data();
        if !was_demo {
            (self.answers.map, self.underlying.map) = (given, underlying);
        }
        was_demo
    }

    /// Returns the answers as they are for other data: what a key set for the present data alone is what it
    /// was before.
    pub fn answers_for_other_data(&self) -> Answers {
        let mut answers = self.answers.clone();
        for ForThisData { name, before, set } in &self.for_this_data {
            if answers.get(name) == *set {
                answers.clear(name);
                answers = before.clone().merge(answers);
            }
        }
        answers
    }

    /// Returns those of the initial answers that the user has not left since: without those about a model
    /// that was dropped, and without those that name other data than the present one.
    #[must_use]
    pub fn without_what_was_left(&self, initial: Answers) -> Answers {
        let mut kept = initial;
        let of_model = SETTINGS.iter().filter(|setting| setting.heading == Heading::Model);
        for setting in of_model.filter(|setting| self.answers.origin(setting.key).is_none()) {
            kept.clear(setting.name);
        }
        let data = |answers: &Answers| answers.data.as_ref().map(|answer| answer.value.clone());
        if data(&kept) != data(&self.answers) {
            (kept.data, kept.map, kept.weights) = (None, None, None);
        }
        kept
    }

    /// Reads the present data in this format. Other data is read as before.
    pub fn read_as(&mut self, format: DataFormat) {
        self.set_for_this_data("format", |answers| answers.format = Some(Answer::flag(format)));
    }

    /// Raises the limit on rejected lines so that data with this report is accepted; the previous limit holds
    /// for other data. Returns the new limit, or `None` if nothing had to be changed or no example is left.
    pub fn accept_the_rest(&mut self, report: &Report) -> Option<f64> {
        let limit = limit_that_accepts(&self.answers, report)?;
        self.set_for_this_data("max-rejected", |answers| answers.max_rejected = Some(Answer::flag(limit)));
        self.replan();
        Some(limit)
    }

    fn set_for_this_data(&mut self, name: &'static str, set: impl FnOnce(&mut Answers)) {
        let now = self.answers.get(name);
        let at = self.for_this_data.iter().position(|earlier| earlier.name == name);
        let before = match at.map(|at| self.for_this_data.swap_remove(at)) {
            // What was set for this data before is not restored for other data.
            Some(earlier) if earlier.set == now => earlier.before,
            _ => self.answers.without(|_, setting| setting.name != name),
        };
        set(&mut self.answers);
        self.for_this_data.push(ForThisData { name, before, set: self.answers.get(name) });
    }
}

/// The name of the preset that the demo fills in.
const DEMO: &str = "demo";

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

    /// Returns a report of which this percentage of the lines was rejected.
    fn rejecting(percent: u64) -> Report {
        Report { lines: 100, rejected: percent, examples: 100 - percent, ..Report::default() }
    }

    #[test]
    fn other_data_drops_what_was_said_of_the_last_data_and_keeps_the_rest() {
        let of_data = [("data", r#"["a.jsonl", "b.jsonl"]"#), ("map", "q=prompt"), ("weight", "a.jsonl=2")];
        let of_all = [("think", "train"), ("max-rejected", "0.3"), ("format", "alpaca")];
        let given: Vec<_> =
            of_data.iter().chain(&of_all).map(|(n, text)| (*n, *text, Origin::Flag)).collect();
        for other in [&["c.jsonl"][..], &["a.jsonl"]] {
            let mut planner = with(&given);
            planner.accept_the_rest(&rejecting(60)).unwrap();
            planner.accept_the_rest(&rejecting(70)).unwrap();
            planner.read_as(DataFormat::Sharegpt);
            planner.read_as(DataFormat::Text);
            planner.choose_data(vec!["a.jsonl".into(), "b.jsonl".into()]);
            assert!(
                planner.answers.map.is_some() && planner.answers.weights.is_some(),
                "it is the same data"
            );
            assert_eq!(planner.answers.get("max-rejected").unwrap().0, "0.7");
            assert!(!planner.choose_data(other.iter().map(PathBuf::from).collect()));
            assert!(planner.answers.map.is_none());
            assert_eq!(planner.answers.weights.is_some(), other == ["a.jsonl"]);
            for (name, text) in of_all {
                assert_eq!(planner.answers.get(name), Some((text.into(), Origin::Flag)), "{name}");
            }
        }
    }

    #[test]
    fn data_that_cannot_be_read_takes_its_answers_along_and_flags_wait_for_the_first_data() {
        let mut planner = with(&[("map", "q=prompt", Origin::Flag), ("weight", "a.jsonl=2", Origin::Flag)]);
        planner.choose_data(vec!["a.jsonl".into()]);
        assert!(planner.answers.map.is_some() && planner.answers.weights.is_some());
        planner.accept_the_rest(&rejecting(60)).unwrap();
        planner.drop_data();
        assert!(planner.answers.data.is_none() && planner.answers.map.is_none());
        assert!(planner.answers.max_rejected.is_none());
        planner.choose_data(vec!["b.jsonl".into()]);
        assert!(planner.answers.weights.is_none(), "a weight of data that is not there prevents every plan");
    }

    #[test]
    fn what_was_given_with_a_path_that_does_not_exist_waits_for_the_right_one() {
        let given = [("data", "chta.jsonl"), ("map", "q=prompt"), ("chat-template", "mine.jinja")];
        let mut planner = with(&given.map(|(name, text)| (name, text, Origin::Flag)));
        assert!(!planner.drop_missing_data());
        assert!(planner.answers.data.is_none());
        planner.choose_data(vec!["chat.jsonl".into()]);
        planner.choose_model("m");
        assert_eq!(planner.answers.get("map"), Some(("q=prompt".into(), Origin::Flag)));
        assert_eq!(planner.answers.get("chat-template"), Some(("mine.jinja".into(), Origin::Flag)));
        planner.choose_data(vec!["other.jsonl".into()]);
        planner.choose_model("n");
        assert!(planner.answers.map.is_none() && planner.answers.chat_template.is_none());
    }

    #[test]
    fn a_model_and_data_that_were_left_do_not_come_back_with_the_demo() {
        let given = [
            ("model", "org/typo"),
            ("revision", "v1"),
            ("data", "a.jsonl"),
            ("map", "q=prompt"),
            ("weight", "a.jsonl=2"),
            ("epochs", "2"),
        ];
        let mut planner = with(&given.map(|(name, text)| (name, text, Origin::Flag)));
        let initial = planner.answers.clone();
        let names = |planner: &Planner| {
            let kept = planner.without_what_was_left(initial.clone());
            given
                .map(|(name, _)| name)
                .into_iter()
                .filter(|name| kept.get(name).is_some())
                .collect::<Vec<_>>()
        };
        assert_eq!(names(&planner), given.map(|(name, _)| name));
        planner.drop_model();
        assert_eq!(names(&planner), ["data", "map", "weight", "epochs"]);
        planner.choose_data(vec!["b.jsonl".into()]);
        assert_eq!(names(&planner), ["epochs"]);
        planner.drop_data();
        assert_eq!(names(&planner), ["epochs"]);
        // What was given without a model waits for the first one, and that of the demo may be it.
        let planner = with(&[("chat-template", "mine.jinja", Origin::Flag)]);
        assert_eq!(planner.without_what_was_left(planner.answers.clone()), planner.answers);
    }

    #[test]
    fn what_holds_for_this_data_alone_is_not_said_of_other_data() {
        let mut planner =
            with(&[("data", "a.jsonl", Origin::Flag), ("max-rejected", "0.3", Origin::Environment)]);
        assert_eq!(planner.answers_for_other_data(), planner.answers);
        planner.accept_the_rest(&rejecting(60)).unwrap();
        planner.read_as(DataFormat::Text);
        let answers = planner.answers_for_other_data();
        assert_eq!(answers.max_rejected, Some(Answer::new(0.3, Origin::Environment)));
        assert!(answers.format.is_none() && answers.data.is_some());
        planner.try_answer(setting("max-rejected"), "0.2").unwrap();
        assert_eq!(planner.answers_for_other_data().max_rejected, Some(Answer::flag(0.2)));
    }

    #[test]
    fn a_limit_that_the_user_changed_later_is_kept_for_other_data() {
        let mut planner = with(&[("data", "a.jsonl", Origin::Flag)]);
        planner.accept_the_rest(&rejecting(60)).unwrap();
        planner.try_answer(setting("max-rejected"), "0.2").unwrap();
        planner.choose_data(vec!["b.jsonl".into()]);
        assert_eq!(planner.answers.max_rejected, Some(Answer::flag(0.2)));
    }

    #[test]
    fn the_settings_of_the_demo_go_with_its_model_and_with_its_data() {
        let demo = |preset: Origin| {
            with(&[
                ("preset", "demo", preset),
                ("model", "/demo/model", preset),
                ("data", "/demo/train.jsonl", preset),
                ("learning-rate", "2e-3", Origin::Preset),
                ("epochs", "5", Origin::Flag),
            ])
        };
        let of_demo =
            |planner: &Planner| (planner.answers.preset.is_some(), planner.answers.learning_rate.is_some());
        let leave: [fn(&mut Planner) -> bool; 4] = [
            |planner| planner.choose_model("m"),
            |planner| planner.choose_data(vec!["a.jsonl".into()]),
            Planner::drop_model,
            Planner::drop_data,
        ];
        for leave in leave {
            let mut planner = demo(Origin::Preset);
            assert!(leave(&mut planner));
            assert_eq!(of_demo(&planner), (false, false));
            assert_eq!(planner.answers.epochs, Some(Answer::flag(5.0)));
            assert!(!planner.choose_model("n") && !planner.choose_data(vec!["b.jsonl".into()]));
        }
        // The demo's settings alone, which a user may want for another model, do not count as the demo.
        let mut planner =
            with(&[("preset", "demo", Origin::Flag), ("learning-rate", "2e-3", Origin::Preset)]);
        assert!(!planner.choose_model("m") && !planner.choose_data(vec!["a.jsonl".into()]));
        assert_eq!(of_demo(&planner), (true, true));
    }
}
