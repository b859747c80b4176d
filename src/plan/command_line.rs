//! The command line that corresponds to a set of answers. Screens show it, so that a script can start the
//! same run.

use sparktune_base::{program_name, shell};

use crate::answer::Origin;
use crate::error::PlanError;
use crate::setting::Setting;
use crate::settings::{Answers, SETTINGS};

/// Returns `sparktune train --non-interactive …` with every answer of [`Origin::Flag`] (flags and screens),
/// and with the model and data of the run, whatever their origin. Everything else is decided again from the
/// same files and variables. Words are quoted for a POSIX shell.
///
/// # Errors
/// [`PlanError::NotWritable`] names an answer that a command line cannot contain: a path that is not UTF-8,
/// or a NUL.
pub fn command_line(answers: &Answers) -> Result<String, PlanError> {
    let mut line = format!("{} train --non-interactive", program_name());
    for setting in SETTINGS {
        let Some(origin) = answers.origin(setting.key) else { continue };
        if origin != Origin::Flag && !setting.of_one_run {
            continue;
        }
        let words = answers
            .words(setting.key)
            .ok_or_else(|| PlanError::NotWritable(format!("the answer to `{}` has no text", setting.key)))?;
        for word in words {
            // A value that looks like a flag is joined to its flag by an equals sign.
            let flag = if word.starts_with('-') {
                quoted(setting, &format!("--{}={word}", setting.name))?
            } else {
                format!("--{} {}", setting.name, quoted(setting, &word)?)
            };
            line.push(' ');
            line.push_str(&flag);
        }
    }
    Ok(line)
}

fn quoted(setting: &Setting, word: &str) -> Result<String, PlanError> {
    shell::quoted(word)
        .ok_or_else(|| PlanError::NotWritable(format!("the answer to `{}` holds a NUL", setting.key)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Parses a command line like the program does.
    fn read(words: impl IntoIterator<Item = String>) -> Answers {
        let mut words = words.into_iter();
        let program: Vec<String> = words.by_ref().take(3).collect();
        assert_eq!(program, ["sparktune", "train", "--non-interactive"]);
        let mut given: Vec<(String, Vec<String>)> = Vec::new();
        while let Some(flag) = words.next() {
            let flag = flag.strip_prefix("--").unwrap();
            let (name, value) = match flag.split_once('=') {
                Some((name, value)) => (name.to_owned(), value.to_owned()),
                None => (flag.to_owned(), words.next().filter(|word| !word.starts_with('-')).unwrap()),
            };
            match given.iter_mut().find(|(other, _)| *other == name) {
                Some((_, values)) => values.push(value),
                None => given.push((name, vec![value])),
            }
        }
        given.iter().fold(Answers::default(), |mut answers, (name, values)| {
            let values: Vec<&str> = values.iter().map(String::as_str).collect();
            answers.set_words(name, &values, Origin::Flag).unwrap();
            answers
        })
    }

    fn flags(pairs: &[(&str, &str)]) -> Answers {
        pairs.iter().fold(Answers::default(), |mut answers, (name, text)| {
            answers.set(name, text, Origin::Flag).unwrap();
            answers
        })
    }

    #[test]
    fn the_line_names_model_data_preset_and_what_was_said_and_nothing_else() {
        let mut answers = flags(&[("rank", "16"), ("recompute", "true"), ("learning-rate", "2e-4")]);
        answers.set("data", r#"["a b.jsonl", "c.jsonl"]"#, Origin::Flag).unwrap();
        answers.set("model", "Qwen/Qwen3.5-2B", Origin::UserFile).unwrap();
        answers.set("preset", "quick", Origin::Environment).unwrap();
        answers.set("epochs", "1", Origin::Preset).unwrap();
        // This is an answer of the demo, which no preset file contains.
        answers.set("name", "demo", Origin::Preset).unwrap();
        assert_eq!(
            command_line(&answers).unwrap(),
            "sparktune train --non-interactive --preset quick --recompute true --name demo --model Qwen/Qwen3.5-2B \
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
            let answers = flags(&[("model", value), ("data", value)]);
            let line = command_line(&answers).unwrap();
            let line = line.replace("sparktune train", "sh -c 'printf \"%s\\0\" \"$@\"' x");
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
            let expected: Vec<String> = ["--non-interactive".into()]
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
        let error = command_line(&flags(&[("name", "a\0b")])).unwrap_err().to_string();
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
                let choice = setting.choices().get(number as usize % setting.choices().len().max(1));
                let texts = [text, number.to_string(), format!("{}e-3", number), choice.unwrap_or(&"x").to_string()];
                for text in texts {
                    let _ = answers.set(setting.name, &text, Origin::Flag);
                }
            }
            let paths: Vec<std::path::PathBuf> = paths.into_iter().map(Into::into).collect();
            answers.data = (!paths.is_empty()).then(|| crate::Answer::flag(paths));
            let line = command_line(&answers).unwrap();
            prop_assert_eq!(read(shlex::split(&line).unwrap()), answers.clone(), "{}", line);
            // The same holds for a draft, and for editing each answer in place.
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
