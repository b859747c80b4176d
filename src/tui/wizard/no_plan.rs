//! What a page of the plan shows while there is no plan: what is still being read, or what has failed.

use ratatui::text::Line;

use super::lines::{inked, wrapped};
use super::starting::progress_lines;
use super::state::State;
use crate::screen::{Role, Theme};

/// Explains why there is no plan to show.
pub(super) fn not_yet(state: &State, width: usize, theme: &Theme) -> Vec<Line<'static>> {
    let unfinished = [
        ("the machine", state.machine.wait(), state.machine.failed()),
        ("the model", state.model.wait(), state.model.failed()),
        ("the data", state.data.wait(), state.data.failed()),
    ];
    for (what, wait, failed) in unfinished {
        if let Some(problem) = failed {
            let mut lines = wrapped(theme, Role::Bad, problem, width);
            lines.push(inked(theme, Role::Dim, format!("esc goes back to {what}")));
            return lines;
        }
        if let Some(wait) = wait {
            return progress_lines(wait, &format!("reading {what}"), state.now, width, theme);
        }
    }
    wrapped(theme, Role::Warn, "A plan needs a model and data; esc goes back to them.", width)
}
