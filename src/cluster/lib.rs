//! Several processes, the ranks, that train one model together.
//!
//! Owns who the ranks are ([`Placement`], read from the launcher's environment), how they meet and know each
//! other ([`tcp::join`], over the authenticated channel of `sparktune-ndp`), and what they do together: the
//! trait [`Collective`], with sums in a stated order. Enters: the numbers or bytes of each rank. Leaves: the
//! same result on every rank, bit for bit, or an error that says who is missing and what to do. It must not
//! know tensors, models, runs or plans, and it never prints.
//!
//! A [`swarm`] of ranks outlives its members: it goes on without one that is gone.
//!
//! Above that, [`membership`] knows which machines belong to a cluster and starts ranks on them,
//! [`discovery`] finds the cluster on the local links, and [`doctor`] looks at what is between two machines.
//! For measurements, [`tlb`] counts the processor's dTLB misses.
//!
//! **Order of a sum.** `all_reduce` computes `((v₀ + v₁) + v₂) + …` in f32 for every number, where `vᵣ` is
//! the contribution of rank r. Who computes it, and how it is cut for the network, changes no bit, so one
//! process that adds the same parts in the same order gets the same result.

pub mod announced;
mod cluster_token;
mod collective;
pub mod discovery;
pub mod doctor;
mod environment;
mod error;
mod files;
mod heartbeat;
mod introduction;
pub mod judged;
pub mod lab;
mod lent;
mod link;
mod listening;
mod mailbox;
pub mod membership;
pub mod nccl;
mod rendezvous;
pub mod sentry;
mod summed_by;
mod sums;
pub mod swarm;
pub mod tcp;
#[cfg(target_os = "linux")]
pub mod tlb;
#[cfg(not(target_os = "linux"))]
#[path = "no_tlb.rs"]
pub mod tlb;
mod token;
mod waiting;
pub mod wire;
pub mod words;
pub mod xdp;

pub use cluster_token::{ClusterToken, random_hex};
pub use collective::{Collective, Measured, Traffic};
pub use environment::{Launcher, Placement, environment_of};
pub use error::Error;
pub use files::{share_files, share_files_and_tell};
pub use lent::{BlocksForGpu, Lent, Quantiser};
pub use listening::{free_port, refuse_missing_token};
pub use rendezvous::Limits;
pub use summed_by::SummedBy;
pub use swarm::RankCounts;
pub use swarm::pulse::Pulse;
pub use swarm::shares::{Pace, Shares};
pub use token::JobToken;
