//! One rank of a measurement, in a process of its own: what it is asked, what it does, and what it answers.

use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use sparktune_cluster::lab::{INTERFACE, Lab};
use sparktune_cluster::nccl::preflight::Asked;
use sparktune_cluster::nccl::{self, Nccl};
use sparktune_cluster::tlb::Misses;
use sparktune_cluster::xdp::kernel::Kernel;
use sparktune_cluster::xdp::{Choice, Path, Report, Xdp};
use sparktune_cluster::{Collective, Error, JobToken, Launcher, Limits, Placement, tcp, xdp};

use crate::cpu::process_cpu_seconds;
use crate::error::BenchError;

/// Small sums, whose time is a latency.
const SMALL: usize = 4096;
const SMALL_ROUNDS: usize = 60;

/// What adds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Engine {
    /// The exact engine.
    Tcp,
    /// NCCL, on the first GPU.
    Nccl,
    /// Sums in the network, by a thread.
    User,
    /// Sums in the network, by the kernel.
    Kernel,
    /// The same, and results come by AF_XDP.
    AfXdp,
}

impl Engine {
    fn is_in_kernel(self) -> bool {
        matches!(self, Self::Kernel | Self::AfXdp)
    }
}

/// What a rank does.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Job {
    pub(crate) engine: Engine,
    pub(crate) rank: usize,
    pub(crate) world_size: usize,
    /// Where rank 0 is.
    pub(crate) host: String,
    pub(crate) port: u16,
    /// The secret of the ranks.
    pub(crate) token: String,
    /// The numbers of a vector, and how often they are summed.
    pub(crate) numbers: usize,
    pub(crate) rounds: usize,
    /// How late the last rank is in some more sums, in milliseconds.
    pub(crate) late_ms: u64,
}

/// What it took.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Answer {
    /// Median time of one sum, and the processor time of all.
    pub(crate) seconds: f64,
    pub(crate) cpu_seconds: f64,
    /// How often a thread of this process slept and was woken, over all sums.
    pub(crate) wakes: u64,
    /// dTLB misses of reads of all threads in user space, over all sums, or why they were not counted.
    pub(crate) tlb_misses: Result<u64, String>,
    /// Bytes that were sent and received for one sum.
    pub(crate) bytes: u64,
    /// Packets of sums in the network that this rank sent and results that it took, and those sent again.
    pub(crate) packets: u64,
    pub(crate) resent: u64,
    /// How often a rank asked its own kernel for a result.
    pub(crate) asked: u64,
    /// Median time of a small sum.
    pub(crate) small_seconds: f64,
    /// Median time of a sum for which one rank is late.
    pub(crate) late_seconds: f64,
}

/// Does the job of a rank, and writes a line of JSON: the answer, or which engine makes the sums instead, in
/// words.
///
/// # Errors
/// The job is not one, the ranks do not get on, or nobody reads the answer.
pub fn serve(job: &str, mut out: impl Write) -> Result<(), BenchError> {
    let job: Job =
        serde_json::from_str(job).map_err(|error| failed(format!("this is no job of a rank: {error}")))?;
    let answer = measured(&job).map_err(|error| failed(error.to_string()))?;
    let line = serde_json::to_string(&answer).expect("plain fields serialise");
    writeln!(out, "{line}").map_err(BenchError::Output)
}

pub(super) fn failed(what: String) -> BenchError {
    BenchError::Measuring { what, last_lines: String::new(), exit_code: 70 }
}

/// The engines, which are asked for more than a `Collective` says.
enum Ranks {
    Tcp(Box<tcp::Tcp>),
    Nccl(Box<Nccl>),
    Network(Box<Xdp>),
}

impl Ranks {
    fn collective(&mut self) -> &mut dyn Collective {
        match self {
            Self::Tcp(tcp) => &mut **tcp,
            Self::Nccl(nccl) => &mut **nccl,
            Self::Network(network) => &mut **network,
        }
    }

    fn report(&self) -> Report {
        match self {
            Self::Tcp(_) | Self::Nccl(_) => Report::default(),
            Self::Network(network) => network.report(),
        }
    }

    /// Returns which engine makes the sums, in words, if it is not the one that was asked for.
    fn instead(&self, engine: Engine, rank: usize) -> Option<String> {
        match self {
            Self::Tcp(_) => None,
            Self::Nccl(nccl) => match nccl.path() {
                nccl::Path::Nccl(_) => None,
                nccl::Path::Tcp(why) => Some(why.clone()),
            },
            Self::Network(network) => match (network.path(), engine) {
                (Path::User(_), Engine::User) | (Path::Kernel, Engine::Kernel) => None,
                (Path::Kernel, Engine::AfXdp) if rank == 0 || network.report().delivered > 0 => None,
                _ => network.engine(),
            },
        }
    }

