//! What arrives from the other ranks: sorted by rank, so that a wait for one of them also hears what others
//! say about who belongs to the swarm.
//!
//! A rank that was heard by nobody's thread for some time is silent. Only time that was spent waiting here
//! counts, so that a process that was stopped itself does not blame the others when it continues.

use std::collections::{BTreeMap, VecDeque};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use crate::error::Error;
use crate::link::{Event, LastHeard};
use crate::swarm::notice::{self, Notice};
use crate::waiting::STOPPED;
use crate::wire::{Assembly, Kind, Part, WireFault};

/// The pause between two looks at who is silent.
const LOOK: Duration = Duration::from_millis(100);
/// The bits of an operation's number that count within an epoch.
const WITHIN: u32 = 40;

/// Returns the number of an operation of an epoch.
pub(crate) fn operation(epoch: u64, within: u64) -> u64 {
    (epoch << WITHIN) | within
}

/// Why a wait has ended without what was waited for.
pub(crate) enum Ended {
    /// There is a notice.
    Notice,
    /// This rank is gone or silent.
    Gone(usize, Error),
    /// A rank does something else than this one.
    OutOfStep(Error),
}

/// Why nothing more comes from a rank.
#[derive(Clone)]
enum Gone {
    Left { reason: Option<String> },
    Lost { why: String },
}

/// A frame with a part of a message: its kind, if it is known, and its bytes.
type Frame = (Option<Kind>, Vec<u8>);

/// What has arrived and was not taken yet.
pub(crate) struct Mailbox {
    events: Receiver<(usize, Event)>,
    /// Where the ranks are, and what their launcher calls them, for messages.
    places: BTreeMap<usize, String>,
    launched_as: Vec<usize>,
    parts: BTreeMap<usize, VecDeque<Frame>>,
    gone: BTreeMap<usize, Gone>,
    notices: VecDeque<(usize, Notice)>,
    /// The notices whose parts arrive.
    arriving: BTreeMap<usize, Assembly>,
    heard: LastHeard,
    /// The longest silence of a rank that is waited for, if ranks may outlive each other.
    silence: Option<Duration>,
}

impl Mailbox {
    pub(crate) fn new(
        events: Receiver<(usize, Event)>,
        places: BTreeMap<usize, String>,
        launched_as: Vec<usize>,
        heard: LastHeard,
    ) -> Self {
        let (parts, gone, arriving) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let notices = VecDeque::new();
        Self { events, places, launched_as, parts, gone, notices, arriving, heard, silence: None }
    }

    /// From now on, a rank that is waited for is gone after this silence, and notices end waits.
    pub(crate) fn limit_silence(&mut self, silence: Duration) {
        self.silence = Some(silence);
    }

    /// Returns that silence, if there is a limit.
    pub(crate) fn silence(&self) -> Option<Duration> {
        self.silence
    }

    /// Returns the number that its launcher gave to a rank.
    pub(crate) fn launched_as(&self, rank: usize) -> usize {
        self.launched_as.get(rank).copied().unwrap_or(rank)
    }

    /// Returns where a rank is.
    pub(crate) fn place(&self, rank: usize) -> &str {
        self.places.get(&rank).map_or("", String::as_str)
    }

    /// Drops all that came from a rank that is no member any more, and what comes from it later.
    pub(crate) fn forget(&mut self, rank: usize) {
        self.parts.remove(&rank);
        self.arriving.remove(&rank);
        self.notices.retain(|(from, _)| *from != rank);
        self.gone.insert(rank, Gone::Lost { why: "it is no member any more".into() });
    }

    /// Returns whether a rank has said itself that it ends.
    pub(crate) fn has_left(&self, rank: usize) -> bool {
        matches!(self.gone.get(&rank), Some(Gone::Left { .. }))
    }

    /// Returns why nothing more comes from a rank, if that is so.
    pub(crate) fn gone(&self, rank: usize) -> Option<Error> {
        let (at, gone) = (self.place(rank).to_owned(), self.gone.get(&rank)?.clone());
        let rank = self.launched_as(rank);
        Some(match gone {
            Gone::Left { reason } => Error::Left { rank, at, reason },
            Gone::Lost { why } => Error::Lost { rank, at, why },
        })
    }

    /// Waits for the message of this kind and operation from a rank, with at most `most` bytes. Parts of
    /// earlier epochs are passed over.
    pub(crate) fn receive(
        &mut self,
        from: usize,
        kind: Kind,
        operation: u64,
        most: u64,
    ) -> Result<Vec<u8>, Ended> {
        let mut assembly = Assembly::new(kind, operation, most);
        let since = &mut Instant::now();
        loop {
            if self.silence.is_some() && !self.notices.is_empty() {
                return Err(Ended::Notice);
            }
            while let Some((kind, payload)) = self.parts.get_mut(&from).and_then(VecDeque::pop_front) {
                let unfit = |fault: WireFault| {
                    let (at, what) = (self.place(from).to_owned(), fault.to_string());
                    Ended::OutOfStep(Error::OutOfStep { rank: self.launched_as(from), at, what })
                };
                let part = Part::parse(&payload).map_err(unfit)?;
                if part.operation >> WITHIN < operation >> WITHIN {
                    continue;
                }
                if assembly.add(kind, part).map_err(unfit)? {
                    return Ok(assembly.into_bytes());
                }
            }
            self.wait(&[from], since)?;
        }
    }

