//! Who starts a run brings the other members to work: every one gets the files it lacks, and only when all
//! are ready their ranks are started, so a run begins with everybody or not at all.

use std::net::{IpAddr, Ipv4Addr, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use sparktune_ndp::stream::Channel;

use super::messages::{Answer, Ask, Job, RankState};
use super::talk::{BEAT, Cancelled, ask, connect, hear, out_of_turn, refuse_long_list, tell};
use super::transfer::send;
use crate::cluster_token::ClusterToken;
use crate::discovery::address_towards;
use crate::error::Error;

/// The pause between two looks at what has changed.
const LOOK: Duration = Duration::from_millis(50);

/// A member that shall train.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recruit {
    /// Its name, for messages.
    pub name: String,
    /// The host of its agent.
    pub host: String,
    /// The port of its agent.
    pub port: u16,
}

/// Watches over the preparation, from several threads.
pub trait Watch: Sync {
    /// So many bytes more were sent to a member.
    fn sent(&self, to: &str, bytes: u64);

    /// A member is ready, and had to fetch so many bytes.
    fn ready(&self, member: &str, fetched: u64);
}

/// The members whose ranks were started.
pub struct Crew {
    channels: Vec<(String, Channel<'static>)>,
}

/// Prepares all recruits, and starts their ranks. `job` is that of the first, and the others have the next
/// ranks; `places` are where its folders are on this machine. `cancelled` counts until the ranks have been
/// started.
///
/// # Errors
/// One of the members cannot be reached, refuses, or cannot be given its files, or the files are too many to
/// be listed in a message. Then none trains.
pub fn prepare(
    recruits: &[Recruit],
    token: &ClusterToken,
    job: &Job,
    places: &[PathBuf],
    cancelled: Cancelled,
    watch: &dyn Watch,
) -> Result<Crew, Error> {
    let has_started = Arc::new(AtomicBool::new(false));
    let started = Arc::clone(&has_started);
    let has_failed = Arc::new(AtomicBool::new(false));
    let failed = Arc::clone(&has_failed);
    let stopped: Cancelled =
        Arc::new(move || !started.load(Ordering::SeqCst) && (cancelled() || failed.load(Ordering::SeqCst)));
    let ready = AtomicUsize::new(0);
    let prepared: Vec<_> = std::thread::scope(|scope| {
        let threads = recruits.iter().enumerate().map(|(index, recruit)| {
            let job = Job { rank: job.rank + index, ..job.clone() };
            let (stopped, has_failed, ready) = (stopped.clone(), &has_failed, &ready);
            scope.spawn(move || {
                let one = prepare_one(recruit, token, &job, places, stopped, watch);
                let one = one.and_then(|mut channel| {
                    ready.fetch_add(1, Ordering::SeqCst);
                    // The agent hears from us while others still fetch.
                    let mut asked = Instant::now();
                    while ready.load(Ordering::SeqCst) < recruits.len() {
                        if has_failed.load(Ordering::SeqCst) {
                            return Err(Error::Interrupted);
                        }
                        if asked.elapsed() >= BEAT {
                            asked = Instant::now();
                            ask(&mut channel, &Ask::Look)?;
                        }
                        std::thread::sleep(LOOK);
                    }
                    Ok(channel)
                });
                one.inspect_err(|_| has_failed.store(true, Ordering::SeqCst))
            })
        });
        let threads: Vec<_> = threads.collect();
        threads.into_iter().map(|thread| thread.join().unwrap_or(Err(Error::Interrupted))).collect()
    });
    // The failure that made the others give up is the one to tell.
    let mut channels = Vec::new();
    let mut failure = None;
    for (recruit, one) in recruits.iter().zip(prepared) {
        match one {
            Ok(channel) => channels.push((recruit.name.clone(), channel)),
            Err(error) if failure.is_none() || matches!(failure, Some(Error::Interrupted)) => {
                failure = Some(of_member(&recruit.name, error));
            }
            Err(_) => {}
        }
    }
    if let Some(failure) = failure {
        return Err(failure);
    }
    for (name, channel) in &mut channels {
        ask(channel, &Ask::Start).map_err(|error| of_member(name, error))?;
    }
    has_started.store(true, Ordering::SeqCst);
    Ok(Crew { channels })
}

fn prepare_one(
    recruit: &Recruit,
    token: &ClusterToken,
    job: &Job,
    places: &[PathBuf],
    stopped: Cancelled,
    watch: &dyn Watch,
) -> Result<Channel<'static>, Error> {
    let Recruit { name, host, port } = recruit;
    let prepare = Ask::Prepare(job.clone());
    refuse_long_list(&prepare, name)?;
    let mut channel = connect(host, *port, token, stopped)?;
    tell(&mut channel, &prepare)?;
    loop {
        match hear(&mut channel)? {
            Answer::Busy => {}
            Answer::Want { folder, file, from } => {
                let wanted = job.folders.get(folder).and_then(|folder| folder.files.get(file));
                let (Some(wanted), Some(place)) = (wanted, places.get(folder)) else {
                    return Err(out_of_turn(&channel));
                };
                send(&mut channel, place, wanted, from, &mut |bytes| watch.sent(name, bytes))?;
            }
            Answer::Ready { fetched } => {
                watch.ready(name, fetched);
                return Ok(channel);
            }
            Answer::Refused { why } => return Err(Error::Agent { at: name.clone(), why }),
            _ => return Err(out_of_turn(&channel)),
        }
    }
}

