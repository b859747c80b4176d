//! One attempt of a run: continues from the newest checkpoint, trains the text model and the MTP head, and
//! writes the outputs.
//!
//! The finished text model is written before the head is trained, so that it can be served whatever happens
//! to the head.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::time::Duration;

use burn::tensor::Device;
use sparktune_base::units::counted;
use sparktune_cluster::{Collective, SummedBy};
use sparktune_model::{Checkpoint as Base, Model, ModelError, Mtp};
use sparktune_plan::{Device as DeviceKind, HeadPlan, Mtp as MtpChoice, Plan, SyncPlan};
use sparktune_runlog::{Checkpoint, Checkpoints, Kind, RunDir, RunStarted, Skipped};

use crate::batches::Batches;
use crate::cuda::{quantiser, shared_memory_works};
use crate::diloco::Diloco;
use crate::dropout::Dropout;
use crate::error::TrainError;
use crate::evaluate::EvalSet;
use crate::examples::{Examples, eval_tokens, train_tokens};
use crate::health::Given;
use crate::objective::{DraftHead, DraftedTokens, Objective, TextModel, Trainee};
use crate::optimizer::Optimizer;
use crate::options::TrainOptions;
use crate::outputs::{Export, Heads};
use crate::products::{Allowed, Library};
use crate::session::Session;
use crate::stage::{StageLoop, StageOutcome};
use crate::state::{Stage, State, read_optimizer};
use crate::state_hash::{require_the_same, state_hash};
use crate::steps::Steps;
use crate::tiles::TileFile;
use crate::trained::Trained;
use crate::{chosen, draft_vocab, from_first, load, parent, products, prolong};

/// The end of an attempt without an error.
pub(crate) enum Ending {
    Completed {
        outputs: Vec<PathBuf>,
    },
    /// Stopped after a checkpoint, in training or in the export.
    Stopped {
        /// The reason if memory ran out, or another rank was stopped; `None` if the user stopped this one.
        reason: Option<String>,
    },
}

/// Runs an attempt. `state` becomes the state of the checkpoint that the attempt continues from, and is then
/// updated by the training.
///
/// # Errors
/// Any failure that ends the run without outputs. The checkpoints written so far are kept.
pub(crate) fn make(
    objective: &impl Objective<Trainee = TextModel>,
    session: &mut Session,
    state: &mut State,
    options: &TrainOptions,
) -> Result<Ending, TrainError> {
    if session.ranks.has_others() && from_first::share_checkpoint(session, state)? {
        let is_first = session.ranks.is_first();
        session.part();
        if !is_first {
            return Ok(Ending::Completed { outputs: Vec::new() });
        }
    }
    // All checks that can refuse the run come before the weights are read, which may take minutes.
    let (mut attempt, batches) = Attempt::start(objective, session, state, options)?;
    let device = attempt.prepare_device(options)?;
    let Loaded { mut text, head, base_head, mut optimizer } = attempt.load(objective, &device)?;

    if !attempt.state.main_done {
        let outcome = attempt.train_text_model(objective, &mut text, &mut optimizer, batches)?;
        if let StageOutcome::Stopped { reason } = outcome {
            return Ok(Ending::Stopped { reason });
        }
    }
    // The head is trained, and everything written, by the first rank alone.
    let is_first = attempt.session.ranks.is_first();
    attempt.session.part();
    if !is_first {
        return Ok(Ending::Completed { outputs: Vec::new() });
    }
    if attempt.state.stage == Stage::Main {
        // What training leaves makes room for the export. The head has an optimizer of its own.
        optimizer = Optimizer::default();
        attempt.choose_weights(&mut text.model)?;
    }
    device.memory_cleanup();
    match attempt.finish(&text.model, head, base_head, optimizer) {
        Err(TrainError::Model(ModelError::Stopped)) => Ok(attempt.stopped()),
        ending => ending,
    }
}

/// The state that the parts of an attempt share.
struct Attempt<'a, 'run> {
    session: &'a mut Session<'run>,
    state: &'a mut State,
    plan: Plan,
    base: Base,
    /// The checkpoint that the attempt continues from.
    resumed: Option<Checkpoint>,
    eval_set: Option<EvalSet>,
    /// The file of measured tiles; `None` if none are measured.
    tiles: Option<TileFile>,
    /// The vendor's library, if products may be left to it.
    library: Option<Library>,
}

