//! Checks that run code which a model wrote. What runs it, and in which sandbox, is not decided here: a check
//! describes the job, and gets back how much of it succeeded.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// The most bytes of all code in a check.
const MOST_CODE: usize = 64 << 10;
/// The most tests of a check.
const MOST_TESTS: usize = 64;

/// The program that runs a job: Python that reads the job as one line of JSON from its standard input, and
/// whose last line is the job's nonce and the result.
const HARNESS: &str = include_str!("harness.py");

/// Code to run, for the program of [`CodeJob::program`].
#[derive(Debug, Clone, PartialEq)]
pub struct CodeJob(Value);

impl CodeJob {
    /// Returns the program, for `python3 -c`.
    pub fn program() -> &'static str {
        HARNESS
    }

    /// Returns the line for its standard input. The result is known by the `nonce`, which must be new.
    pub fn line(&self, nonce: &str) -> String {
        let mut job = self.0.clone();
        job["nonce"] = json!(nonce);
        format!("{job}\n")
    }

    /// Returns the result in what the program wrote; `None` if it did not come to its end.
    pub fn result(output: &str, nonce: &str) -> Option<CodeResult> {
        let line = output.lines().rev().find_map(|line| line.strip_prefix(nonce))?;
        serde_json::from_str(line).ok()
    }
}

/// How much of a job succeeded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CodeResult {
    /// The number of tests that passed.
    pub passed: usize,
    /// The number of tests.
    pub total: usize,
    /// Why the first one failed.
    pub message: Option<String>,
}

/// Python that must pass tests.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PythonSpec {
    /// Code before that of the answer, such as the beginning of a function that the model completes.
    #[serde(default)]
    before: String,
    /// Statements, each a test of its own, usually an assertion.
    tests: Vec<String>,
}

/// Tests that the model wrote, which must pass with the correct code and fail with each wrong one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TestsSpec {
    correct: String,
    wrong: Vec<String>,
}

/// A query that must give these rows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SqlSpec {
    /// Statements that make the tables.
    setup: String,
    rows: Vec<Vec<Value>>,
    /// Whether the order of the rows counts.
    #[serde(default)]
    ordered: bool,
}

impl PythonSpec {
    pub(super) fn check(&self) -> Result<(), (String, String)> {
        checked("tests", &self.tests, &self.before)
    }

    pub(super) fn job(&self, code: &str) -> CodeJob {
        let code = format!("{}{code}", self.before);
        CodeJob(json!({"kind": "python", "code": code, "tests": self.tests}))
    }
}

impl TestsSpec {
    pub(super) fn check(&self) -> Result<(), (String, String)> {
        checked("wrong", &self.wrong, &self.correct)
    }

    pub(super) fn job(&self, code: &str) -> CodeJob {
        CodeJob(json!({"kind": "tests", "code": code, "correct": self.correct, "wrong": self.wrong}))
    }
}

impl SqlSpec {
    pub(super) fn check(&self) -> Result<(), (String, String)> {
        let rows: Vec<String> = self.rows.iter().map(|row| json!(row).to_string()).collect();
        checked("rows", &rows, &self.setup)
    }

    pub(super) fn job(&self, code: &str) -> CodeJob {
        let Self { setup, rows, ordered } = self;
        CodeJob(json!({"kind": "sql", "code": code, "setup": setup, "rows": rows, "ordered": ordered}))
    }
}

fn checked(name: &str, list: &[String], other: &str) -> Result<(), (String, String)> {
    if list.is_empty() || list.len() > MOST_TESTS {
        let what = format!("the list `{name}` has {} entries", list.len());
        return Err((what, format!("Give 1 to {MOST_TESTS}")));
    }
    let bytes = list.iter().map(String::len).sum::<usize>() + other.len();
    if bytes > MOST_CODE {
        return Err((format!("a check has {bytes} bytes of code"), format!("Give at most {MOST_CODE}")));
    }
    Ok(())
}

/// Returns the code in an answer: what is inside its first fence, or the whole answer.
pub(super) fn extracted(text: &str) -> String {
    let Some((_, rest)) = text.split_once("```") else { return text.to_owned() };
    let rest = rest.split_once('\n').map_or(rest, |(_, rest)| rest);
    rest.split("```").next().unwrap_or_default().to_owned()
}
