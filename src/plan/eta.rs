//! Estimates the duration of a run: tokens divided by a speed, together with the basis of the speed.

use sparktune_base::units::{count, counted, duration, flops, tokens_per_s};

use crate::catalog::Catalog;
use crate::choices::{Device, MethodKind};
use crate::cost::{Treatment, WIDE_CPU_FLOPS};
use crate::facts::{CpuSpeed, Rates};
use crate::fit::{Choice, Constraints, Fit};
use crate::memory::CHECKPOINT_BYTES;
use crate::plan::{BatchPlan, DurationPlan, EvalPlan, HeadPlan, PackPlan, RateBasis, Time};

/// The inputs of the time estimate.
pub(crate) struct Run<'a> {
    pub fit: &'a Fit<'a>,
    pub constraints: &'a Constraints,
    pub choice: &'a Choice,
    pub model: &'a str,
    pub rates: &'a Rates,
    /// The share of the examples that an epoch trains on. The rest forms the eval set or is dropped.
    pub train_share: f64,
    pub steps_per_epoch: u64,
    pub steps: u64,
    pub epochs: f64,
    /// The number of packs that pass through the model together.
    pub micro_batch_packs: u32,
    /// The training of the MTP head, and the number of epochs that it gets; `None` where no head is trained.
    pub head: Option<(HeadPlan, f64)>,
    /// Whether adapters have dropout.
    pub has_dropout: bool,
    /// The number of optimizer steps of the MTP head, if one is trained.
    pub head_steps: u64,
    /// How many MTP heads are measured at the end, if there are answers to measure them on.
    pub measured_heads: u32,
    /// The evaluations; `None` where there is no eval set.
    pub evals: Option<Evals>,
}

/// The evaluations of a run.
pub(crate) struct Evals {
    /// The number of tokens in the eval set.
    pub tokens: f64,
    /// The settings that decide how many there are, and how many answers each generates.
    pub plan: EvalPlan,
    /// The number of prompts of the user, which are answered too.
    pub own_prompts: usize,
}

impl Evals {
    /// Returns the number of evaluations between the steps, of which the last step has one.
    fn count(&self, steps: u64) -> u64 {
        steps.div_ceil(self.plan.every_steps.max(1))
    }

    /// Returns the largest number of tokens in the sample answers of an evaluation.
    fn sampled(&self) -> f64 {
        (f64::from(self.plan.sample_count) + self.own_prompts as f64) * f64::from(self.plan.sample_max_tokens)
    }
}

/// Returns the seconds of all evaluations, that of the base before the first step included, with their sample
/// answers, at this speed of training. A generated token reads all weights once, and passes through all
/// layers alone.
fn eval_s(run: &Run, evals: &Evals, treatment: &Treatment, train_tokens_per_s: f64) -> f64 {
    let work = &run.fit.work;
    let head = 2.0 * work.head_parameters * treatment.target_share;
    let forward = (work.forward_flops(treatment) + head) / work.training_flops(treatment);
    let pass_s = evals.tokens * forward / train_tokens_per_s;
    let count = evals.count(run.steps) as f64;
    (count + 1.0) * (pass_s + evals.sampled() * token_s(run.fit))
}

/// The speed in bytes per second at which weights are read and widened. Measured with a model of 314 MB in
/// bf16, which took 0.3 to 2.7 s.
const LOADED_BYTES_PER_S: f64 = 4e8;

/// Returns the seconds in which the model is loaded, and those that the first pass on the CPU takes longer
/// than the others, because it is the first to touch its memory: measured, as long again as another one.
fn start_s(run: &Run, train_tokens_per_s: f64) -> f64 {
    let packs = &run.choice.packs;
    let first_pass = match run.fit.device {
        Device::Cpu => packs.tokens / packs.count.max(1.0) * f64::from(run.micro_batch_packs),
        Device::Cuda => 0.0,
    };
    run.fit.model.checkpoint_bytes as f64 / LOADED_BYTES_PER_S + first_pass / train_tokens_per_s
}

