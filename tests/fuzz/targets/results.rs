//! Results of the benchmarks that the white paper is written from.

use sparktune_paper::{EditResults, Results, Speeds, html, judge, table, write};

use super::{parts, says_why};

/// Measured trainings, speeds of loading, and edits. What was read can be judged and written about; without
/// speeds or edits, it is beside those that this program has.
pub(super) fn results(input: &[u8]) {
    let [results, speeds, edits] = parts(input).map(String::from_utf8_lossy);
    let speeds = match Speeds::from_json(&speeds) {
        Ok(speeds) => Some(speeds),
        Err(error) => {
            says_why(&error);
            Speeds::committed().ok()
        }
    };
    let edits = match EditResults::from_json(&edits) {
        Ok(edits) => Some(edits),
        Err(error) => {
            says_why(&error);
            EditResults::committed().ok()
        }
    };
    let results = match Results::from_json(&results) {
        Ok(results) => results,
        Err(error) => return says_why(&error),
    };
    let again = Results::from_json(&results.to_json()).expect("what we wrote can be read");
    assert_eq!(again.to_json(), results.to_json(), "other results");
    let (Some(speeds), Some(edits)) = (speeds, edits) else { return };
    assert!(!judge(&results, &speeds).is_empty());
    drop((table(&results, &speeds, 100), html(&write(&results, &speeds, &edits))));
}
