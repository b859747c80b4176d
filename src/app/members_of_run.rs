//! The ranks of a run of several machines in words, one row each, and the time that a step waits for them,
//! for every interface.

use serde::Serialize;
use sparktune_base::escape::escape;
use sparktune_base::units::{UNKNOWN, count, milliseconds, or_unknown, percent};
use sparktune_runlog::{MemberSample, MemberState, RunView};

/// The names of the columns, in the order of [`MemberRow::columns`].
pub const COLUMNS: [&str; 7] = ["rank", "at", "state", "share", "speed", "latency", "drops"];

/// A rank in words. Its text is escaped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MemberRow {
    /// The number that its launcher gave it.
    pub rank: usize,
    /// Its address as rank 0 sees it.
    pub at: String,
    /// What it does, in one word.
    pub state: String,
    /// Whether it needs attention: it is silent or gone.
    pub is_missing: bool,
    /// Its micro-batches of a step.
    pub share: String,
    /// The time of one of them.
    pub speed: String,
    /// The smoothed time from a question to its answer.
    pub latency: String,
    /// How often the others went on without it.
    pub drops: String,
}

impl MemberRow {
    fn of(sample: &MemberSample, all: u32) -> Self {
        let MemberSample { rank, place, state, micro_batches, micro_batch_ms, latency_ms, drops } = sample;
        let trains = *state != MemberState::Gone;
        Self {
            rank: *rank,
            at: match place.as_str() {
                "" if *rank == 0 => "this machine".to_owned(),
                "" => UNKNOWN.to_owned(),
                place => escape(place).into_owned(),
            },
            state: state.word().to_owned(),
            is_missing: matches!(state, MemberState::Silent | MemberState::Gone),
            share: if trains { format!("{micro_batches} of {all}") } else { UNKNOWN.to_owned() },
            speed: or_unknown(*micro_batch_ms, |ms| format!("{} each", milliseconds(ms))),
            latency: or_unknown(*latency_ms, milliseconds),
            drops: drops.to_string(),
        }
    }

    /// Returns the texts of the columns.
    pub fn columns(&self) -> [String; 7] {
        let Self { rank, at, state, share, speed, latency, drops, .. } = self;
        [&rank.to_string(), at, state, share, speed, latency, drops].map(Clone::clone)
    }
}

/// Returns the ranks as they were seen last; none for a run of one process.
pub fn members(view: &RunView) -> Vec<MemberRow> {
    let ranks = view.member_samples.as_ref().map_or(&[][..], |samples| &samples.ranks);
    let all = ranks.iter().map(|sample| sample.micro_batches).sum();
    ranks.iter().map(|sample| MemberRow::of(sample, all)).collect()
}

/// Returns how long a step waits for the exchange with other ranks; `None` for a run of one process, and
/// before the first exchange.
pub fn exchange(view: &RunView) -> Option<String> {
    let parts = view.step_parts()?;
    let waited_ms = parts.exchange_ms?;
    Some(format!(
        "a step waits {} of its {} ({}), mean of the last {}",
        milliseconds(waited_ms),
        milliseconds(parts.step_ms),
        percent(waited_ms / parts.step_ms),
        count(parts.over_steps)
    ))
}

#[cfg(test)]
mod tests {
    use sparktune_runlog::{Event, Kind, MemberSamples, Step};

    use super::*;

    #[test]
    fn a_rank_is_one_row_and_what_nobody_measured_is_a_dash() {
        let mut view = RunView::default();
        assert_eq!(members(&view), []);
        let ranks = vec![
            MemberSample {
                state: MemberState::Training,
                micro_batches: 5,
                micro_batch_ms: Some(41.0),
                ..MemberSample::default()
            },
            MemberSample {
                rank: 2,
                place: "10.0.0.3\u{1b}[2J".into(),
                state: MemberState::Silent,
                micro_batches: 1,
                micro_batch_ms: Some(204.0),
                latency_ms: Some(0.4),
                drops: 1,
            },
            MemberSample { rank: 1, state: MemberState::Gone, drops: 2, ..MemberSample::default() },
        ];
        let kind = Kind::MemberSamples(MemberSamples { step: 9, ranks });
        view.apply(&Event { attempt: 1, seq: 1, time_us: 1, kind });
        let rows = members(&view);
        let texts: Vec<String> = rows.iter().map(|row| row.columns().join(" | ")).collect();
        assert_eq!(
            texts,
            [
                "0 | this machine | training | 5 of 6 | 41 ms each | – | 0",
                "2 | 10.0.0.3\\u{1b}[2J | silent | 1 of 6 | 204 ms each | 0.40 ms | 1",
                "1 | – | gone | – | – | – | 2",
            ]
        );
        assert_eq!(rows.iter().filter(|row| row.is_missing).count(), 2);
    }

    #[test]
    fn a_step_says_how_long_it_waits_for_other_ranks_if_there_are_any() {
        let mut view = RunView::default();
        let mut told = |seq, exchange_ms| {
            let step = Step { step: seq, step_ms: Some(1400.0), exchange_ms, ..Step::default() };
            view.apply(&Event { attempt: 1, seq, time_us: seq, kind: Kind::Step(step) });
            exchange(&view)
        };
        assert_eq!(told(1, None), None);
        let words = "a step waits 120 ms of its 1.40 s (8.6 %), mean of the last 2";
        assert_eq!(told(2, Some(240.0)).as_deref(), Some(words));
    }
}
