//! Ranks in threads on loopback, with GPUs that share the memory of this process.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Barrier, Mutex};
use std::thread;
use std::time::Duration;

use super::gpu::Gpu;
use super::preflight::{Asked, Facts};
use super::{Nccl, Path, over};
use crate::announced::{AnnouncedSum, NotTheSum};
use crate::collective::{Collective, Traffic};
use crate::environment::{Launcher, Placement};
use crate::error::Error;
use crate::judged::JudgedSum;
use crate::lent::Lent;
use crate::listening::free_port;
use crate::rendezvous::Limits;
use crate::sentry::{Combine, Decision, Judge, SIGMA, Verdict};
use crate::tcp::join;

/// What is between the GPUs: the numbers of each communicator's sums, by rank, and who has left it.
#[derive(Default)]
struct Wires {
    ids: u8,
    arrived: BTreeMap<Vec<u8>, BTreeSet<usize>>,
    sums: BTreeMap<(Vec<u8>, usize), BTreeMap<usize, Vec<f32>>>,
    left: BTreeSet<Vec<u8>>,
}

/// A mistake of a GPU.
#[derive(Clone, Copy, PartialEq)]
enum Fault {
    None,
    /// It does not connect.
    Absent,
    /// It fails in a later sum.
    Broken,
    /// It never ends what it does.
    Stuck,
    /// Both.
    BrokenAndStuck,
}

struct Fake {
    wires: Arc<Mutex<Wires>>,
    fault: Fault,
    id: Vec<u8>,
    place: (usize, usize),
    done: usize,
    sums: Vec<f32>,
}

impl Fake {
    fn new(wires: &Arc<Mutex<Wires>>, fault: Fault) -> Self {
        let wires = Arc::clone(wires);
        Self { wires, fault, id: Vec::new(), place: (0, 0), done: 0, sums: Vec::new() }
    }
}

impl Gpu for Fake {
    fn new_id(&mut self) -> Result<Vec<u8>, String> {
        let mut wires = self.wires.lock().unwrap();
        wires.ids += 1;
        Ok(vec![wires.ids])
    }

    fn connect(&mut self, id: &[u8], rank: usize, ranks: usize) -> Result<(), String> {
        if self.fault == Fault::Absent {
            return Err("its cable is loose".into());
        }
        (self.id, self.place, self.done) = (id.to_vec(), (rank, ranks), 0);
        self.wires.lock().unwrap().arrived.entry(id.to_vec()).or_default().insert(rank);
        Ok(())
    }

    fn is_ready(&mut self) -> Result<bool, String> {
        Ok(self.wires.lock().unwrap().arrived[&self.id].len() == self.place.1)
    }

    fn sum_lent(&mut self, lent: &mut Lent) -> Result<usize, String> {
        let numbers = lent.downcast_mut::<Vec<f32>>().ok_or("no tensor")?.clone();
        self.sum(&numbers)?;
        Ok(numbers.len())
    }

    fn most(&self) -> usize {
        5000
    }

    fn sum(&mut self, numbers: &[f32]) -> Result<(), String> {
        let mut wires = self.wires.lock().unwrap();
        wires.sums.entry((self.id.clone(), self.done)).or_default().insert(self.place.0, numbers.to_vec());
        Ok(())
    }

    fn take(&mut self, numbers: &mut [f32]) -> Result<(), String> {
        numbers.copy_from_slice(&self.sums);
        Ok(())
    }

    fn is_done(&mut self) -> Result<bool, String> {
        if matches!(self.fault, Fault::Broken | Fault::BrokenAndStuck) && self.done > 0 {
            return Err("the wire is broken".into());
        }
        let wires = self.wires.lock().unwrap();
        let parts = &wires.sums[&(self.id.clone(), self.done)];
        if parts.len() < self.place.1 {
            let is_left = wires.left.contains(&self.id);
            return if is_left { Err("remote process exited".into()) } else { Ok(false) };
        }
        // From the last rank to the first: not the order of ranks.
        let mut all = parts.values().rev().cloned();
        let mut sums = all.next().unwrap();
        all.for_each(|part| sums.iter_mut().zip(part).for_each(|(sum, value)| *sum += value));
        (self.sums, self.done) = (sums, self.done + 1);
        Ok(true)
    }

