//! Who coordinates, as one member sees it. Pure: what members say of themselves enters, what this one does
//! next leaves.
//!
//! Every member has the list of all. One that has lost the coordinator asks the others for their roles. If
//! one of them coordinates, that one is followed; if one is still connected to a coordinator, it names that
//! one; if one has a lower id, this member waits for it a while; otherwise it takes over, in a *term* one
//! higher than any it has heard of. Two members can coordinate for a while, after a partition or when one was
//! suspended. This splits the list and nothing else: each shows the members that are connected to it, and
//! calls the others gone. Whoever coordinates tells those that are gone that it does, and is told whom they
//! follow, so the two hear of each other, and the one of the lower term gives up; in the same term, that with
//! the higher id does. A term is not kept: a member that is started again begins with 0, so it does not take
//! back what it has lost.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use super::messages::{MOST_MEMBERS, Role, Standing};

/// How often a member waits for one with a lower id that seeks too, before it takes over: for about half a
/// minute. If both coordinate in the end, one of them gives up.
const MOST_WAITS: u32 = 15;

/// The state of one member.
#[derive(Debug)]
pub(super) struct Coordination {
    own: Standing,
    /// Where the coordinator is: the one that is followed, or the one that is dialled next.
    at: Option<SocketAddr>,
    /// Where the coordinator that was followed last is.
    followed: Option<SocketAddr>,
    /// Whether that one has left the cluster, so that it does not come back.
    has_left: bool,
    /// Where members listen that are perhaps not in the list: those of an earlier time, and coordinators that
    /// were heard of since.
    known: BTreeSet<SocketAddr>,
    /// How often this member has waited for one with a lower id.
    waits: u32,
}

impl Coordination {
    /// Begins with the members of an earlier time.
    pub(super) fn new(id: &str, port: u16, coordinates: bool, known: &[SocketAddr]) -> Self {
        let role = if coordinates { Role::Coordinates } else { Role::Seeks };
        let own = Standing { id: id.to_owned(), port, term: 0, role };
        let known = known.iter().copied().take(MOST_MEMBERS).collect();
        Self { own, at: None, followed: None, has_left: false, known, waits: 0 }
    }

    /// Returns what this member says of itself.
    pub(super) fn standing(&self) -> &Standing {
        &self.own
    }

    /// Returns where the coordinator is, as far as this member knows.
    pub(super) fn at(&self) -> Option<SocketAddr> {
        self.at
    }

    /// Returns where the coordinator is, and forgets it, so that it is dialled there only once.
    pub(super) fn take_at(&mut self) -> Option<SocketAddr> {
        self.at.take()
    }

    /// Notes that somebody has named the coordinator.
    pub(super) fn point_to(&mut self, at: SocketAddr) {
        self.at = Some(at);
    }

    /// Returns the places that [`Coordination::new`] and [`Coordination::consider`] were given.
    pub(super) fn known(&self) -> &BTreeSet<SocketAddr> {
        &self.known
    }

    /// Forgets these places: the coordinator's list has all of them.
    pub(super) fn forget_known(&mut self) {
        self.known.clear();
    }

    /// Forgets the member that listens at this place, which has left the cluster. Returns whether this one
    /// follows it.
    pub(super) fn forget(&mut self, at: SocketAddr) -> bool {
        self.known.remove(&at);
        let is_followed = self.followed == Some(at) && self.own.role != Role::Coordinates;
        self.has_left |= is_followed;
        is_followed
    }

    /// Returns whether this member was connected to a coordinator since it was one itself.
    pub(super) fn has_followed(&self) -> bool {
        self.followed.is_some()
    }

    /// Returns whether the coordinator has left the cluster, so that nobody needs to wait for it.
    pub(super) fn has_left(&self) -> bool {
        self.has_left
    }

    /// Notes a connection to a coordinator.
    pub(super) fn follow(&mut self, at: SocketAddr, term: u64) {
        self.own.term = term;
        self.own.role = Role::Follows;
        (self.at, self.followed) = (Some(at), Some(at));
        (self.has_left, self.waits) = (false, 0);
    }

