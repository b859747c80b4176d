//! Sums in the network: in user space on loopback, and in the kernel between network namespaces, with packets
//! that are lost on purpose. Each rank in a namespace is a process of its own, which is this test again.
//!
//! `SPARKTUNE_XDP_RANKS=4 SPARKTUNE_XDP_NUMBERS=4000000 cargo test … between_namespaces -- --nocapture` has
//! more ranks and numbers.

use std::net::{Ipv4Addr, UdpSocket};
use std::ops::Range;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use sparktune_base::pages::{Pages, Part};
use sparktune_cluster::announced::{AnnouncedSum, NotTheSum};
use sparktune_cluster::lab::{INTERFACE, Lab, skipped};
use sparktune_cluster::sentry::{Judge, Reason, SIGMA};
use sparktune_cluster::xdp::slots::Verdict;
use sparktune_cluster::xdp::wire::VALUES;
use sparktune_cluster::xdp::{Choice, Loss, Path, Report, Xdp, join, quantise};
use sparktune_cluster::{
    BlocksForGpu, Collective, Error, JobToken, Lent, Limits, Measured, Quantiser, SummedBy, Traffic,
};

use crate::membership::until;
use crate::{TOKEN, bits, free_port, numbers, placement};

/// The sums that follow from the ranks' numbers alone, without any packets.
pub(crate) fn expected(world_size: usize, length: usize, rotated: usize) -> Vec<f32> {
    let mut parts: Vec<Vec<f32>> = (0..world_size).map(|rank| numbers(rank, length)).collect();
    parts.iter_mut().for_each(|part| part.rotate_left(rotated));
    expected_of(&parts, world_size)
}

