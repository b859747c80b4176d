//! A command that judges answers: it reads one JSON object and writes a score.

use std::process::Command;
use std::time::Duration;

use serde::Deserialize;
use serde_json::json;
use sparktune_compare::{Answer, Outcome, SuitePrompt};

use super::process::run;
use crate::failure::Failure;

/// The longest that a judge may think about an answer.
const PATIENCE: Duration = Duration::from_secs(300);
/// The score from which an answer passes.
const PASSES: f64 = 0.5;

/// A command that judges answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Judge {
    text: String,
    words: Vec<String>,
}

/// What a judge writes: a score alone, or an object with a reason.
#[derive(Deserialize)]
#[serde(untagged)]
enum Written {
    Score(f64),
    Object {
        score: f64,
        #[serde(default)]
        reason: Option<String>,
    },
}

impl Judge {
    /// Reads a command as a shell reads words. No shell runs it.
    ///
    /// # Errors
    /// It has no words, or a quotation mark is open.
    pub fn new(command: &str) -> Result<Self, Failure> {
        let words = shlex::split(command).filter(|words| !words.is_empty()).ok_or_else(|| {
            Failure::usage("the command of --judge has no words, or an open quotation mark")
                .hint("Write it as in a shell, such as --judge 'python3 judge.py'")
        })?;
        Ok(Self { text: command.to_owned(), words })
    }

    /// Returns the command as it was given.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Judges an answer. A judge that fails gives no score, and its outcome says why.
    pub(super) fn outcome(
        &self,
        suite: &str,
        prompt: &SuitePrompt,
        answer: &Answer,
        model: &str,
        is_cancelled: &dyn Fn() -> bool,
    ) -> Outcome {
        let shown = prompt.shown();
        let object = json!({
            "suite": suite,
            "id": prompt.id,
            "messages": shown.messages,
            "reference": prompt.reference,
            "model": model,
            "answer": answer.text,
        });
        let outcome = Outcome { kind: "judge".into(), check: "the judge".into(), ..Outcome::default() };
        match self.ask(&format!("{object}\n"), PATIENCE, is_cancelled) {
            Ok((score, reason)) => {
                Outcome { passed: Some(score >= PASSES), score: Some(score), note: reason, ..outcome }
            }
            Err(why) => Outcome { note: Some(why), is_missing: true, ..outcome },
        }
    }

    /// Returns the score and the reason.
    fn ask(
        &self,
        line: &str,
        patience: Duration,
        is_cancelled: &dyn Fn() -> bool,
    ) -> Result<(f64, Option<String>), String> {
        let (program, arguments) = self.words.split_first().expect("a command has words");
        let ended = run(Command::new(program).args(arguments), line, patience, is_cancelled)
            .map_err(|error| format!("the judge `{program}` cannot be started: {error}"))?;
        let status =
            ended.status.ok_or_else(|| format!("the judge took longer than {} s", patience.as_secs()))?;
        if !status.success() {
            let said = match ended.last_error() {
                "" => String::new(),
                last => format!(", and said: {last}"),
            };
            return Err(format!("the judge has failed ({status}){said}"));
        }
        score_in(&ended.output)
    }
}

/// Returns the score in the last line of what a judge wrote.
fn score_in(output: &str) -> Result<(f64, Option<String>), String> {
    let last = output.trim().lines().next_back().unwrap_or_default();
    let (score, reason) = match serde_json::from_str(last) {
        Ok(Written::Score(score)) => (score, None),
        Ok(Written::Object { score, reason }) => (score, reason),
        Err(_) => {
            let start: String = last.chars().take(60).collect();
            return Err(format!(
                "the judge wrote `{start}`, which is neither a number nor an object with `score`"
            ));
        }
    };
    if !(0.0..=1.0).contains(&score) {
        return Err(format!("the judge gave the score {score}, which is outside 0 to 1"));
    }
    Ok((score, reason))
}

#[cfg(test)]
mod tests {
    use sparktune_compare::Suite;

    use super::*;

    fn ask(command: &str) -> Result<(f64, Option<String>), String> {
        Judge::new(command).unwrap().ask("{\"answer\":\"yes\"}\n", Duration::from_secs(120), &|| false)
    }

    #[test]
    fn a_judge_reads_the_answer_and_writes_a_score() {
        assert_eq!(ask("sh -c 'grep -q yes && echo 0.75'"), Ok((0.75, None)));
        let with_reason = ask(r#"echo '{"score": 1, "reason": "brief"}'"#);
        assert_eq!(with_reason, Ok((1.0, Some("brief".into()))));
        assert_eq!(ask("sh -c 'echo thinking; echo 0'"), Ok((0.0, None)));
    }

    #[test]
    fn a_judge_that_fails_is_told_in_words() {
        for (command, words) in [
            ("sh -c 'echo no model >&2; exit 3'", "no model"),
            ("echo 7", "outside 0 to 1"),
            ("echo NaN", "neither a number"),
            ("true", "neither a number"),
            ("/nowhere/judge", "cannot be started"),
        ] {
            let why = ask(command).unwrap_err();
            assert!(why.contains(words), "{command}: {why}");
        }
        let slow = Judge::new("sh -c 'sleep 60; echo 1'")
            .unwrap()
            .ask("", Duration::from_millis(100), &|| false)
            .unwrap_err();
        assert!(slow.contains("took longer"), "{slow}");
        let line = br#"{"id": "a", "prompt": "say it", "checks": [{"type": "contains", "value": "it"}]}"#;
        let suite = Suite::read("own", line).unwrap();
        let judge = Judge::new("false").unwrap();
        let asked = |answer: &Answer| judge.outcome("own", &suite.prompts[0], answer, "model", &|| false);
        let good = Outcome { passed: Some(true), score: Some(1.0), ..Outcome::default() };
        let mut answer = Answer { outcomes: vec![good], ..Answer::default() };
        answer.settle();
        assert_eq!((answer.passed, answer.score), (Some(true), Some(1.0)));
        answer.outcomes.push(asked(&answer));
        answer.settle();
        assert_eq!(
            (answer.passed, answer.score),
            (None, None),
            "what the judge would have said is not known"
        );
        assert!(Judge::new(" ").unwrap_err().text.contains("no words"));
        assert!(Judge::new("a 'b").unwrap_err().text.contains("quotation"));
    }
}