    /// Notes that the connection has ended.
    pub(super) fn lose(&mut self) {
        if self.own.role == Role::Follows {
            self.own.role = Role::Seeks;
        }
    }

    /// Considers what the member that listens at this place says of itself. Returns whether this one has
    /// given up the coordination because of it.
    pub(super) fn consider(&mut self, other: &Standing, at: SocketAddr) -> bool {
        if other.id == self.own.id {
            return false;
        }
        // Whoever seeks dials those that it knows.
        if other.role == Role::Coordinates && self.known.len() < MOST_MEMBERS {
            self.known.insert(at);
        }
        let gives_up = self.own.role == Role::Coordinates && beats(other, &self.own);
        // A member that follows another one is told by that one if it gives up.
        if other.role == Role::Coordinates && (gives_up || self.own.role == Role::Seeks) {
            self.own.term = self.own.term.max(other.term);
            self.own.role = Role::Seeks;
            self.at = Some(at);
        }
        gives_up
    }

    /// Decides from the answers of all members that answered. Returns whether this one has taken over. Nobody
    /// was reached at the place `in_vain`, even if a coordinator that cannot be reached names it again.
    pub(super) fn decide(&mut self, answers: &[(SocketAddr, Standing)], in_vain: Option<SocketAddr>) -> bool {
        if self.own.role != Role::Seeks || self.at.is_some_and(|at| Some(at) != in_vain) {
            return false;
        }
        let others: Vec<_> = answers.iter().filter(|(_, other)| other.id != self.own.id).collect();
        let coordinating = others.iter().filter(|(_, other)| other.role == Role::Coordinates);
        if let Some((at, _)) =
            coordinating.reduce(|one, other| if beats(&other.1, &one.1) { other } else { one })
        {
            self.at = Some(*at);
            return false;
        }
        // Whoever follows one that coordinates names it.
        if let Some((at, _)) = others.iter().find(|(_, other)| other.role == Role::Follows) {
            self.at = Some(*at);
            return false;
        }
        if self.waits < MOST_WAITS && others.iter().any(|(_, other)| other.id < self.own.id) {
            self.waits += 1;
            return false;
        }
        (self.at, self.followed) = (None, None);
        (self.has_left, self.waits) = (false, 0);
        let newest = others.iter().map(|(_, other)| other.term).max().unwrap_or(0);
        self.own.term = self.own.term.max(newest).saturating_add(1);
        self.own.role = Role::Coordinates;
        true
    }
}

