//! The engine: ranks that have met over TCP and sum by NCCL.
//!
//! A communicator belongs to the members of an epoch. When they have changed, it is ended with whatever it
//! still does, and before the next sum, all connect by a new id. Whether that worked is said over TCP, so all
//! ranks go on alike. A rank whose NCCL does not end what it does ends itself, and the others go on without
//! it.

use std::fmt;
use std::sync::mpsc::channel;
use std::thread::Builder;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use sparktune_base::escape::escape;

use crate::collective::{Collective, Traffic};
use crate::error::{Error, failure};
use crate::lent::Lent;
use crate::nccl::gpu::Gpu;
use crate::nccl::preflight::{Asked, Choice, Facts, Version, choose};
use crate::summed_by::SummedBy;
use crate::swarm::Change;
use crate::swarm::pulse::Pulse;
use crate::tcp::Tcp;
use crate::waiting::STOPPED;

/// Vectors that are shorter are summed over TCP: they cost nothing there.
const SHORTEST: usize = 4096;
/// The numbers of the first sum.
const TRIAL: usize = SHORTEST + 3;
/// How long connecting may take, and how long the first sum, in which NCCL opens its own connections.
const CONNECTING: Duration = Duration::from_secs(60);
/// How long the first sum may take to fail by itself.
const TRYING: Duration = Duration::from_secs(1);
/// How long news of a rank is waited for that may be the reason why a sum has failed: its longest silence.
const NEWS: Duration = if cfg!(test) { Duration::from_secs(15) } else { Duration::from_secs(35) };
/// How long NCCL may take for a call that returns at once if all is well: to end what it does, as after a
/// rank is gone.
const ENDING: Duration = if cfg!(test) { Duration::from_secs(6) } else { Duration::from_secs(20) };
/// Why the first sum is given up.
const NOT_DONE: &str = "the first sum was not done within a minute: a firewall may keep back NCCL's ports, or it uses the wrong network interface (NCCL_SOCKET_IFNAME names the right one)";
/// The pause between two looks at the GPU and at the others.
const LOOK: Duration = Duration::from_micros(30);

/// What each rank says before all connect: rank 0 the id, the others nothing, or why it cannot.
pub(crate) type Id = Result<Vec<u8>, String>;

/// By what sums are made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Path {
    /// By NCCL of this version, on the GPUs.
    Nccl(u32),
    /// Over TCP, and why.
    Tcp(String),
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nccl(version) => {
                write!(f, "sums are made on the GPUs by NCCL {}", Version(*version))
            }
            Self::Tcp(why) => write!(f, "sums are made over TCP, and not by NCCL: {why}"),
        }
    }
}

/// One rank of a job that sums by NCCL.
pub struct Nccl {
    control: Tcp,
    gpu: Option<Box<dyn Gpu>>,
    asked: Asked,
    facts: Facts,
    path: Path,
    notes: Vec<String>,
    /// The members that the communicator connects, by the numbers that they had when they met.
    connected: Option<Vec<usize>>,
    /// Whether there is a communicator, which has to be ended.
    is_begun: bool,
    traffic: Traffic,
}

/// Chooses by what sums are made between ranks that have met. All ranks must call this; what is asked for is
/// rank 0's. Without a GPU, the facts say why.
///
/// # Errors
/// A rank is gone; or NCCL is asked for and cannot be used.
pub fn over(control: Tcp, asked: Asked, facts: Facts, gpu: Option<Box<dyn Gpu>>) -> Result<Nccl, Error> {
    let path = Path::Tcp("nothing was chosen".into());
    let (notes, connected, traffic) = (Vec::new(), None, Traffic::default());
    let is_begun = false;
    let mut engine = Nccl { control, gpu, asked, facts, path, notes, connected, is_begun, traffic };
    engine.open()?;
    Ok(engine)
}

