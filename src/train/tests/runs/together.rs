//! Several ranks of one run, as threads on loopback, beside one process that stands for all of them.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use sparktune_cluster::tcp::{self, Tcp};
use sparktune_cluster::{Collective, Launcher, Limits, Placement, free_port};
use sparktune_runlog::{Outcome, RunDir};
use sparktune_train::{Finished, TrainOptions, train_as_rank, train_with};

use crate::{FULL, LORA, bytes, losses, run};

/// What a test trains.
#[derive(Clone, Copy)]
struct Trained {
    method: &'static str,
    recompute: bool,
    /// The micro-batches of a step.
    micro_batches: usize,
    sync: &'static str,
    steps: u64,
}

impl Trained {
    fn run(self, root: &Path) -> RunDir {
        fs::create_dir_all(root).unwrap();
        let run = run(root, self.method, "none", self.steps, self.recompute);
        let path = run.path().join("plan.toml");
        let plan = fs::read_to_string(&path).unwrap();
        let batch = format!(r#"grad_accum_steps = {}, sync = "{}""#, self.micro_batches, self.sync);
        fs::write(path, plan.replace("grad_accum_steps = 2", &batch)).unwrap();
        run
    }
}

/// Meets the other ranks of a test, where rank 0 listens at this port.
pub(crate) fn met(rank: usize, world_size: usize, port: u16) -> Tcp {
    let (host, launcher) = ("127.0.0.1".to_owned(), Launcher::Torchrun);
    let placement = Placement { rank, world_size, local_rank: rank, host, port, launcher };
    tcp::join(&placement, None, "test", Limits::default(), Arc::new(|| false)).unwrap()
}

/// Calls `train` with the run of each rank, all at once.
pub(crate) fn each<T: Send>(runs: &[RunDir], train: impl Fn(usize, &RunDir) -> T + Sync) -> Vec<T> {
    let train = &train;
    std::thread::scope(|scope| {
        let ranks = runs.iter().enumerate().map(|(rank, run)| scope.spawn(move || train(rank, run)));
        let ranks: Vec<_> = ranks.collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// Trains the runs of all ranks together, each of which has a folder with the same plan and tokens.
fn together(runs: &[RunDir], stops: bool) -> Vec<Finished> {
    let port = free_port().unwrap();
    each(runs, |rank, run| {
        let mut tcp = met(rank, runs.len(), port);
        let finished = train_as_rank(run, &AtomicBool::new(stops), &TrainOptions::default(), &mut tcp);
        tcp.leave(None);
        finished.unwrap()
    })
}

/// Returns the run of rank 0, after all ranks were stopped once and have continued, and that of one process.
fn both(root: &Path, trained: Trained, count: usize) -> (RunDir, RunDir) {
    let mut runs: Vec<RunDir> = (0..count).map(|rank| trained.run(&root.join(rank.to_string()))).collect();
    for finished in together(&runs, true) {
        assert_eq!(finished.outcome, Outcome::Stopped);
        assert!(finished.steps > 0 && finished.steps < trained.steps, "{}", finished.steps);
    }
    for finished in together(&runs, false) {
        assert_eq!(finished.outcome, Outcome::Completed);
    }
    let alone = trained.run(&root.join("alone"));
    let options = TrainOptions { sum_as: Some(count.into()), ..TrainOptions::default() };
    assert_eq!(train_with(&alone, &AtomicBool::new(false), &options).unwrap().steps, trained.steps);
    (runs.swap_remove(0), alone)
}

#[test]
fn gradients_that_leave_during_the_backward_pass_have_the_bits_of_one_process_that_adds_in_their_order() {
    let root = tempfile::tempdir().unwrap();
    // With the ranks and the micro-batches of a step. The last of three ranks has none of two.
    let all = [
        (LORA, false, 2, 2),
        (FULL, false, 2, 2),
        (FULL, true, 2, 2),
        (LORA, true, 3, 2),
        (FULL, false, 3, 2),
        (LORA, false, 4, 4),
        (FULL, false, 4, 4),
    ];
    for (place, (method, recompute, count, micro_batches)) in all.into_iter().enumerate() {
        let trained = Trained { method, recompute, micro_batches, sync: "step", steps: 5 };
        let (of_ranks, alone) = both(&root.path().join(place.to_string()), trained, count);
        assert_eq!(losses(&of_ranks), losses(&alone), "{method}, {recompute}, {count}");
        let merged = "merged/model.safetensors";
        assert!(bytes(&of_ranks, merged) == bytes(&alone, merged), "{method}, {recompute}, {count}");
    }
}

#[test]
fn ranks_that_exchange_rarely_have_the_bits_of_one_process_in_their_place_and_another_training() {
    let root = tempfile::tempdir().unwrap();
    for (place, (method, count)) in [(LORA, 2), (FULL, 2)].into_iter().enumerate() {
        let trained = Trained { method, recompute: false, micro_batches: 2, sync: "diloco:3", steps: 8 };
        let (of_ranks, alone) = both(&root.path().join(place.to_string()), trained, count);
        assert_eq!(losses(&of_ranks), losses(&alone), "{method}, {count}");
        let merged = "merged/model.safetensors";
        assert!(bytes(&of_ranks, merged) == bytes(&alone, merged), "{method}, {count}");
        let exact = Trained { sync: "step", ..trained }.run(&root.path().join(format!("exact-{place}")));
        let options = TrainOptions { sum_as: Some(count.into()), ..TrainOptions::default() };
        train_with(&exact, &AtomicBool::new(false), &options).unwrap();
        assert!(bytes(&exact, merged) != bytes(&alone, merged), "it is not the same training");
    }
}