/// Names the member in a failure of its connection.
fn of_member(name: &str, error: Error) -> Error {
    match error {
        Error::Agent { why, .. } => Error::Agent { at: name.to_owned(), why },
        Error::NoAgent { at, why } => {
            let at = if at == name { at } else { format!("{name} ({at})") };
            Error::NoAgent { at, why }
        }
        error => error,
    }
}

/// Returns the address at which all recruits reach this machine, and the recruits as they are dialled. Those
/// on this machine are dialled at that address too: a rank is told that rank 0 is where its agent was dialled
/// from, and decides by that at which addresses it listens.
pub fn reached_at(recruits: &[Recruit]) -> (IpAddr, Vec<Recruit>) {
    let way = |recruit: &Recruit| {
        let all = (recruit.host.as_str(), recruit.port).to_socket_addrs().ok()?;
        all.into_iter().find_map(|to| Some(Way { to: to.ip(), from: address_towards(to)? }))
    };
    let ways: Vec<Option<Way>> = recruits.iter().map(way).collect();
    let at = common_address(ways.iter().flatten());
    let dialled = recruits.iter().zip(&ways).map(|(recruit, way)| {
        let is_here = way.as_ref().is_some_and(Way::stays_here);
        let host = if is_here { at.to_string() } else { recruit.host.clone() };
        Recruit { host, ..recruit.clone() }
    });
    (at, dialled.collect())
}

/// The addresses at both ends of a way from this machine.
struct Way {
    from: IpAddr,
    to: IpAddr,
}

impl Way {
    fn stays_here(&self) -> bool {
        self.to.is_loopback() || self.to == self.from
    }
}

/// Returns the address of the first way to another machine, or that of the loopback interface.
fn common_address<'a>(ways: impl IntoIterator<Item = &'a Way>) -> IpAddr {
    let out = ways.into_iter().find(|way| !way.stays_here());
    out.map_or(Ipv4Addr::LOCALHOST.into(), |way| way.from)
}

impl Crew {
    /// Adds the agent of this machine, which is to know that it leads the run.
    ///
    /// # Errors
    /// It is busy.
    pub fn led_from(&mut self, own: &Recruit, token: &ClusterToken, job: &Job) -> Result<(), Error> {
        let mut channel = connect(&own.host, own.port, token, Arc::new(|| false))?;
        let lead = Ask::Lead { run: job.run.clone(), world_size: job.world_size };
        ask(&mut channel, &lead).map_err(|error| of_member(&own.name, error))?;
        self.channels.push((own.name.clone(), channel));
        Ok(())
    }

