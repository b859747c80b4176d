//! How a machine finds its cluster on the local links, without being told an address.
//!
//! Who wants to join sends a *call* to a multicast group on each of its links; the cluster's coordinator,
//! which listens there, answers with *here I am*, to the caller alone. Both are datagrams of [`LENGTH`]
//! bytes:
//!
//! ```text
//!  0  4  magic "STCL"
//!  4  1  version
//!  5  1  kind: 1 a call, 2 an answer
//!  6  2  TCP port of the coordinator; 0 in a call
//!  8 16  address of the sender, IPv4 as in ::ffff:10.0.0.1
//! 24 16  nonce of the call, which its answer repeats
//! 40 32  tag: BLAKE3 of the 40 bytes before, keyed by a key that follows from the token
//! ```
//!
//! Numbers are big-endian. The tag shows who knows the token without saying anything of it that a guess of
//! the whole token would not need, and a token has at least 128 bits. A datagram is taken only if it came
//! from the address that it names. A call that is sent again by somebody else leads to an answer of the same
//! size and nothing more; an answer that is sent again fits no other call. And whatever address an answer
//! names, the next step is a TLS handshake in which that side must prove the token.
//!
//! Linux chooses the link of a multicast by the address that the socket is bound to. IPv4 only: a cable
//! between two machines has link-local IPv4 addresses at least.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::time::{Duration, Instant};

use crate::cluster_token::{ClusterToken, random};

/// The group, in the range that no router forwards out of a site (RFC 2365).
pub const GROUP: Ipv4Addr = Ipv4Addr::new(239, 255, 72, 73);
/// The port of the group, and the first one on which agents listen.
pub const PORT: u16 = 7300;
/// Bytes of every datagram.
pub const LENGTH: usize = 72;

const MAGIC: [u8; 4] = *b"STCL";
const VERSION: u8 = 1;
const TAG: usize = 40;
/// The pause between two calls.
const AGAIN: Duration = Duration::from_millis(500);
/// The pause between two looks for an answer or the end.
const LOOK: Duration = Duration::from_millis(50);
/// The pause after which new links are looked for.
const NEW_LINKS: Duration = Duration::from_secs(5);

/// What a datagram says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Somebody looks for the cluster.
    Call,
    /// The coordinator listens on this TCP port.
    Here {
        /// The port.
        port: u16,
    },
}

/// A datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Beacon {
    /// What it says.
    pub kind: Kind,
    /// Who sent it.
    pub from: IpAddr,
    /// The call that it is or answers.
    pub nonce: [u8; 16],
}

impl Beacon {
    /// Returns its bytes, with the tag of this key.
    pub fn to_bytes(self, key: &[u8; 32]) -> [u8; LENGTH] {
        let (kind, port) = match self.kind {
            Kind::Call => (1, 0),
            Kind::Here { port } => (2, port),
        };
        let from = match self.from {
            IpAddr::V4(v4) => v4.to_ipv6_mapped(),
            IpAddr::V6(v6) => v6,
        };
        let mut bytes = [0; LENGTH];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..6].copy_from_slice(&[VERSION, kind]);
        bytes[6..8].copy_from_slice(&port.to_be_bytes());
        bytes[8..24].copy_from_slice(&from.octets());
        bytes[24..TAG].copy_from_slice(&self.nonce);
        let tag = blake3::keyed_hash(key, &bytes[..TAG]);
        bytes[TAG..].copy_from_slice(tag.as_bytes());
        bytes
    }

    /// Reads a datagram. `None` if it is none, or if its sender does not know the key.
    pub fn parse(bytes: &[u8], key: &[u8; 32]) -> Option<Self> {
        let bytes: &[u8; LENGTH] = bytes.try_into().ok()?;
        let tag: [u8; 32] = bytes[TAG..].try_into().expect("32 bytes");
        // Two hashes are compared in constant time.
        let is_ours = blake3::keyed_hash(key, &bytes[..TAG]) == blake3::Hash::from_bytes(tag);
        if !is_ours || bytes[..4] != MAGIC || bytes[4] != VERSION {
            return None;
        }
        let port = u16::from_be_bytes([bytes[6], bytes[7]]);
        let kind = match (bytes[5], port) {
            (1, 0) => Kind::Call,
            (2, 1..) => Kind::Here { port },
            _ => return None,
        };
        let from: [u8; 16] = bytes[8..24].try_into().expect("16 bytes");
        let nonce = bytes[24..TAG].try_into().expect("16 bytes");
        Some(Self { kind, from: Ipv6Addr::from(from).to_canonical(), nonce })
    }
}

