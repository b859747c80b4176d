//! What people see of a run on a terminal, as lines: for pipes, CI logs, dumb terminals and scripts.
//!
//! Enters: events and views of the run log. Leaves: text in which nothing that came from data or models can move the
//! cursor, change colours or reorder what is shown. No colour, no width: a line is as long as what it says.

pub mod bench;
pub mod chart;
pub mod dashboard;
mod escape;
mod example_text;
mod finding;
mod follow;
mod plain;
mod quantity;
pub mod report;
pub mod runs_list;
mod runs_table;
pub mod screen;
pub mod wizard;
mod wrap;

pub use escape::{escape, escape_json};
pub use example_text::example_lines;
pub use finding::{Finding, Severity};
pub use follow::{Ended, Error, Output, follow};
pub use plain::{event_line, how_it_stands};
pub use quantity::{bytes, count, duration, loss};
pub use runs_table::{RunRow, runs_table};
