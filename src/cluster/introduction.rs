//! What two ranks say when one has connected to the other.

use std::net::{IpAddr, TcpStream};

use serde::{Deserialize, Serialize};
use sparktune_base::escape::escape;
use sparktune_ndp::medium::Cancelled;
use sparktune_ndp::stream::{Channel, Gate};
use sparktune_ndp::{Error as NdpError, Patience};

use crate::link::why;

/// The version of what the ranks say to each other.
pub(crate) const VERSION: u32 = 5;

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
    /// Which attempt to meet it belongs to, as rank 0 has said; 0 for who has not been welcomed yet.
    pub(crate) attempt: u64,
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
    /// It belongs here. Rank 0 adds what it says to all.
    Welcome(Welcome),
    /// It can, with this number, when the ranks meet again, at once. The launcher calls all of them so.
    Again { rank: usize, launched_as: Vec<usize>, meeting: u64 },
    /// It does not.
    Refused { why: String },
    /// It belongs to an attempt to meet that has failed, and can come to the next one.
    Over,
    /// All that meet again have connected to each other.
    Begin,
    /// Rank 0 was stopped while it waited for those that meet again, and so was what they do together.
    Stopped,
}

/// What rank 0 says to all that have come.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Welcome {
    /// Where all ranks listen.
    pub(crate) members: Vec<Member>,
    /// The numbers of those that have come, ascending.
    pub(crate) present: Vec<usize>,
    /// How often rank 0 has tried to meet them, with this time.
    pub(crate) attempt: u64,
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
    /// It comes again by itself: it has just been started, while the ranks of a swarm meet again, and will
    /// be let in when they work; or the attempt to meet that it belongs to is over.
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
    let is_over = own.rank == 0 && hello.purpose == Purpose::Heartbeat && hello.attempt != own.attempt;
    if is_over {
        channel.tell(&Answer::Over)?;
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
        channel.tell(&Answer::Welcome(Welcome::default()))?;
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
