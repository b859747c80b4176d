//! Prompts, checks of answers, and statistics for comparing models.
//!
//! Owns the format of suites ([`Suite`]), the checks of an answer ([`Check`]), the overlap of an answer with
//! a reference ([`overlap`]), and what a comparison has found ([`Comparison`]), with its intervals and the
//! verdict on each difference.
//!
//! Enters: lines of a suite, which a stranger may have written, and answers. Leaves: outcomes and words. All
//! of it is pure: who asks the models, starts a judge or runs code is `sparktune_app::comparison`.

pub mod built_in;
mod checks;
mod comparison;
mod difference;
pub mod overlap;
mod suite;
mod summary;

pub use checks::{Answered, Check, CodeJob, CodeResult, NeedsOf, Outcome};
pub use comparison::{
    Answer, CodeRuns, Comparison, ModelAnswers, ModelRef, PromptShown, ReferenceLoss, VERSION,
};
pub use difference::{Difference, Measure, Verdict};
pub use suite::{Ask, MOST_SUITE_BYTES, Suite, SuiteError, SuitePrompt};
pub use summary::{Estimate, Summary};