    /// Looks, without waiting, whether there is a notice or one of these ranks is gone. `since` is when the
    /// caller's own wait began.
    pub(crate) fn look(&mut self, awaited: &[usize], since: Instant) -> Result<(), Ended> {
        while let Ok(event) = self.events.try_recv() {
            self.take(event);
        }
        if self.silence.is_some() && !self.notices.is_empty() {
            return Err(Ended::Notice);
        }
        for rank in awaited {
            if let Some(error) = self.gone(*rank) {
                return Err(Ended::Gone(*rank, error));
            }
            if let Some(error) = self.silent(*rank, since) {
                return Err(Ended::Gone(*rank, error));
            }
        }
        Ok(())
    }

    /// Returns why a rank is given up that was not heard for too long since this rank waits.
    fn silent(&self, rank: usize, since: Instant) -> Option<Error> {
        let silence = self.silence?;
        let last = self.heard.last(rank).map_or(since, |last| last.max(since));
        (last.elapsed() >= silence).then(|| {
            let why = format!("it was silent for {} s", silence.as_secs());
            Error::Lost { rank: self.launched_as(rank), at: self.place(rank).to_owned(), why }
        })
    }

    /// Waits for a notice, as long as none of these ranks is gone.
    pub(crate) fn notice(&mut self, awaited: &[usize]) -> Result<(usize, Notice), Ended> {
        let since = &mut Instant::now();
        loop {
            if let Some(notice) = self.notices.pop_front() {
                return Ok(notice);
            }
            self.wait(awaited, since)?;
        }
    }

    /// Returns a notice that is there.
    pub(crate) fn waiting_notice(&mut self) -> Option<(usize, Notice)> {
        self.notices.pop_front()
    }

    /// Takes the next event, or finds that one of these ranks is gone. `since` is when the wait began.
    fn wait(&mut self, awaited: &[usize], since: &mut Instant) -> Result<(), Ended> {
        // Everything that has arrived comes before the news that nothing more will.
        if let Ok(event) = self.events.try_recv() {
            self.take(event);
            return Ok(());
        }
        if let Some((rank, error)) = awaited.iter().find_map(|rank| Some((*rank, self.gone(*rank)?))) {
            return Err(Ended::Gone(rank, error));
        }
        if self.silence.is_none() {
            match self.events.recv() {
                Ok(event) => self.take(event),
                Err(_) => self.all_ended(awaited),
            }
            return Ok(());
        }
        let looked = Instant::now();
        match self.events.recv_timeout(LOOK) {
            Ok(event) => self.take(event),
            Err(RecvTimeoutError::Disconnected) => self.all_ended(awaited),
            Err(RecvTimeoutError::Timeout) => {
                if looked.elapsed() > STOPPED {
                    *since = Instant::now();
                }
                for rank in awaited {
                    if let Some(error) = self.silent(*rank, *since) {
                        return Err(Ended::Gone(*rank, error));
                    }
                }
            }
        }
        Ok(())
    }

    fn all_ended(&mut self, awaited: &[usize]) {
        for rank in awaited {
            let why = "its connection has ended".to_owned();
            self.gone.entry(*rank).or_insert(Gone::Lost { why });
        }
    }

    fn take(&mut self, (rank, event): (usize, Event)) {
        if self.gone.contains_key(&rank) {
            return;
        }
        match event {
            Event::Part { kind: Some(Kind::Notice), payload } => {
                if let Err(why) = self.take_notice(rank, &payload) {
                    self.gone.insert(rank, Gone::Lost { why });
                }
            }
            Event::Part { kind, payload } => self.parts.entry(rank).or_default().push_back((kind, payload)),
            Event::Left { reason } => drop(self.gone.insert(rank, Gone::Left { reason })),
            Event::Lost { why } => drop(self.gone.insert(rank, Gone::Lost { why })),
        }
    }

    fn take_notice(&mut self, rank: usize, payload: &[u8]) -> Result<(), String> {
        let part = Part::parse(payload).map_err(|fault| fault.to_string())?;
        let operation = part.operation;
        let assembly = self.arriving.entry(rank);
        let assembly = assembly.or_insert_with(|| Assembly::new(Kind::Notice, operation, notice::MOST));
        let is_whole = assembly.add(Some(Kind::Notice), part).map_err(|fault| fault.to_string())?;
        if is_whole {
            let bytes = self.arriving.remove(&rank).map(Assembly::into_bytes).unwrap_or_default();
            self.notices.push_back((rank, Notice::parse(&bytes)?));
        }
        Ok(())
    }
}
