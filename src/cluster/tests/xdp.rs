//! Sums in the network: in user space on loopback, and in the kernel between network namespaces, with packets
//! that are lost on purpose. Each rank in a namespace is a process of its own, which is this test again.
//!
//! `SPARKTUNE_XDP_RANKS=4 SPARKTUNE_XDP_NUMBERS=4000000 cargo test … between_namespaces -- --nocapture` has
//! more ranks and numbers.

use std::process::Stdio;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use sparktune_cluster::xdp::lab::{INTERFACE, Lab};
use sparktune_cluster::xdp::slots::Verdict;
use sparktune_cluster::xdp::wire::VALUES;
use sparktune_cluster::xdp::{Choice, Loss, Path, Xdp, join, quantise};
use sparktune_cluster::{Collective, JobToken, Limits};

use crate::{TOKEN, bits, free_port, numbers, placement};

/// The sums that follow from the ranks' numbers alone, without any packets.
fn expected(world_size: usize, length: usize, rotated: usize) -> Vec<f32> {
    let mut parts: Vec<Vec<f32>> = (0..world_size).map(|rank| numbers(rank, length)).collect();
    parts.iter_mut().for_each(|part| part.rotate_left(rotated));
    let mut shared = quantise::magnitudes(&parts[0]);
    parts.iter().for_each(|part| quantise::agree(&mut shared, quantise::magnitudes(part)));
    let mut sums = vec![0_i16; length];
    for part in &parts {
        for ((block, sums), magnitude) in part.chunks(VALUES).zip(sums.chunks_mut(VALUES)).zip(&shared) {
            let mut integers = [[0; 2]; VALUES];
            quantise::encode(block, *magnitude, world_size, None, &mut integers);
            sums.iter_mut().zip(integers).for_each(|(sum, integer)| *sum += i16::from_le_bytes(integer));
        }
    }
    let mut found = vec![0.0; length];
    for ((numbers, sums), magnitude) in found.chunks_mut(VALUES).zip(sums.chunks(VALUES)).zip(&shared) {
        quantise::decode(sums.iter().copied(), *magnitude, world_size, numbers);
    }
    found
}

fn opened(rank: usize, world_size: usize, host: &str, port: u16, choice: Choice) -> Xdp {
    let placement = placement(rank, world_size, host, port);
    let token = JobToken::parse(TOKEN).unwrap();
    join(&placement, Some(&token), "build", Limits::default(), Arc::new(|| false), choice).unwrap()
}

#[test]
fn sums_in_user_space_are_those_of_the_integers_whatever_is_lost() {
    let (world_size, lengths) = (3, [100, 4096, 500_003]);
    for loss in [0, 50_000] {
        let port = free_port();
        let work = |rank: usize| {
            let loss = (loss > 0).then(|| Loss::new(loss, rank as u64));
            let mut engine =
                opened(rank, world_size, "127.0.0.1", port, Choice { loss, ..Choice::default() });
            assert_eq!(*engine.path(), Path::User(None));
            let sums = lengths.map(|length| {
                let mut values = numbers(rank, length);
                engine.all_reduce(&mut values).unwrap();
                bits(&values)
            });
            engine.leave(None);
            (sums, engine.report(), engine.counts())
        };
        let found: Vec<_> = thread::scope(|scope| {
            let work = &work;
            let ranks: Vec<_> = (0..world_size).map(|rank| scope.spawn(move || work(rank))).collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        });
        for (sums, report, _) in &found {
            for (sums, length) in sums[1..].iter().zip(&lengths[1..]) {
                assert!(*sums == bits(&expected(world_size, *length, 0)), "{length} numbers, {loss} lost");
            }
            // A short vector is summed exactly.
            let exact = (0..lengths[0]).map(|at| {
                (1..world_size).fold(numbers(0, 100)[at], |sum, rank| sum + numbers(rank, 100)[at])
            });
            assert!(sums[0].iter().copied().eq(exact.map(f32::to_bits)));
            assert!(loss == 0 || report.resent > 0, "{report:?}");
        }
        let counts = found[0].2.unwrap();
        let chunks: usize = 2 + lengths[1..].iter().map(|length| length.div_ceil(VALUES)).sum::<usize>();
        assert_eq!(counts[Verdict::Completed], chunks as u64);
        assert!(loss == 0 || counts[Verdict::Resent] > 0, "{counts:?}");
    }
}

