//! Where a rank listens, and where rank 0 does.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, ToSocketAddrs};
use std::ops::Range;
use std::time::Instant;

use sparktune_base::escape::escape;

use crate::cluster_token::random;
use crate::environment::Placement;
use crate::error::Error;
use crate::waiting::{AGAIN, Ends, LOOK};

/// The ports of which [`free_port`] returns one: below those that Linux gives to connections by itself, from
/// 32,768 on (`net.ipv4.ip_local_port_range`), which could take it before rank 0 listens.
const FREE: Range<u16> = 20_000..32_000;

/// Returns a port of this machine at which nobody listens, for a rank 0 that does so later.
///
/// # Errors
/// No port can be listened at.
pub fn free_port() -> Result<u16, Error> {
    let mut last = None;
    for _ in 0..100 {
        let port = FREE.start + u16::from_le_bytes(random()) % (FREE.end - FREE.start);
        match TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)) {
            Ok(_) => return Ok(port),
            Err(source) => last = Some(source),
        }
    }
    let source = last.expect("a port was tried");
    Err(Error::Listen { at: format!("any port from {} to {}", FREE.start, FREE.end - 1), source })
}

/// Starts to listen: rank 0 on its port, others on any other; without a token only where this machine alone
/// can connect.
pub(crate) fn listen(placement: &Placement, is_here: bool) -> Result<(TcpListener, u16), Error> {
    // A thread that listened here before may still be about to end.
    for _ in 0..20 {
        match listen_once(placement, is_here) {
            Err(Error::Listen { source, .. }) if source.kind() == io::ErrorKind::AddrInUse => {
                std::thread::sleep(2 * LOOK);
            }
            // Rank 0 may be on this machine, and come later.
            Ok((_taken, port)) if placement.rank > 0 && port == placement.port => {
                return listen_once(placement, is_here);
            }
            listening => return listening,
        }
    }
    listen_once(placement, is_here)
}

fn listen_once(placement: &Placement, is_here: bool) -> Result<(TcpListener, u16), Error> {
    let port = if placement.rank == 0 { placement.port } else { 0 };
    let [v4, v6]: [IpAddr; 2] = if is_here {
        [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()]
    } else {
        [Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()]
    };
    // The IPv6 address of all interfaces takes IPv4 too; that of the loopback interface does not.
    let order = if is_here && placement.host != "::1" { [v4, v6] } else { [v6, v4] };
    let bound = TcpListener::bind((order[0], port)).or_else(|first| {
        let is_family = first.kind() != io::ErrorKind::AddrInUse;
        if is_family { TcpListener::bind((order[1], port)) } else { Err(first) }
    });
    let bound = bound.and_then(|listener| {
        listener.set_nonblocking(true)?;
        let port = listener.local_addr()?.port();
        Ok((listener, port))
    });
    bound.map_err(|source| Error::Listen { at: format!("port {port}"), source })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_free_port_is_none_that_a_connection_gets_by_itself() {
        for _ in 0..10 {
            let port = free_port().unwrap();
            assert!(FREE.contains(&port) && TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok(), "{port}");
        }
    }
}
