//! The command line that says what these answers say: what a screen shows to copy, so that the same run can
//! be started by a script.

use sparktune_base::shell;

use crate::answers::{Answers, Origin, SETTINGS, Setting};
use crate::error::PlanError;
use crate::values::Value;

/// What a line that stands alone must name, wherever the answer came from.
const ALWAYS: [&str; 4] = ["preset", "name", "model.id", "data.train"];

/// `sparktune train --non-interactive …` with every answer of [`Origin::Flag`] (flags and screens), the
/// preset, the name, the model and the data; settings that have no flag stand before it as variables.
/// Everything else is decided again from the same files and variables. Words are quoted for a POSIX shell.
///
/// # Errors
/// [`PlanError::NotWritable`] naming an answer that a command line cannot hold: a path that is not UTF-8, a
/// NUL.
pub fn command_line(answers: &Answers) -> Result<String, PlanError> {
    let (mut variables, mut flags) = (Vec::new(), Vec::new());
    for setting in SETTINGS {
        let Some(origin) = answers.origin(setting.key) else { continue };
        if origin != Origin::Flag && !ALWAYS.contains(&setting.key) {
            continue;
        }
        for value in values(answers, setting)? {
            if setting.has_flag {
                // A value that looks like a flag is held to its own.
                if value.starts_with('-') {
                    flags.push(quoted(setting, &format!("--{}={value}", setting.name))?)
                } else {
                    flags.push(format!("--{} {}", setting.name, quoted(setting, &value)?))
                }
            } else {
                variables.push(format!("{}={}", setting.env(), quoted(setting, &value)?));
            }
        }
    }
    let program = "sparktune train --non-interactive".to_owned();
    Ok(variables.into_iter().chain([program]).chain(flags).collect::<Vec<_>>().join(" "))
}

/// The values of one answer: each path of a list is a flag of its own.
fn values(answers: &Answers, setting: &Setting) -> Result<Vec<String>, PlanError> {
    let paths = match setting.key {
        "data.train" => answers.data.as_ref(),
        "data.eval" => answers.eval_data.as_ref(),
        _ => None,
    };
    match paths {
        Some(paths) => paths.value.iter().map(Value::to_text).collect::<Option<_>>(),
        None => answers.get(setting.name).map(|(text, _)| vec![text]),
    }
    .ok_or_else(|| PlanError::NotWritable(format!("the answer to `{}` has no text", setting.key)))
}

