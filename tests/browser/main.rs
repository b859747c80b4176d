//! The server and its page, as the programs and people that use them see it: the real binary on loopback, and
//! one headless Chromium that is driven over the DevTools protocol.
//!
//! | file | what it owns |
//! |---|---|
//! | `server` | a `sparktune serve` of a test, and requests to it |
//! | `chromium` | the browser: start, pages, clicks, keys, pictures; what went wrong in a page |
//! | `devtools`, `base64` | commands and events over a WebSocket |
//! | `comparison` | a kept comparison with chosen answers |
//! | `driver` | what the browser must notice |
//! | `api` | the way from an upload to a run, by requests |
//! | `walk` | the whole way in the page |
//! | `hostile` | texts of strangers in every field of the page, without effect |
//! | `access` | names, contrast, focus, motion and width of every page |
//! | `charts` | curves of any values, and the overlay of runs |
//! | `knowledge` | facts written, tried, kept and taken back, by requests and in the page |
//! | `lab` | the protocol lab: a packet edited and damaged |
//! | `ranks` | the ranks of a run of several machines, and how long a step waits for them |
//!
//! Nothing is timed: a test waits until the page shows what it expects, and fails, with the page's text and a
//! picture, when that has not come for a long while. Pictures are in `pages/` of the temporary folder of the
//! build.

#![expect(clippy::unwrap_used, reason = "a step that fails fails the test, in its helpers too")]

mod access;
mod api;
mod base64;
mod charts;
mod chromium;
mod comparison;
mod devtools;
mod driver;
mod hostile;
mod knowledge;
mod lab;
mod ranks;
mod server;
#[expect(dead_code, reason = "shared with end_to_end, which uses all of it")]
#[path = "../end_to_end/sparktune.rs"]
mod sparktune;
mod walk;
