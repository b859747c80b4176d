//! Formats figures for people. A value that was not measured is `–`.
//!
//! The same quantity reads the same on every screen, in the report and in plain lines; machine-readable
//! output has plain numbers instead.

/// The text for a missing value.
pub const UNKNOWN: &str = "–";

/// Formats the value with `show`, or returns `–`.
pub fn or_unknown<T>(value: Option<T>, show: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| UNKNOWN.to_owned(), show)
}

/// Bytes with a decimal unit: `4.4 GB`.
pub fn bytes(n: u64) -> String {
    let mut value = n as f64;
    for unit in ["B", "kB", "MB", "GB", "TB", "PB"] {
        if value < 999.5 || unit == "PB" {
            let digits = usize::from(unit != "B" && value < 99.95);
            return format!("{value:.digits$} {unit}");
        }
        value /= 1000.0;
    }
    unreachable!("the last unit returns")
}

/// A whole number with thousands separated: `24,315`.
pub fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats a number of things: `1 line`, `24,315 lines`. `noun` is the singular.
pub fn counted(n: u64, noun: &str) -> String {
    format!("{} {noun}{}", count(n), if n == 1 { "" } else { "s" })
}

/// An average number of something with its noun, rounded: `12 examples`, and `less than 1 example` for
/// one that would be rounded to none.
pub fn counted_on_average(n: f64, noun: &str) -> String {
    match n.round() as u64 {
        0 if n > 0.0 => format!("less than 1 {noun}"),
        whole => counted(whole, noun),
    }
}

/// A speed without its unit: `3,568`, `0.42`.
pub fn tokens_per_s(rate: f64) -> String {
    match rate {
        0.0..10.0 => format!("{rate:.2}"),
        10.0..1e15 => count(rate.round() as u64),
        _ => UNKNOWN.to_owned(),
    }
}

/// A number of parameters: `1.88 B`, `61.0 M`.
pub fn parameters(n: u64) -> String {
    scaled(n as f64, ["", " k", " M", " B"])
}

/// A number of FLOPs: `8.21 GFLOP`.
pub fn flops(n: f64) -> String {
    scaled(n / 1e3, [" kFLOP", " MFLOP", " GFLOP", " TFLOP"])
}

fn scaled(value: f64, units: [&str; 4]) -> String {
    let mut value = value;
    for unit in &units[..3] {
        if value < 999.5 {
            let digits = if value < 9.995 && unit != &units[0] {
                2
            } else {
                usize::from(value < 99.95 && unit != &units[0])
            };
            return format!("{value:.digits$}{unit}");
        }
        value /= 1000.0;
    }
    format!("{value:.2}{}", units[3])
}

/// Formats a share of one as a percentage: `14 %`, `2 %`, `0.4 %`. A share above zero is never shown as zero.
pub fn percent(share: f64) -> String {
    let percent = share * 100.0;
    match percent {
        _ if !percent.is_finite() => UNKNOWN.to_owned(),
        _ if percent > 0.0 && percent < 0.05 => "<0.1 %".to_owned(),
        _ if percent.abs() < 9.95 => format!("{} %", format!("{percent:.1}").trim_end_matches(".0")),
        _ => format!("{percent:.0} %"),
    }
}

/// A duration in its two largest units: `42 s`, `6 min 12 s`, `2 h 05 min`, `3 days 4 h`.
pub fn duration(seconds: f64) -> String {
    let Some([(many, large), (few, small)]) = largest_units(seconds) else { return UNKNOWN.to_owned() };
    match (few, small) {
        (_, "") | (0, _) => format!("{many} {large}"),
        (_, "h") => format!("{many} {large} {few} {small}"),
        _ => format!("{many} {large} {few:02} {small}"),
    }
}

/// A duration in its largest unit, for narrow columns: `42 s`, `6 min`, `2 h`, `3 days`.
pub fn rough_duration(seconds: f64) -> String {
    or_unknown(largest_units(seconds), |[(many, unit), _]| format!("{many} {unit}"))
}

