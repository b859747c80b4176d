//! Whether a contribution is accepted, clipped or dropped: across the members of a step, and over time.
//!
//! Pure, and a function of the summaries and of a [`Judge`]'s state alone: every rank that has the same
//! summaries decides alike.

use serde::{Deserialize, Serialize};

use super::history::{Drift, Moments};
use super::sketch::{Summary, WIDTH};
use super::verdict::{Decision, Reason, Verdict};

/// The default number of deviations beyond which a contribution is an outlier.
pub const SIGMA: f64 = 3.5;
/// The steps after which the deviations are known. Until then, only what is not finite, not due, several
/// times too large or small, or opposed to the others is rejected.
const WARM_UP: u64 = 16;
/// The steps after which a step is forgotten.
const MEMORY: u64 = 64;
/// The smallest deviation of a log-norm that is told from none: members differ by 5 % for many reasons.
const LEAST_SPREAD: f64 = 0.05;
/// The smallest deviation of a log-norm during the warm-up.
const NEW_SPREAD: f64 = 0.3;
/// By how much the deviation of one step may be larger than usual. A step in which members are far apart must
/// not hide one that is further off.
const WIDEST: f64 = 3.0;
/// The smallest deviation of a cosine, which is the noise of a sketch.
const LEAST_COSINE: f64 = 0.0625;
/// The deviations beyond [`SIGMA`] that a member's mean over many steps may be off: it is tested in each
/// step, and its values are not quite independent.
const DRIFT: f64 = 2.0;
/// The steps for which a member is left out whose mean is off, the first time; then twice as many each time,
/// so that one that behaves in between gains little.
const HELD: u64 = 32;
/// The most doublings of that.
const MOST_DOUBLINGS: u32 = 10;
/// The most that a log-norm may be over the others' however far apart those are, `ln 10`: where training
/// diverges, honest norms differ by any factor, and with them the deviations.
const FARTHEST: f64 = std::f64::consts::LN_10;
/// What is clipped rather than dropped: a norm up to this factor over the accepted one, `ln 10`.
const CLIPPED: f64 = std::f64::consts::LN_10;
/// What is dropped in any case.
const DROPPED: f64 = FARTHEST + CLIPPED;
/// The cosines with which a member opposes the others during the warm-up: its own, and theirs.
const OPPOSED: [f64; 2] = [-0.25, 0.25];

/// What one member contributes to a step.
#[derive(Debug, Clone, PartialEq)]
pub struct Contribution {
    /// The trained tokens of its share, which every rank knows from the data; 0 if it has no share.
    pub terms: u64,
    /// Of the gradient as it was received.
    pub summary: Summary,
}

/// What is known of one member over time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Record {
    norm: Drift,
    cosine: Drift,
    /// The steps since the member's record began.
    steps: u64,
    /// The steps for which it is still left out, and how often it was.
    held: u64,
    holds: u32,
    clipped: u64,
    dropped: u64,
}

/// Judges the contributions of each step. Its state is small and is part of a checkpoint.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Judge {
    /// Log-norms of accepted contributions.
    norms: Moments,
    /// The spread of log-norms across the members of a step.
    spreads: Moments,
    /// How much more or less a member agrees with the others than they with each other.
    cosines: Moments,
    records: Vec<Record>,
}

/// What the tests of a step need of one contribution.
struct Measured {
    member: usize,
    /// Log-norm, adjusted for the number of terms.
    log_norm: f64,
    /// The deviation of the log-norm that another number of terms may explain.
    slack: f64,
    /// The expected cosine as a share of that of a member with as many terms as most.
    share: f64,
}

