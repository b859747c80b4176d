//! All operations of sparktune, for every interface: full screens, plain questions, flags, and later an HTTP
//! API.
//!
//! | module | what it offers |
//! |---|---|
//! | [`answers`] | the answers of flags, environment, user file and preset, merged |
//! | [`questions`] | the questions: text, choices, default, accepted answers |
//! | [`planner`] | answers given one at a time, and the resulting plan |
//! | [`model`], [`data`], [`data_sets`], [`machine`], [`findings`] | the facts, gathered and checked |
//! | [`mod@check`], [`clean`] | a check of data alone, with examples; a copy without rejected lines |
//! | [`mod@pack`] | token files made of text |
//! | [`data_worker`] | the data worker: a process that runs a model's tokenizer and template |
//! | [`data_fetch`], [`served_data`] | data sets of the hub as JSON Lines; token files for other machines |
//! | [`job`] | from answers to a plan |
//! | [`run_folder`], [`launch`] | from a plan to a running trainer, and its end |
//! | [`models`], [`edited_models`] | the models that can be opened on this machine |
//! | [`comparison`] | answers of several models to the same prompts, checked and kept |
//! | [`cluster`] | this machine as a member of a cluster, and runs on all members |
//! | [`chat`] | a conversation with a model, or with two side by side |
//! | [`thought`] | what a model thinks before it answers, apart from the answer |
//! | [`inference`] | the inference worker: a process that holds a model and answers requests |
//! | [`runs`], [`stop_request`], [`summary`] | existing runs: find, stop, export, describe |
//! | [`members_of_run`] | the ranks of a run of several machines, in words |
//! | [`next_steps`] | what can be done next with a complete run |
//! | [`caches`] | what is kept next to the runs and can be made again |
//! | [`finished_model`] | what `head` trains the head of: a run or a model |
//! | [`presets`], [`draft`], [`files`] | what an interface needs while it asks |
//!
//! Enters: answers, a [`program::Program`] to start again as a trainer, and a [`listener::Listener`] that
//! receives progress and may cancel. Leaves: data, or a [`failure::Failure`]. It must not know a terminal or
//! HTTP, and never prints.
//!
//! It does not depend on the trainer either: the program is started again as a separate process for training,
//! exporting and self-tests, so interfaces build and test without the tensor library.

pub mod answers;
pub mod caches;
pub mod chat;
pub mod check;
pub mod clean;
pub mod cluster;
pub mod comparison;
pub mod data;
pub mod data_fetch;
pub mod data_sets;
pub mod data_worker;
pub mod draft;
pub mod edited_models;
pub mod failure;
pub mod files;
pub mod findings;
pub mod finished_model;
pub mod folders;
pub mod inference;
pub mod job;
mod kernel_cache;
pub mod launch;
mod led_elsewhere;
pub mod listener;
pub mod machine;
pub mod members_of_run;
pub mod model;
pub mod models;
pub mod next_steps;
pub mod pack;
mod parent;
pub mod planner;
pub mod presets;
mod probe;
pub mod program;
pub mod questions;
mod received_data;
pub mod run_folder;
pub mod runs;
pub mod served_data;
pub mod shell;
pub mod stop_request;
pub mod summary;
mod template;
pub mod thought;
mod token_cache;
mod token_files;
mod weights_file;
