//! Which machines belong to a cluster, and how work reaches them.
//!
//! One machine *coordinates*: it keeps the list of members, which dial it and have a copy. At first this is
//! the one that made the token; when it falls silent, another one takes over (`coordination`). Every member
//! runs an *agent* ([`Agent`]), which answers whoever proves the token, and can start one rank at a time, as
//! the [`Host`] does it. Who starts a run asks the coordinator who is there and then talks to each agent
//! itself ([`Crew`]), so any member can start one, whoever coordinates.
//!
//! Every connection is a channel of `sparktune-ndp` whose key and proof follow from the token: who does not
//! know it can neither join, nor read a file, nor make a member start anything. Enters: a [`Host`], and
//! folders of files. Leaves: ranks that run, and lists. It must not know tensors, models, runs or plans, and
//! it never prints.
//!
//! If a rank of a swarm ends before the run does, its agent starts it again (`returning`).

mod agent;
mod client;
mod coordination;
mod crew;
mod launch;
pub mod messages;
mod returning;
mod roster;
mod taking_part;
mod talk;
mod transfer;

pub use agent::{Agent, Host, Keep, Where};
pub use client::{Examined, Found, Measured, examine, forget, goes_on, holds, measure, members};
pub use crew::{Crew, Following, Recruit, Watch, prepare, reached_at};
pub use launch::Launch;
pub use talk::Cancelled;
pub use transfer::{Tick, describe, has_the_same};