impl Judge {
    /// Judges a step, and remembers it. `sigma` is the number of deviations that are accepted; [`SIGMA`] if
    /// it is no positive number.
    pub fn judge(&mut self, contributions: &[Contribution], sigma: f64) -> Vec<Verdict> {
        let sigma = if sigma.is_finite() && sigma > 0.0 { sigma } else { SIGMA };
        if self.records.len() != contributions.len() {
            // Other members than before: who they are is not known, what is usual is.
            self.records = vec![Record::default(); contributions.len()];
        }
        let mut verdicts = vec![Verdict::ACCEPTED; contributions.len()];
        let due = self.certain(contributions, &mut verdicts);
        let measured = measure(contributions, &due);
        let step = (measured.len() >= 3).then(|| Step::of(contributions, &measured));
        let [norms, doubted] = match &step {
            None => {
                let doubted = self.over_time(&measured, sigma);
                [doubted.clone(), doubted]
            }
            Some(step) => self.across(&measured, step, sigma),
        };
        // Most members cannot be outliers: then there is nothing that they can be compared with.
        let most =
            if measured.len() < 3 { measured.len().saturating_sub(1) } else { (measured.len() - 1) / 2 };
        // Norms are exact and directions are noisy: a rank that is doubted for its direction must not save
        // one that is doubted for its norm.
        let (by_norm, others): (Vec<_>, Vec<_>) = doubted.into_iter().partition(|(_, verdict)| {
            matches!(verdict.reason, Some(Reason::Norm { .. } | Reason::NormOverTime { .. }))
        });
        // However many are doubted, the largest are no less so, also if they are doubted for more than their
        // norms. If two are, and are as large as each other, the data have a spike.
        let is_spike =
            matches!(&measured[..], [one, other] if (one.log_norm - other.log_norm).abs() < DROPPED);
        if !is_spike {
            for (member, verdict) in largest(norms).into_iter().take(most) {
                verdicts[member] = verdict;
            }
        }
        let is_clear = [by_norm.len() <= most, by_norm.len() + others.len() <= most];
        for (is_clear, doubted) in is_clear.into_iter().zip([by_norm, others]) {
            if is_clear {
                doubted.into_iter().for_each(|(member, verdict)| verdicts[member] = verdict);
            }
        }
        self.remember(&measured, step.as_ref(), &verdicts, sigma);
        verdicts
    }

    /// Returns how often the contributions of each member were clipped and dropped.
    pub fn counts(&self) -> Vec<(u64, u64)> {
        self.records.iter().map(|record| (record.clipped, record.dropped)).collect()
    }

    /// Rejects what needs no comparison. Returns the members that are compared.
    fn certain(&self, contributions: &[Contribution], verdicts: &mut [Verdict]) -> Vec<usize> {
        let any = contributions.iter().any(|one| one.summary.is_finite() && one.summary.norm() > 0.0);
        // If nobody's gradient is finite, the step itself is at fault, and is skipped as it would be alone.
        let any_finite = contributions.iter().any(|one| one.terms > 0 && one.summary.is_finite());
        let mut due = Vec::new();
        for (member, Contribution { terms, summary }) in contributions.iter().enumerate() {
            let norm = summary.norm();
            let reason = match (*terms, summary.is_finite()) {
                (0, true) if norm == 0.0 => continue,
                (0, _) => Reason::NotDue,
                (_, false) if any_finite => Reason::NotFinite,
                (_, false) => continue,
                (terms, true) if norm == 0.0 && any => Reason::Zero { terms },
                (_, true) if norm == 0.0 => continue,
                _ => {
                    due.push(member);
                    continue;
                }
            };
            verdicts[member] = Verdict::dropped(reason);
        }
        due
    }

    /// Judges by the norms of earlier steps alone, where there are too few members to compare.
    fn over_time(&self, measured: &[Measured], sigma: f64) -> Vec<(usize, Verdict)> {
        let tolerance = if self.norms.count() < WARM_UP {
            FARTHEST
        } else {
            (sigma * self.norms.deviation().max(LEAST_SPREAD)).min(FARTHEST)
        };
        if self.norms.count() < 2 {
            return Vec::new();
        }
        let doubted = measured.iter().filter_map(|one| {
            let off = one.log_norm - self.norms.mean();
            Some((one.member, of_norm(off, tolerance + one.slack, |times| Reason::NormOverTime { times })?))
        });
        doubted.collect()
    }

    /// Judges the members by each other, and by what each has done before. Returns the verdicts on their
    /// norms alone, and those on all that is known.
    fn across(&self, measured: &[Measured], step: &Step, sigma: f64) -> [Vec<(usize, Verdict)>; 2] {
        let is_new = self.spreads.count() < WARM_UP;
        let least = if is_new { NEW_SPREAD } else { LEAST_SPREAD };
        let usual = self.spreads.mean().max(least);
        let tolerance = (sigma * step.spread.clamp(usual, WIDEST * usual)).min(FARTHEST);
        let [mut norms, mut doubted] = [Vec::new(), Vec::new()];
        for (one, Agreement { own, others }) in measured.iter().zip(step.agreements.iter().copied()) {
            let off = one.log_norm - step.center;
            let by_norm = of_norm(off, tolerance + one.slack, |times| Reason::Norm { times });
            norms.extend(by_norm.map(|verdict| (one.member, verdict)));
            let is_opposed = if is_new {
                own < OPPOSED[0] && others > OPPOSED[1]
            } else {
                self.cosine_score(own - one.share * others) < -sigma
            };
            let Record { norm, cosine, steps, held, .. } = self.records[one.member];
            let limit = sigma + DRIFT;
            let drifts = norm.score().abs() > limit || cosine.score() < -limit;
            let is_gross = by_norm.filter(|verdict| verdict.decision == Decision::Drop);
            let verdict = if let Some(verdict) = is_gross {
                verdict
            } else if is_opposed {
                Verdict::dropped(Reason::Direction { own, others })
            } else if held > 0 {
                Verdict::dropped(Reason::Held { steps: held })
            } else if drifts && !is_new && steps >= WARM_UP / 2 {
                Verdict::dropped(Reason::Record { norm: norm.score(), cosine: cosine.score() })
            } else if let Some(verdict) = by_norm {
                verdict
            } else {
                continue;
            };
            doubted.push((one.member, verdict));
        }
        [norms, doubted]
    }

