//! Which engine sums, from what every rank says of itself. Pure, so that all ranks decide alike.

use std::fmt;

use serde::{Deserialize, Serialize};
use sparktune_base::escape::escape;

/// The oldest version that keeps no address of the caller while it connects.
const OLDEST: u32 = 21_800;
/// The first release that is fast between two Sparks.
pub const NEEDED: u32 = 22_809;
/// The most ranks whose sum has no order.
pub(crate) const EXACT: usize = 2;
/// The most characters of a rank's words that are repeated.
const LONGEST: usize = 300;

/// What a rank says of itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Facts {
    /// What no other GPU of its machine has, or why it has none.
    pub gpu: Result<String, String>,
    /// What NCCL tells machines apart by.
    pub host: String,
    /// The version of NCCL, 22809 for 2.28.9, or why there is none.
    pub library: Result<u32, String>,
    /// What is wrong with its links, in sentences.
    pub links: Vec<String>,
}

/// What rank 0 asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    /// The fastest engine that works and has the bits of the ranks' order.
    Auto,
    /// NCCL, or an error.
    Nccl,
}

/// The engine that sums, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Choice {
    /// NCCL of this version; what may make it slow.
    Nccl(u32, Vec<String>),
    /// Over TCP, because of this.
    Tcp(String),
}

/// A version in the way people write it.
pub struct Version(pub u32);

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.0 / 10_000, self.0 / 100 % 100, self.0 % 100)
    }
}

/// Chooses from the facts of all ranks, in their order.
///
/// # Errors
/// NCCL was asked for, and cannot be used.
pub fn choose(asked: Asked, facts: &[Facts]) -> Result<Choice, String> {
    match (of_facts(facts), asked) {
        (Ok(_), Asked::Auto) if facts.len() > EXACT => Ok(Choice::Tcp(format!(
            "the order in which it adds {} ranks is its own, so bits would not be those of the ranks' order. With SPARKTUNE_CLUSTER_ENGINE=nccl at rank 0, that is taken",
            facts.len()
        ))),
        (Ok((version, notes)), _) => Ok(Choice::Nccl(version, notes)),
        (Err(why), Asked::Auto) => Ok(Choice::Tcp(why)),
        (Err(why), Asked::Nccl) => Err(why),
    }
}

fn of_facts(facts: &[Facts]) -> Result<(u32, Vec<String>), String> {
    let mut versions = Vec::new();
    for (rank, fact) in facts.iter().enumerate() {
        fact.gpu.as_ref().map_err(|why| format!("rank {rank} has no GPU for it: {}", said(why)))?;
        let version = fact.library.as_ref();
        versions.push(*version.map_err(|why| format!("rank {rank} has no NCCL: {}", said(why)))?);
    }
    let first = *versions.first().ok_or("there are no ranks")?;
    if let Some((rank, other)) = versions.iter().enumerate().find(|(_, version)| **version != first) {
        let (first, other) = (Version(first), Version(*other));
        return Err(format!("rank {rank} has NCCL {other}, and rank 0 has {first}"));
    }
    for (rank, one) in facts.iter().enumerate() {
        let same = |other: &Facts| other.host == one.host && other.gpu == one.gpu;
        if let Some(other) = facts[..rank].iter().position(same) {
            return Err(format!(
                "ranks {other} and {rank} share a GPU, which NCCL refuses unless NCCL_HOSTID differs"
            ));
        }
    }
    if first < OLDEST {
        return Err(format!("NCCL {} is older than {}", Version(first), Version(OLDEST)));
    }
    let mut notes = Vec::new();
    if first < NEEDED {
        notes.push(format!(
            "NCCL {} is older than {}, and may reach about 3 instead of 23 GB/s between two Sparks",
            Version(first),
            Version(NEEDED)
        ));
    }
    let of_links = facts.iter().enumerate();
    let of_links = of_links.flat_map(|(rank, fact)| {
        fact.links.iter().take(4).map(move |link| format!("rank {rank}: {}", said(link)))
    });
    notes.extend(of_links);
    Ok((first, notes))
}

/// Returns what another rank wrote, for a terminal.
fn said(words: &str) -> String {
    escape(&words.chars().take(LONGEST).collect::<String>()).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fact(host: &str) -> Facts {
        Facts { gpu: Ok("a".into()), host: host.into(), library: Ok(22_903), links: Vec::new() }
    }

    #[test]
    fn nccl_is_chosen_where_every_rank_has_a_gpu_of_its_own_and_the_same_library() {
        let two = [fact("one"), fact("two")];
        let without_gpu = Facts { gpu: Err("no driver".into()), ..fact("two") };
        let without_library = Facts { library: Err("libnccl.so.2: not found".into()), ..fact("two") };
        let other = Facts { library: Ok(22_809), ..fact("two") };
        let beside = Facts { gpu: Ok("b".into()), ..fact("one") };
        let cases: [(&str, [Facts; 2], Result<(), &str>); 7] = [
            ("two machines", two.clone(), Ok(())),
            ("two GPUs of one machine", [fact("one"), beside], Ok(())),
            ("one GPU", [fact("one"), fact("one")], Err("ranks 0 and 1 share a GPU")),
            ("no GPU", [fact("one"), without_gpu], Err("rank 1 has no GPU for it: no driver")),
            ("no library", [fact("one"), without_library], Err("rank 1 has no NCCL: libnccl.so.2")),
            (
                "two versions",
                [fact("one"), other.clone()],
                Err("rank 1 has NCCL 2.28.9, and rank 0 has 2.29.3"),
            ),
            ("one version", [Facts { host: "one".into(), ..other.clone() }, other], Ok(())),
        ];
        for (name, facts, expected) in cases {
            match (choose(Asked::Auto, &facts), choose(Asked::Nccl, &facts), expected) {
                (Ok(Choice::Nccl(_, notes)), Ok(_), Ok(())) => assert!(notes.is_empty(), "{name}: {notes:?}"),
                (Ok(Choice::Tcp(why)), Err(refused), Err(word)) => {
                    assert!(why.contains(word) && why == refused, "{name}: {why}");
                }
                other => panic!("{name}: {other:?}"),
            }
        }
    }

    #[test]
    fn more_than_two_ranks_have_an_order_so_nccl_is_chosen_only_when_it_is_asked_for() {
        let three = ["one", "two", "three"].map(fact);
        let Ok(Choice::Tcp(why)) = choose(Asked::Auto, &three) else { panic!() };
        assert!(why.contains("SPARKTUNE_CLUSTER_ENGINE=nccl"), "{why}");
        assert_eq!(choose(Asked::Nccl, &three), Ok(Choice::Nccl(22_903, Vec::new())));
    }

    #[test]
    fn what_may_make_it_slow_is_said_and_does_not_refuse_it() {
        let old = |host| Facts { library: Ok(22_703), ..fact(host) };
        let link = "MTU: enp1s0f0np0 has 1500\u{1b}[31m".to_owned();
        let facts = [old("one"), Facts { links: vec![link], ..old("two") }];
        let Ok(Choice::Nccl(22_703, notes)) = choose(Asked::Auto, &facts) else { panic!() };
        assert!(notes[0].starts_with("NCCL 2.27.3 is older than 2.28.9"), "{notes:?}");
        assert!(notes[1].starts_with("rank 1: MTU: enp1s0f0np0 has 1500"), "{notes:?}");
        assert!(!notes[1].contains('\u{1b}'), "text of others is escaped");
    }
}
