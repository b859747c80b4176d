//! Tests with series of readings like those of a GB10: 128.5 GB shared by CPU and GPU, 11.7 GB of it the
//! plan's reserve. The values are made up after reports of machines that stalled.

use super::*;

const GB: u64 = 1_000_000_000;
const SECOND: u64 = 1_000_000;

fn spark() -> PressureWatch {
    PressureWatch::new(11_700_000_000, vec!["--recompute true".into(), "--pack-length 2688".into()])
}

fn reading(available: f64) -> MemoryReading {
    MemoryReading {
        total_bytes: 128_500_000_000,
        available_bytes: (available * GB as f64) as u64,
        unified: true,
        swap_used_bytes: Some(0),
        some_percent: Some(0.0),
        full_percent: Some(0.0),
        own_bytes: Some(6 * GB),
    }
}

fn no_other() -> Option<MemoryUser> {
    None
}

/// Returns the results of a series with two readings per second: the second and the action.
fn actions_of(
    watch: &mut PressureWatch,
    series: impl IntoIterator<Item = MemoryReading>,
) -> Vec<(f64, Relief)> {
    let series = series.into_iter().enumerate();
    let actions = series.filter_map(|(i, reading)| {
        let relief = watch.reading(&reading, i as u64 * SECOND / 2, no_other)?;
        Some((i as f64 / 2.0, relief))
    });
    actions.collect()
}

fn level(available: f64, seconds: usize) -> Vec<MemoryReading> {
    vec![reading(available); seconds * 2]
}

fn stops(actions: &[(f64, Relief)]) -> Vec<f64> {
    actions.iter().filter(|(_, relief)| matches!(relief, Relief::Stop(_))).map(|(at, _)| *at).collect()
}

#[test]
fn a_run_that_fits_is_left_alone_also_when_it_fits_exactly() {
    for available in [60.0, 12.0, 9.0] {
        assert_eq!(actions_of(&mut spark(), level(available, 600)), []);
    }
}

#[test]
fn another_program_that_grows_is_warned_of_first_and_then_the_run_stops() {
    // 0.2 GB per second, from 20 GB down to nothing.
    let series = (0..200).map(|i| reading(20.0 - 0.1 * f64::from(i)));
    let actions = actions_of(&mut spark(), series);
    assert_eq!(actions.len(), 2, "{actions:?}");
    assert!(matches!(actions[0].1, Relief::Warn(_)) && stops(&actions).len() == 1);
    // 20 GB last 100 s. Memory is tight below 8.8 GB and critical below 4.4 GB; when the run stops, 3.9 GB
    // are left for an orderly end.
    assert!((60.0..65.0).contains(&actions[0].0), "{actions:?}");
    assert!((79.0..82.0).contains(&actions[1].0), "{actions:?}");
}

#[test]
fn a_fall_off_a_cliff_stops_at_once() {
    let series = level(30.0, 10).into_iter().chain(level(1.2, 1));
    let actions = actions_of(&mut spark(), series);
    assert_eq!(stops(&actions), [10.0]);
}

#[test]
fn a_dip_of_a_moment_is_no_reason() {
    // Every 25 s an optimizer step reduces free memory to 3 GB for a second.
    let series = (0..1200).map(|i| reading(if i % 50 < 3 { 3.0 } else { 14.0 }));
    assert_eq!(actions_of(&mut spark(), series), []);
}

#[test]
fn at_the_edge_it_is_said_once_and_again_only_after_a_minute_of_room() {
    // Free memory goes up and down around the threshold for ten minutes.
    let restless = (0..1200).map(|i| reading(if i / 24 % 2 == 0 { 8.0 } else { 12.5 }));
    let mut watch = spark();
    let actions = actions_of(&mut watch, restless.clone());
    assert_eq!(actions.len(), 1, "{actions:?}");
    let mut watch = spark();
    let series = level(8.0, 10).into_iter().chain(level(20.0, 61)).chain(level(8.0, 10));
    let actions = actions_of(&mut watch, series);
    let words: Vec<&str> = actions
        .iter()
        .map(|(_, relief)| match relief {
            Relief::Warn(words) | Relief::Stop(words) => words.split(':').next().unwrap(),
        })
        .collect();
    assert_eq!(words, ["memory is running low", "there is enough memory again", "memory is running low"]);
}