impl Nccl {
    /// Returns by what sums are made.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns what may make them slow.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    fn open(&mut self) -> Result<(), Error> {
        let facts = self.facts.clone();
        let facts: Vec<Facts> = self.gather(&facts)?;
        let chosen = match choose(self.asked, &facts) {
            Ok(Choice::Nccl(version, notes)) => {
                self.notes = notes;
                self.connect()?.map(|()| version)
            }
            Ok(Choice::Tcp(why)) | Err(why) => Err(why),
        };
        let tried = match chosen {
            Ok(version) => self.tried()?.map(|()| version),
            Err(why) => Err(why),
        };
        self.path = match tried {
            Ok(version) => Path::Nccl(version),
            Err(why) => {
                self.end()?;
                if self.asked == Asked::Nccl {
                    let what = format!("sums cannot be made by NCCL: {why}");
                    self.control.leave(Some(&what));
                    let fix = "Set SPARKTUNE_CLUSTER_ENGINE to auto or tcp at rank 0, or unset it";
                    return Err(Error::Environment { what, fix });
                }
                Path::Tcp(why)
            }
        };
        Ok(())
    }

    /// Sums known numbers. The inner error is the same on all ranks.
    fn tried(&mut self) -> Result<Result<(), String>, Error> {
        let (rank, world_size) = (self.control.rank(), self.control.world_size());
        let own = vec![(rank + 1) as f32; TRIAL];
        let mut sums = own.clone();
        let expected = (world_size * (world_size + 1) / 2) as f32;
        let summed = self.watched(TRYING, Some(CONNECTING), |gpu| gpu.sum(&own))?;
        let taken = summed.and_then(|()| self.gpu.as_mut().map_or(Ok(()), |gpu| gpu.take(&mut sums)));
        let done = taken.and_then(|()| {
            let is_right = world_size == 1 || sums.iter().all(|sum| *sum == expected);
            if is_right { Ok(()) } else { Err("the first sum is wrong".to_owned()) }
        });
        let said: Vec<Result<(), String>> = self.gather(&done)?;
        Ok(failure(&said).map_or(Ok(()), Err))
    }

    /// Connects all members. The inner error is the same on all ranks.
    fn connect(&mut self) -> Result<Result<(), String>, Error> {
        let members = self.control.members();
        self.end()?;
        let (rank, world_size) = (self.control.rank(), self.control.world_size());
        if world_size == 1 {
            self.connected = Some(members);
            return Ok(Ok(()));
        }
        let own: Id = match &self.gpu {
            Some(_) if rank == 0 => {
                self.within(CONNECTING, "to connect", |gpu| gpu.new_id()).and_then(|id| id)
            }
            Some(_) => Ok(Vec::new()),
            None => Err("it has no GPU".into()),
        };
        let ids: Vec<Id> = self.gather(&own)?;
        if let Some(why) = failure(&ids) {
            return Ok(Err(why));
        }
        let id = ids.into_iter().next().and_then(Result::ok).unwrap_or_default();
        self.is_begun = true;
        let begun = self.within(CONNECTING, "to connect", move |gpu| gpu.connect(&id, rank, world_size));
        let begun = begun.and_then(|begun| begun);
        // Nobody waits for one that does not come.
        let all_begun: Vec<Result<(), String>> = self.gather(&begun)?;
        let connected = match failure(&all_begun) {
            None => self.until_ready(),
            Some(_) => begun,
        };
        let said: Vec<Result<(), String>> = self.gather(&connected)?;
        let failed = failure(&all_begun).or_else(|| failure(&said));
        Ok(match failed {
            None => {
                self.connected = Some(members);
                Ok(())
            }
            Some(why) => {
                self.end()?;
                Err(why)
            }
        })
    }

    /// Waits until the communicator that was begun is connected.
    fn until_ready(&mut self) -> Result<(), String> {
        let began = Instant::now();
        let mut wait = Wait::new();
        while let Some(gpu) = &mut self.gpu {
            if gpu.is_ready()? {
                return Ok(());
            }
            if began.elapsed() > CONNECTING {
                return Err(format!("the others did not come within {} s", CONNECTING.as_secs()));
            }
            // The next words find out more.
            self.control.look(&mut wait).map_err(|error| error.to_string())?;
            std::thread::sleep(LOOK);
        }
        Err("it has no GPU".into())
    }

    /// Ends what the GPU still does for a communicator whose members are others now, or that has failed.
    fn settle<T>(&mut self, done: Result<T, Error>) -> Result<T, Error> {
        let are_the_same = self.connected.as_ref().is_some_and(|before| *before == self.control.members());
        if !are_the_same || !matches!(done, Ok(_) | Err(Error::Regrouped)) {
            let ended = self.end();
            if done.is_ok() || matches!(done, Err(Error::Regrouped)) {
                ended?;
            } else {
                self.ends_for_all();
            }
        }
        done
    }

    /// Ends what the GPU does for the others.
    ///
    /// # Errors
    /// It does not end, so this rank has to.
    fn end(&mut self) -> Result<(), Error> {
        self.connected = None;
        if !std::mem::take(&mut self.is_begun) || self.gpu.is_none() {
            return Ok(());
        }
        let ended = self.within(ENDING, "to end what it did", |gpu| gpu.abort());
        ended.map_err(|mut what| {
            let (is_first, ranks) = (self.control.rank() == 0, self.control.world_size());
            if let Some(swarm) = &mut self.control.swarm {
                swarm.gives_way = true;
                if is_first && ranks > 2 {
                    what += ". If the other ranks go on without this one, the next of them has the run, and that of this rank must not be resumed";
                }
            }
            let error = Error::Gpus { what };
            self.control.failure = Some(error.to_string());
            error
        })
    }

    /// Lets the GPU do something for at most so long. Afterwards there is no GPU any more, because one that
    /// hangs cannot be called again.
    fn within<T: Send + 'static>(
        &mut self,
        limit: Duration,
        what: &str,
        work: impl FnOnce(&mut dyn Gpu) -> T + Send + 'static,
    ) -> Result<T, String> {
        let mut gpu = self.gpu.take().ok_or("it has no GPU")?;
        let (send, done) = channel();
        let work = move || {
            let done = work(&mut *gpu);
            // Nobody may wait any more.
            drop(send.send((done, gpu)));
        };
        Builder::new().name("nccl".into()).spawn(work).map_err(|error| error.to_string())?;
        let (done, gpu) = done.recv_timeout(limit).map_err(|_| {
            format!("NCCL has taken longer than {} s {what}, and is not waited for", limit.as_secs())
        })?;
        self.gpu = Some(gpu);
        Ok(done)
    }

    /// Sums on the GPUs, at most as long as a limit, and looks after the others meanwhile. The inner error is
    /// that of the GPU, if nothing is heard for so long that explains it.
    fn watched(
        &mut self,
        news: Duration,
        limit: Option<Duration>,
        begin: impl FnOnce(&mut dyn Gpu) -> Result<(), String>,
    ) -> Result<Result<(), String>, Error> {
        let gpu = &mut self.gpu;
        let done = self.control.as_one_epoch(|tcp| {
            let Some(gpu) = gpu.as_deref_mut().filter(|_| tcp.world_size() > 1) else { return Ok(Ok(())) };
            let mut failed = begin(gpu).err().map(|why| (why, Instant::now()));
            let (began, mut wait) = (Instant::now(), Wait::new());
            loop {
                if limit.is_some_and(|limit| began.elapsed() > limit) {
                    return Ok(Err(NOT_DONE.into()));
                }
                failed = match failed {
                    Some((why, since)) if since.elapsed() > news => return Ok(Err(why)),
                    Some(failed) => Some(failed),
                    None => match gpu.is_done() {
                        Ok(true) => return Ok(Ok(())),
                        Ok(false) => None,
                        Err(why) => Some((why, Instant::now())),
                    },
                };
                tcp.look(&mut wait)?;
                std::thread::sleep(LOOK);
            }
        });
        self.settle(done)
    }

    /// Sums on the GPUs of all members.
    fn sum(&mut self, begin: impl FnOnce(&mut dyn Gpu) -> Result<(), String>) -> Result<(), Error> {
        if self.connected.is_none() {
            let connected = self.connect();
            if let Err(why) = self.settle(connected)? {
                // All ranks do this step again, over TCP.
                self.path = Path::Tcp(why);
                self.control.tell(&self.path.to_string());
                return Err(Error::Regrouped);
            }
        }
        let summed = self.watched(NEWS, None, begin)?;
        summed.map_err(|what| self.failed(&what))
    }

    /// Ends what the GPU does, and returns why the run ends.
    fn failed(&mut self, what: &str) -> Error {
        // What came first is said.
        let _ = self.end();
        self.ends_for_all();
        let error = Error::Gpus { what: escape(what).into_owned() };
        self.control.failure = Some(error.to_string());
        error
    }

    /// What ends this rank ends the run of all, also if its GPU does not end what it does: the others must
    /// not go on without it.
    fn ends_for_all(&mut self) {
        if let Some(swarm) = &mut self.control.swarm {
            swarm.gives_way = false;
        }
    }

    /// Counts what a ring would send for so many numbers.
    fn count(&mut self, numbers: usize) {
        let others = self.control.world_size() as u64 - 1;
        let bytes = 2 * (numbers * size_of::<f32>()) as u64 * others / (others + 1);
        self.traffic.sent += bytes;
        self.traffic.received += bytes;
    }

    /// Returns what all ranks say, in their order.
    fn gather<T: Serialize + for<'a> Deserialize<'a>>(&mut self, own: &T) -> Result<Vec<T>, Error> {
        let own = serde_json::to_vec(own).expect("plain fields serialise");
        let words = self.control.all_gather(&own)?.into_iter().enumerate();
        words
            .map(|(rank, word)| {
                serde_json::from_slice(&word).map_err(|_| Error::OutOfStep {
                    rank,
                    at: "connecting GPUs".into(),
                    what: "it says something unknown".into(),
                })
            })
            .collect()
    }
}

