//! One attempt of a run, from the lease to the last event.

use crate::TrainError;
use crate::batches::Batches;
use crate::draft_vocab;
use crate::evaluate::Evaluation;
use crate::optimizer::Optimizer;
use crate::outputs;
use crate::self_test::BeforeFirstRun;
use crate::session::Session;
use crate::stage::{End, Head, Main, run_stage, trained};
use crate::state::{Stage, State, read_optimizer, read_weights};
use burn::tensor::Device;
use serde::Serialize;
use sparktune_model::{Checkpoint, LoraConfig, Model, Mtp};
use sparktune_plan::{Device as DeviceKind, Method, Mtp as MtpChoice, OptimizerPlan, Plan};
use sparktune_runlog::{Checkpoints, Kind, Outcome, RunDir, RunFinished, RunStarted};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

/// Peak learning rate of the MTP head: a warm start of one layer, whatever the text model was trained with.
const MTP_LEARNING_RATE: f64 = 2e-4;

/// How an attempt ended, for the one who started it.
#[derive(Clone, Debug, Serialize)]
pub struct Finished {
    /// Completed, or stopped: on request, or because memory ran out.
    pub outcome: Outcome,
    /// Optimizer steps of the text model done so far, all attempts together.
    pub steps: u64,
    /// Mean loss per target of the last step, nats.
    pub final_loss: Option<f64>,
    /// Mean loss per target on the held-out examples at the last evaluation, nats.
    pub eval_loss: Option<f64>,
    /// Folders and files written for use.
    pub outputs: Vec<PathBuf>,
}

/// Trains the run of a folder: from the start, or from its newest whole checkpoint.
///
/// Takes the run's lease, writes all events and ends them with `run_finished`, also when it fails. A request in
/// `control/` or `stop` ends it after a checkpoint; so does memory that runs out.
///
/// # Errors
/// [`TrainError`]; the message is in the last event too.
pub fn train(run: &RunDir, stop: &AtomicBool) -> Result<Finished, TrainError> {
    train_with(run, stop, &Surroundings::default())
}

/// What a run finds where it trains.
#[derive(Clone, Debug, Default)]
pub struct Surroundings {
    /// Bytes of memory to be left alone; by the plan's rule if not given.
    pub reserve_bytes: Option<u64>,
    /// What comes before the first run on a CUDA device.
    pub before_first_run: Option<BeforeFirstRun>,
    /// Where the tiles of matrix products on a CUDA device are remembered; not measured without.
    #[cfg(feature = "cuda")]
    pub tiles: Option<crate::TileFile>,
}

/// As [`train`], with these surroundings.
///
/// # Errors
/// As [`train`].
pub fn train_with(
    run: &RunDir,
    stop: &AtomicBool,
    surroundings: &Surroundings,
) -> Result<Finished, TrainError> {
    let mut session = Session::open(run, stop, surroundings.reserve_bytes)?;
    let mut state = State::start();
    let number = session.events.attempt();
    let mut result = caught(run, number, || attempt(&mut session, &mut state, surroundings));
    // Whatever ended the attempt, a checkpoint that is being written is finished and told of before the end is.
    if let Err(error) = caught(run, number, || session.saved())
        && result.is_ok()
    {
        result = Err(error);
    }
    let (outcome, reason, written) = match &result {
        Ok(Ending::Completed(outputs)) => (Outcome::Completed, None, outputs.clone()),
        Ok(Ending::Stopped(because)) => (Outcome::Stopped, because.clone(), Vec::new()),
        Err(error) => (Outcome::Failed, Some(error.to_string()), Vec::new()),
    };
    let finished = Finished {
        outcome,
        steps: state.main_steps,
        final_loss: state.last_loss(),
        eval_loss: state.last_eval(),
        outputs: written,
    };
    let relative =
        |path: &PathBuf| path.strip_prefix(run.path()).unwrap_or(path).to_string_lossy().into_owned();
    session.events.emit(Kind::RunFinished(RunFinished {
        outcome,
        reason,
        step: finished.steps,
        final_loss_nats: finished.final_loss,
        eval_loss_nats: finished.eval_loss,
        mem_peak_bytes: session.peak_bytes(),
        mem_predicted_bytes: session.plan.predicted_bytes(),
        outputs: finished.outputs.iter().map(relative).collect(),
    }));
    result.map(|_| finished)
}

/// How an attempt ended that nothing went wrong in.
enum Ending {
    /// With these outputs.
    Completed(Vec<PathBuf>),
    /// After a checkpoint, for this reason; none where somebody asked for it.
    Stopped(Option<String>),
}

