//! What the ranks of a swarm say about who belongs to it. Pure, because bytes of others are read here.
//!
//! A notice is one message of its own kind, in JSON, with a limit on its size.

use serde::{Deserialize, Serialize};

/// The most bytes of a notice: it can hold what all ranks said last.
pub const MOST: u64 = 64 << 20;
/// The most characters of a reason.
const LONGEST_REASON: usize = 500;

/// What one rank says to another about who belongs to the swarm. Ranks keep the numbers that they had when
/// they met.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub enum Notice {
    /// To the coordinator: this rank of the current epoch does not answer me.
    Trouble {
        /// The epoch in which it was missed.
        epoch: u64,
        /// The rank that was missed.
        rank: usize,
        /// What was seen.
        why: String,
    },
    /// From the coordinator: these are the members from now on, if all of them say that they are ready.
    Regroup {
        /// The number of the new epoch.
        epoch: u64,
        /// Its members, ascending.
        members: Vec<usize>,
        /// Who is left out, and why.
        lost: Vec<(usize, String)>,
    },
    /// To the coordinator: I do nothing in the old epoch any more.
    Ready {
        /// The number of the new epoch.
        epoch: u64,
        /// What I have heard of all others.
        heard: Heard,
    },
    /// From the coordinator: all are ready, and have heard this.
    Resume {
        /// The number of the new epoch.
        epoch: u64,
        /// What the rank that has heard most has heard.
        heard: Heard,
    },
}

/// How often a rank has heard all others, and what they said last.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Heard {
    /// The number of times.
    pub words: u64,
    /// The last words, in the order of the ranks that said them. A character for each byte.
    last: Vec<String>,
}

impl Heard {
    /// Records what all have said.
    pub(crate) fn add(&mut self, words: &[Vec<u8>]) {
        self.words += 1;
        self.last = words.iter().map(|word| word.iter().map(|byte| char::from(*byte)).collect()).collect();
    }

    /// Returns what all have said last.
    pub(crate) fn last(&self) -> Vec<Vec<u8>> {
        let byte = |character| u8::try_from(u32::from(character)).unwrap_or(b'?');
        self.last.iter().map(|word| word.chars().map(byte).collect()).collect()
    }
}

impl Notice {
    /// Reads a notice.
    ///
    /// # Errors
    /// It is none.
    pub fn parse(bytes: &[u8]) -> Result<Self, &'static str> {
        let unknown = "it says something about the members that this program does not know";
        let notice: Self = serde_json::from_slice(bytes).map_err(|_| unknown)?;
        let is_short = |why: &String| why.chars().count() <= LONGEST_REASON;
        let is_sound = match &notice {
            Self::Trouble { why, .. } => is_short(why),
            Self::Regroup { members, lost, .. } => {
                let is_ascending = members.windows(2).all(|two| two[0] < two[1]);
                !members.is_empty() && is_ascending && lost.iter().all(|(_, why)| is_short(why))
            }
            Self::Ready { .. } | Self::Resume { .. } => true,
        };
        if is_sound { Ok(notice) } else { Err(unknown) }
    }

    /// Writes a notice.
    pub fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("plain fields serialise")
    }

    /// Returns the number of the epoch that it is about.
    pub fn epoch(&self) -> u64 {
        match self {
            Self::Trouble { epoch, .. }
            | Self::Regroup { epoch, .. }
            | Self::Ready { epoch, .. }
            | Self::Resume { epoch, .. } => *epoch,
        }
    }
}

/// Returns a reason that is short enough for a notice.
pub(crate) fn shortened(why: &str) -> String {
    why.chars().take(LONGEST_REASON).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_notice_is_read_as_it_was_written_and_others_are_refused() {
        let mut heard = Heard::default();
        let words = vec![(0..=255).collect::<Vec<u8>>(), Vec::new(), b"[1,2]".to_vec()];
        heard.add(&words);
        assert_eq!((heard.words, heard.last()), (1, words));
        let lost = vec![(1, "silent".to_owned())];
        for notice in [
            Notice::Trouble { epoch: 3, rank: 2, why: "cut".into() },
            Notice::Regroup { epoch: 4, members: vec![0, 2], lost },
            Notice::Ready { epoch: 4, heard: heard.clone() },
            Notice::Resume { epoch: 4, heard },
        ] {
            assert_eq!(Notice::parse(&notice.to_bytes()), Ok(notice));
        }
        let long = "x".repeat(LONGEST_REASON + 1);
        for wrong in [
            Notice::Regroup { epoch: 4, members: vec![], lost: vec![] },
            Notice::Regroup { epoch: 4, members: vec![2, 0], lost: vec![] },
            Notice::Regroup { epoch: 4, members: vec![0, 0], lost: vec![] },
            Notice::Trouble { epoch: 3, rank: 2, why: long.clone() },
        ] {
            assert!(Notice::parse(&wrong.to_bytes()).is_err(), "{wrong:?}");
        }
        assert_eq!(shortened(&long).len(), LONGEST_REASON);
        let unknown = r#"{"Ready":{"epoch":1,"heard":{"words":1,"last":[]},"more":1}}"#;
        assert!(Notice::parse(unknown.as_bytes()).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_notice_that_writes_itself_again_or_are_refused(bytes: Vec<u8>) {
            if let Ok(notice) = Notice::parse(&bytes) {
                prop_assert_eq!(Notice::parse(&notice.to_bytes()), Ok(notice));
            }
        }
    }
}
