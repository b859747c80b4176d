//! How many examples are set aside for evaluation where nobody says it. The data stage draws them, and
//! the plan counts on them before they are drawn.

/// Share of the examples that is set aside.
pub const SHARE: f64 = 0.02;

/// At least so many are, where there are [`FIRST`] examples.
pub const LEAST: u32 = 8;

/// Of fewer examples, one in so many is.
pub const ONE_IN: u32 = 4;

/// The number of distinct examples from which on [`LEAST`] of them are set aside.
pub const FIRST: u64 = LEAST as u64 * ONE_IN as u64;

/// The share of so many distinct examples that is set aside on average, in two figures; 0 for fewer than
/// [`ONE_IN`], which are not split.
pub fn expected_share(examples: u64) -> f64 {
    let least = examples.min(FIRST) / u64::from(ONE_IN);
    if least == 0 {
        return 0.0;
    }
    let share = SHARE.max(least as f64 / examples as f64);
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
        // 8 of 60 and of 320.
        assert_eq!([60, 320].map(expected_share), [0.13, 0.025]);
        assert_eq!([1000, 24_315, u64::MAX].map(expected_share), [SHARE; 3]);
    }
}
