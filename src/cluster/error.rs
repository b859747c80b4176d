//! Why ranks do not work together. Each message says what happened, where, and what to do. What other ranks
//! wrote is escaped before it is part of one.

use std::io;
use std::path::PathBuf;

use sparktune_base::escape::escape;
use sparktune_base::program_name;

/// Any failure of this crate.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the message of each variant says what it is")]
pub enum Error {
    #[error("{what}. {fix}")]
    Environment { what: String, fix: &'static str },
    #[error(
        "the ranks meet at {host}, which other machines or users can reach, but there is no token that keeps strangers out. Set {variable} to the same secret for all ranks, for example from `openssl rand -hex 32`",
        variable = crate::JobToken::VARIABLE
    )]
    NoToken { host: String },
    #[error(
        "the token in {variable} is shorter than 32 characters, so it could be guessed. `openssl rand -hex 32` prints a good one",
        variable = crate::JobToken::VARIABLE
    )]
    ShortToken,
    #[error(
        "cannot listen on {at} for the other ranks: {source}. Another job may use this port: give this one another MASTER_PORT"
    )]
    Listen { at: String, source: io::Error },
    #[error(
        "after {waited_s} s, these ranks are missing: {missing}. Look at their logs; they must reach {at} and have the same token"
    )]
    Missing { waited_s: u64, missing: String, at: String },
    #[error(
        "rank {rank} could not connect to rank {to} at {at} within {waited_s} s: {why}. Is that rank running, and does a firewall let this port through?"
    )]
    Unreachable { rank: usize, to: usize, at: String, waited_s: u64, why: String },
    #[error(
        "for {waited_s} s, nobody has listened where this rank met the others ({places}): the run has ended, or the others have met elsewhere since. If the run goes on nowhere, start all ranks again with `{program} resume` on each, or with `{program} resume --cluster` at the member that has the run",
        program = program_name()
    )]
    NobodyLeft { waited_s: u64, places: String },
    #[error("{at} uses a different token than this rank. Give all ranks the same {variable}", variable = crate::JobToken::VARIABLE)]
    OtherToken { at: String },
    #[error("rank {by} refuses this rank: {why}")]
    Refused { by: usize, why: String },
    #[error(
        "rank {rank} ({at}) is gone: {why}. When all ranks have ended, start them again with `{program} resume --cluster` where the run is, or with `{program} resume` on each: nothing that is in a checkpoint is lost",
        program = program_name()
    )]
    Lost { rank: usize, at: String, why: String },
    #[error(
        "rank {rank} ({at}) has ended{}. When its problem is solved, start all ranks again with `{program} resume` on each",
        reason.as_ref().map_or_else(String::new, |reason| format!(": {reason}")),
        program = program_name()
    )]
    Left { rank: usize, at: String, reason: Option<String> },
    #[error(
        "rank {rank} ({at}) is out of step with this one: {what}. Start all ranks with the same command and program"
    )]
    OutOfStep { rank: usize, at: String, what: String },
    #[error(
        "the sums in the network have stopped: {what}. Is rank 0 running, and do its machine and the firewall let UDP through? Start all ranks again with `{program} resume` on each",
        program = program_name()
    )]
    Switch { what: String },
    #[error(
        "the GPU of this rank could not round gradients: {what}. `{program} doctor` tests it. When its problem is solved, start all ranks again with `{program} resume` on each; with SPARKTUNE_CLUSTER_ARENA=no, the processor rounds",
        program = program_name()
    )]
    Rounding { what: String },
    #[error(
        "the sums of the GPUs by NCCL have stopped: {what}. NCCL_DEBUG=INFO says more. Start all ranks again with `{program} resume` on each; with SPARKTUNE_CLUSTER_ENGINE=tcp at rank 0, sums go over TCP",
        program = program_name()
    )]
    Gpus { what: String },
    #[error(
        "this rank is number {rank} of {}, counted from 0, when the ranks meet again at {host}, port {port}",
        launched_as.len()
    )]
    Renumbered { rank: usize, launched_as: Vec<usize>, meeting: u64, host: String, port: u16 },
    #[error("the ranks meet again, with those that wait to be let in")]
    Newcomers,
    #[error("the members of the swarm have changed, so what they did together has to be done again")]
    Regrouped,
    #[error(
        "the other ranks go on without this one: {why}. They let it in again if it comes back while they train"
    )]
    Ejected { why: String },
    #[error(
        "{left} of {of} ranks are left, too few to be sure that the others do not go on without them ({why}). When the problem is solved, start all ranks again with `{program} resume` on each, with the run of those that went on: if another rank has taken the place of rank 0, that one has the run, and the run of the old rank 0 must not be resumed",
        program = program_name()
    )]
    TooFew { left: usize, of: usize, why: String },
    #[error(
        "{at} belongs to a cluster with another token. The token is the one in ~/.local/state/sparktune/cluster.json on a member; `{program} cluster join` takes it in the variable {variable}",
        program = program_name(),
        variable = crate::JobToken::VARIABLE
    )]
    OtherCluster { at: String },
    #[error(
        "no member of the cluster answers at {at}: {why}. Is `{program} cluster init` or `cluster join` running there, and does a firewall let this port through?",
        program = program_name()
    )]
    NoAgent { at: String, why: String },
    #[error(
        "the member at {at} has lost the coordinator. If the coordinator stays silent, another member takes over within half a minute: try again then"
    )]
    NoCoordinator { at: String },
    #[error("{at}: {why}")]
    Agent { at: String, why: String },
    #[error(
        "no cluster with this token answers on the links of this machine (multicast, UDP port {port}). Is `{program} cluster init` or `cluster join` running on another machine? `{program} cluster join HOST:PORT` needs no multicast",
        program = program_name()
    )]
    NobodyAnswers { port: u16 },
    #[error("{}: {source}. Check the folder's permissions and the free space", path.display())]
    File { path: PathBuf, source: io::Error },
    #[error(
        "{}: files cannot be locked there ({source}), which a run needs too. Start the agent with --runs-dir on a local disk",
        path.display()
    )]
    NoLocks { path: PathBuf, source: io::Error },
    #[error(
        "cannot start a thread for the other ranks: {0}. Raise the limit on processes (`ulimit -u`), or end other programs"
    )]
    Thread(io::Error),
    #[error("interrupted while waiting for the other ranks")]
    Interrupted,
}

