//! Completions of bash, zsh and fish.
//!
//! The script of a shell calls `sparktune complete` with the words so far, so that presets, models and runs
//! are completed as well, and a new flag needs no new script. Completions are derived from the declared
//! command line; only names of presets, models, suites and runs come from elsewhere ([`Names`]).

use clap::{Arg, Command, ValueEnum, ValueHint};
use sparktune_base::escape::escape;
use sparktune_plan::Setting;

/// A shell with a completion script.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Shell {
    Bash,
    Zsh,
    Fish,
}

impl Shell {
    /// Returns the script that a user's shell loads once.
    pub(crate) const fn script(self) -> &'static str {
        match self {
            Self::Bash => include_str!("complete.bash"),
            Self::Zsh => include_str!("complete.zsh"),
            Self::Fish => include_str!("complete.fish"),
        }
    }
}

/// Names that the declared command line does not contain.
pub(crate) trait Names {
    /// Returns the names of presets.
    fn presets(&self) -> Vec<String>;
    /// Returns the ids of models.
    fn models(&self) -> Vec<String>;
    /// Returns the names of suites of prompts.
    fn suites(&self) -> Vec<String>;
    /// Returns the names of runs, in this folder if the line names one.
    fn runs(&self, runs_dir: Option<&str>) -> Vec<String>;
}

/// The paths that the shell itself adds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Paths {
    None,
    Folders,
    Files,
}

/// Returns the completions of the last of `words`, the words after the program's name. The first line says
/// which paths the shell adds (`none`, `folders` or `files`); each further line is a word, a tab, and its
/// meaning.
pub(crate) fn complete(root: &Command, words: &[String], names: &dyn Names) -> String {
    let (last, before) = words.split_last().map_or(("", &[][..]), |(last, before)| (last.as_str(), before));
    // bash passes `--method=lo` as three words.
    let last = if last == "=" { "" } else { last };
    let line = Line::read(root, before);
    let (paths, offered) = match (line.pending, last.split_once('=')) {
        (None, Some((flag, _))) if flag.starts_with("--") => {
            let (paths, values) =
                line.flag(flag).map_or((Paths::None, Vec::new()), |arg| line.values(arg, names));
            (paths, values.into_iter().map(|(value, about)| (format!("{flag}={value}"), about)).collect())
        }
        (Some((arg, _)), _) if !(last.starts_with('-') && line.may_end_values()) => line.values(arg, names),
        _ if last.starts_with('-') => (Paths::None, line.flags()),
        _ => line.commands_and_positionals(names),
    };
    let first = match paths {
        Paths::None => "none",
        Paths::Folders => "folders",
        Paths::Files => "files",
    };
    let mut text = format!("{first}\n");
    // A name that a terminal could obey, or a shell take for a flag, is not offered.
    let is_plain = |word: &str| escape(word) == word && (!word.starts_with('-') || last.starts_with('-'));
    for (word, about) in offered.iter().filter(|(word, _)| word.starts_with(last) && is_plain(word)) {
        text.push_str(&format!("{word}\t{about}\n"));
    }
    text
}

/// A word with its meaning.
type Offer = (String, String);

/// The words before the one to be completed.
struct Line<'a> {
    command: &'a Command,
    /// The flag that expects a value, and the number of values it has already.
    pending: Option<(&'a Arg, usize)>,
    positionals: usize,
    runs_dir: Option<&'a str>,
}

impl<'a> Line<'a> {
    fn read(root: &'a Command, words: &'a [String]) -> Self {
        let mut line = Self { command: root, pending: None, positionals: 0, runs_dir: None };
        for word in words.iter().filter(|word| *word != "=") {
            line.take(word);
        }
        line
    }

