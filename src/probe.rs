//! What the GPU does now: two seconds of measuring by a process of its own, for a GPU that fails takes its process with it.
//!
//! Asked for only where there is something to hold it against, and once in the life of the program.

use std::io::Read;
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use sparktune_plan::{MachineFacts, Probe, Rates};

use crate::launch::program;

/// The first time the kernels are compiled too.
const LIMIT: Duration = Duration::from_secs(30);

/// Two rates of the first GPU; `None` where there is no GPU, nothing was measured that they would scale, or it failed.
pub fn probe(machine: &MachineFacts, rates: &Rates) -> Option<Probe> {
    static FOUND: OnceLock<Option<Probe>> = OnceLock::new();
    let is_of_use =
        !machine.gpus.is_empty() && rates.measured.machines.iter().any(|machine| machine.probe.is_some());
    if is_of_use { *FOUND.get_or_init(|| ask(Command::new(program().ok()?), LIMIT)) } else { None }
}

/// Runs `program bench --gpu probe`, for `limit` at most.
fn ask(mut program: Command, limit: Duration) -> Option<Probe> {
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
        // Ended already, or hung in the driver: nobody waits longer for it than this.
        let _ = child.kill();
        let _ = child.try_wait();
        return None;
    }
    let mut said = String::new();
    child.stdout.take()?.read_to_string(&mut said).ok()?;
    serde_json::from_str(said.lines().last()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(script: &str, limit: Duration) -> Option<Probe> {
        let mut shell = Command::new("sh");
        shell.args(["-c", script, "sh"]);
        ask(shell, limit)
    }

    #[test]
    fn what_the_process_says_last_is_taken_and_what_it_dies_of_is_nobodys_trouble() {
        const SAID: &str = "echo a row; echo '{\"bf16_tflops\":1.5,\"copy_gb_per_s\":2.0}'";
        let long = Duration::from_secs(60);
        let probe = Probe { bf16_tflops: 1.5, copy_gb_per_s: 2.0 };
        assert_eq!(asked(&format!("test \"$*\" = 'bench --gpu probe' && {{ {SAID}; }}"), long), Some(probe));
        assert_eq!(asked(&format!("{SAID}; kill -SEGV $$"), long), None);
        assert_eq!(asked("echo no device answers; exit 77", long), None);
        assert_eq!(asked("echo nonsense", long), None);
    }

    #[test]
    fn a_process_that_hangs_is_not_waited_for() {
        let began = Instant::now();
        assert_eq!(asked("exec sleep 600", Duration::from_millis(50)), None);
        assert!(began.elapsed() < Duration::from_secs(300));
    }

    #[test]
    fn without_a_gpu_or_anything_to_scale_no_process_is_started() {
        assert_eq!(probe(&MachineFacts::default(), &Rates::default()), None);
    }
}
