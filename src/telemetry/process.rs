//! What the kernel says about this process and about waiting for memory.

use std::fs;

use serde::{Deserialize, Serialize};

/// Pressure stall information of memory: percent of the last 10 s.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Pressure {
    /// Some task waited.
    pub some_percent: f64,
    /// All tasks waited.
    pub full_percent: f64,
}

/// `/proc/pressure/memory`; `None` where the kernel has no PSI.
pub fn memory_pressure() -> Option<Pressure> {
    parse_pressure(&fs::read_to_string("/proc/pressure/memory").ok()?)
}

/// The short name of a running process.
pub(crate) fn name_of(pid: u32) -> Option<String> {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    Some(name.trim_end().to_owned()).filter(|name| !name.is_empty())
}

/// Resident memory of this process.
pub fn rss_bytes() -> Option<u64> {
    status_bytes(&fs::read_to_string("/proc/self/status").ok()?, "VmRSS:")
}

/// Highest resident memory of this process so far.
pub fn peak_rss_bytes() -> Option<u64> {
    status_bytes(&fs::read_to_string("/proc/self/status").ok()?, "VmHWM:")
}

fn parse_pressure(text: &str) -> Option<Pressure> {
    let avg10 = |kind: &str| {
        let line = text.lines().find(|line| line.split(' ').next() == Some(kind))?;
        line.split(' ').find_map(|field| field.strip_prefix("avg10="))?.parse().ok()
    };
    Some(Pressure { some_percent: avg10("some")?, full_percent: avg10("full")? })
}

fn status_bytes(status: &str, field: &str) -> Option<u64> {
    let value = status.lines().find_map(|line| line.strip_prefix(field))?;
    value.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pressure_is_read_as_the_kernel_writes_it() {
        let text = "some avg10=12.50 avg60=1.00 avg300=0.10 total=12345\nfull avg10=3.00 avg60=0.00 avg300=0.00 total=99\n";
        assert_eq!(parse_pressure(text), Some(Pressure { some_percent: 12.5, full_percent: 3.0 }));
        for text in ["", "some avg10=x\nfull avg10=1", "some avg60=1.0\n"] {
            assert_eq!(parse_pressure(text), None);
        }
    }

    #[test]
    fn the_peak_follows_an_allocation_and_stays_after_it() {
        let block = vec![1_u8; 64 << 20];
        let (rss, peak) = (rss_bytes().unwrap(), peak_rss_bytes().unwrap());
        assert!(rss > 64 << 20 && peak >= rss, "{} {}", rss, peak);
        drop(std::hint::black_box(block));
        assert!(peak_rss_bytes().unwrap() > 64 << 20);
        assert_eq!(status_bytes("VmHWM:\t   12 kB\n", "VmHWM:"), Some(12 * 1024));
        assert_eq!(status_bytes("VmHWM:\t   twelve kB\n", "VmHWM:"), None);
    }
}