/// The same of these parts, if there are so many ranks.
fn expected_of(parts: &[Vec<f32>], world_size: usize) -> Vec<f32> {
    let length = parts[0].len();
    let mut shared = quantise::magnitudes(&parts[0]);
    parts.iter().for_each(|part| quantise::agree(&mut shared, quantise::magnitudes(part)));
    let mut sums = vec![0_i16; length];
    for part in parts {
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

pub(crate) fn opened(rank: usize, world_size: usize, host: &str, port: u16, choice: Choice) -> Xdp {
    let placement = placement(rank, world_size, host, port);
    let token = JobToken::parse(TOKEN).unwrap();
    join(&placement, Some(&token), "build", Limits::default(), Arc::new(|| false), choice).unwrap()
}

/// Stands for a GPU: what is lent are numbers of the host.
#[derive(Default)]
struct StandIn {
    integers: Vec<[u8; 2]>,
    /// What it has of the engine's arena, if there is one.
    arena: Option<Part>,
}

/// The blocks whose sums were read where they came.
static SUMS_ELSEWHERE: AtomicUsize = AtomicUsize::new(0);

impl StandIn {
    /// Reads the sums of a block in the arena.
    fn read(&self, at: usize) -> [[u8; 2]; VALUES] {
        let pages = self.arena.as_ref().expect("sums lie elsewhere only in an arena").pages();
        assert!(at + 2 * VALUES <= pages.len());
        // SAFETY: the sums are inside the pages, and nobody writes them before the next sum.
        #[expect(unsafe_code, reason = "the SAFETY comment says why this is sound")]
        unsafe {
            pages.address().as_ptr().add(at).cast::<[[u8; 2]; VALUES]>().read()
        }
    }
}

fn lent_numbers(lent: &mut Lent) -> Result<&mut Vec<f32>, String> {
    lent.downcast_mut().ok_or_else(|| "not of this device".to_owned())
}

impl Quantiser for StandIn {
    fn count(&self, lent: &mut Lent) -> Result<usize, String> {
        Ok(lent_numbers(lent)?.len())
    }

    fn magnitudes(&mut self, lent: &mut Lent, of: Range<usize>) -> Result<Vec<f32>, String> {
        Ok(quantise::magnitudes(&lent_numbers(lent)?[of]))
    }

    fn encode(
        &mut self,
        lent: &mut Lent,
        of: Range<usize>,
        magnitudes: &[f32],
        workers: usize,
    ) -> Result<(), String> {
        self.integers.resize(of.len().next_multiple_of(VALUES), [0; 2]);
        let blocks = lent_numbers(lent)?[of].chunks(VALUES).zip(self.integers.chunks_mut(VALUES));
        for ((numbers, integers), magnitude) in blocks.zip(magnitudes) {
            quantise::encode(numbers, *magnitude, workers, None, integers);
        }
        Ok(())
    }

    fn pages(&self) -> Option<&Arc<Pages>> {
        self.arena.as_ref().map(Part::pages)
    }

    fn integers(&mut self) -> &mut [[u8; 2]] {
        &mut self.integers
    }

    fn decode(
        &mut self,
        lent: &mut Lent,
        of: Range<usize>,
        magnitudes: &[f32],
        workers: usize,
        places: &[Option<usize>],
    ) -> Result<(), String> {
        let blocks = lent_numbers(lent)?[of].chunks_mut(VALUES).zip(self.integers.chunks(VALUES));
        for (((numbers, integers), magnitude), place) in blocks.zip(magnitudes).zip(places) {
            let elsewhere = place.map(|at| self.read(at));
            let integers = elsewhere.as_ref().map_or(integers, |sums| &sums[..]);
            let sums = integers.iter().map(|integer| i16::from_le_bytes(*integer));
            quantise::decode(sums, *magnitude, workers, numbers);
        }
        SUMS_ELSEWHERE.fetch_add(places.iter().flatten().count(), Ordering::Relaxed);
        Ok(())
    }

    fn numbers(&mut self, lent: &mut Lent) -> Result<Vec<f32>, String> {
        lent_numbers(lent).cloned()
    }

    fn replace(&mut self, lent: &mut Lent, numbers: &[f32]) -> Result<(), String> {
        lent_numbers(lent)?.copy_from_slice(numbers);
        Ok(())
    }
}

#[test]
fn a_gpu_that_cannot_round_ends_its_rank_in_words() {
    let port = free_port();
    let found = thread::scope(|scope| {
        let other = scope.spawn(move || {
            let mut engine = opened(1, 2, "127.0.0.1", port, Choice::default());
            engine.all_reduce(&mut numbers(1, 5000)).unwrap_err()
        });
        let mut engine = opened(0, 2, "127.0.0.1", port, Choice::default());
        engine.round_on(Box::new(StandIn::default()));
        let error = engine.all_reduce_lent(&mut "no numbers").unwrap_err();
        engine.leave(Some(&error.to_string()));
        [error, other.join().unwrap()]
    });
    assert!(matches!(&found[0], Error::Rounding { what } if what == "not of this device"), "{}", found[0]);
    assert!(found[0].is_of_a_rank(), "what was trained is kept");
    assert!(found[1].to_string().contains("could not round gradients: not of this device"), "{}", found[1]);
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
            // One of them has a GPU that rounds.
            if rank == 1 {
                engine.round_on(Box::new(StandIn::default()));
            }
            let sums = lengths.map(|length| {
                let mut values = numbers(rank, length);
                if engine.takes_lent() {
                    engine.all_reduce_lent(&mut values).unwrap();
                } else {
                    engine.all_reduce(&mut values).unwrap();
                }
                bits(&values)
            });
            engine.leave(None);
            (sums, engine.report(), engine.counts(), engine.blocks_for_gpu())
        };
        let found: Vec<_> = thread::scope(|scope| {
            let work = &work;
            let ranks: Vec<_> = (0..world_size).map(|rank| scope.spawn(move || work(rank))).collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        });
        for (sums, report, ..) in &found {
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
        let chunks = lengths[1..].iter().map(|length| length.div_ceil(VALUES)).sum::<usize>() as u64;
        assert_eq!(counts[Verdict::Completed], 2 + chunks);
        // The sums that a GPU reads have come by the socket.
        let of_gpu = BlocksForGpu { in_place: 0, copied: chunks };
        assert_eq!([&found[0].3, &found[1].3], [&None, &Some(of_gpu)]);
        assert!(loss == 0 || counts[Verdict::Resent] > 0, "{counts:?}");
    }
}

/// A rank that contributes its gradient times a factor, whatever it has announced, and denies what the others
/// find of it: it says that it was another one.
struct Liar(Xdp, f32);

impl Collective for Liar {
    fn rank(&self) -> usize {
        self.0.rank()
    }

    fn world_size(&self) -> usize {
        self.0.world_size()
    }

    fn all_reduce(&mut self, values: &mut [f32]) -> Result<(), Error> {
        if self.1 != 1.0 {
            // Also when it was told to contribute nothing.
            let own = numbers(self.rank(), values.len());
            values.iter_mut().zip(own).for_each(|(value, own)| *value = own * self.1);
        }
        self.0.all_reduce(values)
    }

    fn all_gather(&mut self, own: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        // What ranks say of a sum is short.
        let denies = self.1 != 1.0 && (1..8).contains(&own.len());
        // Once it is muted, it calls every sum wrong.
        let found = if self.0.muted().is_empty() { 2 } else { 0 };
        let word = [found, ((self.rank() + 1) % self.world_size()) as u8];
        self.0.all_gather(if denies { &word } else { own })
    }

    fn leave(&mut self, reason: Option<&str>) {
        self.0.leave(reason);
    }

    fn traffic(&self) -> Traffic {
        self.0.traffic()
    }

    fn summed_by(&self) -> SummedBy {
        self.0.summed_by()
    }

    fn measured(&mut self) -> Option<Measured> {
        self.0.measured()
    }

    fn mute(&mut self, ranks: &[usize]) -> Result<bool, Error> {
        self.0.mute(ranks)
    }

    fn muted(&self) -> Vec<usize> {
        self.0.muted()
    }
}

/// The sum of a step with whom was muted and how often it was made, or whom it is known of that it has lied,
/// if it is not used.
type JudgedStep = Result<(Vec<f32>, Vec<usize>, usize), Vec<usize>>;

/// Takes two steps that are judged.
fn judged_steps(ranks: &mut Liar, length: usize) -> Vec<JudgedStep> {
    let mut judge = Judge::default();
    let mut step = |seed: u64| {
        let mut sum = AnnouncedSum::begin(vec![5; ranks.world_size()], seed);
        sum.add(&numbers(ranks.rank(), length));
        for times in 1.. {
            let mut next = judge.clone();
            let verdicts = sum.judge(ranks, &mut next, SIGMA, &[]).unwrap().verdicts;
            match sum.sum(ranks, &verdicts).unwrap() {
                Ok((sums, _)) => {
                    judge = next;
                    let lied = |rank: &usize| verdicts[*rank].reason == Some(Reason::Lied);
                    let muted: Vec<usize> = (0..verdicts.len()).filter(lied).collect();
                    assert_eq!(muted, ranks.muted());
                    return Ok((sums, muted, times));
                }
                Err(NotTheSum { liars }) if ranks.mute(&liars).unwrap() => {}
                Err(NotTheSum { liars }) => return Err(liars),
            }
        }
        unreachable!("each time, somebody more is muted")
    };
    vec![step(3), step(4)]
}

/// The sum without this rank, made up for.
fn without(liar: usize, world_size: usize, length: usize) -> Vec<f32> {
    let parts = (0..world_size).filter(|rank| *rank != liar).map(|rank| numbers(rank, length));
    let parts: Vec<Vec<f32>> = parts.collect();
    let mut sums = if length < 4096 {
        let add = |mut sums: Vec<f32>, part: &Vec<f32>| {
            sums.iter_mut().zip(part).for_each(|(sum, value)| *sum += value);
            sums
        };
        parts[1..].iter().fold(parts[0].clone(), add)
    } else {
        expected_of(&parts, world_size)
    };
    let made_up = (world_size as f64 / (world_size - 1) as f64) as f32;
    sums.iter_mut().for_each(|sum| *sum *= made_up);
    sums
}

#[test]
fn who_sends_another_gradient_than_it_announced_is_known_by_its_length_and_the_step_is_made_without_it() {
    let steps = |world_size: usize, liar: usize, factor: f32, length: usize| {
        let port = free_port();
        let work = |rank: usize| {
            let engine = opened(rank, world_size, "127.0.0.1", port, Choice::default());
            let mut ranks = Liar(engine, if rank == liar { factor } else { 1.0 });
            let steps = judged_steps(&mut ranks, length);
            ranks.leave(None);
            steps
        };
        let all: Vec<_> = thread::scope(|scope| {
            let ranks: Vec<_> = (0..world_size).map(|rank| scope.spawn(move || work(rank))).collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        });
        assert!(all.iter().all(|of_rank| *of_rank == all[0]), "all have the same bits");
        all.into_iter().next().unwrap()
    };
    let honest = steps(3, 9, 1.0, 20_003);
    for step in honest {
        let (sums, muted, times) = step.unwrap();
        assert!(muted.is_empty() && times == 1 && bits(&sums) == bits(&expected(3, 20_003, 0)));
    }
    // Rank 0 has the switch. A lie of 1 % is far less than what a rounded sum shows.
    for (liar, factor, length) in [
        (1, 5.0, 20_003),
        (1, 1.01, 20_003),
        (2, 0.0, 20_003),
        (0, f32::NAN, 20_003),
        (0, 1e30, 20_003),
        (1, 0.9, 3000),
    ] {
        let expected = without(liar, 3, length);
        for (step, found) in steps(3, liar, factor, length).into_iter().enumerate() {
            let (sums, muted, times) = found.unwrap();
            assert_eq!((muted, times), (vec![liar], 2 - step), "{factor}, {length} numbers");
            assert!(bits(&sums) == bits(&expected), "{factor}, {length} numbers, step {step}");
        }
    }
    // It is as long as what was announced; and of two ranks, each says of the other what it likes.
    for (world_size, factor) in [(3, -1.0), (2, 5.0)] {
        for step in steps(world_size, 1, factor, 20_003) {
            assert_eq!(step.unwrap_err(), Vec::<usize>::new(), "{factor}");
        }
    }
}

#[test]
fn the_switch_of_a_thread_has_the_port_that_was_chosen_or_another_one_if_that_is_taken() {
    let chosen = free_port();
    let is_taken = || UdpSocket::bind((Ipv4Addr::UNSPECIFIED, chosen)).is_err();
    let path_of = |interfaces: &[&str]| {
        let (port, interfaces) = (free_port(), interfaces.iter().map(|name| (*name).to_owned()).collect());
        let choice = Choice { interfaces, port: chosen, ..Choice::default() };
        let work = |rank: usize| {
            let mut engine = opened(rank, 2, "127.0.0.1", port, choice.clone());
            let found = (engine.path().clone(), is_taken());
            engine.leave(None);
            found
        };
        thread::scope(|scope| {
            let second = scope.spawn(|| work(1));
            let found = work(0);
            assert_eq!(second.join().unwrap().0, found.0);
            found
        })
    };
    assert_eq!(path_of(&[]), (Path::User(None), true));
    // Another job of this machine has it. The thread that had it may still be ending.
    let mut other = None;
    until(|| {
        other = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, chosen)).ok();
        other.is_some()
    });
    assert_eq!(path_of(&[]).0, Path::User(None));
    // The kernel's program is told a port, so there it is missed, and the ranks say why.
    let Path::User(Some(why)) = path_of(&["no such interface"]).0 else { panic!("it sums elsewhere") };
    assert!(why.contains(&format!("rank 0: UDP port {chosen} cannot be used")), "{why}");
    drop(other);
}

