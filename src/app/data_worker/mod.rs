//! The data worker: a process of its own that runs a model's tokenizer and chat template over the data.
//!
//! Both files come from strangers, and what they compute cannot be bounded from within: a template may loop,
//! nest or double a text until the memory is full, and a tokenizer may panic or take all memory. This process
//! therefore only asks, and watches the worker: its memory, the processor time that each of its threads takes
//! for one line, and its end. Whatever happens becomes a sentence that names the file.
//!
//! | file | what it owns |
//! |---|---|
//! | `protocol` | the requests and replies, lines of JSON on the worker's standard input and output |
//! | `process` | the process as its parent sees it: start, ask, cancel, end |
//! | `ledger` | what each thread of the worker works with, which the parent reads |
//! | `watch` | the limits, and the sentences when one is passed |
//! | `serve` | the worker itself |
//! | `guard` | the same limits for a process that has no parent to watch it |

//!
//! The inference worker runs both files too, for prompts and answers. It holds its model besides, and its
//! parent watches it with the same ledger and limits ([`crate::inference`]).

mod guard;
mod ledger;
mod process;
mod protocol;
mod serve;
mod watch;

pub use guard::guard_this_process;
pub(crate) use ledger::Ledger;
pub use ledger::keep_ledger;
pub use process::ModelTokenizer;
pub(crate) use protocol::{CheckRequest, PackRequest, PrepareRequest, PreviewRequest};
pub use serve::serve;
pub(crate) use watch::Watch;
