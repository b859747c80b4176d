//! How many ranks add each step, as one process can be told to add: `--sum-as 3,2@17`.

use std::fmt;
use std::str::FromStr;

/// The number of ranks of every step. Steps are counted from 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RankCounts {
    first: usize,
    /// From which step on there are how many, ascending by step.
    changes: Vec<(u64, usize)>,
}

/// A text that does not say how many ranks there are.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "expected the number of ranks, and for each change how many there are from which step on, like 3 or 3,2@17"
)]
pub struct NoCounts;

impl From<usize> for RankCounts {
    fn from(first: usize) -> Self {
        Self { first: first.max(1), changes: Vec::new() }
    }
}

impl RankCounts {
    /// Says that there are so many ranks from this step on, whatever was said of later steps.
    #[must_use]
    pub fn then(mut self, step: u64, count: usize) -> Self {
        self.changes.retain(|(from, _)| *from < step);
        if step <= 1 {
            self.first = count;
        } else if self.of_step(step) != count {
            self.changes.push((step, count));
        }
        self
    }

    /// Returns the number of ranks that add this step.
    pub fn of_step(&self, step: u64) -> usize {
        let changes = self.changes.iter().rev();
        changes.copied().find(|(from, _)| *from <= step).map_or(self.first, |(_, count)| count)
    }
}

impl FromStr for RankCounts {
    type Err = NoCounts;

    fn from_str(text: &str) -> Result<Self, NoCounts> {
        fn number<T: FromStr>(text: &str) -> Result<T, NoCounts> {
            text.trim().parse().map_err(|_| NoCounts)
        }
        let mut parts = text.split(',');
        let first: usize = number(parts.next().unwrap_or_default())?;
        let changes = parts.map(|part| {
            let (count, step) = part.split_once('@').ok_or(NoCounts)?;
            Ok((number(step)?, number(count)?))
        });
        let changes: Vec<(u64, usize)> = changes.collect::<Result<_, NoCounts>>()?;
        let is_ascending = changes.windows(2).all(|two| two[0].0 < two[1].0);
        let are_some = first > 0 && changes.iter().all(|(step, count)| *step > 1 && *count > 0);
        if is_ascending && are_some { Ok(Self { first, changes }) } else { Err(NoCounts) }
    }
}

impl fmt::Display for RankCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.first)?;
        self.changes.iter().try_for_each(|(step, count)| write!(f, ",{count}@{step}"))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_step_is_added_by_as_many_ranks_as_the_last_change_before_it_says() {
        let counts: RankCounts = "3,2@5,4@9".parse().unwrap();
        assert_eq!([1, 4, 5, 8, 9, 100].map(|step| counts.of_step(step)), [3, 3, 2, 2, 4, 4]);
        // An attempt that begins at an earlier step says it again.
        assert_eq!(counts.then(7, 3).to_string(), "3,2@5,3@7");
        assert_eq!(RankCounts::from(3).then(1, 2).then(4, 2).to_string(), "2");
        for wrong in ["", "0", "3,", "3,2", "3,2@1", "3,2@9,1@9", "3,0@4", "x", "3;2@4"] {
            assert_eq!(wrong.parse::<RankCounts>(), Err(NoCounts), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn counts_are_read_as_they_were_written(changes: Vec<(u8, u8)>) {
            let said = changes.iter().fold(RankCounts::from(2), |counts, (step, count)| {
                counts.then(u64::from(*step) + 1, usize::from(*count) + 1)
            });
            prop_assert_eq!(said.to_string().parse::<RankCounts>(), Ok(said));
        }
    }
}
