//! Ranks in threads on loopback, some of which die at places that a seed chooses.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use sparktune_base::random::SplitMix64;
use sparktune_ndp::stream::Channel;
use sparktune_ndp::{Address, Patience};

use crate::collective::Collective;
use crate::environment::{Launcher, Placement};
use crate::error::Error;
use crate::introduction::{Answer, Hello, Purpose, VERSION};
use crate::listening::free_port;
use crate::rendezvous::{Known, Limits, Unmet, meet};
use crate::tcp::{Tcp, join};
use crate::token::JobToken;
use crate::waiting::Ends;

const STEPS: u64 = 8;
const MICRO_BATCHES: u64 = 7;
const NUMBERS: usize = 37;
/// Longer than a thread waits for a processor on a busy machine: those that die close their connections.
const LONG: Duration = Duration::from_secs(20);

/// A step that a rank has taken: its weights after it, as bits, and who took it.
type Taken = (Vec<u32>, Vec<usize>);

/// The gradient of a micro-batch, with numbers whose sum depends on the order.
fn gradient(step: u64, place: u64) -> Vec<f32> {
    let mut random = SplitMix64::new(step * 1000 + place);
    let number = |bits: u64| (bits >> 40) as f32 * 2f32.powi((bits % 24) as i32 - 12);
    (0..NUMBERS).map(|_| number(random.next_u64())).collect()
}

fn add(sums: &mut [f32], more: &[f32]) {
    sums.iter_mut().zip(more).for_each(|(sum, value)| *sum += value);
}