/// The models that training changes.
struct Loaded {
    text: TextModel,
    head: Option<Mtp>,
    /// The head with the weights of the base.
    base_head: Option<Mtp>,
    optimizer: Optimizer,
}

impl<'a, 'run> Attempt<'a, 'run> {
    /// Finds the newest intact checkpoint, opens model and data, and records the start of the run.
    fn start(
        objective: &impl Objective,
        session: &'a mut Session<'run>,
        state: &'a mut State,
        options: &TrainOptions,
    ) -> Result<(Self, Batches), TrainError> {
        let mut checkpoints = Checkpoints::new(session.run);
        checkpoints.clean(&session.lease)?;
        let found = checkpoints.newest_valid()?;
        if let Some(checkpoint) = &found.checkpoint {
            // A run that returned to a checkpoint has an order that the checkpoint does not know.
            let order = state.order;
            *state = State::read(&checkpoint.path)?;
            state.order = state.order.or(order);
        }
        let plan = session.plan.clone();
        if plan.is_of_head_alone() && !state.main_done {
            // Without the checkpoint that `head` began it with, the run would train a text model like any
            // other. What is damaged stays where it is, so that it can be restored.
            return Err(no_finished_text_model(session.run, &found.skipped));
        }
        let base = load::base_of_run(session.run, &plan)?;
        if state.inputs.are_unknown() {
            parent::require_its_base(session.run, &plan, &base)?;
        }
        let accept = options.accept_changes;
        let mut changes = Vec::new();
        let before = &plan.duration.before;
        let earlier = state.inputs.earlier_length(before).filter(|_| state.stage == Stage::Main).cloned();
        if !session.ranks.is_first() {
            state.inputs.leave_out_copied_files();
        }
        state.inputs =
            state.inputs.check(session.run, &base, before, accept, |change| changes.push(change))?;
        from_first::require_the_same_base(session, &state.inputs)?;
        from_first::require_the_same_sums(session, state, accept)?;
        let (path, group_size) = (train_tokens(session.run), objective.examples_per_group());
        let examples = Examples::open(&path, base.config().vocab_size, group_size)?;
        let mut batches = Batches::new(examples, &plan, plan.duration.epochs, plan.duration.max_steps)?;
        if let Some(order) = state.order {
            batches.change_order(order);
        }
        if earlier.is_some() && state.step < batches.total_steps() {
            state.go_on();
        }
        let alone = plan.is_of_head_alone();
        session.events.emit(Kind::RunStarted(RunStarted {
            sparktune: env!("CARGO_PKG_VERSION").into(),
            model: plan.model.id.clone(),
            method: plan.method.word().to_owned(),
            device: session.describe_device(),
            total_steps: if alone {
                Some(state.main_steps).filter(|steps| *steps > 0)
            } else {
                Some(batches.total_steps())
            },
            epochs: Some(plan.duration.epochs).filter(|_| !alone),
            resumed_from_step: found
                .checkpoint
                .as_ref()
                .map(|checkpoint| checkpoint.step.min(state.main_steps)),
            order_seed: state.order.map(|order| order.seed),
            from: plan.model.from.clone(),
        }));
        for change in changes {
            session.warn(change, None);
        }
        if let Some(earlier) = earlier {
            let (step, steps) = (state.step, batches.total_steps());
            session.phase("length", prolong::in_words(&plan, &earlier, step, steps));
        }
        if let Some(warning) = session.ranks.idle(plan.batch.grad_accum_steps) {
            session.warn(warning, None);
        }
        for skipped in &found.skipped {
            let (name, damage) = (skipped.path.display(), &skipped.damage);
            session.warn(format!("the checkpoint {name} is damaged and was skipped: {damage}"), None);
        }
        checkpoints.set_aside(&found.skipped, &session.lease)?;
        for path in [path, eval_tokens(session.run)] {
            verify_tokens(&path)?;
        }
        let resumed = found.checkpoint;
        Ok((
            Self { session, state, plan, base, resumed, eval_set: None, tiles: None, library: None },
            batches,
        ))
    }