#[test]
fn waiting_for_memory_while_it_is_tight_stops_and_while_there_is_room_is_only_said() {
    let waiting = |available| MemoryReading {
        some_percent: Some(60.0),
        full_percent: Some(35.0),
        ..reading(available)
    };
    let actions = actions_of(&mut spark(), vec![waiting(8.0); 60]);
    assert_eq!(stops(&actions), [5.0], "{actions:?}");
    let actions = actions_of(&mut spark(), vec![waiting(50.0); 600]);
    assert!(
        matches!(actions.as_slice(), [(10.0, Relief::Warn(words))] if words.contains("programs are waiting")),
        "{actions:?}"
    );
}

#[test]
fn swap_that_fills_while_memory_stays_low_is_what_a_stall_looks_like_before_it() {
    let swapping = |i: u64| MemoryReading { swap_used_bytes: Some(2 * GB + i * GB / 4), ..reading(7.0) };
    let actions = actions_of(&mut spark(), (0..120).map(swapping));
    // Swap has grown by 5.9 GB after 12 s, and the run stops 5 s later.
    assert_eq!(stops(&actions), [17.0], "{actions:?}");
    let idle_desktop =
        |i: u64| MemoryReading { swap_used_bytes: Some(i.min(100) * GB / 10), ..reading(30.0) };
    assert_eq!(actions_of(&mut spark(), (0..600).map(idle_desktop)), []);
    let since_yesterday = MemoryReading { swap_used_bytes: Some(15 * GB), ..reading(9.0) };
    assert_eq!(actions_of(&mut spark(), vec![since_yesterday; 600]), []);
}

#[test]
fn the_verdict_says_what_used_the_memory_and_what_to_change() {
    let pressed = MemoryReading {
        some_percent: Some(40.0),
        full_percent: Some(12.0),
        swap_used_bytes: Some(3 * GB),
        ..reading(1.0)
    };
    let user = MemoryUser { name: "ollama".into(), pid: 4711, bytes: 42 * GB };
    let mut watch = spark();
    watch.reading(&reading(20.0), 0, no_other);
    let Some(Relief::Stop(words)) = watch.reading(&pressed, SECOND, || Some(user)) else {
        panic!("it stops")
    };
    assert_eq!(
        words,
        "memory ran out: 1.0 GB of 128 GB available, but 11.7 GB should stay free; swap use grew by 3.0 GB; all programs waited \
         for memory for 12 % of the last 10 s; the trainer uses 6.0 GB, not counting its memory on the GPU; the largest other \
         program is ollama (4711) with 42.0 GB. The run was stopped before the machine stalls. If other programs are using it, end them and resume; otherwise start a new run with --recompute true or --pack-length 2688"
    );
    assert_eq!(watch.reading(&pressed, 2 * SECOND, no_other), None, "said once");
}

#[test]
fn a_container_without_psi_and_swap_is_judged_by_its_limit_alone() {
    let mut watch = PressureWatch::new(1_050_000_000, Vec::new());
    let limited = |available| MemoryReading {
        total_bytes: 16 * GB,
        available_bytes: available,
        ..MemoryReading::default()
    };
    let series = vec![limited(5 * GB); 20].into_iter().chain(vec![limited(300_000_000); 20]);
    let actions = actions_of(&mut watch, series);
    let [(12.0, Relief::Stop(words))] = actions.as_slice() else { panic!("{actions:?}") };
    assert!(words.contains("300 MB of 16.0 GB") && words.ends_with("a machine with more memory"), "{words}");
}

#[test]
fn readings_that_came_late_count_by_their_time() {
    let mut watch = spark();
    assert_eq!(watch.reading(&reading(3.0), 0, no_other), None);
    let late = watch.reading(&reading(3.0), 20 * SECOND, no_other);
    assert!(matches!(late, Some(Relief::Stop(_))), "a machine that hardly runs is the one to stop on");
}