#[test]
fn a_kernel_that_refuses_is_told_in_words_and_sums_are_made_in_user_space() {
    let port = free_port();
    let interfaces = vec!["no such interface".to_owned()];
    let sums = thread::scope(|scope| {
        let ranks: Vec<_> = (0..2)
            .map(|rank| {
                let choice =
                    Choice { interfaces: interfaces.clone(), port: free_port(), ..Choice::default() };
                scope.spawn(move || {
                    let mut engine = opened(rank, 2, "127.0.0.1", port, choice);
                    let path = engine.path().clone();
                    let mut values = numbers(rank, 5000);
                    engine.all_reduce(&mut values).unwrap();
                    engine.leave(None);
                    (path, bits(&values))
                })
            })
            .collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect::<Vec<_>>()
    });
    for (path, sums) in sums {
        let Path::User(Some(why)) = path else { panic!("{path:?}") };
        assert!(
            why.contains("rank 0: ")
                && (why.contains("no such interface")
                    || why.contains("CAP_BPF")
                    || why.contains("built without")),
            "{why}"
        );
        assert!(sums == bits(&expected(2, 5000, 0)));
    }
}

/// The name of the test that is a rank, for the command line of this program.
const RANK: &str = "xdp::a_rank_in_a_namespace";
const JOB: &str = "SPARKTUNE_XDP_RANK";
const ROUNDS: usize = 3;

/// A rank's part of the next test; nothing for anybody else.
#[test]
fn a_rank_in_a_namespace() {
    let Ok(job) = std::env::var(JOB) else { return };
    let job: Vec<u64> = job.split(' ').map(|number| number.parse().unwrap()).collect();
    let [rank, world_size, port, length, loss] = job[..] else { panic!("{job:?}") };
    let (rank, world_size, length) = (rank as usize, world_size as usize, length as usize);
    let interfaces = if rank == 0 { (1..world_size).map(Lab::port).collect() } else { Vec::new() };
    let passing = (rank > 0).then(|| let_through(INTERFACE));
    let loss = (loss > 0).then(|| Loss::new(loss as u32, rank as u64));
    let choice = Choice { interfaces, loss, silence: Duration::from_secs(60), ..Choice::default() };
    let mut engine = opened(rank, world_size, &Lab::address(0).to_string(), port as u16, choice);
    let mut hasher = blake3::Hasher::new();
    for round in 0..ROUNDS {
        let mut values = numbers(rank, length);
        values.rotate_left(round);
        engine.all_reduce(&mut values).unwrap();
        values.rotate_right(round);
        hasher.update(bytemuck::cast_slice(&values));
    }
    engine.leave(None);
    println!("PATH {:?}", engine.path());
    println!("REPORT {:?} {:?}", engine.report(), engine.counts());
    println!("SUMS {}", hasher.finalize().to_hex());
    drop(passing);
}

fn let_through(interface: &str) -> sparktune_cluster::xdp::kernel::Kernel {
    sparktune_cluster::xdp::kernel::Kernel::passing(interface).unwrap()
}

#[cfg(feature = "xdp")]
fn number_of(variable: &str, otherwise: u64) -> u64 {
    std::env::var(variable).ok().map_or(otherwise, |text| text.parse().unwrap())
}

#[test]
#[cfg(feature = "xdp")]
fn sums_in_the_kernel_between_namespaces_are_the_same_bits_with_and_without_loss() {
    let world_size = number_of("SPARKTUNE_XDP_RANKS", 2) as usize;
    let length = number_of("SPARKTUNE_XDP_NUMBERS", 400_000) as usize;
    let mut hasher = blake3::Hasher::new();
    for round in 0..ROUNDS {
        let mut sums = expected(world_size, length, round);
        sums.rotate_right(round);
        hasher.update(bytemuck::cast_slice(&sums));
    }
    let expected = format!("SUMS {}", hasher.finalize().to_hex());
    for loss in [0, 50_000] {
        let lab = match Lab::new(world_size) {
            Ok(lab) => lab,
            Err(error) => {
                println!("skipped: no network namespaces can be made here: {error}");
                return;
            }
        };
        let port = free_port();
        let program = std::env::current_exe().unwrap();
        let ranks: Vec<_> = (0..world_size)
            .map(|rank| {
                let mut command = lab.command(rank, &program);
                command
                    .args(["--exact", RANK, "--nocapture"])
                    .stdin(Stdio::null())
                    .stdout(Stdio::piped())
                    .stderr(Stdio::piped());
                command.env(JOB, format!("{rank} {world_size} {port} {length} {loss}"));
                command.spawn().unwrap()
            })
            .collect();
        for (rank, child) in ranks.into_iter().enumerate() {
            let output = child.wait_with_output().unwrap();
            let said = String::from_utf8_lossy(&output.stdout);
            let errors = String::from_utf8_lossy(&output.stderr);
            if errors.contains("CAP_BPF") || said.contains("CAP_BPF") {
                println!("skipped: this process may not load programs into the kernel");
                return;
            }
            said.lines()
                .filter(|line| line.starts_with("REPORT"))
                .for_each(|line| println!("rank {rank}, loss {loss}: {line}"));
            assert!(output.status.success(), "{said}\n{errors}");
            assert!(said.contains("PATH Kernel"), "{said}");
            assert!(said.lines().any(|line| line == expected), "rank {rank}, loss {loss}: {said}");
        }
    }
}
