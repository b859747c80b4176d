//! Two ranks that sum by NCCL on the emulated device with an emulated NCCL, and two of which one lets its GPU
//! round what is summed in the network, with sums that come by AF_XDP. On a real GPU, `tests/gpu/run.sh nccl`
//! does the former.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use sparktune_cluster::lab::{INTERFACE, Lab, skipped};
use sparktune_cluster::xdp::wire::VALUES;

use crate::cluster::{assert_same, ended, long_enough, on_machine, port, signal};
use crate::runs::wait;
use crate::sparktune::{Done, Place, checkpoint, done, events};
use crate::swarm::{SWARM, counts, members};

/// Where the emulated device and its NCCL are. A test that has to run says so if they are not there.
fn emulated() -> Option<PathBuf> {
    let emulated = std::env::var_os("CUDA_PATH").map(PathBuf::from);
    let emulated = emulated.filter(|path| path.join("nccl/libnccl.so.2").is_file());
    if emulated.is_none() {
        assert!(std::env::var_os("SPARKTUNE_NEEDS_CUDA").is_none(), "driver.sh has built no NCCL");
        eprintln!("skipped: there is no emulated device with NCCL");
    }
    emulated
}

/// Runs of a place, which all train the same, and know each other's self-tests and tiles.
struct Runs {
    place: Place,
    emulated: PathBuf,
    known: BTreeSet<PathBuf>,
}

impl Runs {
    fn new(emulated: PathBuf) -> Self {
        let place = Place::new();
        place.chats(24);
        Self { place, emulated, known: BTreeSet::new() }
    }

    fn train(&self, steps: &str, more: &[&str]) -> Command {
        let mut train = self.place.command(["train", "--non-interactive", "--json", "--device", "cuda"]);
        train.args(["--data", "train.jsonl", "--pack-length", "64", "--mtp", "none", "--rank", "8"]);
        train.arg("--model").arg(checkpoint()).args(["--max-steps", steps, "--epochs", "40"]).args(more);
        train.env("SPARKTUNE_SAMPLE_COUNT", "0").env("SPARKTUNE_GRAD_ACCUM_STEPS", "3");
        train
    }

    /// Starts this command as two ranks, whose environment is changed.
    fn ranks(&self, command: impl Fn() -> Command, change: impl Fn(usize, &mut Command)) -> Vec<Child> {
        let port = port();
        let start = |rank: usize| {
            let mut command = command();
            // One GPU, as on two machines.
            command.envs([("WORLD_SIZE", "2"), ("LOCAL_RANK", "0"), ("MASTER_ADDR", "127.0.0.1")]);
            command.env("RANK", rank.to_string()).env("MASTER_PORT", &port);
            command.env("NCCL_HOSTID", format!("machine {rank}"));
            command.env("EMULATED_NCCL_TRACE", self.trace(rank));
            change(rank, &mut command);
            command.spawn().unwrap()
        };
        (0..2).map(start).collect()
    }

    fn trace(&self, rank: usize) -> PathBuf {
        self.place.join(&format!("trace-{rank}"))
    }

    /// What NCCL did at a rank since the last look.
    fn traced(&self, rank: usize) -> String {
        let text = fs::read_to_string(self.trace(rank)).unwrap_or_default();
        let _ = fs::remove_file(self.trace(rank));
        text
    }

    /// Where the driver of a rank writes what it copies from the host to the device.
    fn copies(&self, rank: usize) -> PathBuf {
        self.place.join(&format!("copies-{rank}"))
    }

    /// The bytes that were copied so at a rank since the last look.
    fn copied_to_device(&self, rank: usize) -> u64 {
        let text = fs::read_to_string(self.copies(rank)).unwrap();
        fs::remove_file(self.copies(rank)).unwrap();
        text.lines().map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum()
    }

    fn with_nccl(&self, command: &mut Command) {
        let emulated = self.emulated.display();
        command.env("LD_LIBRARY_PATH", format!("{emulated}:{emulated}/nccl"));
        command.env("SPARKTUNE_CLUSTER_ENGINE", "auto");
    }

    fn newest(&self) -> Option<PathBuf> {
        let all = fs::read_dir(self.place.join("runs")).ok()?.map(|entry| entry.unwrap().path());
        let is_run = |path: &PathBuf| {
            path.join("events").is_dir() && !path.file_name().unwrap().to_string_lossy().starts_with('.')
        };
        all.filter(is_run).find(|path| !self.known.contains(path))
    }

