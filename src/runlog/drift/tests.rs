//! Tests with recordings in a readable form, and the warnings for them.

use super::*;
use crate::event::GpuSample;

/// Plays a recording with one stretch per line: `minutes, seconds per step, tokens/s, noise in percent, MHz
/// of max, busy percent`; `-` stands for values that were not measured. In addition to the steps there is a
/// sample every ten seconds. `eval` is a minute of samples without steps. Returns the warnings with their
/// minute.
fn play(recording: &str) -> Vec<(u64, String)> {
    let mut watch = DriftWatch::new();
    let (mut time_s, mut read_at, mut n) = (0.0, 0.0, 0_u64);
    let mut warned = Vec::new();
    for line in recording.trim().lines() {
        let fields: Vec<&str> = line.split(',').map(str::trim).collect();
        let (minutes, seconds, rate, noise, clock, busy) = match fields[..] {
            ["eval", clock, busy] => (1.0, 10.0, None, 0.0, clock, busy),
            [minutes, seconds, rate, noise, clock, busy] => (
                minutes.parse().unwrap(),
                seconds.parse().unwrap(),
                Some(rate.parse::<f64>().unwrap()),
                noise.parse::<f64>().unwrap(),
                clock,
                busy,
            ),
            _ => panic!("{line}"),
        };
        let clock = clock.split_once(" of ").map(|(now, max)| (now.parse().unwrap(), max.parse().unwrap()));
        let end_s = time_s + 60.0 * minutes;
        while time_s < end_s {
            time_s += seconds;
            if let Some(rate) = rate {
                n += 1;
                // Uniform in the interval, and the same on every call.
                let random = (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as f64 / (1 << 24) as f64;
                let rate = rate * (1.0 + noise / 100.0 * (2.0 * random - 1.0));
                let step = Step {
                    step: n,
                    tokens: (rate * seconds) as u64,
                    step_ms: Some(seconds * 1e3),
                    ..Step::default()
                };
                warned.extend(watch.step(&step).map(|w| (time_s as u64 / 60, w.message)));
            }
            while read_at < time_s {
                read_at += 10.0;
                let gpu = GpuSample {
                    sm_clock_mhz: clock.map(|(now, _)| now),
                    sm_clock_max_mhz: clock.map(|(_, max)| max),
                    busy_percent: busy.parse().ok(),
                    ..GpuSample::default()
                };
                let sample = DeviceSample { gpus: vec![gpu], ..DeviceSample::default() };
                let warning = watch.reading(&sample, (read_at * 1e6) as u64);
                warned.extend(warning.map(|w| (time_s as u64 / 60, w.message)));
            }
        }
    }
    warned
}

#[test]
fn a_healthy_run_with_noise_evaluations_and_a_slow_beginning_is_silent() {
    let healthy = "
        0.3, 6, 300, 5, 2100 of 2600, 80
        10, 4, 3400, 30, 2396 of 2600, 97
        eval, 2390 of 2600, 60
        0.2, 4, 900, 5, 2396 of 2600, 97
        20, 4, 3300, 30, 2310 of 2600, 97
        eval, 210 of 2600, 3
        1, 4, 3300, 30, 208 of 2600, 0
        20, 4, 3350, 30, - , -
        0.5, 4, 1500, 10, 1200 of 2600, 95
        20, 4, 3350, 30, 2396 of 2600, 97
    ";
    assert_eq!(play(healthy), []);
    for seconds in ["0.02", "0.9", "45"] {
        let steady = format!("120, {seconds}, 3400, 40, 2396 of 2600, 97");
        assert_eq!(play(&steady), [], "{seconds} s per step");
    }
}

#[test]
fn the_slow_state_is_one_warning_with_its_figures_and_its_end_another() {
    let warned = play(
        "
        10, 4, 3400, 10, 2396 of 2400, 97
        40, 11, 1200, 10, 812 of 2400, 96
        eval, 812 of 2400, 80
        10, 11, 1200, 10, 812 of 2400, 96
        20, 4, 3400, 10, 2396 of 2400, 97
        ",
    );
    let [(began, slow), (ended, well)] = &warned[..] else { panic!("{warned:?}") };
    assert!((11..=12).contains(began) && (62..=64).contains(ended), "{warned:?}");
    assert!(slow.contains("SM clock 812 MHz of 2,400 for 60 s while 96 % busy"), "{slow}");
    assert!(
        slow.contains("tokens/s, down from 3,4") && slow.contains("nvidia-smi -q -d PERFORMANCE"),
        "{slow}"
    );
    assert!(well.contains("SM clock 2,396 MHz of 2,400"), "{well}");
}

#[test]
fn a_run_that_begins_in_the_slow_state_is_told_by_its_clock() {
    let warned = play("30, 11, 1200, 10, 812 of 2400, 96");
    assert_eq!(warned.len(), 1, "{warned:?}");
    assert!(warned[0].0 <= 2 && warned[0].1.contains("SM clock 812 MHz of 2,400"), "{warned:?}");
}

#[test]
fn speed_alone_is_a_sign_where_nobody_measures_a_clock() {
    let warned = play("10, 4, 400, 10, -, -\n10, 9, 180, 10, -, -\n10, 4, 400, 10, -, -");
    let [(_, slow), (_, well)] = &warned[..] else { panic!("{warned:?}") };
    assert!(
        slow.starts_with("training has become slow: 1") && slow.contains("tokens/s, down from 4"),
        "{slow}"
    );
    assert!(
        well.starts_with("the machine is back at its normal speed: 3") || well.contains("speed: 4"),
        "{well}"
    );
}

#[test]
fn a_clock_that_hovers_at_the_border_does_not_flap() {
    let mut recording = "10, 4, 3400, 10, 2396 of 2400, 97\n".to_owned();
    for _ in 0..30 {
        recording.push_str("0.5, 4, 3000, 10, 1150 of 2400, 97\n0.5, 4, 3000, 10, 1250 of 2400, 97\n");
    }
    assert_eq!(play(&recording), []);
    recording.push_str("5, 4, 3000, 10, 900 of 2400, 97\n");
    recording.push_str(&"1, 4, 3000, 10, 1150 of 2400, 97\n1, 4, 3000, 10, 1350 of 2400, 97\n".repeat(20));
    assert_eq!(play(&recording).len(), 1);
}

#[test]
fn steps_and_readings_without_figures_are_no_sign() {
    let mut watch = DriftWatch::new();
    for n in 0..500 {
        let ms = [None, Some(f64::NAN), Some(0.0), Some(-1.0)][n % 4];
        assert_eq!(watch.step(&Step { step: n as u64, step_ms: ms, ..Step::default() }), None);
        let gpu = GpuSample { sm_clock_mhz: Some(100), busy_percent: Some(99), ..GpuSample::default() };
        let sample = DeviceSample { gpus: vec![gpu], ..DeviceSample::default() };
        assert_eq!(watch.reading(&sample, n as u64 * 10_000_000), None);
        assert_eq!(watch.reading(&DeviceSample::default(), 0), None);
    }
}
