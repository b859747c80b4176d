//! Tables, Parquet and raw text through the real binary: checked, mapped, and trained on.

use std::fs;
use std::path::Path;

use crate::sparktune::{Done, Place, checkpoint, done};

pub(crate) fn parquet(name: &str) -> Vec<u8> {
    fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/parquet").join(name)).unwrap()
}

/// Trains two steps on a file.
fn train(place: &Place, data: &str, more: &[&str]) -> Done {
    let mut command =
        place.command(["train", "--non-interactive", "--json", "--device", "cpu", "--data", data]);
    command.arg("--model").arg(checkpoint()).args(["--pack-length", "128", "--rank", "4", "--mtp", "none"]);
    command.args(["--max-steps", "2", "--sample-count", "0", "--grad-accum-steps", "1"]).args(more);
    done(&mut command)
}

#[test]
fn a_csv_with_foreign_columns_is_mapped_as_the_check_says_and_trained_on() {
    let place = Place::new();
    let rows: String =
        (0..40).map(|i| format!("{i},How much is {i} and {i}?,\"It is {}.\n\"\r\n", 2 * i)).collect();
    place.write("train.csv", format!("id,question,answer\r\n{rows}"));
    let result = place.sparktune(["check", "train.csv"]).exits(3);
    assert!(result.out.contains("has \"id\", \"question\", \"answer\""), "{}", result.out);
    let offered = "--map question=instruction,answer=output";
    assert!(result.out.starts_with("the columns id, question, answer fit no format"), "{}", result.out);
    assert!(result.out.contains("40 lines, unknown format, first train.csv:2: "), "{}", result.out);
    assert_eq!(result.out.matches("train.csv:2").count(), 1, "each reason once: {}", result.out);
    assert!(result.out.contains(offered) && result.err.contains(offered), "{}{}", result.out, result.err);
    let result = place.sparktune(["check", "train.csv"].into_iter().chain(offered.split(' '))).exits(0);
    assert!(result.out.contains("train.csv (alpaca): 40 rows"), "{}", result.out);
    let flags: Vec<&str> = offered.split(' ').collect();
    let run = train(&place, "train.csv", &flags).exits(0).run_dir();
    let plan = fs::read_to_string(run.join("plan.toml")).unwrap();
    assert!(plan.contains("map = \"question=instruction,answer=output\""), "{plan}");

    let none = "question=instruction,answer=output,sistem=system";
    let wrong = place.sparktune(["check", "train.csv", "--map", none]).exits(3);
    assert!(wrong.err.contains("no file of the data has the column \"sistem\""), "{}", wrong.err);
    let wrong = place.sparktune(["check", "train.csv", "--map", "question=promt"]).exits(2);
    assert!(wrong.err.contains("--map") && wrong.err.contains("prompt, completion, text"), "{}", wrong.err);
}

#[test]
fn one_document_that_the_eval_set_takes_is_refused_in_the_plan() {
    let place = Place::new();
    // The words decide the set, so one of a few texts is in the eval set.
    let planned = [1, 2, 3, 4, 5, 6].map(|words| {
        place.write("one.txt", "A mole wrench locks. ".repeat(words));
        let mut command = place.command(["plan", "--data", "one.txt", "--eval-fraction", "0.5"]);
        done(command.arg("--model").arg(checkpoint()))
    });
    let refused = planned.iter().find(|planned| planned.err.contains("the eval set takes everything"));
    let refused = refused.expect("one of six texts is in half of the hashes");
    assert!(refused.err.contains("--eval-fraction"), "{}", refused.err);
}

#[test]
fn parquet_is_checked_and_trained_on_and_a_damaged_file_is_refused_in_words() {
    let place = Place::new();
    place.write("train.parquet", parquet("chats.parquet"));
    let result = place.sparktune(["check", "train.parquet", "--max-rejected", "0.2"]).exits(0);
    assert!(
        result.out.contains("10 examples accepted") && result.out.contains("train.parquet:row 8"),
        "{}",
        result.out
    );
    train(&place, "train.parquet", &["--max-rejected", "0.2"]).exits(0);

    let bytes = parquet("chats.parquet");
    place.write("short.parquet", &bytes[..bytes.len() / 2]);
    let result = place.sparktune(["check", "short.parquet"]).exits(3);
    assert!(result.err.contains("short.parquet: the file is not Parquet"), "{}", result.err);
}

#[test]
fn raw_text_is_cut_into_pieces_and_trained_on() {
    let place = Place::new();
    place.write("book.txt", "The river carries stones and sand to the sea.\n".repeat(200));
    let model = checkpoint();
    let pieces = ["--max-example-tokens", "64"];
    let check = ["check", "book.txt", "--json", "--model", model.to_str().unwrap()];
    let report = &place.sparktune(check.iter().chain(&pieces)).exits(0).last()["report"];
    assert_eq!(
        (&report["files"][0]["format"], &report["overlong"]["pieces"]["examples"]),
        (&"text".into(), &1.into())
    );
    assert_eq!(report["lengths"]["max"], 64);
    let run = train(&place, "book.txt", &pieces).exits(0).run_dir();
    assert!(run.join("outputs/merged/model.safetensors").is_file());
}
