//! The list of settings: which ones are shown, their current values, and the step of an arrow key.

use sparktune_plan::setting::{Kind, Page, Step};
use sparktune_plan::{Answers, Explained, Origin, Plan, SETTINGS, Setting, Weights};

/// Returns the listed settings: the essential ones in order of importance, then, with `all`, the others. The
/// weights of data sets are essential if the answers name several.
pub(super) fn listed(all: bool, answers: &Answers) -> Vec<&'static Setting> {
    let has_several_sets = sets(answers).count() > 1;
    let is_listed = |setting: &&Setting| match setting.page {
        Page::Essential(_) => true,
        Page::AllSettings => all || (has_several_sets && setting.kind == Kind::Weights),
        Page::Own => false,
    };
    let mut listed: Vec<_> = SETTINGS.iter().filter(is_listed).collect();
    // Those that are not essential stand by their headings.
    listed.sort_by_key(|setting| (setting.page, setting.heading));
    listed
}

/// Returns whether a setting is one that a search for these words means: all of them are in its name, its
/// key or its description.
pub(super) fn is_found(setting: &Setting, sought: &str) -> bool {
    let about = format!("{} {} {}", name(setting), setting.key, setting.about).to_lowercase();
    sought.to_lowercase().split_whitespace().all(|word| about.contains(word))
}

fn sets(answers: &Answers) -> impl Iterator<Item = &str> {
    answers.data.iter().flat_map(|answer| &answer.value).filter_map(|path| path.to_str())
}

/// Returns the text with which the input of a value begins: the current value, or what it would be without.
pub(super) fn text_to_edit(setting: &Setting, plan: Option<&Plan>, answers: &Answers) -> String {
    let value = now(setting, plan, answers).value;
    if value.is_empty() && setting.kind == Kind::Weights { Weights::even(sets(answers)) } else { value }
}

/// Returns the name of a setting in the list: its name on the command line, in words.
pub(super) fn name(setting: &Setting) -> String {
    setting.name.replace('-', " ")
}

/// Returns the plan's explanation of a setting.
pub(super) fn explained<'a>(plan: Option<&'a Plan>, key: &str) -> Option<&'a Explained> {
    plan?.advice.as_ref()?.explain.iter().find(|row| row.key == key)
}

/// The current value of a setting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Now {
    /// The value as text; empty if it is not set.
    pub value: String,
    pub origin: Origin,
    pub reason: String,
}

/// Returns the current value of a setting, from the plan if there is one, otherwise from the answers.
pub(super) fn now(setting: &Setting, plan: Option<&Plan>, answers: &Answers) -> Now {
    if let Some(Explained { value, origin, reason, .. }) = explained(plan, setting.key) {
        return Now { value: value.clone(), origin: *origin, reason: reason.clone() };
    }
    match answers.get(setting.name) {
        Some((value, origin)) => Now { value, origin, reason: String::new() },
        None => Now { value: String::new(), origin: Origin::BuiltIn, reason: String::new() },
    }
}

/// Returns one short word for the origin of a value, or an empty text for a recommendation.
pub(super) fn origin_word(origin: Origin) -> &'static str {
    match origin {
        Origin::BuiltIn => "",
        Origin::Preset => "preset",
        Origin::UserFile => "file",
        Origin::Environment => "env",
        Origin::Flag => "yours",
    }
}

/// Returns the next value up or down, or `None` if arrow keys do not change this setting.
pub(super) fn stepped(setting: &Setting, value: &str, up: bool) -> Option<String> {
    let choices = setting.choices();
    if !choices.is_empty() {
        let n = choices.len();
        let at = choices.iter().position(|choice| *choice == value);
        let next = match (at, up) {
            (None, _) => 0,
            (Some(at), true) => (at + 1) % n,
            (Some(at), false) => (at + n - 1) % n,
        };
        return Some(choices[next].to_owned());
    }
    let range = setting.number?;
    if value.is_empty() {
        return range.start.map(str::to_owned);
    }
    let number: f64 = value.parse().ok().filter(|number: &f64| number.is_finite() && *number >= 0.0)?;
    let next = match range.step {
        // The small constant prevents 0.3 from counting as 2.9999 steps.
        Step::By(by) if up => ((number / by + 1e-9).floor() + 1.0) * by,
        Step::By(by) => (((number / by - 1e-9).ceil() - 1.0) * by).max(0.0),
        Step::Double => {
            if up {
                number * 2.0
            } else {
                number / 2.0
            }
        }
        Step::OneTwoFive => one_two_five(number, up),
    };
    Some(if setting.kind == Kind::Whole { format!("{}", next.floor()) } else { shown(next) })
}

