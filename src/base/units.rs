//! Figures as people read them. What nobody measured is `–`.

/// Shown where there is no value.
pub const UNKNOWN: &str = "–";

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

/// A speed without its unit: `3,568`, `0.42`.
pub fn tokens_per_s(rate: f64) -> String {
    if rate >= 10.0 { count(rate.round() as u64) } else { format!("{rate:.2}") }
}

/// A number of parameters: `1.88 B`, `61.0 M`.
pub fn parameters(n: u64) -> String {
    scaled(n as f64, ["", " k", " M", " B"])
}

/// A number of FLOPs: `8.21 GFLOP`.
pub fn flops(n: f64) -> String {
    scaled(n / 1e3, [" kFLOP", " MFLOP", " GFLOP", " TFLOP"])
}

/// A share as a percentage: `2 %`, `0.4 %`.
pub fn percent(share: f64) -> String {
    let percent = share * 100.0;
    if percent == 0.0 || percent >= 9.95 { format!("{percent:.0} %") } else { format!("{percent:.1} %") }
}

/// A duration in its two largest units: `10 h 25 min`.
pub fn duration(seconds: f64) -> String {
    if !seconds.is_finite() || seconds < 0.0 {
        return UNKNOWN.to_owned();
    }
    let s = seconds.round() as u64;
    match s {
        0..=119 => format!("{s} s"),
        120..=7199 => format!("{} min", (s + 30) / 60),
        7200..=172_799 => format!("{} h {:02} min", s / 3600, s % 3600 / 60),
        _ => format!("{} days {} h", s / 86_400, s % 86_400 / 3600),
    }
}

/// A loss with four decimals; `NaN`, `inf` and `-inf` by name.
pub fn loss(nats: f64) -> String {
    format!("{nats:.4}")
}

/// `12:34:56` UTC of microseconds since the Unix epoch.
pub fn clock(time_us: u64) -> String {
    let s = time_us / 1_000_000 % 86_400;
    format!("{:02}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60)
}

/// The value through `show`, or `–`.
pub fn or_unknown<T>(value: Option<T>, show: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| UNKNOWN.to_owned(), show)
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
        assert_eq!(percent(0.02), "2.0 %");
        assert_eq!(duration(37_500.0), "10 h 25 min");
        assert_eq!(duration(f64::NAN), "–");
        assert_eq!([loss(1.0), loss(f64::NAN), loss(f64::INFINITY)], ["1.0000", "NaN", "inf"]);
        assert_eq!(clock(1_763_645_250_000_000), "13:27:30");
    }
}