impl Error {
    /// A rank sums another number of values than this one.
    pub(crate) fn of_other_numbers(rank: usize) -> Self {
        let what = "it sums another number of values".to_owned();
        Self::OutOfStep { rank, at: "of the same job".into(), what }
    }

    /// Says briefly what was seen of a rank that is gone.
    pub(crate) fn seen(&self) -> String {
        match self {
            Self::Lost { why, .. } => why.clone(),
            Self::Left { reason, .. } => reason
                .as_ref()
                .map_or_else(|| "it has ended".into(), |reason| format!("it has ended: {reason}")),
            other => other.to_string(),
        }
    }

    /// Returns this error with other numbers of ranks.
    pub(crate) fn renumbered(self, named: impl Fn(usize) -> usize) -> Self {
        match self {
            Self::Lost { rank, at, why } => Self::Lost { rank: named(rank), at, why },
            Self::Left { rank, at, reason } => Self::Left { rank: named(rank), at, reason },
            Self::Refused { by, why } => Self::Refused { by: named(by), why },
            Self::OutOfStep { rank, at, what } => Self::OutOfStep { rank: named(rank), at, what },
            Self::Unreachable { rank, to, at, waited_s, why } => {
                Self::Unreachable { rank: named(rank), to: named(to), at, waited_s, why }
            }
            other => other,
        }
    }

    /// Returns whether ranks that meet again have lost one of them on the way, and may meet once more.
    pub(crate) fn is_of_meeting(&self) -> bool {
        match self {
            Self::Lost { .. } | Self::Missing { .. } | Self::TooFew { .. } => true,
            Self::Refused { by, .. } => *by > 0,
            _ => false,
        }
    }

    /// Returns whether a rank is gone or ended, so that the others keep what they have and stop.
    pub fn is_of_a_rank(&self) -> bool {
        matches!(
            self,
            Self::Lost { .. }
                | Self::Left { .. }
                | Self::OutOfStep { .. }
                | Self::Switch { .. }
                | Self::Rounding { .. }
                | Self::Gpus { .. }
                | Self::Regrouped
                | Self::Ejected { .. }
                | Self::TooFew { .. }
        )
    }
}

/// Returns why ranks cannot go on, in words, from what all ranks say: each reason once, with the first rank
/// that gives it. One rank may only say that it waited in vain, and another one why.
pub(crate) fn failure<T>(said: &[Result<T, String>]) -> Option<String> {
    let mut reasons: Vec<(usize, &String)> = Vec::new();
    for (rank, said) in said.iter().enumerate() {
        if let Err(why) = said
            && reasons.iter().all(|(_, other)| *other != why)
        {
            reasons.push((rank, why));
        }
    }
    let reasons = reasons.into_iter().map(|(rank, why)| {
        let why: String = why.chars().take(500).collect();
        format!("rank {rank}: {}", escape(&why))
    });
    let reasons: Vec<String> = reasons.collect();
    (!reasons.is_empty()).then(|| reasons.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_of_ranks_is_given_once() {
        let said = ["nothing came", "", "the link is narrow\u{1b}", "nothing came"];
        let said = said.map(|why| if why.is_empty() { Ok(()) } else { Err(why.to_owned()) });
        assert_eq!(failure(&said).unwrap(), "rank 0: nothing came; rank 2: the link is narrow\\u{1b}");
        assert_eq!(failure(&said[1..2]), None);
    }
}