    /// The run that was made last.
    fn take(&mut self) -> PathBuf {
        let run = self.newest().unwrap();
        self.known.insert(run.clone());
        run
    }
}

fn both(ranks: Vec<Child>) -> Vec<Done> {
    ended(ranks).into_iter().map(|done| done.exits(0)).collect()
}

fn exchange(run: &Path) -> String {
    let said = events(run).into_iter().find(|event| event["phase"] == "exchange").unwrap();
    said["detail"].as_str().unwrap().to_owned()
}

#[test]
fn two_ranks_that_sum_by_nccl_have_the_bits_of_one_process() {
    let Some(emulated) = emulated() else { return };
    let mut runs = Runs::new(emulated);
    done(&mut runs.train("2", &["--sum-as=2"])).exits(0);
    let one_process = runs.take();

    let said = both(runs.ranks(|| runs.train("2", &[]), |_, command| runs.with_nccl(command)));
    let by_nccl = runs.take();
    assert!(said[1].err.contains("sums are made on the GPUs by NCCL 2.28.9"), "{}", said[1].err);
    assert!(exchange(&by_nccl).starts_with("sums are made on the GPUs by NCCL 2.28.9; "));
    assert_same(&by_nccl, &one_process);
    for rank in 0..2 {
        let traced = runs.traced(rank);
        let sums = traced.lines().filter(|line| line.starts_with("sum ")).count();
        // The gradients of many parameters in each step, and the sums that measure.
        assert!(sums > 30, "{traced}");
        assert!(traced.ends_with("destroy\n") && !traced.contains("abort"), "{traced}");
    }
}

#[test]
fn gradients_that_gpus_add_unseen_are_judged_as_announced_and_have_the_bits_of_one_process() {
    let Some(emulated) = emulated() else { return };
    let mut runs = Runs::new(emulated);
    let judged = ["--sentry", "drop"];
    done(&mut runs.train("2", &[&judged[..], &["--sum-as=2"]].concat())).exits(0);
    let one_process = runs.take();
    let asked = |_: usize, command: &mut Command| {
        runs.with_nccl(command);
        command.env("SPARKTUNE_CLUSTER_ENGINE", "nccl");
    };
    let said = both(runs.ranks(|| runs.train("2", &judged), asked));
    assert!(said[1].err.contains("sums are made on the GPUs by NCCL 2.28.9"), "{}", said[1].err);
    let sums = runs.traced(0).lines().filter(|line| line.starts_with("sum ")).count();
    // The first one, those that measure, and one of each step.
    assert!(sums >= 7, "{sums}");
    let by_nccl = runs.take();
    assert_same(&by_nccl, &one_process);
    let said = events(&by_nccl).into_iter().find(|event| event["phase"] == "sentry").unwrap();
    assert!(said["detail"].as_str().unwrap().starts_with("no gradient was doubted; judging took"), "{said}");
}

#[test]
fn a_rank_that_is_killed_while_gpus_sum_is_missed_and_the_run_has_the_bits_of_its_replay() {
    let Some(emulated) = emulated() else { return };
    long_enough(["6", "24", "96"], |steps, all| {
        let mut runs = Runs::new(emulated.clone());
        let old = |_: usize, command: &mut Command| {
            command.env("EMULATED_NCCL_VERSION", "22703");
            runs.with_nccl(command);
        };
        *all = runs.ranks(|| runs.train(steps, &SWARM), old);
        wait("a step", || {
            let run = runs.newest()?;
            events(&run).iter().any(|event| event["kind"] == "step").then_some(())
        });
        signal("KILL", &all[1]);
        let ended = ended(std::mem::take(all));
        assert_eq!(ended[0].code, Some(0), "{ended:?}");
        let run = runs.take();
        // Otherwise it was killed when all sums were made.
        members(&run).into_iter().find(|(_, members, lost)| (&**members, &**lost) == (&[0], &[1]))?;
        assert_eq!(ended[1].code, None, "{ended:?}");
        assert!(ended[1].err.contains("NCCL 2.27.3 is older than 2.28.9"), "{}", ended[1].err);
        let traced = runs.traced(0);
        assert!(traced.contains("sum ") && traced.contains("abort"), "{traced}");
        let sum_as = format!("--sum-as={}", counts(&run));
        done(&mut runs.train(steps, &[&SWARM[..], &[&sum_as]].concat())).exits(0);
        assert_same(&runs.take(), &run);
        Some(())
    });
}

