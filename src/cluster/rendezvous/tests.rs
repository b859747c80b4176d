//! Ranks that meet again with one that only says what a rank says, and at places where others listen.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use super::*;
use crate::environment::Launcher;
use crate::listening::free_port;

const MEETING: u64 = 7;

fn placement(rank: usize, world_size: usize, port: u16) -> Placement {
    let (host, launcher) = ("127.0.0.1".to_owned(), Launcher::Torchrun);
    Placement { rank, world_size, local_rank: rank, host, port, launcher }
}

/// Comes to the meeting as a rank with this number, which its launcher gave another one. One of four does not
/// come.
fn meets(rank: usize, world_size: usize, port: u16, limits: Limits) -> Result<Met, Unmet> {
    // Longer than ranks that come wait for a processor.
    let absent_after = Duration::from_secs(if world_size == 4 { 20 } else { 60 });
    meets_unless(rank, world_size, port, limits, absent_after, Arc::new(|| false))
}

fn meets_unless(
    rank: usize,
    world_size: usize,
    port: u16,
    limits: Limits,
    absent_after: Duration,
    interrupted: Arc<dyn Fn() -> bool + Send + Sync>,
) -> Result<Met, Unmet> {
    let ends = Ends::new(interrupted, Arc::new(|_| ()));
    let all_launched_as = if rank == 0 { (0..world_size).map(launched_as).collect() } else { Vec::new() };
    let known = Known { meeting: MEETING, attempt: 3, launched_as: launched_as(rank), ..Known::default() };
    let known = Known { all_launched_as, absent_after: Some(absent_after), ..known };
    meet(&placement(rank, world_size, port), None, "build", limits, &known, &ends)
}

fn launched_as(rank: usize) -> usize {
    10 + 2 * rank
}

/// Somebody who says what a rank says, and does no more than a test wants.
struct Puppet {
    hello: Hello,
    listener: TcpListener,
    /// Where rank 0 listens.
    first: u16,
}

impl Puppet {
    fn new(rank: usize, world_size: usize, first: u16) -> Self {
        let (listener, port) =
            listen(&placement(rank, world_size, first), &[Ipv4Addr::LOCALHOST.into()]).unwrap();
        listener.set_nonblocking(false).unwrap();
        let (version, launched_as, meeting, attempt) = (VERSION, launched_as(rank), MEETING, 0);
        let (build, purpose) = ("build".into(), Purpose::Work);
        let hello = Hello { version, rank, world_size, launched_as, meeting, attempt, build, port, purpose };
        Self { hello, listener, first }
    }

    /// Connects to rank 0, and says this.
    fn says(&self, hello: &Hello) -> Channel<'static> {
        let token = JobToken::of_loopback();
        let key = token.key().public();
        let address =
            Address { host: "127.0.0.1".into(), port: self.first, name: "rank-0".into(), key, hash: None };
        loop {
            match Channel::connect(&address, &token.proof(), Patience::default(), Arc::new(|| false)) {
                Ok(mut channel) => {
                    channel.tell(hello).unwrap();
                    return channel;
                }
                Err(_) => thread::sleep(Duration::from_millis(20)),
            }
        }
    }

    /// Comes to the meeting, and is welcomed.
    fn comes(&self) -> (Channel<'static>, Welcome) {
        let mut channel = self.says(&self.hello);
        let welcome = loop {
            match channel.hear().unwrap() {
                Answer::Wait { .. } => {}
                Answer::Welcome(welcome) => break welcome,
                other => panic!("{other:?}"),
            }
        };
        (channel, welcome)
    }

    fn heartbeat(&self, attempt: u64) -> Channel<'static> {
        self.says(&Hello { purpose: Purpose::Heartbeat, attempt, ..self.hello.clone() })
    }

    /// Welcomes the next one that connects.
    fn welcomes(&self) -> Channel<'static> {
        let token = JobToken::of_loopback();
        let gate = Gate::new(&token.key(), &token.proof());
        let (stream, _) = self.listener.accept().unwrap();
        let mut channel = gate.admit(stream, Patience::default(), Arc::new(|| false)).unwrap();
        let _: Hello = channel.hear().unwrap();
        channel.tell(&Answer::Welcome(Welcome::default())).unwrap();
        channel
    }
}

