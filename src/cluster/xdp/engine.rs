//! The engine: ranks that have met over TCP and sum over UDP.
//!
//! Rank 0 opens the switch, in the kernel if it may and is told to, and tells the others where it is. Then
//! all ranks sum one block of numbers whose sum is known. If one of them does not get it, the switch is
//! opened in user space, and if that does not help either, sums go over TCP; [`Xdp::path`] says what was
//! found, and why. If nothing comes to a rank by AF_XDP, and the switch in the kernel is not at fault, that
//! rank takes its results from its socket, and the same switch is tried again.
//!
//! The switch measures each contribution, so all ranks know how long it was ([`Collective::measured`]). To
//! mute ranks, it is opened anew: with other keys, nothing that they have sent before counts.
//!
//! Each rank chooses for itself how its results come: by a socket, or by AF_XDP. With AF_XDP, they come in
//! frames of an arena. If the integers of a GPU that rounds are in it too, the GPU reads sums where they
//! arrived.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use rustix::rand::{GetRandomFlags, getrandom};
use serde::{Deserialize, Serialize};
use socket2::SockRef;
use sparktune_base::escape::escape;
use sparktune_base::pages::{Pages, Part};

use crate::collective::{Collective, Measured, Traffic};
use crate::environment::Placement;
use crate::error::{Error, failure};
use crate::lent::{BlocksForGpu, Lent, Quantiser};
use crate::rendezvous::Limits;
use crate::summed_by::SummedBy;
use crate::swarm::pulse::Pulse;
use crate::tcp::{self, Tcp};
use crate::token::JobToken;
use crate::xdp::af_xdp::AfXdp;
use crate::xdp::frame::{Ends, Route};
use crate::xdp::kernel::Kernel;
use crate::xdp::measuring::Measuring;
use crate::xdp::opened::{Opened, Place, Tried};
use crate::xdp::packets::KEPT;
use crate::xdp::quantise::{agree, decode, encode, magnitudes};
use crate::xdp::reach::{Here, reach, switch_socket};
use crate::xdp::slots::{Counts, Job};
use crate::xdp::soft::Soft;
use crate::xdp::transport::{Arrival, BackByAfXdp, Inside, Loss, Transport, Udp};
use crate::xdp::wire::{HEAD, Key, MOST_WORKERS, PACKET, VALUES, squares, values};
use crate::xdp::worker::{Report, Worker};

/// Vectors that are shorter are summed over TCP, exactly: they cost nothing, and may be anything.
const SHORTEST: usize = 4096;
/// The count of numbers whose magnitudes are agreed on at a time, which bounds the memory for the others'
/// magnitudes, and that of an arena. Whole blocks, so that a longer vector has the same blocks.
pub const BUCKET: usize = 6000 * VALUES;
/// How long the first sum may take.
const TRIAL: Duration = Duration::from_secs(10);
/// What the key of the tags is derived for.
const PURPOSE: &str = "sparktune 2026-11-27 tags of sums in the network";
/// What a rank that got no result says instead of whatever is due. It is neither text nor numbers.
const NO_RESULT: &[u8] = b"\xffno result";

/// How to sum.
#[derive(Debug, Clone)]
pub struct Choice {
    /// The interfaces of rank 0's machine at which the kernel adds. None: a thread adds.
    pub interfaces: Vec<String>,
    /// The UDP port of the switch. Results of the kernel go to the next one; a thread takes any other port if
    /// this one is taken.
    pub port: u16,
    /// The time without any result after which this rank gives up.
    pub silence: Duration,
    /// The interface of this rank's machine by which results come, if AF_XDP is to take them there. Rank 0
    /// has no use for it.
    pub af_xdp: Option<String>,
    /// Packets to lose on purpose, for tests.
    pub loss: Option<Loss>,
}

impl Default for Choice {
    fn default() -> Self {
        let silence = Limits::default().silence;
        Self { interfaces: Vec::new(), port: 13_371, silence, af_xdp: None, loss: None }
    }
}

