//! Questions to an agent: who is there, how fast is the way to it.

use std::time::{Duration, Instant};

use super::messages::{Answer, Ask, MOST_MEASURED, Member};
use super::talk::{Cancelled, ask, connect, hear, lost, out_of_turn};
use super::transfer::BYTES;
use crate::cluster_token::ClusterToken;
use crate::error::Error;

/// The time that a measurement should take, and the bytes between two looks at the clock.
const ENOUGH: Duration = Duration::from_secs(2);
const PIECE: usize = 1 << 20;

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

/// Asks the coordinator at this place for the members. It is the first of them.
///
/// # Errors
/// It does not answer, or has another token.
pub fn members(
    host: &str,
    port: u16,
    token: &ClusterToken,
    cancelled: Cancelled,
) -> Result<Vec<Found>, Error> {
    let mut channel = connect(host, port, token, cancelled)?;
    let Answer::Members(members) = ask(&mut channel, &Ask::Members)? else {
        return Err(out_of_turn(&channel));
    };
    // A member on the coordinator's own machine has an address there that means another machine here.
    let host_of = |member: &Member| match member.ip {
        Some(ip) if !ip.is_loopback() => ip.to_string(),
        _ => host.to_owned(),
    };
    Ok(members.into_iter().map(|member| Found { host: host_of(&member), member }).collect())
}

/// Tells the coordinator that a member is gone for good.
///
/// # Errors
/// It does not answer.
pub fn forget(
    host: &str,
    port: u16,
    token: &ClusterToken,
    id: &str,
    cancelled: Cancelled,
) -> Result<(), Error> {
    let mut channel = connect(host, port, token, cancelled)?;
    ask(&mut channel, &Ask::Forget { id: id.to_owned() }).map(drop)
}

/// Measures how fast bytes reach an agent on one encrypted connection: for about two seconds, and at most
/// [`MOST_MEASURED`] bytes.
///
/// # Errors
/// It does not answer.
pub fn measure(host: &str, port: u16, token: &ClusterToken, cancelled: Cancelled) -> Result<Measured, Error> {
    // A first, short measurement says how much is enough.
    let first = measure_bytes(host, port, token, 16 << 20, &cancelled)?;
    let enough = first.bytes as f64 / first.seconds * ENOUGH.as_secs_f64();
    let bytes = (enough as u64).clamp(16 << 20, MOST_MEASURED - (16 << 20));
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