/// The seconds that the CPU takes for a layer of one token besides reading its weights, measured on two cores
/// with models of 4 and 8 layers.
const CPU_LAYER_S: f64 = 300e-6;

/// Returns the seconds of one generated token.
fn token_s(fit: &Fit) -> f64 {
    let Fit { speed, model, device, .. } = fit;
    let (width, layer_s) = match device {
        Device::Cuda => (2, speed.seconds_per_layer),
        Device::Cpu => (4, CPU_LAYER_S),
    };
    model.weight_bytes(width) as f64 / read_bytes_per_s(fit) + model.config.layers.len() as f64 * layer_s
}

/// The speed at which the CPU reads all weights of a model, one after the other, as a share of the speed at
/// which it reads one large weight. Measured with a model of 142 million parameters on two cores: 26 ms a
/// token.
const READ_SHARE: f64 = 0.55;

/// Returns the bytes per second at which weights are read for one token.
fn read_bytes_per_s(fit: &Fit) -> f64 {
    measured_speed(fit).map_or(fit.speed.bytes_per_s, |speed| READ_SHARE * speed.bytes_per_s)
}

/// Returns the measured speed of the CPU, if the plan is for the CPU. Numbers that are not finite or not
/// positive count as not measured.
fn measured_speed(fit: &Fit) -> Option<CpuSpeed> {
    let is_speed = |number: f64| number.is_finite() && number > 0.0;
    let measured = fit.machine.cpu_speed.filter(|_| fit.device == Device::Cpu);
    measured.filter(|speed| is_speed(speed.flops_per_s) && is_speed(speed.bytes_per_s))
}

/// The tokens of the answers after which heads are measured, as the trainer generates them, and the longest
/// draft (`src/train/acceptance.rs`).
const MEASURED_TOKENS: f64 = 2048.0;
const LONGEST_DRAFT: f64 = 4.0;
/// The tokens that a head is also tried on as a server would use it (`src/train/head_report.rs`). A pass
/// brings at least one; how many drafted ones are accepted is not known before.
const TRIED_TOKENS: f64 = 128.0;
/// The speed in bytes per second at which outputs are written, read again and compared with the model.
/// Measured on the CPU with a model of 314 MB.
const WRITTEN_BYTES_PER_S: f64 = 1.1e8;
/// The speed in bytes per second at which a checkpoint is written. Measured with one of 1.7 GB.
const CHECKPOINT_BYTES_PER_S: f64 = 3.5e8;

/// Returns the tokens of the answers after which heads are measured. A head that was trained is measured on
/// prompts of the training data where there is no eval set; another one is not measured there.
fn answered(run: &Run) -> f64 {
    match &run.evals {
        Some(evals) => evals.tokens.min(MEASURED_TOKENS),
        None if run.head.is_some() => MEASURED_TOKENS,
        None => 0.0,
    }
}

/// Returns the seconds from the last training step to the end. Nothing is trained while the last checkpoint
/// is written. Each head is measured after each token of answers that the model writes before, and a trained
/// one has a checkpoint and is written with a second model.
fn finish_s(run: &Run, treatment: &Treatment, train_tokens_per_s: f64) -> f64 {
    let Fit { work, model, device, target_share, .. } = run.fit;
    let models = if run.head.is_some() { 2.0 } else { 1.0 };
    let Constraints { method, rank, targets, .. } = *run.constraints;
    let trained = match run.head {
        Some((head, _)) if head.alone => model.mtp_parameters() as f64,
        Some(_) => run.fit.trained_parameters(method, rank, targets) + model.mtp_parameters() as f64,
        None => run.fit.trained_parameters(method, rank, targets),
    };
    let written = models * model.checkpoint_bytes as f64 / WRITTEN_BYTES_PER_S
        + trained * CHECKPOINT_BYTES / CHECKPOINT_BYTES_PER_S;
    let answered = answered(run);
    if run.measured_heads == 0 || answered == 0.0 {
        return written;
    }
    let width = if *device == Device::Cuda { 2.0 } else { 4.0 };
    let drafts = work.draft_flops(1.0);
    let flops = answered / target_share.clamp(0.25, 1.0) * work.forward_flops(treatment)
        + answered * LONGEST_DRAFT * drafts;
    let everywhere_s = flops / work.training_flops(treatment) / train_tokens_per_s;
    // The model verifies a draft and the token before it together. On the CPU that takes longer than a token,
    // and where the draft is not accepted to its end, the state is computed again.
    let verified = if *device == Device::Cuda { 1.0 } else { 3.0 };
    let draft_s = drafts / 2.0 * width / read_bytes_per_s(run.fit);
    let pass_s = verified * token_s(run.fit) + LONGEST_DRAFT * draft_s;
    let tried_s = TRIED_TOKENS.min(answered) * pass_s;
    written + answered * token_s(run.fit) + f64::from(run.measured_heads) * (everywhere_s + tried_s)
}

