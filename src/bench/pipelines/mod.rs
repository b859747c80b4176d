//! Measures pipelines that bring data from a file into training steps: `sparktune bench pipelines`.
//!
//! Enters: a plan that knows the folder of its model, its token files, and the files that they were made of.
//! Leaves: the measurements of `sparktune_paper`. Each is made by a process of its own, which is this program
//! with the hidden command `bench pipeline`; so the peak memory of a pipeline is its own, and a measurement
//! that has ended is kept in a folder and never repeated.
//!
//! | module | what it owns |
//! |---|---|
//! | `order` | which examples each step has: the same for all pipelines |
//! | `loader` | examples from JSON Lines or from a token file |
//! | `rows` | examples as padded or packed rows, and what is counted of them |
//! | `loading`, `training` | the two measurements, in the process that makes them |
//! | `lines` | JSON Lines that have exactly the examples of a token file |
//! | `job` | what such a process is asked, and what it answers |
//! | `serve` | such a process |
//! | `child` | starts one, follows it, and ends it |
//! | `kept` | measurements that have ended |
//! | `run` | all measurements, in turn |

mod child;
mod job;
mod kept;
mod lines;
mod loader;
mod loading;
mod order;
mod rows;
mod run;
mod serve;
#[cfg(test)]
mod tests;
mod training;

pub use kept::{Kept, load_average};
pub use run::{Measured, Progress, Request, measure};
pub use serve::serve;
