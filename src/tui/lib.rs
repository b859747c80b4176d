//! What people see of a run: full screens on a terminal, plain lines for pipes and scripts, a page for a browser.
//!
//! | module | what it shows |
//! |---|---|
//! | [`wizard`] | the questions before a run |
//! | [`dashboard`] | one run, live |
//! | [`runs_list`] | all runs of a folder |
//! | [`report`] | one run as a self-contained HTML page |
//! | [`follow`], [`runs_table`] | the same as lines, without colour and width |
//! | [`screen`] | what the full screens share |
//!
//! Enters: events and views of the run log, plans, reports on data, keys. Leaves: text and cells in which nothing that came
//! from data, models or file names can move the cursor, change colours or reorder what is shown ([`escape`]).
//! It must not know tensors, the hub, or how a machine is measured: the program asks those and tells the screens.

mod chart;
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
mod shell;
mod state;
pub mod wizard;
mod wrap;

pub use escape::{escape, escape_json};
pub use example_text::example_lines;
pub use finding::{Finding, Severity};
pub use follow::{Ended, Error, Output, follow};
pub use plain::{event_line, how_it_stands};
pub use quantity::{bytes, count, duration, loss};
pub use runs_table::{RunRow, runs_table};
pub use shell::run_argument;
