//! Models and data sets from the hub: determines the files that a base model or a split needs, and downloads
//! the missing ones completely.
//!
//! Enters: a model as the user names it (`org/name`, `org/name@revision`, or a folder on this machine) or a
//! data set (`hf:org/name@revision/config:split`), and the Hugging Face environment variables. Leaves: a
//! [`Snapshot`], a folder that the model loader, the tokenizer and the readers of data can read. It must not
//! know the contents of the files, except for the quantisation in `config.json`, the list of shards in the
//! index, and the configs in the card of a data set.
//!
//! The cache is the standard one (`models--org--name/{blobs,refs,snapshots}`, `datasets--org--name`, locks in
//! `.locks/`), shared in both directions with Python's `huggingface_hub`: same names, same `.incomplete`
//! files, same locks.
//!
//! # What hf-hub does here, and what it does not
//!
//! `hf-hub` 0.5 gives the routes of the hub, the default endpoint and the layout of the cache. The transfer
//! is our own, on the same `ureq`, because hf-hub's (read in its `api/sync.rs`):
//! - sends the `Authorization` header to whatever host the hub redirects to, and derives `Debug` on a struct
//!   that holds it;
//! - appends to the part file without looking whether the server answered `206` or `200`, so that a server
//!   that ignores `Range` doubles the file, and never checks hash or size;
//! - has no time limit and no way to be cancelled, panics where a server sends an odd redirect, and takes
//!   `etag` and `x-repo-commit` as path components unseen;
//! - calls its part file and its lock by names that Python does not know.

mod cache;
mod cached;
mod card;
mod catalog;
mod conventions;
mod data_set;
mod data_set_name;
mod error;
mod file_hash;
mod http;
mod hub;
mod model_name;
mod plan;
mod progress;
mod repo_kind;
mod select;
mod settings;
mod splits;
mod transfer;

pub use cached::{Cached, WholeModel};
pub use data_set::DataSetPlan;
pub use data_set_name::DataSetName;
pub use error::Error;
pub use hub::Hub;
pub use model_name::ModelName;
pub use plan::{Config, DownloadPlan, Origin, PlannedFile, Snapshot};
pub use progress::{Event, Progress};
pub use repo_kind::RepoKind;
pub use select::Needs;
pub use settings::{Patience, Token};
