//! Which engine sums the gradients of the ranks: rank 0 says it, in two variables.

use sparktune_app::failure::Failure;
use sparktune_base::escape::escape;
use sparktune_cluster::tcp::Tcp;
use sparktune_cluster::xdp::{self, Choice, Loss};
use sparktune_cluster::{Collective, Error as ClusterError, JobToken, Placement};
use sparktune_plan::Plan;
use sparktune_tui::output::note;

/// The variable that names the engine: `tcp` or `xdp`.
const ENGINE: &str = "SPARKTUNE_CLUSTER_ENGINE";
/// The interfaces at which the kernel of rank 0's machine adds, with commas between them.
const INTERFACES: &str = "SPARKTUNE_XDP_INTERFACES";
/// The packets that this rank loses on purpose, in millionths: for tests/xdp_training.sh.
const LOST: &str = "SPARKTUNE_XDP_LOST";

/// Refuses sums in the network for a swarm: the switch waits for all ranks.
///
/// # Errors
/// Both are asked for.
pub(crate) fn refuse_swarm_in_the_network(plan: &Plan) -> Result<(), Failure> {
    if plan.ranks.swarm && std::env::var_os(ENGINE).is_some_and(|name| name.to_string_lossy().trim() == "xdp")
    {
        return Err(Failure::usage(format!(
            "{ENGINE} is xdp, and the plan says --swarm true, but sums in the network wait for every rank. Unset the variable, or train without --swarm"
        )));
    }
    Ok(())
}

/// Says again which engine sums, when the ranks of a swarm have met again: it is over TCP.
///
/// # Errors
/// A rank is gone.
pub(crate) fn say_again(ranks: &mut dyn Collective) -> Result<(), ClusterError> {
    ranks.broadcast(b"tcp").map(drop)
}

/// Turns ranks that have met into those that sum by the engine of rank 0's choice.
///
/// # Errors
/// Rank 0 names no engine of this program, or a rank is gone.
pub(crate) fn opened(
    mut tcp: Tcp,
    placement: &Placement,
    token: Option<&JobToken>,
) -> Result<Box<dyn Collective>, Failure> {
    let variable = |name: &str| std::env::var_os(name).map(|text| text.to_string_lossy().trim().to_owned());
    let own = variable(ENGINE).filter(|name| !name.is_empty()).unwrap_or_else(|| "tcp".to_owned());
    let named = tcp.broadcast(own.as_bytes())?;
    match named.as_slice() {
        b"tcp" => Ok(Box::new(tcp)),
        b"xdp" => {
            let names = variable(INTERFACES).unwrap_or_default();
            let names = names.split(',').map(str::trim).filter(|name| !name.is_empty());
            let lost = variable(LOST).and_then(|text| text.parse().ok());
            let choice = Choice {
                interfaces: names.map(str::to_owned).collect(),
                loss: lost.map(|per_million| Loss::new(per_million, placement.rank as u64)),
                ..Choice::default()
            };
            let engine = xdp::over(tcp, placement, token, choice)?;
            note(&engine.path().to_string());
            Ok(Box::new(engine))
        }
        other => {
            let name = String::from_utf8_lossy(&other[..other.len().min(100)]).into_owned();
            let what =
                format!("{ENGINE} is \"{}\" at rank 0. Set it to tcp or xdp, or unset it", escape(&name));
            tcp.leave(Some(&what));
            Err(Failure::usage(what))
        }
    }
}
