//! Measures the machine for the estimates of a plan, once per process, in a separate one.
//!
//! Two rates of a GPU take two seconds, and are measured only if there is a measurement to compare with: a
//! failing GPU ends its process. Two of a CPU take half a second: this process has no kernels.

use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use sparktune_plan::{CpuSpeed, MachineFacts, Probe, Rates};

/// The time limit, which suffices for the first probe of a build, which also compiles the kernels.
const TIME_LIMIT: Duration = Duration::from_secs(30);

/// Returns the speed of all usable cores, measured by the program at `program`, or `None` if there is a GPU
/// or the measurement failed.
pub(crate) fn cpu_speed(program: &Path, machine: &MachineFacts) -> Option<CpuSpeed> {
    static FOUND: OnceLock<Option<CpuSpeed>> = OnceLock::new();
    let measured = || measure(Command::new(program).args(["bench", "cpu-speed"]), TIME_LIMIT);
    let is_of_use = machine.gpus.is_empty();
    if is_of_use { *FOUND.get_or_init(measured) } else { None }
}

/// Returns two rates of the first GPU, measured by the program at `program`. Returns `None` if there is no
/// GPU, no measurement that the rates would scale, or the measurement failed.
pub(crate) fn probe(program: &Path, machine: &MachineFacts, rates: &Rates) -> Option<Probe> {
    static FOUND: OnceLock<Option<Probe>> = OnceLock::new();
    let is_of_use =
        !machine.gpus.is_empty() && rates.measured.machines.iter().any(|machine| machine.probe.is_some());
    let measured = || measure(Command::new(program).args(["bench", "--gpu", "probe"]), TIME_LIMIT);
    if is_of_use { *FOUND.get_or_init(measured) } else { None }
}

/// Runs the program for at most `limit`, and reads the last line of what it prints.
fn measure<T: DeserializeOwned>(program: &mut Command, limit: Duration) -> Option<T> {
    program.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = program.spawn().ok()?;
    let ends = Instant::now() + limit;
    let done = loop {
        match child.try_wait() {
            Ok(None) if Instant::now() < ends => std::thread::sleep(Duration::from_millis(20)),
            Ok(Some(status)) => break status.success(),
            _ => break false,
        }
    };
    if !done {
        // It failed, or hangs in the driver. A process that hangs there may never be reaped, so this does not
        // wait for it.
        let _ = child.kill();
        let _ = child.try_wait();
        return None;
    }
    let mut output = String::new();
    child.stdout.take()?.read_to_string(&mut output).ok()?;
    serde_json::from_str(output.lines().last()?).ok()
}

#[cfg(test)]
mod tests {
    use sparktune_plan::{Gpu, GpuMemory};

    use super::*;

    fn measured(script: &str, limit: Duration) -> Option<Probe> {
        let mut shell = Command::new("sh");
        shell.args(["-c", script]);
        measure(&mut shell, limit)
    }

    #[test]
    fn the_last_line_of_the_process_is_read_and_a_process_that_fails_gives_no_rates() {
        const OUTPUT: &str = "echo a row; echo '{\"bf16_tflops\":1.5,\"copy_gb_per_s\":2.0}'";
        let long = Duration::from_secs(60);
        let probe = Probe { bf16_tflops: 1.5, copy_gb_per_s: 2.0 };
        assert_eq!(measured(OUTPUT, long), Some(probe));
        assert_eq!(measured(&format!("{OUTPUT}; kill -SEGV $$"), long), None);
        assert_eq!(measured("echo no device answers; exit 77", long), None);
        assert_eq!(measured("echo nonsense", long), None);
    }

    #[test]
    fn a_process_that_hangs_is_not_waited_for() {
        let began = Instant::now();
        assert_eq!(measured("exec sleep 600", Duration::from_millis(50)), None);
        assert!(began.elapsed() < Duration::from_secs(300));
    }

    #[test]
    fn what_nothing_would_use_is_not_measured() {
        assert_eq!(probe(Path::new("/nonexistent"), &MachineFacts::default(), &Rates::default()), None);
        let gpu = Gpu { name: "any".into(), memory: GpuMemory::Unified, compute_capability: None };
        let machine = MachineFacts { gpus: vec![gpu], ..MachineFacts::default() };
        assert_eq!(cpu_speed(Path::new("/nonexistent"), &machine), None);
    }
}