/// Returns this machine's IPv4 addresses, from the text of `/proc/net/fib_trie`.
pub fn addresses_in(fib_trie: &str) -> BTreeSet<Ipv4Addr> {
    let mut last: Option<Ipv4Addr> = None;
    let mut found = BTreeSet::new();
    for line in fib_trie.lines().map(str::trim) {
        if let Some(leaf) = line.strip_prefix("|-- ") {
            last = leaf.parse().ok();
        } else if line == "/32 host LOCAL" {
            found.extend(last);
        }
    }
    found
}

fn addresses() -> BTreeSet<Ipv4Addr> {
    std::fs::read_to_string("/proc/net/fib_trie").map_or_else(|_| BTreeSet::new(), |text| addresses_in(&text))
}

/// Calls on all links until a coordinator answers that is not the agent of this machine which listens at the
/// port `own`. Returns where it listens, or `None` if `patience` is over or `is_over` says so.
pub fn find(
    token: &ClusterToken,
    port: u16,
    own: Option<u16>,
    patience: Duration,
    is_over: &dyn Fn() -> bool,
) -> Option<SocketAddr> {
    let key = token.call_key();
    let nonce = random();
    let deadline = Instant::now() + patience;
    let mut sockets: Vec<(Ipv4Addr, UdpSocket)> = Vec::new();
    let mut called: Option<Instant> = None;
    let mut bytes = [0; LENGTH + 1];
    while Instant::now() < deadline && !is_over() {
        if called.is_none_or(|at| at.elapsed() >= AGAIN) {
            called = Some(Instant::now());
            let known: BTreeSet<_> = sockets.iter().map(|(address, _)| *address).collect();
            sockets.extend(
                addresses().difference(&known).filter_map(|address| Some((*address, open(*address)?))),
            );
            for (address, socket) in &sockets {
                let call = Beacon { kind: Kind::Call, from: (*address).into(), nonce }.to_bytes(&key);
                // A link that is down cannot be called on.
                let _ = socket.send_to(&call, SocketAddrV4::new(GROUP, port));
            }
        }
        for (_, socket) in &sockets {
            while let Ok((length, from)) = socket.recv_from(&mut bytes) {
                match Beacon::parse(&bytes[..length], &key) {
                    Some(Beacon { kind: Kind::Here { port }, from: named, nonce: answers })
                        if answers == nonce
                            && named == from.ip()
                            && !(own == Some(port)
                                && sockets.iter().any(|(here, _)| IpAddr::V4(*here) == named)) =>
                    {
                        return Some(SocketAddr::new(named, port));
                    }
                    _ => {}
                }
            }
        }
        std::thread::sleep(LOOK);
    }
    None
}

fn open(address: Ipv4Addr) -> Option<UdpSocket> {
    let socket = UdpSocket::bind((address, 0)).ok()?;
    socket.set_nonblocking(true).ok()?;
    Some(socket)
}

/// Answers calls for the coordinator of a cluster.
pub struct Answerer {
    socket: UdpSocket,
    key: [u8; 32],
    /// Where the coordinator listens.
    port: u16,
    joined: BTreeSet<Ipv4Addr>,
    looked: Option<Instant>,
}