/// Returns the largest unit of which a duration has at least two, so that it is never singular, and the next
/// smaller one.
fn largest_units(seconds: f64) -> Option<[(u64, &'static str); 2]> {
    let is_duration = (0.0..1e15).contains(&seconds);
    let s = is_duration.then(|| seconds.round() as u64)?;
    Some(match s {
        0..60 => [(s, "s"), (0, "")],
        60..3600 => [(s / 60, "min"), (s % 60, "s")],
        3600..172_800 => [(s / 3600, "h"), (s / 60 % 60, "min")],
        _ => [(s / 86_400, "days"), (s / 3600 % 24, "h")],
    })
}

/// A short time from milliseconds: `0.04 ms`, `9.5 ms`, `412 ms`, `1.07 s`. From a minute on a [`duration`].
pub fn milliseconds(ms: f64) -> String {
    match ms {
        0.0..0.95 => format!("{ms:.2} ms"),
        0.95..9.95 => format!("{ms:.1} ms"),
        9.95..999.5 => format!("{ms:.0} ms"),
        999.5..9_995.0 => format!("{:.2} s", ms / 1e3),
        9_995.0..59_950.0 => format!("{:.1} s", ms / 1e3),
        _ => duration(ms / 1e3),
    }
}

/// A loss with four decimals; `NaN`, `inf` and `-inf` by name.
pub fn loss(nats: f64) -> String {
    format!("{nats:.4}")
}

/// Formats microseconds since the Unix epoch as the time `12:34:56` in UTC. Callers add `UTC` unless a
/// heading says so.
pub fn clock(time_us: u64) -> String {
    let s = time_us / 1_000_000 % 86_400;
    format!("{:02}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_written_as_a_person_reads_them() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(4_400_000_000), "4.4 GB");
        assert_eq!(bytes(999_960_000), "1.0 GB");
        assert_eq!(bytes(128_500_000_000), "128 GB");
        assert_eq!(bytes(u64::MAX), "18447 PB");
        assert_eq!(count(24_315), "24,315");
        assert_eq!(count(100), "100");
        assert_eq!(count(u64::MAX), "18,446,744,073,709,551,615");
        assert_eq!(parameters(1_881_800_000), "1.88 B");
        assert_eq!(parameters(640), "640");
        assert_eq!(flops(8.21e9), "8.21 GFLOP");
        assert_eq!([tokens_per_s(3567.6), tokens_per_s(0.42), tokens_per_s(-1.0)], ["3,568", "0.42", "–"]);
        assert_eq!([loss(1.0), loss(f64::NAN), loss(f64::INFINITY)], ["1.0000", "NaN", "inf"]);
        assert_eq!(clock(1_763_645_250_000_000), "13:27:30");
    }

    #[test]
    fn one_thing_is_singular_and_any_other_number_plural() {
        let lines = [0, 1, 2, 24_315].map(|n| counted(n, "line"));
        assert_eq!(lines, ["0 lines", "1 line", "2 lines", "24,315 lines"]);
    }

    #[test]
    fn a_percentage_has_a_digit_below_ten_and_what_is_there_is_never_nothing() {
        for (share, shown) in [
            (0.0, "0 %"),
            (0.0003, "<0.1 %"),
            (0.0006, "0.1 %"),
            (0.02, "2 %"),
            (0.0041, "0.4 %"),
            (0.0996, "10 %"),
            (0.144, "14 %"),
            (1.0, "100 %"),
            (-0.02, "-2 %"),
            (f64::NAN, "–"),
        ] {
            assert_eq!(percent(share), shown, "{share}");
        }
    }

    #[test]
    fn durations_have_two_units_at_most_and_columns_one() {
        for (seconds, shown, rough) in [
            (0.0, "0 s", "0 s"),
            (42.4, "42 s", "42 s"),
            (59.6, "1 min", "1 min"),
            (372.0, "6 min 12 s", "6 min"),
            (365.0, "6 min 05 s", "6 min"),
            (7500.0, "2 h 05 min", "2 h"),
            (37_500.0, "10 h 25 min", "10 h"),
            (172_799.0, "47 h 59 min", "47 h"),
            (172_800.0, "2 days", "2 days"),
            (273_600.0, "3 days 4 h", "3 days"),
            (f64::NAN, "–", "–"),
            (f64::INFINITY, "–", "–"),
            (-1.0, "–", "–"),
        ] {
            assert_eq!(duration(seconds), shown, "{seconds}");
            assert_eq!(rough_duration(seconds), rough, "{seconds}");
        }
        let short = [0.04, 9.5, 118.0, 1068.0, 12_340.0, 372_000.0, -1.0].map(milliseconds);
        assert_eq!(short, ["0.04 ms", "9.5 ms", "118 ms", "1.07 s", "12.3 s", "6 min 12 s", "–"]);
    }
}