/// The sum of a rank's share of a step.
fn share(step: u64, rank: usize, count: usize) -> Vec<f32> {
    let mut sums = vec![0.0; NUMBERS];
    (rank as u64..MICRO_BATCHES).step_by(count).for_each(|place| add(&mut sums, &gradient(step, place)));
    sums
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Takes a step with all others, again whenever the members have changed.
fn step(tcp: &mut Tcp, step: u64, weights: &mut [f32]) -> Result<Vec<usize>, Error> {
    loop {
        let members = tcp.members();
        let mut sums = share(step, tcp.rank(), tcp.world_size());
        let mut done = || {
            let word = step.to_string().into_bytes();
            tcp.all_gather(&word)?;
            let (first, second) = sums.split_at_mut(NUMBERS / 2);
            tcp.all_reduce(first)?;
            tcp.all_reduce(second)?;
            tcp.all_gather(&word)
        };
        match done() {
            Err(Error::Regrouped) => {}
            Err(error) => return Err(error),
            Ok(words) => {
                assert!(
                    words.iter().all(|word| *word == step.to_string().into_bytes()),
                    "one step at a time"
                );
                add(weights, &sums);
                return Ok(members);
            }
        }
    }
}

/// Whether the others may go on without a rank that ended with this.
fn may_go_on_elsewhere(error: &Error) -> bool {
    matches!(error, Error::TooFew { .. } | Error::Lost { .. })
}

/// A rank that dies after so many messages, if it does. Returns its log, and why it ended early.
fn train(placement: &Placement, dies_after: Option<usize>) -> (Vec<Taken>, Option<Error>) {
    let mut tcp = join(placement, None, "build", Limits::default(), Arc::new(|| false)).unwrap();
    assert!(tcp.outlive(LONG));
    tcp.swarm.as_mut().unwrap().sends_left = dies_after;
    let (mut weights, mut log) = (vec![0.0; NUMBERS], Vec::new());
    for number in 0..STEPS {
        match step(&mut tcp, number, &mut weights) {
            Ok(members) => log.push((bits(&weights), members)),
            Err(error) => {
                assert_eq!(tcp.has_lost_others(), may_go_on_elsewhere(&error), "{error}");
                return (log, Some(error));
            }
        }
        if dies_after.is_some() && tcp.outgoing.is_empty() {
            return (log, Some(Error::Interrupted));
        }
    }
    tcp.leave(None);
    (log, None)
}

/// The weights after each step of one process that adds in the order of these members.
fn replayed(log: &[Taken]) -> Vec<Taken> {
    let mut weights = vec![0.0; NUMBERS];
    let steps = (0..).zip(log).map(|(step, (_, members))| {
        let mut sums = share(step, 0, members.len());
        (1..members.len()).for_each(|rank| add(&mut sums, &share(step, rank, members.len())));
        add(&mut weights, &sums);
        (bits(&weights), members.clone())
    });
    steps.collect()
}

fn swarm(world_size: usize, dies_after: &[Option<usize>]) -> Vec<(Vec<Taken>, Option<Error>)> {
    let port = free_port().unwrap();
    thread::scope(|scope| {
        let ranks = (0..world_size).map(|rank| {
            let (host, launcher) = ("127.0.0.1".to_owned(), Launcher::Torchrun);
            let placement = Placement { rank, world_size, local_rank: rank, host, port, launcher };
            let dies_after = dies_after[rank];
            scope.spawn(move || train(&placement, dies_after))
        });
        let ranks: Vec<_> = ranks.collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

#[test]
fn those_that_are_left_take_every_step_once_in_the_order_of_their_members_whoever_dies_wherever() {
    let mut random = SplitMix64::new(31);
    let (mut deaths, mut changes) = (0, 0);
    for trial in 0..16 {
        let world_size = 2 + trial % 3;
        // A step is six messages to each other rank. The first rank coordinates.
        let dies_after: Vec<Option<usize>> = (0..world_size)
            .map(|rank| {
                let at = 1 + (random.next_u64() % (STEPS * 6 * (world_size as u64 - 1))) as usize;
                let dies = rank > 0 && (rank == 1 || random.next_u64().is_multiple_of(3));
                dies.then_some(at)
            })
            .collect();
        let ended = swarm(world_size, &dies_after);
        let (first, error) = &ended[0];
        // If most are gone at once, rank 0 cannot know whether they go on without it.
        let is_enough = !matches!(error, Some(Error::TooFew { .. }));
        assert!(!is_enough || error.is_none(), "{trial} {dies_after:?}: {error:?}");
        assert!(!is_enough || first.len() as u64 == STEPS, "{trial} {dies_after:?}");
        assert_eq!(*first, replayed(first), "{trial} {dies_after:?}");
        for (rank, (log, error)) in ended.iter().enumerate() {
            let died = dies_after[rank].is_some() && error.is_some();
            deaths += usize::from(died);
            assert!(died || error.is_none() || !is_enough, "{trial} {dies_after:?}, rank {rank}: {error:?}");
            // One that hears the others, but is not heard, may take a step that the others do again.
            let of_all = &log[..log.len() - usize::from(died && !log.is_empty())];
            let is_whole = died || !is_enough || log.len() == first.len();
            assert!(first.starts_with(of_all) && is_whole, "{trial} {dies_after:?}, rank {rank}");
        }
        changes += first.windows(2).filter(|two| two[0].1 != two[1].1).count();
    }
    assert!(deaths >= 10 && changes >= 8, "{deaths} deaths, {changes} changes");
}

#[test]
fn if_the_coordinator_dies_the_next_one_takes_its_place_and_no_step_is_lost_or_taken_twice() {
    let mut random = SplitMix64::new(7);
    let mut taken_over = 0;
    for trial in 0..16 {
        let world_size = 3 + trial % 2;
        let at = |random: &mut SplitMix64| {
            1 + (random.next_u64() % (STEPS * 6 * (world_size as u64 - 1))) as usize
        };
        let mut dies_after = vec![None; world_size];
        dies_after[0] = Some(at(&mut random));
        // The one that would take its place may die too, before or after.
        let also = 1 + trial % 3;
        if trial % 4 == 3 {
            dies_after[also] = Some(at(&mut random));
        }
        let ended = swarm(world_size, &dies_after);
        let longest = &ended
            .iter()
            .filter(|(_, error)| error.is_none())
            .map(|(log, _)| log)
            .max_by_key(|log| log.len());
        let Some(of_all) = longest else {
            // Too few were left at once.
            assert!(dies_after[also].is_some(), "{trial} {dies_after:?}: {ended:?}");
            continue;
        };
        assert_eq!((of_all.len() as u64, *of_all), (STEPS, &replayed(of_all)), "{trial} {dies_after:?}");
        for (rank, (log, error)) in ended.iter().enumerate() {
            let died = error.is_some();
            assert!(!died || dies_after[rank].is_some(), "{trial} {dies_after:?}, rank {rank}: {error:?}");
            let said = &log[..log.len() - usize::from(died && !log.is_empty())];
            assert!(of_all.starts_with(said), "{trial} {dies_after:?}, rank {rank}");
        }
        taken_over += usize::from(of_all.last().is_some_and(|(_, members)| members[0] > 0));
    }
    assert!(taken_over >= 10, "{taken_over}");
}

#[test]
fn one_of_two_that_loses_the_coordinator_ends_because_the_coordinator_may_go_on() {
    let ended = swarm(2, &[Some(11), None]);
    let (log, error) = &ended[1];
    let error = error.as_ref().unwrap();
    assert!(error.is_of_a_rank() && error.to_string().starts_with("rank 0 (127.0.0.1)"), "{error}");
    assert!(ended[0].0.starts_with(log) || log.starts_with(&ended[0].0));
}

fn placement(rank: usize, world_size: usize, port: u16) -> Placement {
    let (host, launcher) = ("127.0.0.1".to_owned(), Launcher::Torchrun);
    Placement { rank, world_size, local_rank: rank, host, port, launcher }
}

/// Lets the ranks of a swarm of three do something each. Whoever is silent for so long is gone.
fn three<T: Send>(silence: Duration, work: impl Fn(Tcp) -> T + Sync) -> Vec<T> {
    let port = free_port().unwrap();
    let work = &work;
    thread::scope(|scope| {
        let start = |rank: usize| {
            scope.spawn(move || {
                let placement = placement(rank, 3, port);
                let mut tcp = join(&placement, None, "build", Limits::default(), Arc::new(|| false)).unwrap();
                assert!(tcp.outlive(silence));
                // A rank that leaves and comes back while others still meet is refused.
                tcp.all_gather(b"met").unwrap();
                work(tcp)
            })
        };
        let ranks: Vec<_> = (0..3).map(start).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// What ranks do until all have what they need: from the start, when one of them is lost meanwhile.
fn heal(tcp: &mut Tcp) -> Result<Vec<Vec<u8>>, Error> {
    loop {
        let mut done = || {
            tcp.broadcast(b"the run")?;
            tcp.all_reduce(&mut [1.0; 100])?;
            let own = tcp.launched_as()[tcp.rank()];
            tcp.all_gather(own.to_string().as_bytes())
        };
        match done() {
            Err(Error::Regrouped) => {}
            done => return done,
        }
    }
}

/// Waits at the door of those at work at this port, comes to their meeting when it is told to, and goes away
/// when it has been welcomed there. It never listens.
fn knock_and_vanish(port: u16) {
    let token = JobToken::of_loopback();
    let key = token.key().public();
    let mut hello = Hello {
        version: VERSION,
        rank: 2,
        world_size: 3,
        launched_as: 2,
        meeting: 0,
        attempt: 0,
        build: "build".into(),
        port: free_port().unwrap(),
        purpose: Purpose::Work,
    };
    loop {
        let address = Address { host: "127.0.0.1".into(), port, name: "rank-0".into(), key, hash: None };
        let patience = Patience { period: Duration::MAX, ..Patience::default() };
        let channel = Channel::connect(&address, &token.proof(), patience, Arc::new(|| false));
        let Ok(mut channel) = channel else {
            thread::sleep(Duration::from_millis(20));
            continue;
        };
        channel.tell(&hello).unwrap();
        loop {
            match channel.hear() {
                Ok(Answer::Wait { .. }) => {}
                Ok(Answer::Again { rank, launched_as, meeting }) => {
                    let (world_size, launched_as) = (launched_as.len(), launched_as[rank]);
                    hello = Hello { rank, world_size, launched_as, meeting, ..hello };
                    break;
                }
                Ok(Answer::Welcome(welcome)) => {
                    assert_eq!(welcome.present, [0, 1, 2]);
                    return;
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

#[test]
fn one_that_waited_and_does_not_come_and_one_that_dies_while_they_heal_do_not_end_the_others() {
    // Longer than a thread waits for a processor. A rank that does not come is waited for twice as long.
    let silence = Duration::from_secs(8);
    let ended = three(silence, |mut tcp| {
        let number = tcp.rank();
        if number == 2 {
            // It knocks again later, as another process would, and goes away when it is let in.
            let placement = placement(2, 3, tcp.addresses()[0].1);
            tcp.leave(Some("killed"));
            drop(tcp);
            let ends = Ends::new(Arc::new(|| false), Arc::new(|_| ()));
            let limits = Limits { meeting: Duration::from_secs(120), ..Limits::default() };
            let known = Known { launched_as: 2, ..Known::default() };
            let met = meet(&placement, None, "build", limits, &known, &ends);
            let Err(Unmet { error: Error::Renumbered { rank: 2, launched_as, .. }, .. }) = met else {
                panic!("it met somebody");
            };
            assert_eq!(launched_as, [0, 1, 2]);
            return None;
        }
        let said = loop {
            let waiting = tcp.newcomers();
            match tcp.broadcast(&[waiting as u8]) {
                Ok(said) if said == [1] => break said,
                Ok(_) | Err(Error::Regrouped) => thread::sleep(Duration::from_millis(20)),
                Err(error) => panic!("{error}"),
            }
        };
        assert_eq!(said, [1]);
        let before = tcp.changes();
        assert_eq!(before.iter().map(|change| change.lost[0].0).collect::<Vec<_>>(), [2]);
        tcp.meet_again().unwrap();
        assert!(tcp.is_healing());
        let words = heal(&mut tcp).unwrap();
        let absent = tcp.changes();
        assert_eq!((absent.len(), absent[0].lost[0].0, &*absent[0].members), (1, 2, &[0, 1][..]));
        assert!(absent[0].lost[0].1.contains("did not come"), "{absent:?}");
        tcp.leave(None);
        Some(words)
    });
    assert_eq!(
        ended,
        [Some(vec![b"0".to_vec(), b"1".to_vec()]), Some(vec![b"0".to_vec(), b"1".to_vec()]), None]
    );

    let words = [b"0".to_vec(), b"1".to_vec()].to_vec();
    // The same, and it goes away when it has been told who else is there: the others cannot connect to it.
    let ended = three(silence, |mut tcp| {
        if tcp.rank() == 2 {
            let port = tcp.addresses()[0].1;
            tcp.leave(Some("killed"));
            drop(tcp);
            knock_and_vanish(port);
            return None;
        }
        let waits = |tcp: &mut Tcp| {
            let waiting = tcp.newcomers() as u8;
            tcp.broadcast(&[waiting])
        };
        loop {
            match waits(&mut tcp) {
                Ok(said) if said == [1] => break,
                Ok(_) | Err(Error::Regrouped) => thread::sleep(Duration::from_millis(20)),
                Err(error) => panic!("{error}"),
            }
        }
        tcp.changes();
        tcp.meet_again().unwrap();
        let words = heal(&mut tcp).unwrap();
        let absent = tcp.changes();
        assert!(absent.len() == 1 && absent[0].lost[0].1.contains("did not come"), "{absent:?}");
        tcp.leave(None);
        Some(words)
    });
    assert_eq!(ended, [Some(words.clone()), Some(words), None]);

    // Each of them dies in turn after they have met. Without rank 0, the others end.
    for dies in 0..3 {
        let ended = three(LONG, |mut tcp| {
            let number = tcp.rank();
            tcp.meet_again().unwrap();
            if number == dies {
                // Like a process that is killed: it says nothing.
                tcp.outgoing.clear();
                return None;
            }
            let healed = heal(&mut tcp);
            assert!(tcp.is_healing());
            if healed.is_ok() {
                assert!(tcp.outlive(LONG) && !tcp.is_healing());
                tcp.leave(None);
            }
            Some(healed.map(|words| words.len()).map_err(|error| error.to_string()))
        });
        for (number, ended) in ended.into_iter().enumerate().filter(|(number, _)| *number != dies) {
            match ended.unwrap() {
                Ok(left) => assert!(dies > 0 && left == 2, "{dies}: rank {number}, {left} left"),
                Err(error) => assert!(dies == 0 && error.contains("rank 0"), "{dies}: {error}"),
            }
        }
    }
}

#[test]
fn whoever_takes_the_coordinators_place_lets_others_in_and_they_keep_their_numbers() {
    let ended = three(LONG, |mut tcp| {
        let number = tcp.rank();
        if number == 0 {
            // The others have a word of it, and then no more.
            tcp.all_gather(b"0").unwrap();
            tcp.outgoing.clear();
            return None;
        }
        // It comes, or does not.
        match tcp.all_gather(b"0") {
            Ok(_) | Err(Error::Regrouped) => {}
            Err(error) => panic!("{error}"),
        }
        loop {
            match tcp.all_gather(b"1") {
                Ok(words) if words.len() == 2 => break,
                Ok(_) | Err(Error::Regrouped) => {}
                Err(error) => panic!("{error}"),
            }
        }
        let changes = tcp.changes();
        assert!(changes[0].is_taken_over && changes[0].members == [1, 2], "{changes:?}");
        // The machine of the old rank 0 asks where the new one listened, and says a number that is in use.
        let addresses = tcp.addresses();
        if number == 1 {
            let port = addresses[0].1;
            let late = thread::spawn(move || {
                let placement = placement(1, 3, port);
                let mut tcp = join(&placement, None, "build", Limits::default(), Arc::new(|| false)).unwrap();
                let seen = (tcp.launched_as(), heal(&mut tcp).unwrap());
                tcp.leave(None);
                seen
            });
            let since = Instant::now();
            while tcp.newcomers() == 0 {
                assert!(since.elapsed() < 3 * LONG, "nobody comes, or the door is shut");
                thread::sleep(Duration::from_millis(20));
            }
            tcp.broadcast(b"now").unwrap();
            tcp.meet_again().unwrap();
            let seen = (tcp.launched_as(), heal(&mut tcp).unwrap());
            tcp.leave(None);
            assert_eq!(late.join().unwrap(), seen);
            return Some(seen);
        }
        tcp.broadcast(b"now").unwrap();
        tcp.meet_again().unwrap();
        assert_eq!(tcp.rank(), 1);
        let seen = (tcp.launched_as(), heal(&mut tcp).unwrap());
        tcp.leave(None);
        Some(seen)
    });
    let words = ["1", "2", "0"].map(|word| word.as_bytes().to_vec()).to_vec();
    assert_eq!(ended, [None, Some((vec![1, 2, 0], words.clone())), Some((vec![1, 2, 0], words))]);
}

#[test]
fn one_that_comes_to_a_later_meeting_than_it_was_told_misses_nobody_of_the_earlier_one() {
    let port = free_port().unwrap();
    let all = [0, 1, 2].map(|rank| rank.to_string().into_bytes()).to_vec();
    let work = |rank: usize| {
        let (own, leaves) = (thread::current().id(), Arc::new(AtomicBool::new(false)));
        let has_left = Arc::clone(&leaves);
        // When they meet again, rank 2 is held up on its way, and rank 3 does not come.
        let interrupted = move || match rank {
            2 if thread::current().id() == own && has_left.swap(false, Ordering::SeqCst) => {
                thread::sleep(Duration::from_secs(24));
                false
            }
            3 => has_left.load(Ordering::SeqCst),
            _ => false,
        };
        let placement = placement(rank, 4, port);
        let mut tcp = join(&placement, None, "build", Limits::default(), Arc::new(interrupted)).unwrap();
        // The others wait for twice as long.
        assert!(tcp.outlive(Duration::from_secs(8)));
        leaves.store(true, Ordering::SeqCst);
        let met = tcp.meet_again();
        if rank == 3 {
            assert!(met.is_err());
            return;
        }
        met.unwrap();
        if rank < 2 {
            assert_eq!(heal(&mut tcp).unwrap(), all[..2]);
            let lost: Vec<usize> = tcp.changes()[0].lost.iter().map(|(rank, _)| *rank).collect();
            assert_eq!(lost, [2, 3]);
            loop {
                let waiting = tcp.newcomers() as u8;
                match tcp.broadcast(&[waiting]) {
                    Ok(said) if said == [1] => break,
                    Ok(_) | Err(Error::Regrouped) => thread::sleep(Duration::from_millis(20)),
                    Err(error) => panic!("{error}"),
                }
            }
            tcp.meet_again().unwrap();
        }
        assert_eq!(heal(&mut tcp).unwrap(), all);
        let changes = tcp.changes();
        assert!(changes.is_empty(), "rank {rank}: {changes:?}");
        tcp.leave(None);
    };
    let work = &work;
    thread::scope(|scope| {
        for rank in 0..4 {
            scope.spawn(move || work(rank));
        }
    });
}

#[test]
fn a_coordinator_that_is_lost_when_they_begin_to_meet_again_is_missed_by_who_takes_its_place() {
    let ended = three(LONG, |mut tcp| {
        if tcp.rank() == 0 {
            // Like a process that is killed: it says nothing.
            tcp.outgoing.clear();
            return None;
        }
        tcp.meet_again().unwrap();
        let (words, changes) = (heal(&mut tcp).unwrap(), tcp.changes());
        assert!(tcp.changes().is_empty(), "they are told once");
        tcp.leave(None);
        Some((words, changes))
    });
    assert_eq!(ended[1], ended[2]);
    let Some((words, changes)) = &ended[1] else { panic!() };
    assert_eq!(*words, [b"1".to_vec(), b"2".to_vec()]);
    let [change] = &changes[..] else { panic!("{changes:?}") };
    assert!(change.is_taken_over && change.members == [1, 2] && change.lost[0].0 == 0, "{change:?}");
}

/// Ranks of a swarm that meet again, some of which do not come: rank 0 for so long, and others never.
/// Returns what becomes of those that do, by their numbers.
fn without_coordinator(world_size: usize, sleeps: Duration, absent: &[usize]) -> Vec<Result<Tcp, Error>> {
    let port = free_port().unwrap();
    let work = |rank: usize| {
        let (own, is_due) = (thread::current().id(), Arc::new(AtomicBool::new(false)));
        let (is_absent, is_asked) = (absent.contains(&rank), Arc::clone(&is_due));
        let interrupted = move || {
            let is_now = is_due.load(Ordering::SeqCst) && thread::current().id() == own;
            if rank == 0 && is_now && is_due.swap(false, Ordering::SeqCst) {
                // As if the process was stopped.
                thread::sleep(sleeps);
            }
            is_absent && is_due.load(Ordering::SeqCst)
        };
        let silence = Duration::from_secs(6);
        // If it sleeps for less than that, all come, and nobody has to be given up soon.
        let again = Duration::from_secs(if sleeps < silence { 60 } else { 10 });
        let limits = Limits { silence, again, ..Limits::default() };
        let placement = placement(rank, world_size, port);
        let mut tcp = join(&placement, None, "build", limits, Arc::new(interrupted)).unwrap();
        assert!(tcp.outlive(LONG));
        is_asked.store(true, Ordering::SeqCst);
        tcp.meet_again().map(|()| tcp)
    };
    let work = &work;
    thread::scope(|scope| {
        let ranks: Vec<_> = (0..world_size).map(|rank| scope.spawn(move || work(rank))).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// Ranks of a swarm that meet again, of which rank 0 gets a stop after so long. The last of four does not
/// come.
fn with_a_stop(world_size: usize, after: Duration) -> Vec<Error> {
    let port = free_port().unwrap();
    let work = |rank: usize| {
        let since = Arc::new(OnceLock::<Instant>::new());
        let began = Arc::clone(&since);
        let interrupted = move || {
            let is_after = |limit: Duration| began.get().is_some_and(|began| began.elapsed() >= limit);
            (rank == 0 && is_after(after)) || (rank == 3 && is_after(Duration::ZERO))
        };
        let placement = placement(rank, world_size, port);
        let limits = Limits::default();
        let mut tcp = join(&placement, None, "build", limits, Arc::new(interrupted)).unwrap();
        assert!(tcp.outlive(LONG));
        since.get_or_init(Instant::now);
        let error = tcp.meet_again().unwrap_err();
        // Whoever does not come would be waited for until then.
        assert!(since.get().unwrap().elapsed() < 2 * LONG, "rank {rank}: {error}");
        assert_eq!(tcp.has_lost_others(), may_go_on_elsewhere(&error), "rank {rank}: {error}");
        error
    };
    let work = &work;
    thread::scope(|scope| {
        let ranks: Vec<_> = (0..world_size).map(|rank| scope.spawn(move || work(rank))).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

#[test]
fn a_stop_of_the_coordinator_while_they_meet_reaches_all_that_come_and_nobody_goes_on() {
    // Before anybody can have come; and while one is waited for that does not come.
    for (world_size, after) in [(3, Duration::ZERO), (4, Duration::from_secs(2))] {
        let mut all = with_a_stop(world_size, after).into_iter();
        let first = all.next().unwrap();
        match world_size {
            3 => assert!(matches!(first, Error::Interrupted), "{first}"),
            _ => assert!(matches!(first, Error::TooFew { left: 1, of: 4, .. }), "not all know: {first}"),
        }
        for (rank, error) in (1..3).zip(all) {
            let said = error.to_string();
            assert!(matches!(error, Error::Left { rank: 0, .. }), "rank {rank}: {said}");
            assert!(said.contains("has ended: it was stopped while the ranks met again"), "{said}");
        }
    }
}

#[test]
fn if_the_coordinator_is_stopped_while_they_meet_the_next_one_leads_those_that_are_more_than_half() {
    let [long, short] = [26, 3].map(Duration::from_secs);
    let (stopped, briefly, too_few) = thread::scope(|scope| {
        let stopped = scope.spawn(|| without_coordinator(3, long, &[]));
        let briefly = scope.spawn(|| without_coordinator(3, short, &[]));
        let too_few = scope.spawn(|| without_coordinator(4, long, &[3]));
        (stopped.join().unwrap(), briefly.join().unwrap(), too_few.join().unwrap())
    });
    let go_on = |all: Vec<Tcp>| {
        let healed = |mut tcp: Tcp| {
            let (words, changes) = (heal(&mut tcp).unwrap(), tcp.changes());
            assert!(tcp.outlive(LONG));
            let numbers = tcp.launched_as();
            tcp.leave(None);
            (numbers, words, changes)
        };
        let healed = &healed;
        let all = thread::scope(|scope| {
            let all: Vec<_> = all.into_iter().map(|tcp| scope.spawn(move || healed(tcp))).collect();
            all.into_iter().map(|rank| rank.join().unwrap()).collect::<Vec<_>>()
        });
        assert!(all.iter().all(|one| *one == all[0]), "{all:?}");
        all.into_iter().next().unwrap()
    };
    let words = |ranks: &[&str]| ranks.iter().map(|rank| rank.as_bytes().to_vec()).collect::<Vec<_>>();

    let mut ranks = stopped.into_iter();
    let first = ranks.next().unwrap().map(drop).unwrap_err();
    assert!(matches!(first, Error::TooFew { left: 1, of: 3, .. }), "it wakes and goes on alone: {first}");
    let (numbers, said, changes) = go_on(ranks.map(Result::unwrap).collect());
    assert_eq!((numbers, said), (vec![1, 2], words(&["1", "2"])));
    let [change] = &changes[..] else { panic!("{changes:?}") };
    assert!(change.is_taken_over && change.members == [1, 2], "{change:?}");
    assert_eq!(change.lost.iter().map(|(rank, _)| *rank).collect::<Vec<_>>(), [0]);

    let (numbers, said, changes) = go_on(briefly.into_iter().map(Result::unwrap).collect());
    assert_eq!((numbers, said, changes), (vec![0, 1, 2], words(&["0", "1", "2"]), Vec::new()));

    for (rank, ended) in too_few.into_iter().enumerate() {
        let error = ended.map(drop).unwrap_err();
        match rank {
            3 => assert!(matches!(error, Error::Interrupted), "it was stopped itself: {error}"),
            _ => assert!(error.is_of_a_rank(), "rank {rank}: {error}"),
        }
    }
}
