//! Ranks, in threads, whose gradients are judged before they count.

use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, Sender, channel};

use sparktune_cluster::{Collective, Error, Measured, SummedBy, Traffic};
use sparktune_runlog::{Checkpoints, Kind, RunDir};
use sparktune_train::{TrainOptions, train_as_rank, train_with};

use crate::{FULL, LORA, bytes, events, losses, run, warnings};

/// What a rank multiplies its gradient by in a step, and in all later ones if it lasts.
#[derive(Clone, Copy)]
struct Lie {
    rank: usize,
    step: usize,
    lasts: bool,
    factor: f32,
}

/// One of several ranks in this process.
struct Thread {
    rank: usize,
    to: Vec<Sender<Vec<u8>>>,
    from: Vec<Receiver<Vec<u8>>>,
    lie: Option<Lie>,
    steps: usize,
    by: SummedBy,
    /// What was added of each rank, and who is muted, by an engine that measures.
    squares: Vec<f64>,
    muted: Vec<usize>,
}

impl Thread {
    fn all(count: usize, lie: Option<Lie>, by: SummedBy) -> Vec<Self> {
        let squares = vec![0.0; count];
        let of = |rank| {
            let (to, from, squares, muted) = (Vec::new(), Vec::new(), squares.clone(), Vec::new());
            Self { rank, to, from, lie, steps: 0, by, squares, muted }
        };
        let mut all: Vec<Self> = (0..count).map(of).collect();
        for from in 0..count {
            for to in 0..count {
                let (sender, receiver) = channel();
                all[from].to.push(sender);
                all[to].from.push(receiver);
            }
        }
        all
    }

    fn factor(&self) -> f32 {
        let is_due = |lie: &Lie| lie.step == self.steps || (lie.lasts && lie.step < self.steps);
        let lie = self.lie.filter(|lie| lie.rank == self.rank && is_due(lie));
        lie.map_or(1.0, |lie| lie.factor)
    }
}

impl Collective for Thread {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world_size(&self) -> usize {
        self.from.len()
    }

    /// What is added unseen may be something else than was announced.
    fn all_reduce(&mut self, values: &mut [f32]) -> Result<(), Error> {
        if self.by != SummedBy::Tcp && values.iter().any(|value| *value != 0.0) {
            self.steps += 1;
            let factor = self.factor();
            values.iter_mut().for_each(|value| *value *= factor);
        }
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        for (rank, bytes) in self.all_gather(&bytes)?.into_iter().enumerate() {
            let numbers = bytes.chunks_exact(4).map(|four| f32::from_le_bytes(four.try_into().unwrap()));
            let is_muted = self.muted.contains(&rank);
            values.iter_mut().zip(numbers).for_each(|(sum, value)| {
                let value = if is_muted { 0.0 } else { value };
                self.squares[rank] += f64::from(value).powi(2);
                *sum = if rank == 0 { value } else { *sum + value };
            });
        }
        Ok(())
    }

    fn scatter(&mut self, values: &[f32]) -> Result<Vec<Vec<f32>>, Error> {
        let mut factor = 1.0;
        if self.by == SummedBy::Tcp {
            self.steps += 1;
            factor = self.factor();
        }
        let bytes: Vec<u8> = values.iter().flat_map(|value| (value * factor).to_le_bytes()).collect();
        let (rank, count) = (self.rank, self.from.len());
        let own = values.len() * rank / count..values.len() * (rank + 1) / count;
        let all = self.all_gather(&bytes)?.into_iter().map(|bytes| {
            let numbers = bytes.chunks_exact(4).map(|four| f32::from_le_bytes(four.try_into().unwrap()));
            numbers.skip(own.start).take(own.len()).collect()
        });
        Ok(all.collect())
    }

    fn all_gather(&mut self, own: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        for to in &self.to {
            to.send(own.to_vec()).map_err(|_| Error::Interrupted)?;
        }
        self.from.iter().map(|from| from.recv().map_err(|_| Error::Interrupted)).collect()
    }

    fn leave(&mut self, _reason: Option<&str>) {}

    fn summed_by(&self) -> SummedBy {
        self.by
    }

    fn measured(&mut self) -> Option<Measured> {
        let none = vec![0.0; self.squares.len()];
        let squares = std::mem::replace(&mut self.squares, none.clone());
        (self.by == SummedBy::Xdp).then_some(Measured { squares, peaks: none, rounding: 0.0 })
    }

    fn mute(&mut self, ranks: &[usize]) -> Result<bool, Error> {
        self.muted.extend(ranks);
        Ok(!ranks.is_empty())
    }

    fn muted(&self) -> Vec<usize> {
        self.muted.clone()
    }

    fn engine(&self) -> Option<String> {
        Some(format!("the switch has muted {:?}", self.muted))
    }

