//! The median of measured times.

/// The middle value, or the mean of the two in the middle.
///
/// # Panics
/// When there is no value.
pub(crate) fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    (values[(values.len() - 1) / 2] + values[values.len() / 2]) / 2.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_value_in_the_middle_counts() {
        assert_eq!(median([9.0, 1.0, 2.0]), 2.0);
        assert_eq!(median([9.0, 1.0, 2.0, 4.0]), 3.0);
    }
}
