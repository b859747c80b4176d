use std::io::Write;
use std::path::Path;

use proptest::prelude::*;

use super::*;
use crate::event::{Kind, Warning};
use crate::step::Step;
use crate::view::RunView;

fn run() -> (tempfile::TempDir, RunDir) {
    let root = tempfile::tempdir().unwrap();
    let run = RunDir::create(root.path().join("r")).unwrap();
    (root, run)
}

fn line(attempt: u32, seq: u64) -> String {
    let kind = Kind::Warning(Warning { message: format!("nr {seq} \u{fc}"), step: None });
    Event { attempt, seq, time_us: 1, kind }.to_line().unwrap()
}

fn append(path: &Path, bytes: &[u8]) {
    fs::OpenOptions::new().append(true).create(true).open(path).unwrap().write_all(bytes).unwrap();
}

/// Polls until nothing is left. Returns (attempt, seq) of all events, and the notices.
fn drain(tailer: &mut EventTailer) -> (Vec<(u32, u64)>, Vec<Notice>) {
    let (mut seen, mut notices) = (Vec::new(), Vec::new());
    loop {
        let batch = tailer.poll(Limit::default()).unwrap();
        seen.extend(batch.records.iter().map(|r| (r.event.attempt, r.event.seq)));
        notices.extend(batch.notices);
        if batch.at_end {
            return (seen, notices);
        }
    }
}

#[test]
fn a_line_is_delivered_when_its_newline_arrives_and_not_before() {
    let (_root, run) = run();
    let mut tailer = EventTailer::new(&run);
    assert_eq!(drain(&mut tailer), (vec![], vec![]));
    let text = line(1, 1);
    let (head, tail) = text.split_at(text.len() - 1);
    append(&run.event_file(1), head.as_bytes());
    let polled = tailer.poll_with(Limit::NONE, |_, _| panic!("no whole line")).unwrap();
    assert_eq!((polled.unfinished_bytes, polled.notices), (head.len(), vec![]));
    append(&run.event_file(1), tail.as_bytes());
    assert_eq!(drain(&mut tailer), (vec![(1, 1)], vec![]));
}

#[test]
fn one_damaged_version_does_not_hide_a_run_and_a_file_of_a_newer_format_is_refused() {
    let (_root, run) = run();
    append(&run.event_file(1), (line(1, 1) + &line(1, 2).replace("\"v\":1", "\"v\":9")).as_bytes());
    append(&run.event_file(1), line(1, 3).as_bytes());
    let mut tailer = EventTailer::new(&run);
    let (seen, notices) = drain(&mut tailer);
    assert_eq!((seen, tailer.malformed()), (vec![(1, 1), (1, 3)], 1));
    assert!(notices.iter().any(|notice| notice.to_string().contains("its format is 9")), "{notices:?}");

    // The first one too, if the second tells.
    append(&run.event_file(2), (line(2, 1).replace("\"v\":1", "\"v\":9") + &line(2, 2)).as_bytes());
    let (seen, notices) = drain(&mut tailer);
    assert_eq!((seen, tailer.malformed()), (vec![(2, 2)], 2), "{notices:?}");

    append(&run.event_file(3), line(3, 1).replace("\"v\":1", "\"v\":9").as_bytes());
    for _ in 0..2 {
        let error = tailer.poll(Limit::default()).unwrap_err();
        assert!(error.to_string().contains("event format v9 is newer"), "{error}");
    }
}

#[test]
fn new_attempts_are_followed_and_a_torn_end_is_said() {
    let (_root, run) = run();
    let mut tailer = EventTailer::new(&run);
    append(&run.event_file(1), line(1, 1).as_bytes());
    append(&run.event_file(1), b"{\"v\":1,\"att");
    assert_eq!(drain(&mut tailer), (vec![(1, 1)], vec![]));
    append(&run.event_file(2), line(2, 1).as_bytes());
    let torn = Notice::TornEnd { file: run.event_file(1), bytes: 11 };
    assert_eq!(drain(&mut tailer), (vec![(2, 1)], vec![torn]));
}

