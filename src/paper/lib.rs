//! What `sparktune bench pipelines`, `bench loading` and `edit --measure` have measured, what QubGPU claims,
//! and the white paper that puts both side by side.
//!
//! Enters: [`Results`], [`Speeds`] and [`EditResults`], the JSON that they write. Leaves: a [`Summary`] per
//! pipeline, a table for terminals, a verdict on each of QubGPU's claims, and the white paper as a
//! [`Document`], which is shown as a page and written as one HTML file. Every number of ours is computed from
//! results, and every number of QubGPU's stands in `claims.rs`. It is pure: it must not know tensors, files,
//! terminals or servers.
//!
//! | module | what it owns |
//! |---|---|
//! | `pipeline` | the pipelines and the arrangements in which they are compared |
//! | `results` | the format of the results of `bench pipelines` |
//! | `speeds` | the rows of `bench loading` |
//! | `edits` | the results of `edit --measure` |
//! | `spread` | means over seeds and their intervals |
//! | `summary` | the figures of one pipeline |
//! | `table` | the figures of all pipelines as text |
//! | `claims`, `verdict` | what QubGPU says, and whether it holds |
//! | `day` | the day of a measurement |
//! | `document`, `write`, `chapters`, `at_the_machine`, `edited_knowledge` | the white paper as blocks |
//! | `html`, `drawing`, `markup` | the white paper as one file |

mod at_the_machine;
mod chapters;
mod claims;
mod committed;
mod day;
mod document;
mod drawing;
mod edited_knowledge;
mod edits;
mod html;
mod markup;
mod pipeline;
mod results;
mod speeds;
mod spread;
mod summary;
mod table;
#[cfg(test)]
mod testing;
mod verdict;
mod write;

pub use claims::{CLAIMS, Claim};
pub use committed::committed;
pub use day::date;
pub use document::{Block, Chart, Document, Line, Section};
pub use edits::{Drift, EditResults, EditRow, EditScores, MeasuredEdits, Share, Way};
pub use html::html;
pub use pipeline::{Arrangement, Pipeline};
pub use results::{
    Data, Evaluation, Loading, Machine, Model, Quality, Results, ResultsError, Settings, Trained, Training,
    VERSION,
};
pub use speeds::{Goal, Speed, Speeds};
pub use spread::{Spread, paired_ratio};
pub use summary::{Rates, Summary, base_quality, summaries};
pub use table::table;
pub use verdict::{Judged, Verdict, judge};
pub use write::write;