    /// Opens the device of the plan. Tests a CUDA device before its first run, and loads its measured tiles.
    fn prepare_device(&mut self, options: &TrainOptions) -> Result<Device, TrainError> {
        let device = load::device(&self.plan)?;
        if self.plan.device == DeviceKind::Cuda {
            if !shared_memory_works(&device) {
                return Err(TrainError::NoDevice(
                    "a kernel with 99 KB of shared memory, which training needs, returns wrong numbers on it"
                        .into(),
                ));
            }
            if let Some(tests) = &options.before_first_run {
                tests.run(self.session, &device)?;
            }
            self.tiles = options.tiles.clone().filter(|tiles| tiles.read(self.session));
            let allowed = Allowed {
                // Ranks check each other's gradients, and a replay those of several.
                to_use: !self.session.ranks.has_others() && options.sum_as.is_none(),
                to_decide: self.tiles.is_some(),
                to_differ: options.accept_changes,
            };
            self.library = products::prepare(self.session, &device, &allowed)?;
            self.prepare_rounding(&device, options.arena);
        }
        Ok(device)
    }

    /// Lets the GPU round what ranks sum in the network, if that is asked for or measured to be faster.
    fn prepare_rounding(&mut self, device: &Device, asked: Option<bool>) {
        // Where ranks exchange more rarely, what they exchange is in the host's memory.
        if self.plan.batch.sync != SyncPlan::Step {
            return;
        }
        // Where an attempt has returned to a checkpoint, this was decided before.
        let is_open = |ranks: &&mut (dyn Collective + 'static)| {
            ranks.summed_by() == SummedBy::Xdp && !ranks.takes_lent()
        };
        let Some(ranks) = self.session.ranks.collective().filter(is_open) else { return };
        match quantiser(device, asked, ranks.arena()) {
            Ok((gpu, words)) => {
                if let Some(gpu) = gpu {
                    ranks.round_on(gpu);
                }
                self.session.phase("exchange", words);
            }
            Err(why) => {
                self.session.warn(format!("the processor rounds gradients instead of the GPU: {why}"), None);
            }
        }
    }

    /// Loads model, head and eval set, and restores the weights of the checkpoint that the attempt continues
    /// from.
    fn load(&mut self, objective: &impl Objective, device: &Device) -> Result<Loaded, TrainError> {
        let Self { session, state, plan, base, .. } = self;
        session.phase("load", format!("reading the weights of {}", plan.model.id));
        let adapter = parent::adapter(session.run, plan)?;
        if let (Some(from), None) = (&plan.model.from, &self.resumed) {
            session.phase("load", format!("starting from the weights of {from}"));
        }
        let mut model = load::text_model(plan, base, adapter.as_deref(), device, &mut |done, total| {
            session.progress("load", done as u64, total as u64, "layers");
        })?;
        let base_head = load::mtp_head(plan, base, device)?;
        if plan.is_of_head_alone() && base_head.is_none() {
            return Err(TrainError::NoHead { path: base.dir().to_owned() });
        }
        let group_size = objective.examples_per_group();
        self.eval_set =
            EvalSet::open(session.run, plan, base, group_size, &mut |warning| session.warn(warning, None))?;
        if plan.mtp != MtpChoice::None && base_head.is_none() && base.config().mtp_num_hidden_layers > 0 {
            session.warn(
                "config.json declares an MTP head, but the weights contain none (transformers drops it when saving): continuing without it. `--mtp-from` takes the head from the model that this one was trained from",
                None,
            );
        }
        let (mut head, mut optimizer) = (base_head.clone(), Optimizer::default());
        if let Some(checkpoint) = &self.resumed {
            load::restore(&checkpoint.path, state, &mut model, head.as_mut())?;
            optimizer = read_optimizer(&checkpoint.path, device, "")?;
        }
        let text = TextModel { model, recompute: plan.recompute, fp8: plan.fp8, dropout: Dropout::of(plan) };
        Ok(Loaded { text, head, base_head, optimizer })
    }