    /// Looks after the ranks in the background until [`Following::let_go`]. `ended` receives the name of a
    /// member whose rank has ended with something other than success, and how.
    ///
    /// # Errors
    /// The system starts no thread.
    pub fn follow(
        self,
        ended: impl Fn(&str, Option<i32>, &str) + Send + Sync + 'static,
    ) -> Result<Following, Error> {
        let (goes_on, ended) = (Arc::<OnceLock<bool>>::default(), Arc::new(ended));
        // An agent gives up a leader that is silent for as long as the leader waits for an answer. So each
        // member has a thread, and one that does not answer does not keep the leader from the others.
        let follow = |(name, channel): (String, Channel<'static>)| {
            let (goes_on, ended) = (Arc::clone(&goes_on), Arc::clone(&ended));
            let look = move || look_after(&name, channel, &goes_on, &*ended);
            Builder::new().name("crew".into()).spawn(look).map_err(Error::Thread)
        };
        let threads = self.channels.into_iter().map(follow).collect::<Result<_, _>>()?;
        Ok(Following { goes_on, threads })
    }
}

/// Looks after the rank of a member until it has ended, the connection fails, or it is known whether the run
/// goes on without the program that started it.
fn look_after(
    name: &str,
    mut channel: Channel<'static>,
    goes_on: &OnceLock<bool>,
    ended: &impl Fn(&str, Option<i32>, &str),
) {
    let mut asked: Option<Instant> = None;
    let mut waits = true;
    loop {
        // The last look comes after the run has ended, so nothing that ended before is missed.
        let is_last = goes_on.get();
        if is_last.is_some() || asked.is_none_or(|at| at.elapsed() >= BEAT) {
            asked = Some(Instant::now());
            match ask(&mut channel, &Ask::Look) {
                Ok(Answer::Rank(RankState::Ended { code, said })) => {
                    if code != Some(0) {
                        ended(name, code, &said);
                    }
                    return;
                }
                Ok(Answer::Rank(state)) => waits = state == RankState::Waiting,
                Ok(_) => waits = false,
                // The ranks notice themselves if their machine is gone.
                Err(_) => return,
            }
        }
        if let Some(goes_on) = is_last {
            // If the connection ends without a word, the agent stops a rank that waits.
            if *goes_on || !waits {
                let _ = tell(&mut channel, &Ask::Detach);
            }
            return;
        }
        std::thread::sleep(LOOK);
    }
}

/// The members' ranks, looked after in the background.
pub struct Following {
    /// Whether the run goes on, once nobody looks after its ranks any more.
    goes_on: Arc<OnceLock<bool>>,
    threads: Vec<JoinHandle<()>>,
}

impl Following {
    /// Lets all these ranks go, of a run that goes on or has ended. They follow rank 0 to its end. If the run
    /// has ended, a rank that has not met the others would wait in vain, and is stopped.
    pub fn let_go(all: impl IntoIterator<Item = Self>, goes_on: bool) {
        let all: Vec<Self> = all.into_iter().collect();
        for following in &all {
            let _ = following.goes_on.set(goes_on);
        }
        for thread in all.into_iter().flat_map(|following| following.threads) {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn way(from: [u8; 4], to: [u8; 4]) -> Way {
        Way { from: from.into(), to: to.into() }
    }

    #[test]
    fn the_ranks_of_one_machine_are_told_the_same_address_whatever_interfaces_it_has() {
        let (loopback, bridge) = (way([127, 0, 0, 1], [127, 0, 1, 1]), way([172, 17, 0, 1], [172, 17, 0, 1]));
        let out = way([192, 168, 1, 4], [192, 168, 1, 5]);
        assert_eq!(common_address([&bridge, &loopback]), IpAddr::from([127, 0, 0, 1]));
        assert_eq!(common_address([&bridge, &loopback, &out]), IpAddr::from([192, 168, 1, 4]));
        let at = |host: &str| Recruit { name: host.into(), host: host.into(), port: 7300 };
        let (address, dialled) = reached_at(&[at("127.0.0.2"), at("127.0.0.1")]);
        let hosts: Vec<&str> = dialled.iter().map(|recruit| recruit.host.as_str()).collect();
        assert_eq!((address, &hosts[..]), ([127, 0, 0, 1].into(), &["127.0.0.1"; 2][..]));
    }
}
