//! How one side of a channel says and hears messages, and how an agent is connected to.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sparktune_base::escape::escape;
use sparktune_ndp::stream::{Channel, MOST_CONTROL};
use sparktune_ndp::{Address, Error as NdpError, Patience};

use super::messages::{Answer, Ask, Message};
use crate::cluster_token::ClusterToken;
use crate::error::Error;
use crate::link::why;

/// The longest silence of the other side of a conversation.
pub(super) const SILENCE: Duration = Duration::from_secs(10);

/// The name of what is connected to, in an address.
const AGENT: &str = "agent";
/// The pause between two signs of life.
pub(super) const BEAT: Duration = Duration::from_secs(1);

/// Returns whether to give up.
pub type Cancelled = Arc<dyn Fn() -> bool + Send + Sync>;

/// The limits on a conversation: either side says something at least every few seconds.
pub(super) fn patience() -> Patience {
    Patience { silence: SILENCE, period: Duration::MAX, handshake: SILENCE, ..Patience::default() }
}

/// Connects to the agent at a place.
///
/// # Errors
/// Nobody answers there, or somebody with another token.
pub(super) fn connect(
    host: &str,
    port: u16,
    token: &ClusterToken,
    cancelled: Cancelled,
) -> Result<Channel<'static>, Error> {
    let address =
        Address { host: host.to_owned(), port, name: AGENT.into(), key: token.key().public(), hash: None };
    Channel::connect(&address, &token.proof(), patience(), cancelled).map_err(|error| {
        let at = format!("{}:{port}", escape(host));
        match error {
            NdpError::WrongKey { .. } | NdpError::Refused { .. } => Error::OtherCluster { at },
            NdpError::Cancelled => Error::Interrupted,
            error => Error::NoAgent { at, why: why(&error) },
        }
    })
}

/// Returns an address in words that lead there again: a link-local one needs its interface.
pub(super) fn host_of(at: &SocketAddr) -> String {
    match at {
        SocketAddr::V6(v6) if v6.scope_id() != 0 => format!("{}%{}", v6.ip(), v6.scope_id()),
        at => at.ip().to_string(),
    }
}

/// Returns the address that a member at a place has named. A loopback address means its own machine, not this
/// one.
pub(super) fn seen_from(place: SocketAddr, named: SocketAddr) -> SocketAddr {
    let ip = if named.ip().is_loopback() { place.ip() } else { named.ip() };
    SocketAddr::new(ip, named.port())
}

/// Receives a message.
///
/// # Errors
/// The connection failed, or it is none.
pub(super) fn hear<T: Message>(channel: &mut Channel<'_>) -> Result<T, Error> {
    let bytes = channel.hear_bytes().map_err(|error| lost(channel, &error))?;
    T::parse(&bytes).map_err(|unfit| {
        let at = place_of(channel);
        Error::Agent { at, why: unfit.to_string() }
    })
}

/// Says something.
///
/// # Errors
/// The connection failed.
pub(super) fn tell(channel: &mut Channel<'_>, message: &impl Message) -> Result<(), Error> {
    channel.tell(message).map_err(|error| lost(channel, &error))
}

/// Returns what long work calls between its pieces: the other side hears about once a second that it goes on.
pub(super) fn beat<'a, 'c>(channel: &'a mut Channel<'c>) -> impl FnMut() -> Result<(), Error> + use<'a, 'c> {
    let mut since = Instant::now();
    move || {
        if since.elapsed() >= BEAT {
            since = Instant::now();
            tell(channel, &Answer::Busy)?;
        }
        Ok(())
    }
}

/// Asks, and returns the answer.
///
/// # Errors
/// The connection failed, or the answer is no.
pub(super) fn ask(channel: &mut Channel<'_>, ask: &Ask) -> Result<Answer, Error> {
    tell(channel, ask)?;
    match hear(channel)? {
        Answer::Refused { why } => {
            let at = place_of(channel);
            Err(Error::Agent { at, why })
        }
        answer => Ok(answer),
    }
}

/// Refuses a question whose list of files is too long for a message. `at` names who is asked.
///
/// # Errors
/// It is too long.
pub(super) fn refuse_long_list(ask: &Ask, at: &str) -> Result<(), Error> {
    let length = serde_json::to_vec(ask).expect("messages always serialise").len();
    if length <= MOST_CONTROL {
        return Ok(());
    }
    let why = format!(
        "the list of the model's files has {length} bytes and does not fit into a message, which has at most {MOST_CONTROL}. Give the files shorter names, or put the weights into fewer files"
    );
    Err(Error::Agent { at: at.to_owned(), why })
}

/// Returns the error of an answer that was not due.
pub(super) fn out_of_turn(channel: &Channel<'_>) -> Error {
    let at = place_of(channel);
    Error::Agent {
        at,
        why: "it answers something that was not asked. Use the same program on all members".into(),
    }
}

/// Returns the error of a connection that failed.
pub(super) fn lost(channel: &Channel<'_>, error: &NdpError) -> Error {
    match error {
        NdpError::Cancelled => Error::Interrupted,
        error => Error::NoAgent { at: place_of(channel), why: why(error) },
    }
}

/// Returns the other side of a channel, for messages: without what belongs to addresses of files.
pub(super) fn place_of(channel: &Channel<'_>) -> String {
    let place = channel.place();
    let place = place.strip_prefix("ndp://").unwrap_or(place);
    escape(place.strip_suffix(&format!("/{AGENT}")).unwrap_or(place)).into_owned()
}