    /// Returns by how many deviations a member agrees more than usual with the others.
    fn cosine_score(&self, off: f64) -> f64 {
        (off - self.cosines.mean()) / self.cosines.deviation().max(LEAST_COSINE)
    }

    /// Adds a step to what is remembered, after it was judged: of what was rejected only that it was.
    fn remember(&mut self, measured: &[Measured], step: Option<&Step>, verdicts: &[Verdict], sigma: f64) {
        for (record, verdict) in self.records.iter_mut().zip(verdicts) {
            match verdict.decision {
                Decision::Accept => {}
                Decision::Clip(_) => record.clipped += 1,
                Decision::Drop => record.dropped += 1,
            }
        }
        if let Some(step) = step {
            self.remember_across(measured, step, verdicts, sigma);
        }
        for one in measured {
            let clipped = match verdicts[one.member].decision {
                Decision::Accept => one.log_norm,
                Decision::Clip(factor) => one.log_norm + f64::from(factor).ln(),
                Decision::Drop => continue,
            };
            self.norms.add(clipped, MEMORY * measured.len() as u64);
        }
    }

    fn remember_across(&mut self, measured: &[Measured], step: &Step, verdicts: &[Verdict], sigma: f64) {
        let Step { center, spread, ref agreements } = *step;
        let usual = self.spreads.mean().max(spread).max(LEAST_SPREAD);
        let is_new = self.spreads.count() < WARM_UP;
        let before = self.cosines;
        for (one, Agreement { own, others }) in measured.iter().zip(agreements) {
            let off = own - one.share * others;
            let score = (off - before.mean()) / before.deviation().max(LEAST_COSINE);
            let record = &mut self.records[one.member];
            record.steps += 1;
            if record.held > 0 {
                record.held -= 1;
            } else if matches!(verdicts[one.member].reason, Some(Reason::Record { .. })) {
                // Its record begins anew when it counts again.
                let Record { held, holds, norm, cosine, .. } = record;
                *held = HELD << (*holds).min(MOST_DOUBLINGS);
                *holds += 1;
                (*norm, *cosine) = (Drift::default(), Drift::default());
            } else if !is_new {
                // One step says little about a member, however far off it is.
                let off_norm = one.log_norm - center;
                let beyond_slack = (off_norm.abs() - one.slack).max(0.0).copysign(off_norm);
                record.norm.add((beyond_slack / usual).clamp(-sigma, sigma));
                record.cosine.add(score.clamp(-sigma, sigma));
            }
            if verdicts[one.member].decision != Decision::Drop {
                self.cosines.add(off, MEMORY * measured.len() as u64);
            }
        }
        // A step in which most are far apart says little about what is usual.
        let least = if is_new { NEW_SPREAD } else { LEAST_SPREAD };
        let most = WIDEST * self.spreads.mean().max(least);
        self.spreads.add(spread.min(most), MEMORY);
    }
}

/// What the members of a step have in common.
struct Step {
    /// The median of the log-norms.
    center: f64,
    /// The deviation of log-norms.
    spread: f64,
    /// One for each of those that are compared.
    agreements: Vec<Agreement>,
}

impl Step {
    fn of(contributions: &[Contribution], measured: &[Measured]) -> Self {
        let (center, spread) = center_and_spread(measured);
        Self { center, spread, agreements: agreements(contributions, measured) }
    }
}

/// Returns those whose norms are too large, the largest first.
fn largest(mut by_norm: Vec<(usize, Verdict)>) -> Vec<(usize, Verdict)> {
    let times = |(_, verdict): &(usize, Verdict)| match verdict.reason {
        Some(Reason::Norm { times } | Reason::NormOverTime { times }) => times,
        _ => 0.0,
    };
    by_norm.retain(|one| times(one) > 1.0);
    by_norm.sort_by(|one, other| times(other).total_cmp(&times(one)));
    by_norm
}

/// Returns the verdict on a log-norm that is off by so much, or `None` if that is accepted.
fn of_norm(off: f64, tolerance: f64, reason: impl Fn(f64) -> Reason) -> Option<Verdict> {
    if off > tolerance + CLIPPED || off < -tolerance - CLIPPED {
        return Some(Verdict::dropped(reason(off.exp())));
    }
    // Too small a contribution does no harm.
    (off > tolerance).then(|| Verdict {
        decision: Decision::Clip((tolerance - off).exp() as f32),
        reason: Some(reason(off.exp())),
    })
}