/// Returns whether the one of two members that coordinate goes on.
fn beats(one: &Standing, other: &Standing) -> bool {
    one.role == Role::Coordinates && (one.term > other.term || (one.term == other.term && one.id < other.id))
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn at(number: u16) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, number).into()
    }

    fn standing(id: &str, term: u64, role: Role) -> Standing {
        Standing { id: id.into(), port: 1, term, role }
    }

    /// The member `m`, which was connected in term 3 to a coordinator that is gone.
    fn seeking() -> Coordination {
        let mut member = Coordination::new("m", 1, false, &[]);
        member.follow(at(9), 3);
        member.lose();
        assert_eq!(member.take_at(), Some(at(9)));
        member
    }

    #[test]
    fn the_lowest_of_those_that_answer_takes_over_in_a_new_term() {
        use Role::{Coordinates, Follows, Seeks};
        let cases = [
            (vec![], true),
            (vec![("z", 3, Seeks)], true),
            (vec![("a", 3, Seeks), ("z", 3, Seeks)], false),
            (vec![("z", 3, Follows)], false),
            (vec![("z", 2, Coordinates)], false),
            (vec![("m", 3, Seeks)], true),
        ];
        for (others, takes_over) in cases {
            let answers: Vec<_> =
                others.iter().map(|(id, term, role)| (at(1), standing(id, *term, *role))).collect();
            let mut member = seeking();
            assert_eq!(member.decide(&answers, None), takes_over, "{others:?}");
            let (term, role) = if takes_over { (4, Coordinates) } else { (3, Seeks) };
            assert_eq!(*member.standing(), standing("m", term, role), "{others:?}");
        }
        let mut member = seeking();
        assert!(member.decide(&[(at(1), standing("z", 7, Seeks))], None));
        assert_eq!(member.standing().term, 8, "higher than any that was heard of");
    }

    #[test]
    fn whoever_coordinates_in_the_highest_term_is_followed() {
        let mut member = seeking();
        let three = [(1, "a", 4), (2, "z", 5), (3, "y", 5)];
        let answers = three.map(|(number, id, term)| (at(number), standing(id, term, Role::Coordinates)));
        assert!(!member.decide(&answers, None));
        assert_eq!(member.at(), Some(at(3)));
        assert!(!member.decide(&[], None), "one is named, and is dialled first");
    }

    #[test]
    fn one_that_seeks_asks_who_is_followed_and_does_not_wait_for_ever() {
        // The coordinator may not be in this member's list.
        let mut member = seeking();
        assert!(!member.decide(&[(at(7), standing("z", 3, Role::Follows))], None));
        assert_eq!(member.at(), Some(at(7)));
        // One that coordinates and cannot be connected to announces itself again and again.
        let mut member = seeking();
        member.consider(&standing("z", 3, Role::Coordinates), at(8));
        assert!(!member.decide(&[], None));
        assert!(member.decide(&[], Some(at(8))));
        assert_eq!(member.at(), None);
        // One with a lower id may never take over.
        let mut member = seeking();
        let answers = [(at(1), standing("a", 3, Role::Seeks))];
        let waits = (0..2 * MOST_WAITS).take_while(|_| !member.decide(&answers, None)).count();
        assert_eq!(waits, MOST_WAITS as usize);
    }

    #[test]
    fn a_member_that_was_only_asked_by_one_that_seeks_does_not_know_where_others_are() {
        let mut member = Coordination::new("m", 1, false, &[]);
        member.consider(&standing("z", 3, Role::Seeks), at(1));
        assert!(member.known().is_empty());
    }

    #[test]
    fn a_coordinator_that_leaves_is_not_waited_for_and_another_member_that_leaves_changes_nothing() {
        let mut member = seeking();
        assert!(!member.forget(at(8)) && !member.has_left());
        assert!(member.forget(at(9)) && member.has_left(), "also when its connection has ended already");
        member.follow(at(7), 4);
        assert!(!member.has_left() && !member.forget(at(9)));
        assert!(member.forget(at(7)));
        member.lose();
        assert_eq!(member.take_at(), Some(at(7)));
        assert!(member.decide(&[], None) && !member.has_left());
        assert!(!member.forget(at(7)), "it coordinates itself");
    }

    #[test]
    fn of_two_that_coordinate_exactly_one_gives_up() {
        let coordinating = |id: &str, term: u64| Coordination {
            own: standing(id, term, Role::Coordinates),
            at: None,
            followed: None,
            has_left: false,
            known: BTreeSet::new(),
            waits: 0,
        };
        for (one, other) in [(("a", 1), ("b", 1)), (("b", 2), ("a", 1)), (("a", 2), ("b", 1))] {
            let (mut stays, mut goes) = (coordinating(one.0, one.1), coordinating(other.0, other.1));
            assert!(!stays.consider(&goes.standing().clone(), at(2)), "{one:?} {other:?}");
            assert!(goes.consider(&stays.standing().clone(), at(1)), "{one:?} {other:?}");
            assert_eq!((goes.at(), goes.standing().role), (Some(at(1)), Role::Seeks));
            assert_eq!((stays.at(), stays.standing().role), (None, Role::Coordinates));
            assert!(stays.known().contains(&at(2)), "it is told again until it is connected");
        }
        let mut follows = seeking();
        follows.follow(at(5), 3);
        assert!(!follows.consider(&standing("a", 9, Role::Coordinates), at(1)));
        assert_eq!((follows.at(), follows.standing().role), (Some(at(5)), Role::Follows));
    }
}
