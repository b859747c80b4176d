//! The list of members that the coordinator keeps, and of which the others have a copy. It leaves out the
//! member that holds it. Pure: what members say enters, the list leaves.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use super::messages::{Introduction, MOST_MEMBERS, Member, Report, State, sentence};

/// The visit of a member that is not connected to this one. Visits of connections begin at 1.
const NO_VISIT: u64 = 0;

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
    pub(super) fn forget(&mut self, id: &str) -> Option<Member> {
        self.members.remove(id).map(|entry| entry.member)
    }

    /// Takes the list of the coordinator, which was reached at this address, in place of what is there.
    pub(super) fn copy(&mut self, own_id: &str, members: Vec<Member>, coordinator: IpAddr) {
        self.members.clear();
        for mut member in members.into_iter().filter(|member| member.introduction.id != own_id) {
            // A loopback address means the coordinator's machine, not this one.
            member.ip = member.ip.filter(|ip| !ip.is_loopback()).or(Some(coordinator));
            let id = member.introduction.id.clone();
            self.members.insert(id, Entry { member, visit: NO_VISIT });
        }
    }

    /// Begins to keep the list: nobody is connected to this member yet.
    pub(super) fn take_over(&mut self) {
        for entry in self.members.values_mut() {
            entry.member.gone = Some("it is not connected to the new coordinator yet".into());
        }
    }

    /// Returns where the members listen, and whether they are gone.
    pub(super) fn places(&self) -> impl Iterator<Item = (SocketAddr, bool)> {
        self.members.values().filter_map(|Entry { member, .. }| Some((place(member)?, member.gone.is_some())))
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

/// Returns where a member listens.
pub(super) fn place(member: &Member) -> Option<SocketAddr> {
    Some(SocketAddr::new(member.ip?, member.introduction.port))
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
        let forgotten = roster.forget(&id).unwrap();
        assert_eq!((forgotten.introduction.name.as_str(), roster.members().len()), ("spark1", 0));
    }

    #[test]
    fn a_copy_has_the_others_at_addresses_that_mean_the_same_here_and_begins_with_nobody_connected() {
        let mut roster = Roster::default();
        roster.join(introduction(9), IP, 1).unwrap();
        let coordinator: IpAddr = [10, 0, 0, 7].into();
        let elsewhere: IpAddr = [10, 0, 0, 8].into();
        let member = |id, ip| Member {
            introduction: introduction(id),
            ip,
            report: Report { free_bytes: 0, state: State::Idle },
            gone: None,
        };
        let list = vec![
            member(1, None),
            member(2, Some(elsewhere)),
            member(3, Some(IP)),
            member(4, Some(elsewhere)),
        ];
        roster.copy(&introduction(4).id, list, coordinator);
        let at = |ip: IpAddr| SocketAddr::new(ip, 7301);
        let places = [at(coordinator), at(elsewhere), at(coordinator)];
        assert_eq!(roster.places().collect::<Vec<_>>(), places.map(|at| (at, false)));
        roster.take_over();
        assert_eq!(roster.places().collect::<Vec<_>>(), places.map(|at| (at, true)));
        assert_eq!(roster.lose(&introduction(9).id, 1, "late"), None, "the old list is replaced");
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
