//! Speed of loading: bytes in plus bytes out, against a memory copy that moves as many.
//!
//! In is what is read of the file's tokens and masks. Out is what is written: the same bytes when tokens
//! and masks are read into memory of the caller, and ids, positions, borders and masks when rows are
//! built. A copy reads a byte and writes a byte, so the one that is compared copies half as many. Each
//! pass alternates with a copy, and medians are compared.
//!
//! Warm passes have one thread and are measured in its processor time, because other programs on the
//! machine take turns with it; each does its work several times, since the kernel counts that time in
//! ticks. Cold passes read a file that was dropped from the page cache, in wall time; their limit is the
//! same file read as bytes.
//!
//! With a CUDA device, the way on to it is measured too (`to_device.rs`).
//!
//! The peer is QubGPU's way in Python: packets of version 1 are unpacked, checked and padded one by one.

use std::fs::File;
use std::hint::black_box;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use serde::Deserialize;
use sparktune_base::choices::PackStrategy;
use sparktune_base::units::{bytes, count, counted};
use sparktune_data::packing::{Pack, Packing, Packs};
use sparktune_data::token_file::v1::{Item, Reader};
use sparktune_data::token_file::{Exchange, OnDamage, TokenFile, unpack};
use sparktune_paper::date;
use sparktune_telemetry::Machine;

use crate::context::Context;
use crate::cpu::thread_cpu_seconds;
use crate::error::BenchError;
use crate::median::median;
use crate::pipelines::load_average;
use crate::row::{Row, Target};
use crate::to_device;
use crate::tokens::{PACK_LENGTH, touch, written};
use crate::worker::shortened;

/// Tokens of the peer's rows, as QubGPU's users choose them.
const PEER_ROW: usize = 512;
/// Bytes of the file that the peer loads: it is slow, and as fast with more of them.
const PEER_BYTES: u64 = 4 << 20;
/// What QubGPU does with a file, written anew. It prints its seconds and bytes.
const PEER: &str = include_str!("../../tests/peers/qubgpu_loading.py");

pub(crate) fn measure(context: &Context) -> Result<Vec<Row>, BenchError> {
    let path = written(context)?;
    let v1 = path.with_extension("v1.qubgpu");
    unpack(&path, &v1, Exchange::V1, OnDamage::Stop)?;
    let file = TokenFile::open(&path)?;
    let packing = Packing::new(PackStrategy::Bfd, PACK_LENGTH, 0).expect("a valid pack length");
    let packs = packing.epoch(file.lengths(), 0);
    let moved = Moved::of(&file, &packs);
    let mut copy = Copy::new(moved.rows.max(moved.read));
    let mut times = Times::default();
    let mut buffers = (Vec::new(), Vec::new());
    take(&file, &mut buffers)?;
    for _ in 0..context.size.loading_rounds {
        times.copied_as_read.push(cpu_seconds(|| copy.run(moved.read))?);
        times.read.push(cpu_seconds(|| take(&file, &mut buffers))?);
        times.in_place.push(cpu_seconds(|| touch(&file))?);
        times.copied_as_rows.push(cpu_seconds(|| copy.run(moved.rows))?);
        times.rows.push(cpu_seconds(|| build(&file, &packs))?);
        times.first_read.push(cpu_seconds(|| touch(&TokenFile::open(&path)?))?);
        times.v1.push(cpu_seconds(|| read_v1(&v1))?);
        if let Some(python) = &context.options.peers {
            times.peer.push(peer(python, &v1)?);
        }
    }
    let to_device = to_device::rows(context, &file);
    drop((copy, buffers, file));
    let mut rows = vec![measured_on()];
    rows.extend(times.rows_of_table(&moved, size(&v1)?, context));
    rows.extend(to_device);
    rows.extend(cold(context, &path, &v1)?);
    for file in [&path, &v1] {
        std::fs::remove_file(file).map_err(BenchError::io("remove", file))?;
    }
    Ok(rows)
}

/// The row that says where and when it is measured; the white paper shows it.
fn measured_on() -> Row {
    let machine = Machine::gather();
    let gpu =
        machine.gpus.first().map_or("no GPU", |gpu| gpu.name.as_deref().unwrap_or("a GPU without a name"));
    let load =
        load_average().map_or(String::new(), |load| format!(", {load:.1} running processes on the mean"));
    let note = format!(
        "{}, {} of an {} processor, {} of memory, {gpu}{load}",
        date(sparktune_runlog::now_us()),
        counted(machine.cores_usable as u64, "core"),
        machine.arch,
        bytes(machine.mem_total_bytes)
    );
    Row::new("measured on", machine.cores_usable as f64, "cores", note)
}

/// Bytes in plus bytes out.
struct Moved {
    /// The bytes of all tokens and masks, which are only read.
    kept: usize,
    read: usize,
    rows: usize,
}