    /// Sums a vector, and returns the seconds.
    fn sum(&mut self, vector: &mut [f32]) -> Result<f64, Error> {
        let began = Instant::now();
        self.collective().all_reduce(vector)?;
        Ok(began.elapsed().as_secs_f64())
    }
}

/// Sums with the engine of the job. The inner error says which one makes the sums instead.
fn measured(job: &Job) -> Result<Result<Answer, String>, Error> {
    let Job { engine, rank, world_size, numbers, rounds, .. } = *job;
    let placement = Placement {
        rank,
        world_size,
        local_rank: 0,
        host: job.host.clone(),
        port: job.port,
        launcher: Launcher::Torchrun,
    };
    let token = JobToken::parse(&job.token)?;
    // So that a rank that has ended is noticed sooner than in training.
    let limits = Limits { meeting: Duration::from_secs(120), ..Limits::default() };
    // The end of a virtual cable needs a program to receive what the program at the other end sends. AF_XDP
    // has one.
    let _passing = (engine == Engine::Kernel && rank > 0).then(|| Kernel::passing(INTERFACE).ok());
    // Counting begins first, because only threads that start from now on are counted.
    let mut misses = Misses::count();
    let tcp = tcp::join(&placement, Some(&token), "bench", limits, Arc::new(|| false))?;
    let mut ranks = match engine {
        Engine::Tcp => Ranks::Tcp(Box::new(tcp)),
        Engine::Nccl => {
            let (facts, gpu) = sparktune_train::find_gpu();
            Ranks::Nccl(Box::new(nccl::over(tcp, Asked::Auto, facts, gpu)?))
        }
        Engine::User | Engine::Kernel | Engine::AfXdp => {
            let is_switch = engine.is_in_kernel() && rank == 0;
            let interfaces = if is_switch { (1..world_size).map(Lab::port).collect() } else { Vec::new() };
            let af_xdp = (engine == Engine::AfXdp && rank > 0).then(|| INTERFACE.to_owned());
            let choice = Choice { interfaces, af_xdp, ..Choice::default() };
            Ranks::Network(Box::new(xdp::over(tcp, &placement, Some(&token), choice)?))
        }
    };
    if let Some(instead) = ranks.instead(engine, rank) {
        ranks.collective().leave(Some("this rank cannot use the engine that was asked for"));
        return Ok(Err(instead));
    }
    let mut vector: Vec<f32> = (0..numbers).map(|at| ((at * 7 + rank) % 1000) as f32 * 1e-3 - 0.5).collect();
    ranks.sum(&mut vector)?;
    let (cpu, wakes, traffic) = (process_cpu_seconds(), wakes(), ranks.collective().traffic());
    let before = ranks.report();
    let missed_before = tlb_misses(&mut misses);
    let seconds = median_of(rounds, || ranks.sum(&mut vector))?;
    let cpu_seconds = process_cpu_seconds().zip(cpu).map_or(f64::NAN, |(after, before)| after - before);
    let tlb_misses = missed_before.and_then(|_| tlb_misses(&mut misses));
    let wakes = self::wakes().saturating_sub(wakes);
    let bytes = ranks.collective().traffic().since(traffic) / rounds.max(1) as u64;
    let after = ranks.report();
    let packets = after.sent + after.results - before.sent - before.results;
    let (resent, asked) = (after.resent - before.resent, after.asked - before.asked);
    let small = &mut vec![1.0; SMALL];
    let small_seconds = median_of(SMALL_ROUNDS, || ranks.sum(small))?;
    let late = Duration::from_millis(job.late_ms);
    let late_seconds = median_of(5, || {
        if rank + 1 == world_size {
            std::thread::sleep(late);
        }
        ranks.sum(small)
    })?;
    ranks.collective().leave(None);
    Ok(Ok(Answer {
        seconds,
        cpu_seconds,
        wakes,
        tlb_misses,
        bytes,
        packets,
        resent,
        asked,
        small_seconds,
        late_seconds,
    }))
}

fn median_of(rounds: usize, mut one: impl FnMut() -> Result<f64, Error>) -> Result<f64, Error> {
    let times = (0..rounds.max(1)).map(|_| one()).collect::<Result<Vec<f64>, Error>>()?;
    Ok(crate::median::median(times))
}

/// Returns the dTLB misses since this was called last, or why they are not counted.
fn tlb_misses(counter: &mut Result<Misses, String>) -> Result<u64, String> {
    counter.as_mut().map_err(|why| why.clone()).and_then(Misses::since_last)
}

/// Returns how often threads of this process gave up a processor to wait.
fn wakes() -> u64 {
    let Ok(threads) = std::fs::read_dir("/proc/self/task") else { return 0 };
    let of_thread = |path: std::path::PathBuf| {
        let status = std::fs::read_to_string(path.join("status")).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
        line.trim().parse::<u64>().ok()
    };
    threads.flatten().filter_map(|thread| of_thread(thread.path())).sum()
}
