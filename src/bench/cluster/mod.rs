//! Sums over ranks by each engine, side by side: exactly over TCP and by NCCL, and as integers in the
//! network, by a thread and by the kernel.
//!
//! All engines run in turn between the same network namespaces, so that their packets cross an interface;
//! where none can be made, on loopback and without the kernel. Each rank is a process. Of several passes, the
//! one with the median processor time counts. The other end of each cable is a processor of this machine: the
//! rows say what a sum costs and whether one engine costs more than another here. They do not say how fast a
//! network is. With NCCL, all ranks share the first GPU, and the numbers are copied to it and back.
//!
//! Then rows hold the claims of ainftp, one by one, against TCP in the same run. What cannot be measured on a
//! machine is UNKNOWN there. The last rows are the model of a step with more ranks and faster links.

mod arena;
mod measured;
mod rank;
mod step_model;
mod verdicts;

use std::net::Ipv4Addr;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use sparktune_cluster::free_port;
use sparktune_cluster::lab::{BRIDGE, INTERFACE, Lab};
use sparktune_cluster::xdp::frame::{Ends, FRAME, FRAME_HEAD, Route, write_head};
use sparktune_cluster::xdp::kernel::Kernel;
use sparktune_cluster::xdp::slots::Job as SumJob;
use sparktune_cluster::xdp::wire::{Header, Key, PACKET, sign};

use crate::cluster::measured::{LATE_MS, MOST_RANKS, Measured, PerPacket, RANKS};
pub use crate::cluster::rank::serve;
use crate::cluster::rank::{Answer, Engine, Job};
use crate::context::Context;
use crate::error::BenchError;
use crate::median::median;
use crate::row::Row;

/// The secret of the ranks, who are alone.
const TOKEN: &str = "the ranks of a measurement on one machine";

pub(crate) fn measure(context: &Context) -> Result<Vec<Row>, BenchError> {
    let (numbers, rounds, passes) = if context.options.quick { (300_000, 3, 1) } else { (6_000_000, 3, 3) };
    let lab = Lab::new(MOST_RANKS);
    if let Err(error) = &lab {
        (context.note)(&format!(
            "no network namespaces can be made here, so the ranks meet on loopback: {error}"
        ));
    }
    let lab = lab.ok();
    let engines = [Engine::Tcp, Engine::Nccl, Engine::User, Engine::Kernel, Engine::AfXdp];
    let mut results: [Result<Vec<Measured>, String>; 5] = [const { Ok(Vec::new()) }; 5];
    if lab.is_none() {
        results[3..].fill(Err("without namespaces, packets do not pass an interface".into()));
    }
    for _ in 0..passes {
        for (engine, result) in engines.into_iter().zip(&mut results) {
            let Ok(measured) = result else { continue };
            match run(context, lab.as_ref(), engine, RANKS, numbers, rounds)? {
                Ok(one) => measured.push(one),
                Err(why) => *result = Err(why),
            }
        }
    }
    let mut rows = vec![copy(numbers)];
    let mut all = Vec::new();
    for (engine, result) in engines.into_iter().zip(results) {
        match result {
            Ok(mut measured) => {
                measured.sort_by(|one, other| one.cpu.total_cmp(&other.cpu));
                let middle = measured.swap_remove(measured.len() / 2);
                rows.extend(verdicts::rows(&middle, numbers));
                all.push(middle);
            }
            Err(why) => rows.push(Row::skipped(verdicts::name(engine), "MB/s", &why)),
        }
    }
    let of_tcp = all.iter().find(|measured| measured.engine == Engine::Tcp);
    rows.extend(arena::rows(numbers, of_tcp.map(|measured| measured.cpu)));
    rows.extend(verdicts::of_claims(&all, per_packet().as_ref()));
    if let Some(tcp) = all.iter().find(|measured| measured.engine == Engine::Tcp) {
        rows.extend(modelled(context, lab.as_ref(), tcp, numbers, rounds)?);
    }
    Ok(rows)
}

