//! Tests of examples that are parts of a line: what is counted of them, and that very long lines end in time.

use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};
use sparktune_base::choices::{Overlong, Think};
use sparktune_data::{
    ChatTokenizer, CheckOptions, DataError, ExampleOptions, Kind, MaskPolicy, Progress, Rejected, Report,
    Step, check,
};

use crate::fixtures;

const SPLIT_TURNS: ExampleOptions = ExampleOptions {
    split_turns: true,
    overlong: Overlong::Drop,
    train_on: sparktune_base::choices::TrainOn::All,
    long_pieces: false,
};
const SPLIT_OVERLONG: ExampleOptions =
    ExampleOptions { split_turns: false, overlong: Overlong::Split, ..SPLIT_TURNS };

fn tokenizer() -> ChatTokenizer {
    ChatTokenizer::from_dir(&fixtures::qwen35().join("checkpoint")).unwrap()
}

fn without_thinking() -> ChatTokenizer {
    let mut tokenizer = tokenizer();
    tokenizer.set_kwargs([("enable_thinking".to_owned(), Value::from(false))].into());
    tokenizer
}

/// A line with this number of exchanges.
fn exchanges(number: usize) -> String {
    let turns = (0..number).flat_map(|i| {
        [
            json!({ "role": "user", "content": format!("question {i}") }),
            json!({ "role": "assistant", "content": format!("answer {i}") }),
        ]
    });
    json!({ "messages": turns.collect::<Vec<_>>() }).to_string()
}

fn checked(
    tokenizer: &ChatTokenizer,
    lines: &[String],
    examples: ExampleOptions,
    limit: Option<u32>,
    progress: &dyn Progress,
) -> Result<(Report, Vec<Rejected>), DataError> {
    let folder = tempfile::tempdir().unwrap();
    let (data, list) = (folder.path().join("data.jsonl"), folder.path().join("rejected.jsonl"));
    fs::write(&data, lines.join("\n")).unwrap();
    let options = CheckOptions {
        tokenizer: Some(tokenizer),
        policy: MaskPolicy::from(Think::Skip),
        examples,
        max_example_tokens: limit,
        rejected_path: Some(list.clone()),
        ..CheckOptions::default()
    };
    let report = check(&[data], &options, progress)?;
    let rejected = fs::read_to_string(list).unwrap_or_default();
    Ok((report, rejected.lines().map(|line| serde_json::from_str(line).unwrap()).collect()))
}

#[test]
fn prompts_are_compared_and_counted_for_each_example_and_not_for_its_line() {
    let lines = [exchanges(3), exchanges(3)];
    let found = |tokenizer: &ChatTokenizer, options, limit| {
        let (report, _) = checked(tokenizer, &lines, options, limit, &()).unwrap();
        let template = report.template.unwrap();
        (report.examples, template.unlike_served.examples, template.earlier_unlike_served.examples)
    };
    // Untold, a server opens a think block, and each example was trained after an empty one.
    assert_eq!(found(&tokenizer(), SPLIT_TURNS, None), (6, 6, 0));
    assert_eq!(found(&tokenizer(), ExampleOptions::default(), None), (2, 2, 2));
    // Told not to think, only an answer before a later question is rendered otherwise. Parts of one exchange
    // have none.
    assert_eq!(found(&without_thinking(), ExampleOptions::default(), None), (2, 0, 2));
    let (report, _) = checked(&without_thinking(), &[exchanges(1)], SPLIT_OVERLONG, None, &()).unwrap();
    let one = report.lengths.unwrap().max;
    assert_eq!(found(&without_thinking(), SPLIT_OVERLONG, Some(one)), (6, 0, 0));
    assert_eq!(found(&tokenizer(), SPLIT_OVERLONG, Some(one)), (6, 6, 0));
    // What is left out is not trained.
    assert_eq!(found(&tokenizer(), SPLIT_TURNS, Some(one)), (2, 2, 0));
    let (report, _) = checked(&tokenizer(), &lines, SPLIT_TURNS, Some(one), &()).unwrap();
    assert!(report.to_string().contains("4 examples too long and left out"), "{report}");
}

