//! The machine as the plan needs it, and the speeds measured on it.

use std::path::Path;

use sparktune_base::regular_file::read_regular;
use sparktune_plan::{Gpu, GpuMemory, MachineFacts, Measured, Rates};
use sparktune_telemetry::disk_free_bytes;

use crate::failure::Failure;
use crate::findings::{Finding, at_a_glance};
use crate::listener::{Listener, Silent};
use crate::probe::{probe, products};
use crate::program::Program;

/// The file of measured speeds, next to the runs.
pub const RATES_FILE: &str = "rates.toml";
/// The most bytes that it has.
const MOST_BYTES: u64 = 1 << 20;

/// This machine.
#[derive(Debug, Clone)]
pub struct MachineFound {
    /// The findings, in display order: GPU, memory, driver, CUDA headers, disk, other users of the GPU.
    pub findings: Vec<Finding>,
    /// The facts for the plan.
    pub facts: MachineFacts,
    /// The speeds measured by earlier runs here.
    pub rates: Rates,
}

/// Examines this machine for runs in `runs_dir`, and probes its GPU if that is useful.
///
/// # Errors
/// The measured speeds cannot be read.
pub fn look_at_machine(program: &Program, runs_dir: &Path) -> Result<MachineFound, Failure> {
    let (facts, rates) = machine_and_rates(program, runs_dir, &Silent)?;
    Ok(MachineFound { findings: glance_at_machine(program, runs_dir), facts, rates })
}

/// Returns the findings about this machine without measuring anything.
pub fn glance_at_machine(program: &Program, runs_dir: &Path) -> Vec<Finding> {
    let facts = sparktune_telemetry::Machine::gather();
    at_a_glance(&facts, program.has_cuda, runs_dir, disk_free_bytes(runs_dir))
}

/// Returns the facts for the plan, with a measurement of the GPU or the CPU if that is useful, and the speeds
/// of earlier runs.
///
/// # Errors
/// The measured speeds cannot be read.
pub fn machine_and_rates(
    program: &Program,
    runs_dir: &Path,
    listener: &dyn Listener,
) -> Result<(MachineFacts, Rates), Failure> {
    let (mut machine, rates) = (machine(program.has_cuda, runs_dir), rates(runs_dir, listener)?);
    if let Ok(path) = program.path() {
        machine.probe = probe(path, &machine, &rates);
        machine.cpu_flops_per_s = products(path, &machine);
    }
    Ok((machine, rates))
}

/// Returns the facts for the plan without probing the GPU.
pub fn machine(has_cuda: bool, runs_dir: &Path) -> MachineFacts {
    let facts = sparktune_telemetry::Machine::gather();
    let gpus: Vec<Gpu> = if has_cuda { facts.gpus.iter().map(gpu).collect() } else { Vec::new() };
    let no_gpu_because = gpus.is_empty().then(|| match (facts.gpus.is_empty(), has_cuda) {
        (true, true) => "no NVIDIA GPU was found".into(),
        (true, false) => "no NVIDIA GPU was found, and this build has no CUDA".into(),
        (false, _) => "this build has no CUDA".into(),
    });
    MachineFacts {
        mem_total_bytes: facts.mem_total_bytes,
        mem_available_bytes: facts.mem_available_bytes,
        cores: facts.cores_usable,
        cpu_flops_per_s: None,
        disk_free_bytes: disk_free_bytes(runs_dir),
        gpus,
        no_gpu_because,
        probe: None,
    }
}

fn gpu(facts: &sparktune_telemetry::GpuFacts) -> Gpu {
    let memory = match facts.mem_total_bytes {
        None => GpuMemory::Unified,
        Some(total_bytes) => {
            GpuMemory::Dedicated { total_bytes, free_bytes: facts.mem_free_bytes.unwrap_or(total_bytes) }
        }
    };
    let capability = facts.compute_capability.as_deref().and_then(|text| text.split_once('.'));
    let capability = capability.and_then(|(major, minor)| major.parse().ok().zip(minor.parse().ok()));
    let name = facts.name.clone().unwrap_or_else(|| format!("GPU {}", facts.index));
    Gpu { name, memory, compute_capability: capability }
}

/// Returns the speeds measured in earlier runs of this folder, and those that the GPU tests measured. An
/// invalid file is ignored with a note, because an estimate is not worth an error.
fn rates(runs_dir: &Path, listener: &dyn Listener) -> Result<Rates, Failure> {
    let path = runs_dir.join(RATES_FILE);
    let text = read_regular(&path, MOST_BYTES)
        .and_then(|bytes| String::from_utf8(bytes).map_err(std::io::Error::other));
    let here = match text {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Rates::default(),
        Err(error) => return Err(Failure::io("read", &path, &error)),
        Ok(text) => Rates::from_toml(&text, &path.display().to_string()).unwrap_or_else(|error| {
            listener.note(&format!("note: measured speeds are ignored: {error}"));
            Rates::default()
        }),
    };
    Ok(Rates { measured: Measured::shipped().clone(), ..here })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pipe_in_place_of_the_measured_speeds_is_an_error_that_nobody_waits_for() {
        let folder = tempfile::tempdir().unwrap();
        assert!(rates(folder.path(), &Silent).is_ok());
        let pipe = folder.path().join(RATES_FILE);
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        let refused = rates(folder.path(), &Silent).unwrap_err().text;
        assert!(refused.contains("it is a pipe") && refused.contains(RATES_FILE), "{refused}");
    }
}