    fn abort(&mut self) {
        while matches!(self.fault, Fault::Stuck | Fault::BrokenAndStuck) && !self.id.is_empty() {
            thread::park();
        }
        let id = std::mem::take(&mut self.id);
        self.wires.lock().unwrap().left.insert(id);
    }

    fn finish(&mut self) {
        self.id.clear();
    }
}

/// Lets ranks with these faults meet, and each do this.
fn ranks<T: Send>(
    asked: Asked,
    faults: &[Fault],
    work: impl Fn(Result<Nccl, Error>) -> T + Sync,
) -> (Vec<T>, Arc<Mutex<Wires>>) {
    let port = free_port().unwrap();
    let wires = Arc::new(Mutex::new(Wires::default()));
    let (world_size, wires_of, work) = (faults.len(), &wires, &work);
    let all = thread::scope(|scope| {
        let ranks = faults.iter().enumerate().map(|(rank, fault)| {
            scope.spawn(move || {
                let (host, launcher) = ("127.0.0.1".to_owned(), Launcher::Torchrun);
                let placement = Placement { rank, world_size, local_rank: rank, host, port, launcher };
                let tcp = join(&placement, None, "build", Limits::default(), Arc::new(|| false)).unwrap();
                let (gpu, links) = (Ok(rank.to_string()), Vec::new());
                let facts = Facts { gpu, host: "here".into(), library: Ok(22_903), links };
                work(over(tcp, asked, facts, Some(Box::new(Fake::new(wires_of, *fault)))))
            })
        });
        let ranks: Vec<_> = ranks.collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    });
    (all, wires)
}

fn numbers(rank: usize) -> Vec<f32> {
    (0..12_345).map(|at| 0.1 * (rank + 1) as f32 + at as f32).collect()
}

/// Sums again until the members stay, and returns the sums with their number.
fn summed(engine: &mut Nccl) -> (Vec<f32>, usize) {
    loop {
        let mut values = numbers(engine.members()[engine.rank()]);
        match engine.all_reduce(&mut values).and_then(|()| engine.all_gather(b"done")) {
            Err(Error::Regrouped) => {}
            done => return (values, done.unwrap().len()),
        }
    }
}

fn in_order(ranks: &[usize]) -> Vec<f32> {
    let mut sums = numbers(ranks[0]);
    for rank in &ranks[1..] {
        sums.iter_mut().zip(numbers(*rank)).for_each(|(sum, value)| *sum += value);
    }
    sums
}

#[test]
fn two_ranks_have_the_sums_of_tcp_and_more_have_the_same_as_each_other() {
    for world_size in [2, 3] {
        let (all, _) = ranks(Asked::Nccl, &vec![Fault::None; world_size], |engine| {
            let mut engine = engine.unwrap();
            assert_eq!(*engine.path(), Path::Nccl(22_903));
            let (sums, _) = summed(&mut engine);
            let mut lent: Box<Lent> = Box::new(vec![1.0_f32; 7]);
            engine.all_reduce_lent(&mut *lent).unwrap();
            let mut short = [engine.rank() as f32];
            engine.all_reduce(&mut short).unwrap();
            // What is judged is seen before it is added.
            let parts = engine.scatter(&numbers(engine.rank())).unwrap();
            engine.leave(None);
            (sums, short[0], parts.len())
        });
        let every: Vec<usize> = (0..world_size).collect();
        assert!(all.iter().all(|one| *one == all[0]));
        let exact = in_order(&every);
        assert_eq!(all[0].0 == exact, world_size == 2, "the order of three is not that of ranks");
        let near = |(one, other): (&f32, &f32)| (one / other - 1.0).abs() < 1e-6;
        assert!(all[0].0.iter().zip(&exact).all(near));
        assert_eq!((all[0].1, all[0].2), ((world_size * (world_size - 1) / 2) as f32, world_size));
    }
}