impl Moved {
    fn of(file: &TokenFile, packs: &Packs) -> Self {
        let kept: usize = file.lengths().iter().map(|n| 4 * *n as usize + n.div_ceil(8) as usize).sum();
        // Ids, positions and masks of each token, and one border more than there are pieces.
        let out: usize = packs
            .iter()
            .map(|row| 9 * row.iter().map(|piece| piece.len as usize).sum::<usize>() + 4 * (row.len() + 1))
            .sum();
        Self { kept, read: 2 * kept, rows: kept + out }
    }
}

/// Two buffers.
struct Copy {
    from: Vec<u8>,
    to: Vec<u8>,
}

impl Copy {
    /// Makes buffers for a copy that moves up to so many bytes.
    fn new(moved: usize) -> Self {
        Self { from: vec![1; moved / 2], to: vec![0; moved / 2] }
    }

    /// Copies, and moves so many bytes by that.
    fn run(&mut self, moved: usize) -> Result<(), BenchError> {
        let (from, to) = (&self.from[..moved / 2], &mut self.to[..moved / 2]);
        to.copy_from_slice(black_box(from));
        black_box(to);
        Ok(())
    }
}

/// The seconds of all passes.
#[derive(Default)]
struct Times {
    copied_as_read: Vec<f64>,
    read: Vec<f64>,
    in_place: Vec<f64>,
    copied_as_rows: Vec<f64>,
    rows: Vec<f64>,
    first_read: Vec<f64>,
    v1: Vec<f64>,
    /// Bytes a second.
    peer: Vec<f64>,
}

impl Times {
    fn rows_of_table(&self, moved: &Moved, v1_bytes: u64, context: &Context) -> Vec<Row> {
        let of = |times: &[f64]| median(times.iter().copied());
        let rate = |bytes: usize, times: &[f64]| bytes as f64 / 1e6 / of(times);
        let rounds = format!("median of {} rounds in turn, warm, one core", context.size.loading_rounds);
        let read_ratio = of(&self.copied_as_read) / of(&self.read);
        let rows_ratio = of(&self.copied_as_rows) / of(&self.rows);
        let v1_rate = v1_bytes as f64 / 1e6 / of(&self.v1);
        let mut rows = vec![
            Row::new("memory copy", rate(moved.read, &self.copied_as_read), "MB/s", rounds.clone()),
            Row::new(
                "reading tokens and masks",
                rate(moved.read, &self.read),
                "MB/s",
                "into a buffer of the size of a row; one copy",
            ),
            Row::new("  ratio to the memory copy", read_ratio, "×", "").with_target(Target::AtLeast(0.8)),
            Row::new(
                "  in place",
                rate(moved.kept, &self.in_place),
                "MB/s",
                "ids are summed, bits counted; no copy",
            ),
            Row::new(
                "  the first time",
                rate(moved.kept, &self.first_read),
                "MB/s",
                "in place; opened, faulted in, and every checksum compared",
            ),
            Row::new(
                "building rows with masks and borders",
                rate(moved.rows, &self.rows),
                "MB/s",
                format!("rows of {} tokens; one copy", count(PACK_LENGTH.into())),
            ),
            Row::new("  ratio to the memory copy", rows_ratio, "×", "").with_target(Target::AtLeast(0.5)),
            Row::new(
                "version 1, read and checked",
                v1_rate,
                "MB/s",
                "one thread; CRC-16, big-endian ids converted",
            )
            .with_target(Target::AtLeast(1000.0)),
        ];
        if self.peer.is_empty() {
            return rows;
        }
        let peer = of(&self.peer) / 1e6;
        let note = format!("Python, one thread; unpacked, checked, padded to {PEER_ROW} tokens");
        rows.push(Row::new("  QubGPU's way", peer, "MB/s", note));
        rows.push(Row::new("  ratio to QubGPU's way", v1_rate / peer, "×", ""));
        rows
    }
}

fn seconds(work: impl FnOnce() -> Result<(), BenchError>) -> Result<f64, BenchError> {
    let began = Instant::now();
    work()?;
    Ok(began.elapsed().as_secs_f64())
}

/// Returns the processor time that this thread needs for a piece of work, which is done several times.
fn cpu_seconds(mut work: impl FnMut() -> Result<(), BenchError>) -> Result<f64, BenchError> {
    const TIMES: u32 = 4;
    let (began, wall) = (thread_cpu_seconds(), Instant::now());
    for _ in 0..TIMES {
        work()?;
    }
    // Where the kernel does not tell, there is only the wall clock.
    let needed =
        thread_cpu_seconds().zip(began).map(|(now, began)| now - began).filter(|needed| *needed > 0.0);
    Ok(needed.unwrap_or_else(|| wall.elapsed().as_secs_f64()) / f64::from(TIMES))
}

