//! The question for the data: the path, and the actions for data that was read.

use std::path::{Path, PathBuf};

use sparktune_base::choices::Think;
use sparktune_base::field_map::FieldMap;
use sparktune_base::thinking::Thinking;
use sparktune_data::Report;
use sparktune_plan::{Answers, DataFormat};

use crate::data::{limit_that_accepts, refusal, think};
use crate::data_sets::{check_name, is_elsewhere};
use crate::files::expand_home;

/// The files that count as data.
pub const PATH_HELP: &str = ".jsonl, .csv, .tsv, .parquet, .txt, .md, .gz; a folder; hf:OWNER/NAME; ndp://…";

/// Checks the path of training data, or its name elsewhere, as typed, and returns it.
///
/// # Errors
/// The problem with the path.
pub fn check_path(typed: &str, home: Option<&Path>) -> Result<PathBuf, String> {
    let typed = typed.trim();
    if typed.is_empty() {
        return Err("type the path of a file or a folder".into());
    }
    if is_elsewhere(Path::new(typed)) {
        return check_name(typed).map(|()| PathBuf::from(typed));
    }
    let path = expand_home(typed, home);
    if path.exists() { Ok(path) } else { Err(format!("{typed}: no such file or folder")) }
}

/// The actions for data that was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DataAction {
    /// Continue with this data.
    Accept,
    /// Leave out the rejected lines, however many there are.
    AcceptTheRest,
    /// Show the rejected lines.
    ShowRejected,
    /// Show examples.
    ShowExamples,
    /// Switch whether the inserted empty think block is trained.
    SwitchThink,
    /// Read foreign columns as the fields that they probably stand for.
    MapColumns,
    /// Read the lines in another format.
    ReadAs,
    /// Choose other data.
    Other,
}

impl DataAction {
    /// Returns its label in an interface.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Accept => "use this data",
            Self::AcceptTheRest => "skip the rejected lines and train on the rest",
            Self::ShowRejected => "show the rejected lines with reasons and fixes",
            Self::ShowExamples => "show examples as the model sees them, with the trained tokens marked",
            Self::SwitchThink => "train or skip the inserted empty think block",
            Self::MapColumns => "read the columns as the fields that they probably stand for",
            Self::ReadAs => "read the lines in another format",
            Self::Other => "choose other data",
        }
    }
}

/// Returns the actions for data with this report, the default first. `has_think_block` says whether the
/// model's template inserts an empty think block.
pub fn actions(answers: &Answers, report: &Report, has_think_block: bool) -> Vec<DataAction> {
    use DataAction as A;
    let has_examples = report.examples > 0;
    // The tokens of a token file are fixed.
    let is_text = report.token_files.is_empty();
    let offered = [
        (A::Accept, refusal(answers, report).is_none()),
        (A::MapColumns, suggested_map(answers, report).is_some()),
        (A::ShowRejected, report.listed_lines() > 0),
        (A::AcceptTheRest, limit_that_accepts(answers, report).is_some()),
        (A::ShowExamples, has_examples),
        (A::SwitchThink, has_examples && has_think_block && is_text),
        (A::ReadAs, is_text),
        (A::Other, true),
    ];
    offered.into_iter().filter(|(_, is_offered)| *is_offered).map(|(action, _)| action).collect()
}

/// Returns what the columns of data that no format fits probably stand for, unless the user said it already.
pub fn suggested_map<'r>(answers: &Answers, report: &'r Report) -> Option<&'r FieldMap> {
    report.suggested_map().filter(|_| answers.map.is_none())
}

/// Returns the opposite choice of whether the inserted empty think block is trained.
pub fn other_think(answers: &Answers, thinking: Thinking) -> Think {
    match think(answers, thinking) {
        Think::Train => Think::Skip,
        Think::Skip => Think::Train,
    }
}

/// Returns the position of the current format among [`DataFormat::ALL`].
pub fn format_position(answers: &Answers) -> usize {
    let now = answers.format.as_ref().map_or(DataFormat::Auto, |answer| answer.value);
    DataFormat::ALL.iter().position(|format| *format == now).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use sparktune_base::thinking::Opening;
    use sparktune_data::Foreign;
    use sparktune_plan::Origin;

    use super::*;

    fn offered(examples: u64, rejected: u64) -> Vec<DataAction> {
        let report = Report { examples, rejected, lines: examples + rejected, ..Report::default() };
        actions(&Answers::default(), &report, false)
    }

    #[test]
    fn refused_data_cannot_be_gone_on_with_but_its_rest_can_be_taken_where_there_is_one() {
        use DataAction as A;
        assert_eq!(offered(9, 0), [A::Accept, A::ShowExamples, A::ReadAs, A::Other]);
        let refused = [A::ShowRejected, A::AcceptTheRest, A::ShowExamples, A::ReadAs, A::Other];
        assert_eq!(offered(9, 9), refused);
        assert_eq!(offered(0, 9), [A::ShowRejected, A::ReadAs, A::Other]);
        assert_eq!(offered(0, 0), [A::ReadAs, A::Other]);
    }

    #[test]
    fn a_map_that_fits_foreign_columns_is_offered_first_until_it_is_taken() {
        let map: Option<FieldMap> = "question=instruction,answer=output".parse().ok();
        let columns = vec!["question".into(), "answer".into()];
        let foreign = Some(Foreign { columns, map: map.clone(), lines: 9 });
        let report = Report { rejected: 9, lines: 9, foreign, ..Report::default() };
        let mut answers = Answers::default();
        assert_eq!(actions(&answers, &report, false)[0], DataAction::MapColumns);
        assert_eq!(suggested_map(&answers, &report), map.as_ref());
        let of_few = Report { examples: 9, lines: 18, ..report.clone() };
        assert_eq!(suggested_map(&answers, &of_few), None);
        answers.set("map", "answer=text", Origin::Flag).unwrap();
        assert!(!actions(&answers, &report, false).contains(&DataAction::MapColumns));
    }

    #[test]
    fn a_path_has_to_exist_and_a_tilde_is_the_home_folder() {
        let home = tempfile::tempdir().unwrap();
        std::fs::write(home.path().join("a.jsonl"), "").unwrap();
        assert_eq!(check_path(" ~/a.jsonl ", Some(home.path())), Ok(home.path().join("a.jsonl")));
        assert!(check_path("~/b.jsonl", Some(home.path())).unwrap_err().contains("~/b.jsonl"));
        assert!(check_path(" ", None).unwrap_err().contains("type the path"));
        assert_eq!(check_path(" hf:org/set:test ", None), Ok("hf:org/set:test".into()));
        assert!(check_path("hf:set", None).unwrap_err().contains("hf:OWNER/NAME"));
    }

    #[test]
    fn the_present_format_and_the_other_think_policy_follow_the_answers() {
        let mut answers = Answers::default();
        let opened = Thinking { inserts_block: true, opening: Opening::Open };
        let closed = Thinking { opening: Opening::Closed, ..opened };
        assert_eq!((format_position(&answers), other_think(&answers, closed)), (0, Think::Train));
        assert_eq!(other_think(&answers, opened), Think::Skip);
        answers.set("format", "alpaca", Origin::Flag).unwrap();
        answers.set("think", "train", Origin::Flag).unwrap();
        assert_eq!(DataFormat::ALL[format_position(&answers)], DataFormat::Alpaca);
        assert_eq!(other_think(&answers, closed), Think::Skip);
    }
}
