//! The history of the run: warnings, checkpoints and attempts.

use sparktune_base::units::{self, UNKNOWN, count, loss, milliseconds, or_unknown};

use super::input::ReportInput;
use super::markup::Markup;
use super::times::moment;
use super::{MOST_ROWS, absent, left_out, section, table, untrusted};
use crate::state::outcome_word;

/// Writes the warnings, newest first.
pub(super) fn warnings(page: &mut Markup, run: &ReportInput) {
    let view = &run.view;
    if view.warnings.is_empty() {
        return;
    }
    section(page, "Warnings", |page| {
        let kept = view.warnings.len() as u64;
        if view.warning_count > kept {
            absent(page, &format!("The newest {} of {} warnings.", count(kept), count(view.warning_count)));
        }
        table(page, "rows", &["When", "Step", "Warning"], view.warnings.iter().rev(), |page, warning| {
            let class = if warning.discarded { "old" } else { "now" };
            page.element("tr", &[("class", class)], |page| {
                page.leaf("td", &[("class", "when")], &moment(warning.time_us));
                page.leaf("td", &[("class", "number")], &or_unknown(warning.what.step, count));
                untrusted(page, "td", "said", &warning.what.message);
            });
        });
    });
}

/// Writes the checkpoints and attempts.
pub(super) fn write(page: &mut Markup, run: &ReportInput) {
    section(page, "Checkpoints and attempts", |page| {
        checkpoints(page, run);
        attempts(page, run);
    });
}

fn checkpoints(page: &mut Markup, run: &ReportInput) {
    if run.view.checkpoints.is_empty() {
        return absent(page, "There is no checkpoint yet.");
    }
    let columns = ["Checkpoint", "Step", "Size", "Time to save", "Note"];
    table(page, "rows", &columns, run.view.checkpoints.iter().rev().take(MOST_ROWS), |page, checkpoint| {
        let there = run.checkpoints.contains(&checkpoint.name);
        page.element("tr", &[("class", if there { "now" } else { "old" })], |page| {
            untrusted(page, "td", "key", &checkpoint.name);
            page.leaf("td", &[("class", "number")], &count(checkpoint.step));
            page.leaf("td", &[("class", "number")], &units::bytes(checkpoint.bytes));
            let saved = or_unknown(checkpoint.commit_ms, milliseconds);
            page.leaf("td", &[("class", "number")], &saved);
            let notes = [(checkpoint.best, "best when saved"), (!there, "not kept")];
            let notes: Vec<&str> = notes.iter().filter(|(on, _)| *on).map(|(_, note)| *note).collect();
            page.leaf("td", &[], &notes.join(", "));
        });
    });
    left_out(page, run.view.checkpoints.len(), MOST_ROWS);
}

fn attempts(page: &mut Markup, run: &ReportInput) {
    let live = run.is_live();
    let newest = run.view.attempts.back().map(|attempt| attempt.number);
    let columns = ["Attempt", "Started", "From step", "To step", "Loss", "How it ended", "Device", "Version"];
    table(page, "rows", &columns, run.view.attempts.iter(), |page, attempt| {
        page.element("tr", &[], |page| {
            page.leaf("td", &[("class", "number")], &attempt.number.to_string());
            page.leaf("td", &[("class", "when")], &moment(attempt.started_us));
            let from = or_unknown(attempt.started.resumed_from_step, count);
            page.leaf("td", &[("class", "number")], &from);
            page.leaf("td", &[("class", "number")], &count(attempt.last_step));
            let ended = attempt.finished.as_ref();
            let last = ended.and_then(|finished| finished.final_loss_nats);
            page.leaf("td", &[("class", "number")], &or_unknown(last, loss));
            let words = match ended {
                Some(finished) => {
                    let reason = finished.reason.as_deref().map(|reason| format!(": {reason}"));
                    format!("{}{}", outcome_word(finished.outcome), reason.unwrap_or_default())
                }
                None if live && newest == Some(attempt.number) => "continues".to_owned(),
                None => "was killed, or failed without an error message".to_owned(),
            };
            untrusted(page, "td", "said", &words);
            let or_dash = |text: &str| if text.is_empty() { UNKNOWN.to_owned() } else { text.to_owned() };
            untrusted(page, "td", "said", &or_dash(&attempt.started.device));
            untrusted(page, "td", "said", &or_dash(&attempt.started.sparktune));
        });
    });
}