fn measure(contributions: &[Contribution], due: &[usize]) -> Vec<Measured> {
    let mut terms: Vec<f64> = due.iter().map(|member| contributions[*member].terms as f64).collect();
    terms.sort_unstable_by(f64::total_cmp);
    let Some(most) = terms.get(terms.len() / 2).copied() else { return Vec::new() };
    let of = |member: &usize| {
        let Contribution { terms, summary } = &contributions[*member];
        let ratio = *terms as f64 / most;
        // The norm of a sum grows with its terms if they agree, and with their square root if they do not.
        let log_norm = summary.norm().ln() - 0.75 * ratio.ln();
        Measured { member: *member, log_norm, slack: 0.25 * ratio.ln().abs(), share: ratio.min(1.0).sqrt() }
    };
    due.iter().map(of).collect()
}

/// Returns the median of the log-norms, and their deviation by the median of the distances from it.
fn center_and_spread(measured: &[Measured]) -> (f64, f64) {
    let mut values: Vec<f64> = measured.iter().map(|one| one.log_norm).collect();
    let center = median(&mut values);
    values.iter_mut().for_each(|value| *value = (*value - center).abs());
    let spread = median(&mut values) * consistency(measured.len());
    (center, spread)
}

/// Returns what the median distance from the median is multiplied by to be the deviation of normally
/// distributed numbers, of which there are so many. From 60,000 draws each; 1.4826 for many.
fn consistency(count: usize) -> f64 {
    const OF_FEW: [f64; 7] = [2.196, 2.015, 1.806, 1.766, 1.683, 1.673, 1.635];
    match count.checked_sub(3) {
        Some(place) if place < OF_FEW.len() => OF_FEW[place],
        _ => 1.4826 * (1.0 + 0.9 / count as f64),
    }
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    let half = values.len() / 2;
    if values.len() % 2 == 1 { values[half] } else { f64::midpoint(values[half - 1], values[half]) }
}

/// Returns the middle of an even number of values that is larger.
fn upper_median(values: &mut [f64]) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values[values.len() / 2]
}

/// How much a member's direction agrees with the others'.
#[derive(Debug, Clone, Copy)]
struct Agreement {
    /// The cosine that it has or exceeds with at least half of the others.
    own: f64,
    /// The median of the same among the others, without this member.
    others: f64,
}

/// Compares the directions of all pairs. A minority that points elsewhere lowers nobody's agreement, because
/// it is not in the middle of anyone's cosines.
fn agreements(contributions: &[Contribution], measured: &[Measured]) -> Vec<Agreement> {
    let count = measured.len();
    let sums = |place: usize| contributions[measured[place].member].summary.sums();
    // Divided by the largest first, so that no square overflows.
    let unit = |sums: &[f64]| {
        let largest = sums.iter().fold(0.0_f64, |most, sum| most.max(sum.abs()));
        let length = sums.iter().map(|sum| (sum / largest).powi(2)).sum::<f64>().sqrt();
        sums.iter().map(|sum| if length > 0.0 { sum / largest / length } else { 0.0 }).collect::<Vec<f64>>()
    };
    let units: Vec<Vec<f64>> = (0..count).map(|place| unit(sums(place))).collect();
    let mut cosines = vec![0.0; count * count];
    for one in 0..count {
        for other in 0..one {
            let cosine = dot(&units[one], &units[other]);
            cosines[one * count + other] = cosine;
            cosines[other * count + one] = cosine;
        }
    }
    let mut values = Vec::with_capacity(count);
    let mut of_others = Vec::with_capacity(count);
    let of = |one: usize| {
        let row = |of: usize| &cosines[of * count..][..count];
        let mut agreement = |of: usize, without: [usize; 2]| {
            values.clear();
            values.extend((0..count).filter(|other| !without.contains(other)).map(|other| row(of)[other]));
            upper_median(&mut values)
        };
        of_others.clear();
        of_others
            .extend((0..count).filter(|other| *other != one).map(|other| agreement(other, [one, other])));
        Agreement { own: agreement(one, [one, one]), others: upper_median(&mut of_others) }
    };
    (0..count).map(of).collect()
}

/// In eight sums, whose order is fixed.
fn dot(one: &[f64], other: &[f64]) -> f64 {
    let mut sums = [0.0; 8];
    debug_assert_eq!(one.len() % 8, WIDTH % 8);
    for (one, other) in one.chunks_exact(8).zip(other.chunks_exact(8)) {
        for (sum, (one, other)) in sums.iter_mut().zip(one.iter().zip(other)) {
            *sum += one * other;
        }
    }
    sums.iter().sum()
}