fn quoted(setting: &Setting, word: &str) -> Result<String, PlanError> {
    shell::quoted(word)
        .ok_or_else(|| PlanError::NotWritable(format!("the answer to `{}` holds a NUL", setting.key)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Reads a line the way the program's flags and variables are read.
    fn read(words: impl IntoIterator<Item = String>) -> Answers {
        let mut answers = Answers::default();
        let mut words = words.into_iter();
        let mut paths = Vec::new();
        for word in words.by_ref().take_while(|word| word != "sparktune") {
            let (variable, value) = word.split_once('=').unwrap();
            let setting = SETTINGS.iter().find(|setting| setting.env() == variable).unwrap();
            assert!(!setting.has_flag, "{variable}");
            answers.set(setting.name, value, Origin::Flag).unwrap();
        }
        assert_eq!(words.by_ref().take(2).collect::<Vec<_>>(), ["train", "--non-interactive"]);
        while let Some(flag) = words.next() {
            let flag = flag.strip_prefix("--").unwrap();
            let (name, value) = match flag.split_once('=') {
                Some((name, value)) => (name.to_owned(), value.to_owned()),
                None => (flag.to_owned(), words.next().filter(|word| !word.starts_with('-')).unwrap()),
            };
            assert!(Setting::named(&name).unwrap().has_flag, "{name}");
            match name.as_str() {
                "data" | "eval-data" => paths.push((name, value.into())),
                name => answers.set(name, &value, Origin::Flag).unwrap(),
            }
        }
        let of = |name: &str| {
            let paths: Vec<_> =
                paths.iter().filter(|(n, _)| n == name).map(|(_, path)| path).cloned().collect();
            (!paths.is_empty()).then(|| crate::Answer::flag(paths))
        };
        Answers { data: of("data"), eval_data: of("eval-data"), ..answers }
    }

    fn said(pairs: &[(&str, &str)]) -> Answers {
        pairs.iter().fold(Answers::default(), |mut answers, (name, text)| {
            answers.set(name, text, Origin::Flag).unwrap();
            answers
        })
    }

    #[test]
    fn the_line_names_model_data_preset_and_what_was_said_and_nothing_else() {
        let mut answers = said(&[("rank", "16"), ("recompute", "true"), ("learning-rate", "2e-4")]);
        answers.set("data", r#"["a b.jsonl", "c.jsonl"]"#, Origin::Flag).unwrap();
        answers.set("model", "Qwen/Qwen3.5-2B", Origin::UserFile).unwrap();
        answers.set("preset", "quick", Origin::Environment).unwrap();
        answers.set("epochs", "1", Origin::Preset).unwrap();
        // The demo's: it is in no preset's file.
        answers.set("name", "demo", Origin::Preset).unwrap();
        assert_eq!(
            command_line(&answers).unwrap(),
            "SPARKTUNE_RECOMPUTE=true sparktune train --non-interactive --preset quick --name demo --model Qwen/Qwen3.5-2B \
             --data 'a b.jsonl' --data c.jsonl --rank 16 --learning-rate 2e-4"
        );
    }

    #[test]
    fn a_real_shell_reads_odd_values_as_they_were_said() {
        let odd = [
            "it's",
            "a \"b\" $HOME `id`",
            "two\nlines",
            "-dash",
            "~",
            "*",
            "!x",
            "{a,b}",
            "\\",
            "größe 模型",
        ];
        for value in odd {
            let answers = said(&[("model", value), ("model-path", value), ("data", value)]);
            let line = command_line(&answers).unwrap();
            let line = line
                .replace("sparktune train", "sh -c 'printf \"%s\\0\" \"$SPARKTUNE_MODEL_PATH\" \"$@\"' x");
            let shell = std::process::Command::new("sh").args(["-c", &line]).output().unwrap();
            let out = String::from_utf8(shell.stdout).unwrap();
            let words: Vec<&str> = out.split_terminator('\0').collect();
            let joined = |flag: &str| {
                if value.starts_with('-') {
                    vec![format!("--{flag}={value}")]
                } else {
                    vec![format!("--{flag}"), value.to_owned()]
                }
            };
            let expected: Vec<String> = [value.into(), "--non-interactive".into()]
                .into_iter()
                .chain(joined("model"))
                .chain(joined("data"))
                .collect();
            assert_eq!(words, expected, "{line}");
        }
    }

    #[test]
    fn what_a_command_line_cannot_hold_is_refused_by_name() {
        use std::os::unix::ffi::OsStringExt;
        let error = command_line(&said(&[("name", "a\0b")])).unwrap_err().to_string();
        assert!(error.contains("`name` holds a NUL"), "{error}");
        let path = std::ffi::OsString::from_vec(b"caf\xe9.jsonl".to_vec());
        let answers = Answers { data: Some(crate::Answer::flag(vec![path.into()])), ..Answers::default() };
        let error = command_line(&answers).unwrap_err().to_string();
        assert!(error.contains("data.train") && error.contains("UTF-8"), "{error}");
        assert!(answers.to_toml().unwrap_err().to_string().contains("data.train"));
        assert!(answers.get("data").is_none() && answers.origin("data.train").is_some());
    }

    proptest! {
        #[test]
        fn reading_the_line_back_gives_the_same_answers(
            given in prop::collection::vec((0..SETTINGS.len(), "[^\0]{1,12}", any::<u32>()), 0..12),
            paths in prop::collection::vec("[^\0]*[^\0\\s][^\0]*", 0..3),
        ) {
            let mut answers = Answers::default();
            for (which, text, number) in given {
                let setting = &SETTINGS[which];
                let choice = setting.choices.get(number as usize % setting.choices.len().max(1));
                let texts = [text, number.to_string(), format!("{}e-3", number), choice.unwrap_or(&"x").to_string()];
                for text in texts {
                    let _ = answers.set(setting.name, &text, Origin::Flag);
                }
            }
            let paths: Vec<std::path::PathBuf> = paths.into_iter().map(Into::into).collect();
            answers.data = (!paths.is_empty()).then(|| crate::Answer::flag(paths));
            let line = command_line(&answers).unwrap();
            prop_assert_eq!(read(shlex::split(&line).unwrap()), answers.clone(), "{}", line);
            // The same for a draft, and for editing each answer where it stands.
            let draft = answers.to_toml().unwrap();
            prop_assert_eq!(Answers::from_toml(&draft, Origin::Flag, "draft").unwrap(), answers.clone(), "{}", draft);
            let mut again = Answers::default();
            for setting in SETTINGS {
                if let Some((text, origin)) = answers.get(setting.name) {
                    again.set(setting.name, &text, origin).unwrap();
                }
            }
            prop_assert_eq!(again, answers);
        }
    }
}
