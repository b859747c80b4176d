//! Other work on the device that a run is about to train on.

use sparktune_base::program_name;
use sparktune_plan::{Device, Plan};
use sparktune_runlog::{Lease, RunDir, RunsRoot};
use sparktune_telemetry::Machine;

/// Returns a warning if something else uses this machine's device: another run of the same folder that is
/// training there now, or another process that computes on the GPU.
pub(crate) fn warning(run: &RunDir, device: Device) -> Option<String> {
    let who = other_run(run, device).or_else(|| other_process(device))?;
    Some(format!(
        "{who} uses the same device ({device}), so both are slower, and memory may run out. Stop one of the two; `{program} resume` continues a run later",
        program = program_name()
    ))
}

fn other_run(run: &RunDir, device: Device) -> Option<String> {
    let host = Lease::holder_of(run).host;
    let runs = RunsRoot::new(run.path().parent()?).list().ok()?;
    let is_training_here = |other: &RunDir| {
        other.name() != run.name()
            && Lease::is_held(other).unwrap_or(false)
            && Lease::holder_of(other).host == host
            && device_of(other) == Some(device)
    };
    Some(format!("the run {}", runs.iter().find(|other| is_training_here(other))?.name()))
}

fn device_of(run: &RunDir) -> Option<Device> {
    Some(Plan::from_toml(&run.read_plan().ok()?, "plan.toml").ok()?.device)
}

fn other_process(device: Device) -> Option<String> {
    if device != Device::Cuda {
        return None;
    }
    let users = Machine::gather().gpus.into_iter().next()?.users?;
    let user = users.into_iter().find(|user| user.computes)?;
    Some(format!("process {} ({})", user.pid, user.name.as_deref().unwrap_or("of another user")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(device: &str) -> String {
        format!(
            r#"
seed = 3
device = "{device}"
recompute = false
mtp = "none"
runs_dir = "runs"
model = {{ id = "m" }}
data = {{ train = ["x.jsonl"], eval_fraction = 0.1, format = "auto", think = "skip", max_example_tokens = 4096, max_rejected = 0.01, crc_drop = 0.0 }}
method = {{ kind = "full" }}
pack = {{ length = 64, strategy = "bfd" }}
batch = {{ micro_batch_packs = 1, grad_accum_steps = 2 }}
optimizer = {{ learning_rate = 5e-3, min_lr_ratio = 0.1, warmup_ratio = 0.1, beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0.01, clip_norm = 1.0 }}
duration = {{ epochs = 2 }}
checkpoint = {{ save_steps = 4, save_minutes = 60, keep = 2 }}
eval = {{ every_steps = 6, sample_count = 1, sample_max_tokens = 4 }}
"#
        )
    }

    #[test]
    fn only_a_run_that_trains_on_the_same_device_now_is_a_neighbour() {
        let root = tempfile::tempdir().unwrap();
        let runs = RunsRoot::new(root.path());
        let run = |device: &str| {
            let run = runs.create("m", "lora").unwrap();
            run.write_plan(&plan(device)).unwrap();
            run
        };
        let (mine, theirs, on_gpu) = (run("cpu"), run("cpu"), run("cuda"));
        let _lease = Lease::acquire(&mine).unwrap();
        let _on_gpu = Lease::acquire(&on_gpu).unwrap();
        assert_eq!(warning(&mine, Device::Cpu), None, "the other one is on the GPU, or does not run");
        let held = Lease::acquire(&theirs).unwrap();
        let said = warning(&mine, Device::Cpu).unwrap();
        assert!(said.contains(&theirs.name()) && said.contains("Stop one of the two"), "{said}");
        drop(held);
        assert_eq!(warning(&mine, Device::Cpu), None, "it has ended");
    }
}
