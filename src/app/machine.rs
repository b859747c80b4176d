//! The machine as the plan needs it, and the speeds measured on it.

use std::io::Write;
use std::path::Path;

use sparktune_base::files::appended_file;
use sparktune_base::regular_file::read_last_lines;
use sparktune_plan::{Gpu, GpuMemory, MachineFacts, Measured, Rate, Rates};
use sparktune_telemetry::disk_free_bytes;

use crate::failure::Failure;
use crate::findings::{Finding, at_a_glance};
use crate::listener::{Listener, Silent};
use crate::probe::{cpu_speed, probe};
use crate::program::Program;

/// The file of measured speeds, next to the runs.
const RATES_FILE: &str = "rates.toml";
/// The most bytes of it that are read: the speeds of about 7,000 runs.
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
        machine.cpu_speed = cpu_speed(path, &machine);
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
        cpu_speed: None,
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

/// Returns the speeds measured in the latest runs of this folder, and those that the GPU tests measured.
/// Invalid entries are ignored with a note, because an estimate is not worth an error.
fn rates(runs_dir: &Path, listener: &dyn Listener) -> Result<Rates, Failure> {
    let path = runs_dir.join(RATES_FILE);
    let bytes = match read_last_lines(&path, MOST_BYTES) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
        read => read.map_err(|error| Failure::io("read", &path, &error))?,
    };
    let text = String::from_utf8_lossy(&bytes);
    let (here, wrong) = Rates::from_toml(&text, &path.display().to_string());
    if let Some(error) = wrong {
        listener.note(&format!("note: some measured speeds are ignored: {error}"));
    }
    Ok(Rates { measured: Measured::shipped().clone(), ..here })
}

/// Adds the speed of a run to those that were measured in this folder.
///
/// # Errors
/// It cannot be written.
pub fn remember_rate(runs_dir: &Path, rate: Rate) -> Result<(), Failure> {
    let text = Rates { rates: vec![rate], ..Rates::default() }.to_toml()?;
    let path = runs_dir.join(RATES_FILE);
    // A single short append, so that two runs that end at the same time do not overwrite each other. It
    // begins a line of its own, because a full disk may have cut off the entry before it.
    // In a folder that others may write to, a link could lead to any file of this user.
    appended_file()
        .open(&path)
        .and_then(|mut file| file.write_all(format!("\n{text}").as_bytes()))
        .map_err(|error| Failure::io("write", &path, &error))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use sparktune_plan::MethodKind;

    use super::*;

    #[test]
    fn whatever_the_file_of_speeds_holds_the_latest_of_them_is_used() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(RATES_FILE);
        let rate = |tokens_per_s| Rate {
            tokens_per_s,
            flops_per_token: 1e9,
            dropout_s_per_token: 0.0,
            model: "tiny".into(),
            device: "cpu-2".into(),
            method: MethodKind::Lora,
        };
        let newest = || {
            let rates = rates(folder.path(), &Silent).unwrap();
            rates.newest("tiny", "cpu-2", MethodKind::Lora).map(|rate| rate.tokens_per_s)
        };
        remember_rate(folder.path(), rate(1.0)).unwrap();
        assert_eq!(newest(), Some(1.0));
        let whole = fs::read(&path).unwrap();
        let thousands = whole.repeat(MOST_BYTES as usize / whole.len() + 1);
        // The disk was full, a few bytes are no text, and thousands of runs have ended since.
        for damage in [&whole[..whole.len() / 2], b"\n[\xff\xfe", &thousands] {
            fs::write(&path, [&whole[..], damage].concat()).unwrap();
            assert_eq!(newest(), Some(1.0));
            remember_rate(folder.path(), rate(2.0)).unwrap();
            assert_eq!(newest(), Some(2.0));
        }
    }

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
