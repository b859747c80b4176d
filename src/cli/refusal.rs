//! Improves the messages about invalid command lines where those of clap are too short or too long.

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command};
use sparktune_base::escape::escape;
use sparktune_plan::SETTINGS;

/// What other programs call something that is no setting here, and what there is instead.
const NOT_SETTINGS: [(&str, &str); 3] = [
    ("mode", "the method is '--method lora' or '--method full'"),
    ("resume-from-checkpoint", "a run continues with `resume [RUN]`, from a step with `--checkpoint STEP`"),
    ("resume", "a run continues with `resume [RUN]`, from a step with `--checkpoint STEP`"),
];

/// Returns the error with the nearest setting for a name of other programs, and without hidden commands among
/// the suggestions.
pub(super) fn explained(mut error: clap::Error, command: &Command) -> clap::Error {
    if let Some(ContextValue::String(flag)) = error.get(ContextKind::InvalidArg) {
        let name = flag.trim_start_matches('-').to_owned();
        let name = name.as_str();
        let is_word = error.kind() == ErrorKind::UnknownArgument && !flag.starts_with('-');
        if is_word && usage_of(&error).contains(" generate ") {
            let tip = "the prompt comes after its flag: '--prompt TEXT'";
            error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![StyledStr::from(tip)]));
        }
        if let Some((_, tip)) = NOT_SETTINGS.iter().find(|(other, _)| *other == name) {
            error.remove(ContextKind::SuggestedArg);
            error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![StyledStr::from(*tip)]));
        }
        if let Some(setting) = SETTINGS.iter().find(|setting| setting.nearest_to.contains(&name)) {
            let tip = format!("the most similar setting is '--{}': {}", setting.name, setting.about);
            error.remove(ContextKind::SuggestedArg);
            error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![StyledStr::from(tip)]));
        }
    }
    let similar = match error.get(ContextKind::SuggestedSubcommand) {
        Some(ContextValue::Strings(names)) => names.clone(),
        Some(ContextValue::String(name)) => vec![name.clone()],
        _ => return error,
    };
    error.remove(ContextKind::SuggestedSubcommand);
    let hidden = hidden_commands(command);
    let similar: Vec<String> = similar.into_iter().filter(|name| !hidden.contains(&name.as_str())).collect();
    if !similar.is_empty() {
        error.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(similar));
    }
    error
}

fn usage_of(error: &clap::Error) -> String {
    match error.get(ContextKind::Usage) {
        Some(ContextValue::StyledStr(usage)) => usage.to_string(),
        _ => String::new(),
    }
}

/// Escapes what the error quotes from the command line, so that it reaches the terminal as visible text.
pub(super) fn escaped(mut error: clap::Error) -> clap::Error {
    let visible = |text: &String| escape(text).into_owned();
    let quoted: Vec<_> = error
        .context()
        .filter_map(|(kind, value)| match value {
            ContextValue::String(text) => Some((kind, ContextValue::String(visible(text)))),
            ContextValue::Strings(texts) => {
                Some((kind, ContextValue::Strings(texts.iter().map(visible).collect())))
            }
            _ => None,
        })
        .collect();
    for (kind, value) in quoted {
        error.insert(kind, value);
    }
    error
}

fn hidden_commands(command: &Command) -> Vec<&str> {
    let own = command.get_subcommands().filter(|sub| sub.is_hide_set()).map(Command::get_name);
    own.chain(command.get_subcommands().flat_map(hidden_commands)).collect()
}

/// Refuses flags before a command's name that only apply without a command, because they would be ignored.
pub(super) fn flags_before_a_command(matches: &ArgMatches, command: &Command) -> Result<(), clap::Error> {
    let Some((name, of_command)) = matches.subcommand() else { return Ok(()) };
    let is_given = |id: &str| matches.value_source(id) == Some(ValueSource::CommandLine);
    let is_misplaced = |arg: &&Arg| !arg.is_global_set() && is_given(arg.get_id().as_str());
    let misplaced = command.get_arguments().filter(|arg| !arg.is_positional()).find(is_misplaced);
    if let Some(arg) = misplaced {
        let flag = arg.get_long().unwrap_or_default();
        let text = format!("--{flag} comes before `{name}`; the flags of a command come after `{name}`\n");
        return Err(clap::Error::raw(ErrorKind::ArgumentConflict, text).with_cmd(command));
    }
    let sub = command.find_subcommand(name).expect("clap found it");
    flags_before_a_command(of_command, sub)
}