    fn take(&mut self, word: &'a str) {
        if let Some(flag) = word.strip_prefix("--") {
            let (name, value) =
                flag.split_once('=').map_or((flag, None), |(flag, value)| (flag, Some(value)));
            if name == "runs-dir" {
                self.runs_dir = value.or(self.runs_dir);
            }
            let takes_value = |arg: &&Arg| arg.get_action().takes_values();
            self.pending = match value {
                None => self.flag(word).filter(takes_value).map(|arg| (arg, 0)),
                Some(_) => None,
            };
            return;
        }
        if let Some((arg, values)) = self.pending {
            if arg.get_id() == "runs-dir" {
                self.runs_dir = Some(word);
            }
            let most = arg.get_num_args().map_or(1, |range| range.max_values());
            self.pending = (values + 1 < most).then_some((arg, values + 1));
            return;
        }
        match self.command.find_subcommand(word).filter(|_| self.positionals == 0) {
            Some(command) => self.command = command,
            None if word.starts_with('-') => {}
            None => self.positionals += 1,
        }
    }

    /// Returns the flag of this word.
    fn flag(&self, word: &str) -> Option<&'a Arg> {
        let word = word.trim_start_matches('-').split('=').next()?;
        self.command.get_opts().find(|arg| {
            arg.get_long() == Some(word) || arg.get_all_aliases().is_some_and(|names| names.contains(&word))
        })
    }

    /// Returns whether a flag may follow instead of a value: after one of several values, or if none is
    /// required.
    fn may_end_values(&self) -> bool {
        self.pending.is_some_and(|(arg, values)| {
            let least = arg.get_num_args().map_or(1, |range| range.min_values());
            values >= least
        })
    }

    /// Returns the completions of a flag's value or of a positional argument.
    fn values(&self, arg: &Arg, names: &dyn Names) -> (Paths, Vec<Offer>) {
        let unexplained = |words: Vec<String>| words.into_iter().map(|word| (word, String::new())).collect();
        let paths = match arg.get_value_hint() {
            ValueHint::DirPath => Paths::Folders,
            ValueHint::AnyPath | ValueHint::FilePath => Paths::Files,
            _ => Paths::None,
        };
        match arg.get_id().as_str() {
            "preset" => (paths, unexplained(names.presets())),
            "model" => (paths, unexplained(names.models())),
            "suite" => (paths, unexplained(names.suites())),
            "run" => (Paths::Folders, unexplained(names.runs(self.runs_dir))),
            _ => {
                let words = arg.get_possible_values().into_iter().filter(|value| !value.is_hide_set());
                let offer = |value: clap::builder::PossibleValue| {
                    let about = value.get_help().map(ToString::to_string).unwrap_or_default();
                    (value.get_name().to_owned(), about)
                };
                (paths, words.map(offer).collect())
            }
        }
    }

    /// Returns all flags of the command, including settings that `--help` does not list.
    fn flags(&self) -> Vec<Offer> {
        let is_offered = |arg: &&Arg| !arg.is_hide_set() || Setting::named(arg.get_id().as_str()).is_some();
        let offer = |arg: &Arg| {
            let about = arg.get_help().map(ToString::to_string).unwrap_or_default();
            Some((format!("--{}", arg.get_long()?), about))
        };
        self.command.get_arguments().filter(is_offered).filter_map(offer).collect()
    }

    fn commands_and_positionals(&self, names: &dyn Names) -> (Paths, Vec<Offer>) {
        let positional = self.command.get_positionals().last().filter(|last| {
            let is_list = last.get_num_args().is_some_and(|range| range.max_values() > 1);
            is_list || self.positionals < self.command.get_positionals().count()
        });
        let (paths, mut offered) =
            positional.map_or((Paths::None, Vec::new()), |arg| self.values(arg, names));
        if self.positionals == 0 {
            let commands = self.command.get_subcommands().filter(|command| !command.is_hide_set());
            offered.extend(commands.map(|command| {
                let about = command.get_about().map(ToString::to_string).unwrap_or_default();
                (command.get_name().to_owned(), about)
            }));
        }
        (paths, offered)
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::cli::Cli;

    struct Known;

    impl Names for Known {
        fn presets(&self) -> Vec<String> {
            vec!["quick".into(), "mine".into()]
        }

        fn models(&self) -> Vec<String> {
            vec!["Qwen/Qwen3.5-2B".into()]
        }

        fn suites(&self) -> Vec<String> {
            vec!["coding".into()]
        }

        fn runs(&self, runs_dir: Option<&str>) -> Vec<String> {
            let hostile = ["red\u{1b}[31m-run", "two\nlines", "--json"].map(str::to_owned);
            let usual = format!("{}-run", runs_dir.unwrap_or("usual"));
            std::iter::once(usual).chain(hostile).collect()
        }
    }

    /// Returns the completions at the end of a line: which paths, and the words.
    fn offered(line: &str) -> (String, Vec<String>) {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        let mut root = Cli::command();
        root.build();
        let text = complete(&root, &words, &Known);
        let mut lines = text.lines();
        let paths = lines.next().unwrap().to_owned();
        (paths, lines.map(|line| line.split('\t').next().unwrap().to_owned()).collect())
    }

    #[test]
    fn commands_are_offered_but_hidden_ones_are_not() {
        let (paths, words) = offered("");
        assert!(paths == "none" && words.contains(&"train".into()) && words.contains(&"bench".into()));
        assert!(!words.iter().any(|word| word == "trainer" || word == "complete"), "{words:?}");
        assert_eq!(offered("tr").1, ["train"]);
        let (_, parts) = offered("bench ");
        assert!(parts.contains(&"lossless".into()) && parts.contains(&"start".into()));
        assert!(!parts.contains(&"stepper".into()), "{parts:?}");
    }

    #[test]
    fn values_are_the_words_of_the_setting() {
        assert_eq!(offered("train --method ").1, ["lora", "full"]);
        assert_eq!(offered("train --method f").1, ["full"]);
        assert_eq!(offered("train --method = f").1, ["full"], "as bash splits it");
        assert_eq!(offered("train --method=f").1, ["--method=full"], "as zsh and fish hand it over");
        assert_eq!(offered("--device c").1, ["cpu", "cuda"]);
        assert_eq!(offered("bench --gpu pro").1, Vec::<String>::new());
        assert_eq!(offered("completions ").1, ["bash", "zsh", "fish"]);
    }

    #[test]
    fn presets_models_and_runs_are_offered_by_name() {
        assert_eq!(offered("train --preset q"), ("files".into(), vec!["quick".into()]));
        assert_eq!(offered("plan --model Q"), ("folders".into(), vec!["Qwen/Qwen3.5-2B".into()]));
        for command in ["watch", "resume", "head", "stop", "export", "report", "compare", "chat"] {
            assert_eq!(offered(&format!("{command} ")).1, ["usual-run"], "{command}");
        }
        assert_eq!(offered("compare a ").1, ["usual-run"], "there may be several");
        assert_eq!(offered("compare a --suite c"), ("files".into(), vec!["coding".into()]));
        assert_eq!(offered("resume --runs-dir other ").1, ["other-run"]);
        assert_eq!(offered("resume --runs-dir=other ").1, ["other-run"]);
        assert_eq!(offered("resume --runs-dir other x").1, Vec::<String>::new());
    }

    #[test]
    fn paths_are_left_to_the_shell() {
        assert_eq!(offered("train --data ").0, "files");
        assert_eq!(offered("train --data a.jsonl ").0, "files", "there may be several");
        assert_eq!(offered("train --runs-dir ").0, "folders");
        assert_eq!(offered("check ").0, "files");
        assert_eq!(offered("verify a.qubgpu ").0, "none");
    }

    #[test]
    fn all_settings_are_offered_as_flags() {
        let (_, flags) = offered("train --");
        for setting in sparktune_plan::SETTINGS {
            assert!(flags.contains(&format!("--{}", setting.name)), "{} in {flags:?}", setting.name);
        }
        assert_eq!(offered("train --data a.jsonl --lear").1, ["--learning-rate"]);
        assert_eq!(offered("train --recompute --bet").1, ["--beta1", "--beta2"]);
        assert!(offered("resume --non").1.contains(&"--non-interactive".into()));
    }
}
