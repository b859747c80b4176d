//! Ranks that meet on loopback, in threads of this process: sums, words and files, and what is refused.
#![expect(clippy::unwrap_used, reason = "clippy.toml allows it in unit tests only")]

mod discovery;
mod judged;
mod leaving;
mod membership;
mod returning;
mod safe;
mod xdp;

use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use sparktune_base::random::SplitMix64;
use sparktune_cluster::tcp::{BUCKET, Tcp, join, join_and_tell};
use sparktune_cluster::{
    Collective, Error, JobToken, Launcher, Limits, Placement, refuse_missing_token, share_files_and_tell,
};

use crate::membership::until;

const TOKEN: &str = "0123456789abcdef0123456789abcdef";

fn free_port() -> u16 {
    sparktune_cluster::free_port().unwrap()
}

fn placement(rank: usize, world_size: usize, host: &str, port: u16) -> Placement {
    let host = host.to_owned();
    Placement { rank, world_size, local_rank: rank, host, port, launcher: Launcher::Torchrun }
}

/// What one rank says of itself.
#[derive(Clone, Copy)]
struct Rank<'a> {
    rank: usize,
    world_size: usize,
    host: &'a str,
    token: Option<&'a str>,
    build: &'a str,
    meeting: Duration,
}

impl Rank<'_> {
    fn of(rank: usize, world_size: usize) -> Self {
        let meeting = Duration::from_secs(60);
        Self { rank, world_size, host: "127.0.0.1", token: Some(TOKEN), build: "build", meeting }
    }

    fn join(self, port: u16) -> Result<Tcp, Error> {
        self.join_and_tell(port, Arc::new(|_| ()))
    }

    fn join_and_tell(self, port: u16, tell: Arc<dyn Fn(String) + Send + Sync>) -> Result<Tcp, Error> {
        let token = self.token.map(|text| JobToken::parse(text).unwrap());
        let limits = Limits { meeting: self.meeting, ..Limits::default() };
        let placement = placement(self.rank, self.world_size, self.host, port);
        let interrupted = Arc::new(|| false);
        join_and_tell(&placement, token.as_ref(), self.build, limits, interrupted, tell, Vec::new())
    }
}