/// Where sums are made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Path {
    /// In the kernel of rank 0's machine.
    Kernel,
    /// In a thread of rank 0, and why not in the kernel if that was asked for.
    User(Option<String>),
    /// Exactly, over TCP, and why not in the network.
    Tcp(String),
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kernel => {
                f.write_str("sums are made in the kernel of rank 0's machine, rounded to 16 bits")
            }
            Self::User(None) => f.write_str("sums are made by a thread of rank 0, rounded to 16 bits"),
            Self::User(Some(why)) => {
                write!(
                    f,
                    "sums are made by a thread of rank 0, rounded to 16 bits, and not in the kernel: {why}"
                )
            }
            Self::Tcp(why) => write!(f, "sums are made over TCP, exactly, and not in the network: {why}"),
        }
    }
}

/// What rank 0 keeps of its switch.
enum Switch {
    None,
    Soft(Soft),
}

/// What is needed to open the way for sums again.
struct Asked {
    placement: Placement,
    token: JobToken,
    choice: Choice,
}

/// The memory of a rank whose results come by AF_XDP.
struct Arena {
    frames: Arc<Part>,
    /// For the integers of a GPU, until it has them.
    integers: Option<Part>,
}

impl Arena {
    /// Makes room for the frames of an interface, and for a bucket.
    fn new(interface: &str) -> Result<Self, String> {
        let frames = AfXdp::room(interface, BUCKET / VALUES).map_err(|refusal| refusal.to_string())?;
        let parts = Pages::in_parts([frames, BUCKET * size_of::<i16>()]);
        let [frames, integers] =
            parts.map_err(|error| format!("memory for the arena was refused: {error}"))?;
        Ok(Self { frames: Arc::new(frames), integers: Some(integers) })
    }
}

/// One rank of a job that sums in the network.
pub struct Xdp {
    control: Tcp,
    asked: Arc<Asked>,
    path: Path,
    worker: Option<Worker>,
    switch: Switch,
    arena: Option<Arena>,
    /// Where results come to this rank by AF_XDP, or why it has given AF_XDP up for good. `None`: not tried.
    af_xdp: Option<Result<String, String>>,
    /// What rounds tensors that are lent.
    gpu: Option<Box<dyn Quantiser>>,
    blocks_for_gpu: BlocksForGpu,
    /// The ranks whose contributions count as zeros, a bit for each.
    muted: u16,
    measuring: Measuring,
    traffic: Traffic,
}

/// Meets the other ranks as [`tcp::join`] does, and opens the way for sums.
///
/// # Errors
/// A rank does not come; there are more than 16.
pub fn join(
    placement: &Placement,
    token: Option<&JobToken>,
    build: &str,
    limits: Limits,
    interrupted: Arc<dyn Fn() -> bool + Send + Sync>,
    choice: Choice,
) -> Result<Xdp, Error> {
    over(tcp::join(placement, token, build, limits, interrupted)?, placement, token, choice)
}

/// Opens the way for sums between ranks that have met, with the token that they met by. All ranks must call
/// this; the interfaces and the port are rank 0's.
///
/// # Errors
/// A rank is gone; there are more than 16.
pub fn over(
    control: Tcp,
    placement: &Placement,
    token: Option<&JobToken>,
    choice: Choice,
) -> Result<Xdp, Error> {
    if placement.world_size > MOST_WORKERS {
        let what = format!("{} ranks cannot be summed in 16 bits", placement.world_size);
        return Err(Error::Environment { what, fix: "Use at most 16 ranks, or sums over TCP" });
    }
    let token = token.cloned().unwrap_or_else(JobToken::of_loopback);
    let mut engine = Xdp {
        control,
        asked: Arc::new(Asked { placement: placement.clone(), token, choice }),
        path: Path::User(None),
        worker: None,
        switch: Switch::None,
        arena: None,
        af_xdp: None,
        gpu: None,
        blocks_for_gpu: BlocksForGpu::default(),
        muted: 0,
        measuring: Measuring::NOTHING,
        traffic: Traffic::default(),
    };
    engine.open_way()?;
    Ok(engine)
}

