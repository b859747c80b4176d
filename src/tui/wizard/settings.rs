//! The settings as a list: which are shown, what each is now, and how far an arrow key moves it.

use sparktune_plan::{Answers, Explained, Origin, Plan, SETTINGS, Setting};

/// The settings that matter most, in the order of their weight.
const ESSENTIAL: [&str; 11] = [
    "method.kind",
    "pack.length",
    "method.rank",
    "duration.epochs",
    "batch.grad_accum_steps",
    "optimizer.learning_rate",
    "recompute",
    "pack.strategy",
    "data.eval_fraction",
    "duration.max_steps",
    "checkpoint.save_steps",
];

/// Settings that have a page of their own.
const ELSEWHERE: [&str; 7] = [
    "preset",
    "model.id",
    "model.revision",
    "model.path",
    "model.architecture",
    "model.ignored_fields",
    "data.train",
];

/// The settings to be listed.
pub(super) fn listed(all: bool) -> Vec<&'static Setting> {
    let essential = ESSENTIAL.iter().filter_map(|key| Setting::of(key));
    let others = SETTINGS
        .iter()
        .filter(|setting| !ESSENTIAL.contains(&setting.key) && !ELSEWHERE.contains(&setting.key));
    if all { essential.chain(others).collect() } else { essential.collect() }
}

/// What a setting is called in a list: its name on the command line, in words.
pub(super) fn name(setting: &Setting) -> String {
    setting.name.replace('-', " ")
}

/// The row of the plan about a setting.
pub(super) fn explained<'a>(plan: Option<&'a Plan>, key: &str) -> Option<&'a Explained> {
    plan?.advice.as_ref()?.explain.iter().find(|row| row.key == key)
}

/// A setting as it is now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Now {
    /// As text; empty where nothing is set.
    pub value: String,
    pub origin: Origin,
    pub reason: String,
}

/// What a setting is: by the plan, or else by the answers alone.
pub(super) fn now(setting: &Setting, plan: Option<&Plan>, answers: &Answers) -> Now {
    if let Some(Explained { value, origin, reason, .. }) = explained(plan, setting.key) {
        return Now { value: value.clone(), origin: *origin, reason: reason.clone() };
    }
    match answers.get(setting.name) {
        Some((value, origin)) => Now { value, origin, reason: String::new() },
        None => Now { value: String::new(), origin: Origin::BuiltIn, reason: String::new() },
    }
}

/// Where a value comes from, in one short word; nothing for the recommendation.
pub(super) fn origin_word(origin: Origin) -> &'static str {
    match origin {
        Origin::BuiltIn => "",
        Origin::Preset => "preset",
        Origin::UserFile => "file",
        Origin::Environment => "env",
        Origin::Flag => "yours",
    }
}

/// How an arrow key moves a value.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Step {
    /// To the next multiple.
    By(f64),
    /// Twice, half.
    Double,
    /// 1, 2, 5, 10, ….
    OneTwoFive,
}

fn step_of(key: &str) -> Option<Step> {
    Some(match key {
        "pack.length" | "pack.mtp_length" => Step::By(128.0),
        "method.rank" | "method.alpha" | "data.max_example_tokens" | "draft_vocab" => Step::Double,
        "optimizer.learning_rate" | "optimizer.eps" | "optimizer.weight_decay" | "duration.max_steps" => {
            Step::OneTwoFive
        }
        "data.eval_fraction" | "data.max_rejected" | "data.crc_drop" | "optimizer.warmup_ratio" => {
            Step::By(0.01)
        }
        "optimizer.min_lr_ratio" | "optimizer.beta1" => Step::By(0.05),
        "optimizer.beta2" => Step::By(0.005),
        "optimizer.clip_norm" => Step::By(0.1),
        "checkpoint.save_steps" | "eval.every_steps" => Step::By(50.0),
        "checkpoint.save_minutes" => Step::By(5.0),
        "eval.sample_max_tokens" => Step::By(32.0),
        "seed"
        | "duration.epochs"
        | "batch.micro_batch_packs"
        | "batch.grad_accum_steps"
        | "checkpoint.keep"
        | "eval.early_stop_patience"
        | "eval.sample_count" => Step::By(1.0),
        _ => return None,
    })
}

/// Where a value starts that is not set.
fn start_of(key: &str) -> Option<&'static str> {
    Some(match key {
        "duration.max_steps" => "1000",
        "eval.early_stop_patience" => "3",
        "draft_vocab" => "32768",
        _ => return None,
    })
}

/// The next value up or down; `None` where arrows mean nothing.
pub(super) fn stepped(setting: &Setting, value: &str, up: bool) -> Option<String> {
    if !setting.choices.is_empty() {
        let n = setting.choices.len();
        let at = setting.choices.iter().position(|choice| *choice == value);
        let next = match (at, up) {
            (None, _) => 0,
            (Some(at), true) => (at + 1) % n,
            (Some(at), false) => (at + n - 1) % n,
        };
        return Some(setting.choices[next].to_owned());
    }
    let step = step_of(setting.key)?;
    if value.is_empty() {
        return start_of(setting.key).map(str::to_owned);
    }
    let number: f64 = value.parse().ok().filter(|number: &f64| number.is_finite() && *number >= 0.0)?;
    let next = match step {
        // A hair's breadth keeps 0.3 from being 2.9999 steps.
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
    let is_whole = !value.contains(['.', 'e']) && !matches!(step, Step::By(by) if by.fract() != 0.0);
    let is_whole = is_whole && setting.key != "optimizer.weight_decay";
    Some(if is_whole { format!("{}", next.floor()) } else { shown(next) })
}

/// A number with four digits and no trailing noise; small ones as powers of ten, as the plan writes them.
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
    fn every_setting_is_on_a_page_and_the_essential_ones_exist() {
        assert_eq!(listed(false).len(), ESSENTIAL.len());
        assert_eq!(listed(true).len() + ELSEWHERE.len(), SETTINGS.len());
        for key in ELSEWHERE {
            assert!(Setting::of(key).is_some(), "{key}");
        }
    }
}
