//! Flags made from the table of settings, so that a setting has one name, one help text and one reader.

use clap::builder::{PossibleValue, PossibleValuesParser};
use clap::{Arg, ArgAction, ArgMatches, Args, FromArgMatches, ValueHint};
use sparktune_plan::setting::{Completes, Heading, Kind};
use sparktune_plan::{Answers, Origin, PlanError, SETTINGS, Setting};

/// The flag that lists all settings.
pub(crate) const HELP_ALL: &str = "help-all";

/// The heading of the flags that every command has.
pub(crate) const GLOBAL: &str = "For all commands";

/// The setting that is a flag of every command.
const RUNS_DIR: &str = "runs-dir";

/// All settings as flags. Those that are not common are listed by `--help-all` only.
#[derive(Debug, Clone, Default)]
pub(crate) struct SettingFlags(pub Answers);

/// The settings of `check` as flags, all of them listed by `--help`.
#[derive(Debug, Clone, Default)]
pub(crate) struct CheckFlags(pub Answers);

/// The settings of `head` as flags, all of them listed by `--help`.
#[derive(Debug, Clone, Default)]
pub(crate) struct HeadFlags(pub Answers);

/// The settings of `pack` as flags: those of `check` that concern text, also by the names that QubGPU's
/// converter gives them.
#[derive(Debug, Clone, Default)]
pub(crate) struct PackFlags(pub Answers);

/// The names of QubGPU's converter for settings of `pack`.
const OF_CONVERTER: [(&str, &str); 2] = [("model", "tokenizer"), ("max-example-tokens", "max-tokens")];

