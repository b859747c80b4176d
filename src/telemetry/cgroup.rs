//! The memory limit of the container this process is in, cgroup v2 and v1.

use std::fs;
use std::path::{Path, PathBuf};

use crate::process::{Pressure, memory_pressure_of};

/// The tightest limit that applies, and the memory left under it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct CgroupMemory {
    pub(crate) limit_bytes: u64,
    pub(crate) available_bytes: u64,
    /// The memory pressure of its own processes, which may wait while the machine has free memory.
    pub(crate) pressure: Option<Pressure>,
}

pub(crate) fn memory() -> Option<CgroupMemory> {
    let own = fs::read_to_string("/proc/self/cgroup").ok()?;
    tightest(Path::new("/sys/fs/cgroup"), &own)
}

/// Finds the tightest limit. `root` is the mount point of cgroups, `own` the text of `/proc/self/cgroup`.
fn tightest(root: &Path, own: &str) -> Option<CgroupMemory> {
    let mut found = Vec::new();
    for line in own.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next()) else {
            continue;
        };
        let (root, names) = match controllers {
            "" => (root.to_owned(), V2),
            c if c.split(',').any(|c| c == "memory") => (root.join("memory"), V1),
            _ => continue,
        };
        // Limits of outer groups apply as well. Inside a container the path may be that of the host, which is
        // not mounted here; then only the root has limits.
        let own = root.join(path.trim_start_matches('/'));
        let groups = own.ancestors().take_while(|group| group.starts_with(&root)).map(PathBuf::from);
        found.extend(groups.filter_map(|group| read(&group, names)));
    }
    found.into_iter().min_by_key(|group| group.available_bytes)
}

struct Names {
    limit: &'static str,
    current: &'static str,
    /// Counters of page cache that the kernel drops before it kills a process, active or not, as in
    /// MemAvailable.
    reclaimable: [&'static str; 2],
}
const V2: &Names =
    &Names { limit: "memory.max", current: "memory.current", reclaimable: ["inactive_file", "active_file"] };
const V1: &Names = &Names {
    limit: "memory.limit_in_bytes",
    current: "memory.usage_in_bytes",
    reclaimable: ["total_inactive_file", "total_active_file"],
};

fn read(group: &Path, names: &Names) -> Option<CgroupMemory> {
    let number = |file: &str| fs::read_to_string(group.join(file)).ok()?.trim().parse::<u64>().ok();
    // "max" does not parse, which means no limit. v1 has a number close to 2^63 instead.
    let limit_bytes = number(names.limit).filter(|limit| *limit < 1 << 60)?;
    let current = number(names.current)?;
    let stat = fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
    let bytes =
        |name: &str| stat.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok());
    let reclaimable = names.reclaimable.iter().filter_map(|name| bytes(name)).sum();
    let used = current.saturating_sub(reclaimable);
    let available_bytes = limit_bytes.saturating_sub(used);
    Some(CgroupMemory { limit_bytes, available_bytes, pressure: memory_pressure_of(group) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(root: &Path, path: &str, files: [(&str, &str); 3]) {
        fs::create_dir_all(root.join(path)).unwrap();
        for (name, text) in files {
            fs::write(root.join(path).join(name), text).unwrap();
        }
    }

    #[test]
    fn the_tightest_of_nested_limits_binds_and_page_cache_counts_as_free() {
        let root = tempfile::tempdir().unwrap();
        let outer = [
            ("memory.max", "1000\n"),
            ("memory.current", "900\n"),
            ("memory.stat", "anon 1\ninactive_file 300\nactive_file 200\n"),
        ];
        let inner = [("memory.max", "max\n"), ("memory.current", "100\n"), ("memory.stat", "")];
        group(root.path(), "a", outer);
        group(root.path(), "a/b", inner);
        let found = tightest(root.path(), "0::/a/b\n").unwrap();
        assert_eq!(found, CgroupMemory { limit_bytes: 1000, available_bytes: 600, pressure: None });
        let psi = "some avg10=9.00 avg60=0 avg300=0 total=1\nfull avg10=2.00 avg60=0 avg300=0 total=1\n";
        fs::write(root.path().join("a/memory.pressure"), psi).unwrap();
        let pressure = tightest(root.path(), "0::/a/b\n").unwrap().pressure;
        assert_eq!(pressure, Some(Pressure { some_percent: 9.0, full_percent: 2.0 }));
    }

    #[test]
    fn version_one_is_understood_and_no_limit_is_no_limit() {
        let root = tempfile::tempdir().unwrap();
        let files = [
            ("memory.limit_in_bytes", "4096\n"),
            ("memory.usage_in_bytes", "5000\n"),
            ("memory.stat", "inactive_file 1\ntotal_inactive_file 2000\n"),
        ];
        group(root.path(), "memory/job", files);
        let own = "11:cpu,cpuacct:/job\n4:memory:/job\n0::/\n";
        let found = tightest(root.path(), own).unwrap();
        assert_eq!(found, CgroupMemory { limit_bytes: 4096, available_bytes: 1096, pressure: None });
        fs::write(root.path().join("memory/job/memory.limit_in_bytes"), "9223372036854771712\n").unwrap();
        assert_eq!(tightest(root.path(), own), None);
        assert_eq!(tightest(root.path(), "garbage\n\n::::"), None);
    }
}