#[test]
fn a_turn_that_cannot_be_rendered_is_named_and_the_others_of_its_line_stay() {
    let line = json!({ "messages": [
        { "role": "assistant", "content": "Welcome!" },
        { "role": "user", "content": "u" }, { "role": "assistant", "content": "a" },
        { "role": "user", "content": "v" }, { "role": "assistant", "content": "b" } ] });
    let lines = [exchanges(1), line.to_string()];
    let (report, listed) = checked(&tokenizer(), &lines, SPLIT_TURNS, None, &()).unwrap();
    assert_eq!((report.examples, report.rejected, report.listed_lines()), (3, 0, 1), "{report}");
    assert_eq!((report.refused_turns.occurrences, report.refused_turns.first[0].line), (1, 2));
    assert!(report.to_string().contains("1 turn left out, because no example"), "{report}");
    let Rejected { line, rejection, not_counted, .. } = &listed[0];
    assert_eq!((*line, rejection.kind, rejection.field.as_str()), (2, Kind::TemplateRefused, "messages[0]"));
    assert!(*not_counted, "the line is accepted without one of its turns");

    let alone = json!({ "messages": [{ "role": "assistant", "content": "Welcome!" }] }).to_string();
    let (report, listed) = checked(&tokenizer(), &[alone], SPLIT_TURNS, None, &()).unwrap();
    assert_eq!((report.examples, report.rejected, listed.len()), (0, 1, 1), "nothing is left of the line");
    assert!(!listed[0].not_counted);
}

/// Splitting once took 257 s for this line, because it rendered each growing part anew.
#[test]
fn a_line_of_very_many_exchanges_is_split_in_time_that_grows_with_its_length() {
    let (report, _) =
        checked(&without_thinking(), &[exchanges(3000)], SPLIT_OVERLONG, Some(20_000), &()).unwrap();
    assert!(report.examples > 1 && report.rejected == 0, "{report}");
    let lengths = report.lengths.unwrap();
    assert!((19_900..=20_000).contains(&lengths.max), "a part is as long as it can be: {}", lengths.max);
}

/// Cancels after it was asked a few times.
struct Cancelling(AtomicUsize);

impl Progress for Cancelling {
    fn step(&self, _: Step) {}

    fn cancelled(&self) -> bool {
        self.0.fetch_add(1, Ordering::Relaxed) >= 3
    }
}

#[test]
fn examples_of_one_line_can_be_cancelled() {
    for options in [SPLIT_TURNS, SPLIT_OVERLONG] {
        let progress = Cancelling(AtomicUsize::new(0));
        let result = checked(&tokenizer(), &[exchanges(100)], options, Some(40), &progress);
        assert!(matches!(result, Err(DataError::Cancelled)));
        assert!(progress.0.load(Ordering::Relaxed) < 8, "it is not asked for each of a hundred turns");
    }
}

#[test]
fn a_line_whose_examples_would_fill_the_memory_is_rejected_in_words() {
    let text = "word ".repeat(120);
    let turns = (0..1000).flat_map(|_| {
        [json!({ "role": "user", "content": text }), json!({ "role": "assistant", "content": "a" })]
    });
    let line = json!({ "messages": turns.collect::<Vec<_>>() }).to_string();
    let (report, listed) = checked(&tokenizer(), &[line], SPLIT_TURNS, None, &()).unwrap();
    assert_eq!((report.examples, report.rejected), (0, 1));
    let Rejected { rejection, .. } = &listed[0];
    assert_eq!((rejection.kind, rejection.field.as_str()), (Kind::LineTooLong, "messages"));
    assert!(rejection.reason.contains("1,000 trained turns"), "{}", rejection.reason);
}
