//! Findings about what a training results in: losses, answers, and what dropping does.

use sparktune_base::statistics::wilson;
use sparktune_base::units::counted;

use super::compared::{
    NONE, QUBGPU_OVER_JSONL, change, final_loss, held_out, not_measured, of_dropping, of_reduction,
    of_training, three, times,
};
use super::types::{Found, Verdict};
use crate::claims;
use crate::pipeline::{Arrangement, Pipeline};
use crate::results::{Results, Training};
use crate::spread::Spread;
use crate::summary::{per_second, steady_sum};

pub(super) fn loss(results: &Results) -> Found {
    let fair = of_dropping(results, Arrangement::Fair, final_loss);
    let published = of_dropping(results, Arrangement::Published, final_loss);
    let without = of_training(results, Arrangement::Fair, QUBGPU_OVER_JSONL, final_loss);
    let held_out = of_dropping(results, Arrangement::Fair, held_out);
    let Some(decides) = fair.or(published) else { return not_measured("Training") };
    let same_bits = same_losses(results);
    let bits = match same_bits {
        Some(true) => {
            " The same tokens in the same order give the same loss, whichever file they come from: the losses of jsonl-packed and qubgpu are the same to the last bit at every step."
        }
        Some(false) => {
            " The losses of jsonl-packed and qubgpu differ, although their tokens are the same, which is a defect of this program."
        }
        None => "",
    };
    let why = format!(
        "QubGPU's figure is that of its pipeline with dropping, so ours is, too; the fair arrangement decides, which trains the same number of targets. Without dropping the final loss changes by {}, and with it the held-out loss by {}.{bits} A loss that halves means that something else was trained or counted, such as padding among the targets.",
        change(without),
        change(held_out)
    );
    (change(published), change(fair), of_reduction(decides, claims::LOSS.drop / claims::LOSS.jsonl), why)
}

/// Returns whether the packed pipelines have the same losses in every step of every seed.
pub(crate) fn same_losses(results: &Results) -> Option<bool> {
    let jsonl = results.trainings(Arrangement::Fair, Pipeline::JsonlPacked);
    let qubgpu = results.trainings(Arrangement::Fair, Pipeline::Qubgpu);
    let bits =
        |training: &Training| training.loss.iter().map(|loss| loss.map(f64::to_bits)).collect::<Vec<_>>();
    let pairs = || jsonl.iter().zip(&qubgpu).filter(|(one, other)| one.seed == other.seed);
    let is_measured = pairs().next().is_some();
    is_measured.then(|| pairs().all(|(one, other)| one.order == other.order && bits(one) == bits(other)))
}

/// Returns how many answers of a pipeline passed a suite, over all seeds.
fn passed(
    results: &Results,
    suite: &str,
    arrangement: Arrangement,
    pipeline: Option<Pipeline>,
) -> Option<(u64, u64)> {
    let found = results.quality.iter().filter(|one| {
        let trained = one.trained.map(|trained| (trained.arrangement, trained.pipeline));
        one.suite == suite && trained == pipeline.map(|pipeline| (arrangement, pipeline))
    });
    let sums = found.fold((0, 0), |sum, one| (sum.0 + one.passed, sum.1 + one.decided));
    (sums.1 > 0).then_some(sums)
}

/// Returns the first suite of which any answer passed: on the others all models are alike.
fn telling_suite(results: &Results) -> Option<&str> {
    let is_telling = |suite: &&String| {
        results.quality.iter().any(|one| one.suite == **suite && one.trained.is_some() && one.passed > 0)
    };
    results.settings.suites.iter().find(is_telling).map(String::as_str)
}

fn share((passed, decided): (u64, u64)) -> String {
    format!("{:.3}", passed as f64 / decided as f64)
}

