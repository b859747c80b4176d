//! What lies between two machines: links, both halves of a DGX Spark's network card, MTU, addresses for RDMA,
//! and NCCL. Each is in order, or a sentence says what to do, or it is unknown and never in order.
//!
//! Enters: the root of a file system, whose `sys` and `usr` are read, so that tests can use recorded trees.
//! Leaves: [`Line`]s. It changes nothing, sends nothing and never prints.

mod card;
mod line;
mod nccl;
mod sysfs;

use std::path::Path;

pub use card::HALVES;
pub use line::{Line, Verdict};
pub use sysfs::speed_towards;

/// Looks at the machine below `root`. `get` reads an environment variable.
pub fn examine(root: &Path, get: impl Fn(&str) -> Option<String>) -> Vec<Line> {
    let mut lines = sysfs::interfaces(root);
    lines.extend(card::examine(root, &get));
    lines.push(nccl::examine(root));
    lines
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Makes the files of a tree: a line `path = contents` for each.
    fn examined(tree: &str, get: impl Fn(&str) -> Option<String>) -> Vec<Line> {
        let root = tempfile::tempdir().unwrap();
        for line in tree.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let (path, contents) = line.split_once(" = ").unwrap();
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("{contents}\n")).unwrap();
        }
        examine(root.path(), get)
    }

    fn line<'a>(lines: &'a [Line], what: &str) -> &'a Line {
        lines.iter().find(|line| line.what == what).unwrap_or_else(|| panic!("{what}: {lines:?}"))
    }

    fn verdicts(lines: &[Line]) -> Vec<(&str, Verdict)> {
        lines.iter().map(|line| (line.what.as_str(), line.verdict)).collect()
    }

    const SPARK: &str = include_str!("trees/spark.txt");

    #[test]
    fn a_spark_as_it_should_be_is_in_order() {
        let lines = examined(SPARK, |_| None);
        assert!(lines.iter().all(|line| line.verdict == Verdict::Ok), "{lines:?}");
        assert!(line(&lines, "network card").found.contains("rocep1s0f0, roceP2p1s0f0"));
        assert!(line(&lines, "NCCL").found.contains("2.28.9"));
    }

    #[test]
    fn an_mtu_of_1500_on_one_half_says_which_and_what_to_do() {
        let lines = examined(include_str!("trees/mtu-1500.txt"), |_| None);
        let mtu = line(&lines, "MTU");
        assert_eq!(mtu.verdict, Verdict::Problem);
        assert!(mtu.found.contains("enP2p1s0f0np0 has 1500"), "{}", mtu.found);
        let advice = mtu.advice.as_deref().unwrap();
        assert!(advice.contains("ip link set dev enP2p1s0f0np0 mtu 9000") && advice.contains("netplan"));
    }

    #[test]
    fn a_missing_half_and_a_half_without_a_link_are_problems() {
        let lines = examined(include_str!("trees/one-half.txt"), |_| None);
        let card = line(&lines, "network card");
        assert_eq!(card.verdict, Verdict::Problem);
        assert!(card.found.contains("roceP2p1s0f0 is missing"), "{}", card.found);
        let down =
            SPARK.replace("roceP2p1s0f0/ports/1/state = 4: ACTIVE", "roceP2p1s0f0/ports/1/state = 1: DOWN");
        let card = line(&examined(&down, |_| None), "network card").clone();
        assert_eq!(card.verdict, Verdict::Problem);
        assert!(card.found.contains("roceP2p1s0f0 has no link (1: DOWN)"), "{}", card.found);
    }

    #[test]
    fn what_is_no_spark_is_skipped_and_what_is_unreadable_is_unknown_and_neither_is_in_order() {
        let lines = examined(include_str!("trees/no-spark.txt"), |_| None);
        for what in ["network card", "MTU", "GID"] {
            assert_eq!(line(&lines, what).verdict, Verdict::Skipped, "{what}");
        }
        assert_eq!(line(&lines, "NCCL").verdict, Verdict::Unknown);
        assert_eq!(line(&lines, "link eth0").verdict, Verdict::Unknown, "its speed is not known");
        let without: String = SPARK
            .lines()
            .filter(|line| !line.contains("/state") && !line.contains("/mtu"))
            .fold(String::new(), |text, line| text + line + "\n");
        let lines = examined(&without, |_| None);
        for what in ["network card", "MTU"] {
            assert_eq!(line(&lines, what).verdict, Verdict::Unknown, "{lines:?}");
        }
        assert!(verdicts(&examined("", |_| None)).iter().all(|(_, verdict)| *verdict != Verdict::Ok));
    }

    #[test]
    fn settings_that_are_known_to_hurt_are_named() {
        let pinned = examined(SPARK, |name| (name == "NCCL_IB_GID_INDEX").then(|| "3".into()));
        assert_eq!(line(&pinned, "GID").verdict, Verdict::Note);
        assert!(line(&pinned, "GID").advice.as_deref().unwrap().contains("NCCL_IB_GID_INDEX"));
        let half = examined(SPARK, |name| (name == "NCCL_IB_HCA").then(|| "rocep1s0f0".into()));
        assert!(line(&half, "network card").advice.as_deref().unwrap().contains("NCCL_IB_HCA"));
        let old = examined(&SPARK.replace("2.28.9", "2.27.3"), |_| None);
        assert_eq!(line(&old, "NCCL").verdict, Verdict::Note);
        let no_v2 = examined(&SPARK.replace("RoCE v2", "IB/RoCE v1"), |_| None);
        assert_eq!(line(&no_v2, "GID").verdict, Verdict::Problem);
    }
}
