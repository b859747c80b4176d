//! How many examples are set aside for evaluation where nobody says it. The data stage draws them one by one,
//! and the plan counts on them before they are drawn.

/// Share of the examples that is set aside.
pub const SHARE: f64 = 0.02;

/// At least so many are, where there are enough examples.
pub const LEAST: u32 = 8;

/// Among the first examples one in so many is, until there are [`LEAST`] of them.
pub const ONE_IN: u32 = 4;

/// Distinct examples after which [`LEAST`] of them are set aside.
pub const FIRST: u64 = LEAST as u64 * ONE_IN as u64;

/// The share of so many distinct examples that is set aside on average, in two figures; 0 for fewer than
/// [`ONE_IN`], which are not split.
pub fn expected_share(examples: u64) -> f64 {
    let first = examples.min(FIRST);
    let of_first = first / u64::from(ONE_IN);
    if of_first == 0 {
        return 0.0;
    }
    let share = (of_first as f64 + SHARE * (examples - first) as f64) / examples as f64;
    let parts = if share < 0.1 { 1000.0 } else { 100.0 };
    (share * parts).round() / parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_examples_give_one_in_four_and_many_the_usual_share() {
        let few = [0, 1, 3, 4, 20, 32].map(expected_share);
        assert_eq!(few, [0.0, 0.0, 0.0, 0.25, 0.25, 0.25]);
        // 8 of the first 32 and 2 % of the others: 8.6 of 60, 13.8 of 320, 27.4 of 1,000.
        assert_eq!([60, 320, 1000].map(expected_share), [0.14, 0.043, 0.027]);
        assert_eq!([24_315, u64::MAX].map(expected_share), [SHARE; 2]);
    }
}