impl Collective for Nccl {
    fn rank(&self) -> usize {
        self.control.rank()
    }

    fn world_size(&self) -> usize {
        self.control.world_size()
    }

    /// Sums long vectors on the GPUs, to which they are copied, and short ones over TCP.
    fn all_reduce(&mut self, values: &mut [f32]) -> Result<(), Error> {
        if !self.takes_lent() || values.len() < SHORTEST {
            let done = self.control.all_reduce(values);
            return self.settle(done);
        }
        let most = self.gpu.as_ref().map_or(values.len(), |gpu| gpu.most());
        for part in values.chunks_mut(most) {
            self.sum(|gpu| gpu.sum(part))?;
            if let Some(gpu) = self.gpu.as_mut().filter(|_| self.control.world_size() > 1)
                && let Err(what) = gpu.take(part)
            {
                return Err(self.failed(&what));
            }
            self.count(part.len());
        }
        Ok(())
    }

    /// Goes over TCP, where each contribution is seen before it counts.
    fn scatter(&mut self, values: &[f32]) -> Result<Vec<Vec<f32>>, Error> {
        let done = self.control.scatter(values);
        self.settle(done)
    }

    fn spread(&mut self, own: &[f32], values: &mut [f32]) -> Result<(), Error> {
        let done = self.control.spread(own, values);
        self.settle(done)
    }

