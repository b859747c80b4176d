//! Chooses round values for axes: 1, 2 and 5 times a power of ten, on the terminal and in the report.

/// Returns the distance of about `most` ticks between two finite values: the smallest sufficient 1, 2 or 5
/// times a power of ten, or 1 if there is none.
pub(crate) fn step(lo: f64, hi: f64, most: usize) -> f64 {
    let most = most.max(1) as f64;
    // They are divided before the subtraction, because the difference of two finite numbers may overflow.
    let least = hi / most - lo / most;
    let decade = 10_f64.powi(least.log10().floor() as i32);
    [1.0, 2.0, 5.0, 10.0]
        .iter()
        .map(|m| m * decade)
        .find(|step| *step >= least * (1.0 - 1e-9) && step.is_normal())
        .unwrap_or(1.0)
}

/// Returns the multiples of `step` from `lo` to `hi`, ascending, at most a hundred.
pub(crate) fn multiples(lo: f64, hi: f64, step: f64) -> Vec<f64> {
    let (first, last) = ((lo / step - 1e-9).ceil(), (hi / step + 1e-9).floor());
    let n = (last - first).clamp(-1.0, 100.0) as i64;
    // Adding 0 turns -0 into 0.
    (0..=n).map(|i| (first + i as f64) * step + 0.0).filter(|tick| tick.is_finite()).collect()
}

/// Returns about `most` values between two positive values: 1, 2 and 5 of each decade, or fewer.
pub(crate) fn decades(lo: f64, hi: f64, most: usize) -> Vec<f64> {
    let (first, last) = (lo.log10().floor() as i32, hi.log10().ceil() as i32);
    let inside = |tick: &f64| tick.is_finite() && (lo * (1.0 - 1e-9)..=hi * (1.0 + 1e-9)).contains(tick);
    for mantissas in [&[1.0, 2.0, 5.0][..], &[1.0]] {
        let ticks: Vec<f64> = (first..=last)
            .flat_map(|decade| mantissas.iter().map(move |m| m * 10_f64.powi(decade)))
            .filter(inside)
            .collect();
        if ticks.len() <= most {
            return ticks;
        }
    }
    let every = ((last - first) as usize).div_ceil(most.max(1)).max(1);
    (first..=last).step_by(every).map(|decade| 10_f64.powi(decade)).filter(inside).collect()
}

/// Returns at most `most` round steps from `from` to `to`, ascending, and their distance.
pub(crate) fn step_ticks(from: u64, to: u64, most: usize) -> (Vec<u64>, u64) {
    let span = u128::from(to.saturating_sub(from));
    let least = span.div_ceil(most.max(1) as u128).max(1);
    let mut decade = 1_u128;
    let step = loop {
        if let Some(m) = [1, 2, 5].iter().find(|m| *m * decade >= least) {
            break m * decade;
        }
        decade *= 10;
    };
    let first = u128::from(from).div_ceil(step) * step;
    let ticks = (0..=most as u128).map(|i| first + i * step).filter(|tick| *tick <= u128::from(to));
    (ticks.map(|tick| tick as u64).collect(), step.min(u128::from(u64::MAX)) as u64)
}
