//! The ConnectX-7 of a DGX Spark. It hangs on the processor by two halves, each with its own device for RDMA
//! and half of the bandwidth of one cable.

use std::path::Path;

use super::line::{Line, Verdict};
use super::sysfs::{names, text};

/// The two halves of the first port.
pub const HALVES: [&str; 2] = ["rocep1s0f0", "roceP2p1s0f0"];
/// What the line about the MTU of its halves is called.
pub(super) const MTU: &str = "MTU";
/// The MTU of links between two machines.
const JUMBO: u32 = 9000;

struct Half {
    name: &'static str,
    /// Whether the kernel has the device.
    is_there: bool,
    state: Option<String>,
    rate: Option<String>,
    interfaces: Vec<(String, Option<u32>)>,
    /// Kinds of the addresses that hold an IPv4 address; `None` if they cannot be read.
    gids: Option<Vec<String>>,
}

impl Half {
    fn read(root: &Path, name: &'static str) -> Self {
        let at = root.join("sys/class/infiniband").join(name);
        let port = at.join("ports/1");
        let net = at.join("device/net");
        let mtu =
            |interface: &String| text(&net.join(interface).join("mtu")).and_then(|mtu| mtu.parse().ok());
        let interfaces = names(&net).into_iter().map(|name| (name.clone(), mtu(&name))).collect();
        let indices = names(&port.join("gids"));
        let of_v4 = |index: &String| {
            let gid = text(&port.join("gids").join(index))?;
            gid.starts_with("0000:0000:0000:0000:0000:ffff:").then_some(())?;
            text(&port.join("gid_attrs/types").join(index))
        };
        let gids = (!indices.is_empty()).then(|| indices.iter().filter_map(of_v4).collect());
        let [state, rate] = ["state", "rate"].map(|file| text(&port.join(file)));
        Self { name, is_there: at.exists(), state, rate, interfaces, gids }
    }
}

/// Returns the lines about the card.
pub(super) fn examine(root: &Path, get: &dyn Fn(&str) -> Option<String>) -> Vec<Line> {
    let halves = HALVES.map(|name| Half::read(root, name));
    let product = text(&root.join("sys/class/dmi/id/product_name")).unwrap_or_default();
    if !product.contains("Spark") && halves.iter().all(|half| !half.is_there) {
        let why = "this is no DGX Spark; the ranks use TCP on any network";
        return ["network card", MTU, "GID"].map(|what| Line::new(what, Verdict::Skipped, why)).into();
    }
    vec![card(&halves, get), mtu(&halves), gid(&halves, get)]
}

fn card(halves: &[Half; 2], get: &dyn Fn(&str) -> Option<String>) -> Line {
    const WHAT: &str = "network card";
    let (mut problems, mut unknown) = (Vec::new(), Vec::new());
    for half in halves {
        match &half.state {
            _ if !half.is_there => problems.push(format!("{} is missing", half.name)),
            None => unknown.push(half.name),
            Some(state) if !state.contains("ACTIVE") => {
                problems.push(format!("{} has no link ({state})", half.name));
            }
            Some(_) => {}
        }
    }
    if !problems.is_empty() {
        let advice = "Without one half, NCCL has half of the bandwidth or less. Look whether `ibdev2netdev` shows both, push the cable in until it clicks, use the same port on both machines, and give both interfaces an address in netplan";
        return Line::new(WHAT, Verdict::Problem, problems.join("; ")).advice(advice);
    }
    if !unknown.is_empty() {
        let found = format!("the state of {} cannot be read", unknown.join(" and "));
        return Line::new(WHAT, Verdict::Unknown, found);
    }
    let rate = |half: &Half| half.rate.clone().unwrap_or_else(|| "of unknown rate".into());
    let found =
        format!("both halves are active: {}, {} ({})", halves[0].name, halves[1].name, rate(&halves[0]));
    match get("NCCL_IB_HCA").filter(|set| !HALVES.iter().all(|name| set.contains(name))) {
        Some(_) => Line::new(WHAT, Verdict::Note, found).advice(format!(
            "NCCL_IB_HCA does not name both halves, so NCCL would use one. Unset it, or set it to {}",
            HALVES.join(",")
        )),
        None => Line::new(WHAT, Verdict::Ok, found),
    }
}

fn mtu(halves: &[Half; 2]) -> Line {
    let all: Vec<&(String, Option<u32>)> = halves.iter().flat_map(|half| &half.interfaces).collect();
    let known: Vec<(&str, u32)> =
        all.iter().filter_map(|(name, mtu)| Some((name.as_str(), (*mtu)?))).collect();
    let in_words = |known: &[(&str, u32)]| {
        known.iter().map(|(name, mtu)| format!("{name} has {mtu}")).collect::<Vec<_>>().join("; ")
    };
    let small: Vec<(&str, u32)> = known.iter().copied().filter(|(_, mtu)| *mtu < JUMBO).collect();
    if !small.is_empty() {
        let set: Vec<_> =
            small.iter().map(|(name, _)| format!("`sudo ip link set dev {name} mtu {JUMBO}`")).collect();
        return Line::new(MTU, Verdict::Problem, in_words(&small)).advice(format!(
            "Different MTUs on two machines make NCCL fail with error 12. On both: {}, and `mtu: {JUMBO}` in netplan, because a restart of the card's firmware puts it back to 1500",
            set.join(", ")
        ));
    }
    if all.len() < halves.len() || known.len() < all.len() {
        return Line::new(MTU, Verdict::Unknown, "not every half has an interface that says its MTU");
    }
    let is_one = known.iter().all(|(_, mtu)| *mtu == known[0].1);
    let found = if is_one { format!("{} on both halves", known[0].1) } else { in_words(&known) };
    Line::new(MTU, Verdict::Ok, found)
}

fn gid(halves: &[Half; 2], get: &dyn Fn(&str) -> Option<String>) -> Line {
    let known: Vec<_> = halves.iter().filter_map(|half| Some((half.name, half.gids.as_ref()?))).collect();
    if known.len() < halves.len() {
        return Line::new("GID", Verdict::Unknown, "the card's addresses for RDMA cannot be read");
    }
    let has_none = |(_, kinds): &&(&str, &Vec<String>)| !kinds.iter().any(|kind| kind.contains("v2"));
    let without: Vec<_> = known.iter().filter(has_none).map(|(name, _)| *name).collect();
    if !without.is_empty() {
        let found = format!("{} has no RoCE v2 address with an IPv4 address", without.join(" and "));
        return Line::new("GID", Verdict::Problem, found)
            .advice("Give the interfaces of both halves an IPv4 address in netplan (link-local is enough)");
    }
    let found = "both halves have a RoCE v2 address with an IPv4 address";
    match get("NCCL_IB_GID_INDEX") {
        Some(_) => Line::new("GID", Verdict::Note, found).advice(
            "NCCL_IB_GID_INDEX is set. Unset it: the number changes with every address that comes or goes, and NCCL finds it itself",
        ),
        None => Line::new("GID", Verdict::Ok, found),
    }
}