/// Returns the seconds of the evaluations of the MTP head: before its first step, and at least four times
/// (`src/train/due.rs`).
fn head_eval_s(run: &Run, head: HeadPlan, treatment: &Treatment, train_tokens_per_s: f64) -> f64 {
    let Some(evals) = &run.evals else { return 0.0 };
    let every = evals.plan.every_steps.min(run.head_steps.div_ceil(4)).max(1);
    let count = 1 + run.head_steps.div_ceil(every);
    let work = &run.fit.work;
    let drafts = f64::from(head.draft_tokens) * work.draft_flops(treatment.target_share);
    let share = (work.forward_flops(treatment) + drafts) / work.training_flops(treatment);
    count as f64 * evals.tokens * share / train_tokens_per_s
}

/// Returns the number of optimizer steps in an epoch of the MTP head.
pub(crate) fn head_steps(fit: &Fit, pack: PackPlan, batch: BatchPlan, train_share: f64) -> u64 {
    let (pack, batch) = pack.for_head(batch);
    let rows = fit.step_packs(&fit.lengths.pack(pack.length, pack.strategy), train_share).of_epoch;
    rows.div_ceil(batch.packs_per_step().max(1))
}

/// Returns the number of epochs of the MTP head that are trained: `max_steps` ends them too.
pub(crate) fn head_epochs(steps: u64, duration: &DurationPlan, head: HeadPlan) -> f64 {
    let planned = steps.saturating_mul(head.epochs.into());
    duration.max_steps.unwrap_or(planned).min(planned) as f64 / steps as f64
}

