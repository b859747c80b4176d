//! How many kernels a training step launches, as the emulated device counts them: each takes the host some
//! microseconds, and one of burn's is an unplanned pass over memory. A change of these numbers is a change of
//! the step.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;

use burn::tensor::{Device, DeviceType};
use sparktune_kernels::testing::cuda_device;
use sparktune_model::{Checkpoint, Gradients, Model, PackedSequence};
use sparktune_train::stepper::Stepper;

use super::steps::{SETTINGS, prepared, tiny_config};
use crate::model::random_ids;

/// The variable with the file into which the emulated device writes a line for each launch.
pub(super) const TRACE: &str = "EMULATED_CUDA_TRACE";

/// The launches of our kernels and of burn's: for one row forward and backward, for one more row of the same
/// step, and for the update.
type Step = [[usize; 2]; 3];

/// Returns the command that runs the ignored test with this path, alone in a process.
pub(super) fn alone(path: &str) -> Command {
    let name = path.split_once("::").expect("a path begins with its crate").1;
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([name, "--exact", "--ignored", "--nocapture"]);
    command
}

#[test]
fn a_step_launches_as_many_kernels_on_device_as_it_did() {
    if cuda_device().is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let child =
        alone(concat!(module_path!(), "::counted")).env(TRACE, folder.path().join("trace")).output().unwrap();
    let [stdout, by_name] = [&child.stdout, &child.stderr].map(|text| String::from_utf8_lossy(text));
    assert!(child.status.success(), "{stdout}{by_name}");
    let Some((_, json)) = stdout.split_once("counted: ") else {
        assert!(stdout.contains("skipped: "), "{stdout}");
        eprintln!("skipped: a real device does not tell its launches");
        return;
    };
    let [lora, full]: [Step; 2] = serde_json::from_str(json.lines().next().unwrap()).unwrap();
    // There are four layers, three of them with the delta rule. Of burn's launches twelve pad the gradients
    // of gates, because there are four heads.
    assert_eq!(lora, [[224, 16], [224, 16], [125, 0]], "LoRA: {by_name}");
    assert_eq!(full, [[171, 17], [195, 20], [111, 0]], "full: {by_name}");
}

#[test]
#[ignore = "the test above runs it in a process of its own, whose launches are written down"]
fn counted() {
    let trace = PathBuf::from(std::env::var_os(TRACE).expect("who starts this says where"));
    let device = Device::enumerate(DeviceType::Cuda).into_vec().remove(0);
    let launched = |what: String, work: &mut dyn FnMut()| {
        device.sync().unwrap();
        let seen = names(&trace).len();
        work();
        device.sync().unwrap();
        let new = names(&trace).split_off(seen);
        let mut by_name = BTreeMap::<&str, usize>::new();
        new.iter().for_each(|name| *by_name.entry(name).or_default() += 1);
        eprintln!("{what}: {by_name:#?}");
        let burns = new.iter().filter(|name| is_burns(name)).count();
        [new.len() - burns, burns]
    };
    let steps = [Some(8), None].map(|rank| {
        let model = Model::load(&Checkpoint::random(tiny_config(), 7), &device, &mut |_, _| ()).unwrap();
        let row = PackedSequence::single(&random_ids(1, 72, model.config().vocab_size));
        let mut stepper = Stepper::from_model(prepared(model, rank), SETTINGS, false);
        let mut step = |number: u64| {
            let mut gradients = Gradients::default();
            let rows = [1, 2].map(|place| {
                launched(format!("{rank:?}, step {number}, row {place}"), &mut || {
                    stepper.loss_and_gradients(&row, 0.01, &mut gradients);
                })
            });
            let update = launched(format!("{rank:?}, step {number}, update"), &mut || {
                let gradients = std::mem::take(&mut gradients);
                stepper.update(gradients, 1e-4).unwrap();
            });
            [rows[0], rows[1], update]
        };
        // The first step creates the moments.
        step(1);
        step(2)
    });
    if trace.exists() {
        println!("counted: {}", serde_json::to_string(&steps).unwrap());
    } else {
        println!("skipped: no launch was written down");
    }
}

/// Returns the names of the kernels launched so far.
pub(super) fn names(trace: &std::path::Path) -> Vec<String> {
    let text = std::fs::read_to_string(trace).unwrap_or_default();
    text.lines().map(|line| line.split(' ').next().unwrap_or_default().to_owned()).collect()
}

/// Returns whether burn generated the kernel; such names end in a hash.
pub(super) fn is_burns(name: &str) -> bool {
    name.rsplit_once('_')
        .is_some_and(|(_, end)| end.len() == 8 && end.bytes().all(|byte| byte.is_ascii_hexdigit()))
}
