//! Questions to an agent: who is there, how fast is the way to it, what does its machine look like, which
//! files does it have.

use std::time::{Duration, Instant};

use sparktune_ndp::stream::Channel;

use super::messages::{Answer, Ask, Examination, Folder, GoesOn, MOST_MEASURED, Member};
use super::talk::{Cancelled, ask, connect, hear, host_of, lost, out_of_turn, place_of, refuse_long_list};
use super::transfer::BYTES;
use crate::cluster_token::ClusterToken;
use crate::doctor::{ClockOffset, now_us};
use crate::error::Error;

/// The time that a measurement should take, and the most bytes of the short one before it.
const ENOUGH: Duration = Duration::from_secs(2);
const SHORT: u64 = 16 << 20;
/// The most bytes of a packet.
const PIECE: usize = 1 << 20;
/// The most agents that are asked on the way to the coordinator: a named one may have just given up.
const MOST_ASKED: usize = 4;

/// A member, and the host by which this machine reaches its agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// What the coordinator says of it.
    pub member: Member,
    /// Its host.
    pub host: String,
}

/// What a measurement gave.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Measured {
    /// The bytes that were sent.
    pub bytes: u64,
    /// The time until all of them had arrived.
    pub seconds: f64,
}

/// What a member says of its machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Examined {
    /// What it has found.
    pub examination: Examination,
    /// How far its wall clock is from that of this machine.
    pub clock: ClockOffset,
}

/// Asks for the members. The agent at this place answers if it coordinates, and otherwise names the one that
/// does. The coordinator comes first in the list.
///
/// # Errors
/// One of the two does not answer, has another token, or has lost the coordinator.
pub fn members(
    host: &str,
    port: u16,
    token: &ClusterToken,
    cancelled: Cancelled,
) -> Result<Vec<Found>, Error> {
    let (host, channel, answer) = ask_coordinator(host, port, token, cancelled, &Ask::Members)?;
    let Answer::Members(members) = answer else { return Err(out_of_turn(&channel)) };
    // A member on the coordinator's own machine has an address there that means another machine here.
    let host_of = |member: &Member| match member.ip {
        Some(ip) if !ip.is_loopback() => ip.to_string(),
        _ => host.clone(),
    };
    Ok(members.into_iter().map(|member| Found { host: host_of(&member), member }).collect())
}

/// Tells the agent at this place, and the coordinator, that a member is gone for good.
///
/// # Errors
/// One of the two does not answer, or has lost the coordinator.
pub fn forget(
    host: &str,
    port: u16,
    token: &ClusterToken,
    id: &str,
    cancelled: Cancelled,
) -> Result<(), Error> {
    ask_coordinator(host, port, token, cancelled, &Ask::Forget { id: id.to_owned() }).map(drop)
}

/// Asks the agent at a place, and then the one that it names as the coordinator. Returns the host of the one
/// that answered, the connection and the answer.
fn ask_coordinator(
    host: &str,
    port: u16,
    token: &ClusterToken,
    cancelled: Cancelled,
    question: &Ask,
) -> Result<(String, Channel<'static>, Answer), Error> {
    let (mut host, mut port) = (host.to_owned(), port);
    let mut asked = 0;
    loop {
        let mut channel = connect(&host, port, token, cancelled.clone())?;
        asked += 1;
        match ask(&mut channel, question)? {
            Answer::Elsewhere { at } if asked < MOST_ASKED => {
                // A loopback address means the machine that names it, not this one.
                if !at.ip().is_loopback() {
                    host = host_of(&at);
                }
                port = at.port();
            }
            Answer::Elsewhere { .. } | Answer::Busy => {
                return Err(Error::NoCoordinator { at: place_of(&channel) });
            }
            answer => return Ok((host, channel, answer)),
        }
    }
}

/// Lets an agent examine its machine.
///
/// # Errors
/// It does not answer, or does not know the question.
pub fn examine(host: &str, port: u16, token: &ClusterToken, cancelled: Cancelled) -> Result<Examined, Error> {
    let mut channel = connect(host, port, token, cancelled)?;
    let (asked_us, since) = (now_us(), Instant::now());
    let answer = ask(&mut channel, &Ask::Examine)?;
    let exchange = since.elapsed();
    let Answer::Examined(examination) = answer else { return Err(out_of_turn(&channel)) };
    let clock = ClockOffset::estimate(asked_us, examination.time_us, exchange);
    Ok(Examined { examination, clock })
}

/// Returns whether an agent finds all files of a folder on its machine, with the same bytes. It reads those
/// that have the same sizes, which takes as long as its disk needs.
///
/// # Errors
/// It does not answer, or does not know the question, or the files are too many to be listed in a message.
pub fn holds(
    host: &str,
    port: u16,
    token: &ClusterToken,
    folder: &Folder,
    cancelled: Cancelled,
) -> Result<bool, Error> {
    let question = Ask::Holds(folder.clone());
    refuse_long_list(&question, host)?;
    let mut channel = connect(host, port, token, cancelled)?;
    let mut answer = ask(&mut channel, &question)?;
    while answer == Answer::Busy {
        answer = hear(&mut channel)?;
    }
    match answer {
        Answer::Holds(is_there) => Ok(is_there),
        _ => Err(out_of_turn(&channel)),
    }
}

/// Asks an agent whether the run of this name goes on at its machine, or has.
///
/// # Errors
/// It does not answer, or does not know the question.
pub fn goes_on(
    host: &str,
    port: u16,
    token: &ClusterToken,
    run: &str,
    cancelled: Cancelled,
) -> Result<GoesOn, Error> {
    let mut channel = connect(host, port, token, cancelled)?;
    match ask(&mut channel, &Ask::GoesOn { run: run.to_owned() })? {
        Answer::GoesOn(found) => Ok(found),
        _ => Err(out_of_turn(&channel)),
    }
}

/// Measures how fast bytes reach an agent on one encrypted connection, for about two seconds. It sends at
/// most `most` bytes, and never more than [`MOST_MEASURED`].
///
/// # Errors
/// It does not answer.
pub fn measure(
    host: &str,
    port: u16,
    token: &ClusterToken,
    most: u64,
    cancelled: Cancelled,
) -> Result<Measured, Error> {
    let most = most.min(MOST_MEASURED);
    // A first, short measurement says how much is enough.
    let short = SHORT.min(most / 2);
    let first = measure_bytes(host, port, token, short, &cancelled)?;
    let enough = first.bytes as f64 / first.seconds * ENOUGH.as_secs_f64();
    let bytes = (enough as u64).clamp(short, most - short);
    measure_bytes(host, port, token, bytes, &cancelled)
}

fn measure_bytes(
    host: &str,
    port: u16,
    token: &ClusterToken,
    bytes: u64,
    cancelled: &Cancelled,
) -> Result<Measured, Error> {
    let mut channel = connect(host, port, token, cancelled.clone())?;
    ask(&mut channel, &Ask::Measure { bytes })?;
    let piece = vec![0_u8; PIECE];
    let since = Instant::now();
    let mut left = bytes;
    while left > 0 {
        let count = left.min(PIECE as u64);
        channel.send(BYTES, &piece[..count as usize]).map_err(|error| lost(&channel, &error))?;
        left -= count;
    }
    channel.flush().map_err(|error| lost(&channel, &error))?;
    match hear(&mut channel)? {
        Answer::Yes => Ok(Measured { bytes, seconds: since.elapsed().as_secs_f64().max(1e-6) }),
        _ => Err(out_of_turn(&channel)),
    }
}