impl Xdp {
    /// Opens the best switch that works.
    fn open_way(&mut self) -> Result<(), Error> {
        let asked = Arc::clone(&self.asked);
        let mut why = None;
        let is_for_kernel = self.control.broadcast(&[u8::from(!asked.choice.interfaces.is_empty())])? == [1];
        for in_kernel in [true, false] {
            if in_kernel && !is_for_kernel {
                continue;
            }
            match self.open(&asked, in_kernel, why.take())? {
                Ok(path) => {
                    self.path = path;
                    return Ok(());
                }
                Err(failed) => why = Some(failed),
            }
        }
        self.path = Path::Tcp(why.unwrap_or_default());
        Ok(())
    }

    /// Opens one kind of switch and tries it. The inner error says why it cannot be used, on all ranks.
    fn open(
        &mut self,
        asked: &Asked,
        in_kernel: bool,
        why: Option<String>,
    ) -> Result<Result<Path, String>, Error> {
        let Asked { placement, token, choice } = asked;
        (self.worker, self.switch) = (None, Switch::None);
        let is_first = self.control.rank() == 0;
        let workers = u8::try_from(self.control.world_size()).expect("at most 16");
        let rank = u8::try_from(self.control.rank()).expect("at most 15");
        // Rank 0's own socket comes first, because its port may be taken.
        let own = is_first.then(|| switch_socket(choice.port, in_kernel));
        let (nonce, why_not) = ([0; 16], why.clone());
        let mut opened = Opened { nonce, job: 0, port: choice.port, group: None, why: why_not };
        if is_first {
            let filled = getrandom(&mut opened.nonce[..], GetRandomFlags::empty());
            assert_eq!(filled, Ok(16), "the kernel's generator gives this many bytes at once");
            let [a, b, c, d, ..] = opened.nonce;
            opened.job = u16::from_le_bytes([a, b]);
            // The part of the multicast addresses that organisations may use as they like.
            opened.group = in_kernel.then(|| Ipv4Addr::new(239, 195, c, d));
        }
        if let Some(Ok(socket)) = &own
            && let Ok(at) = socket.local_addr()
        {
            opened.port = at.port();
        }
        let opened = serde_json::to_vec(&opened).expect("plain fields serialise");
        let opened = self.control.broadcast(&opened)?;
        let opened: Opened = serde_json::from_slice(&opened).map_err(|_| unknown_word(0))?;
        let job = Job { number: opened.job, workers, muted: self.muted, key: key(token, &opened.nonce) };
        let here = reach(placement, &opened, is_first);
        // Where results for this rank go, or why there is no way to it.
        let place: Place = here.as_ref().map(|here| here.address).map_err(Clone::clone);
        let places: Vec<Place> = self.gather(&place)?;
        if let Some(why) = failure(&places) {
            return Ok(Err(why));
        }
        let here = here.expect("there is a failure otherwise");
        let window = here.window;
        let others: Vec<SocketAddrV4> = places.into_iter().skip(1).flatten().collect();
        let transport = match own {
            Some(own) => own.and_then(|own| self.open_at_first(choice, job, &opened, own, here, others)),
            None => self.open_at_others(choice.af_xdp.as_deref(), opened.group, here),
        };
        let said = transport.as_ref().map(drop).map_err(Clone::clone);
        let said: Vec<Result<(), String>> = self.gather(&said)?;
        if let Some(why) = failure(&said) {
            return Ok(Err(why));
        }
        let transport = transport.expect("there is a failure otherwise");
        let mut worker = Worker::new(job, rank, transport, choice.loss.clone(), TRIAL, window);
        let mut sums = Vec::new();
        let put = |_: u64, bytes: &mut [u8]| write_values(bytes, (0..VALUES).map(|at| at as i16 - 352));
        let take = |_: u64, arrival: Arrival<'_>| {
            sums.extend(values(arrival.packet));
            false
        };
        let tried = worker.sum(2, put, take);
        let counted = i16::from(workers) - self.muted.count_ones() as i16;
        let expected = (0..2 * VALUES).map(|at| ((at % VALUES) as i16 - 352) * counted);
        let tried = match tried {
            Ok(()) if sums.iter().copied().eq(expected) => Ok(()),
            Ok(()) => Err("the first sum is wrong".to_owned()),
            Err(fault) => {
                Err(format!("the first sum, at UDP port {} of rank 0, failed: {fault}", opened.port))
            }
        };
        let came_nothing = matches!(self.af_xdp, Some(Ok(_))) && worker.report().delivered == 0;
        let said: Vec<Tried> = self.gather(&(tried, came_nothing))?;
        let (said, came_nothing): (Vec<_>, Vec<bool>) = said.into_iter().unzip();
        // AF_XDP is not given up where the switch in the kernel may be at fault: where neither the rank nor
        // rank 0, which asks that switch directly, got the sum. Then a switch in user space is tried.
        let gives_up =
            |rank: usize| came_nothing[rank] && (said[rank].is_ok() || said[0].is_ok() || !in_kernel);
        let failed = failure(&said);
        if let (Some(interface), true) = (&choice.af_xdp, gives_up(self.control.rank())) {
            self.af_xdp = Some(Err(format!("none came by the interface {}", escape(interface))));
            self.arena = None;
        }
        if (0..said.len()).any(gives_up) {
            drop(worker);
            return self.open(asked, in_kernel, why);
        }
        if let Some(failed) = failed {
            self.switch = Switch::None;
            return Ok(Err(failed));
        }
        worker.begin(choice.silence);
        self.worker = Some(worker);
        Ok(Ok(if opened.group.is_some() { Path::Kernel } else { Path::User(opened.why()) }))
    }

    /// Opens the way to the switch for a rank other than 0, with AF_XDP if that is asked for and allowed.
    fn open_at_others(
        &mut self,
        interface: Option<&str>,
        group: Option<Ipv4Addr>,
        here: Here,
    ) -> Result<Box<dyn Transport>, String> {
        let udp = Udp::new(here.socket, here.switch).map_err(|error| error.to_string())?;
        let (Some(interface), None | Some(Ok(_))) = (interface, &self.af_xdp) else {
            return Ok(Box::new(udp));
        };
        match self.open_af_xdp(interface, here.address, group) {
            Ok(af_xdp) => Ok(Box::new(BackByAfXdp::new(udp, af_xdp))),
            Err(why) => {
                self.af_xdp = Some(Err(escape(&why).into_owned()));
                // If a GPU has a part of the arena, that part keeps the memory mapped.
                self.arena = None;
                Ok(Box::new(udp))
            }
        }
    }

    fn open_af_xdp(
        &mut self,
        interface: &str,
        own: SocketAddrV4,
        group: Option<Ipv4Addr>,
    ) -> Result<AfXdp, String> {
        let arena = match self.arena.take() {
            Some(arena) => arena,
            None => Arena::new(interface)?,
        };
        let frames = &self.arena.insert(arena).frames;
        let af_xdp = AfXdp::open(interface, own, group, frames).map_err(|refusal| refusal.to_string())?;
        let (interface, count, pages) = (escape(interface), af_xdp.queues(), frames.pages().kind());
        let queues = if count == 1 { "queue" } else { "queues" };
        self.af_xdp = Some(Ok(format!("at {interface} ({count} {queues}), into an arena of {pages}")));
        Ok(af_xdp)
    }

    /// Opens the switch at rank 0.
    fn open_at_first(
        &mut self,
        choice: &Choice,
        job: Job,
        opened: &Opened,
        own: UdpSocket,
        here: Here,
        others: Vec<SocketAddrV4>,
    ) -> Result<Box<dyn Transport>, String> {
        let Some(group) = opened.group else {
            // All ranks send to it at once.
            let _ = SockRef::from(&own).set_recv_buffer_size(KEPT);
            let soft = Soft::start(own, job).map_err(|error| error.to_string())?;
            self.switch = Switch::Soft(soft);
            let udp = Udp::new(here.socket, here.switch).map_err(|error| error.to_string())?;
            return Ok(Box::new(udp));
        };
        let route = Route { port: opened.port, reply_port: opened.reply_port()?, group };
        let mut kernel = Kernel::load(job, route).map_err(|refusal| refusal.to_string())?;
        for (number, interface) in choice.interfaces.iter().enumerate() {
            kernel.attach(interface, number as u32).map_err(|refusal| refusal.to_string())?;
        }
        let at = *here.address.ip();
        let ends = Ends { from: (at, route.reply_port), to: (at, route.port) };
        let inside = Inside::new(kernel, own, ends, others).map_err(|error| error.to_string())?;
        Ok(Box::new(inside))
    }

    /// Returns what all ranks say, in their order.
    fn gather<T: Serialize + for<'a> Deserialize<'a>>(&mut self, own: &T) -> Result<Vec<T>, Error> {
        let own = serde_json::to_vec(own).expect("plain fields serialise");
        let words = self.words(&own)?.into_iter().enumerate();
        words.map(|(rank, word)| serde_json::from_slice(&word).map_err(|_| unknown_word(rank))).collect()
    }

    /// Returns the words of all ranks, in their order.
    ///
    /// # Errors
    /// A rank is gone, or lacks results of the last sum, even if this rank has all of them.
    fn words(&mut self, own: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        let words = self.control.all_gather(own)?;
        match words.iter().position(|word| word == NO_RESULT) {
            Some(rank) => Err(Error::Switch { what: format!("no result has come to rank {rank}") }),
            None => Ok(words),
        }
    }

    /// Returns where sums are made.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns what the sums took so far, on this rank.
    pub fn report(&self) -> Report {
        self.worker.as_ref().map(Worker::report).unwrap_or_default()
    }

    /// Returns what became of the packets so far: on rank 0, whose switch in user space ends with this.
    pub fn counts(&mut self) -> Option<Counts> {
        match &mut self.switch {
            Switch::Soft(soft) => Some(soft.end()),
            Switch::None => self.worker.as_ref().and_then(Worker::counts),
        }
    }

    /// Replaces `numbers` by their sums over all ranks, rounded as the header of
    /// [`quantise`](super::quantise) states. If there is a residual, with as many numbers, it is added
    /// before, and becomes what was lost: it is passed again with the next numbers of the same meaning.
    ///
    /// # Errors
    /// A rank or the switch is gone, or a rank does something else.
    pub fn sum(&mut self, numbers: &mut [f32], mut residual: Option<&mut [f32]>) -> Result<(), Error> {
        if self.worker.is_none() {
            return self.control.all_reduce(numbers);
        }
        if numbers.len() < SHORTEST {
            return self.sum_short(numbers);
        }
        for (at, bucket) in numbers.chunks_mut(BUCKET).enumerate() {
            let from = at * BUCKET;
            let residual = residual.as_deref_mut().map(|residual| &mut residual[from..from + bucket.len()]);
            self.sum_bucket(bucket, residual)?;
        }
        Ok(())
    }

    /// Does the same for lent numbers, without a residual.
    fn sum_lent(&mut self, gpu: &mut dyn Quantiser, lent: &mut Lent) -> Result<(), Error> {
        let count = gpu.count(lent).map_err(rounding)?;
        if count < SHORTEST || self.worker.is_none() {
            let mut numbers = gpu.numbers(lent).map_err(rounding)?;
            self.sum(&mut numbers, None)?;
            return gpu.replace(lent, &numbers).map_err(rounding);
        }
        for from in (0..count).step_by(BUCKET) {
            self.sum_lent_bucket(gpu, lent, from..count.min(from + BUCKET))?;
        }
        Ok(())
    }

    /// Returns whether a rank's contributions count as zeros.
    fn is_muted(&self, rank: usize) -> bool {
        self.muted >> rank & 1 == 1
    }

    /// Sums few numbers exactly, over TCP, in the order of ranks.
    fn sum_short(&mut self, numbers: &mut [f32]) -> Result<(), Error> {
        let words = self.words(bytemuck::cast_slice(numbers))?;
        let mut is_first = true;
        for (rank, word) in words.iter().enumerate() {
            let own: Vec<f32> = bytemuck::pod_collect_to_vec(word);
            if word.len() != size_of_val(numbers) {
                return Err(Error::of_other_numbers(rank));
            }
            if self.is_muted(rank) {
                continue;
            }
            self.measuring.squares[rank] += own.iter().map(|number| f64::from(*number).powi(2)).sum::<f64>();
            if std::mem::take(&mut is_first) {
                numbers.copy_from_slice(&own);
            } else {
                numbers.iter_mut().zip(own).for_each(|(sum, number)| *sum += number);
            }
        }
        Ok(())
    }

    fn sum_bucket(&mut self, numbers: &mut [f32], mut residual: Option<&mut [f32]>) -> Result<(), Error> {
        if let Some(residual) = residual.as_deref() {
            numbers.iter_mut().zip(residual).for_each(|(number, left)| *number += left);
        }
        let workers = self.control.world_size();
        let shared = self.agree_on(&magnitudes(numbers))?;
        let all = numbers.len();
        let block_of = |block: usize| block * VALUES..all.min((block + 1) * VALUES);
        // When the sums of a block come, its numbers have been sent, so the sums can take their place.
        let numbers = RefCell::new(numbers);
        let fill = |block: usize, bytes: &mut [u8]| {
            let own = block_of(block);
            let left = residual.as_deref_mut().map(|residual| &mut residual[own.clone()]);
            encode(&numbers.borrow()[own], shared[block], workers, left, bytes.as_chunks_mut().0);
        };
        let take = |block: usize, arrival: Arrival<'_>| {
            let mut numbers = numbers.borrow_mut();
            decode(values(arrival.packet), shared[block], workers, &mut numbers[block_of(block)]);
            false
        };
        self.sum_blocks(&shared, fill, take)
    }

    /// Sums some of the numbers that are lent. The sums of a block stay where they came if the GPU can read
    /// them there, and take the place of its integers otherwise.
    fn sum_lent_bucket(
        &mut self,
        gpu: &mut dyn Quantiser,
        lent: &mut Lent,
        of: Range<usize>,
    ) -> Result<(), Error> {
        let workers = self.control.world_size();
        let own = gpu.magnitudes(lent, of.clone()).map_err(rounding)?;
        let shared = self.agree_on(&own)?;
        gpu.encode(lent, of.clone(), &shared, workers).map_err(rounding)?;
        let reads = gpu.pages().cloned();
        let integers = &mut gpu.integers()[..of.len()];
        let integers: Vec<&[Cell<[u8; 2]>]> =
            Cell::from_mut(integers).as_slice_of_cells().chunks(VALUES).collect();
        let fill = |block: usize, bytes: &mut [u8]| {
            let (places, rest) = bytes.as_chunks_mut().0.split_at_mut(integers[block].len());
            places.iter_mut().zip(integers[block]).for_each(|(place, integer)| *place = integer.get());
            rest.fill([0; 2]);
        };
        // The GPU can read sums where they arrived only if its arena is the one with this rank's frames.
        let frames = self.arena.as_ref().map(|arena| arena.frames.pages());
        let reads_all = frames.zip(reads.as_ref()).is_some_and(|(frames, reads)| Arc::ptr_eq(frames, reads));
        let (mut places, mut copied) = (vec![None; shared.len()], 0);
        let take = |block: usize, arrival: Arrival<'_>| {
            places[block] = arrival.at.filter(|_| reads_all).map(|at| at + HEAD);
            if places[block].is_none() {
                let sums = arrival.packet[HEAD..].as_chunks().0;
                integers[block].iter().zip(sums).for_each(|(integer, sum)| integer.set(*sum));
                copied += 1;
            }
            places[block].is_some()
        };
        self.sum_blocks(&shared, fill, take)?;
        self.blocks_for_gpu.in_place += places.iter().flatten().count() as u64;
        self.blocks_for_gpu.copied += copied;
        gpu.decode(lent, of, &shared, workers, &places).map_err(rounding)
    }

    /// Returns the magnitudes over all ranks.
    fn agree_on(&mut self, own: &[f32]) -> Result<Vec<f32>, Error> {
        let mut shared = vec![0.0; own.len()];
        let words = self.words(bytemuck::cast_slice(own))?;
        for (rank, word) in words.iter().enumerate() {
            if word.len() != shared.len() * size_of::<f32>() {
                let what = format!("it sums {} blocks where {} were due", word.len() / 4, shared.len());
                return Err(Error::OutOfStep { rank, at: "its magnitudes".into(), what });
            }
            if !self.is_muted(rank) {
                let said = || word.as_chunks().0.iter().map(|four| f32::from_le_bytes(*four));
                self.measuring.said(rank, said());
                agree(&mut shared, said());
            }
        }
        Ok(shared)
    }

    /// Sums the integers of blocks with these magnitudes: `fill` writes those of a block into a packet, and
    /// `take` reads their sums from one, in any order of blocks, and returns whether it stays where it is.
    fn sum_blocks(
        &mut self,
        shared: &[f32],
        mut fill: impl FnMut(usize, &mut [u8]),
        mut take: impl FnMut(usize, Arrival<'_>) -> bool,
    ) -> Result<(), Error> {
        let (blocks, workers) = (shared.len() as u64, self.control.world_size());
        let mut of_blocks = vec![[0; MOST_WORKERS]; shared.len()];
        let worker = self.worker.as_mut().expect("asked before");
        let fill = |block: u64, bytes: &mut [u8]| fill(block as usize, bytes);
        let take = |block: u64, arrival: Arrival<'_>| {
            of_blocks[block as usize] = squares(arrival.packet);
            take(block as usize, arrival)
        };
        let summed = worker.sum(blocks, fill, take);
        if let Err(fault) = summed {
            // The connection to a rank that is gone names it. Ranks that are there wait for a result as this
            // one does, and then say so too.
            self.control.all_gather(NO_RESULT)?;
            return Err(Error::Switch { what: fault.to_string() });
        }
        // In the order of blocks, whatever order they came in, so that all ranks have the same bits.
        for (magnitude, of_block) in shared.iter().zip(&of_blocks) {
            self.measuring.add(*magnitude, workers, of_block);
        }
        let bytes = blocks * PACKET as u64;
        self.traffic.sent += bytes;
        self.traffic.received += bytes;
        Ok(())
    }
}