    fn all_gather(&mut self, own: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        let done = self.control.all_gather(own);
        self.settle(done)
    }

    fn leave(&mut self, reason: Option<&str>) {
        // The others hear of it also if ending what the GPU does takes long.
        self.control.leave(reason);
        // The others have said that they have everything, if there is no reason.
        let is_done = reason.is_none();
        self.connected = None;
        if std::mem::take(&mut self.is_begun)
            && self.gpu.is_some()
            && let Err(why) =
                self.within(ENDING, "to end", move |gpu| if is_done { gpu.finish() } else { gpu.abort() })
        {
            self.control.tell(&why);
        }
    }

    fn traffic(&self) -> Traffic {
        let Traffic { sent, received } = self.control.traffic();
        Traffic { sent: sent + self.traffic.sent, received: received + self.traffic.received }
    }

    fn outlive(&mut self, silence: Duration) -> bool {
        self.control.outlive(silence)
    }

    fn is_healing(&self) -> bool {
        self.control.is_healing()
    }

    fn members(&self) -> Vec<usize> {
        self.control.members()
    }

    fn newcomers(&self) -> usize {
        self.control.newcomers()
    }

    fn is_left_out(&self) -> bool {
        self.control.is_left_out()
    }

    fn has_lost_others(&self) -> bool {
        self.control.has_lost_others()
    }

    fn meet_again(&mut self) -> Result<(), Error> {
        self.end()?;
        self.control.meet_again()
    }

    fn launched_as(&self) -> Vec<usize> {
        self.control.launched_as()
    }

    fn addresses(&self) -> Vec<(String, u16)> {
        self.control.addresses()
    }

    fn pulse(&self) -> Option<Pulse> {
        self.control.pulse()
    }

    fn changes(&mut self) -> Vec<Change> {
        self.control.changes()
    }

    fn engine(&self) -> Option<String> {
        Some(self.path.to_string())
    }

    fn summed_by(&self) -> SummedBy {
        match self.path {
            Path::Nccl(version) => SummedBy::Nccl(version),
            Path::Tcp(_) => SummedBy::Tcp,
        }
    }

    fn open_again(&mut self) -> Result<(), Error> {
        let word: &[u8] = match self.asked {
            Asked::Auto => b"auto",
            Asked::Nccl => b"nccl",
        };
        self.control.broadcast(word)?;
        self.open()
    }

    fn takes_lent(&self) -> bool {
        matches!(self.path, Path::Nccl(_))
    }

    fn all_reduce_lent(&mut self, lent: &mut Lent) -> Result<(), Error> {
        let mut numbers = 0;
        self.sum(|gpu| {
            numbers = gpu.sum_lent(lent)?;
            Ok(())
        })?;
        self.count(numbers);
        Ok(())
    }
}

/// A wait for a GPU, during which the others are watched.
struct Wait {
    since: Instant,
    looked: Instant,
}

impl Wait {
    fn new() -> Self {
        let now = Instant::now();
        Self { since: now, looked: now }
    }

    /// Returns since when others may be blamed for their silence: not for the time in which this process was
    /// stopped.
    fn began(&mut self) -> Instant {
        let now = Instant::now();
        if now - std::mem::replace(&mut self.looked, now) > STOPPED {
            self.since = now;
        }
        self.since
    }
}

impl Tcp {
    /// Looks, without waiting, whether a rank is gone or the members change.
    fn look(&mut self, wait: &mut Wait) -> Result<(), Error> {
        let others: Vec<usize> = self.members.iter().copied().filter(|rank| *rank != self.own).collect();
        self.mailbox.look(&others, wait.began()).map_err(|ended| self.ended(ended))
    }
}