    fn train_text_model<O: Objective<Trainee = TextModel>>(
        &mut self,
        objective: &O,
        text: &mut TextModel,
        optimizer: &mut Optimizer,
        batches: Batches,
    ) -> Result<StageOutcome, TrainError> {
        let sync = self.plan.batch.sync;
        let trained = Trained::of(&text.trained());
        if let Some(exchange) = self.session.ranks.predicted_exchange(&trained, sync)? {
            self.session.phase("exchange", exchange);
        }
        if self.session.ranks.has_others() {
            // A rank that was healed is one of them.
            let (step, optimizer) = (self.state.step, &*optimizer);
            let hash = state_hash(step, &text.trained(), optimizer);
            let number = self.session.ranks.number();
            require_the_same(&self.session.ranks.gather((number, hash))?, step)?;
        }
        let ranks = self.plan.ranks;
        if ranks.swarm && self.session.ranks.outlive(Duration::from_secs(ranks.silence_s.into())) {
            self.session.record_first_members(self.state.step + 1);
        }
        self.session.watch_members(self.state.step);
        let diloco = match sync {
            SyncPlan::Step => None,
            SyncPlan::Diloco { steps } => {
                let folder = self.resumed.as_ref().map(|checkpoint| checkpoint.path.as_path());
                let skipped = &self.state.skipped_of_ranks;
                Some(Diloco::start(steps.into(), &self.session.ranks, &*text, optimizer, folder, skipped)?)
            }
        };
        self.session.phase("train", counted(batches.total_steps(), "optimizer step"));
        let mut steps = Steps::new(objective, text, self.state, optimizer, batches, self.plan.optimizer);
        steps.diloco = diloco;
        let (eval_set, tiles) = (self.eval_set.as_ref(), self.tiles.as_ref());
        StageLoop { session: self.session, steps, eval_set, tiles, library: self.library.as_mut() }.run()
    }

    /// Trains the head, and gives it the weights with the lowest loss on the eval set.
    fn train_head(
        &mut self,
        head: &mut DraftHead,
        optimizer: &mut Optimizer,
    ) -> Result<StageOutcome, TrainError> {
        let Self { session, state, .. } = self;
        if state.stage == Stage::Main {
            state.stage = Stage::Mtp;
            state.step = 0;
            state.evals_without_gain = 0;
            *optimizer = Optimizer::default();
        }
        let draft_tokens = self.plan.head.unwrap_or(HeadPlan::OLD).draft_tokens.max(1);
        let objective = DraftedTokens { count: draft_tokens as usize };
        let (path, group_size) = (train_tokens(session.run), objective.examples_per_group());
        let examples = Examples::open(&path, self.base.config().vocab_size, group_size)?;
        let plan = self.plan.for_head();
        let batches = Batches::new(examples, &plan, plan.duration.epochs, plan.duration.max_steps)?;
        let (total, length) = (batches.total_steps(), plan.pack.length);
        session.phase(
            "mtp",
            format!(
                "training the MTP head to draft {}, {total} steps in packs of {length} tokens",
                counted(draft_tokens.into(), "token")
            ),
        );
        let steps = Steps::new(&objective, head, state, optimizer, batches, plan.optimizer);
        // Old plans had no evaluations in between, and exported the last weights.
        let eval_set = self.eval_set.as_ref().filter(|_| plan.head.is_some());
        let (tiles, library) = (self.tiles.as_ref(), self.library.as_mut());
        let stage = StageLoop { session, steps, eval_set, tiles, library };
        let outcome = stage.run()?;
        if let (StageOutcome::Done, None, Some(eval_set)) = (&outcome, plan.head, &self.eval_set) {
            eval_set.loss(session, &objective, head, state.step)?;
        }
        if outcome == StageOutcome::Done {
            let mut warn = |message: String| session.warn(message, Some(state.main_steps));
            if let Some(folder) = chosen::best_head(session.run, state, &mut warn) {
                head.restore(&folder)?;
            }
        }
        Ok(outcome)
    }

    /// Gives the finished text model the weights that are exported and that the head is trained on.
    fn choose_weights(&mut self, model: &mut Model) -> Result<(), TrainError> {
        let Self { session, state, plan, .. } = self;
        let mut warn = |message: String| session.warn(message, Some(state.main_steps));
        let step = chosen::load_chosen(session.run, plan, state, model, &mut warn)?;
        state.exported_step = Some(step);
        Ok(())
    }

