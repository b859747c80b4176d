//! How many ranks add each step and in which shares, as one process can be told to add: `--sum-as 3,2+1@17`.

use std::fmt;
use std::str::FromStr;

use super::shares::Shares;

/// The ranks of every step, and their shares. Steps are counted from 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RankCounts {
    first: Shares,
    /// From which step on there are which, ascending by step.
    changes: Vec<(u64, Shares)>,
}

/// A text that does not say how many ranks there are.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "expected the number of ranks, and for each change how many there are from which step on, like 3 or 3,2@17; where they have different shares of a step, the share of each, like 3,2+1+2@17"
)]
pub struct NoCounts;

impl From<usize> for RankCounts {
    fn from(first: usize) -> Self {
        Self { first: first.into(), changes: Vec::new() }
    }
}

impl RankCounts {
    /// Says that the ranks have these shares from this step on, whatever was said of later steps.
    #[must_use]
    pub fn then(mut self, step: u64, shares: impl Into<Shares>) -> Self {
        let shares = shares.into();
        self.changes.retain(|(from, _)| *from < step);
        if step <= 1 {
            self.first = shares;
        } else if *self.of_step(step) != shares {
            self.changes.push((step, shares));
        }
        self
    }

    /// Returns the shares of the ranks that add this step.
    pub fn of_step(&self, step: u64) -> &Shares {
        let changes = self.changes.iter().rev();
        changes
            .map(|(from, shares)| (*from, shares))
            .find(|(from, _)| *from <= step)
            .map_or(&self.first, |(_, shares)| shares)
    }
}

impl FromStr for RankCounts {
    type Err = NoCounts;

    fn from_str(text: &str) -> Result<Self, NoCounts> {
        let shares = |text: &str| text.parse::<Shares>().map_err(|_| NoCounts);
        let mut parts = text.split(',');
        let first = shares(parts.next().unwrap_or_default())?;
        let changes = parts.map(|part| {
            let (of, step) = part.split_once('@').ok_or(NoCounts)?;
            Ok((step.trim().parse().map_err(|_| NoCounts)?, shares(of)?))
        });
        let changes: Vec<(u64, Shares)> = changes.collect::<Result<_, NoCounts>>()?;
        let is_ascending = changes.windows(2).all(|two| two[0].0 < two[1].0);
        let are_later = changes.iter().all(|(step, _)| *step > 1);
        if is_ascending && are_later { Ok(Self { first, changes }) } else { Err(NoCounts) }
    }
}

impl fmt::Display for RankCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.first)?;
        self.changes.iter().try_for_each(|(step, shares)| write!(f, ",{shares}@{step}"))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_step_is_added_by_as_many_ranks_as_the_last_change_before_it_says() {
        let counts: RankCounts = "3,2@5,4@9".parse().unwrap();
        assert_eq!([1, 4, 5, 8, 9, 100].map(|step| counts.of_step(step).ranks()), [3, 3, 2, 2, 4, 4]);
        let shared: RankCounts = "3,2+1+2@5, 2@9".parse().unwrap();
        assert_eq!(shared.of_step(6).unequal(), [2, 1, 2]);
        assert_eq!(shared.then(7, 3).to_string(), "3,2+1+2@5,3@7");
        // An attempt that begins at an earlier step says it again.
        assert_eq!(counts.then(7, 3).to_string(), "3,2@5,3@7");
        assert_eq!(RankCounts::from(3).then(1, 2).then(4, 2).to_string(), "2");
        for wrong in ["", "0", "3,", "3,2", "3,2@1", "3,2@9,1@9", "3,0@4", "x", "3;2@4", "3,2+@4", "3,2+0@4"]
        {
            assert_eq!(wrong.parse::<RankCounts>(), Err(NoCounts), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn counts_are_read_as_they_were_written(changes: Vec<(u8, u8)>) {
            let said = changes.iter().fold(RankCounts::from(2), |counts, (step, count)| {
                let shares = Shares::new(vec![u32::from(*count) + 1, 1 + u32::from(*step % 3)]).unwrap();
                counts.then(u64::from(*step) + 1, shares)
            });
            prop_assert_eq!(said.to_string().parse::<RankCounts>(), Ok(said));
        }
    }
}
