//! How the micro-batches of a step are dealt to ranks that are not equally fast, and who gets fewer.
//!
//! Pure: rank 0 decides from what it has seen, and all ranks deal by what it says. A deal changes which rank
//! adds a micro-batch, and nothing else: a step is normalised by its tokens, whoever computes them.

use std::collections::VecDeque;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// The latency above which a rank counts as late, and the one below which it does not any more.
const LATE: Duration = Duration::from_millis(500);
const ON_TIME: Duration = Duration::from_millis(400);
/// A late rank counts as so many times slower than it computes.
const LATE_FACTOR: f64 = 2.0;
/// The steps whose durations are kept of each rank. Their median counts, so that one slow step decides
/// nothing.
const KEPT: usize = 5;
/// The steps after a change before the next one is considered.
pub const SETTLING: u32 = KEPT as u32;
/// Shares change only if the slowest rank is expected to need at most this part of its time.
const GAIN: f64 = 0.8;
/// The most that a share can say.
const LARGEST: u32 = 1 << 20;

/// The shares of the ranks, in their order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shares {
    /// At least 1 for each rank. If they add up to the micro-batches of a step, these are their numbers.
    of: Vec<u32>,
}

impl From<usize> for Shares {
    /// Returns equal shares of so many ranks.
    fn from(ranks: usize) -> Self {
        Self { of: vec![1; ranks.max(1)] }
    }
}

impl Shares {
    /// Returns these shares, or `None` if they are none.
    pub fn new(of: Vec<u32>) -> Option<Self> {
        let are_some = !of.is_empty() && of.iter().all(|share| (1..=LARGEST).contains(share));
        let are_equal = of.windows(2).all(|two| two[0] == two[1]);
        are_some.then(|| if are_equal { Self::from(of.len()) } else { Self { of } })
    }

    /// Returns the number of ranks.
    pub fn ranks(&self) -> usize {
        self.of.len()
    }

    /// Returns the share of each rank, or nothing if all are equal.
    pub fn unequal(&self) -> &[u32] {
        if self.of.iter().all(|share| *share == 1) { &[] } else { &self.of }
    }

    /// Returns the rank that each of so many micro-batches is dealt to. Each goes to the rank that has the
    /// smallest part of its share with it (D'Hondt's method), so equal shares are dealt in turn.
    pub fn deal(&self, micro_batches: usize) -> Vec<usize> {
        let mut given = vec![0_u64; self.of.len()];
        let place = |_| {
            let part = |rank: usize, given: &[u64]| (given[rank] + 1, u64::from(self.of[rank]));
            let mut least = 0;
            for rank in 1..given.len() {
                let ((one, of_one), (other, of_other)) = (part(rank, &given), part(least, &given));
                if one * of_other < other * of_one {
                    least = rank;
                }
            }
            given[least] += 1;
            least
        };
        (0..micro_batches).map(place).collect()
    }

    /// Returns how many of so many micro-batches each rank is dealt.
    pub fn counts(&self, micro_batches: usize) -> Vec<u32> {
        let mut counts = vec![0; self.of.len()];
        self.deal(micro_batches).into_iter().for_each(|rank| counts[rank] += 1);
        counts
    }

    /// Returns other shares of a step of so many micro-batches, if ranks of these speeds would be done with
    /// them clearly earlier; `None` while a speed is not known, and if a step has fewer than one for each.
    pub fn better(&self, paces: &[&Pace], micro_batches: usize) -> Option<Self> {
        let costs: Vec<f64> = paces.iter().map(|pace| pace.cost()).collect::<Option<_>>()?;
        if costs.len() != self.of.len() || micro_batches < costs.len() {
            return None;
        }
        let slowest = |counts: &[u32]| {
            counts.iter().zip(&costs).map(|(count, cost)| f64::from(*count) * cost).fold(0.0, f64::max)
        };
        // Everybody keeps one, so that it is seen when a slow one becomes fast.
        let mut counts = vec![1_u32; costs.len()];
        for _ in costs.len()..micro_batches {
            let after = |rank: &usize| f64::from(counts[*rank] + 1) * costs[*rank];
            let first_done = (0..costs.len()).min_by(|one, other| after(one).total_cmp(&after(other)));
            counts[first_done?] += 1;
        }
        let now = self.counts(micro_batches);
        (slowest(&counts) <= GAIN * slowest(&now)).then(|| Self::new(counts)).flatten()
    }
}

