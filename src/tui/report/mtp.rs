//! The section about the training of the MTP head: its losses on the eval set, as a curve and in a table.

use sparktune_base::units::{count, loss};
use sparktune_runlog::Unit;

use super::chart::{Chart, SMALL};
use super::input::ReportInput;
use super::markup::Markup;
use super::{MOST_ROWS, left_out, section, table};

/// The columns; a head learns to draft at most four tokens.
const COLUMNS: [&str; 6] = [
    "Step of the head",
    "Loss",
    "1st drafted token",
    "2nd drafted token",
    "3rd drafted token",
    "4th drafted token",
];

/// Draws the loss over the steps of the head, if it was evaluated more than once.
fn curve(page: &mut Markup, run: &ReportInput) {
    let (kept, discarded) = (&run.view.charts.head_loss, &run.view.discarded.head_loss);
    let (Some(first), Some(last)) = (kept.buckets().first(), kept.buckets().last()) else { return };
    let span = (first.first_step, last.last_step);
    if span.0 == span.1 {
        return;
    }
    Chart {
        title: "Held-out loss of the MTP head",
        unit: Unit::Nats,
        detail: SMALL,
        span,
        kept,
        discarded,
        eval: None,
        best: None,
        base: None,
        checkpoints: Vec::new(),
        resumes: Vec::new(),
    }
    .write(page);
}

pub(super) fn write(page: &mut Markup, run: &ReportInput) {
    let evals = &run.view.head_evals;
    let Some(drafted) = evals.iter().map(|eval| eval.draft_nats.len()).max() else { return };
    let columns = &COLUMNS[..COLUMNS.len().min(2 + drafted)];
    section(page, "MTP head", |page| {
        page.leaf(
            "p",
            &[],
            "Loss on the eval set in nats per token while the head was trained; step 0 is the base model's head.",
        );
        curve(page, run);
        table(page, "rows", columns, evals.iter().take(MOST_ROWS), |page, eval| {
            page.element("tr", &[], |page| {
                page.leaf("td", &[("class", "number")], &count(eval.step));
                page.leaf("td", &[("class", "number")], &loss(eval.loss_nats));
                for nats in eval.draft_nats.iter().take(columns.len() - 2) {
                    page.leaf("td", &[("class", "number")], &loss(*nats));
                }
            });
        });
        left_out(page, evals.len(), MOST_ROWS);
    });
}