/// A failure of the GPU, which its runtime reports by a panic, as an error in words. Any other panic goes on: it is a bug.
fn caught<T>(
    run: &RunDir,
    number: u32,
    attempt: impl FnOnce() -> Result<T, TrainError>,
) -> Result<T, TrainError> {
    catch_unwind(AssertUnwindSafe(attempt)).unwrap_or_else(|payload| {
        let message = payload.downcast_ref::<String>().map(String::as_str);
        let message = message.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or_default();
        // What the thread of the device said first is the cause; what reached this one is often only that it is gone.
        let what = sparktune_telemetry::heard().or_else(|| sparktune_telemetry::device_failure(message));
        match what {
            Some(what) => Err(TrainError::Device { what, details: run.crash_report(number) }),
            None => resume_unwind(payload),
        }
    })
}

/// The device of a plan.
pub(crate) fn device(plan: &Plan) -> Result<Device, TrainError> {
    match plan.device {
        DeviceKind::Cpu => Ok(Device::flex()),
        #[cfg(feature = "cuda")]
        DeviceKind::Cuda => Device::enumerate(burn::tensor::DeviceType::Cuda)
            .into_vec()
            .into_iter()
            .next()
            .ok_or_else(|| TrainError::NoDevice("no CUDA device answers".into())),
        #[cfg(not(feature = "cuda"))]
        DeviceKind::Cuda => Err(TrainError::NoDevice("this build has no CUDA".into())),
    }
}

/// The plan's base checkpoint.
pub(crate) fn base(plan: &Plan) -> Result<Checkpoint, TrainError> {
    let folder = plan.model.path.as_ref().ok_or(TrainError::NoModelFolder)?;
    Ok(Checkpoint::open_with(folder, &plan.model.config_options())?)
}

/// The plan's adapters, if it trains adapters.
pub(crate) fn lora(plan: &Plan) -> Option<LoraConfig> {
    match plan.method {
        Method::Lora { rank, alpha, rslora } => Some(LoraConfig { rank: rank as usize, alpha, rslora }),
        Method::Full => None,
    }
}