    /// Writes the text model, trains the head, and writes the rest.
    ///
    /// # Errors
    /// When a file cannot be written, or a written model is not the one in memory; [`ModelError::Stopped`]
    /// when a stop was heard in the export.
    fn finish(
        &mut self,
        model: &Model,
        head: Option<Mtp>,
        base_head: Option<Mtp>,
        mut optimizer: Optimizer,
    ) -> Result<Ending, TrainError> {
        // Checkpoints of older programs do not say it: they have the last weights.
        let last = self.state.main_steps;
        let exported = *self.state.exported_step.get_or_insert(last);
        let mut notes = vec![chosen::in_words(&self.plan, self.state, exported)];
        notes.extend(
            self.state.diverged(Given::of(&self.plan)).map(|why| format!("**This run diverged:** {why}")),
        );
        let of_base = || Heads { before: None, last: base_head.clone(), among: None };
        let untrained = head.filter(|_| self.plan.mtp == MtpChoice::Trained);
        self.session.phase("export", "writing the adapter and the merged model");
        let mut text_model = self.export(model, |export| {
            let mut text_model = export.write_text_model(model, true)?;
            if untrained.is_some() && !(text_model.was_there && export.has_page()) {
                let mut notes = notes.clone();
                notes.push("The MTP head is the base model's: its training is not complete.".to_owned());
                export.write_served(model, &of_base(), &mut text_model, &notes)?;
            }
            Ok(text_model)
        })?;
        let mut heads = of_base();
        if let Some(untrained) = untrained {
            let mut head = DraftHead::new(untrained, model);
            match self.train_head(&mut head, &mut optimizer) {
                Ok(StageOutcome::Stopped { reason }) => return Ok(Ending::Stopped { reason }),
                Ok(StageOutcome::Done) => {
                    heads = Heads { before: base_head.clone(), last: Some(head.into_frozen()), among: None };
                }
                // Another attempt would fail in the same way.
                Err(error) if error.is_of_training() => {
                    let failure = format!(
                        "the MTP head could not be trained, so the outputs have the base model's head: {error}"
                    );
                    notes.push(format!("Note: {failure}"));
                    self.session.warn(failure, Some(self.state.main_steps));
                }
                Err(error) => return Err(error),
            }
            self.session.phase("export", "writing what serves the model with its MTP head");
        }
        drop(optimizer);
        model.device().memory_cleanup();
        heads.among = draft_vocab::for_run(self.session.run, &self.plan, &self.base)?;
        let outputs =
            self.export(model, |export| export.write_served(model, &heads, &mut text_model, &notes))?;
        Ok(Ending::Completed { outputs })
    }

    /// Calls `write` with an export into `outputs/` that hears requests to stop and records the state of the
    /// machine.
    fn export<T>(
        &mut self,
        model: &Model,
        write: impl FnOnce(&Export) -> Result<T, TrainError>,
    ) -> Result<T, TrainError> {
        let Self { session, plan, base, eval_set, .. } = self;
        let (run, folder) = (session.run, session.run.outputs());
        let session = RefCell::new(session);
        let record = |line: String| session.borrow().phase("export", line);
        let warn = |line: String| session.borrow().warn(line, None);
        let progress =
            |done: u64, total: u64, unit: &str| session.borrow().progress("export", done, total, unit);
        let go_on = || {
            let mut session = session.borrow_mut();
            session.sample_machine();
            // The peak is updated here, because the export may take more memory than a step.
            session.memory_bytes(model.device());
            !session.is_stop_requested()
        };
        write(&Export {
            run,
            folder: &folder,
            flag: "",
            plan,
            base,
            eval_set: eval_set.as_ref(),
            record: &record,
            warn: &warn,
            progress: &progress,
            go_on: &go_on,
        })
    }

    /// Ends the attempt because a stop was heard in the export. The newest checkpoint has everything that was
    /// trained.
    fn stopped(&self) -> Ending {
        let requests = self.session.poll_requests();
        let reason = requests.out_of_memory.clone();
        self.session.acknowledge(requests, self.state.checkpoint_step());
        Ending::Stopped { reason }
    }
}

/// Says why a run of the head alone cannot go on.
fn no_finished_text_model(run: &RunDir, skipped: &[Skipped]) -> TrainError {
    let of_one = |skipped: &Skipped| format!("{} ({})", skipped.path.display(), skipped.damage);
    let damaged: Vec<String> = skipped.iter().map(of_one).collect();
    let reason =
        if damaged.is_empty() { "missing".into() } else { format!("damaged: {}", damaged.join(", ")) };
    TrainError::NoFinishedTextModel { run: run.name().to_owned(), reason }
}

/// Verifies every checksum of a token file, so that damage is found before a training step reads it.
fn verify_tokens(path: &Path) -> Result<(), TrainError> {
    if !path.exists() {
        return Ok(());
    }
    let report = sparktune_data::token_file::verify(path)?;
    match report.defects.first() {
        None => Ok(()),
        Some(defect) => Err(TrainError::DamagedTokens { path: path.to_owned(), defect: defect.to_string() }),
    }
}