#[test]
fn bytes_that_the_dying_writer_added_last_are_read_before_the_next_attempt() {
    let (_root, run) = run();
    let mut tailer = EventTailer::new(&run);
    append(&run.event_file(1), line(1, 1).as_bytes());
    drain(&mut tailer);
    append(&run.event_file(1), line(1, 2).as_bytes());
    append(&run.event_file(2), line(2, 1).as_bytes());
    assert_eq!(drain(&mut tailer).0, [(1, 2), (2, 1)]);
}

#[test]
fn a_shortened_file_is_said_and_no_event_comes_twice() {
    let (_root, run) = run();
    let file = run.event_file(1);
    let mut tailer = EventTailer::new(&run);
    let three: String = (1..=3).map(|n| line(1, n)).collect();
    append(&file, three.as_bytes());
    assert_eq!(drain(&mut tailer).0.len(), 3);
    fs::OpenOptions::new().write(true).open(&file).unwrap().set_len(line(1, 1).len() as u64).unwrap();
    assert_eq!(drain(&mut tailer), (vec![], vec![Notice::Rewritten { file: file.clone() }]));
    append(&file, (2..=4).map(|n| line(1, n)).collect::<String>().as_bytes());
    assert_eq!(drain(&mut tailer), (vec![(1, 4)], vec![]));
}

#[test]
fn a_vanished_folder_is_said_once_and_may_come_back() {
    let (_root, run) = run();
    let mut tailer = EventTailer::new(&run);
    append(&run.event_file(1), line(1, 1).as_bytes());
    drain(&mut tailer);
    let moved = run.path().with_extension("moved");
    fs::rename(run.path(), &moved).unwrap();
    let (seen, notices) = drain(&mut tailer);
    assert!(seen.is_empty());
    assert_eq!(notices, [Notice::Vanished { file: run.event_file(1) }]);
    for _ in 0..3 {
        let polled = tailer.poll_with(Limit::NONE, |_, _| panic!("nothing is there")).unwrap();
        assert!(polled.gone && polled.at_end && polled.notices.is_empty());
    }
    fs::rename(&moved, run.path()).unwrap();
    append(&run.event_file(1), line(1, 2).as_bytes());
    let polled = tailer.poll_with(Limit::NONE, |event, _| assert_eq!(event.seq, 2)).unwrap();
    assert!(polled.events == 1 && !polled.gone && polled.notices.is_empty());
}

#[test]
fn a_run_that_vanishes_before_its_first_event_is_gone_too() {
    let (_root, run) = run();
    let mut tailer = EventTailer::new(&run);
    let mut gone = || tailer.poll_with(Limit::NONE, |_, _| {}).unwrap().gone;
    assert!(!gone());
    let moved = run.path().with_extension("moved");
    fs::rename(run.path(), &moved).unwrap();
    assert!(gone() && gone());
    fs::rename(&moved, run.path()).unwrap();
    assert!(!gone());
}

#[test]
fn a_poll_is_bounded_and_the_next_one_goes_on() {
    let (_root, run) = run();
    append(&run.event_file(1), (1..=10).map(|n| line(1, n)).collect::<String>().as_bytes());
    let mut tailer = EventTailer::new(&run);
    let limit = Limit { lines: 4, time: Duration::from_secs(60) };
    let sizes: Vec<usize> = (0..4).map(|_| tailer.poll(limit).unwrap().records.len()).collect();
    assert_eq!(sizes, [4, 4, 2, 0]);
    let no_time = Limit { lines: usize::MAX, time: Duration::ZERO };
    let mut again = EventTailer::new(&run);
    let mut seen = 0;
    while seen < 10 {
        seen += again.poll(no_time).unwrap().records.len();
    }
}

#[test]
fn an_endless_line_is_skipped_in_bounded_memory() {
    let (_root, run) = run();
    let file = run.event_file(1);
    append(&file, line(1, 1).as_bytes());
    append(&file, &vec![b'x'; LONGEST_LINE * 2 + 7]);
    append(&file, format!("\n{}", line(1, 2)).as_bytes());
    let mut tailer = EventTailer::new(&run);
    let (seen, notices) = drain(&mut tailer);
    assert_eq!(seen, [(1, 1), (1, 2)]);
    assert!(matches!(&notices[..], [Notice::Malformed { count: 1, first_line: 2, .. }]), "{notices:?}");
    assert!(tailer.pending.capacity() <= 2 * (LONGEST_LINE + CHUNK) + CHUNK);
}