/// Reads every token and mask into these buffers, which hold about a row, as those of a loader do.
fn take(file: &TokenFile, (ids, bits): &mut (Vec<u32>, Vec<u8>)) -> Result<(), BenchError> {
    for i in 0..file.len() {
        let example = file.example(i)?;
        if ids.len() + example.tokens.len() > PACK_LENGTH as usize {
            black_box((&*ids, &*bits));
            ids.clear();
            bits.clear();
        }
        ids.extend_from_slice(example.tokens);
        bits.extend_from_slice(example.mask.bytes());
    }
    black_box((ids, bits));
    Ok(())
}

/// Builds all rows, each in the memory of the one before, as the trainer does.
fn build(file: &TokenFile, packs: &Packs) -> Result<(), BenchError> {
    let mut row = Pack::default();
    for pieces in packs.iter() {
        row.refill(file, pieces)?;
        black_box(&row);
    }
    Ok(())
}

/// Reads every packet of version 1 as token ids.
fn read_v1(path: &Path) -> Result<(), BenchError> {
    let failed = BenchError::io("read", path);
    let read = || -> std::io::Result<u64> {
        let (mut reader, mut tokens) = (Reader::new(File::open(path)?), 0);
        while let Some(item) = reader.next_item()? {
            if let Item::Packet(packet) = item {
                tokens += packet.token_ids().map_or(0, |ids| black_box(ids).len() as u64);
            }
        }
        Ok(tokens)
    };
    let tokens = read().map_err(failed)?;
    assert!(tokens > 0, "the file has packets");
    Ok(())
}

fn size(path: &Path) -> Result<u64, BenchError> {
    Ok(std::fs::metadata(path).map_err(BenchError::io("read", path))?.len())
}

/// Rows of files that are not in the page cache.
fn cold(context: &Context, path: &Path, v1: &Path) -> Result<Vec<Row>, BenchError> {
    let (mut plain, mut read, mut of_v1) = (Vec::new(), Vec::new(), Vec::new());
    let rounds = context.size.loading_rounds.div_ceil(3);
    for _ in 0..rounds {
        drop_from_cache(path)?;
        plain.push(seconds(|| read_bytes(path))?);
        drop_from_cache(path)?;
        read.push(seconds(|| touch(&TokenFile::open(path)?))?);
        drop_from_cache(v1)?;
        of_v1.push(seconds(|| read_v1(v1))?);
    }
    let rate = |bytes: u64, times: &[f64]| bytes as f64 / 1e6 / median(times.iter().copied());
    let (whole, whole_v1) = (size(path)?, size(v1)?);
    let note = format!("median of {rounds}, in turn; {} on the disk", bytes(whole));
    Ok(vec![
        Row::new("cold: the file as bytes", rate(whole, &plain), "MB/s", note),
        Row::new(
            "cold: reading tokens and masks",
            rate(whole, &read),
            "MB/s",
            "opened, and every checksum compared",
        ),
        Row::new("cold: version 1, read and checked", rate(whole_v1, &of_v1), "MB/s", ""),
    ])
}

/// Writes what is not yet on the disk, and drops the pages of a file. A file system in memory keeps them.
fn drop_from_cache(path: &Path) -> Result<(), BenchError> {
    let dropped = File::open(path).and_then(|file| {
        file.sync_all()?;
        Ok(rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?)
    });
    dropped.map_err(BenchError::io("drop from the page cache", path))
}

fn read_bytes(path: &Path) -> Result<(), BenchError> {
    let mut buffer = vec![0; 1 << 20];
    let mut read = || -> std::io::Result<()> {
        let mut file = File::open(path)?;
        while file.read(&mut buffer)? > 0 {
            black_box(&buffer);
        }
        Ok(())
    };
    read().map_err(BenchError::io("read", path))
}

/// Runs the peer on the first bytes of a file of version 1 and returns its bytes per second of processor
/// time.
fn peer(python: &Path, v1: &Path) -> Result<f64, BenchError> {
    #[derive(Deserialize)]
    struct Printed {
        cpu_seconds: f64,
        bytes: u64,
    }
    let done = Command::new(python)
        .args(["-c", PEER])
        .arg(v1)
        .args([PEER_ROW.to_string(), PEER_BYTES.to_string()])
        .stdin(Stdio::null())
        .output()
        .map_err(BenchError::io("start", python))?;
    match serde_json::from_slice(&done.stdout) {
        Ok(Printed { cpu_seconds, bytes }) if done.status.success() => Ok(bytes as f64 / cpu_seconds),
        _ => Err(BenchError::Peer {
            peer: python.display().to_string(),
            what: format!(
                "did not load packets: {}, {}",
                done.status,
                shortened(&String::from_utf8_lossy(&done.stderr))
            ),
            advice: "Name a Python 3 with --peers, or omit --peers".into(),
        }),
    }
}
