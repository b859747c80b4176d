//! Plans, presets, drafts, measured speeds, suites of prompts, and names and values as people type them.

use sparktune_app::draft::Draft;
use sparktune_compare::{Answered, Suite};
use sparktune_hub::{DataSetName, ModelName};
use sparktune_plan::{Answers, Origin, Plan, Rates, SETTINGS, presets};

use super::{is_a_sentence, says_why};

/// `plan.toml`. What was read is written, and read again as the same.
pub(super) fn plan(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    match Plan::from_toml(&text, "plan.toml") {
        Err(error) => says_why(&error),
        Ok(plan) => {
            let written = plan.to_toml().expect("a plan that was read can be written");
            let again = Plan::from_toml(&written, "plan.toml").expect("what we wrote can be read");
            assert_eq!(again.to_toml().ok(), Some(written), "another plan");
            drop((plan.measured(1e3), plan.predicted_bytes(), plan.for_head()));
            plan.warnings().iter().for_each(|warning| says_why(warning));
        }
    }
}

/// A preset, which is also a draft, a plan's answers, and the list of measured speeds.
pub(super) fn preset(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    match Answers::from_toml(&text, Origin::Preset, "preset.toml") {
        Err(error) => says_why(&error),
        Ok(answers) => {
            let again = |text: &str| Answers::from_toml(text, Origin::Preset, "preset.toml");
            match answers.to_toml() {
                Ok(written) => {
                    let read = again(&written).expect("what we wrote can be read");
                    assert_eq!(read.to_toml().ok().as_ref(), Some(&written), "other answers");
                }
                // An infinite number has no text.
                Err(error) => says_why(&error),
            }
            let text = presets::text("a preset", &answers);
            if let Ok(text) = text {
                again(&text).expect("a preset that we wrote can be read");
            }
            SETTINGS.iter().for_each(|setting| drop(answers.get(setting.name)));
        }
    }
    match Draft::from_text(&text, "draft") {
        Err(error) => says_why(&error),
        Ok(draft) => drop(Draft::from_text(&draft.to_text(), "draft").expect("what we wrote can be read")),
    }
    let (rates, _) = Rates::from_toml(&text, "rates.toml");
    let written = rates.to_toml().expect("speeds that were read can be written");
    assert!(Rates::from_toml(&written, "rates.toml").1.is_none());
    drop(presets::list([("mine", &*text)]));
}

/// Lines `SETTING=VALUE` as on a command line, and each line as the name of a model and of a data set.
pub(super) fn names(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    for line in text.lines() {
        if let Ok(name) = DataSetName::parse(line) {
            let again = DataSetName::parse(&name.to_string()).expect("a name that we wrote");
            assert_eq!(again, name);
        }
        if let Err(error) = DataSetName::parse(line) {
            is_a_sentence(&error);
        }
        if let Err(error) = ModelName::parse(line, None) {
            is_a_sentence(&error);
        }
        let Some((name, value)) = line.split_once('=') else { continue };
        let mut answers = Answers::default();
        if let Err(error) = answers.set(name, value, Origin::Flag) {
            says_why(&error);
            continue;
        }
        if let Some((shown, _)) = answers.get(name) {
            let mut again = Answers::default();
            again.set(name, &shown, Origin::Flag).expect("a value as it is shown can be typed");
            assert_eq!(again.get(name).map(|(text, _)| text), Some(shown));
        }
    }
}

/// A suite of prompts. Each check says the same of an answer twice, whatever its pattern or schema is.
pub(super) fn suite(input: &[u8]) {
    let suite = match Suite::read("suite.jsonl", input) {
        Err(error) => {
            assert!(error.line >= 1);
            return says_why(&error);
        }
        Ok(suite) => suite,
    };
    for prompt in &suite.prompts {
        let text = prompt.reference.as_deref().unwrap_or("{\"a\": [1, 2.5]} and 7");
        let run: &dyn Fn(&_) -> _ = &|_| Err("code is not run".to_owned());
        let answered = || Answered {
            text,
            reference: prompt.reference.as_deref(),
            reference_loss: Err(String::new()),
            run,
        };
        for check in &prompt.checks {
            let outcome = check.outcome(&answered());
            assert_eq!(check.outcome(&answered()), outcome, "another outcome");
            assert!(outcome.score.is_none_or(|score| (0.0..=1.0).contains(&score)), "{outcome:?}");
        }
        drop((prompt.shown().last_text(), prompt.needs_reference_loss()));
    }
    let mut fewer = suite.clone();
    fewer.limit(1);
    assert_eq!(fewer.prompts.len(), 1);
}