/// Returns the speed in tokens per second for a model of this name, with its basis in words.
pub(crate) fn speed(
    model: &str,
    rates: &Rates,
    fit: &Fit,
    constraints: &Constraints,
    choice: &Choice,
) -> (Option<f64>, RateBasis, String) {
    let flops_per_token = fit.flops_per_token(constraints, choice);
    if let Some(rate) = rates.newest(model, &fit.speed.device, constraints.method) {
        let now = rate.without_dropout() * rate.flops_per_token / flops_per_token;
        let dropout = if rate.dropout_s_per_token > 0.0 { " with dropout" } else { "" };
        let mut words =
            format!("based on {} tokens/s in an earlier run here{dropout}", tokens_per_s(rate.tokens_per_s));
        let (then, now_has) = (flops(rate.flops_per_token), flops(flops_per_token));
        if then != now_has {
            words.push_str(&format!(", with {then} per token; this run has {now_has}"));
        }
        return (Some(now), RateBasis::MeasuredHere, words);
    }
    let catalog = Catalog::shipped();
    let recipe = catalog.recipe_rate(model, &fit.speed.device, constraints.method, choice.pack_length);
    let size = catalog.find(model).map(|model| model.shape.as_str());
    let measured = || {
        let (device, probe) = (&fit.speed.device, fit.machine.probe);
        rates.measured.speed(device, size, constraints.method, flops_per_token, probe)
    };
    if let Some(derived) = (fit.device == Device::Cuda).then(measured).flatten() {
        let mut words = derived.words;
        if let Some(rate) = recipe {
            let recipe_rate = count(rate.tokens_per_s as u64);
            words.push_str(&format!(
                "; the Qwen3.5 recipe (another program) reached {recipe_rate} tokens/s on {}",
                rate.device
            ));
        }
        return if derived.is_of_this_kind {
            (Some(derived.tokens_per_s), RateBasis::Measured, words)
        } else {
            (Some(derived.tokens_per_s), RateBasis::Estimate, format!("estimate: {words}"))
        };
    }
    if let Some(rate) = recipe {
        let words = format!(
            "the Qwen3.5 recipe measured {} tokens/s on {} ({}); not measured here yet",
            count(rate.tokens_per_s as u64),
            rate.device,
            rate.conditions()
        );
        return (Some(rate.tokens_per_s), RateBasis::OriginalRecipe, words);
    }
    match &fit.speed.basis {
        Some(basis) if choice.epoch_s > 0.0 => {
            let assumed = choice.packs.tokens / choice.epoch_s;
            let (rate, basis) = match measured_speed(fit) {
                Some(CpuSpeed { flops_per_s, .. }) => {
                    measured_cpu(assumed, fit, flops_per_s, cpu_share(constraints.method, choice.recompute))
                }
                None => (assumed, basis.clone()),
            };
            let words =
                format!("estimate: {} per token, {basis}, including fixed costs", flops(flops_per_token));
            (Some(rate), RateBasis::Estimate, words)
        }
        _ => (
            None,
            RateBasis::Unknown,
            format!("the speed of {} is unknown until the first steps have been measured", fit.speed.device),
        ),
    }
}

/// Returns the share of its speed in products of matrices that the CPU reaches in training a wide model.
/// Measured on two cores of an AMD EPYC, in the estimates of `src/bench/README.md`, and a little lower here:
/// a run that takes longer than was said is worse than one that takes less. In full fine-tuning AdamW goes
/// over all weights, and a forward pass that is computed again is nearly all products. Both together were
/// not measured.
fn cpu_share(method: MethodKind, recompute: bool) -> f64 {
    match (method, recompute) {
        (MethodKind::Full, false) => 0.80,
        (MethodKind::Full, true) => 0.84,
        (MethodKind::Lora, false) => 0.83,
        (MethodKind::Lora, true) => 0.86,
    }
}

/// Returns the speed in tokens per second for a CPU whose products reach so many FLOP/s, where `assumed`
/// tokens per second follow from what is assumed of one, with its basis in words. Pack lengths are chosen
/// by what is assumed, so that the same data gives the same plan in each hour.
fn measured_cpu(assumed: f64, fit: &Fit, products: f64, share: f64) -> (f64, String) {
    let cores = fit.machine.cores.max(1) as f64;
    let of_wide = share * products / (WIDE_CPU_FLOPS * cores);
    let reached = fit.speed.flops_per_s * of_wide;
    let basis = format!(
        "{:.0} GFLOP/s assumed in fp32, from {:.0} that matrix products reached here",
        reached / 1e9,
        products / 1e9
    );
    (assumed * of_wide, basis)
}