/// The model of a step, and sums of more ranks beside what it says of them.
fn modelled(
    context: &Context,
    lab: Option<&Lab>,
    tcp: &Measured,
    numbers: usize,
    rounds: usize,
) -> Result<Vec<Row>, BenchError> {
    let (mut rows, mut more) = (Vec::new(), Vec::new());
    for ranks in RANKS + 1..=MOST_RANKS {
        match run(context, lab, Engine::Tcp, ranks, numbers, rounds)? {
            Ok(measured) => more.push((ranks, measured)),
            Err(why) => rows.push(Row::skipped(format!("sums of {ranks} ranks"), "", &why)),
        }
    }
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    rows.extend(step_model::checked(tcp, &more, processors));
    rows.extend(step_model::estimates(tcp));
    Ok(rows)
}

/// Has all ranks sum by an engine. The inner error says why they did not.
fn run(
    context: &Context,
    lab: Option<&Lab>,
    engine: Engine,
    world_size: usize,
    numbers: usize,
    rounds: usize,
) -> Result<Result<Measured, String>, BenchError> {
    let program = &context.options.program;
    let io = |doing: &'static str| BenchError::io(doing, program);
    let port = free_port().map_err(|error| rank::failed(error.to_string()))?;
    let host = if lab.is_some() { Lab::address(0).to_string() } else { "127.0.0.1".to_owned() };
    let before = interrupts();
    let mut ranks: Vec<Child> = Vec::new();
    for rank in 0..world_size {
        let (host, token) = (host.clone(), TOKEN.to_owned());
        let job = Job { engine, rank, world_size, host, port, token, numbers, rounds, late_ms: LATE_MS };
        let job = serde_json::to_string(&job).expect("plain fields serialise");
        let mut command = match lab {
            Some(lab) => lab.command(rank, program),
            None => Command::new(program),
        };
        command.args(["bench", "cluster-rank", "--job", &job]);
        if engine == Engine::Nccl {
            // NCCL refuses two ranks on one GPU of one machine, so each has its own host id. They meet on
            // the interfaces that the other engines use.
            command.env("NCCL_HOSTID", format!("sparktune {rank}")).env("NCCL_NET", "Socket");
            let interfaces = if lab.is_some() { format!("{BRIDGE},{INTERFACE}") } else { "lo".to_owned() };
            command.env("NCCL_SOCKET_IFNAME", interfaces);
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        ranks.push(command.spawn().map_err(io("start"))?);
    }
    let (mut answers, mut instead, mut failed) = (Vec::new(), None, None);
    for (rank, child) in ranks.into_iter().enumerate() {
        let output = child.wait_with_output().map_err(io("wait for"))?;
        match serde_json::from_slice::<Result<Answer, String>>(&output.stdout) {
            Ok(Ok(answer)) => answers.push(answer),
            Ok(Err(way)) => {
                instead.get_or_insert(way);
            }
            Err(_) => {
                let said = String::from_utf8_lossy(&output.stderr);
                let last = said.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("no reason");
                failed.get_or_insert(format!("rank {rank} failed: {}", crate::worker::shortened(last)));
            }
        }
    }
    // When a rank that cannot use this engine leaves, the others fail: its reason is the one to show.
    if let Some(why) = instead.or(failed) {
        return Ok(Err(why));
    }
    let interrupts = interrupts().zip(before).map(|(after, before)| after - before);
    let of = |value: fn(&Answer) -> f64| answers.iter().map(value).fold(0.0, f64::max);
    let sum = |value: fn(&Answer) -> u64| answers.iter().map(value).sum::<u64>();
    let tlb_misses = answers.iter().map(|answer| answer.tlb_misses.clone()).sum::<Result<u64, String>>();
    let summed = (numbers * rounds) as f64;
    Ok(Ok(Measured {
        engine,
        seconds: of(|answer| answer.seconds),
        cpu: answers.iter().map(|answer| answer.cpu_seconds).sum::<f64>() / summed * 1e9,
        bytes_per_number: sum(|answer| answer.bytes) as f64 / (numbers * world_size) as f64,
        wakes: sum(|answer| answer.wakes),
        tlb_misses: tlb_misses.map(|misses| misses as f64 / summed * 1e3),
        packets: sum(|answer| answer.packets),
        resent: sum(|answer| answer.resent),
        asked: sum(|answer| answer.asked),
        interrupts,
        small_seconds: of(|answer| answer.small_seconds),
        // The late rank itself does not wait.
        late_seconds: answers[0].late_seconds,
    }))
}

/// Copying the same numbers in memory.
fn copy(numbers: usize) -> Row {
    let from = vec![1.0_f32; numbers];
    let mut to = vec![0.0_f32; numbers];
    let times = (0..5).map(|_| {
        let began = Instant::now();
        to.copy_from_slice(std::hint::black_box(&from));
        std::hint::black_box(&to);
        began.elapsed().as_secs_f64()
    });
    let seconds = median(times);
    let note = format!("{:.2} CPU seconds per 10⁹ numbers", seconds / numbers as f64 * 1e9);
    Row::new("copying the numbers in memory", numbers as f64 * 4.0 / seconds / 1e6, "MB/s", note)
}

/// Soft interrupts for received packets, of all processors, since the machine was started.
fn interrupts() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/softirqs").ok()?;
    let line = text.lines().find_map(|line| line.trim_start().strip_prefix("NET_RX:"))?;
    line.split_whitespace().map(|count| count.parse::<u64>().ok()).sum()
}