    fn traffic(&self) -> Traffic {
        Traffic::default()
    }
}

/// A run of six micro-batches a step, with these settings of ranks.
fn planned(root: &Path, method: &str, ranks: &str) -> RunDir {
    std::fs::create_dir_all(root).unwrap();
    let run = run(root, method, "none", 6, false);
    let plan = run.read_plan().unwrap().replace("grad_accum_steps = 2", "grad_accum_steps = 6");
    std::fs::write(run.path().join("plan.toml"), format!("{plan}ranks = {ranks}\n")).unwrap();
    run
}

/// Trains as three ranks, and returns the runs of all.
fn ranks(root: &Path, method: &str, settings: &str, lie: Option<Lie>) -> Vec<RunDir> {
    ranks_by(SummedBy::Tcp, root, method, settings, lie)
}

fn ranks_by(by: SummedBy, root: &Path, method: &str, settings: &str, lie: Option<Lie>) -> Vec<RunDir> {
    let runs: Vec<RunDir> =
        (0..3).map(|rank| planned(&root.join(rank.to_string()), method, settings)).collect();
    train_on(&runs, by, lie, false);
    runs
}

/// Lets ranks train their runs on, to the end or only a step. Returns how often each of them has
/// added gradients unseen.
fn train_on(runs: &[RunDir], by: SummedBy, lie: Option<Lie>, stops: bool) -> Vec<usize> {
    std::thread::scope(|scope| {
        let train = |(run, mut rank): (&RunDir, Thread)| {
            let run = RunDir::open(run.path()).unwrap();
            scope.spawn(move || {
                let options = TrainOptions::default();
                train_as_rank(&run, &AtomicBool::new(stops), &options, &mut rank).unwrap();
                if by == SummedBy::Tcp { 0 } else { rank.steps }
            })
        };
        let threads: Vec<_> = runs.iter().zip(Thread::all(runs.len(), lie, by)).map(train).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

const ADAPTER: &str = "adapter/adapter_model.safetensors";

fn phase(run: &RunDir, name: &str) -> Option<String> {
    events(run).into_iter().find_map(|kind| match kind {
        Kind::Phase(phase) if phase.phase == name => phase.detail,
        _ => None,
    })
}

#[test]
fn a_gradient_of_a_million_times_the_norm_is_dropped_and_named_as_if_its_rank_had_nothing_to_say() {
    let root = tempfile::tempdir().unwrap();
    let settings = r#"{ sentry = "drop" }"#;
    let with = |name: &str, factor: Option<f32>| {
        let lie = factor.map(|factor| Lie { rank: 1, step: 4, lasts: false, factor });
        ranks(&root.path().join(name), LORA, settings, lie)
    };
    let poisoned = with("poisoned", Some(1e6));
    let silent = with("silent", Some(0.0));
    let not_a_number = with("nan", Some(f32::NAN));
    let honest = with("honest", None);
    for (rank, (one, other)) in poisoned.iter().zip(&silent).enumerate() {
        assert_eq!(losses(one).len(), 6);
        assert_eq!(losses(one), losses(other), "rank {rank}");
    }
    assert_eq!(bytes(&poisoned[0], ADAPTER), bytes(&silent[0], ADAPTER));
    assert_eq!(bytes(&not_a_number[0], ADAPTER), bytes(&silent[0], ADAPTER));
    assert_ne!(bytes(&poisoned[0], ADAPTER), bytes(&honest[0], ADAPTER));

    for (runs, word) in
        [(&poisoned, "times that of most ranks"), (&silent, "is zero"), (&not_a_number, "not finite")]
    {
        let said: Vec<String> =
            warnings(&runs[0]).into_iter().filter(|said| said.starts_with("rank ")).collect();
        let [said] = &said[..] else { panic!("{said:?}") };
        assert!(said.starts_with("rank 1: its gradient of step 4 was left out: "), "{said}");
        assert!(said.contains(word), "{said}");
        let summary = phase(&runs[0], "sentry").unwrap();
        assert!(summary.starts_with("rank 1: 1 dropped, 0 clipped; judging took"), "{summary}");
    }
    assert!(phase(&honest[0], "sentry").unwrap().starts_with("no gradient was doubted"));
}

#[test]
fn honest_ranks_have_the_bits_of_ranks_that_nobody_judges_and_one_process_judges_like_them() {
    let root = tempfile::tempdir().unwrap();
    let path = |name: &str| root.path().join(name);
    let unjudged = ranks(&path("off"), FULL, r#"{ sentry = "off" }"#, None);
    let weights = |run: &RunDir| bytes(run, "merged/model.safetensors");
    for sentry in ["warn", "drop"] {
        let settings = format!(r#"{{ sentry = "{sentry}" }}"#);
        let judged = ranks(&path(sentry), FULL, &settings, None);
        assert_eq!(losses(&judged[0]), losses(&unjudged[0]), "{sentry}");
        assert_eq!(weights(&judged[0]), weights(&unjudged[0]), "{sentry}");

        let alone = planned(&path(&format!("alone-{sentry}")), FULL, &settings);
        let options = TrainOptions { sum_as: Some(3.into()), ..TrainOptions::default() };
        // Stopped and resumed once.
        train_with(&alone, &AtomicBool::new(true), &options).unwrap();
        train_with(&alone, &AtomicBool::new(false), &options).unwrap();
        assert_eq!(losses(&alone), losses(&judged[0]), "{sentry}");
        assert_eq!(weights(&alone), weights(&judged[0]), "{sentry}");
        let [one, other] = [&alone, &judged[0]].map(judge);
        assert!(one.is_object() && one == other, "{sentry}: {one} {other}");
    }
}

#[test]
fn what_an_engine_adds_unseen_is_judged_by_what_was_announced_and_seen_if_the_sum_is_another_one() {
    let root = tempfile::tempdir().unwrap();
    let by = |by: SummedBy, name: &str, settings: &str, lie: Option<Lie>| {
        ranks_by(by, &root.path().join(name), LORA, settings, lie).swap_remove(0)
    };
    let (tcp, nccl) = (SummedBy::Tcp, SummedBy::Nccl(22_903));
    for sentry in ["drop", "warn"] {
        let settings = format!(r#"{{ sentry = "{sentry}" }}"#);
        let seen = by(tcp, &format!("seen-{sentry}"), &settings, None);
        for engine in [nccl, SummedBy::Xdp] {
            let announced = by(engine, &format!("announced-{sentry}-{engine}"), &settings, None);
            assert_eq!(losses(&announced), losses(&seen), "this engine adds in the same order");
            assert_eq!(bytes(&announced, ADAPTER), bytes(&seen, ADAPTER));
            assert!(phase(&announced, "sentry").unwrap().starts_with("no gradient was doubted"));
            assert_eq!(of_newest(&announced, "summed_by"), serde_json::to_value(engine).unwrap());
        }
        for factor in [-3.0, 1e6, f32::NAN] {
            let lie = Some(Lie { rank: 1, step: 3, lasts: false, factor });
            let lied = by(nccl, &format!("{sentry}{factor}"), &settings, lie);
            assert_eq!(losses(&lied), losses(&seen), "{factor}");
            assert_eq!(bytes(&lied, ADAPTER), bytes(&seen, ADAPTER));
            let said = warnings(&lied).into_iter().filter(|said| said.contains("announced")).count();
            assert_eq!(said, 1, "{factor}");
            assert_eq!(of_newest(&lied, "summed_by"), "tcp");
        }
    }
}

#[test]
fn a_liar_whose_contribution_is_measured_is_named_and_has_nothing_to_say_from_that_step_on() {
    let root = tempfile::tempdir().unwrap();
    let by = |by: SummedBy, name: &str, sentry: &str, factor: f32| {
        let lie = (factor != 1.0).then_some(Lie { rank: 1, step: 3, lasts: true, factor });
        let settings = format!(r#"{{ sentry = "{sentry}" }}"#);
        ranks_by(by, &root.path().join(name), LORA, &settings, lie).swap_remove(0)
    };
    let silent = by(SummedBy::Tcp, "silent", "drop", 0.0);
    let lied = by(SummedBy::Xdp, "lied", "drop", 1.5);
    assert_eq!(losses(&lied), losses(&silent));
    assert_eq!(bytes(&lied, ADAPTER), bytes(&silent, ADAPTER));
    assert_eq!(of_newest(&lied, "summed_by"), serde_json::to_value(SummedBy::Xdp).unwrap());
    let said: Vec<String> = warnings(&lied).into_iter().filter(|said| said.contains("announced")).collect();
    let first = "rank 1: its gradient of step 3 was left out: it has sent another gradient than the one that";
    assert!(said.len() == 4 && said[0].starts_with(first), "{said:?}");
    let moved = warnings(&lied).into_iter().filter(|said| said == "from now on, the switch has muted [1]");
    assert_eq!(moved.count(), 1, "how sums are made from then on");
    let summary = phase(&lied, "sentry").unwrap();
    assert!(summary.starts_with("rank 1: 4 dropped, 0 clipped; judging took"), "{summary}");

    // Who only warns leaves nothing out, and uses no sum that is not that of what was announced.
    let seen = by(SummedBy::Tcp, "seen", "warn", 1.0);
    let lied = by(SummedBy::Xdp, "warned", "warn", 1.5);
    assert_eq!(losses(&lied), losses(&seen));
    let said: Vec<String> = warnings(&lied).into_iter().filter(|said| said.contains("announced")).collect();
    assert!(said.len() == 1 && said[0].contains("something else has come from rank 1."), "{said:?}");
}

#[test]
fn a_muted_rank_stays_muted_in_all_later_attempts_of_as_many_ranks() {
    let root = tempfile::tempdir().unwrap();
    let settings = r#"{ sentry = "drop" }"#;
    let lie = Some(Lie { rank: 1, step: 1, lasts: false, factor: 1.5 });
    let whole = ranks_by(SummedBy::Xdp, &root.path().join("whole"), LORA, settings, lie).swap_remove(0);
    let stopped = |name: &str| {
        let path = |rank: usize| root.path().join(format!("{name}-{rank}"));
        let runs: Vec<RunDir> = (0..3).map(|rank| planned(&path(rank), LORA, settings)).collect();
        train_on(&runs, SummedBy::Xdp, lie, true);
        assert_eq!(of_newest(&runs[0], "muted"), serde_json::json!([1]));
        runs
    };
    // Nobody lies any more.
    let runs = stopped("as-many");
    train_on(&runs, SummedBy::Xdp, None, false);
    assert_eq!(losses(&runs[0]), losses(&whole));
    assert_eq!(bytes(&runs[0], ADAPTER), bytes(&whole, ADAPTER));
    // With fewer ranks, nobody knows which one was muted.
    let runs = stopped("fewer");
    train_on(&runs[..2], SummedBy::Xdp, None, true);
    assert!(of_newest(&runs[0], "muted").is_null());
}

#[test]
fn ranks_whose_sum_was_another_one_than_announced_are_seen_in_all_later_attempts_too() {
    let root = tempfile::tempdir().unwrap();
    let (tcp, nccl) = (SummedBy::Tcp, SummedBy::Nccl(22_903));
    let settings = r#"{ sentry = "drop" }"#;
    let seen = ranks_by(tcp, &root.path().join("seen"), LORA, settings, None).swap_remove(0);
    let path = |rank: usize| root.path().join(format!("lied-{rank}"));
    let runs: Vec<RunDir> = (0..3).map(|rank| planned(&path(rank), LORA, settings)).collect();
    // The first sum of each attempt is one of a gradient: those that measure the links are of zeros.
    let lie = Some(Lie { rank: 1, step: 1, lasts: false, factor: -3.0 });
    assert_eq!(train_on(&runs, nccl, lie, true), [1, 1, 1]);
    let told = |run: &RunDir| warnings(run).iter().filter(|said| said.contains("announced")).count();
    assert_eq!((told(&runs[0]), of_newest(&runs[0], "summed_by")), (1, "tcp".into()));
    // The engine is the same again, and nobody is asked to accept anything.
    for stops in [true, false] {
        assert_eq!(train_on(&runs, nccl, lie, stops), [0, 0, 0], "nothing is added unseen any more");
    }
    assert_eq!((told(&runs[0]), of_newest(&runs[0], "summed_by")), (1, "tcp".into()));
    assert_eq!(losses(&runs[0]), losses(&seen));
    assert_eq!(bytes(&runs[0], ADAPTER), bytes(&seen, ADAPTER));
}

/// The judge's state in the newest checkpoint.
fn judge(run: &RunDir) -> serde_json::Value {
    of_newest(run, "judge")
}

/// A part of the state in the newest checkpoint.
fn of_newest(run: &RunDir, part: &str) -> serde_json::Value {
    let newest = Checkpoints::new(run).newest_valid().unwrap().checkpoint.unwrap();
    let state = std::fs::read_to_string(newest.path.join("state.json")).unwrap();
    serde_json::from_str::<serde_json::Value>(&state).unwrap()[part].take()
}

#[test]
fn a_median_of_ranks_trains_something_else_and_hardly_follows_a_liar() {
    let root = tempfile::tempdir().unwrap();
    let of = |name: &str, combine: &str, factor: Option<f32>| {
        let settings = format!(r#"{{ combine = "{combine}" }}"#);
        let lie = factor.map(|factor| Lie { rank: 0, step: 3, lasts: false, factor });
        ranks(&root.path().join(name), LORA, &settings, lie).swap_remove(0)
    };
    let loss = |run: &RunDir| losses(run).last().unwrap().1.parse::<f64>().unwrap();
    let sum = of("sum", "sum", None);
    for combine in ["median", "trimmed-mean"] {
        let honest = of(combine, combine, None);
        assert_ne!(losses(&honest), losses(&sum), "{combine}");
        assert!((loss(&honest) / loss(&sum) - 1.0).abs() < 0.2, "{combine}");
        let poisoned = of(&format!("{combine}-poisoned"), combine, Some(-1e6));
        assert!((loss(&poisoned) / loss(&honest) - 1.0).abs() < 0.1, "{combine}");
    }
}