/// The name of the next test, for the command line of this program.
#[cfg(feature = "xdp")]
const REFUSED: &str = "xdp::a_kernel_that_refuses_is_told_in_words_and_sums_are_made_in_user_space";
/// Names an interface that exists to the next test, whose process may not load programs then.
const ATTACHABLE: &str = "SPARKTUNE_XDP_REFUSED_AT";

#[test]
fn a_kernel_that_refuses_is_told_in_words_and_sums_are_made_in_user_space() {
    let port = free_port();
    let attachable = std::env::var(ATTACHABLE).ok();
    let interfaces = vec![attachable.clone().unwrap_or_else(|| "no such interface".to_owned())];
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
        let reasons = ["CAP_BPF", "no such interface", "built without"];
        let reasons = if attachable.is_some() { &reasons[..1] } else { &reasons[..] };
        let is_told = why.contains("rank 0: ") && reasons.iter().any(|reason| why.contains(*reason));
        assert!(is_told, "{why}");
        assert!(sums == bits(&expected(2, 5000, 0)));
    }
}

#[test]
#[cfg(feature = "xdp")]
fn root_without_capabilities_is_refused_and_told_which_ones_are_needed() {
    let program = std::env::current_exe().unwrap();
    let without_capabilities = |words: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args(["--bounding-set=-all", "--inh-caps=-all"]).arg(&program).args(words);
        command.env(ATTACHABLE, "lo").stdin(Stdio::null()).output()
    };
    if !without_capabilities(&["--list"]).is_ok_and(|output| output.status.success()) {
        return skipped("this needs root with its capabilities, and setpriv of util-linux");
    }
    let output = without_capabilities(&["--exact", REFUSED, "--nocapture"]).unwrap();
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
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
    let [rank, world_size, port, length, loss, liar, by_af_xdp] = job[..] else { panic!("{job:?}") };
    let (rank, world_size, length) = (rank as usize, world_size as usize, length as usize);
    let interfaces = if rank == 0 { (1..world_size).map(Lab::port).collect() } else { Vec::new() };
    let is_by_af_xdp = [1, 5].contains(&by_af_xdp) && rank > 0;
    let interface = [None, Some(INTERFACE), Some("lo"), Some("nowhere"), Some("lo"), Some(INTERFACE)];
    let interface = interface[by_af_xdp as usize];
    // Without a program at its end of the cable, a rank gets nothing from the kernel of rank 0's machine.
    let is_deaf = by_af_xdp == 4;
    let has_own_arena = by_af_xdp == 5;
    let passing = (rank > 0 && !is_by_af_xdp && !is_deaf).then(|| let_through(INTERFACE));
    let loss = (loss > 0).then(|| Loss::new(loss as u32, rank as u64));
    let af_xdp = interface.filter(|_| rank > 0).map(str::to_owned);
    let choice = Choice { interfaces, loss, af_xdp, silence: Duration::from_secs(60), ..Choice::default() };
    let mut engine = opened(rank, world_size, &Lab::address(0).to_string(), port as u16, choice);
    let said = engine.engine().unwrap();
    println!("ENGINE {said}");
    // One rank has a GPU that rounds, and reads sums where they came by AF_XDP.
    if rank == 1 && liar == 0 {
        let mut arena = engine.arena();
        assert_eq!(arena.is_some(), is_by_af_xdp);
        if has_own_arena {
            let [own] = Pages::in_parts([1 << 20]).unwrap();
            arena = Some(own);
        }
        engine.round_on(Box::new(StandIn { arena, ..StandIn::default() }));
    }
    let mut hasher = blake3::Hasher::new();
    if liar > 0 {
        let factor = if rank == liar as usize { 1.01 } else { 1.0 };
        let mut ranks = Liar(engine, factor);
        for (step, found) in judged_steps(&mut ranks, length).into_iter().enumerate() {
            let (sums, muted, times) = found.unwrap();
            assert_eq!((muted, times), (vec![liar as usize], 2 - step));
            hasher.update(bytemuck::cast_slice(&sums));
        }
        engine = ranks.0;
    } else {
        for round in 0..ROUNDS {
            let mut values = numbers(rank, length);
            values.rotate_left(round);
            if engine.takes_lent() {
                engine.all_reduce_lent(&mut values).unwrap();
            } else {
                engine.all_reduce(&mut values).unwrap();
            }
            values.rotate_right(round);
            hasher.update(bytemuck::cast_slice(&values));
        }
    }
    engine.leave(None);
    println!("PATH {:?}", engine.path());
    let by_socket = "results come to this rank by a socket and not by AF_XDP: ";
    let why = [
        "",
        "",
        "none came by the interface lo",
        "AF_XDP cannot take packets from the interface nowhere: there is no such interface",
        "none came by the interface lo",
        "",
    ];
    let why = why[by_af_xdp as usize];
    assert_eq!(said.contains(by_socket), rank > 0 && !why.is_empty(), "{said}");
    assert!(rank == 0 || said.ends_with(why), "{said}");
    println!("REPORT {:?} {:?}", engine.report(), engine.counts());
    let elsewhere = SUMS_ELSEWHERE.load(Ordering::Relaxed) as u64;
    println!("READ WHERE THEY CAME {elsewhere}, BY AF_XDP {}", engine.report().delivered);
    let chunks = (length.div_ceil(VALUES) * ROUNDS) as u64;
    let readable = if is_by_af_xdp && !has_own_arena { chunks } else { 0 };
    let of_gpu = BlocksForGpu { in_place: readable, copied: chunks - readable };
    assert_eq!(engine.blocks_for_gpu(), (rank == 1 && liar == 0).then_some(of_gpu));
    assert!(rank != 1 || liar > 0 || elsewhere == readable, "{elsewhere} of {readable} blocks");
    if is_by_af_xdp {
        // Nothing came by the socket.
        let Report { delivered, results, useless, .. } = engine.report();
        assert!(delivered > 0 && results + useless <= delivered, "{:?}", engine.report());
        assert!(liar > 0 || results == 2 + chunks, "{:?}", engine.report());
    }
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
    for (loss, by_af_xdp) in [(0, NOT), (50_000, NOT), (0, YES), (50_000, YES)] {
        in_namespaces([world_size, 1], length, loss, 0, by_af_xdp, &expected);
    }
    // Several queues, by any of which results come. Ranks that get their results by their sockets after all,
    // once even from a thread. A GPU that cannot read results where they arrived.
    for (queues, by_af_xdp) in [(3, YES), (1, ELSEWHERE), (1, NOWHERE), (1, DEAF), (1, FOREIGN)] {
        in_namespaces([world_size, queues], length, 0, 0, by_af_xdp, &expected);
    }
}

