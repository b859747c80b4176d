//! How an agent finds the coordinator, holds a connection to it, and takes its place when it falls silent.
//! The rules are in `coordination`; the connections, threads and pauses are here.

use std::collections::BTreeSet;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::Builder;
use std::time::{Duration, Instant};

use sparktune_base::escape::escape;
use sparktune_ndp::stream::Channel;

use super::agent::{Agent, Host, Keep, LOOK, Shared, Where, lock};
use super::messages::{Answer, Ask, Introduction, Standing, name};
use super::talk::{BEAT, Cancelled, ask, connect, host_of, out_of_turn, place_of, seen_from};
use crate::cluster_token::ClusterToken;
use crate::discovery::{Answerer, find};
use crate::doctor::Link;
use crate::error::Error;

/// The pause after which a member dials again.
const AGAIN: Duration = Duration::from_secs(2);
/// The pause after which a coordinator says again to those that are gone that it coordinates, and tries again
/// to answer calls.
const ANNOUNCE: Duration = Duration::from_secs(5);
/// The pause after which a coordinator looks for another one on the link.
const CALL: Duration = Duration::from_secs(60);
/// The time of one search on the link.
const SEARCH: Duration = Duration::from_secs(4);

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
    /// coordinate too. `place` is where this member dialled at first.
    pub(super) fn announce(&self, place: Option<&Where>) {
        let mut called: Option<Instant> = None;
        while !self.is_over() {
            let coordinates = self.coordinates();
            if coordinates {
                let mut absent = lock(&self.coordination).known().clone();
                for (place, is_gone) in lock(&self.roster).places() {
                    if is_gone {
                        absent.insert(place);
                    } else {
                        absent.remove(&place);
                    }
                }
                // The members may have other addresses by now.
                match place {
                    Some(Where::At(host, port)) => absent.extend(addresses(host, *port)),
                    Some(Where::OnTheLink(port)) if called.is_none_or(|at| at.elapsed() >= CALL) => {
                        absent.extend(self.call(*port));
                        called = Some(Instant::now());
                    }
                    _ => {}
                }
                for (place, standing) in self.survey(&absent) {
                    self.consider(&standing, place);
                }
            }
            let since = Instant::now();
            // Whoever takes over says so at once.
            while since.elapsed() < ANNOUNCE && !self.is_over() && (coordinates || !self.coordinates()) {
                std::thread::sleep(LOOK);
            }
        }
    }

    /// Looks for another coordinator on the link.
    fn call(&self, port: u16) -> Option<SocketAddr> {
        let Agent { token, introduction, .. } = self.agent;
        find(token, port, Some(introduction.port), SEARCH, &|| self.is_over())
    }

    /// Asks the members at these places, all at the same time, for their roles. If a coordinator asks, a
    /// member that follows another coordinator names that one, which is then asked.
    fn survey(&self, places: &BTreeSet<SocketAddr>) -> Vec<(SocketAddr, Standing)> {
        let (sender, heard) = mpsc::channel();
        for place in places.iter().copied() {
            let (token, own, cancelled) = (self.agent.token.clone(), self.standing(), self.cancelled());
            let sender = sender.clone();
            // A connection that is not answered takes its time, which nobody waits for at the end.
            let _ = Builder::new().name("survey".into()).spawn(move || {
                let _ = sender.send(stands(place, &token, &own, &cancelled));
            });
        }
        drop(sender);
        let mut answers = Vec::new();
        loop {
            match heard.recv_timeout(LOOK) {
                Ok(answer) => answers.extend(answer),
                Err(RecvTimeoutError::Timeout) if !self.is_over() => {}
                Err(_) => return answers,
            }
        }
    }

    /// Considers what another member says of its role.
    pub(super) fn consider(&self, other: &Standing, at: SocketAddr) {
        let gives_up = lock(&self.coordination).consider(other, at);
        if gives_up {
            (self.agent.notice)(&format!(
                "the member at {at} has taken over the coordination: this one is an ordinary member now"
            ));
        }
    }

    /// Asks the other members who coordinates, and takes over if it is this member's turn. A member that was
    /// never connected to a coordinator knows no others, and does not take over; one whose coordinator and
    /// all others have left does. Nobody was reached at the place `in_vain` just now.
    fn seek(&self, in_vain: Option<SocketAddr>) {
        let places = self.places();
        if places.is_empty() && !lock(&self.coordination).has_followed() {
            return;
        }
        let answers = self.survey(&places);
        // The roster stays locked meanwhile, so that nobody joins before all are marked as gone.
        let mut roster = lock(&self.roster);
        let (takes_over, has_left) = {
            let mut coordination = lock(&self.coordination);
            let has_left = coordination.has_left();
            (coordination.decide(&answers, in_vain), has_left)
        };
        if takes_over {
            roster.take_over();
        }
        drop(roster);
        if takes_over {
            let what = if has_left { "has left" } else { "is silent" };
            (self.agent.notice)(&format!(
                "the coordinator {what}: this member has taken over the coordination"
            ));
        }
    }

    /// Waits, and looks after the rank meanwhile, until the time is over, the agent ends, this member
    /// coordinates, or somebody names the coordinator.
    fn pause(&self, time: Duration) {
        let since = Instant::now();
        let is_named = || lock(&self.coordination).at().is_some();
        while since.elapsed() < time && !self.is_over() && !self.coordinates() && !is_named() {
            self.settle();
            std::thread::sleep(LOOK);
        }
    }

    /// Coordinates, or holds a connection to the coordinator, until the end.
    pub(super) fn take_part(&self, place: Option<&Where>, keep: Keep<'_>) -> Result<(), Error> {
        // A coordinator that has given up has no address to dial but those that it is told. Without one, it
        // asks its own agent, which names the coordinator as soon as it has been told.
        let own = Where::At("127.0.0.1".into(), self.agent.introduction.port);
        let place = place.unwrap_or(&own);
        let mut has_been_there = self.agent.coordinates;
        let mut kept = BTreeSet::new();
        while !self.is_over() {
            if self.coordinates() {
                has_been_there = true;
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
        let Agent { notice, returns_within, .. } = self.agent;
        let (mut heard, mut said) = (Instant::now(), String::new());
        while !self.is_over() && !self.coordinates() {
            self.settle();
            let named = lock(&self.coordination).take_at();
            // A name is kept as it was given: its address may change.
            let is_place = |at: &SocketAddr| matches!(place, Where::At(host, port) if addresses(host, *port).contains(at));
            let elsewhere = named.filter(|at| !is_place(at)).map(|at| Where::At(host_of(&at), at.port()));
            let visited = self.visit(elsewhere.as_ref().unwrap_or(place), keep, &mut || {
                *has_been_there = true;
                heard = Instant::now();
                said.clear();
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
            let is_awaited = heard.elapsed() < *returns_within && !lock(&self.coordination).has_left();
            // Whoever refuses this member is there. Another cluster at that place says nothing of this one.
            if !matches!(error, Error::Agent { .. }) && !is_awaited {
                self.seek(named);
            }
            self.pause(AGAIN);
        }
        Ok(())
    }

    /// Joins the coordinator at a place, and reports until the connection fails, the agent ends, or another
    /// member is named as the coordinator. `heard` is called whenever the coordinator has answered.
    fn visit(&self, place: &Where, keep: Keep<'_>, heard: &mut dyn FnMut()) -> Result<(), Error> {
        let Agent { token, introduction, notice, .. } = self.agent;
        let (host, port) = match place {
            Where::At(host, port) => (host.clone(), *port),
            Where::OnTheLink(port) => {
                let at = self.call(*port).ok_or(Error::NobodyAnswers { port: *port })?;
                (host_of(&at), at.port())
            }
        };
        let (at, mut channel) = reached(&host, port, token, &self.cancelled())?;
        let Answer::Stands(Standing { term, .. }) = ask(&mut channel, &Ask::Stand(self.standing()))? else {
            return Err(out_of_turn(&channel));
        };
        let link = link_in_words(self.agent.host, at);
        let mut answer = ask(&mut channel, &Ask::Join(Introduction { link, ..introduction.clone() }))?;
        let mut is_in = false;
        loop {
            match answer {
                Answer::Elsewhere { at: other } => {
                    lock(&self.coordination).point_to(seen_from(at, other));
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
            heard();
            if !is_in {
                is_in = true;
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

/// Asks the member at a place for its role, or the coordinator that it names.
fn stands(
    place: SocketAddr,
    token: &ClusterToken,
    own: &Standing,
    cancelled: &Cancelled,
) -> Option<(SocketAddr, Standing)> {
    let mut at = place;
    for _ in 0..2 {
        let mut channel = connect(&host_of(&at), at.port(), token, Cancelled::clone(cancelled)).ok()?;
        match ask(&mut channel, &Ask::Stand(own.clone())).ok()? {
            Answer::Stands(standing) => return Some((at, standing)),
            Answer::Elsewhere { at: other } => at = seen_from(at, other),
            _ => return None,
        }
    }
    None
}

/// Connects to the agent at a host. Returns the one of its addresses that has answered.
///
/// # Errors
/// Those of [`connect`].
fn reached(
    host: &str,
    port: u16,
    token: &ClusterToken,
    cancelled: &Cancelled,
) -> Result<(SocketAddr, Channel<'static>), Error> {
    let why = "the host has no address".into();
    let mut last = Error::NoAgent { at: format!("{}:{port}", escape(host)), why };
    for at in addresses(host, port) {
        match connect(&host_of(&at), port, token, Cancelled::clone(cancelled)) {
            Ok(channel) => return Ok((at, channel)),
            Err(error @ Error::NoAgent { .. }) => last = error,
            Err(error) => return Err(error),
        }
    }
    Err(last)
}

/// Returns the addresses of a host.
fn addresses(host: &str, port: u16) -> Vec<SocketAddr> {
    (host, port).to_socket_addrs().into_iter().flatten().collect()
}

/// Returns the speed of the link to an address and its interface, if the system says so.
fn link_in_words(machine: &dyn Host, at: SocketAddr) -> Option<String> {
    let Link { interface, speed, .. } = machine.link_towards(at.ip())?;
    Some(name(&format!("{} ({interface})", speed?)))
}