/// Formats a number with four digits and without trailing zeros; small numbers as powers of ten, as in the
/// plan.
fn shown(number: f64) -> String {
    let rounded: f64 = format!("{number:.4e}").parse().unwrap_or(number);
    if rounded != 0.0 && rounded.abs() < 1e-2 { format!("{rounded:e}") } else { format!("{rounded}") }
}

fn one_two_five(number: f64, up: bool) -> f64 {
    if number <= 0.0 {
        return if up { 0.001 } else { 0.0 };
    }
    let decade = 10f64.powf(number.log10().floor());
    let lead = number / decade;
    let near = |a: f64, b: f64| (a - b).abs() < 1e-6;
    let next = if up {
        [1.0, 2.0, 5.0, 10.0, 20.0].into_iter().find(|step| *step > lead && !near(*step, lead))
    } else {
        [10.0, 5.0, 2.0, 1.0, 0.5].into_iter().find(|step| *step < lead && !near(*step, lead))
    };
    next.unwrap_or(1.0) * decade
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(key: &str, value: &str, up: bool) -> Option<String> {
        stepped(Setting::of(key).unwrap(), value, up)
    }

    #[test]
    fn arrows_move_each_kind_of_value_the_way_people_think_of_it() {
        for (key, value, more, less) in [
            ("pack.length", "5376", "5504", "5248"),
            ("pack.length", "5000", "5120", "4992"),
            ("method.rank", "128", "256", "64"),
            ("draft_vocab", "32768", "65536", "16384"),
            ("optimizer.learning_rate", "2e-4", "5e-4", "1e-4"),
            ("optimizer.learning_rate", "0.0003", "5e-4", "2e-4"),
            ("optimizer.weight_decay", "0.01", "0.02", "5e-3"),
            ("optimizer.warmup_ratio", "0.03", "0.04", "0.02"),
            ("optimizer.beta1", "0.9", "0.95", "0.85"),
            ("duration.epochs", "3", "4", "2"),
            ("duration.max_steps", "1000", "2000", "500"),
            ("method.kind", "lora", "full", "full"),
            ("data.think", "skip", "train", "train"),
            ("data.eval_fraction", "0.02", "0.03", "0.01"),
        ] {
            assert_eq!(step(key, value, true).as_deref(), Some(more), "{key} up");
            assert_eq!(step(key, value, false).as_deref(), Some(less), "{key} down");
        }
        assert_eq!(step("duration.max_steps", "", true).as_deref(), Some("1000"));
        assert_eq!(step("name", "x", true), None);
        assert_eq!(step("pack.length", "many", true), None);
    }

    #[test]
    fn the_essential_settings_come_first_in_the_order_of_their_places() {
        let none = Answers::default();
        let essential: Vec<_> = listed(false, &none).iter().map(|setting| setting.page).collect();
        let places: Vec<_> = (1..=essential.len() as u8).map(Page::Essential).collect();
        assert_eq!(essential, places);
        assert_eq!(listed(true, &none)[..places.len()], listed(false, &none));
        let others = &listed(true, &none)[places.len()..];
        assert!(others.is_sorted_by_key(|setting| setting.heading) && !others.is_empty());
    }

    #[test]
    fn a_search_looks_at_names_and_descriptions() {
        let found = |sought: &str| {
            let all = listed(true, &Answers::default());
            all.into_iter().filter(|setting| is_found(setting, sought)).map(|s| s.name).collect::<Vec<_>>()
        };
        assert!(found("adamw epsilon").contains(&"eps") && found("Weight Decay").contains(&"weight-decay"));
        assert!(found("").len() > 40 && found("no such thing").is_empty());
    }
}
