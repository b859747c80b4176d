//! What counts for NCCL on the machine below a root: what it tells machines apart by, and what is wrong with
//! the links.

use std::fs;
use std::path::Path;

use crate::doctor::{Verdict, examine};

/// What the kernel names this start of the machine by.
const BOOT: &str = "proc/sys/kernel/random/boot_id";
/// The lines of the doctor that say how NCCL reaches the others.
const OF_LINKS: [&str; 3] = ["network card", "MTU", "GID"];

/// Returns what NCCL tells this machine apart by. `get` reads an environment variable.
pub fn host(root: &Path, get: impl Fn(&str) -> Option<String>) -> String {
    let of_boot = || fs::read_to_string(root.join(BOOT)).ok().map(|id| id.trim().to_owned());
    get("NCCL_HOSTID").or_else(of_boot).unwrap_or_default()
}

/// Returns what is wrong with the links, in sentences. `get` reads an environment variable.
pub fn links(root: &Path, get: impl Fn(&str) -> Option<String>) -> Vec<String> {
    let lines = examine(root, get).into_iter();
    let wrong =
        lines.filter(|line| line.verdict == Verdict::Problem && OF_LINKS.contains(&line.what.as_str()));
    wrong.map(|line| format!("{}: {}", line.what, line.found)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_is_told_apart_by_its_start_unless_a_variable_names_it() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(host(root.path(), |_| None), "");
        fs::create_dir_all(root.path().join(BOOT).parent().unwrap()).unwrap();
        fs::write(root.path().join(BOOT), "5b3c\n").unwrap();
        assert_eq!(host(root.path(), |_| None), "5b3c");
        let named = |name: &str| (name == "NCCL_HOSTID").then(|| "rank0".to_owned());
        assert_eq!(host(root.path(), named), "rank0");
        assert!(links(root.path(), |_| None).is_empty(), "what is unknown is not wrong");
    }
}
