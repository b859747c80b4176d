//! Judges the gradients of ranks before they count.
//!
//! Owns a short summary of a contribution ([`Summary`]: its norm and a random projection), the judge of a
//! step's summaries ([`Judge`]), and the ways in which accepted contributions are combined ([`Combine`]). A
//! *contribution* is the gradient of one rank in one step. Everything here is pure: the same numbers give the
//! same verdicts on all ranks and whenever they are replayed. It must not know what carries the numbers.
//!
//! # What is judged
//!
//! - What needs no comparison: numbers that are not finite, zeros for a share that has trained tokens, and a
//!   gradient of a rank that has no share.
//! - **Across the ranks of a step**, if there are three or more. The log-norm is compared with the median,
//!   in deviations that the median absolute deviation (MAD) estimates, in this step and in those before.
//!   The direction is compared by the cosines of all pairs: the median of a rank's with the others, less
//!   that of the others with each other. The deviation of this difference is one over time, not across the
//!   ranks: Welford's, over what was accepted in earlier steps. A norm that is too large by a factor of up to
//!   ten is clipped to the accepted one; what is larger, or points elsewhere, is dropped. However far apart
//!   honest norms are, as where training diverges, no more than ten times the median is accepted.
//! - **Over time.** With three ranks or more, each rank's deviations are averaged with weights that decay
//!   exponentially, so that one that is off by a little, below the limit of a single step, is found after
//!   some steps and left out for a while, longer each time. With fewer, the log-norm is compared with the
//!   mean and deviation (Welford's) of the accepted ones of earlier steps. Welford's means and deviations
//!   move only with what was accepted, and each step is tested before it moves them. The MAD of a step is
//!   that of all ranks, which fewer than half of them change little.
//!
//! In the first steps the usual deviations are not known, and only gross errors are rejected. A step in which
//! honest norms are far apart, as at a spike of the loss, has up to three times the usual deviation. If half
//! of the ranks or more are doubted for their norms, there is no majority to compare with: what needs no
//! comparison is rejected, and the largest that are too large, fewer than half of all, are clipped or
//! dropped, of two ranks only if the other is not about as large. If they are half together with those that
//! are doubted for their directions, only norms count.
//!
//! # What cannot be judged
//!
//! Two ranks can be told apart by their past norms only: if they point to different directions, nobody can
//! tell which of them lies. Of W ranks, fewer than half may lie. A gradient that is as large as the others
//! and points where they point within the noise of their data passes; what it can do in a step is bounded by
//! the accepted norm. Gradients whose directions are nearly random, as with few tokens per share, cannot be
//! told from their opposites in one step, only by their mean over many. The projection's seed follows from
//! the run's, which ranks know, so one of them can compute a gradient whose projection says nothing; its
//! norm is exact.
//!
//! # How each engine judges before it sums
//!
//! - `tcp` ([`crate::judged`]): each chunk's owner has all contributions to it. Owners summarise what they
//!   have received, exchange the summaries and add them in the order of ranks, so a rank cannot lie about
//!   its own norm. Nothing is added until all have judged.
//! - NCCL and XDP ([`crate::announced`]): their sums are made on the device or in the network, where nobody
//!   sees a contribution. So each rank sends its own norm and projection ahead, and contributes zeros if it
//!   is dropped. A rank that lies about them can add anything; the sum's norm and projection, which all
//!   compute and compare with those that were announced, show that somebody has lied, and not who. Such a sum
//!   is not used: the step, and those after it, are summed over TCP.
//! - XDP also knows who it is, unless the lie is as long as what was announced: each slot keeps the norm of
//!   every contribution, in the kernel too, and its result says it to all. The slots of the step are then
//!   summed again without the liar, which is muted from then on: all of them, because a gradient that only
//!   some slots lack would be that of no data at all. With two ranks, each says of the other what it likes,
//!   so they go on over TCP.

mod combine;
mod history;
mod judge;
mod sketch;
mod verdict;

pub(crate) use combine::made_up;
pub use combine::{Combine, combine};
pub use judge::{Contribution, Judge, SIGMA};
pub use sketch::{Summary, WIDTH};
pub use verdict::{Decision, Reason, Verdict};

#[cfg(test)]
mod tests;
