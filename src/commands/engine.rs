//! Which engine sums the gradients of the ranks: rank 0 says it, in two variables.

use sparktune_app::failure::Failure;
use sparktune_base::escape::escape;
use sparktune_cluster::nccl;
use sparktune_cluster::nccl::preflight::Asked;
use sparktune_cluster::tcp::Tcp;
use sparktune_cluster::xdp::{self, Choice, Loss};
use sparktune_cluster::{Collective, Error as ClusterError, JobToken, Placement};
use sparktune_plan::{CombineRanks, Device, Plan, Sentry};
use sparktune_tui::output::note;

/// The variable that names the engine: `auto`, `tcp`, `nccl` or `xdp`.
const ENGINE: &str = "SPARKTUNE_CLUSTER_ENGINE";
/// The interfaces at which the kernel of rank 0's machine adds, with commas between them.
const INTERFACES: &str = "SPARKTUNE_XDP_INTERFACES";
/// The interface of this rank's machine by which results come, if AF_XDP is to take them there.
const AF_XDP: &str = "SPARKTUNE_AF_XDP_INTERFACE";
/// Whether this rank's GPU rounds gradients for sums in the network: `yes`, `no` or `auto`.
const ARENA: &str = "SPARKTUNE_CLUSTER_ARENA";
/// The packets that this rank loses on purpose, in millionths: for tests/xdp_training.sh.
const LOST: &str = "SPARKTUNE_XDP_LOST";

/// Returns the engine that rank 0 asks for with this plan.
///
/// # Errors
/// What is asked for cannot do what the plan says.
pub(crate) fn asked_for(plan: &Plan) -> Result<String, Failure> {
    let named = variable(ENGINE).filter(|name| !name.is_empty());
    let is_combined = plan.ranks.combine != CombineRanks::Sum;
    let is_judged = plan.ranks.sentry != Sentry::Off || is_combined;
    match named.as_deref() {
        Some("xdp") if plan.ranks.swarm => Err(Failure::usage(format!(
            "{ENGINE} is xdp, and the plan says --swarm true, but sums in the network wait for every rank. Unset the variable, or train without --swarm"
        ))),
        Some(name @ ("nccl" | "xdp")) if is_combined => Err(Failure::usage(format!(
            "{ENGINE} is {name}, and the plan combines gradients in another way than by their sum, but {} only adds. Unset the variable, or train without --combine-ranks",
            if name == "nccl" { "NCCL" } else { "the network" }
        ))),
        Some("nccl") if plan.device != Device::Cuda => Err(Failure::usage(format!(
            "{ENGINE} is nccl, but this run trains on the CPU, and NCCL adds on GPUs. Unset the variable, or train with --device cuda"
        ))),
        Some("auto") if plan.device != Device::Cuda || is_judged => Ok("tcp".into()),
        Some(name) => Ok(name.to_owned()),
        // NCCL protects nothing on the link, and no real GPU has summed by it yet.
        None => Ok("tcp".into()),
    }
}

/// Returns whether this rank's GPU is to round gradients for sums in the network; `None` if that is to be
/// measured.
///
/// # Errors
/// The variable has another value.
pub(crate) fn arena() -> Result<Option<bool>, Failure> {
    match variable(ARENA).as_deref() {
        None | Some("" | "auto") => Ok(None),
        Some("yes") => Ok(Some(true)),
        Some("no") => Ok(Some(false)),
        Some(other) => {
            let other = other.chars().take(100).collect::<String>();
            Err(Failure::usage(format!(
                "{ARENA} is \"{}\". Set it to yes, no or auto, or unset it",
                escape(&other)
            )))
        }
    }
}

fn variable(name: &str) -> Option<String> {
    std::env::var_os(name).map(|text| text.to_string_lossy().trim().to_owned())
}

/// Says again by what sums are made, when the ranks of a swarm have met again.
///
/// # Errors
/// A rank is gone.
pub(crate) fn say_again(ranks: &mut dyn Collective) -> Result<(), ClusterError> {
    ranks.open_again()
}

/// Turns ranks that have met into those that sum by the engine that rank 0 has asked for.
///
/// # Errors
/// Rank 0 names no engine of this program, or a rank is gone.
pub(crate) fn opened(
    mut tcp: Tcp,
    placement: &Placement,
    token: Option<&JobToken>,
    asked: &str,
) -> Result<Box<dyn Collective>, Failure> {
    let named = tcp.broadcast(asked.as_bytes())?;
    match named.as_slice() {
        b"tcp" => Ok(Box::new(tcp)),
        b"auto" | b"nccl" => {
            let asked = if named == b"auto" { Asked::Auto } else { Asked::Nccl };
            let (facts, gpu) = sparktune_train::find_gpu();
            let engine = nccl::over(tcp, asked, facts, gpu)?;
            note(&engine.path().to_string());
            engine.notes().iter().for_each(|line| note(line));
            Ok(Box::new(engine))
        }
        b"xdp" => {
            let names = variable(INTERFACES).unwrap_or_default();
            let names = names.split(',').map(str::trim).filter(|name| !name.is_empty());
            let lost: Option<u32> = variable(LOST).and_then(|text| text.parse().ok());
            if let Some(per_million) = lost {
                note(&format!("{LOST}: of a million packets, {per_million} are lost on purpose"));
            }
            let choice = Choice {
                interfaces: names.map(str::to_owned).collect(),
                af_xdp: variable(AF_XDP).filter(|name| !name.is_empty()),
                loss: lost.map(|per_million| Loss::new(per_million, placement.rank as u64)),
                ..Choice::default()
            };
            let engine = xdp::over(tcp, placement, token, choice)?;
            engine.engine().iter().for_each(|line| note(line));
            Ok(Box::new(engine))
        }
        other => {
            let name = String::from_utf8_lossy(&other[..other.len().min(100)]).into_owned();
            let what = format!(
                "{ENGINE} is \"{}\" at rank 0. Set it to auto, tcp, nccl or xdp, or unset it",
                escape(&name)
            );
            tcp.leave(Some(&what));
            Err(Failure::usage(what))
        }
    }
}
