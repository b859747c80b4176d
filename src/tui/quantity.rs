//! Bytes and durations as the screens show them.

use sparktune_base::units::UNKNOWN;

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
    }
}
