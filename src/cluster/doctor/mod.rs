//! What lies between two machines: links, both halves of a DGX Spark's network card, MTU, addresses for RDMA,
//! NCCL and wall clocks. Each is in order, or a sentence says what to do, or it is unknown, which is never
//! taken for in order.
//!
//! Enters: the root of a file system, whose `proc`, `sys` and `usr` are read, so that tests can use trees
//! that were written by hand, and what other machines have found there. Leaves: [`Line`]s. It changes
//! nothing, sends nothing and never prints.

mod card;
mod clock;
mod compare;
mod line;
mod nccl;
mod sysfs;

use std::path::Path;

pub use card::HALVES;
pub use clock::ClockOffset;
pub(crate) use clock::now_us;
pub use compare::{between, compare};
pub use line::{Line, Verdict};
pub use sysfs::{Link, interfaces, link_towards};

/// Looks at what members should have alike on the machine below `root`: network card, MTU, GID and NCCL.
/// `get` reads an environment variable.
pub fn examine(root: &Path, get: impl Fn(&str) -> Option<String>) -> Vec<Line> {
    let mut lines = card::examine(root, &get);
    lines.push(nccl::examine(root));
    lines
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::net::{IpAddr, Ipv4Addr};

    use super::*;

    /// Makes the files of a tree: a line `path = contents` for each, in which `\n` begins another line.
    fn planted(tree: &str) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for line in tree.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let (path, contents) = line.split_once(" = ").unwrap();
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("{}\n", contents.replace("\\n", "\n"))).unwrap();
        }
        root
    }

    fn examined(tree: &str, get: impl Fn(&str) -> Option<String>) -> Vec<Line> {
        let root = planted(tree);
        let mut lines = interfaces(root.path());
        lines.extend(examine(root.path(), get));
        lines
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

    /// Compares a tree with those of other members.
    fn compared(own: &str, others: &[(&str, &str)]) -> Vec<Line> {
        let of = |tree: &str| examine(planted(tree).path(), |_| None);
        let others: Vec<_> = others.iter().map(|(name, tree)| ((*name).to_owned(), of(tree))).collect();
        compare(of(own), &others)
    }

    #[test]
    fn members_that_have_the_same_are_named_in_one_line_and_each_that_differs_has_its_own() {
        let others = [("spark2", SPARK), ("spark3", include_str!("trees/one-half.txt"))];
        let lines = compared(SPARK, &others);
        assert!(line(&lines, "NCCL").found.ends_with("(the same on spark2, spark3)"), "{lines:?}");
        assert!(line(&lines, "network card").found.ends_with("(the same on spark2)"), "{lines:?}");
        let card = line(&lines, "network card of spark3");
        assert_eq!((card.verdict, card.found.as_str()), (Verdict::Problem, "roceP2p1s0f0 is missing"));
        assert!(card.advice.is_some());
        assert!(lines.iter().all(|line| !line.what.ends_with("spark2")), "{lines:?}");
        let silent = compare(examine(planted(SPARK).path(), |_| None), &[("spark2".into(), Vec::new())]);
        assert_eq!(line(&silent, "MTU of spark2").verdict, Verdict::Unknown);
    }

    #[test]
    fn mtus_that_are_in_order_on_each_machine_but_differ_are_a_problem() {
        let larger = SPARK.replace("mtu = 9000", "mtu = 9216");
        let lines = compared(SPARK, &[("spark2", &larger), ("spark3", SPARK)]);
        assert_eq!(line(&lines, "MTU").found, "9000 on both halves (the same on spark3)");
        let mtu = line(&lines, "MTU of spark2");
        assert_eq!(mtu.found, "9216 on both halves; here: 9000 on both halves");
        assert_eq!(mtu.verdict, Verdict::Problem);
        assert!(mtu.advice.as_deref().unwrap().contains("error 12"));
        let mixed = SPARK.replacen("enp1s0f0np0/mtu = 9000", "enp1s0f0np0/mtu = 9216", 2);
        let lines = compared(&mixed, &[]);
        assert_eq!(line(&lines, "MTU").found, "enp1s0f0np0 has 9216; enP2p1s0f0np0 has 9000");
        let lines = compared(SPARK, &[("spark2", include_str!("trees/mtu-1500.txt"))]);
        let mtu = line(&lines, "MTU of spark2");
        assert_eq!(mtu.verdict, Verdict::Problem);
        assert!(mtu.advice.as_deref().unwrap().contains("ip link set dev enP2p1s0f0np0"), "{mtu:?}");
    }

    #[test]
    fn different_versions_of_nccl_are_noted_and_an_unknown_one_stays_unknown() {
        let newer = SPARK.replace("2.28.9", "2.29.1");
        let none = include_str!("trees/no-spark.txt");
        let lines = compared(SPARK, &[("spark2", &newer), ("box", none)]);
        let nccl = line(&lines, "NCCL of spark2");
        assert_eq!(
            (nccl.verdict, nccl.found.as_str()),
            (Verdict::Note, "version 2.29.1; here: version 2.28.9")
        );
        assert!(nccl.advice.as_deref().unwrap().contains("the same version"));
        assert_eq!(line(&lines, "NCCL of box").verdict, Verdict::Unknown);
        assert_eq!(line(&lines, "MTU of box").verdict, Verdict::Skipped);
    }

    #[test]
    fn a_link_is_known_by_the_route_and_in_order_only_if_both_ends_say_all_and_agree() {
        let towards = |tree: &str, to: [u8; 4]| link_towards(planted(tree).path(), IpAddr::from(to));
        let cable = towards(SPARK, [169, 254, 3, 5]).unwrap();
        let (interface, speed) = ("enp1s0f0np0".to_owned(), Some("200 Gb/s".to_owned()));
        assert_eq!(cable, Link { interface, speed, mtu: Some(9000) });
        let wire = towards(include_str!("trees/no-spark.txt"), [10, 0, 0, 2]).unwrap();
        assert_eq!(wire, Link { interface: "eth0".into(), speed: None, mtu: Some(1500) });
        assert_eq!(towards(SPARK, [10, 0, 0, 2]), None, "there is no route");
        assert_eq!(towards(SPARK, Ipv4Addr::LOCALHOST.octets()).unwrap().interface, "lo");
        let line = between("spark2", Some(&cable), Some(&cable));
        assert_eq!((line.what.as_str(), line.verdict), ("link to spark2", Verdict::Ok));
        let line = between("spark2", Some(&cable), Some(&wire));
        assert_eq!(line.verdict, Verdict::Note);
        assert_eq!(line.found, "enp1s0f0np0 (200 Gb/s, MTU 9000) here, eth0 (unknown speed, MTU 1500) there");
        for there in [None, Some(&Link { speed: None, ..cable.clone() })] {
            assert_eq!(between("spark2", Some(&cable), there).verdict, Verdict::Unknown, "{there:?}");
        }
    }
}
