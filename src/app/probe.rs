//! Measures two rates of the GPU in two seconds, in a separate process, because a failing GPU ends its
//! process.
//!
//! This happens only if there is a measurement to compare with, and once per process.

use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use sparktune_plan::{MachineFacts, Probe, Rates};

/// The time limit, which suffices for the first probe of a build, which also compiles the kernels.
const TIME_LIMIT: Duration = Duration::from_secs(30);

/// Returns two rates of the first GPU, measured by the program at `program`. Returns `None` if there is no
/// GPU, no measurement that the rates would scale, or the measurement failed.
pub(crate) fn probe(program: &Path, machine: &MachineFacts, rates: &Rates) -> Option<Probe> {
    static FOUND: OnceLock<Option<Probe>> = OnceLock::new();
    let is_of_use =
        !machine.gpus.is_empty() && rates.measured.machines.iter().any(|machine| machine.probe.is_some());
    if is_of_use { *FOUND.get_or_init(|| measure(Command::new(program), TIME_LIMIT)) } else { None }
}

/// Runs `program bench --gpu probe` for at most `limit`.
fn measure(mut program: Command, limit: Duration) -> Option<Probe> {
    program
        .args(["bench", "--gpu", "probe"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
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
    use super::*;

    fn measured(script: &str, limit: Duration) -> Option<Probe> {
        let mut shell = Command::new("sh");
        shell.args(["-c", script, "sh"]);
        measure(shell, limit)
    }

    #[test]
    fn the_last_line_of_the_process_is_read_and_a_process_that_fails_gives_no_rates() {
        const OUTPUT: &str = "echo a row; echo '{\"bf16_tflops\":1.5,\"copy_gb_per_s\":2.0}'";
        let long = Duration::from_secs(60);
        let probe = Probe { bf16_tflops: 1.5, copy_gb_per_s: 2.0 };
        assert_eq!(
            measured(&format!("test \"$*\" = 'bench --gpu probe' && {{ {OUTPUT}; }}"), long),
            Some(probe)
        );
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
    fn without_a_gpu_or_anything_to_scale_no_process_is_started() {
        assert_eq!(probe(Path::new("/nonexistent"), &MachineFacts::default(), &Rates::default()), None);
    }
}
