//! Network interfaces as the kernel shows them.

use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::line::{Line, Verdict};

/// The interface by which a machine reaches itself.
const LOOPBACK: &str = "lo";

/// The link by which a machine reaches an address.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Link {
    /// The name of its interface.
    pub interface: String,
    /// Its speed in words, if the system says it.
    pub speed: Option<String>,
    /// Its MTU, if the system says it.
    pub mtu: Option<u32>,
}

/// Returns the trimmed text of a small file; `None` if it cannot be read or is empty.
pub(super) fn text(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    Some(text.trim().to_owned()).filter(|text| !text.is_empty())
}

/// Returns the names in a folder, in order.
pub(super) fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

fn place(root: &Path, interface: &str) -> PathBuf {
    root.join("sys/class/net").join(interface)
}

/// Returns a line for each real interface of the machine below `root` that is up.
pub fn interfaces(root: &Path) -> Vec<Line> {
    let mut lines = Vec::new();
    for name in names(&root.join("sys/class/net")) {
        let at = place(root, &name);
        if name == LOOPBACK || text(&at.join("operstate")).as_deref() != Some("up") {
            continue;
        }
        let what = format!("link {name}");
        let mtu = text(&at.join("mtu")).map_or_else(String::new, |mtu| format!(", MTU {mtu}"));
        lines.push(match speed(&at) {
            Some(speed) => Line::new(&what, Verdict::Ok, format!("up, {speed}{mtu}")),
            None => {
                Line::new(&what, Verdict::Unknown, format!("up{mtu}; the system does not say how fast it is"))
            }
        });
    }
    if lines.is_empty() {
        lines.push(Line::new("links", Verdict::Unknown, "no interface says that it is up"));
    }
    lines
}

/// Returns the speed of an interface in words.
fn speed(at: &Path) -> Option<String> {
    let megabits: u64 = text(&at.join("speed"))?.parse().ok().filter(|speed| *speed > 0)?;
    Some(if megabits >= 1000 && megabits.is_multiple_of(100) {
        format!("{} Gb/s", megabits as f64 / 1000.0)
    } else {
        format!("{megabits} Mb/s")
    })
}

/// Returns the link by which the machine below `root` reaches an address. IPv6 routes are not read.
pub fn link_towards(root: &Path, to: IpAddr) -> Option<Link> {
    let interface = match to {
        to if to.is_loopback() => LOOPBACK.to_owned(),
        IpAddr::V4(to) => route(&fs::read_to_string(root.join("proc/net/route")).ok()?, to)?,
        IpAddr::V6(_) => return None,
    };
    let at = place(root, &interface);
    let mtu = text(&at.join("mtu")).and_then(|mtu| mtu.parse().ok());
    Some(Link { interface, speed: speed(&at), mtu })
}

/// Returns the interface of the narrowest route to an address, from the text of `/proc/net/route`.
fn route(table: &str, to: Ipv4Addr) -> Option<String> {
    // The kernel writes addresses as numbers of this machine, which is little-endian.
    let number = |text: &str| u32::from_str_radix(text, 16).ok().map(u32::swap_bytes);
    let routes = table.lines().skip(1).filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (name, target, mask) = (*fields.first()?, number(fields.get(1)?)?, number(fields.get(7)?)?);
        (u32::from(to) & mask == target).then(|| (mask.count_ones(), name.to_owned()))
    });
    routes.max_by_key(|(bits, _)| *bits).map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_narrowest_route_is_taken() {
        let table = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n\
                     eth0\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n\
                     enp1s0f0np0\t0000FEA9\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0\n";
        assert_eq!(route(table, Ipv4Addr::new(169, 254, 3, 4)).as_deref(), Some("enp1s0f0np0"));
        assert_eq!(route(table, Ipv4Addr::new(10, 0, 0, 1)).as_deref(), Some("eth0"));
        assert_eq!(route("Iface\nx\ty\n", Ipv4Addr::LOCALHOST), None);
    }
}