impl Answerer {
    /// Listens for calls to the group at `group_port`, for a coordinator that listens at the TCP port `port`.
    ///
    /// # Errors
    /// Another program listens there.
    pub fn open(token: &ClusterToken, group_port: u16, port: u16) -> io::Result<Self> {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, group_port))?;
        socket.set_read_timeout(Some(LOOK))?;
        let mut answerer =
            Self { socket, key: token.call_key(), port, joined: BTreeSet::new(), looked: None };
        answerer.join_new_links();
        Ok(answerer)
    }

    /// Listens on links that have come since.
    fn join_new_links(&mut self) {
        if self.looked.is_some_and(|at| at.elapsed() < NEW_LINKS) {
            return;
        }
        self.looked = Some(Instant::now());
        let here = addresses();
        self.joined.retain(|address| here.contains(address));
        for address in here {
            if !self.joined.contains(&address) {
                // Several addresses of one link join it once; a refusal means that it is joined already.
                let _ = self.socket.join_multicast_v4(&GROUP, &address);
                self.joined.insert(address);
            }
        }
    }

    /// Answers a call, if one comes within a moment.
    pub fn answer_one(&mut self) {
        self.join_new_links();
        let mut bytes = [0; LENGTH + 1];
        let Ok((length, from)) = self.socket.recv_from(&mut bytes) else { return };
        let Some(Beacon { kind: Kind::Call, from: named, nonce }) =
            Beacon::parse(&bytes[..length], &self.key)
        else {
            return;
        };
        if named != from.ip() {
            return;
        }
        // The socket that answers is bound to the address by which the caller reaches this machine.
        if let Some(own) = address_towards(from)
            && let Ok(socket) = UdpSocket::bind((own, 0))
        {
            let here = Beacon { kind: Kind::Here { port: self.port }, from: own, nonce };
            let _ = socket.send_to(&here.to_bytes(&self.key), from);
        }
    }
}

/// Returns the address of this machine from which it would send to another.
pub fn address_towards(to: SocketAddr) -> Option<IpAddr> {
    let any: IpAddr = if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    // Nothing is sent: the kernel only chooses a route.
    socket.connect(to).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const KEY: [u8; 32] = [7; 32];

    fn beacon(kind: Kind) -> Beacon {
        Beacon { kind, from: Ipv4Addr::new(10, 0, 0, 7).into(), nonce: [3; 16] }
    }

    #[test]
    fn a_datagram_is_taken_only_whole_unchanged_and_from_who_knows_the_token() {
        for kind in [Kind::Call, Kind::Here { port: 7300 }] {
            let bytes = beacon(kind).to_bytes(&KEY);
            assert_eq!(Beacon::parse(&bytes, &KEY), Some(beacon(kind)));
            assert_eq!(Beacon::parse(&bytes, &[8; 32]), None, "another token");
            assert_eq!(Beacon::parse(&bytes[..LENGTH - 1], &KEY), None);
            assert_eq!(Beacon::parse(&[&bytes[..], &[0]].concat(), &KEY), None);
        }
    }

    #[test]
    fn a_datagram_says_nothing_of_the_token_but_its_tag() {
        let bytes = [[7; 32], [8; 32]].map(|key| beacon(Kind::Call).to_bytes(&key));
        assert_eq!(bytes[0][..TAG], bytes[1][..TAG]);
        assert_ne!(bytes[0][TAG..], bytes[1][TAG..]);
    }

    #[test]
    fn the_addresses_of_this_machine_are_those_of_local_hosts() {
        let text = "Local:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 10.0.0.0\n        /8 link UNICAST\n     |-- 10.0.0.7\n        /32 host LOCAL\n     |-- 10.255.255.255\n        /32 link BROADCAST\n        |-- 127.0.0.1\n           /32 host LOCAL\n";
        assert_eq!(addresses_in(text), [[10, 0, 0, 7], [127, 0, 0, 1]].map(Ipv4Addr::from).into());
        assert!(addresses_in("|-- x\n/32 host LOCAL\n").is_empty());
    }

    proptest! {
        #[test]
        fn a_change_of_any_bit_is_noticed(at in 0..LENGTH, bit in 0..8_u32, port in 1..=u16::MAX, nonce: [u8; 16]) {
            let mut bytes = Beacon { nonce, ..beacon(Kind::Here { port }) }.to_bytes(&KEY);
            prop_assert!(Beacon::parse(&bytes, &KEY).is_some());
            bytes[at] ^= 1_u8 << bit;
            prop_assert_eq!(Beacon::parse(&bytes, &KEY), None);
        }

        #[test]
        fn any_text_of_the_kernel_is_read(text: String) {
            addresses_in(&text);
        }
    }
}