#[test]
fn a_coordinator_that_slept_begins_with_nobody_who_has_given_it_up() {
    for sleeps in [false, true] {
        let port = free_port().unwrap();
        let is_due = Arc::new(AtomicBool::new(false));
        let is_time = Arc::clone(&is_due);
        // A rank that does not sleep has the default, which is longer than it waits for a processor.
        let silence = if sleeps { Duration::from_secs(6) } else { Limits::default().silence };
        let limits = Limits { silence, ..Limits::default() };
        let first = thread::spawn(move || {
            let own = thread::current().id();
            // As if the process was stopped.
            let interrupted = move || {
                if sleeps && thread::current().id() == own && is_time.swap(false, Ordering::SeqCst) {
                    thread::sleep(Duration::from_secs(8));
                }
                false
            };
            meets_unless(0, 2, port, limits, Duration::from_secs(60), Arc::new(interrupted))
        });
        let puppet = Puppet::new(1, 2, port);
        let (mut channel, welcome) = puppet.comes();
        let _work = puppet.welcomes();
        let mut heartbeat = puppet.heartbeat(welcome.attempt);
        is_due.store(true, Ordering::SeqCst);
        while sleeps && is_due.load(Ordering::SeqCst) {
            thread::sleep(Duration::from_millis(10));
        }
        channel.tell(&Report::Connected).unwrap();
        assert!(matches!(heartbeat.hear(), Ok(Answer::Welcome(_))));
        let said = channel.hear::<Answer>();
        match first.join().unwrap() {
            Ok(met) => assert!(!sleeps && met.present == [0, 1] && matches!(said, Ok(Answer::Begin))),
            Err(unmet) => {
                assert!(sleeps && said.is_err(), "{unmet:?}, {said:?}");
                assert!(unmet.is_passing && unmet.missed.is_empty(), "{unmet:?}");
                assert!(unmet.error.to_string().starts_with("rank 10 (127.0.0.1) is gone: it was stopped"));
            }
        }
    }
}

#[test]
fn a_rank_that_has_lost_its_connection_comes_again_and_another_process_does_not_take_its_place() {
    let port = free_port().unwrap();
    let limits = Limits { meeting: Duration::from_secs(60), ..Limits::default() };
    let meets_first = |rank: usize| {
        let known = Known { launched_as: launched_as(rank), ..Known::default() };
        let ends = Ends::new(Arc::new(|| false), Arc::new(|_| ()));
        meet(&placement(rank, 3, port), None, "build", limits, &known, &ends)
    };
    let hear = |channel: &mut Channel<'static>| channel.hear::<Answer>();
    thread::scope(|scope| {
        let first = scope.spawn(move || meets_first(0));
        let [puppet, other] = [(); 2].map(|()| {
            let mut puppet = Puppet::new(1, 3, port);
            puppet.hello.meeting = 0;
            puppet
        });
        let is_refused = || {
            let said = hear(&mut other.says(&other.hello));
            matches!(said, Ok(Answer::Refused { why }) if why.contains("is already a rank 1"))
        };
        // Rank 0 does not see that the first connection is of no use any more.
        let mut lost = puppet.says(&puppet.hello);
        assert!(matches!(hear(&mut lost), Ok(Answer::Wait { .. })));
        assert!(is_refused());
        let mut channel = puppet.says(&puppet.hello);
        assert!(matches!(hear(&mut channel), Ok(Answer::Wait { .. })));
        // The same holds when all have come, until they have connected to each other.
        let third = scope.spawn(move || meets_first(2));
        while !matches!(hear(&mut channel).unwrap(), Answer::Welcome(_)) {}
        drop((lost, channel));
        let _welcomed = [(); 3].map(|()| puppet.welcomes());
        assert!(is_refused());
        let (_channel, Welcome { members, attempt, .. }) = puppet.comes();
        let to_third = Puppet { first: members[2].port, ..other };
        let _work = to_third.says(&puppet.hello);
        assert!(matches!(hear(&mut puppet.heartbeat(attempt)), Ok(Answer::Welcome(_))));
        for met in [first, third] {
            assert_eq!(met.join().unwrap().unwrap().present, [0, 1, 2]);
        }
    });
}

#[test]
fn a_coordinator_that_slept_does_not_miss_those_that_came_meanwhile() {
    let port = free_port().unwrap();
    let first = thread::spawn(move || {
        let (own, sleeps) = (thread::current().id(), AtomicBool::new(true));
        let interrupted = move || {
            if thread::current().id() == own && sleeps.swap(false, Ordering::SeqCst) {
                thread::sleep(Duration::from_secs(7));
            }
            false
        };
        // It sleeps for longer than it waits for a rank that does not come.
        let absent_after = Duration::from_secs(5);
        meets_unless(0, 4, port, Limits::default(), absent_after, Arc::new(interrupted))
    });
    let others = [1, 2].map(|rank| thread::spawn(move || meets(rank, 4, port, Limits::default())));
    for met in others.into_iter().chain([first]) {
        assert_eq!(met.join().unwrap().unwrap().present, [0, 1, 2]);
    }
}

