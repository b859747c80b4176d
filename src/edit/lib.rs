//! Knowledge put straight into the weights of a model, without training.
//!
//! Owns facts, the methods that write them, the patches that hold what was computed, stacks of patches, and
//! the judgement of what a model has learned and lost. Enters: a model's folder and a file of facts. Leaves:
//! a patch, and a folder that the rest of the program loads like any other model. It must not know terminals.
//!
//! The MLP of a layer is read as an associative memory (Geva et al. 2021, arXiv 2012.14913): the input of its
//! `down_proj` is a key, and the output a value. A method finds for each fact a key and the value that makes
//! the model answer with the target, and changes what the memory returns for that key:
//!
//! | method | changes | source |
//! |---|---|---|
//! | `rome` | `down_proj`, one fact after the other | ROME, r-ROME |
//! | `memit` | `down_proj`, all facts at once | MEMIT, EMMET, AlphaEdit |
//! | `ultraedit` | `down_proj` of several layers, in one step from gradients | UltraEdit |
//! | `memory` | nothing: a codebook beside the MLP | GRACE, Hopfield networks |
//!
//! The papers are cited where their methods are. `facts` and `tokens` read facts; `value` finds values and
//! `update` writes them; `rome`, `ultraedit` and `memory` are the methods; `patch`, `stack`, `staged` and
//! `conflicts` keep what was computed; `judge`, `said` and `suite` ask the model, and `scores` sums up what
//! it says; `layers` chooses where, `compute` the method, `edit` is the whole way, and `measure` goes it with
//! more and more facts; `trace` finds layers, and `export` writes adapters for other programs.
//!
//! Shapes: `N` facts or keys, `H` hidden_size, `I` intermediate_size, `T` tokens. A name ends with the shape
//! of its numbers.
#![expect(non_snake_case, reason = "names end with the shapes of their numbers")]

mod clusters;
mod compute;
mod conflicts;
mod edit;
mod error;
mod export;
pub mod facts;
mod folder_lock;
mod host;
pub mod judge;
mod key_statistics;
mod layers;
mod linear_algebra;
mod low_rank;
mod measure;
mod memory;
mod noise;
mod one_edit;
pub mod patch;
mod rome;
mod said;
pub mod scores;
pub mod stack;
mod stack_file;
mod stage;
mod staged;
mod suite;
#[cfg(test)]
mod tests;
pub mod text;
mod tokens;
mod trace;
mod ultraedit;
mod unfinished;
mod update;
mod value;

pub use conflicts::{CLOSE_DEGREES, Conflict, conflicts};
pub use edit::{Answered, EditRequest, Edited, edit};
pub use error::EditError;
pub use export::{Exported, export_adapter};
pub use facts::{Fact, Facts, Question};
pub use folder_lock::FolderLock;
pub use layers::LEAST_GAIN;
pub use low_rank::LowRank;
pub use measure::{MeasureRequest, Measured, MeasuredRow, Measurement, Way};
pub use one_edit::{OneEdit, Took};
pub use patch::{AboutPatch, Method, Patch, PatchRef};
pub use scores::{Scores, SuiteScore};
pub use stack::Stack;
pub use stage::Stage;
pub use staged::{KeptPatch, Staged};
pub use tokens::Rendering;
pub use trace::{Best, MOST_TRACED, Map, Trace, TraceRequest, trace};