impl Args for SettingFlags {
    fn augment_args(command: clap::Command) -> clap::Command {
        let mut settings: Vec<_> = SETTINGS.iter().collect();
        settings.sort_by_key(|setting| setting.heading);
        let help_all = Arg::new(HELP_ALL)
            .long(HELP_ALL)
            .action(ArgAction::SetTrue)
            .help("Print help with all settings; presets/README.md lists them too");
        command.arg(help_all).args(settings.into_iter().map(|setting| flag(setting).hide(!setting.is_common)))
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for SettingFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        answers(matches, SETTINGS.iter()).map(Self)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args for CheckFlags {
    fn augment_args(command: clap::Command) -> clap::Command {
        command.args(of_check().map(flag))
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for CheckFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        answers(matches, of_check().chain(Setting::named(RUNS_DIR))).map(Self)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args for HeadFlags {
    fn augment_args(command: clap::Command) -> clap::Command {
        command.args(of_head().map(flag))
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for HeadFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        answers(matches, of_head().chain(Setting::named(RUNS_DIR))).map(Self)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// The settings that affect how `head` trains. All others are those of the run, or the recommended ones.
fn of_head() -> impl Iterator<Item = &'static Setting> {
    const OTHERS: [&str; 10] = [
        "data",
        "eval-fraction",
        "max-steps",
        "save-steps",
        "eval-every-steps",
        "device",
        "products",
        "seed",
        "name",
        "grad-accum-steps",
    ];
    let is_of_head = |setting: &&Setting| match setting.name {
        "model" | "mtp" => false,
        name => setting.heading == Heading::Mtp || setting.of_check || OTHERS.contains(&name),
    };
    SETTINGS.iter().filter(is_of_head)
}

impl Args for PackFlags {
    fn augment_args(command: clap::Command) -> clap::Command {
        let named = |setting: &'static Setting| {
            let other = OF_CONVERTER.iter().find(|(name, _)| *name == setting.name);
            other.iter().fold(flag(setting), |arg, (_, other)| arg.visible_alias(*other))
        };
        command.args(of_pack().map(named))
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for PackFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        answers(matches, of_pack().chain(Setting::named(RUNS_DIR))).map(Self)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// The settings that affect how `pack` reads text. A token file is one set of examples, without an eval set.
fn of_pack() -> impl Iterator<Item = &'static Setting> {
    of_check().filter(|setting| !["eval-data", "weight"].contains(&setting.name))
}

/// The settings that affect how `check` reads data.
fn of_check() -> impl Iterator<Item = &'static Setting> {
    SETTINGS.iter().filter(|setting| setting.of_check)
}

/// Returns the flag of a setting.
fn flag(setting: &'static Setting) -> Arg {
    let arg = Arg::new(setting.name)
        .long(setting.name)
        .aliases(setting.aliases)
        .value_name(value_name(setting))
        .value_hint(hint(setting.completes))
        .help(setting.about.trim_end_matches('.'))
        .help_heading(setting.heading.title());
    let arg = match setting.choices() {
        [] => arg.value_parser(move |text: &str| checked(setting, text)),
        _ if setting.kind == Kind::Switch => {
            let [yes, no] = ["true", "false"].map(PossibleValue::new);
            let words = [yes.aliases(["yes", "on", "1"]), no.aliases(["no", "off", "0"])];
            arg.value_parser(PossibleValuesParser::new(words)).hide_possible_values(true)
        }
        // The value's name already shows the words.
        words => arg.value_parser(PossibleValuesParser::new(words)).hide_possible_values(true),
    };
    if setting.is_list() {
        arg.action(ArgAction::Append).num_args(1..)
    } else if setting.kind == Kind::Switch {
        arg.num_args(0..=1).default_missing_value("true")
    } else if setting.name == RUNS_DIR {
        arg.global(true).help_heading(GLOBAL)
    } else {
        arg
    }
}

/// Returns a value that the setting accepts, or an error with the expected values.
fn checked(setting: &Setting, text: &str) -> Result<String, String> {
    let is_taken = Answers::default().set(setting.name, text, Origin::Flag);
    is_taken.map(|()| text.to_owned()).map_err(|error| match error {
        PlanError::BadValue { expects, .. } => format!("expected {expects}"),
        other => other.to_string(),
    })
}

fn value_name(setting: &Setting) -> String {
    match (setting.kind, setting.completes) {
        (Kind::Switch | Kind::Choice(_), _) => setting.choices().join("|"),
        (_, Completes::Models) => "MODEL".into(),
        (_, Completes::Folders) => "FOLDER".into(),
        (Kind::Paths | Kind::Path, _) => "FILE".into(),
        (Kind::Whole | Kind::Number, _) => "N".into(),
        (Kind::Text | Kind::Names, _) => "NAME".into(),
        (Kind::Texts, _) => "TEXT".into(),
        (Kind::Weights, _) => "NAME=N".into(),
        (Kind::Object, _) => "JSON".into(),
        (Kind::Map, _) => "COLUMN=FIELD,…".into(),
        (Kind::Sync, _) => "step|diloco:H".into(),
    }
}

const fn hint(completes: Completes) -> ValueHint {
    match completes {
        Completes::Nothing => ValueHint::Other,
        Completes::Folders | Completes::Models => ValueHint::DirPath,
        Completes::Files | Completes::Presets => ValueHint::AnyPath,
    }
}

/// Returns the answers that were given as flags.
fn answers(
    matches: &ArgMatches,
    settings: impl Iterator<Item = &'static Setting>,
) -> Result<Answers, clap::Error> {
    let mut answers = Answers::default();
    for setting in settings {
        let Some(values) = matches.get_many::<String>(setting.name) else { continue };
        let values: Vec<&str> = values.map(String::as_str).collect();
        answers.set_words(setting.name, &values, Origin::Flag).map_err(|error| {
            clap::Error::raw(clap::error::ErrorKind::ValueValidation, format!("{error}\n"))
        })?;
    }
    Ok(answers)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(words: &[&str]) -> Result<Answers, clap::Error> {
        let command = SettingFlags::augment_args(clap::Command::new("sparktune"));
        let matches = command.try_get_matches_from(["sparktune"].iter().chain(words))?;
        Ok(SettingFlags::from_arg_matches(&matches)?.0)
    }

    #[test]
    fn every_setting_is_a_flag_and_names_of_other_programs_mean_the_same() {
        let command = SettingFlags::augment_args(clap::Command::new("sparktune"));
        for setting in SETTINGS {
            assert!(
                command.get_arguments().any(|arg| arg.get_long() == Some(setting.name)),
                "{}",
                setting.name
            );
        }
        assert_eq!(
            given(&["--lr", "1e-4", "--lora-rank", "8"]).unwrap(),
            given(&["--learning-rate", "1e-4", "--rank", "8"]).unwrap()
        );
    }

    #[test]
    fn the_flag_of_every_command_is_a_setting() {
        assert!(Setting::named(RUNS_DIR).is_some());
    }

    #[test]
    fn a_value_out_of_range_is_refused_with_the_range() {
        let error = given(&["--rank", "0"]).unwrap_err().to_string();
        assert!(error.contains("--rank") && error.contains("a whole number from 1 to 65536"), "{error}");
        let error = given(&["--max-rejected", "2"]).unwrap_err().to_string();
        assert!(error.contains("a number from 0 to 1"), "{error}");
    }

    #[test]
    fn a_comma_for_a_decimal_point_is_refused_with_how_to_write_the_number() {
        let error = given(&["--rank", "1,5"]).unwrap_err().to_string();
        assert!(error.contains("groups of three digits, as in 10,000"), "{error}");
        for flag in ["--max-rejected", "--epochs"] {
            let error = given(&[flag, "0,5"]).unwrap_err().to_string();
            assert!(error.contains("use a point for decimals"), "{error}");
        }
        assert_eq!(given(&["--pack-length", "5,376"]).unwrap().pack_length.unwrap().value, 5376);
    }

    #[test]
    fn a_variable_of_the_template_is_refused_with_the_reason() {
        let error = given(&["--template-kwargs", r#"{"bos_token": "x"}"#]).unwrap_err().to_string();
        assert!(error.contains("`bos_token` gets its value from the program that renders"), "{error}");
    }

    #[test]
    fn a_switch_may_stand_alone() {
        assert!(given(&["--recompute", "--rank", "4"]).unwrap().recompute.unwrap().value);
        assert!(!given(&["--recompute", "false"]).unwrap().recompute.unwrap().value);
    }

    #[test]
    fn fields_to_ignore_may_be_given_one_by_one_or_together() {
        let answers = given(&["--ignore-config-field", "a", "b", "--ignore-config-field", "c,d"]).unwrap();
        assert_eq!(answers.ignore_config_field.unwrap().value, ["a", "b", "c", "d"]);
    }
}