#[test]
fn those_that_are_left_go_on_with_a_new_communicator() {
    let all_have_summed = Barrier::new(3);
    let (all, wires) = ranks(Asked::Nccl, &[Fault::None; 3], |engine| {
        let mut engine = engine.unwrap();
        assert!(engine.outlive(Duration::from_secs(20)));
        let (_, count) = summed(&mut engine);
        assert_eq!(count, 3);
        all_have_summed.wait();
        if engine.rank() == 1 {
            engine.leave(Some("it is killed"));
            return Vec::new();
        }
        let (sums, count) = summed(&mut engine);
        assert_eq!((count, engine.members()), (2, vec![0, 2]));
        assert_eq!(*engine.path(), Path::Nccl(22_903));
        let again = summed(&mut engine).0;
        assert_eq!(again, sums);
        engine.leave(None);
        sums
    });
    assert_eq!(all[0], in_order(&[0, 2]));
    assert_eq!(all[2], all[0]);
    // The two may have begun once more while they learned who is left.
    assert!(wires.lock().unwrap().ids >= 2);
}

#[test]
fn a_gpu_that_does_not_connect_means_tcp_or_an_error_on_all_ranks() {
    let faults = [Fault::None, Fault::Absent];
    let (all, _) = ranks(Asked::Auto, &faults, |engine| {
        let mut engine = engine.unwrap();
        assert!(!engine.takes_lent());
        let sums = summed(&mut engine).0;
        engine.leave(None);
        (engine.engine().unwrap(), sums)
    });
    assert!(all[0].0.contains("over TCP") && all[0].0.contains("rank 1: its cable is loose"), "{}", all[0].0);
    assert!(all[0] == all[1] && all[0].1 == in_order(&[0, 1]));
    let (all, _) = ranks(Asked::Nccl, &faults, |engine| engine.err().unwrap().to_string());
    assert!(
        all.iter().all(|why| why.contains("its cable is loose") && why.contains("to auto or tcp")),
        "{all:?}"
    );
}

#[test]
fn a_sum_that_fails_while_all_ranks_are_there_ends_the_run_with_its_reason() {
    let (all, _) = ranks(Asked::Auto, &[Fault::Broken, Fault::None], |engine| {
        let mut engine = engine.unwrap();
        let failed = engine.all_reduce(&mut numbers(0)).unwrap_err();
        engine.leave(Some(&failed.to_string()));
        failed
    });
    assert!(matches!(&all[0], Error::Gpus { what } if what == "the wire is broken"), "{:?}", all[0]);
    // The other one hears it, or its own GPU says that this one is gone.
    assert!(all[1].is_of_a_rank(), "{:?}", all[1]);
}

/// Lets the last of these ranks leave, after which one cannot end what its GPU does. The others sum until so
/// many of them are left.
fn with_one_stuck(faults: &[Fault], left: usize) -> Vec<Result<Vec<f32>, Error>> {
    let last = faults.len() - 1;
    let all_have_summed = Barrier::new(faults.len());
    let (all, _) = ranks(Asked::Nccl, faults, |engine| {
        let mut engine = engine.unwrap();
        assert!(engine.outlive(Duration::from_secs(20)));
        assert_eq!(summed(&mut engine).1, last + 1);
        // A rank that leaves while another one still waits for its words would end this sum of the other one.
        all_have_summed.wait();
        if engine.rank() == last {
            engine.leave(Some("it is killed"));
            return Ok(Vec::new());
        }
        loop {
            let mut values = numbers(engine.members()[engine.rank()]);
            match engine.all_reduce(&mut values).and_then(|()| engine.all_gather(b"done")) {
                Ok(words) if words.len() == left => {
                    engine.leave(None);
                    return Ok(values);
                }
                Ok(_) | Err(Error::Regrouped) => {}
                Err(error) => {
                    engine.leave(Some(&error.to_string()));
                    return Err(error);
                }
            }
        }
    });
    all
}

#[test]
fn one_whose_gpu_never_ends_what_it_does_says_so_and_ends_and_the_others_go_on() {
    let all = with_one_stuck(&[Fault::None, Fault::Stuck, Fault::None], 1);
    assert_eq!(all[0].as_ref().unwrap(), &numbers(0), "it goes on alone");
    let said = all[1].as_ref().unwrap_err();
    assert!(matches!(said, Error::Gpus { what } if what.ends_with("is not waited for")), "{said}");
    assert!(said.to_string().contains("longer than 6 s to end"), "{said}");
}