impl Collective for Xdp {
    fn rank(&self) -> usize {
        self.control.rank()
    }

    fn world_size(&self) -> usize {
        self.control.world_size()
    }

    /// Sums without a residual. Unlike that of the exact engines, the result is rounded.
    fn all_reduce(&mut self, values: &mut [f32]) -> Result<(), Error> {
        self.sum(values, None)
    }

    /// Goes over TCP, where each contribution is seen before it counts.
    fn scatter(&mut self, values: &[f32]) -> Result<Vec<Vec<f32>>, Error> {
        self.control.scatter(values)
    }

    fn spread(&mut self, own: &[f32], values: &mut [f32]) -> Result<(), Error> {
        self.control.spread(own, values)
    }

    fn all_gather(&mut self, own: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        self.words(own)
    }

    fn measured(&mut self) -> Option<Measured> {
        let measured = std::mem::replace(&mut self.measuring, Measuring::NOTHING);
        self.worker.as_ref().map(|_| measured.measured(self.control.world_size()))
    }

    /// Mutes a minority only: who is more than half has said the same of the others.
    fn mute(&mut self, ranks: &[usize]) -> Result<bool, Error> {
        let muted = ranks.iter().fold(self.muted, |muted, rank| muted | 1 << rank);
        let are_few = 2 * muted.count_ones() < self.control.world_size() as u32;
        if self.worker.is_none() || muted == self.muted || !are_few {
            return Ok(false);
        }
        self.muted = muted;
        self.open_way()?;
        Ok(self.worker.is_some())
    }

