//! Where a rank listens, where rank 0 does, and whether a token is needed there.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, ToSocketAddrs};
use std::ops::Range;
use std::time::Instant;

use sparktune_base::escape::escape;

use crate::cluster_token::random;
use crate::environment::{Launcher, OF_FIRST, Placement};
use crate::error::Error;
use crate::token::JobToken;
use crate::waiting::{AGAIN, Ends, LOOK};

/// The ports at which other ranks listen, so that none takes one that was chosen for a rank 0.
const OF_OTHERS: Range<u16> = 26_000..32_000;

/// Returns a port of this machine at which nobody listens, for a rank 0 that does so later.
///
/// # Errors
/// No port can be listened at.
pub fn free_port() -> Result<u16, Error> {
    at_free_port(OF_FIRST, |port| {
        // One after the other, because the address of IPv6 may take IPv4 too. A machine may have only one.
        let addresses: [IpAddr; 2] = [Ipv6Addr::UNSPECIFIED.into(), Ipv4Addr::UNSPECIFIED.into()];
        let bound = addresses.map(|address| TcpListener::bind((address, port)).map(drop));
        let is_taken = bound.iter().flat_map(|bound| bound.as_ref().err()).any(is_in_use);
        let is_free = !is_taken && bound.iter().any(Result::is_ok);
        if is_free { Ok(port) } else { bound.into_iter().collect::<io::Result<()>>().map(|()| port) }
    })
}

/// Returns what `at` returns for the first of these ports, tried in random order, at which it can listen.
fn at_free_port<T>(ports: Range<u16>, at: impl Fn(u16) -> io::Result<T>) -> Result<T, Error> {
    let mut last = None;
    for _ in 0..100 {
        let port = ports.start + u16::from_le_bytes(random()) % (ports.end - ports.start);
        match at(port) {
            Ok(listening) => return Ok(listening),
            Err(source) => last = Some(source),
        }
    }
    let source = last.expect("a port was tried");
    Err(Error::Listen { at: format!("any port from {} to {}", ports.start, ports.end - 1), source })
}

fn is_in_use(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::AddrInUse
}

/// Returns the addresses to listen at, of which the first that works is enough: those of rank 0's name if
/// only this machine can connect to them, and otherwise those that stand for all interfaces. Debian writes a
/// machine's own name into its /etc/hosts, at the loopback interface (127.0.1.1), while others know it at
/// another address; so with a token, a name means that others may connect.
pub(crate) fn listening_addresses(host: &str, addresses: &[SocketAddr], has_token: bool) -> Vec<IpAddr> {
    let mut here: Vec<IpAddr> = addresses.iter().map(SocketAddr::ip).collect();
    let is_name = host != "localhost" && host.parse::<IpAddr>().is_err();
    if here.is_empty() || !here.iter().all(IpAddr::is_loopback) || has_token && is_name {
        // The first takes IPv4 too.
        return vec![Ipv6Addr::UNSPECIFIED.into(), Ipv4Addr::UNSPECIFIED.into()];
    }
    here.sort_by_key(IpAddr::is_ipv6);
    here
}

/// Starts to listen: rank 0 on its port, others on any other.
pub(crate) fn listen(placement: &Placement, interfaces: &[IpAddr]) -> Result<(TcpListener, u16), Error> {
    let of_first = placement.port;
    if placement.rank > 0 {
        return at_free_port(OF_OTHERS, |port| {
            // Rank 0 may be on this machine, and come later.
            if port == of_first { Err(io::ErrorKind::AddrInUse.into()) } else { bind(interfaces, port) }
        });
    }
    // A process that this one has just started has what was open here until its own program is loaded.
    let mut tries = 0..20;
    loop {
        match bind(interfaces, of_first) {
            Err(error) if is_in_use(&error) && tries.next().is_some() => std::thread::sleep(2 * LOOK),
            bound => {
                return bound.map_err(|source| Error::Listen { at: format!("port {of_first}"), source });
            }
        }
    }
}

fn bind(interfaces: &[IpAddr], port: u16) -> io::Result<(TcpListener, u16)> {
    let mut bound = Err(io::ErrorKind::AddrNotAvailable.into());
    for address in interfaces {
        bound = TcpListener::bind((*address, port));
        if bound.as_ref().err().is_none_or(is_in_use) {
            break;
        }
    }
    let listener = bound?;
    listener.set_nonblocking(true)?;
    Ok((listener, port))
}

