//! How an agent finds the coordinator, holds a connection to it, and takes its place when it is silent. The
//! rules of that are in `coordination`; here is what it takes: connections, threads and time.

use std::collections::BTreeSet;
use std::net::{SocketAddr, ToSocketAddrs};
use std::thread::Builder;
use std::time::{Duration, Instant};

use sparktune_base::escape::escape;

use super::agent::{Agent, Host, LOOK, Shared, Where, lock};
use super::messages::{Answer, Ask, Introduction, Standing, name};
use super::talk::{BEAT, SILENCE, ask, connect, out_of_turn, place_of};
use crate::discovery::{Answerer, find};
use crate::doctor::Link;
use crate::error::Error;

/// The pause after which a member dials again.
const AGAIN: Duration = Duration::from_secs(2);
/// The pause after which a coordinator says again to those that are gone that it coordinates, and tries again
/// to answer calls.
const ANNOUNCE: Duration = Duration::from_secs(5);
/// The time of one search on the link.
const SEARCH: Duration = Duration::from_secs(4);

/// Receives where the coordinator is when this member is connected to it, and where all others listen, to be
/// kept for the next start.
type Keep<'k> = &'k mut dyn FnMut(Option<(&str, u16)>, &[SocketAddr]);

impl Shared<'_> {
    /// Answers calls on the link while this member coordinates.
    pub(super) fn answer_calls(&self, mut answerer: Option<Answerer>) {
        let Agent { token, call_port, introduction, .. } = self.agent;
        let mut tried: Option<Instant> = None;
        while !self.is_over() {
            if !self.coordinates() {
                // Another member on this machine may need the port.
                answerer = None;
            } else if let Some(answerer) = &mut answerer {
                answerer.answer_one();
                continue;
            } else if let Some(port) = call_port
                && tried.is_none_or(|at| at.elapsed() >= ANNOUNCE)
            {
                tried = Some(Instant::now());
                answerer = Answerer::open(token, *port, introduction.port).ok();
            }
            std::thread::sleep(LOOK);
        }
    }

    /// While this member coordinates, tells those that are not connected to it that it does. One of them may
    /// coordinate too.
    pub(super) fn announce(&self) {
        while !self.is_over() {
            if self.coordinates() {
                let mut absent = lock(&self.coordination).known().clone();
                for (place, is_gone) in lock(&self.roster).places() {
                    if is_gone {
                        absent.insert(place);
                    } else {
                        absent.remove(&place);
                    }
                }
                for (place, standing) in self.survey(&absent) {
                    self.consider(&standing, place);
                }
            }
            let since = Instant::now();
            while since.elapsed() < ANNOUNCE && !self.is_over() {
                std::thread::sleep(LOOK);
            }
        }
    }

    /// Asks the members at these places at once how they stand.
    fn survey(&self, places: &BTreeSet<SocketAddr>) -> Vec<(SocketAddr, Standing)> {
        let own = self.standing();
        let stands = |place: SocketAddr| {
            let (host, token) = (place.ip().to_string(), self.agent.token);
            let mut channel = connect(&host, place.port(), token, self.cancelled()).ok()?;
            match ask(&mut channel, &Ask::Stand(own.clone())).ok()? {
                Answer::Stands(standing) => Some((place, standing)),
                _ => None,
            }
        };
        let stands = &stands;
        std::thread::scope(|scope| {
            let start = |place: &SocketAddr| {
                let place = *place;
                Builder::new().name("survey".into()).spawn_scoped(scope, move || stands(place)).ok()
            };
            let asked: Vec<_> = places.iter().filter_map(start).collect();
            asked.into_iter().filter_map(|thread| thread.join().ok().flatten()).collect()
        })
    }

    /// Hears how another member stands.
    pub(super) fn consider(&self, other: &Standing, at: SocketAddr) {
        let gives_up = lock(&self.coordination).consider(other, at);
        if gives_up {
            (self.agent.notice)(&format!(
                "the member at {at} has taken over the coordination: this one is an ordinary member now"
            ));
        }
    }

    /// Asks the other members who coordinates, and takes over if that is this member's turn. One that was
    /// never connected to a coordinator knows no others, and does not.
    fn seek(&self) {
        let places = self.places();
        if places.is_empty() {
            return;
        }
        let answers = self.survey(&places);
        // Nobody is connected to this member before all are called gone.
        let mut roster = lock(&self.roster);
        let takes_over = lock(&self.coordination).decide(&answers);
        if takes_over {
            roster.take_over();
        }
        drop(roster);
        if takes_over {
            (self.agent.notice)("the coordinator is silent: this member has taken over the coordination");
        }
    }

    /// Waits, and looks after the rank meanwhile, until the time is over, the agent ends or it coordinates.
    fn pause(&self, time: Duration) {
        let since = Instant::now();
        while since.elapsed() < time && !self.is_over() && !self.coordinates() {
            self.settle();
            std::thread::sleep(LOOK);
        }
    }

    /// Coordinates, or holds a connection to the coordinator, until the end.
    pub(super) fn take_part(&self, place: Option<&Where>, keep: Keep<'_>) -> Result<(), Error> {
        // Whoever coordinated and has given up has no address but those that it was told.
        let own = Where::At("127.0.0.1".into(), self.agent.introduction.port);
        let place = place.unwrap_or(&own);
        let mut has_been_there = self.agent.coordinates;
        let mut kept = BTreeSet::new();
        while !self.is_over() {
            if self.coordinates() {
                self.settle();
                let places = self.places();
                if places != kept {
                    keep(None, &Vec::from_iter(places.iter().copied()));
                    kept = places;
                }
                std::thread::sleep(LOOK);
            } else {
                self.dial(place, keep, &mut has_been_there)?;
            }
        }
        Ok(())
    }

    /// Holds a connection to the coordinator until the end, or until this member coordinates.
    fn dial(&self, place: &Where, keep: Keep<'_>, has_been_there: &mut bool) -> Result<(), Error> {
        let notice = self.agent.notice;
        let (mut silent, mut said): (Option<Instant>, _) = (None, String::new());
        while !self.is_over() && !self.coordinates() {
            self.settle();
            let named = lock(&self.coordination).take_at();
            let named = named.map(|at| Where::At(at.ip().to_string(), at.port()));
            let visited = self.visit(named.as_ref().unwrap_or(place), keep, &mut || {
                *has_been_there = true;
                (silent, said) = (None, String::new());
            });
            lock(&self.coordination).lose();
            let error = match visited {
                Err(Error::Interrupted) => return Ok(()),
                Ok(()) => {
                    std::thread::sleep(LOOK);
                    continue;
                }
                Err(error) => error,
            };
            // A wrong token does not become right by waiting.
            if !*has_been_there && matches!(error, Error::OtherCluster { .. } | Error::Agent { .. }) {
                return Err(error);
            }
            let text = error.to_string();
            if text != said {
                let end = if text.ends_with(['.', '?']) { "" } else { "." };
                notice(&format!("{text}{end} Dialling again every {} s", AGAIN.as_secs()));
                said = text;
            }
            // Whoever answers with another token is not silent: the cluster may have been given a new one.
            let is_nobody = matches!(
                error,
                Error::NoAgent { .. } | Error::NobodyAnswers { .. } | Error::NoCoordinator { .. }
            );
            let since = silent.get_or_insert_with(Instant::now);
            if is_nobody && since.elapsed() >= SILENCE {
                self.seek();
            }
            self.pause(AGAIN);
        }
        Ok(())
    }

    /// Joins the coordinator at a place, and reports until the connection fails, the end, or the time when
    /// another member is named as the coordinator.
    fn visit(&self, place: &Where, keep: Keep<'_>, joined: &mut dyn FnMut()) -> Result<(), Error> {
        let Agent { token, introduction, notice, .. } = self.agent;
        let (host, port) = match place {
            Where::At(host, port) => (host.clone(), *port),
            Where::OnTheLink(port) => {
                let answered = find(token, *port, SEARCH, &|| self.is_over());
                let at = answered.ok_or(Error::NobodyAnswers { port: *port })?;
                (at.ip().to_string(), at.port())
            }
        };
        let mut channel = connect(&host, port, token, self.cancelled())?;
        let at = address(&host, port).ok_or_else(|| Error::NoAgent {
            at: place_of(&channel),
            why: "its name has no address any more".into(),
        })?;
        let Answer::Stands(Standing { term, .. }) = ask(&mut channel, &Ask::Stand(self.standing()))? else {
            return Err(out_of_turn(&channel));
        };
        let link = link_in_words(self.agent.host, at);
        let mut answer = ask(&mut channel, &Ask::Join(Introduction { link, ..introduction.clone() }))?;
        let mut is_in = false;
        loop {
            match answer {
                Answer::Elsewhere { at: other } => {
                    // An address of that machine itself means another machine here.
                    let ip = if other.ip().is_loopback() { at.ip() } else { other.ip() };
                    lock(&self.coordination).point_to(SocketAddr::new(ip, other.port()));
                    return Ok(());
                }
                Answer::Busy => return Err(Error::NoCoordinator { at: place_of(&channel) }),
                Answer::Members(members) => {
                    lock(&self.roster).copy(&introduction.id, members, at.ip());
                    lock(&self.coordination).forget_known();
                    keep(Some((host.as_str(), port)), &Vec::from_iter(self.places()));
                }
                _ => {}
            }
            if !is_in {
                is_in = true;
                joined();
                lock(&self.coordination).follow(at, term);
                notice(&format!("member of the cluster of {}:{port}", escape(&host)));
            }
            self.settle();
            let report = self.report();
            let state = report.state.clone();
            answer = ask(&mut channel, &Ask::Report(report))?;
            // Whoever starts a run asks the coordinator who is free, so a change is reported at once.
            let since = Instant::now();
            while since.elapsed() < BEAT && *lock(&self.work) == state {
                if self.is_over() {
                    return Ok(());
                }
                std::thread::sleep(LOOK);
                self.settle();
            }
        }
    }
}

/// Returns the first address of a host.
fn address(host: &str, port: u16) -> Option<SocketAddr> {
    (host, port).to_socket_addrs().ok()?.next()
}

/// Returns the speed of the link to an address and its interface, if the system says so.
fn link_in_words(machine: &dyn Host, at: SocketAddr) -> Option<String> {
    let Link { interface, speed, .. } = machine.link_towards(at.ip())?;
    Some(name(&format!("{} ({interface})", speed?)))
}