#[test]
fn missing_events_are_said() {
    let (_root, run) = run();
    append(&run.event_file(1), format!("{}{}", line(1, 1), line(1, 5)).as_bytes());
    let gap = Notice::Gap { file: run.event_file(1), from_seq: 2, to_seq: 4, more: 0 };
    assert_eq!(drain(&mut EventTailer::new(&run)), (vec![(1, 1), (1, 5)], vec![gap]));
}

#[test]
fn many_gaps_are_one_notice() {
    let (_root, run) = run();
    append(&run.event_file(1), (1..=1000).map(|n| line(1, n * 3)).collect::<String>().as_bytes());
    let gap = Notice::Gap { file: run.event_file(1), from_seq: 1, to_seq: 2, more: 1998 };
    assert_eq!(drain(&mut EventTailer::new(&run)).1, [gap]);
}

#[derive(Debug, Clone)]
enum Piece {
    Event,
    Garbage(Vec<u8>),
}

proptest! {
    // Each case uses a few threads and files.
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn however_the_bytes_arrive_every_event_comes_once_and_garbage_is_counted(
        pieces in proptest::collection::vec(
            prop_oneof![
                3 => Just(Piece::Event),
                1 => proptest::collection::vec(any::<u8>().prop_filter("one line", |b| *b != b'\n'), 0..40)
                    .prop_map(Piece::Garbage),
            ],
            0..30,
        ),
        cuts in proptest::collection::vec(1_usize..200, 1..60),
        lines in 1_usize..8,
    ) {
        let (_root, run) = run();
        let (mut bytes, mut events, mut garbage) = (Vec::new(), 0, 0);
        for piece in &pieces {
            match piece {
                Piece::Event => {
                    events += 1;
                    bytes.extend_from_slice(line(1, events).as_bytes());
                }
                Piece::Garbage(junk) => {
                    garbage += u64::from(!junk.trim_ascii().is_empty());
                    bytes.extend_from_slice(junk);
                    bytes.push(b'\n');
                }
            }
        }
        let mut tailer = EventTailer::new(&run);
        let limit = Limit { lines, time: Duration::from_secs(60) };
        let mut seen = Vec::new();
        let (mut at, mut cut) = (0, cuts.iter().cycle());
        loop {
            let next = (at + cut.next().unwrap()).min(bytes.len());
            append(&run.event_file(1), &bytes[at..next]);
            at = next;
            let batch = tailer.poll(limit).unwrap();
            seen.extend(batch.records.iter().map(|r| r.event.seq));
            if at == bytes.len() && batch.at_end {
                break;
            }
        }
        prop_assert_eq!(seen, (1..=events).collect::<Vec<_>>());
        prop_assert_eq!(tailer.malformed(), garbage);
    }

    #[test]
    fn two_threads_and_polls_of_few_lines_bring_the_same_events_in_the_same_order_as_one_thread_at_once(
        attempts in proptest::collection::vec(proptest::collection::vec(odd_line(), 0..25), 1..4),
        torn in 0_usize..20,
        lines in prop_oneof![Just(usize::MAX), 1_usize..9],
    ) {
        let (_root, run) = run();
        for (attempt, odd) in (1..).zip(&attempts) {
            let mut seq = 0;
            let mut bytes = Vec::new();
            for odd in odd {
                odd.append_to(&mut bytes, attempt, &mut seq);
            }
            bytes.extend_from_slice(&line(attempt, seq + 1).as_bytes()[..torn]);
            append(&run.event_file(attempt), &bytes);
        }
        let read = |shared_from: usize, lines: usize| {
            let mut tailer = EventTailer::new(&run);
            tailer.shared_from = shared_from;
            let limit = Limit { lines, ..Limit::NONE };
            let (mut seen, mut notices, mut end) = (Vec::new(), Vec::new(), String::new());
            while end.is_empty() {
                match tailer.poll_with(limit, |event, line| seen.push((event, line.to_vec()))) {
                    Ok(polled) => {
                        notices.extend(polled.notices);
                        end.push_str(if polled.at_end { "at the end" } else { "" });
                    }
                    Err(error) => end = error.to_string(),
                }
            }
            let mut view = RunView::default();
            seen.iter().for_each(|(event, _)| view.apply(event));
            // Compared as text, in which NaN equals NaN.
            (format!("{seen:?} {end} {} {view:?}", tailer.malformed()), format!("{notices:?}"))
        };
        let by_one = read(usize::MAX, lines);
        prop_assert_eq!(&by_one, &read(1, lines));
        // Notices of one poll are put together.
        prop_assert_eq!(by_one.0, read(usize::MAX, usize::MAX).0);
    }
}

