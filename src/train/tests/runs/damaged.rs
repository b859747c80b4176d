//! A rank whose weights are not those of the others: all ranks end, and say which one it is.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use sparktune_cluster::tcp::Tcp;
use sparktune_cluster::{Collective, Error, Traffic, free_port};
use sparktune_runlog::RunDir;
use sparktune_train::{Finished, TrainError, TrainOptions, train_as_rank};

use crate::together::{each, met};
use crate::{LORA, run};

/// What happens to the state of a rank.
#[derive(Clone)]
enum Damage {
    /// A bit of this file changes after it was verified, and before it is read.
    OnDisk(PathBuf),
    /// A number of a sum changes its sign, which leaves the norm of the gradients as it is.
    InMemory,
}

/// A rank that sums over TCP, and whose state is damaged once.
struct Damaged {
    tcp: Tcp,
    damage: Option<Damage>,
}

impl Collective for Damaged {
    fn rank(&self) -> usize {
        self.tcp.rank()
    }

    fn world_size(&self) -> usize {
        self.tcp.world_size()
    }

    fn all_reduce(&mut self, values: &mut [f32]) -> Result<(), Error> {
        self.tcp.all_reduce(values)?;
        if matches!(self.damage, Some(Damage::InMemory))
            && let Some(value) = values.iter_mut().find(|value| **value != 0.0)
        {
            *value = -*value;
            self.damage = None;
        }
        Ok(())
    }

    /// The ranks compare their bases when the checkpoint is verified and not read yet.
    fn all_gather(&mut self, own: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        if let Some(Damage::OnDisk(file)) = &self.damage
            && let Ok(mut content) = fs::read(file)
        {
            // The last number ends the file.
            let lowest_byte = content.len() - 4;
            content[lowest_byte] ^= 1;
            fs::write(file, content).unwrap();
            self.damage = None;
        }
        self.tcp.all_gather(own)
    }

    fn leave(&mut self, reason: Option<&str>) {
        self.tcp.leave(reason);
    }

    fn traffic(&self) -> Traffic {
        self.tcp.traffic()
    }
}

fn runs(root: &Path, name: &str) -> Vec<RunDir> {
    let of = |rank: usize| {
        let root = root.join(format!("{name}-{rank}"));
        fs::create_dir_all(&root).unwrap();
        run(&root, LORA, "none", 6, false)
    };
    (0..3).map(of).collect()
}

/// Lets all ranks train on, until their stop or to the end. The last one is damaged.
fn train(runs: &[RunDir], stops: bool, damage: Option<&Damage>) -> Vec<Result<Finished, TrainError>> {
    let port = free_port().unwrap();
    each(runs, |rank, run| {
        let damage = damage.cloned().filter(|_| rank == 2);
        let mut tcp = Damaged { tcp: met(rank, runs.len(), port), damage };
        train_as_rank(run, &AtomicBool::new(stops), &TrainOptions::default(), &mut tcp)
    })
}

#[track_caller]
fn assert_named(ended: Vec<Result<Finished, TrainError>>, step: u64) {
    let words = format!(
        "after step {step}, weights or optimizer are not the same: rank 2 differs from the 2 others, which agree"
    );
    for ended in ended {
        let error = ended.unwrap_err();
        assert!(matches!(error, TrainError::RanksDiffer { .. }), "{error}");
        assert!(error.to_string().contains(&words), "{error}");
    }
}

#[test]
fn a_rank_that_reads_another_bit_in_its_checkpoint_is_named_when_the_ranks_have_met() {
    let root = tempfile::tempdir().unwrap();
    let runs = runs(root.path(), "read");
    assert!(train(&runs, true, None).iter().all(Result::is_ok), "it is stopped after a step");
    let damage = Damage::OnDisk(runs[2].checkpoints().join("step-000001/weights.safetensors"));
    assert_named(train(&runs, false, Some(&damage)), 1);
    // Rank 0 has sent it the checkpoint, and sends it again.
    assert!(train(&runs, false, None).iter().all(Result::is_ok));
}

/// The ranks have the same norm in every step, so that only the hash before the first checkpoint, that of
/// step 5, shows it.
#[test]
fn a_rank_whose_weights_change_in_memory_is_named_before_a_checkpoint_is_written() {
    let root = tempfile::tempdir().unwrap();
    let runs = runs(root.path(), "changed");
    assert_named(train(&runs, false, Some(&Damage::InMemory)), 5);
    assert_eq!(fs::read_dir(runs[0].checkpoints()).map_or(0, Iterator::count), 0, "nothing is kept of it");
}
