//! This machine as a member of a cluster: what it keeps of that ([`membership`]), what its agent does
//! ([`agent`]), how a run is started on all members ([`job`]) and on those that come later (`newcomers`), the
//! model by which they are compared ([`base`]), and whether they go on with a run that was led here
//! ([`elsewhere`]).
//!
//! Which members there are, how they know each other and how files reach them is the business of
//! `sparktune_cluster::membership`; here is what a member needs of this machine.

pub mod agent;
pub mod base;
pub mod elsewhere;
pub mod job;
mod kept_launch;
mod machine;
pub mod membership;
mod newcomers;

pub use machine::{KEPT, MET, PLACES};
pub use newcomers::Room;