/// Content that may replace a line.
#[derive(Debug, Clone)]
enum Odd {
    Step { nan: bool, skipped: u64 },
    Again,
    Foreign,
    Garbage(Vec<u8>),
    Unknown,
    Newer,
}

fn odd_line() -> impl Strategy<Value = Odd> {
    let garbage = proptest::collection::vec(any::<u8>().prop_filter("one line", |b| *b != b'\n'), 0..40);
    prop_oneof![
        12 => (any::<bool>(), prop_oneof![9 => Just(0_u64), 1 => 1_u64..5]).prop_map(|(nan, skipped)| Odd::Step { nan, skipped }),
        2 => garbage.prop_map(Odd::Garbage),
        1 => Just(Odd::Again),
        1 => Just(Odd::Foreign),
        1 => Just(Odd::Unknown),
        1 => prop_oneof![3 => Just(Odd::Unknown), 1 => Just(Odd::Newer)],
    ]
}

impl Odd {
    fn append_to(&self, bytes: &mut Vec<u8>, attempt: u32, seq: &mut u64) {
        let text = match self {
            Odd::Step { nan, skipped } => {
                *seq += 1 + skipped;
                let loss_nats = if *nan { f64::NAN } else { 1.0 / *seq as f64 };
                let kind = Kind::Step(Step { step: *seq, loss_nats, lr: Some(1e-4), ..Step::default() });
                Event { attempt, seq: *seq, time_us: *seq, kind }.to_line().unwrap()
            }
            Odd::Again => line(attempt, *seq),
            Odd::Foreign => line(attempt + 7, *seq + 1),
            Odd::Garbage(junk) => {
                bytes.extend_from_slice(junk);
                "\n".to_owned()
            }
            Odd::Unknown => {
                *seq += 1;
                format!(
                    "{{\"v\":1,\"attempt\":{attempt},\"seq\":{seq},\"time_us\":1,\"kind\":\"weather\"}}\n"
                )
            }
            Odd::Newer => "{\"v\":2}\n".to_owned(),
        };
        bytes.extend_from_slice(text.as_bytes());
    }
}

#[test]
fn reading_begins_near_any_event_of_a_long_log_and_misses_none() {
    let (_root, run) = run();
    // A damaged line must not lead the search astray.
    let damage = |seq| if seq % 100 == 0 { "{oops\n" } else { "" };
    let text: String = (1..=20_000).map(|seq| line(1, seq) + damage(seq)).collect();
    append(&run.event_file(1), text.as_bytes());
    append(&run.event_file(3), (line(3, 1) + &line(3, 2)).as_bytes());
    for (attempt, seq) in [(1, 0), (1, 1), (1, 9_999), (1, 10_000), (1, 20_000), (2, 1), (3, 2), (4, 1)] {
        let mut tailer = EventTailer::beginning_near(&run, attempt, seq).unwrap();
        let (seen, _) = drain(&mut tailer);
        let wanted: Vec<_> = seen.iter().filter(|at| **at >= (attempt, seq)).copied().collect();
        let all = (1..=20_000).map(|seq| (1, seq)).chain([(3, 1), (3, 2)]);
        assert_eq!(wanted, all.filter(|at| *at >= (attempt, seq)).collect::<Vec<_>>(), "{attempt}.{seq}");
        assert!(seen.len() - wanted.len() < 2_000, "{attempt}.{seq} reads {} events", seen.len());
    }
    append(&run.event_file(4), line(4, 1).as_bytes());
    let mut tailer = EventTailer::beginning_near(&run, 4, 1).unwrap();
    assert_eq!(drain(&mut tailer).0, [(4, 1)]);
}