/// How many blocks of sums a GPU read where they came, and how many the host copied for it, as a rank says.
fn blocks_for_gpu(said: &str) -> [u64; 2] {
    let (_, words) = said.split_once("the GPU read ").expect(said);
    let mut counts = words.split(' ').filter_map(|word| word.parse().ok());
    [(); 2].map(|()| counts.next().unwrap())
}

#[test]
fn gradients_that_a_gpu_rounds_for_the_network_have_the_bits_of_those_that_the_processor_rounds() {
    let Some(emulated) = emulated() else { return };
    let mut runs = Runs::new(emulated);
    let mut trained = |arenas: [&str; 2]| {
        let asked = |rank: usize, command: &mut Command| {
            command.env("SPARKTUNE_CLUSTER_ENGINE", "xdp").env("SPARKTUNE_CLUSTER_ARENA", arenas[rank]);
            command.env("EMULATED_CUDA_COPIES", runs.copies(rank));
        };
        both(runs.ranks(|| runs.train("3", &[]), asked));
        (runs.take(), [0, 1].map(|rank| runs.copied_to_device(rank)))
    };
    let (by_processor, _) = trained(["no", "no"]);
    let (by_gpu, at_first) = trained(["yes", "no"]);
    assert_same(&by_gpu, &by_processor);
    let said = |run: &Path| {
        let all = events(run).into_iter().filter(|event| event["phase"] == "exchange");
        all.map(|event| event["detail"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let [rounded, engine, blocks] = &said(&by_gpu)[..] else { panic!("{:?}", said(&by_gpu)) };
    assert!(
        rounded.starts_with("gradients are rounded by the GPU, as requested, with an arena of "),
        "{rounded}"
    );
    let by_thread = "sums are made by a thread of rank 0, rounded to 16 bits; ";
    assert!(engine.starts_with(by_thread), "{engine}");
    // Sums that come by a socket are copied once. Every step has equally many.
    let [in_place, copied] = blocks_for_gpu(blocks);
    assert!(in_place == 0 && copied > 0 && copied.is_multiple_of(3), "{blocks}");
    let [rounded, engine] = &said(&by_processor)[..] else { panic!("{:?}", said(&by_processor)) };
    assert_eq!(rounded, "gradients are rounded by the processor, as requested");
    assert!(engine.starts_with(by_thread), "{engine}");

    // Between machines, sums come into the arena of rank 1's GPU.
    let Some(lab) = Lab::for_test(2, 1) else { return };
    let between = |rank: usize, command: &mut Command| {
        command.env("SPARKTUNE_CLUSTER_ENGINE", "xdp").env("SPARKTUNE_CLUSTER_ARENA", ["no", "yes"][rank]);
        command.env("EMULATED_CUDA_COPIES", runs.copies(rank));
        command.env("MASTER_ADDR", Lab::address(0).to_string());
        command.env("SPARKTUNE_CLUSTER_TOKEN", "ranks of one machine in two network namespaces");
        command.env(
            ["SPARKTUNE_XDP_INTERFACES", "SPARKTUNE_AF_XDP_INTERFACE"][rank],
            [&Lab::port(1), INTERFACE][rank],
        );
        *command = on_machine(&lab, rank, command);
    };
    let said = both(runs.ranks(|| runs.train("3", &[]), between));
    let by_af_xdp = runs.take();
    assert_same(&by_af_xdp, &by_processor);
    // Now the GPU of rank 1 rounds, and rank 0's does not any more. The driver copies no sums to a GPU that
    // rounds, not even as integers: at the other ranks, it copies twice as many bytes of them.
    let at_last = [0, 1].map(|rank| runs.copied_to_device(rank));
    let as_integers = copied * (VALUES * size_of::<i16>()) as u64;
    assert!(
        at_last[0] > at_first[0] + as_integers && at_first[1] > at_last[1] + as_integers,
        "{at_first:?} {at_last:?}, {copied} blocks"
    );
    let lacks = ["CAP_BPF", "CAP_NET_RAW", "CAP_IPC_LOCK", "no sockets of AF_XDP"];
    if let Some(lacks) = lacks.iter().find(|what| said[1].err.contains(*what)) {
        return skipped(format!("this process may not do so here, or the kernel cannot: {lacks}"));
    }
    let by_af_xdp = "results come to this rank by AF_XDP at cable (1 queue), into an arena of ";
    assert!(said[1].err.contains("sums are made in the kernel of rank 0's machine"), "{}", said[1].err);
    assert!(said[1].err.contains(by_af_xdp), "{}", said[1].err);
    assert_eq!(blocks_for_gpu(&said[1].err), [copied, 0], "{}", said[1].err);
}