/// Returns the addresses of rank 0. A name may become known only after a while.
pub(crate) fn resolve(
    placement: &Placement,
    deadline: Instant,
    ends: &Ends,
) -> Result<Vec<SocketAddr>, Error> {
    let mut is_told = false;
    loop {
        let why = match (placement.host.as_str(), placement.port).to_socket_addrs() {
            Ok(addresses) => {
                let addresses: Vec<_> = addresses.collect();
                if !addresses.is_empty() {
                    return Ok(addresses);
                }
                "the host has no address".to_owned()
            }
            Err(error) => error.to_string(),
        };
        if !std::mem::replace(&mut is_told, true) {
            ends.say(format!(
                "the host of rank 0, \"{}\", is unknown so far: {why}. This rank asks again until it is known; if the name is wrong, end this rank and correct MASTER_ADDR",
                escape(&placement.host)
            ));
        }
        if ends.is_over() {
            return Err(Error::Interrupted);
        }
        if Instant::now() >= deadline {
            let what = format!("the host of rank 0, \"{}\", is unknown: {why}", escape(&placement.host));
            return Err(Error::Environment { what, fix: "Correct MASTER_ADDR" });
        }
        std::thread::sleep(AGAIN);
    }
}

/// Refuses ranks that need a token and have none, before they do anything for which they would need it. If
/// the host of rank 0 is not known yet, nothing is refused.
///
/// # Errors
/// There is no token, and the ranks need one.
pub fn refuse_missing_token(placement: &Placement, token: Option<&JobToken>) -> Result<(), Error> {
    let addresses = (placement.host.as_str(), placement.port).to_socket_addrs();
    let addresses: Vec<_> = addresses.into_iter().flatten().collect();
    if addresses.is_empty() { Ok(()) } else { guarded(placement, &addresses, token).map(drop) }
}

/// Returns the addresses to listen at, and the token of who may come there. Without one, that is known to
/// all: on the loopback interface only, and not on a node of Slurm, where other users may run processes.
///
/// # Errors
/// There is no token, and the ranks need one.
pub(crate) fn guarded(
    placement: &Placement,
    addresses: &[SocketAddr],
    token: Option<&JobToken>,
) -> Result<(Vec<IpAddr>, JobToken), Error> {
    let at = listening_addresses(&placement.host, addresses, token.is_some());
    let is_alone = at.iter().all(IpAddr::is_loopback) && placement.launcher != Launcher::Slurm;
    match token {
        Some(token) => Ok((at, token.clone())),
        None if is_alone => Ok((at, JobToken::of_loopback())),
        None => Err(Error::NoToken { host: escape(&placement.host).into_owned() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_free_port_is_none_that_a_connection_gets_by_itself() {
        for _ in 0..10 {
            let port = free_port().unwrap();
            assert!(
                OF_FIRST.contains(&port) && TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok(),
                "{port}"
            );
        }
    }

    #[test]
    fn no_rank_listens_at_a_port_that_a_connection_gets_by_itself_nor_where_another_one_does() {
        for host in ["127.0.0.1", "127.0.1.1", "::1", "0.0.0.0"] {
            let interfaces = listening_addresses(host, &[(host.parse::<IpAddr>().unwrap(), 0).into()], false);
            let host = host.to_owned();
            // As somebody may choose it.
            let port = at_free_port(OF_OTHERS, |port| bind(&interfaces, port)).unwrap().1;
            let placement = |rank| {
                let (host, launcher) = (host.clone(), Launcher::Torchrun);
                Placement { rank, world_size: 9, local_rank: rank, host, port, launcher }
            };
            let listening: Vec<_> =
                (1..9).map(|rank| listen(&placement(rank), &interfaces).unwrap()).collect();
            for (listener, of) in &listening {
                assert!(OF_OTHERS.contains(of) && *of != port, "{host}: {of}");
                assert_eq!(listener.local_addr().unwrap().port(), *of);
            }
            let (first, of) = listen(&placement(0), &interfaces).unwrap();
            assert_eq!((of, first.local_addr().unwrap().port()), (port, port));
        }
    }

    #[test]
    fn only_what_is_loopback_for_everybody_is_hidden_from_others() {
        let of = |host: &str, addresses: &[&str], has_token| {
            let addresses: Vec<_> =
                addresses.iter().map(|ip| (ip.parse::<IpAddr>().unwrap(), 0).into()).collect();
            listening_addresses(host, &addresses, has_token).iter().map(IpAddr::to_string).collect::<Vec<_>>()
        };
        let all = ["::", "0.0.0.0"];
        for has_token in [false, true] {
            assert_eq!(of("localhost", &["::1", "127.0.0.1"], has_token), ["127.0.0.1", "::1"]);
            assert_eq!(of("127.0.1.1", &["127.0.1.1"], has_token), ["127.0.1.1"]);
            assert_eq!(of("spark1", &["10.0.0.1"], has_token), all);
            assert_eq!(of("spark1", &[], has_token), all);
        }
        assert_eq!(of("spark1", &["127.0.1.1"], true), all, "others may know it at another address");
        assert_eq!(
            of("spark1", &["127.0.1.1"], false),
            ["127.0.1.1"],
            "without a token, only this machine may connect"
        );
    }
}
