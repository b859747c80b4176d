//! The section about the training of the MTP head: its losses on the eval set.

use sparktune_base::units::{count, loss};

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
