//! Loads what a plan needs: its device, its base model, and the weights of a checkpoint.

use std::path::Path;

use burn::tensor::Device;
use sparktune_model::{Checkpoint, LoraConfig, Model, Mtp};
use sparktune_plan::{Device as DeviceKind, Method, Mtp as MtpChoice, Plan};
use sparktune_runlog::{Models, RunDir};

use crate::cuda;
use crate::error::TrainError;
use crate::objective::trained_parameters;
use crate::state::{Stage, State, read_weights};

/// Opens the device of a plan.
///
/// # Errors
/// When the plan wants CUDA and there is none.
pub(crate) fn device(plan: &Plan) -> Result<Device, TrainError> {
    match plan.device {
        DeviceKind::Cpu => Ok(Device::flex()),
        DeviceKind::Cuda => cuda::first_device(),
    }
}

/// Opens the base model of a run with this plan, where this machine has it.
///
/// # Errors
/// The same as for [`base`].
pub(crate) fn base_of_run(run: &RunDir, plan: &Plan) -> Result<Checkpoint, TrainError> {
    let mut plan = plan.clone();
    if let Some(Models { base, head }) = run.models() {
        plan.move_models(base, head);
    }
    base(&plan)
}

/// Opens the base model of a plan.
///
/// # Errors
/// When the plan names no folder, or the folder holds no model that can be trained.
pub(crate) fn base(plan: &Plan) -> Result<Checkpoint, TrainError> {
    let folder = plan.model.path.as_ref().ok_or(TrainError::NoModelFolder)?;
    let base = Checkpoint::open_with(folder, &plan.model.config_options())?;
    Ok(match &plan.model.mtp_path {
        Some(folder) => base.with_head_of(folder)?,
        None => base,
    })
}

/// Returns the adapters of a plan, if it trains adapters.
pub(crate) fn lora(plan: &Plan) -> Option<LoraConfig> {
    match plan.method {
        Method::Lora { rank, alpha, rslora, clipped, target_modules: targets, dropout } => {
            Some(LoraConfig { rank: rank as usize, alpha, rslora, clipped, targets, dropout })
        }
        Method::Full | Method::Head => None,
    }
}

/// Loads the text model of the base and makes the parameters trainable that the plan trains. A plan for
/// adapters goes on from the one in the folder `adapter`, or gets new ones. `progress(done, total)` is called
/// after each layer.
///
/// # Errors
/// When the base does not match its config, or the adapter does not fit the base.
pub(crate) fn text_model(
    plan: &Plan,
    base: &Checkpoint,
    adapter: Option<&Path>,
    device: &Device,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Model, TrainError> {
    let mut model = Model::load(base, device, progress)?;
    match (lora(plan), adapter) {
        (Some(_), Some(adapter)) => {
            model.load_lora(adapter)?;
        }
        (Some(config), None) => model.attach_lora(config, plan.seed),
        (None, _) => model.set_trainable(plan.method == Method::Full),
    }
    Ok(model)
}

/// Loads the MTP head of the base, if there is one and the plan keeps it.
///
/// # Errors
/// When the base does not match its config.
pub(crate) fn mtp_head(plan: &Plan, base: &Checkpoint, device: &Device) -> Result<Option<Mtp>, TrainError> {
    let is_wanted = plan.mtp != MtpChoice::None && base.has_mtp();
    Ok(if is_wanted { Some(Mtp::load(base, device)?) } else { None })
}

/// Reads the weights of a checkpoint into the text model, and into the head if the checkpoint belongs to the
/// head's stage.
///
/// # Errors
/// When the checkpoint does not contain exactly the trained parameters.
pub(crate) fn restore(
    folder: &Path,
    state: &State,
    model: &mut Model,
    head: Option<&mut Mtp>,
) -> Result<(), TrainError> {
    let mut head = head.filter(|_| state.stage == Stage::Mtp);
    let mut expected = trained_parameters(model).len();
    if let Some(mtp) = &head {
        mtp.visit(&mut |_| expected += 1);
    }
    read_weights(folder, expected, &mut |f| {
        model.visit_mut(f);
        if let Some(mtp) = &mut head {
            mtp.visit_mut(f);
        }
    })
}