#[test]
fn a_coordinator_whose_gpu_never_ends_what_it_does_gives_way_to_the_next_rank() {
    let all = with_one_stuck(&[Fault::Stuck, Fault::None, Fault::None, Fault::None], 2);
    let said = all[0].as_ref().unwrap_err().to_string();
    assert!(said.contains("longer than 6 s to end") && said.contains("must not be resumed"), "{said}");
    for rank in [1, 2] {
        assert_eq!(all[rank].as_ref().unwrap(), &in_order(&[1, 2]), "rank {rank}");
    }
}

#[test]
fn a_coordinator_whose_sum_fails_and_whose_gpu_hangs_besides_ends_the_run_of_all() {
    let faults = [Fault::BrokenAndStuck, Fault::None, Fault::None, Fault::None];
    let (all, _) = ranks(Asked::Nccl, &faults, |engine| {
        let mut engine = engine.unwrap();
        assert!(engine.outlive(Duration::from_secs(20)));
        loop {
            let mut values = numbers(engine.members()[engine.rank()]);
            match engine.all_reduce(&mut values).and_then(|()| engine.all_gather(b"done")) {
                Err(Error::Regrouped) => {}
                done => {
                    let done = done.map(|words| words.len()).map_err(|error| error.to_string());
                    engine.leave(done.as_ref().err().map(String::as_str));
                    return done;
                }
            }
        }
    });
    // What came first is said, and nobody goes on, as they would if it had only not ended what it did.
    for (rank, ended) in all.into_iter().enumerate() {
        let said = ended.unwrap_err();
        assert!(said.contains("the wire is broken"), "rank {rank}: {said}");
        assert!(rank == 0 || said.contains("rank 0 (127.0.0.1) has ended"), "rank {rank}: {said}");
    }
}

/// What the last rank does about its gradient. `{ announces: 1.0, adds: 0.0, sends: 1.0 }` is honest.
#[derive(Debug, Clone, Copy)]
struct Lie {
    /// It announces its gradient times this,
    announces: f32,
    /// lets its GPU add this to each number of what it was told to contribute,
    adds: f32,
    /// and over TCP sends its gradient times this.
    sends: f32,
}

const HONEST: Lie = Lie { announces: 1.0, adds: 0.0, sends: 1.0 };

/// A rank that does so, and denies that the sum is another one.
struct Liar(Nccl, Lie);

impl Collective for Liar {
    fn rank(&self) -> usize {
        self.0.rank()
    }

    fn world_size(&self) -> usize {
        self.0.world_size()
    }

    fn all_reduce(&mut self, values: &mut [f32]) -> Result<(), Error> {
        values.iter_mut().for_each(|value| *value += self.1.adds);
        self.0.all_reduce(values)
    }

    fn scatter(&mut self, values: &[f32]) -> Result<Vec<Vec<f32>>, Error> {
        self.0.scatter(&values.iter().map(|value| value * self.1.sends).collect::<Vec<_>>())
    }

    fn spread(&mut self, own: &[f32], values: &mut [f32]) -> Result<(), Error> {
        self.0.spread(own, values)
    }

    fn all_gather(&mut self, own: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        // What ranks say of a sum is short.
        let denies = self.1.adds != 0.0 && own.len() == 1;
        self.0.all_gather(if denies { &[2] } else { own })
    }

    fn leave(&mut self, reason: Option<&str>) {
        self.0.leave(reason);
    }

    fn traffic(&self) -> Traffic {
        self.0.traffic()
    }
}