    fn muted(&self) -> Vec<usize> {
        let is_muted = |rank: &usize| self.worker.is_some() && self.is_muted(*rank);
        (0..self.control.world_size()).filter(is_muted).collect()
    }

    fn launched_as(&self) -> Vec<usize> {
        self.control.launched_as()
    }

    fn engine(&self) -> Option<String> {
        let results = match &self.af_xdp {
            None => String::new(),
            Some(Ok(place)) => format!("; results come to this rank by AF_XDP {place}"),
            Some(Err(why)) => format!("; results come to this rank by a socket and not by AF_XDP: {why}"),
        };
        let results = if self.worker.is_some() { results } else { String::new() };
        Some(format!("{}{results}", self.path))
    }

    fn summed_by(&self) -> SummedBy {
        if self.worker.is_some() { SummedBy::Xdp } else { SummedBy::Tcp }
    }

    fn pulse(&self) -> Option<Pulse> {
        self.control.pulse()
    }

    fn round_on(&mut self, gpu: Box<dyn Quantiser>) {
        self.gpu = Some(gpu);
    }

    fn arena(&mut self) -> Option<Part> {
        self.arena.as_mut()?.integers.take()
    }

    fn blocks_for_gpu(&self) -> Option<BlocksForGpu> {
        Some(self.blocks_for_gpu).filter(|blocks| *blocks != BlocksForGpu::default())
    }

