//! What two ranks say when one has connected to the other.

use std::net::{IpAddr, TcpStream};

use serde::{Deserialize, Serialize};
use sparktune_base::escape::escape;
use sparktune_ndp::medium::Cancelled;
use sparktune_ndp::stream::{Channel, Gate};
use sparktune_ndp::{Error as NdpError, Patience};

use crate::link::why;

/// The version of what the ranks say to each other.
pub(crate) const VERSION: u32 = 4;

/// What a rank says when it has connected.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Hello {
    pub(crate) version: u32,
    pub(crate) rank: usize,
    pub(crate) world_size: usize,
    /// The number that its launcher gave it, by which people know it.
    pub(crate) launched_as: usize,
    /// Which meeting it comes to: 0 is that of ranks that have just been started.
    pub(crate) meeting: u64,
    pub(crate) build: String,
    /// Where it listens.
    pub(crate) port: u16,
    pub(crate) purpose: Purpose,
}

/// What a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Purpose {
    /// All that the ranks do together.
    Work,
    /// To know that the other one lives.
    Heartbeat,
}

/// What it is told.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Answer {
    /// Others are missing, or at work: these, which know where to ask if this one ends.
    Wait { others: Vec<Member> },
    /// It belongs here. Rank 0 adds where all ranks listen, and the numbers of those that have come.
    Welcome { members: Vec<Member>, present: Vec<usize> },
    /// It can, with this number, when the ranks meet again, at once.
    Again { rank: usize, world_size: usize, launched_as: usize, meeting: u64 },
    /// It does not.
    Refused { why: String },
    /// All that meet again have connected to each other.
    Begin,
}

/// What a rank tells rank 0 when ranks that meet again connect to each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Report {
    /// It has connected to all others.
    Connected,
    /// It has lost this one.
    Lost(usize),
}

/// Where a rank listens, and the number that its launcher gave it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Member {
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) launched_as: usize,
}

/// A rank that has connected.
pub(crate) struct Caller {
    pub(crate) hello: Hello,
    pub(crate) ip: IpAddr,
    pub(crate) channel: Channel<'static>,
}

/// Why who has connected is not let in.
pub(crate) enum Turned {
    /// It knows the token and does not belong to this job.
    Away { rank: usize, why: String },
    /// It has just been started, while the ranks of a swarm meet again. It will be let in when they work.
    Later,
    /// It does not know the token, or did not say who it is.
    Stranger(NdpError),
}

impl From<NdpError> for Turned {
    fn from(error: NdpError) -> Self {
        Self::Stranger(error)
    }
}

impl Turned {
    /// Says why, unless this rank itself has ended the wait.
    pub(crate) fn in_words(&self) -> Option<String> {
        match self {
            Self::Away { rank, why } => Some(format!("it says that it is rank {rank}, but {why}")),
            Self::Later | Self::Stranger(NdpError::Cancelled) => None,
            Self::Stranger(error) => {
                Some(format!("it has another token, or is no rank of this job ({})", escape(&why(error))))
            }
        }
    }
}

/// Lets a rank in that knows the token and belongs to this job. Ranks other than 0 answer at once, so that
/// two that connect to each other do not wait for each other.
pub(crate) fn admitted(
    gate: &Gate,
    stream: TcpStream,
    patience: Patience,
    cancelled: Cancelled<'static>,
    own: &Hello,
    ip: IpAddr,
    stage: Stage,
) -> Result<Caller, Turned> {
    let mut channel = gate.admit(stream, patience, cancelled)?;
    let hello: Hello = channel.hear()?;
    if stage == Stage::Meeting && own.meeting != hello.meeting && hello.meeting == 0 {
        // Without an answer, it tries again.
        return Err(Turned::Later);
    }
    let refusal = match stage {
        Stage::Meeting => refusal(&hello, own),
        Stage::AtWork => refusal_of_newcomer(&hello, own),
    };
    if let Some(why) = refusal {
        channel.tell(&Answer::Refused { why: why.clone() })?;
        return Err(Turned::Away { rank: hello.rank, why });
    }
    if own.rank != 0 {
        channel.tell(&Answer::Welcome { members: Vec::new(), present: Vec::new() })?;
    }
    Ok(Caller { hello, ip: ip.to_canonical(), channel })
}

/// What the ranks do when one connects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// They meet, each with a number of its own.
    Meeting,
    /// They work. Who comes is given a number when they meet again.
    AtWork,
}

/// Says why a rank does not belong to a swarm that is at work.
fn refusal_of_newcomer(hello: &Hello, own: &Hello) -> Option<String> {
    let is_other = hello.version != own.version || hello.build != own.build;
    is_other.then(|| {
        "the two are different builds of sparktune, which may compute different bits. Use the same program on all"
            .into()
    })
}

/// Says why a rank does not belong to this job.
fn refusal(hello: &Hello, own: &Hello) -> Option<String> {
    if let Some(why) = refusal_of_newcomer(hello, own) {
        return Some(why);
    }
    if hello.meeting != own.meeting {
        return Some("it comes to a meeting that is over. Start it again".into());
    }
    if hello.world_size != own.world_size {
        return Some(format!(
            "it is one of {} ranks, and this job has {}. Start all of them with the same number of ranks",
            hello.world_size, own.world_size
        ));
    }
    (hello.rank >= own.world_size || hello.rank == own.rank)
        .then(|| format!("there can be no other rank {}. Give each rank a number of its own", hello.rank))
}
