//! The kernel's figures about this process and about waiting for memory.

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};
use sparktune_runlog::MemoryUser;

/// The kernel's pressure stall information of memory, in percent of the last 10 s.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Pressure {
    /// The time in which some task waited.
    pub some_percent: f64,
    /// The time in which all tasks waited.
    pub full_percent: f64,
}

/// Reads `/proc/pressure/memory`; `None` if the kernel has no PSI.
pub fn memory_pressure() -> Option<Pressure> {
    parse_pressure(&fs::read_to_string("/proc/pressure/memory").ok()?)
}

/// Reads the pressure of one cgroup from its folder.
pub(crate) fn memory_pressure_of(cgroup: &Path) -> Option<Pressure> {
    parse_pressure(&fs::read_to_string(cgroup.join("memory.pressure")).ok()?)
}

/// Asks the kernel to kill this process before others when memory runs out, because a run can continue from
/// its checkpoint, unlike the session of a logged-in user. If the request is refused, nothing changes.
pub fn offer_to_end_first() {
    const SCORE: i32 = 500;
    let path = "/proc/self/oom_score_adj";
    let now = fs::read_to_string(path).ok().and_then(|text| text.trim().parse::<i32>().ok());
    if now.is_some_and(|now| now < SCORE) {
        let _ = fs::write(path, SCORE.to_string());
    }
}

/// Returns the other process with the most resident memory. Memory of a GPU does not count.
pub fn largest_other() -> Option<MemoryUser> {
    let processes = fs::read_dir("/proc").ok()?.filter_map(Result::ok);
    let others = processes.filter_map(|entry| {
        let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
        let status = fs::read_to_string(entry.path().join("status")).ok()?;
        (pid != std::process::id()).then_some((status_bytes(&status, "VmRSS:")?, pid))
    });
    let mut others: Vec<_> = others.collect();
    others.sort_unstable_by(|one, other| other.cmp(one));
    // The largest may just have ended.
    others.into_iter().find_map(|(bytes, pid)| Some(MemoryUser { name: name_of(pid)?, pid, bytes }))
}

/// Returns the short name of a running process.
pub(crate) fn name_of(pid: u32) -> Option<String> {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    Some(name.trim_end().to_owned()).filter(|name| !name.is_empty())
}

/// Returns the resident memory of this process in bytes.
pub fn rss_bytes() -> Option<u64> {
    rss_and_peak_bytes().0
}

/// Returns the peak resident memory of this process so far in bytes.
pub fn peak_rss_bytes() -> Option<u64> {
    rss_and_peak_bytes().1
}

/// Returns the resident memory of this process and its peak so far in bytes, read at the same moment.
pub(crate) fn rss_and_peak_bytes() -> (Option<u64>, Option<u64>) {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    (status_bytes(&status, "VmRSS:"), status_bytes(&status, "VmHWM:"))
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
    fn this_process_is_offered_once_and_the_largest_other_is_somebody_else() {
        offer_to_end_first();
        let score = || fs::read_to_string("/proc/self/oom_score_adj").unwrap().trim().parse::<i32>().unwrap();
        assert!(score() >= 500);
        let mut child = std::process::Command::new("sleep").arg("30").spawn().unwrap();
        let other = largest_other();
        child.kill().unwrap();
        child.wait().unwrap();
        let other = other.unwrap();
        assert!(other.bytes > 0 && !other.name.is_empty() && other.pid != std::process::id(), "{other:?}");
    }

    #[test]
    fn the_peak_follows_an_allocation_and_stays_after_it() {
        let block = vec![1_u8; 64 << 20];
        let (Some(rss), Some(peak)) = rss_and_peak_bytes() else { panic!("the kernel tells neither") };
        assert!(rss > 64 << 20 && peak >= rss, "{rss} {peak}");
        drop(std::hint::black_box(block));
        assert!(peak_rss_bytes().unwrap() > 64 << 20);
        assert_eq!(status_bytes("VmHWM:\t   12 kB\n", "VmHWM:"), Some(12 * 1024));
        assert_eq!(status_bytes("VmHWM:\t   twelve kB\n", "VmHWM:"), None);
    }
}
