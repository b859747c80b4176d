//! The connections of one rank: one to each other rank, on which it only sends, and one from each, on which
//! it only receives. A thread serves each of them, so no order of sending and receiving can block.
//!
//! A sender that has nothing to send says twice a second that it lives. A receiver that hears nothing for
//! [`Limits::silence`](crate::Limits::silence) gives the other rank up, also while this rank computes.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use sparktune_base::escape::escape;
use sparktune_ndp::Error as NdpError;
use sparktune_ndp::frame::CONTROL;
use sparktune_ndp::stream::Channel;

use crate::wire::{HEAD, Kind, MOST, Part};

/// The pause after which a sender says that it lives.
const BEAT: Duration = Duration::from_millis(500);
/// The most characters of another rank's reason that are repeated.
const LONGEST_REASON: usize = 500;

/// What a sender says beside messages.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Signal {
    /// It lives.
    Beat,
    /// It sends nothing more, and what the others do is theirs.
    Farewell { reason: Option<String> },
    /// It cannot go on, and the others can, as without one that is lost.
    GivesWay { reason: String },
}

/// What is to be sent.
enum Letter {
    Message { kind: Kind, operation: u64, bytes: Arc<Vec<u8>> },
    Last(Signal),
}

/// The connection to another rank.
pub(crate) struct Outgoing {
    letters: Option<Sender<Letter>>,
    thread: Option<JoinHandle<()>>,
}

impl Outgoing {
    /// Starts the thread that sends to a rank.
    pub(crate) fn start(rank: usize, channel: Channel<'static>) -> std::io::Result<Self> {
        let (letters, received) = std::sync::mpsc::channel();
        let thread =
            Builder::new().name(format!("to rank {rank}")).spawn(move || send_all(channel, &received))?;
        Ok(Self { letters: Some(letters), thread: Some(thread) })
    }

    /// Sends a message in the background. If the connection has failed, the other direction reports it.
    pub(crate) fn send(&self, kind: Kind, operation: u64, bytes: Arc<Vec<u8>>) {
        if let Some(letters) = &self.letters {
            let _ = letters.send(Letter::Message { kind, operation, bytes });
        }
    }

    /// Says that nothing more will be sent.
    pub(crate) fn bid_farewell(&mut self, reason: Option<&str>) {
        self.end_with(Signal::Farewell { reason: reason.map(str::to_owned) });
    }

    /// Says that this rank ends, and the others can go on.
    pub(crate) fn give_way(&mut self, reason: &str) {
        self.end_with(Signal::GivesWay { reason: reason.to_owned() });
    }

    fn end_with(&mut self, signal: Signal) {
        if let Some(letters) = self.letters.take() {
            let _ = letters.send(Letter::Last(signal));
        }
    }

    /// Returns whether something may still be sent.
    pub(crate) fn is_sending(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    /// Sends nothing more and does not wait for what is on its way.
    pub(crate) fn abandon(mut self, reason: &str) {
        self.bid_farewell(Some(reason));
        drop(self.thread.take());
    }

    /// Waits until everything is sent or cannot be sent.
    pub(crate) fn finish(&mut self) {
        self.letters = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn send_all(mut channel: Channel<'static>, letters: &Receiver<Letter>) {
    let mut payload = Vec::with_capacity(HEAD + MOST);
    loop {
        let sent = match letters.recv_timeout(BEAT) {
            Ok(Letter::Message { kind, operation, bytes }) => {
                let parts = Part::of(operation, &bytes).try_for_each(|part| {
                    part.write(&mut payload);
                    channel.send(kind.codes(), &payload)
                });
                parts.and_then(|()| channel.flush())
            }
            Ok(Letter::Last(signal)) => {
                let _ = channel.tell(&signal);
                return;
            }
            Err(RecvTimeoutError::Timeout) => channel.tell(&Signal::Beat),
            Err(RecvTimeoutError::Disconnected) => return,
        };
        // The receiving direction finds out why.
        if sent.is_err() {
            return;
        }
    }
}

/// What comes from another rank.
pub(crate) enum Event {
    Part { kind: Option<Kind>, payload: Vec<u8> },
    Left { reason: Option<String> },
    Lost { why: String },
}

/// When each of the other ranks was heard last, by this machine's monotonic clock.
#[derive(Clone, Default)]
pub(crate) struct LastHeard {
    at: Arc<Mutex<BTreeMap<usize, Instant>>>,
}

impl LastHeard {
    /// Records that a rank was heard now.
    pub(crate) fn note(&self, rank: usize) {
        self.at.lock().unwrap_or_else(PoisonError::into_inner).insert(rank, Instant::now());
    }

    /// Returns when a rank was heard last.
    pub(crate) fn last(&self, rank: usize) -> Option<Instant> {
        self.at.lock().unwrap_or_else(PoisonError::into_inner).get(&rank).copied()
    }
}

/// The connection from another rank, whose events go to the mailbox.
pub(crate) struct Incoming {
    thread: Option<JoinHandle<()>>,
}

impl Incoming {
    /// Starts the thread that receives from a rank.
    pub(crate) fn start(
        rank: usize,
        channel: Channel<'static>,
        events: Sender<(usize, Event)>,
        heard: LastHeard,
    ) -> std::io::Result<Self> {
        let thread = Builder::new().name(format!("from rank {rank}")).spawn(move || {
            let event = receive_all(channel, rank, &events, &heard);
            let _ = events.send((rank, event));
        })?;
        Ok(Self { thread: Some(thread) })
    }

    /// Waits until the other rank sends nothing more.
    pub(crate) fn finish(&mut self) {
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Receives until nothing more comes, and returns why.
fn receive_all(
    mut channel: Channel<'static>,
    rank: usize,
    events: &Sender<(usize, Event)>,
    heard: &LastHeard,
) -> Event {
    let lost = |error: &NdpError| Event::Lost { why: why(error) };
    loop {
        let frame = match channel.receive(HEAD + MOST) {
            Ok(frame) => frame,
            Err(error) => return lost(&error),
        };
        heard.note(rank);
        if frame.codes == CONTROL {
            let short = |reason: String| {
                escape(&reason.chars().take(LONGEST_REASON).collect::<String>()).into_owned()
            };
            match serde_json::from_slice(&frame.payload) {
                Ok(Signal::Beat) => continue,
                Ok(Signal::Farewell { reason }) => return Event::Left { reason: reason.map(short) },
                Ok(Signal::GivesWay { reason }) => return Event::Lost { why: short(reason) },
                Err(_) => {
                    return Event::Lost { why: "it says something that this program does not know".into() };
                }
            }
        }
        if let Err(error) = channel.deal_with(&frame) {
            return lost(&error);
        }
        let part = Event::Part { kind: Kind::of(frame.codes), payload: frame.payload };
        if events.send((rank, part)).is_err() {
            return Event::Lost { why: "this rank has ended".into() };
        }
    }
}

/// Says why a channel failed, without the advice that holds for token files.
pub(crate) fn why(error: &NdpError) -> String {
    match error {
        NdpError::Cut { .. } => "its connection was cut".into(),
        NdpError::Medium { fault, .. } => fault.to_string(),
        NdpError::Frame { fault, .. } => fault.to_string(),
        NdpError::Tls { why, .. } => format!("the encrypted channel failed: {why}"),
        NdpError::Unreachable { source, .. } => source.to_string(),
        NdpError::Cancelled => "this rank has ended".into(),
        other => other.to_string(),
    }
}