#[test]
#[cfg(feature = "xdp")]
fn a_liar_is_known_by_what_the_kernel_measures_and_its_step_is_made_without_it() {
    let (world_size, length, liar) = (3, 20_003, 2);
    let mut hasher = blake3::Hasher::new();
    let sums = without(liar, world_size, length);
    hasher.update(bytemuck::cast_slice(&[sums.clone(), sums].concat()));
    let expected = format!("SUMS {}", hasher.finalize().to_hex());
    // The sockets are opened anew when a rank is muted.
    for by_af_xdp in [NOT, YES] {
        in_namespaces([world_size, 1], length, 20_000, liar, by_af_xdp, &expected);
    }
}

/// AF_XDP is not asked for.
#[cfg(feature = "xdp")]
const NOT: u8 = 0;
/// AF_XDP takes results.
#[cfg(feature = "xdp")]
const YES: u8 = 1;
/// AF_XDP is opened at an interface by which no results come.
#[cfg(feature = "xdp")]
const ELSEWHERE: u8 = 2;
/// AF_XDP is asked for at an interface that does not exist.
#[cfg(feature = "xdp")]
const NOWHERE: u8 = 3;
/// Like [`ELSEWHERE`], and the kernel's results do not reach the ordinary socket either.
#[cfg(feature = "xdp")]
const DEAF: u8 = 4;
/// Like [`YES`], but the GPU has an arena of its own.
#[cfg(feature = "xdp")]
const FOREIGN: u8 = 5;

