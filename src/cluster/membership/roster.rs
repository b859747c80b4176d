//! The list of members that the coordinator keeps. Pure: what members say enters, the list leaves.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::messages::{Introduction, MOST_MEMBERS, Member, Report, State, sentence};

/// The members by their ids. A member that is gone stays in the list, with the reason, until it comes back
/// or is forgotten.
#[derive(Debug, Default)]
pub(super) struct Roster {
    members: BTreeMap<String, Entry>,
}

#[derive(Debug)]
struct Entry {
    member: Member,
    /// Which connection speaks for it: after a quick return, the end of the old one means nothing.
    visit: u64,
}

impl Roster {
    /// Takes a member into the list. `visit` is the number of its connection.
    pub(super) fn join(&mut self, introduction: Introduction, ip: IpAddr, visit: u64) -> Result<(), String> {
        let is_known = self.members.contains_key(&introduction.id);
        if !is_known && self.members.len() + 1 >= MOST_MEMBERS {
            return Err(format!("the cluster has {MOST_MEMBERS} members already, which is all it can have"));
        }
        let report = Report { free_bytes: 0, state: State::Idle };
        let id = introduction.id.clone();
        let member = Member { introduction, ip: Some(ip), report, gone: None };
        self.members.insert(id, Entry { member, visit });
        Ok(())
    }

    /// Notes what a member says.
    pub(super) fn report(&mut self, id: &str, visit: u64, report: Report) {
        if let Some(entry) = self.entry(id, visit) {
            entry.member.report = report;
        }
    }

    /// Notes that a connection has ended. Returns the member's name if that was news.
    pub(super) fn lose(&mut self, id: &str, visit: u64, why: &str) -> Option<String> {
        let entry = self.entry(id, visit)?;
        entry.member.gone = Some(sentence(why));
        Some(entry.member.introduction.name.clone())
    }

    /// Removes a member. Returns its name.
    pub(super) fn forget(&mut self, id: &str) -> Option<String> {
        self.members.remove(id).map(|entry| entry.member.introduction.name)
    }

    /// Returns all members, by name.
    pub(super) fn members(&self) -> Vec<Member> {
        let mut members: Vec<_> = self.members.values().map(|entry| entry.member.clone()).collect();
        members.sort_by(|one, other| {
            let key = |member: &Member| (member.introduction.name.clone(), member.introduction.id.clone());
            key(one).cmp(&key(other))
        });
        members
    }

    fn entry(&mut self, id: &str, visit: u64) -> Option<&mut Entry> {
        self.members.get_mut(id).filter(|entry| entry.visit == visit)
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    const IP: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    fn introduction(id: usize) -> Introduction {
        Introduction {
            version: 1,
            id: format!("{id:032x}"),
            name: format!("spark{id}"),
            build: "b".repeat(64),
            port: 7301,
            gpu: None,
            link: None,
        }
    }

    #[test]
    fn a_member_that_returns_is_there_although_its_old_connection_ends_later() {
        let mut roster = Roster::default();
        let id = introduction(1).id;
        roster.join(introduction(1), IP, 1).unwrap();
        assert_eq!(roster.lose(&id, 1, "cut"), Some("spark1".into()));
        assert_eq!(roster.members()[0].gone.as_deref(), Some("cut"));
        roster.join(introduction(1), IP, 2).unwrap();
        assert_eq!(roster.lose(&id, 1, "late"), None);
        assert_eq!(roster.members()[0].gone, None);
        assert_eq!((roster.forget(&id), roster.members().len()), (Some("spark1".into()), 0));
    }

    #[test]
    fn there_are_at_most_as_many_members_as_a_message_holds() {
        let mut roster = Roster::default();
        for id in 1..MOST_MEMBERS {
            roster.join(introduction(id), IP, 1).unwrap();
        }
        assert!(roster.join(introduction(MOST_MEMBERS), IP, 1).unwrap_err().contains("64 members"));
        assert!(roster.join(introduction(3), IP, 2).is_ok(), "one that is known may return");
    }
}