/// Estimates steps, speed and duration of a run.
pub(crate) fn time(run: &Run) -> Time {
    let packs = &run.choice.packs;
    let treatment = run.fit.treatment(run.constraints, run.choice.recompute, packs);
    let flops_per_token = run.fit.flops_per_token(run.constraints, run.choice);
    let (rate, basis, words) = speed(run.model, run.rates, run.fit, run.constraints, run.choice);

    let whole = |x: f64| (x.max(0.0).round() as u64).min(i64::MAX as u64);
    let epoch_tokens = packs.tokens * run.train_share;
    let step_tokens = epoch_tokens / run.steps_per_epoch.max(1) as f64;
    let tokens = (epoch_tokens * run.epochs).min(step_tokens * run.steps as f64);
    let rate = rate.filter(|rate| rate.is_finite() && *rate > 0.0);
    let alone = run.head.is_some_and(|(head, _)| head.alone);
    let dropout_s_per_token = if run.has_dropout && !alone {
        let bytes = if run.fit.device == Device::Cuda { 2.0 } else { 4.0 };
        run.fit.work.dropout_numbers(run.constraints.targets) * bytes / run.fit.speed.bytes_per_s
    } else {
        0.0
    };
    let dropout_s = tokens * dropout_s_per_token;
    let train_s = rate.map(|rate| if alone { 0.0 } else { tokens / rate + dropout_s });
    let mtp_s = rate.zip(run.head).map(|(rate, (head, epochs))| {
        let flops = run.fit.work.mtp_flops(&treatment, head.draft_tokens);
        let trained_s = epochs * epoch_tokens / rate * flops / flops_per_token;
        trained_s + head_eval_s(run, head, &treatment, rate)
    });
    let evals = run.evals.as_ref().filter(|_| !alone);
    let eval_s = rate.zip(evals).map(|(rate, evals)| eval_s(run, evals, &treatment, rate));
    let finish_s = rate.map(|rate| finish_s(run, &treatment, rate));
    let start_s = rate.map(|rate| start_s(run, rate));
    let mut formula = match rate {
        _ if alone => format!("{} tokens", count(whole(tokens))),
        Some(rate) => format!("{} tokens ÷ {} tokens/s", count(whole(tokens)), tokens_per_s(rate)),
        None => format!("{} tokens", count(whole(tokens))),
    };
    if rate.is_some() && dropout_s > 0.0 {
        formula.push_str(&format!(" + {} for dropout", duration(dropout_s)));
    }
    if let Some(start_s) = start_s.filter(|start_s| *start_s >= 0.5) {
        formula.push_str(&format!(" + {} to start", duration(start_s)));
    }
    if let Some((eval_s, evals)) = eval_s.zip(evals) {
        let count = counted(evals.count(run.steps), "evaluation");
        let samples = if evals.sampled() > 0.0 { " with sample answers" } else { "" };
        formula.push_str(&format!(" + {} for {count}{samples} and that of the base", duration(eval_s)));
    }
    if let Some((mtp_s, (head, epochs))) = mtp_s.zip(run.head).filter(|_| !alone) {
        let which = if head.epochs == 1 { "epoch" } else { "epochs" };
        let of = if epochs < f64::from(head.epochs) { ", which max_steps ends early" } else { "" };
        formula.push_str(&format!(" + {} for the MTP head's {which}{of}", duration(mtp_s)));
    }
    if let Some(finish_s) = finish_s.filter(|finish_s| *finish_s >= 0.5) {
        let is_measured = run.measured_heads > 0 && answered(run) > 0.0;
        let what = match (is_measured, run.head.is_some()) {
            (false, _) => "to write",
            (true, false) => "to measure the head and write",
            (true, true) => "to measure both heads and write",
        };
        formula.push_str(&format!(" + {} {what} the outputs", duration(finish_s)));
    }
    formula.push_str(&format!("; {words}"));
    Time {
        tokens_per_epoch: whole(epoch_tokens),
        tokens_per_step: whole(step_tokens),
        steps_per_epoch: run.steps_per_epoch,
        steps: run.steps,
        flops_per_token,
        dropout_s_per_token,
        device: run.fit.speed.device.clone(),
        tokens_per_s: rate,
        start_s,
        train_s,
        eval_s,
        mtp_s,
        finish_s,
        basis,
        formula,
    }
}

/// Describes the basis of a speed estimate in words.
pub(crate) fn basis_in_words(time: &Time) -> String {
    match time.basis {
        RateBasis::MeasuredHere => "measured here in an earlier run",
        RateBasis::Measured => "measured on a device of this kind by tests/gpu; not measured here yet",
        RateBasis::OriginalRecipe => {
            "measured by the Qwen3.5 recipe, another program; sparktune has not been measured here yet"
        }
        RateBasis::Estimate => "an estimate, until the first steps have been measured",
        RateBasis::Unknown => "unknown until the first steps have been measured",
    }
    .to_owned()
}