    fn takes_lent(&self) -> bool {
        self.worker.is_some() && self.gpu.is_some()
    }

    fn all_reduce_lent(&mut self, lent: &mut Lent) -> Result<(), Error> {
        let mut gpu = self.gpu.take().ok_or_else(|| rounding("there is none".into()))?;
        let done = self.sum_lent(&mut *gpu, lent);
        self.gpu = Some(gpu);
        done
    }

    fn leave(&mut self, reason: Option<&str>) {
        // The others may still ask for results, so the switch stays until they have left too.
        self.control.leave(reason);
    }

    fn traffic(&self) -> Traffic {
        let Traffic { sent, received } = self.control.traffic();
        Traffic { sent: sent + self.traffic.sent, received: received + self.traffic.received }
    }
}

fn key(token: &JobToken, nonce: &[u8; 16]) -> Key {
    let derived = token.derived(PURPOSE, nonce);
    let half = |at: usize| u64::from_le_bytes(derived[at..at + 8].try_into().expect("eight bytes"));
    Key([half(0), half(8)])
}

fn write_values(bytes: &mut [u8], values: impl Iterator<Item = i16>) {
    bytes.chunks_exact_mut(2).zip(values).for_each(|(two, value)| two.copy_from_slice(&value.to_le_bytes()));
}

