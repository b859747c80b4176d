//! A rank that takes long to answer computes less of each step.

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::thread::{sleep, spawn};
use std::time::Duration;

use serde_json::Value;
use sparktune_cluster::tcp::Tcp;
use sparktune_cluster::{Collective, Error, Pulse, Traffic, free_port};
use sparktune_runlog::{Kind, Outcome, RunDir};
use sparktune_train::{TrainOptions, train_as_rank};

use crate::together::{each, met};
use crate::{LORA, events, run};

/// A rank that says that it computes as fast as the others, whatever else this machine does.
struct AsFast(Tcp);

impl Collective for AsFast {
    fn rank(&self) -> usize {
        self.0.rank()
    }

    fn world_size(&self) -> usize {
        self.0.world_size()
    }

    fn all_reduce(&mut self, values: &mut [f32]) -> Result<(), Error> {
        self.0.all_reduce(values)
    }

    fn all_gather(&mut self, own: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        let mut word: Value = serde_json::from_slice(own).unwrap_or_default();
        let Some(micro_batches) = word["computed"]["micro_batches"].as_u64() else {
            return self.0.all_gather(own);
        };
        word["computed"]["took_us"] = (10_000 * micro_batches).into();
        self.0.all_gather(&serde_json::to_vec(&word).unwrap())
    }

    fn leave(&mut self, reason: Option<&str>) {
        self.0.leave(reason);
    }

    fn traffic(&self) -> Traffic {
        self.0.traffic()
    }

    fn outlive(&mut self, silence: Duration) -> bool {
        self.0.outlive(silence)
    }

    fn pulse(&self) -> Option<Pulse> {
        self.0.pulse()
    }
}

/// Returns a port that leads to this one of rank 0, whose answers come 600 ms late. When the ranks have met,
/// only its answers to heartbeats come this way: what it says otherwise goes by its own connection.
fn slow_way_to(port: u16) -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let slow = listener.local_addr().unwrap().port();
    spawn(move || {
        for caller in listener.incoming() {
            let caller = caller.unwrap();
            // Who calls before rank 0 listens is cut off, and tries again.
            let Ok(called) = TcpStream::connect(("127.0.0.1", port)) else { continue };
            let (from, to) = (caller.try_clone().unwrap(), called.try_clone().unwrap());
            spawn(move || pass_on(from, to, Duration::ZERO));
            spawn(move || pass_on(called, caller, Duration::from_millis(600)));
        }
    });
    slow
}

/// Passes on what comes, so much later, until nothing more comes.
fn pass_on(mut from: TcpStream, mut to: TcpStream, later: Duration) {
    let mut bytes = vec![0; 1 << 16];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        sleep(later);
        if to.write_all(&bytes[..count]).is_err() {
            return;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}

/// A run of a swarm, with six micro-batches in each step.
fn planned(root: &Path) -> RunDir {
    fs::create_dir_all(root).unwrap();
    let run = run(root, LORA, "none", 12, false);
    let plan = run.read_plan().unwrap().replace("grad_accum_steps = 2", "grad_accum_steps = 6");
    let plan = plan.replace("epochs = 2", "epochs = 200");
    fs::write(run.plan(), format!("{plan}ranks = {{ swarm = true, silence_s = 30 }}\n")).unwrap();
    run
}

#[test]
fn a_rank_that_answers_after_more_than_half_a_second_gets_a_smaller_share_though_it_is_as_fast() {
    let root = tempfile::tempdir().unwrap();
    let runs: Vec<RunDir> = (0..2).map(|rank| planned(&root.path().join(rank.to_string()))).collect();
    let port = free_port().unwrap();
    let slow = slow_way_to(port);
    let finished = each(&runs, |rank, run| {
        let tcp = met(rank, runs.len(), if rank == 0 { port } else { slow });
        // Rank 0 is told of the time of the first answer with the second question.
        while rank == 0 && tcp.pulse().is_some_and(|pulse| pulse.latency(1).is_none()) {
            sleep(Duration::from_millis(10));
        }
        train_as_rank(run, &AtomicBool::new(false), &TrainOptions::default(), &mut AsFast(tcp)).unwrap()
    });
    assert!(finished.iter().all(|finished| finished.outcome == Outcome::Completed), "{finished:?}");
    for run in &runs {
        let said = events(run).into_iter().filter_map(|kind| match kind {
            Kind::Members(members) => Some(members.shares),
            _ => None,
        });
        assert_eq!(said.collect::<Vec<Vec<u32>>>(), [vec![], vec![4, 2]]);
    }
}