#[test]
fn who_asks_for_a_sign_of_life_of_an_attempt_that_failed_is_told_so_and_others_are_not_mixed_up_with_it() {
    let port = free_port().unwrap();
    let first = thread::spawn(move || meets(0, 3, port, Limits::default()));
    let puppet = Puppet::new(2, 3, port);
    // Rank 0 is at its third attempt.
    for attempt in [0, 2, 4] {
        let answer = puppet.heartbeat(attempt).hear::<Answer>();
        assert!(matches!(answer, Ok(Answer::Over)), "{attempt}: {answer:?}");
    }
    let second = thread::spawn(move || meets(1, 3, port, Limits::default()));
    let (mut channel, welcome) = puppet.comes();
    assert_eq!((welcome.attempt, &*welcome.present), (3, &[0, 1, 2][..]));
    let _work = [puppet.welcomes(), puppet.welcomes()];
    assert!(matches!(puppet.heartbeat(2).hear(), Ok(Answer::Over)));
    let mut heartbeat = puppet.heartbeat(3);
    assert!(matches!(heartbeat.hear(), Ok(Answer::Welcome(_))));
    // It has not connected to rank 1, and says that it has lost it.
    channel.tell(&Report::Lost(1)).unwrap();
    drop((channel, heartbeat));
    let missed = [first, second].map(|rank| rank.join().unwrap().map(|met| met.present).unwrap_err());
    assert!(missed.iter().all(|unmet| unmet.is_passing), "{missed:?}");
}

#[test]
fn somebody_with_another_token_at_the_place_of_a_rank_ends_no_meeting_and_people_read_their_own_numbers() {
    // At rank 0's place, until it comes.
    let port = free_port().unwrap();
    let stranger = TcpListener::bind(("127.0.0.1", port)).unwrap();
    let other = JobToken::parse("another token of 32 characters...").unwrap();
    let gate = Gate::new(&other.key(), &other.proof());
    let second = thread::spawn(move || meets(1, 2, port, Limits::default()));
    for _ in 0..2 {
        let (stream, _) = stranger.accept().unwrap();
        assert!(gate.admit(stream, Patience::default(), Arc::new(|| false)).is_err());
    }
    drop(stranger);
    let first = meets(0, 2, port, Limits::default());
    for met in [first, second.join().unwrap()] {
        assert_eq!(met.unwrap().present, [0, 1]);
    }

    // Where one of them has listened, which is gone; and another one does not come at all.
    let port = free_port().unwrap();
    let real = [0, 1].map(|rank| thread::spawn(move || meets(rank, 4, port, Limits::default())));
    let puppet = Puppet::new(2, 4, port);
    let (channel, welcome) = puppet.comes();
    assert_eq!(welcome.present, [0, 1, 2]);
    thread::spawn(move || {
        for stream in puppet.listener.incoming().map_while(Result::ok) {
            assert!(gate.admit(stream, Patience::default(), Arc::new(|| false)).is_err());
        }
    });
    drop(channel);
    for met in real {
        let Err(mut unmet) = met.join().unwrap() else { panic!("they have met") };
        unmet.missed.sort_unstable();
        assert!(unmet.is_passing && unmet.missed == [2, 3], "{unmet:?}");
        let said = unmet.error.to_string();
        assert!(said.starts_with("rank 14 (127.0.0.1"), "{said}");
    }
}

#[test]
fn a_rank_that_has_said_to_the_coordinator_that_it_is_ready_remembers_it() {
    for is_ready in [false, true] {
        let port = free_port().unwrap();
        let token = JobToken::of_loopback();
        let listener = TcpListener::bind(("127.0.0.1", port)).unwrap();
        let gate = Gate::new(&token.key(), &token.proof());
        let accept = || {
            let (stream, _) = listener.accept().unwrap();
            let mut channel = gate.admit(stream, Patience::default(), Arc::new(|| false)).unwrap();
            let hello: Hello = channel.hear().unwrap();
            let member =
                |launched_as: usize, port: u16| Member { host: "127.0.0.1".into(), port, launched_as };
            let members = vec![member(10, port), member(12, hello.port)];
            channel.tell(&Answer::Welcome(Welcome { members, present: vec![0, 1], attempt: 3 })).unwrap();
            (channel, hello)
        };
        let limits = Limits { meeting: Duration::from_secs(20), ..Limits::default() };
        let second = thread::spawn(move || meets(1, 2, port, limits));
        let (mut work, hello) = accept();
        let (heartbeat, _) = accept();
        if is_ready {
            let mut puppet = Puppet::new(1, 2, hello.port);
            puppet.hello = Hello { rank: 0, port, attempt: 3, ..puppet.hello };
            let _work = puppet.says(&puppet.hello);
            assert_eq!(work.hear::<Report>().unwrap(), Report::Connected);
        }
        drop((work, heartbeat, listener));
        let unmet = second.join().unwrap().map(|met| met.present).unwrap_err();
        assert_eq!(unmet.has_promised, is_ready, "{unmet:?}");
    }
}