/// Lets ranks sum between namespaces, of which one may lie, and compares what they say.
#[cfg(feature = "xdp")]
fn in_namespaces(
    [world_size, queues]: [usize; 2],
    length: usize,
    loss: u32,
    liar: usize,
    by_af_xdp: u8,
    expected: &str,
) {
    let Some(lab) = Lab::for_test(world_size, queues) else { return };
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
            command.env(JOB, format!("{rank} {world_size} {port} {length} {loss} {liar} {by_af_xdp}"));
            command.spawn().unwrap()
        })
        .collect();
    for (rank, child) in ranks.into_iter().enumerate() {
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        let lacks = ["CAP_BPF", "CAP_NET_RAW", "CAP_IPC_LOCK", "no sockets of AF_XDP"];
        if let Some(lacks) = lacks.iter().find(|what| errors.contains(*what) || said.contains(*what)) {
            return skipped(format!("this process may not do so here, or the kernel cannot: {lacks}"));
        }
        said.lines()
            .filter(|line| line.starts_with("REPORT") || line.starts_with("READ"))
            .for_each(|line| println!("rank {rank}, loss {loss}: {line}"));
        assert!(output.status.success(), "{said}\n{errors}");
        let path = if by_af_xdp == DEAF { "PATH User" } else { "PATH Kernel" };
        assert!(said.contains(path), "{said}");
        assert!(said.lines().any(|line| line == expected), "rank {rank}, loss {loss}: {said}");
    }
}