/// Lets all ranks do the same, and returns their results.
fn together<T: Send>(ranks: &[Rank], work: impl Fn(Result<Tcp, Error>) -> T + Sync) -> Vec<T> {
    let port = free_port();
    thread::scope(|scope| {
        let work = &work;
        let ranks = ranks.iter().map(|rank| scope.spawn(move || work(rank.join(port))));
        let ranks: Vec<_> = ranks.collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

fn all(world_size: usize) -> Vec<Rank<'static>> {
    (0..world_size).map(|rank| Rank::of(rank, world_size)).collect()
}

/// Numbers of very different sizes, so that another order of a sum is another sum.
fn numbers(rank: usize, length: usize) -> Vec<f32> {
    let mut random = SplitMix64::new(rank as u64 + 1);
    let number = |bits: u64| {
        let exponent = (bits % 24) as i32 - 12;
        let mantissa = (bits >> 40) as f32 / (1 << 24) as f32 - 0.5;
        mantissa * 2f32.powi(exponent)
    };
    (0..length).map(|_| number(random.next_u64())).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn all_ranks_can_meet_at_another_address_of_the_loopback_interface() {
    for token in [None, Some(TOKEN)] {
        let ranks: Vec<_> =
            (0..3).map(|rank| Rank { host: "127.0.1.1", token, ..Rank::of(rank, 3) }).collect();
        together(&ranks, |tcp| tcp.unwrap().leave(None));
    }
}

#[test]
fn sums_are_those_of_one_process_that_adds_in_the_order_of_ranks() {
    for world_size in [2, 3, 4] {
        let lengths = [0, 1, world_size - 1, world_size, 1003, BUCKET + 5];
        let sums = together(&all(world_size), |tcp| {
            let mut tcp = tcp.unwrap();
            let rank = tcp.rank();
            let sums = lengths.map(|length| {
                let mut values = numbers(rank, length);
                tcp.all_reduce(&mut values).unwrap();
                bits(&values)
            });
            tcp.leave(None);
            (sums, tcp.traffic())
        });
        for (place, length) in lengths.into_iter().enumerate() {
            let mut expected = numbers(0, length);
            for rank in 1..world_size {
                expected.iter_mut().zip(numbers(rank, length)).for_each(|(sum, value)| *sum += value);
            }
            let same = sums.iter().all(|(sums, _)| sums[place] == bits(&expected));
            assert!(same, "{length} numbers of {world_size} ranks");
            if length > 1000 && world_size > 2 {
                let mut reversed = numbers(world_size - 1, length);
                for rank in (0..world_size - 1).rev() {
                    reversed.iter_mut().zip(numbers(rank, length)).for_each(|(sum, value)| *sum += value);
                }
                assert_ne!(bits(&reversed), bits(&expected), "the order shows");
            }
        }
        // 2 (W - 1) / W of the bytes each way, up to the uneven cut.
        let numbers = lengths.iter().sum::<usize>() as f64;
        let expected = 4.0 * numbers * 2.0 * (world_size - 1) as f64 / world_size as f64;
        for (_, traffic) in &sums {
            for bytes in [traffic.sent, traffic.received] {
                assert!((bytes as f64 / expected - 1.0).abs() < 1e-3, "{traffic:?} for {expected}");
            }
        }
    }
}

#[test]
fn halves_of_a_sum_give_a_rank_all_contributions_to_its_chunk_and_everybody_its_sums() {
    let length = 1003;
    let seen = together(&all(3), |tcp| {
        let mut tcp = tcp.unwrap();
        let rank = tcp.rank();
        let parts = tcp.scatter(&numbers(rank, length)).unwrap();
        let firsts: Vec<f32> = parts[2].iter().map(|value| value + rank as f32).collect();
        let mut values = vec![0.0; length];
        tcp.spread(&firsts, &mut values).unwrap();
        tcp.leave(None);
        (parts, values)
    });
    let chunk = |rank: usize| length * rank / 3..length * (rank + 1) / 3;
    let mut expected = numbers(2, length);
    for (rank, (parts, _)) in seen.iter().enumerate() {
        for (of, part) in parts.iter().enumerate() {
            assert_eq!(bits(part), bits(&numbers(of, length)[chunk(rank)]));
        }
        expected[chunk(rank)].iter_mut().for_each(|value| *value += rank as f32);
    }
    assert!(seen.iter().all(|(_, values)| bits(values) == bits(&expected)));
}

#[test]
fn words_come_in_the_order_of_ranks_and_rank_0_is_heard_by_all() {
    for words in together(&all(3), |tcp| {
        let mut tcp = tcp.unwrap();
        let own = vec![tcp.rank() as u8; tcp.rank() * 3];
        let words = tcp.all_gather(&own).unwrap();
        let first = tcp.broadcast(format!("rank {}", tcp.rank()).as_bytes()).unwrap();
        tcp.leave(None);
        (words, first)
    }) {
        assert_eq!(words, (vec![vec![], vec![1; 3], vec![2; 6]], b"rank 0".to_vec()));
    }
}

#[test]
fn files_of_rank_0_are_copied_to_all() {
    let root = tempfile::tempdir().unwrap();
    let folders = [0, 1, 2].map(|rank| root.path().join(rank.to_string()));
    for folder in &folders {
        std::fs::create_dir_all(folder.join("data")).unwrap();
    }
    let large: Vec<u8> = (0..9_000_000_u32).map(|i| (i * 7 + i / 251) as u8).collect();
    let names = ["plan.toml", "data/large", "empty"].map(str::to_owned);
    std::fs::write(folders[0].join("plan.toml"), "seed = 3").unwrap();
    std::fs::write(folders[0].join("data/large"), &large).unwrap();
    std::fs::write(folders[0].join("empty"), "").unwrap();
    std::fs::write(folders[2].join("plan.toml"), "an older one").unwrap();
    let share = || {
        together(&all(3), |tcp| {
            let mut tcp = tcp.unwrap();
            let rank = tcp.rank();
            let names = if rank == 0 { &names[..] } else { &[] };
            let mut told = (0, 0);
            let done = share_files_and_tell(&mut tcp, &folders[rank], names, &mut |sent, all| {
                told = (sent, all);
            });
            tcp.leave(None);
            (told, done.map_err(|error| error.to_string()))
        })
    };
    let has_all = || {
        folders.iter().all(|folder| {
            std::fs::read(folder.join("plan.toml")).unwrap() == b"seed = 3"
                && std::fs::read(folder.join("data/large")).unwrap() == large
                && std::fs::read(folder.join("empty")).unwrap().is_empty()
        })
    };
    assert_eq!(share(), vec![((9_000_008, 9_000_008), Ok(())); 3]);
    assert!(has_all());
    // Who has the files is sent nothing more.
    assert_eq!(share(), vec![((0, 0), Ok(())); 3]);
    // One was cut off on the way, and another one even earlier.
    for (rank, bytes) in [(1, 8_500_000), (2, 8_400_000)] {
        std::fs::remove_file(folders[rank].join("data/large")).unwrap();
        std::fs::write(folders[rank].join("data/large.partial"), &large[..bytes]).unwrap();
    }
    assert_eq!(share(), vec![((600_000, 600_000), Ok(())); 3]);
    assert!(has_all());
    // What was left is damaged: it is thrown away, and the next attempt begins anew.
    std::fs::remove_file(folders[1].join("data/large")).unwrap();
    std::fs::write(folders[1].join("data/large.partial"), vec![1; 8_900_000]).unwrap();
    let said = share().swap_remove(1).1.unwrap_err();
    assert!(said.contains("data/large") && said.contains("thrown away"), "{said}");
    assert_eq!(share(), vec![((9_000_000, 9_000_000), Ok(())); 3]);
    assert!(has_all());
}

#[test]
fn a_rank_that_ends_says_why_to_all_others() {
    let said = together(&all(3), |tcp| {
        let mut tcp = tcp.unwrap();
        if tcp.rank() == 1 {
            tcp.leave(Some("the disk is full\u{1b}[2J"));
            return String::new();
        }
        let error = tcp.all_reduce(&mut [1.0; 100]).unwrap_err();
        assert!(error.is_of_a_rank());
        error.to_string()
    });
    for said in [&said[0], &said[2]] {
        assert!(said.contains("has ended") && said.contains("resume"), "{said}");
        assert!(!said.contains('\u{1b}'), "{said:?}");
    }
    assert!(
        said.iter().any(|said| said.contains("rank 1 (127.0.0.1) has ended: the disk is full")),
        "{said:?}"
    );
}

#[test]
fn ranks_that_do_different_things_notice_it() {
    let said = together(&all(2), |tcp| {
        let mut tcp = tcp.unwrap();
        let mut values = vec![1.0; if tcp.rank() == 0 { 100 } else { 300 }];
        tcp.all_reduce(&mut values).map_err(|error| error.to_string())
    });
    assert!(said.iter().all(Result::is_err), "{said:?}");
    assert!(said.iter().any(|said| said.as_ref().unwrap_err().contains("is out of step")), "{said:?}");
}

#[test]
fn without_a_token_ranks_meet_on_loopback_only() {
    let without = |rank: Rank<'static>| Rank { token: None, ..rank };
    let met = together(&all(2).into_iter().map(without).collect::<Vec<_>>(), |tcp| {
        tcp.unwrap().leave(None);
    });
    assert_eq!(met.len(), 2);
    let elsewhere = Rank { host: "192.0.2.1", ..without(Rank::of(1, 2)) };
    let Err(error) = elsewhere.join(free_port()) else { panic!("it met somebody") };
    assert!(matches!(error, Error::NoToken { .. }), "{error}");
    assert!(error.to_string().contains(JobToken::VARIABLE), "{error}");
    // Other users may have processes on a node of Slurm.
    let on_node = Placement { launcher: Launcher::Slurm, ..placement(0, 2, "127.0.0.1", free_port()) };
    let met = join_and_tell(
        &on_node,
        None,
        "build",
        Limits::default(),
        Arc::new(|| false),
        Arc::new(|_| ()),
        vec![],
    );
    assert!(matches!(met, Err(Error::NoToken { .. })));
    // Rank 0 finds out before it plans.
    let token = JobToken::parse(TOKEN).unwrap();
    let at = |host: &str| placement(0, 2, host, 29_500);
    let refused = |placement: &Placement, token| refuse_missing_token(placement, token).is_err();
    assert!(refused(&at("192.0.2.1"), None) && refused(&on_node, None));
    assert!(!refused(&at("192.0.2.1"), Some(&token)) && !refused(&at("127.0.0.1"), None));
    assert!(!refused(&at("no-such-host.invalid"), None), "it may be known later");
}

#[test]
fn who_has_another_token_or_another_build_is_no_rank_and_one_that_does_not_come_is_named() {
    // Rank 0 waits for longer than another one needs to come and to be refused.
    let short = Duration::from_secs(20);
    let intruders = [
        (Rank { token: Some("another token of 32 characters..."), ..Rank::of(1, 3) }, "a different token"),
        (Rank { token: None, ..Rank::of(1, 3) }, "a different token"),
        (Rank { build: "another", ..Rank::of(1, 3) }, "different builds"),
        (Rank { world_size: 2, ..Rank::of(1, 3) }, "one of 2 ranks"),
    ];
    thread::scope(|scope| {
        for (intruder, word) in intruders {
            scope.spawn(move || {
                let ranks = [Rank { meeting: short, ..Rank::of(0, 3) }, intruder];
                let said = together(&ranks, |tcp| tcp.map(drop).unwrap_err().to_string());
                assert!(said[0].contains("these ranks are missing: 1, 2"), "{said:?}");
                assert!(said[1].contains(word), "{word}: {said:?}");
            });
        }
    });
}

#[test]
fn an_interrupted_wait_ends() {
    let since = Instant::now();
    let alone = placement(0, 2, "127.0.0.1", free_port());
    let interrupted = Arc::new(|| true);
    let Err(error) = join(&alone, None, "build", Limits::default(), interrupted) else { panic!("met") };
    assert!(matches!(error, Error::Interrupted), "{error}");
    assert!(since.elapsed() < Duration::from_secs(60));
}

#[test]
fn strangers_that_keep_quiet_do_not_keep_the_ranks_from_each_other() {
    let port = free_port();
    thread::scope(|scope| {
        let first = scope.spawn(move || Rank::of(0, 2).join(port).map(drop));
        // More than rank 0 lets wait at a time.
        let silent = (0..80).map(|_| {
            let since = Instant::now();
            loop {
                match TcpStream::connect(("127.0.0.1", port)) {
                    Ok(stream) => return stream,
                    Err(error) => assert!(since.elapsed() < Duration::from_secs(60), "{error}"),
                }
                thread::sleep(Duration::from_millis(20));
            }
        });
        let silent: Vec<TcpStream> = silent.collect();
        let second = scope.spawn(move || Rank::of(1, 2).join(port).map(drop));
        second.join().unwrap().unwrap();
        first.join().unwrap().unwrap();
        drop(silent);
    });
}

#[test]
fn rank_0_says_whom_it_refuses_and_why_but_not_without_end() {
    let port = free_port();
    let lines = Arc::new(Mutex::new(Vec::<String>::new()));
    let told = Arc::clone(&lines);
    let tell = Arc::new(move |line| told.lock().unwrap().push(line));
    thread::scope(|scope| {
        let first = scope.spawn(move || Rank::of(0, 2).join_and_tell(port, tell).map(drop));
        let refused = || lines.lock().unwrap().iter().filter(|line| line.starts_with("refused ")).count();
        // Rank 0 may note the refusal only after the other rank has heard it.
        let join = |rank: Rank<'static>, said: usize| {
            rank.join(port).map(drop).unwrap_err();
            until(|| refused() >= said);
        };
        join(Rank { build: "another", ..Rank::of(1, 2) }, 1);
        join(Rank { world_size: 3, ..Rank::of(1, 2) }, 2);
        for said in 3..15_usize {
            join(Rank { token: Some("another token of 32 characters..."), ..Rank::of(1, 2) }, said.min(10));
        }
        let second = scope.spawn(move || Rank::of(1, 2).join(port).map(drop));
        second.join().unwrap().unwrap();
        first.join().unwrap().unwrap();
    });
    let mut lines = lines.lock().unwrap().clone();
    lines.retain(|line| line.starts_with("refused "));
    assert_eq!(lines.len(), 10, "{lines:?}");
    let has = |word: &str| lines.iter().any(|line| line.contains(word) && line.contains("from 127.0.0.1"));
    assert!(has("rank 1, but the two are different builds") && has("one of 3 ranks"), "{lines:?}");
    assert!(has("another token") && lines[9].ends_with("not reported"), "{lines:?}");
}

#[test]
fn a_host_that_is_unknown_is_said_at_once() {
    let lines = Arc::new(Mutex::new(Vec::<String>::new()));
    let told = Arc::clone(&lines);
    let tell = Arc::new(move |line| told.lock().unwrap().push(line));
    let meeting = Duration::ZERO;
    let rank = Rank { host: "no-such-host.invalid", meeting, ..Rank::of(1, 2) };
    let Err(error) = rank.join_and_tell(1, tell) else { panic!("it met somebody") };
    assert!(error.to_string().contains("MASTER_ADDR"), "{error}");
    let lines = lines.lock().unwrap();
    assert!(lines.len() == 1 && lines[0].contains("\"no-such-host.invalid\", is unknown"), "{lines:?}");
}

#[test]
fn a_rank_that_sums_another_number_of_values_is_named_with_its_place() {
    let said = together(&all(2), |tcp| {
        let mut tcp = tcp.unwrap();
        let mut values = vec![1.0; if tcp.rank() == 0 { 100 } else { 90 }];
        tcp.all_reduce(&mut values).map_err(|error| error.to_string())
    });
    let named = |said: &Result<(), String>| {
        said.as_ref()
            .is_err_and(|said| said.contains("(127.0.0.1) is out of step") && said.contains("were due"))
    };
    assert!(said.iter().any(named), "{said:?}");
}

/// It knows where the others listened when it met them before it was killed.
#[test]
fn a_rank_that_is_started_again_after_the_end_of_its_run_is_told_apart_from_one_that_is_cut_off() {
    let limits = Limits { meeting: Duration::from_secs(3), ..Limits::default() };
    let come_back = |at: u16, also: u16| {
        let also = vec![("127.0.0.1".to_owned(), also)];
        let (placement, tell) = (placement(1, 3, "127.0.0.1", at), Arc::new(|_| ()));
        join_and_tell(&placement, None, "build", limits, Arc::new(|| false), tell, also)
            .map(drop)
            .unwrap_err()
    };
    let error = come_back(free_port(), free_port());
    let said = error.to_string();
    assert!(matches!(error, Error::NobodyLeft { .. }) && said.contains("the run has ended"), "{said}");
    // Somebody is there who does not let it in yet.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || listener.incoming().for_each(drop));
    let error = come_back(free_port(), port);
    assert!(matches!(error, Error::Unreachable { rank: 1, to: 0, .. }), "{error}");
}