/// A text that does not say what the shares are.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected a number of ranks, or the share of each, like 3 or 2+1+2")]
pub struct NoShares;

impl FromStr for Shares {
    type Err = NoShares;

    /// Reads a number of ranks, or the share of each: `3`, or `2+1+2`.
    fn from_str(text: &str) -> Result<Self, NoShares> {
        let numbers: Vec<u32> = text
            .split('+')
            .map(|part| part.trim().parse().map_err(|_| NoShares))
            .collect::<Result<_, _>>()?;
        match numbers[..] {
            [ranks] if (1..=LARGEST).contains(&ranks) => Ok(Self::from(ranks as usize)),
            [_] => Err(NoShares),
            _ => Self::new(numbers).ok_or(NoShares),
        }
    }
}

impl fmt::Display for Shares {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.unequal() {
            [] => write!(f, "{}", self.of.len()),
            of => f.write_str(&of.iter().map(ToString::to_string).collect::<Vec<_>>().join("+")),
        }
    }
}

/// What was seen of the speed of one rank.
#[derive(Debug, Clone, Default)]
pub struct Pace {
    /// The time of a micro-batch in each of the last steps, in seconds.
    recent: VecDeque<f64>,
    is_late: bool,
}

impl Pace {
    /// Records that it has computed so many micro-batches in this time.
    pub fn computed(&mut self, micro_batches: u32, took: Duration) {
        if micro_batches > 0 {
            self.recent.push_back(took.as_secs_f64() / f64::from(micro_batches));
            self.recent.drain(..self.recent.len().saturating_sub(KEPT));
        }
    }

    /// Records its latency.
    pub fn latency(&mut self, latency: Duration) {
        self.is_late = latency > if self.is_late { ON_TIME } else { LATE };
    }

    /// Returns the time of a micro-batch: the median of the last steps.
    pub fn of_micro_batch(&self) -> Option<Duration> {
        let mut sorted: Vec<f64> = self.recent.iter().copied().collect();
        sorted.sort_by(f64::total_cmp);
        sorted.get(sorted.len() / 2).map(|seconds| Duration::from_secs_f64(*seconds))
    }