pub(super) fn quality(results: &Results) -> Found {
    let Some(suite) = telling_suite(results) else {
        let answers: u64 =
            results.quality.iter().filter(|one| one.trained.is_some()).map(|one| one.decided).sum();
        if answers == 0 {
            return not_measured("Quality");
        }
        let why = format!(
            "None of {answers} answers of the trained models passed, whichever pipeline trained them, so this model is too small to tell pipelines apart. QubGPU's two tables give its own pipelines different qualities, too."
        );
        return (NONE.into(), NONE.into(), Verdict::NotMeasured, why);
    };
    let of = |arrangement, pipeline| passed(results, suite, arrangement, Some(pipeline));
    let shown = |arrangement| match (of(arrangement, Pipeline::Qubgpu), of(arrangement, Pipeline::Jsonl)) {
        (Some(qubgpu), Some(jsonl)) => format!("{} (jsonl: {})", share(qubgpu), share(jsonl)),
        _ => NONE.into(),
    };
    let arrangements = [Arrangement::Fair, Arrangement::Published];
    let both = |arrangement| of(arrangement, Pipeline::Qubgpu).zip(of(arrangement, Pipeline::Jsonl));
    let Some((qubgpu, jsonl)) = arrangements.into_iter().find_map(both) else {
        return not_measured("Quality");
    };
    let interval =
        |(passed, decided): (u64, u64)| wilson(passed as usize, decided as usize).unwrap_or((0.0, 1.0));
    let (ours, theirs) = (interval(qubgpu), interval(jsonl));
    let is_better = ours.0 > theirs.1;
    let verdict = match (qubgpu.0 == qubgpu.1, is_better) {
        (true, true) => Verdict::Holds,
        (false, true) => Verdict::InPart,
        _ => Verdict::DoesNotHold,
    };
    let base = passed(results, suite, Arrangement::Fair, None).map_or(NONE.into(), share);
    let why = format!(
        "{} of {} answers of qubgpu passed the suite {} over all seeds, and {} of {} of jsonl; the intervals of the two shares {}. The untuned base has {base}. QubGPU's two tables give its own pipelines different qualities ({} and {} for JSON Lines, {} and {} with dropping).",
        qubgpu.0,
        qubgpu.1,
        suite,
        jsonl.0,
        jsonl.1,
        if is_better { "do not overlap" } else { "overlap" },
        three_decimals(claims::QUALITY.jsonl),
        three_decimals(claims::QUALITY_AGAIN.jsonl),
        three_decimals(claims::QUALITY.drop),
        three_decimals(claims::QUALITY_AGAIN.drop),
    );
    (shown(Arrangement::Published), shown(Arrangement::Fair), verdict, why)
}

fn three_decimals(value: f64) -> String {
    format!("{value:.3}")
}

/// Returns the difference of the held-out losses that dropping makes, seed by seed, in nats.
pub(crate) fn drop_difference(results: &Results, arrangement: Arrangement) -> Option<Spread> {
    let (with, without) = (
        results.trainings(arrangement, Pipeline::QubgpuDrop),
        results.trainings(arrangement, Pipeline::Qubgpu),
    );
    let seeds = |trainings: &[&Training]| trainings.iter().map(|one| one.seed).collect::<Vec<_>>();
    if seeds(&with) != seeds(&without) {
        return None;
    }
    Spread::of(with.iter().zip(&without).map(|(with, without)| held_out(with) - held_out(without)))
}