fn rounding(what: String) -> Error {
    Error::Rounding { what }
}

fn unknown_word(rank: usize) -> Error {
    Error::OutOfStep {
        rank,
        at: "opening sums in the network".into(),
        what: "it says something unknown".into(),
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::environment::Launcher;
    use crate::listening::free_port;

    #[test]
    fn a_rank_that_got_no_result_is_understood_wherever_the_others_are_by_then() {
        type Next = fn(&mut Xdp) -> Result<(), Error>;
        let further: [Next; 3] = [
            |ranks| ranks.all_reduce(&mut [1.0; 7]),
            |ranks| ranks.all_reduce(&mut [1.0; 2 * SHORTEST]),
            |ranks| ranks.all_gather(b"its losses").map(drop),
        ];
        for next in further {
            let port = free_port().unwrap();
            let joined = |rank: usize| {
                let (host, launcher) = ("127.0.0.1".to_owned(), Launcher::Torchrun);
                let placement = Placement { rank, world_size: 2, local_rank: rank, host, port, launcher };
                let choice = Choice::default();
                join(&placement, None, "build", Limits::default(), Arc::new(|| false), choice).unwrap()
            };
            let error = thread::scope(|scope| {
                scope.spawn(|| joined(1).control.all_gather(NO_RESULT).unwrap());
                next(&mut joined(0)).unwrap_err()
            });
            assert!(matches!(&error, Error::Switch { what } if what.ends_with("to rank 1")), "{error}");
            assert!(error.is_of_a_rank(), "what was trained is kept");
        }
    }
}
