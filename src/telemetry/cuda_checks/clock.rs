//! Judges the SM clock under load. A GPU that is idle runs slowly in any case, so a fault of its power
//! supply, which can leave a GB10 at a fifth of its speed without any other sign, shows only here.

use super::check::Check;

/// The share of its boost below which a clock under load is reported. A power cap alone leaves more: an H200
/// and a GB10 run large matrix products at two thirds to four fifths.
const LEAST_SHARE: f64 = 0.5;

/// Judges clocks in MHz that were sampled under load, oldest first, against the highest of this model. The
/// first half of the samples is left out, because the clock rises with the load.
pub fn clock_under_load(name: &str, samples: &[u32], boost: Option<u32>) -> Check {
    let mut later: Vec<u32> = samples[samples.len() / 2..].to_vec();
    later.sort_unstable();
    let median = later.get(later.len() / 2).copied();
    let (Some(clock), Some(boost)) = (median, boost.filter(|boost| *boost > 0)) else {
        return Check::unknown(name, "the driver does not report the SM clock");
    };
    let share = f64::from(clock) / f64::from(boost);
    let found = format!("{clock} of {boost} MHz ({:.0} %)", share * 100.0);
    if share >= LEAST_SHARE {
        return Check::ok(name, found);
    }
    Check::warning(
        name,
        found,
        format!(
            "below {:.0} % of its boost, training is as much slower: let the GPU cool, and check its power adapter (GB10 needs its own). If the clock stays low, unplug the machine for a minute; `nvidia-smi -q -d PERFORMANCE` shows the reason",
            LEAST_SHARE * 100.0
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::super::check::Verdict;
    use super::*;

    #[test]
    fn a_clock_is_judged_by_its_later_samples_and_never_ok_without_any() {
        let verdict = |samples: &[u32], boost| clock_under_load("clock", samples, boost).verdict;
        assert_eq!(verdict(&[208, 300, 2400, 2418, 2400], Some(3003)), Verdict::Ok);
        assert_eq!(verdict(&[2400, 2400, 507, 510, 507], Some(3003)), Verdict::Warning);
        for (samples, boost) in [(&[][..], Some(3003)), (&[2400], None), (&[2400], Some(0))] {
            assert_eq!(verdict(samples, boost), Verdict::Unknown, "{samples:?}");
        }
        let found = clock_under_load("clock", &[507], Some(3003)).found;
        assert_eq!(found, "507 of 3003 MHz (17 %)");
    }
}