/// The base model, made ready for training as the plan says.
pub(crate) fn fresh_model(
    plan: &Plan,
    base: &Checkpoint,
    device: &Device,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Model, TrainError> {
    let mut model = Model::load(base, device, progress)?;
    match lora(plan) {
        Some(config) => model.attach_lora(config, plan.seed),
        None => model.set_trainable(true),
    }
    Ok(model)
}

/// Puts the weights of a checkpoint into the model, and into the head where the checkpoint is one of its stage.
pub(crate) fn restore(
    folder: &Path,
    state: &State,
    model: &mut Model,
    head: Option<&mut Mtp>,
) -> Result<(), TrainError> {
    let mut head = head.filter(|_| state.stage == Stage::Mtp);
    let mut expected = trained(model).len();
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

fn attempt(
    session: &mut Session,
    state: &mut State,
    surroundings: &Surroundings,
) -> Result<Ending, TrainError> {
    let mut checkpoints = Checkpoints::new(session.run);
    checkpoints.clean(&session.lease)?;
    let found = checkpoints.newest_valid()?;
    let plan = session.plan.clone();
    let resumed = found.checkpoint.clone();
    if let Some(checkpoint) = &resumed {
        *state = State::read(&checkpoint.path)?;
    }
    let base = base(&plan)?;
    let vocabulary = base.config().vocab_size;
    let data = session.run.data();
    let tokens = data.join("train.qubgpu");
    let mut batches =
        Batches::new(&tokens, &plan, plan.duration.epochs, plan.duration.max_steps, vocabulary)?;
    session.events.emit(Kind::RunStarted(RunStarted {
        sparktune: env!("CARGO_PKG_VERSION").into(),
        model: plan.model.id.clone(),
        method: plan.method.kind().to_string(),
        device: session.device_in_words(),
        total_steps: Some(batches.total_steps()),
        epochs: Some(f64::from(plan.duration.epochs)),
        resumed_from_step: resumed.as_ref().map(|checkpoint| checkpoint.step.min(state.main_steps)),
    }));
    for skipped in &found.skipped {
        let (name, damage) = (skipped.path.display(), &skipped.damage);
        session.warn(format!("the checkpoint {name} is damaged and was passed over: {damage}"), None);
    }
    checkpoints.set_aside(&found.skipped, &session.lease)?;

    for name in ["train.qubgpu", "eval.qubgpu"] {
        check_tokens(&data.join(name))?;
    }
    let device = device(&plan)?;
    if let (DeviceKind::Cuda, Some(tests)) = (plan.device, &surroundings.before_first_run) {
        tests.run(session, &device)?;
    }
    #[cfg(feature = "cuda")]
    if let (DeviceKind::Cuda, Some(tiles)) = (plan.device, &surroundings.tiles) {
        session.tiles = tiles.read(session).then(|| tiles.clone());
    }
    session.phase("load", format!("reading the weights of {}", plan.model.id));
    let mut model = fresh_model(&plan, &base, &device, &mut |done, total| {
        session.progress("load", done as u64, total as u64, "layers");
    })?;
    let head = match plan.mtp {
        MtpChoice::None => None,
        _ if base.has_mtp() => Some(Mtp::load(&base, &device)?),
        _ => None,
    };
    let held_out = data.join("eval.qubgpu");
    let evaluation = Evaluation::open(&plan, &held_out, base.dir(), vocabulary, &mut |warning| {
        session.warn(warning, None);
    })?;

    if plan.mtp != MtpChoice::None && head.is_none() && base.config().mtp_num_hidden_layers > 0 {
        session.warn(
            "config.json declares an MTP head, but the weights hold none (transformers drops it when it saves): going on without",
            None,
        );
    }
    let mut optimizer = Optimizer::default();
    let untrained_head = head.clone();
    let mut head = head;
    if let Some(checkpoint) = &resumed {
        restore(&checkpoint.path, state, &mut model, head.as_mut())?;
        optimizer = read_optimizer(&checkpoint.path, &device)?;
    }

    let mut main = Main { model, recompute: plan.recompute, fp8: plan.fp8 };
    if !state.main_done {
        session.phase("train", format!("{} optimizer steps", batches.total_steps()));
        let end = run_stage(
            session,
            &mut main,
            state,
            &mut optimizer,
            &mut batches,
            &plan.optimizer,
            evaluation.as_ref(),
        )?;
        if let End::Stopped { because } = end {
            return Ok(Ending::Stopped(because));
        }
    }

    let names: Vec<String> = trained(&main.model).iter().map(|param| param.name().to_owned()).collect();
    if let (MtpChoice::Trained, Some(mut mtp)) = (plan.mtp, head.take()) {
        mtp.set_trainable(true);
        if state.stage == Stage::Main {
            state.stage = Stage::Mtp;
            state.step = 0;
            state.evals_without_gain = 0;
            optimizer = Optimizer::default();
        }
        let mut subject = Head { mtp, trunk: main.model.frozen(), trained: names.clone() };
        // One epoch: the head starts from the base's.
        let rows = plan.for_head();
        let mut batches = Batches::new(&tokens, &rows, 1, plan.duration.max_steps, vocabulary)?;
        let (steps, length) = (batches.total_steps(), rows.pack.length);
        session.phase("mtp", format!("training the MTP head, {steps} steps in rows of {length} tokens"));
        let settings = OptimizerPlan { learning_rate: MTP_LEARNING_RATE, ..plan.optimizer };
        let end = run_stage(session, &mut subject, state, &mut optimizer, &mut batches, &settings, None)?;
        if let End::Stopped { because } = end {
            return Ok(Ending::Stopped(because));
        }
        if let Some(evaluation) = &evaluation {
            evaluation.loss(session, &subject, state.checkpoint_step())?;
        }
        subject.mtp.set_trainable(false);
        head = Some(subject.mtp);
    } else {
        head = untrained_head.clone();
    }
    drop(optimizer);

    session.phase("export", "writing adapter and merged model");
    let before = if plan.mtp == MtpChoice::Trained { untrained_head } else { None };
    let among = draft_vocab::of_run(&plan, &tokens, &base)?;
    let written = outputs::write(
        &session.run.outputs(),
        &plan,
        &base,
        &mut main.model,
        outputs::Heads { before, last: head, among },
        evaluation.as_ref(),
        &mut |line| session.phase("export", line),
    )?;
    for warning in written.warnings {
        session.warn(warning, None);
    }
    Ok(Ending::Completed(written.paths))
}

/// Looks at every checksum of a token file, so that damage does not wait for the step that meets it.
fn check_tokens(path: &Path) -> Result<(), TrainError> {
    if !path.exists() {
        return Ok(());
    }
    let report = sparktune_data::token_file::verify(path)?;
    match report.defects.first() {
        None => Ok(()),
        Some(defect) => Err(TrainError::DamagedTokens { path: path.to_owned(), defect: defect.to_string() }),
    }
}