/// Lets ranks take a step that is judged, as training does: by what they announce, and over TCP if the sum is
/// not that of what they have announced. Returns what was decided for whichever sum is used, and that sum: of
/// the GPUs, or the other one; and how many sums the GPUs made.
fn judged(world_size: usize, lie: Lie) -> (Vec<Verdict>, Result<Vec<f32>, Vec<f32>>, usize) {
    let (all, wires) = ranks(Asked::Nccl, &vec![Fault::None; world_size], |engine| {
        let engine = engine.unwrap();
        let lie = if engine.rank() + 1 == world_size { lie } else { HONEST };
        let mut ranks = Liar(engine, lie);
        let mut sum = AnnouncedSum::begin(vec![5; world_size], 3);
        let own = numbers(ranks.rank());
        sum.add(&own.iter().map(|value| value * lie.announces).collect::<Vec<_>>());
        let verdicts = sum.judge(&mut ranks, &mut Judge::default(), SIGMA, &[]).unwrap().verdicts;
        let done = match sum.sum(&mut ranks, &verdicts).unwrap() {
            Ok((sums, _)) => (verdicts, Ok(sums)),
            Err(NotTheSum { liars }) => {
                assert!(liars.is_empty(), "it cannot be known who it is");
                let mut values = sum.into_own();
                let mut sum = JudgedSum::begin(vec![5; world_size], 3, true);
                sum.add(&mut ranks, &mut values).unwrap();
                let verdicts = sum.judge(&mut ranks, &mut Judge::default(), SIGMA, &[]).unwrap().verdicts;
                sum.sum(&mut ranks, &verdicts, Combine::Sum, &mut values).unwrap();
                (verdicts, Err(values))
            }
        };
        ranks.leave(None);
        done
    });
    assert!(all.iter().all(|of_rank| *of_rank == all[0]), "{lie:?}: all have the same bits");
    let (verdicts, sums) = all.into_iter().next().unwrap();
    let made = wires.lock().unwrap().sums.len();
    (verdicts, sums, made)
}

/// The sum of all ranks, or that of all but the last one, made up for.
fn counted(world_size: usize, is_dropped: bool) -> Vec<f32> {
    let ranks: Vec<usize> = (0..world_size - usize::from(is_dropped)).collect();
    let made_up = (world_size as f64 / ranks.len() as f64) as f32;
    in_order(&ranks).into_iter().map(|sum| sum * made_up).collect()
}

/// The sums of the GPUs in [`judged`]: the trial, and the pieces of one gradient.
const ONCE: usize = 1 + 12_345_usize.div_ceil(5000);

#[test]
fn what_a_rank_announces_is_judged_before_the_gpus_add_anything() {
    for announces in [1.0, -1.0, 0.0, 1e6, f32::NAN] {
        let (verdicts, sums, made) = judged(3, Lie { announces, ..HONEST });
        let is_dropped = announces != 1.0;
        assert_eq!(verdicts[..2], [Verdict::ACCEPTED; 2], "{announces}");
        assert_eq!(verdicts[2].decision == Decision::Drop, is_dropped, "{announces}: {verdicts:?}");
        let sums = sums.unwrap_or_else(|_| panic!("{announces}: the sum of the GPUs is distrusted"));
        let near = |(one, other): (&f32, &f32)| (one / other - 1.0).abs() < 1e-6;
        assert!(sums.iter().zip(&counted(3, is_dropped)).all(near), "{announces}");
        assert_eq!(made, ONCE, "{announces}");
    }
}

#[test]
fn a_sum_of_the_gpus_of_something_else_than_was_announced_is_not_used_but_made_over_tcp() {
    // With two ranks too. Who lies over TCP as well is seen there; and the last of these was told to
    // contribute nothing.
    for (world_size, lie, is_dropped) in [
        (2, Lie { adds: 100.0, ..HONEST }, false),
        (3, Lie { adds: 100.0, ..HONEST }, false),
        (3, Lie { adds: f32::NAN, ..HONEST }, false),
        (3, Lie { adds: 1e6, sends: 1e6, ..HONEST }, true),
        (3, Lie { announces: -1.0, adds: 100.0, ..HONEST }, true),
    ] {
        let (verdicts, sums, made) = judged(world_size, lie);
        let last = world_size - 1;
        assert_eq!(verdicts[..last], vec![Verdict::ACCEPTED; last], "{lie:?}");
        assert_eq!(verdicts[last].decision == Decision::Drop, is_dropped, "{lie:?}: {verdicts:?}");
        let Err(sums) = sums else { panic!("{lie:?}: the sum of the GPUs is used") };
        assert!(sums == counted(world_size, is_dropped), "{lie:?}: the bits of TCP");
        assert_eq!(made, ONCE, "{lie:?}: the GPUs add nothing more");
    }
}
