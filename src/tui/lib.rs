//! The user interfaces: full screens, plain questions and lines for a terminal, and a page for a browser.
//!
//! | module | what it shows |
//! |---|---|
//! | [`wizard`] | the questions before a run, as pages |
//! | [`interview`], [`prompts`] | the same questions one after the other, without a full screen |
//! | [`dashboard`] | one run, live |
//! | [`runs_list`] | all runs of a folder |
//! | [`report`] | one run as a self-contained HTML page |
//! | [`follow`], [`runs_table`] | the same as lines, without colour and width |
//! | [`screens`], [`screen`] | the order of the full screens, and what they share |
//! | [`chat`] | a conversation with one model or two |
//! | [`comparison`] | answers of several models side by side, with verdicts |
//! | [`guide_page`](fn@guide_page) | a page of the user's guide |
//! | [`output`], [`progress`] | standard output, standard error, and progress on it |
//!
//! Enters: events and views of the run log, plans, reports on data, keys. Leaves: text and cells in which
//! nothing that came from data, models or file names can move the cursor, change colours or reorder what is
//! shown ([`mod@sparktune_base::escape`]). It must not know tensors, the hub, or how a machine is measured:
//! the library behind every interface does that.

mod chart;
pub mod chat;
pub mod comparison;
pub mod dashboard;
mod downloads;
mod example_text;
mod follow;
mod guide_page;
mod held_out;
pub mod interview;
pub mod output;
mod plain;
pub mod progress;
pub mod prompts;
pub mod report;
pub mod runs_list;
mod runs_table;
pub mod screen;
pub mod screens;
mod spoken;
mod state;
mod ticks;
pub mod wizard;
mod wrap;

pub use example_text::{coloured_example_lines, example_lines, stdout_has_colours};
pub use follow::{Ended, Error, Output, follow};
pub use guide_page::guide_page;
pub use plain::{event_line, finding_text, how_it_stands};
pub use runs_table::{RunRow, newest_rows, runs_table};
