//! What a rank may send instead of its gradient.

use std::collections::VecDeque;

use sparktune_cluster::sentry::{Contribution, Decision, Judge, SIGMA, Summary};

use super::recording::{Recording, Step};

/// What a rank sends.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Lie {
    NotFinite,
    /// Its gradient times this number.
    Times(f64),
    Zero,
    /// The same number everywhere, with the norm of its gradient.
    Constant,
    /// Its gradient of so many steps ago.
    Stale(usize),
    /// Its first gradient, in all steps.
    Stuck,
    /// The gradient of wrong labels.
    WrongLabels,
    /// Its gradient, made larger until it is 3.4 deviations from the median of all.
    Larger,
    /// As much of the opposite of the others' sum as is accepted at 3.4 deviations, at the largest norm that
    /// is: the liar knows the others' gradients and has a copy of the judge.
    Against,
}

impl Lie {
    pub(crate) const ALL: [Self; 17] = [
        Self::Times(1.0),
        Self::NotFinite,
        Self::Times(2.0),
        Self::Times(10.0),
        Self::Times(100.0),
        Self::Times(1e6),
        Self::Times(1e12),
        Self::Times(-1.0),
        Self::Times(-10.0),
        Self::Zero,
        Self::Constant,
        Self::Stale(1),
        Self::Stale(20),
        Self::Stuck,
        Self::WrongLabels,
        Self::Larger,
        Self::Against,
    ];

    pub(crate) fn in_words(self) -> String {
        match self {
            Self::NotFinite => "NaN".into(),
            Self::Times(1.0) => "honest, for comparison".into(),
            Self::Times(-1.0) => "sign flip".into(),
            Self::Times(factor) if factor.abs() < 1e3 => format!("× {factor}"),
            Self::Times(factor) => format!("× {factor:.0e}"),
            Self::Zero => "zero".into(),
            Self::Constant => "constant".into(),
            Self::Stale(1) => "stale by 1 step".into(),
            Self::Stale(steps) => format!("stale by {steps} steps"),
            Self::Stuck => "stuck at its first".into(),
            Self::WrongLabels => "wrong labels".into(),
            Self::Larger => "adaptive: larger, 3.4 σ".into(),
            Self::Against => "adaptive: against the others, 3.4 σ".into(),
        }
    }
}

/// The deviations that an adaptive liar keeps within.
const WITHIN: f64 = 3.4;
/// The halvings of an interval in which a liar looks for what is just accepted.
const HALVINGS: usize = 10;

/// A rank that lies from some step on.
pub(crate) struct Liar {
    lie: Lie,
    /// Its last honest contributions, the newest first.
    past: VecDeque<Contribution>,
    first: Option<Contribution>,
}

impl Liar {
    pub(crate) fn new(lie: Lie) -> Self {
        Self { lie, past: VecDeque::new(), first: None }
    }

    /// Remembers what it would have sent honestly.
    pub(crate) fn remember(&mut self, honest: &Contribution) {
        self.first.get_or_insert_with(|| honest.clone());
        self.past.push_front(honest.clone());
        self.past.truncate(21);
    }

    /// Returns what it sends as member `own` among these contributions, of which its own is still honest.
    pub(crate) fn sent(
        &self,
        recording: &Recording,
        step: &Step,
        own: usize,
        all: &[Contribution],
        judge: &Judge,
    ) -> Contribution {
        let honest = &all[own];
        let terms = honest.terms;
        let of = |summary: Summary| Contribution { terms, summary };
        let with_norm = |summary: &Summary, norm: f64| summary.scaled(norm / summary.norm());
        match self.lie {
            Lie::NotFinite => of(honest.summary.scaled(f64::NAN)),
            Lie::Times(factor) => of(honest.summary.scaled(factor)),
            Lie::Zero => of(honest.summary.scaled(0.0)),
            Lie::Constant => of(with_norm(&step.ones(recording.parameters), honest.summary.norm())),
            Lie::Stale(steps) => of(self.past.get(steps).unwrap_or(honest).summary.clone()),
            Lie::Stuck => of(self.first.as_ref().unwrap_or(honest).summary.clone()),
            Lie::WrongLabels => {
                // As many wrong micro-batches as its share has on average, at least one.
                let count = (recording.honest / all.len()).clamp(1, recording.wrong);
                let wrong: Vec<usize> = (recording.honest..recording.honest + count).collect();
                step.share(&wrong)
            }
            Lie::Larger => {
                let accepted = |share: f64| {
                    let sent = of(honest.summary.scaled((share * 10.0_f64.ln()).exp()));
                    is_accepted(own, all, judge, &sent).then_some(sent)
                };
                furthest(accepted).unwrap_or_else(|| honest.clone())
            }
            Lie::Against => {
                let mut against = Summary::default();
                for (member, one) in all.iter().enumerate() {
                    if member != own {
                        against.merge(&one.summary.scaled(-1.0));
                    }
                }
                let norm = honest.summary.norm();
                let squares: f64 = against.sums().iter().map(|sum| sum * sum).sum();
                let against = against.with_squares(squares);
                let mixed = |share: f64| {
                    let mut mixed = honest.summary.scaled(1.0 - share);
                    mixed.merge(&with_norm(&against, norm * share));
                    // The squared norm of a mixture is estimated by that of its projection.
                    let squares: f64 = mixed.sums().iter().map(|sum| sum * sum).sum();
                    with_norm(&mixed.with_squares(squares), norm)
                };
                let turned = furthest(|share| {
                    let sent = of(mixed(share));
                    is_accepted(own, all, judge, &sent).then_some(sent)
                });
                let turned = turned.unwrap_or_else(|| honest.clone());
                let larger = furthest(|share| {
                    let sent = of(turned.summary.scaled((share * 10.0_f64.ln()).exp()));
                    is_accepted(own, all, judge, &sent).then_some(sent)
                });
                larger.unwrap_or(turned)
            }
        }
    }
}

/// Returns whether the judge would accept what member `own` sends, at the liar's own limit.
fn is_accepted(own: usize, all: &[Contribution], judge: &Judge, sent: &Contribution) -> bool {
    let mut all = all.to_vec();
    all[own] = sent.clone();
    judge.clone().judge(&all, WITHIN.min(SIGMA))[own].decision == Decision::Accept
}

/// Returns the result for the largest number in 0..1 that has one, if all below it do.
fn furthest<T>(of: impl Fn(f64) -> Option<T>) -> Option<T> {
    if let Some(all) = of(1.0) {
        return Some(all);
    }
    let (mut low, mut high, mut best) = (0.0, 1.0, of(0.0));
    best.as_ref()?;
    for _ in 0..HALVINGS {
        let middle = f64::midpoint(low, high);
        match of(middle) {
            Some(result) => (low, best) = (middle, Some(result)),
            None => high = middle,
        }
    }
    best
}
