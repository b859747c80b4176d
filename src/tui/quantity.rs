//! Numbers as people read them. What nobody measured is `–`.

pub use sparktune_plan::render::count;

/// Shown where there is no value.
pub(crate) const UNKNOWN: &str = "–";

/// `3.1 GiB`
pub fn bytes(n: u64) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut value = n as f64;
    let mut unit = 0;
    while value >= 1023.95 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{n} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

/// `42s`, `6m12s`, `2h05m`, `3d04h`; `–` for what is no duration.
pub fn duration(seconds: f64) -> String {
    if !(0.0..1e15).contains(&seconds) {
        return UNKNOWN.to_owned();
    }
    let s = seconds.round() as u64;
    match s {
        0..60 => format!("{s}s"),
        60..3600 => format!("{}m{:02}s", s / 60, s % 60),
        3600..86_400 => format!("{}h{:02}m", s / 3600, s / 60 % 60),
        _ => format!("{}d{:02}h", s / 86_400, s / 3600 % 24),
    }
}

/// A loss with four decimals; `NaN`, `inf` and `-inf` by name.
pub fn loss(nats: f64) -> String {
    format!("{nats:.4}")
}

/// `12:34:56` UTC of microseconds since the Unix epoch.
pub(crate) fn clock(time_us: u64) -> String {
    let s = time_us / 1_000_000 % 86_400;
    format!("{:02}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60)
}

/// The value through `show`, or `–`.
pub(crate) fn or_unknown<T>(value: Option<T>, show: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| UNKNOWN.to_owned(), show)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_well_at_their_edges() {
        for (n, shown) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            ((1 << 20) - 1, "1.0 MiB"),
            (u64::MAX, "16384.0 PiB"),
        ] {
            assert_eq!(bytes(n), shown);
        }
        for (s, shown) in
            [(0.0, "0s"), (59.6, "1m00s"), (372.0, "6m12s"), (7500.0, "2h05m"), (273_600.0, "3d04h")]
        {
            assert_eq!(duration(s), shown);
        }
        for no_duration in [f64::NAN, f64::INFINITY, -1.0] {
            assert_eq!(duration(no_duration), UNKNOWN);
        }
        assert_eq!([loss(1.0), loss(f64::NAN), loss(f64::INFINITY)], ["1.0000", "NaN", "inf"]);
        assert_eq!(clock(1_763_645_250_000_000), "13:27:30");
    }
}
