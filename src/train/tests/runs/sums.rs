//! Ranks that continue a run while their gradients are summed in another way than before.

use std::fs;
use std::path::Path;
use std::sync::atomic::AtomicBool;

use sparktune_cluster::tcp::Tcp;
use sparktune_cluster::{Collective, Error, SummedBy, Traffic, free_port};
use sparktune_runlog::RunDir;
use sparktune_train::{Finished, TrainError, TrainOptions, train_as_rank, train_with};

use crate::together::{each, met};
use crate::{LORA, run, warnings};

/// A rank that says how it sums, and does so over TCP all the same.
struct As(SummedBy, Tcp);

impl Collective for As {
    fn rank(&self) -> usize {
        self.1.rank()
    }

    fn world_size(&self) -> usize {
        self.1.world_size()
    }

    fn all_reduce(&mut self, values: &mut [f32]) -> Result<(), Error> {
        self.1.all_reduce(values)
    }

    fn all_gather(&mut self, own: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        self.1.all_gather(own)
    }

    fn leave(&mut self, reason: Option<&str>) {
        self.1.leave(reason);
    }

    fn traffic(&self) -> Traffic {
        self.1.traffic()
    }

    fn summed_by(&self) -> SummedBy {
        self.0
    }
}

/// Lets all ranks train on, until their stop or to the end. Rank 0 alone may accept changes.
fn train(runs: &[RunDir], by: SummedBy, stops: bool, accepts: bool) -> Vec<Result<Finished, TrainError>> {
    let port = free_port().unwrap();
    each(runs, |rank, run| {
        let options = TrainOptions { accept_changes: accepts && rank == 0, ..TrainOptions::default() };
        let mut ranks = As(by, met(rank, runs.len(), port));
        train_as_rank(run, &AtomicBool::new(stops), &options, &mut ranks)
    })
}

fn runs(root: &Path, count: usize) -> Vec<RunDir> {
    let of = |rank: usize| {
        let root = root.join(format!("{count}-{rank}"));
        fs::create_dir_all(&root).unwrap();
        run(&root, LORA, "none", 5, false)
    };
    (0..count).map(of).collect()
}

#[test]
fn a_run_whose_sums_would_be_made_in_another_order_goes_on_only_if_that_is_accepted() {
    let root = tempfile::tempdir().unwrap();
    let [tcp, nccl] = [SummedBy::Tcp, SummedBy::Nccl(22_903)];
    let of_three = runs(root.path(), 3);
    assert!(train(&of_three, nccl, true, false).iter().all(Result::is_ok), "it is stopped after a step");
    for ended in train(&of_three, tcp, false, false) {
        let error = ended.unwrap_err();
        assert!(matches!(error, TrainError::OtherSums { .. }) && error.exit_code() == 2, "{error}");
        let said = error.to_string();
        assert!(
            said.contains("by NCCL 2.29.3") && said.contains("3 ranks would sum them over TCP"),
            "{said}"
        );
        assert!(said.contains("SPARKTUNE_CLUSTER_ENGINE") && said.contains("--accept-changes"), "{said}");
    }
    // With the same engine it goes on, and with another one if rank 0's user accepts it.
    assert!(train(&of_three, nccl, true, false).iter().all(Result::is_ok));
    assert!(warnings(&of_three[0]).iter().all(|warning| !warning.contains("NCCL")));
    assert!(train(&of_three, tcp, false, true).iter().all(Result::is_ok));
    let told = warnings(&of_three[0]);
    assert!(told.iter().any(|warning| warning.contains("last bits of the results differ")), "{told:?}");

    // One process that adds in their place has the bits of TCP.
    let of_three = runs(&root.path().join("replayed"), 3);
    let run = &of_three[0];
    assert!(train(&of_three, nccl, true, false).iter().all(Result::is_ok));
    let replay = |stops: bool, accept_changes: bool| {
        let options = TrainOptions { sum_as: Some(3.into()), accept_changes, ..TrainOptions::default() };
        train_with(run, &AtomicBool::new(stops), &options)
    };
    let said = replay(false, false).unwrap_err().to_string();
    let words = "by NCCL 2.29.3, in its own order, and now one process in the place of 3 ranks would sum them over TCP";
    assert!(said.contains(words) && said.contains("--accept-changes"), "{said}");
    replay(true, true).unwrap();
    replay(false, false).unwrap();

    // The sum of two numbers has no order.
    let of_two = runs(root.path(), 2);
    assert!(train(&of_two, nccl, true, false).iter().all(Result::is_ok));
    let options = TrainOptions { sum_as: Some(2.into()), ..TrainOptions::default() };
    train_with(&of_two[0], &AtomicBool::new(true), &options).unwrap();
    assert!(train(&of_two, tcp, false, false).iter().all(Result::is_ok));
    assert!(warnings(&of_two[0]).iter().all(|warning| !warning.contains("NCCL")));
}