pub(super) fn drop(results: &Results) -> Found {
    let difference = |arrangement| drop_difference(results, arrangement);
    let shown = |spread: Option<Spread>| {
        spread.map_or(NONE.into(), |Spread { mean, half_width, .. }| {
            let interval = half_width.map_or("no interval".into(), |half| format!("± {half:.4}"));
            format!("{mean:+.4} nats ({interval})").replace('-', "−")
        })
    };
    let Some(decides) = difference(Arrangement::Fair).or_else(|| difference(Arrangement::Published)) else {
        return not_measured("Dropping");
    };
    let targets = |one: &Training| per_second(&[one], |one| steady_sum(one, &one.targets))[0];
    let sides = [Pipeline::QubgpuDrop, Pipeline::Qubgpu];
    let speed = of_training(results, Arrangement::Fair, sides, targets);
    let (verdict, says) = if decides.half_width.is_none() {
        (Verdict::NotMeasured, "There are too few seeds for an interval.")
    } else if decides.is_below(0.0) {
        (Verdict::Holds, "The interval lies below zero, so here dropping helps.")
    } else if decides.is_above(0.0) {
        (Verdict::DoesNotHold, "The interval lies above zero, so here dropping harms.")
    } else {
        (Verdict::DoesNotHold, "The interval contains zero, so the seeds show no effect.")
    };
    let why = format!(
        "Dropping examples is subsampling: an epoch has fewer of them, and nothing is damaged or noisy about those that are left. The figures are the differences of the held-out loss from qubgpu over {} with the 95 % interval. {says} Its targets per second are {} those without.",
        counted(decides.count as u64, "seed"),
        times(speed)
    );
    (shown(difference(Arrangement::Published)), shown(difference(Arrangement::Fair)), verdict, why)
}

pub(super) fn answers(results: &Results) -> Found {
    let speed = |arrangement, pipeline: Option<Pipeline>| {
        let mut speeds = Vec::new();
        for one in &results.quality {
            let trained = one.trained.map(|trained| (trained.arrangement, trained.pipeline));
            if trained == pipeline.map(|pipeline| (arrangement, pipeline)) && one.generating_ms > 0.0 {
                speeds.push(one.tokens as f64 * 1e3 / one.generating_ms);
            }
        }
        Spread::of(speeds)
    };
    let row = |arrangement: Arrangement| {
        let of = |pipeline: &Pipeline| {
            let speed = speed(arrangement, Some(*pipeline))?;
            Some(format!("{} {:.0}", pipeline.name(), speed.mean))
        };
        let cells: Vec<String> = arrangement.pipelines().iter().filter_map(of).collect();
        if cells.is_empty() { NONE.into() } else { format!("{} tok/s", cells.join(", ")) }
    };
    let (jsonl, qubgpu) = (Some(Pipeline::Jsonl), Some(Pipeline::Qubgpu));
    let arrangement = [Arrangement::Fair, Arrangement::Published]
        .into_iter()
        .find(|at| speed(*at, jsonl).is_some() && speed(*at, qubgpu).is_some());
    let sides = arrangement.and_then(|at| speed(at, jsonl).zip(speed(at, qubgpu)));
    let Some((jsonl, qubgpu)) = sides else { return not_measured("The speed of answers") };
    let ratio = qubgpu.mean / jsonl.mean;
    let base = speed(Arrangement::Fair, None).map_or(NONE.into(), |base| format!("{:.0} tok/s", base.mean));
    let widths = qubgpu.half_width.zip(jsonl.half_width);
    let apart = widths.map(|(one, other)| (qubgpu.mean - jsonl.mean).abs() > one + other);
    let verdict = match apart {
        None => Verdict::NotMeasured,
        Some(true) if (ratio - 1.0).abs() > 0.1 => Verdict::Holds,
        Some(_) => Verdict::DoesNotHold,
    };
    let why = format!(
        "Models that were trained through different pipelines have the same shape, so an answer token costs the same: qubgpu's answers come at {} the speed of jsonl's, one prompt at a time, {}. The untuned base answers at {base}; an adapter that is not merged costs something, which every pipeline pays alike. In QubGPU's table, too, the base is {} × as fast as a model with an adapter, and {} × as fast as another.",
        times(Some(Spread { mean: ratio, low: ratio, high: ratio, half_width: None, count: 1 })),
        match apart {
            None => "but there are too few seeds for an interval, so this decides nothing",
            Some(true) => "and the intervals over the seeds do not overlap",
            Some(false) => "and the intervals over the seeds overlap",
        },
        three(claims::ANSWERS_OF_BASE / claims::ANSWERS.jsonl),
        three(claims::ANSWERS_OF_BASE / claims::ANSWERS.drop),
    );
    (row(Arrangement::Published), row(Arrangement::Fair), verdict, why)
}
