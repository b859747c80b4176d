//! The day on which something was measured.

use time::OffsetDateTime;
use time::macros::format_description;

/// Returns the day of a time in microseconds since the Unix epoch: `2026-11-24`.
pub fn date(created_us: u64) -> String {
    let format = format_description!("[year]-[month]-[day]");
    let time = OffsetDateTime::from_unix_timestamp((created_us / 1_000_000) as i64).ok();
    time.and_then(|time| time.format(format).ok()).unwrap_or_else(|| "an unknown day".into())
}
