//! The tables, in Markdown.

use std::fmt::Write;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::thread;
use std::time::Instant;

use sparktune_base::units::count;
use sparktune_cluster::sentry::Summary;

use super::lies::Lie;
use super::recording::Recording;
use super::simulate::{FROM, Honest, Lied};
use crate::error::BenchError;

/// The numbers of ranks for which lies are judged.
const RANKS: RangeInclusive<usize> = 3..=16;
/// The runs through each recording in which a rank lies.
const RUNS: u64 = 5;

/// Judges recordings: honest ranks, in at least `honest_steps` steps for each number of them, and liars.
///
/// # Errors
/// A file cannot be read or is no recording.
pub fn tables(files: &[PathBuf], honest_steps: u64, note: &dyn Fn(&str)) -> Result<String, BenchError> {
    let recordings = files.iter().map(|file| Recording::read(file)).collect::<Result<Vec<_>, _>>()?;
    let mut text = String::new();
    for (file, recording) in files.iter().zip(&recordings) {
        let losses = |step: Option<&super::recording::Step>| step.map_or(f64::NAN, |step| step.loss);
        let _ = writeln!(
            text,
            "- `{}`: {} steps of {} micro-batches, {} parameters, loss {:.3} → {:.3}, gradient norm up to {} times that of the step before",
            file.file_name().unwrap_or_default().to_string_lossy(),
            recording.steps.len(),
            recording.honest,
            count(recording.parameters),
            losses(recording.steps.first()),
            losses(recording.steps.last()),
            recording.largest_rise().map_or_else(|| "–".to_owned(), number),
        );
    }
    text.push_str(&honest(&recordings, honest_steps, note));
    text.push_str(&liars(&recordings, note));
    text.push_str(&cost());
    Ok(text)
}

/// Computes something for each item, on two threads.
fn for_each<I: Copy + Sync, T: Send>(items: &[I], of: impl Fn(I) -> T + Sync) -> Vec<T> {
    let of = &of;
    let halves = thread::scope(|scope| {
        let every_second = |first: usize| {
            scope.spawn(move || items.iter().skip(first).step_by(2).map(|item| of(*item)).collect::<Vec<_>>())
        };
        [0, 1].map(every_second).map(|half| half.join().expect("nothing panics while it judges"))
    });
    let [even, odd] = halves;
    let (mut even, mut odd) = (even.into_iter(), odd.into_iter());
    let in_turn = (0..items.len()).filter_map(|place| if place % 2 == 0 { even.next() } else { odd.next() });
    in_turn.collect()
}

fn honest(recordings: &[Recording], steps: u64, note: &dyn Fn(&str)) -> String {
    let ranks: Vec<usize> = (2..=16).collect();
    note("judging honest steps");
    let counted = for_each(&ranks, |ranks| Honest::count(recordings, ranks, steps));
    let mut text = String::from(
        "\n| ranks | honest steps | contributions | clipped | dropped for norm | for direction | for the record | dropped of all | steps touched |\n|---|---|---|---|---|---|---|---|---|\n",
    );
    for (ranks, one) in ranks.iter().zip(&counted) {
        let all = one.contributions as f64;
        let dropped = one.dropped.iter().sum::<u64>() as f64;
        let _ = writeln!(
            text,
            "| {ranks} | {} | {} | {} | {} | {} | {} | {:.1e} | {:.1e} |",
            count(one.steps),
            count(one.contributions),
            count(one.clipped),
            count(one.dropped[0]),
            count(one.dropped[1]),
            count(one.dropped[2]),
            dropped / all,
            one.touched as f64 / one.steps as f64,
        );
    }
    text
}

fn liars(recordings: &[Recording], note: &dyn Fn(&str)) -> String {
    let mut text =
        String::from("\nOne rank lies from a step on. Progress and error with and without the judge.\n");
    for lie in Lie::ALL {
        note(&format!("judging liars: {}", lie.in_words()));
        let cases: Vec<(usize, usize)> =
            FROM.iter().flat_map(|from| RANKS.map(move |ranks| (*from, ranks))).collect();
        let counted = for_each(&cases, |(from, ranks)| Lied::count(recordings, ranks, lie, from, RUNS));
        let _ = write!(
            text,
            "\n**{}**\n\n| from step | ranks | dropped | clipped | dropped in runs | first after steps | honest dropped per step | progress off | on | error off | on |\n|---|---|---|---|---|---|---|---|---|---|---|\n",
            lie.in_words()
        );
        for ((from, ranks), one) in cases.iter().zip(&counted) {
            let share = |part: u64| 100.0 * part as f64 / one.steps as f64;
            let means = |damage: &super::simulate::Damage| {
                damage.means().map_or(["none".into(), "not finite".into()], |(progress, error)| {
                    [number(progress), number(error)]
                })
            };
            let ([progress_off, error_off], [progress_on, error_on]) =
                (means(&one.without), means(&one.with));
            let after = if one.found > 0 {
                format!("{:.1}", one.until as f64 / one.found as f64)
            } else {
                "–".into()
            };
            let _ = writeln!(
                text,
                "| {} | {ranks} | {:.0} % | {:.0} % | {} of {} | {after} | {:.3} | {progress_off} | {progress_on} | {error_off} | {error_on} |",
                from + 1,
                share(one.dropped),
                share(one.clipped),
                one.found,
                one.runs,
                one.others as f64 / one.steps as f64,
            );
        }
    }
    text
}

fn number(value: f64) -> String {
    if value.abs() < 1000.0 { format!("{value:.2}") } else { format!("{value:.1e}") }
}

/// The time of a summary, next to that of copying the same numbers.
fn cost() -> String {
    const NUMBERS: usize = 16 << 20;
    let values: Vec<f32> = (0..NUMBERS).map(|place| (place % 1013) as f32 - 500.0).collect();
    let fastest = |mut work: Box<dyn FnMut() + '_>| {
        let times = (0..7).map(|_| {
            let started = Instant::now();
            work();
            started.elapsed().as_secs_f64()
        });
        times.fold(f64::INFINITY, f64::min)
    };
    let summary = fastest(Box::new(|| {
        let mut summary = Summary::default();
        summary.add(1, 0, std::hint::black_box(&values));
        std::hint::black_box(summary.norm());
    }));
    let mut copied = vec![0.0; NUMBERS];
    let copy = fastest(Box::new(|| {
        copied.copy_from_slice(std::hint::black_box(&values));
        std::hint::black_box(&copied);
    }));
    format!(
        "\nNorm and projection of {} numbers: {:.1} ms, {:.2} ns each, {:.1} times a copy.\n",
        count(NUMBERS as u64),
        summary * 1e3,
        summary * 1e9 / NUMBERS as f64,
        summary / copy,
    )
}
