//! Prompts, checks of answers, and statistics for comparing models.
//!
//! Owns the format of suites ([`Suite`]), the checks of an answer ([`Check`]), the overlap of an answer with
//! a reference ([`overlap`]), and what a comparison has found ([`Comparison`]), with its intervals and the
//! verdict on each difference.
//!
//! Enters: lines of a suite, which a stranger may have written, and answers. Leaves: outcomes and words. All
//! of it is pure: who asks the models, starts a judge or runs code is `sparktune_app::comparison`.

mod answer;
pub mod built_in;
mod checks;
mod comparison;
mod difference;
mod model_answers;
pub mod overlap;
mod reference_loss;
mod suite;
mod summary;

pub use answer::{Answer, PromptShown};
pub use checks::{Answered, Check, CodeJob, CodeResult, NeedsOf, Outcome};
pub use comparison::{CodeRuns, Comparison, VERSION};
pub use difference::{Difference, Measure, Verdict};
pub use model_answers::{ModelAnswers, ModelRef};
pub use reference_loss::ReferenceLoss;
pub use suite::{Ask, MOST_SUITE_BYTES, Suite, SuiteError, SuitePrompt};
pub use summary::{Estimate, Summary};
