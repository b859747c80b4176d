//! Where the server listens, and the names by which requests may address it.
//!
//! A page of a stranger can point a name of its own at this machine (DNS rebinding), and a browser then
//! takes the stranger's page and this server for the same site. The name in `Host` still is the stranger's,
//! so every request must use a name of this list.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use sparktune_app::failure::{Exit, Failure};
use sparktune_base::escape::escape;
use tokio::net::TcpListener;

/// The first port that is tried if none is given.
const FIRST_PORT: u16 = 7171;
/// The number of ports that are tried.
const PORTS: u16 = 20;

/// Returns the address of `--host`, if the server may listen there. `has_names` says whether `--allow-host`
/// was given.
///
/// # Errors
/// It is no address, or it can be reached from other machines and no name was allowed.
pub(crate) fn checked_host(host: &str, has_names: bool) -> Result<IpAddr, Failure> {
    let text = host.trim_start_matches('[').trim_end_matches(']');
    let ip = match text {
        "localhost" => IpAddr::from(Ipv4Addr::LOCALHOST),
        text => text.parse().map_err(|_| {
            Failure::usage(format!("--host {host} is not an IP address"))
                .hint("Give an address of this machine, such as 127.0.0.1")
        })?,
    };
    if ip.is_loopback() || has_names {
        return Ok(ip);
    }
    let text = format!("--host {host} would let other machines reach this server, without encryption");
    Err(Failure::usage(text)
        .hint(
            "From another machine, use `ssh -L 7171:localhost:7171 THIS-MACHINE` and open the address there",
        )
        .hint("If you trust the network, also give the name that browsers will use, with --allow-host NAME"))
}

/// Listens on this port, or without one on the first free port.
///
/// # Errors
/// The port is taken, or the address is not one of this machine.
pub(crate) async fn listen(ip: IpAddr, port: Option<u16>) -> Result<TcpListener, Failure> {
    let (first, last) = port.map_or((FIRST_PORT, FIRST_PORT + PORTS - 1), |port| (port, port));
    let mut refused = None;
    for port in first..=last {
        match TcpListener::bind(SocketAddr::new(ip, port)).await {
            Ok(listener) => return Ok(listener),
            Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => refused = Some(error),
            Err(error) => {
                let text = format!("cannot listen on {}: {error}", SocketAddr::new(ip, port));
                return Err(
                    Failure::new(Exit::Usage, text).hint("Give another address with --host or --port")
                );
            }
        }
    }
    let ports =
        if first == last { format!("port {first} is") } else { format!("ports {first} to {last} are") };
    let text =
        format!("{ports} in use on {ip}{}", refused.map_or(String::new(), |error| format!(" ({error})")));
    Err(Failure::new(Exit::Usage, text)
        .hint("Another server may be running; otherwise choose a port with --port, or 0 for any free one"))
}

/// Checks a name of `--allow-host`. Requests may name any port, so a name has none.
///
/// # Errors
/// It is no name of a machine.
pub(crate) fn checked_name(name: &str) -> Result<(), Failure> {
    let is_address = name.starts_with('[') && name.ends_with(']');
    let allowed = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
    if is_address || (!name.is_empty() && name.chars().all(allowed)) {
        return Ok(());
    }
    let text = format!("--allow-host: '{}' is not the name of a machine", escape(name));
    Err(Failure::usage(text).hint("Give the name alone, without http:// and without a port"))
}

/// The names that requests may use for this server.
#[derive(Debug, Clone)]
pub(crate) struct Names {
    allowed: Vec<String>,
}

impl Names {
    /// The names of the loopback interface, with the loopback address that the server listens on, and those
    /// of `--allow-host`, which [`checked_name`] has accepted.
    pub(crate) fn new(allowed: &[String], bound: IpAddr) -> Self {
        let own = ["localhost", "127.0.0.1", "[::1]"].map(str::to_owned);
        let given = allowed.iter().map(|name| name.to_ascii_lowercase());
        // Another address of the interface, such as 127.0.0.2. IPv6 has only the one above.
        let bound = (bound.is_ipv4() && bound.is_loopback()).then(|| bound.to_string());
        Self { allowed: own.into_iter().chain(bound).chain(given).collect() }
    }

    /// Returns whether a value of `Host` names this server. Any port is accepted: with `ssh -L` it is that
    /// of the other machine.
    pub(crate) fn has(&self, host: &str) -> bool {
        let name = match host.rsplit_once(':') {
            Some((name, port)) if !port.contains(']') => {
                if port.is_empty() || !port.bytes().all(|byte| byte.is_ascii_digit()) {
                    return false;
                }
                name
            }
            _ => host,
        };
        self.allowed.iter().any(|allowed| allowed.eq_ignore_ascii_case(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_the_loopback_interface_and_allowed_ones_are_names_of_this_server() {
        let names = Names::new(&["Spark.local".to_owned()], IpAddr::from([127, 0, 0, 2]));
        for own in [
            "localhost",
            "LOCALHOST:1",
            "127.0.0.1:7171",
            "127.0.0.2:7171",
            "[::1]",
            "[::1]:80",
            "spark.local:9",
        ] {
            assert!(names.has(own), "{own}");
        }
        for bound in [Ipv4Addr::LOCALHOST, Ipv4Addr::UNSPECIFIED] {
            let names = Names::new(&[], bound.into());
            assert!(names.has("127.0.0.1") && !names.has("127.0.0.2") && !names.has("0.0.0.0"), "{bound}");
        }
        for foreign in [
            "",
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "127.0.0.1:80:80",
            "localhost:",
            "localhost:x",
            "localhost@evil",
            "evil.example:7171",
            "0.0.0.0",
            "::1",
            "[::2]:1",
            "localhost,evil",
            "localhost/",
            " localhost",
        ] {
            assert!(!names.has(foreign), "{foreign}");
        }
    }

    #[test]
    fn an_allowed_name_is_a_name_alone() {
        for name in ["spark.local", "spark-2", "10.0.0.4", "[fe80::1]"] {
            checked_name(name).unwrap();
        }
        for wrong in ["", "spark:7171", "http://spark", "spark/", "a b", "\u{1b}[2J"] {
            let error = checked_name(wrong).unwrap_err().to_string();
            assert!(error.contains("without a port") && !error.contains('\u{1b}'), "{error}");
        }
    }

    #[test]
    fn an_address_that_others_can_reach_needs_an_allowed_name() {
        assert!(checked_host("127.0.0.1", false).is_ok() && checked_host("::1", false).is_ok());
        assert!(checked_host("localhost", false).is_ok());
        for host in ["0.0.0.0", "192.168.1.4", "::"] {
            let refused = checked_host(host, false).unwrap_err().to_string();
            assert!(refused.contains("ssh -L") && refused.contains("without encryption"), "{refused}");
            assert!(checked_host(host, true).is_ok());
        }
        assert!(checked_host("spark.local", true).unwrap_err().to_string().contains("not an IP address"));
    }
}