    /// Returns what a micro-batch costs with this rank, once enough is known of it.
    fn cost(&self) -> Option<f64> {
        let seconds = self.of_micro_batch().filter(|_| self.recent.len() == KEPT)?.as_secs_f64();
        // A clock that stands still makes nobody infinitely fast.
        Some(seconds.max(1e-6) * if self.is_late { LATE_FACTOR } else { 1.0 })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pace(ms: u64) -> Pace {
        let mut pace = Pace::default();
        (0..KEPT).for_each(|_| pace.computed(2, Duration::from_millis(2 * ms)));
        pace
    }

    fn better(shares: &Shares, paces: &[Pace], micro_batches: usize) -> Option<Shares> {
        shares.better(&paces.iter().collect::<Vec<_>>(), micro_batches)
    }

    #[test]
    fn a_rank_that_is_four_times_slower_gets_a_smaller_share_and_its_own_again_when_it_is_fast() {
        let equal = Shares::from(3);
        let slow = better(&equal, &[pace(10), pace(40), pace(10)], 9).unwrap();
        assert_eq!(slow.to_string(), "4+1+4");
        assert_eq!(slow.deal(9), [0, 2, 0, 2, 0, 2, 0, 1, 2]);
        // It stays so while it is slow, also when it is a little faster or slower than it was.
        for ms in [30, 40, 60] {
            assert_eq!(better(&slow, &[pace(10), pace(ms), pace(10)], 9), None, "{ms}");
        }
        assert_eq!(better(&slow, &[pace(10), pace(10), pace(10)], 9), Some(Shares::from(3)));
    }

    #[test]
    fn a_late_rank_gets_less_and_one_late_answer_or_one_slow_step_changes_nothing() {
        let mut late = pace(10);
        late.latency(Duration::from_millis(501));
        let shares = better(&Shares::from(2), &[pace(10), late.clone()], 6).unwrap();
        assert_eq!(shares.to_string(), "4+2");
        // It is late until it is clearly on time.
        late.latency(Duration::from_millis(450));
        assert_eq!(better(&shares, &[pace(10), late.clone()], 6), None);
        late.latency(Duration::from_millis(390));
        assert_eq!(better(&shares, &[pace(10), late], 6), Some(Shares::from(2)));
        let mut hiccup = pace(10);
        hiccup.computed(1, Duration::from_secs(9));
        hiccup.latency(Duration::from_millis(450));
        assert_eq!(better(&Shares::from(2), &[pace(10), hiccup], 6), None);
    }

    #[test]
    fn nothing_changes_while_a_speed_is_unknown_or_there_is_not_one_for_each() {
        let [fast, slow] = [pace(1), pace(100)];
        assert_eq!(better(&Shares::from(2), &[fast.clone(), Pace::default()], 6), None);
        assert_eq!(better(&Shares::from(2), &[fast.clone(), slow.clone()], 1), None);
        assert_eq!(better(&Shares::from(3), &[fast, slow], 6), None);
    }

    proptest! {
        #[test]
        fn every_micro_batch_is_dealt_once_and_a_whole_step_as_the_shares_say(
            of in prop::collection::vec(1_u32..9, 1..9),
            micro_batches in 0_usize..50,
        ) {
            let shares = Shares::new(of.clone()).unwrap();
            let dealt = shares.deal(micro_batches);
            prop_assert_eq!(dealt.len(), micro_batches);
            prop_assert!(dealt.iter().all(|rank| *rank < of.len()));
            let whole: u32 = of.iter().sum();
            prop_assert_eq!(shares.counts(whole as usize), of);
            prop_assert_eq!(shares.to_string().parse::<Shares>(), Ok(shares));
        }

        #[test]
        fn equal_shares_are_dealt_in_turn(ranks in 1_usize..12, micro_batches in 0_usize..50) {
            let in_turn: Vec<usize> = (0..micro_batches).map(|place| place % ranks).collect();
            prop_assert_eq!(Shares::from(ranks).deal(micro_batches), in_turn);
        }

        #[test]
        fn who_is_faster_has_no_smaller_share_and_what_was_chosen_stays(
            ms in prop::collection::vec(1_u64..200, 2..7),
            more in 0_usize..40,
        ) {
            let micro_batches = ms.len() + more;
            let paces: Vec<Pace> = ms.iter().map(|ms| pace(*ms)).collect();
            let equal = Shares::from(ms.len());
            let chosen = better(&equal, &paces, micro_batches).unwrap_or_else(|| equal.clone());
            let counts = chosen.counts(micro_batches);
            prop_assert_eq!(counts.iter().sum::<u32>() as usize, micro_batches);
            prop_assert!(counts.iter().all(|count| *count > 0));
            if chosen != equal {
                for (one, other) in (0..ms.len()).flat_map(|one| (0..ms.len()).map(move |other| (one, other))) {
                    prop_assert!(ms[one] >= ms[other] || counts[one] >= counts[other], "{:?} {:?}", ms, counts);
                }
            }
            prop_assert_eq!(better(&chosen, &paces, micro_batches), None);
            // Once chosen, it stays although some are slower by a tenth.
            let nearly = ms.iter().enumerate().map(|(rank, ms)| pace(ms * 20 + ms * 2 * (rank as u64 % 2)));
            let nearly: Vec<Pace> = nearly.collect();
            prop_assert!(chosen == equal || better(&chosen, &nearly, micro_batches).is_none());
        }

        #[test]
        fn any_text_is_read_as_it_is_written_again_or_refused(text in "[0-9+ ]{0,12}") {
            if let Ok(shares) = text.parse::<Shares>() {
                prop_assert_eq!(shares.to_string().parse::<Shares>(), Ok(shares));
            }
        }
    }
}