fn per_packet() -> Result<PerPacket, String> {
    const TIMES: u32 = 20_000;
    let route = Route { port: 13_371, reply_port: 13_372, group: Ipv4Addr::new(239, 195, 0, 1) };
    let frame = |workers: u8, key: Key, chunk: u64| {
        let mut packet = [0; PACKET];
        Header::contribution(1, 0, workers, chunk).expect("a small chunk").write(&mut packet);
        sign(key, &mut packet);
        let mut frame = [0; FRAME];
        let ends =
            Ends { from: (Ipv4Addr::new(10, 0, 0, 2), 9), to: (Ipv4Addr::new(10, 0, 0, 1), route.port) };
        write_head(&mut frame, ends);
        frame[FRAME_HEAD..].copy_from_slice(&packet);
        frame.to_vec()
    };
    let key = Key([1, 2]);
    let time = |workers: u8, frame: &[u8]| -> Result<u64, String> {
        let job = SumJob { number: 1, workers, muted: 0, key };
        let kernel = Kernel::load(job, route).map_err(|refusal| refusal.to_string())?;
        // The program changes a packet into its result, which would be something else the second time.
        kernel.run(&mut frame.to_vec()).map_err(|refusal| refusal.to_string())?;
        let times = (0..5).map(|_| kernel.run_often(&mut frame.to_vec(), TIMES).map(|(_, time)| time));
        let mut times = times.collect::<Result<Vec<u64>, _>>().map_err(|refusal| refusal.to_string())?;
        times.sort_unstable();
        Ok(times[times.len() / 2])
    };
    let once = |workers: u8, frame: &[u8]| -> Result<u64, String> {
        let job = SumJob { number: 1, workers, muted: 0, key };
        let kernel = Kernel::load(job, route).map_err(|refusal| refusal.to_string())?;
        let run = |frame: &[u8]| kernel.run_often(&mut frame.to_vec(), 1).map(|(_, time)| time);
        let times = (0..2000).map(|_| run(frame)).collect::<Result<Vec<u64>, _>>();
        let mut times = times.map_err(|refusal| refusal.to_string())?;
        times.sort_unstable();
        Ok(times[times.len() / 2])
    };
    Ok(PerPacket {
        unfit: time(2, &frame(3, key, 0))?,
        unsigned: time(2, &frame(2, Key([1, 3]), 0))?,
        duplicate: time(2, &frame(2, key, 0))?,
        resent: once(1, &frame(1, key, 0))?,
    })
}
