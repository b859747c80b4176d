//! Decides batch, duration, optimizer, checkpoints and evaluations: everything that depends on the number of
//! steps.

use sparktune_base::units::{bytes, count, counted, duration as time_in_words, tokens_per_s};

use crate::answer::Origin;
use crate::choices::{Exported, Mtp};
use crate::error::PlanError;
use crate::eta;
use crate::fit::{Choice, Fit};
use crate::memory::CHECKPOINT_BYTES;
use crate::plan::{BatchPlan, CheckpointPlan, DurationPlan, EvalPlan, Method, OptimizerPlan, Time};
use crate::render::{counted_epochs, epochs_in_words};
use crate::resolve::{Resolver, setting};
use crate::sync::SyncPlan;
use crate::values::Texts;

/// The number of parameters from which a model counts as large, for the learning rate of adapters.
const LARGE: u64 = 8_000_000_000;
/// The largest rank for which the learning rate of adapters is meant.
const LARGEST_RANK: u32 = 128;

/// Returns the recommended learning rate with its source.
fn learning_rate(parameters_of_model: u64, method: Method) -> (f64, String) {
    let Method::Lora { rank, .. } = method else {
        return (1e-5, "the default of ms-swift 4.6 for full fine-tuning, used at every size".to_owned());
    };
    let size = format!("{} B", LARGE / 1_000_000_000);
    let (rate, source) = if parameters_of_model < LARGE {
        (
            2e-4,
            format!(
                "the default of Unsloth 2026.10 for adapters; models of {size} parameters and more get 1e-4"
            ),
        )
    } else {
        (1e-4, format!("the default of ms-swift 4.6 for adapters; models below {size} parameters get 2e-4"))
    };
    if rank <= LARGEST_RANK {
        return (rate, source);
    }
    let halved = format!(
        "half of {rate:e} because the rank is above {LARGEST_RANK}: alpha grows with it, so a step of the same rate changes the weights more; {rate:e} is {source}"
    );
    (rate / 2.0, halved)
}

impl Resolver<'_> {
    pub(crate) fn batch(
        &mut self,
        fit: &Fit,
        choice: &Choice,
        micro: u32,
        train_share: f64,
    ) -> (BatchPlan, u64) {
        let answers = self.answers;
        let step_packs = fit.step_packs(&choice.packs, train_share);
        let packs = step_packs.of_epoch;
        let per_step = step_packs.count_in_micro_batches_of(micro).unwrap_or(step_packs.count());
        let pack_tokens = choice.packs.tokens / choice.packs.count.max(1.0);
        let accumulate = (per_step / u64::from(micro)).max(1) as u32;
        let step = u64::from(accumulate) * u64::from(micro);
        // The user's micro-batch may not divide the best number of packs of a step.
        let whole =
            if step == per_step { String::new() } else { format!("; whole micro-batches make it {step}") };
        let reason = if step_packs.is_cut() {
            let steps = counted(packs.div_ceil(step), "optimizer step");
            let packs = counted(packs, "pack");
            if step == per_step {
                format!("an epoch has only {packs}; with {per_step} per step it still has {steps}")
            } else {
                format!(
                    "an epoch has only {packs}, for which {per_step} per step would be best{whole}, so that an epoch has {steps}"
                )
            }
        } else {
            format!(
                "{per_step} packs of {} tokens make a step as large as in the Qwen3.5 recipe, 16 × {} tokens{whole}; an epoch has {} packs",
                count(pack_tokens as u64),
                count(fit.rule.into()),
                count(packs)
            )
        };
        let grad_accum_steps =
            self.pick("batch.grad_accum_steps", &answers.grad_accum_steps, accumulate, reason);
        let sync = self.pick(
            "batch.sync",
            &answers.sync,
            SyncPlan::Step,
            "exact: several ranks train like one process",
        );
        if let Some(warning) = sync.warning() {
            self.warn(warning);
        }
        let batch = BatchPlan { micro_batch_packs: micro, grad_accum_steps, sync };
        (batch, packs.div_ceil(batch.packs_per_step()))
    }

    pub(crate) fn duration(&mut self) -> DurationPlan {
        let epochs = self.pick(
            "duration.epochs",
            &self.answers.epochs,
            3.0,
            "as in the Qwen3.5 recipe; `export` decides whether the best weights are exported or the last",
        );
        let max_steps =
            self.pick_optional("duration.max_steps", &self.answers.max_steps, "no limit: the epochs decide");
        DurationPlan { epochs, max_steps, before: Vec::new() }
    }

    /// Warns where the user's own limit is above the steps of the run and those of its head, so that it ends
    /// nothing. `raise` is the setting of the epochs.
    pub(crate) fn warn_of_a_limit_that_is_not_reached(
        &mut self,
        steps: u64,
        steps_of_head: u64,
        length: &DurationPlan,
        raise: &str,
    ) {
        let own = self.answers.max_steps.as_ref().filter(|answer| answer.origin > Origin::Preset);
        let Some(answer) = own.filter(|answer| answer.value > steps.max(steps_of_head)) else { return };
        self.warn(format!(
            "{} is {}, but the run ends after {}, about {}. To train longer, raise {}",
            setting("duration.max_steps").place(answer.origin),
            count(answer.value),
            counted_epochs(length.epochs),
            counted(steps, "step"),
            setting(raise).place(Origin::Flag)
        ));
    }

    /// Decides the optimizer. Also returns the recommended learning rate.
    pub(crate) fn optimizer(&mut self, method: Method) -> (OptimizerPlan, f64) {
        let answers = self.answers;
        let (rate, reason) = learning_rate(self.facts.model.text_parameters(), method);
        let optimizer = OptimizerPlan {
            learning_rate: self.pick("optimizer.learning_rate", &answers.learning_rate, rate, reason),
            min_lr_ratio: self.pick(
                "optimizer.min_lr_ratio",
                &answers.min_lr_ratio,
                0.1,
                "the cosine schedule ends at a tenth of the peak",
            ),
            warmup_ratio: self.pick(
                "optimizer.warmup_ratio",
                &answers.warmup_ratio,
                0.03,
                "3 % of the steps",
            ),
            beta1: self.pick("optimizer.beta1", &answers.beta1, 0.9, "usual for AdamW"),
            beta2: self.pick("optimizer.beta2", &answers.beta2, 0.95, "usual for language models"),
            eps: self.pick("optimizer.eps", &answers.eps, 1e-8, "usual for AdamW"),
            weight_decay: self.pick(
                "optimizer.weight_decay",
                &answers.weight_decay,
                0.01,
                "on matrices only",
            ),
            clip_norm: self.pick(
                "optimizer.clip_norm",
                &answers.clip_norm,
                1.0,
                "global L2 norm over all trained tensors",
            ),
        };
        (optimizer, rate)
    }

    /// Decides the intervals of checkpoints and evaluations, so that the best loss always has a checkpoint
    /// and the disk suffices.
    /// `eval_share`: the evaluation data as a share of the training data; 0 where there is none.
    pub(crate) fn checkpoints_and_evals(
        &mut self,
        fit: &Fit,
        method: Method,
        length: &DurationPlan,
        steps_per_epoch: u64,
        eval_share: f64,
        mtp: Mtp,
    ) -> Result<(CheckpointPlan, EvalPlan), PlanError> {
        const EVERY: &str = "eval.every_steps";
        const PATIENCE: &str = "eval.early_stop_patience";
        let answers = self.answers;
        let steps = length.steps(steps_per_epoch);
        let quarter = steps.div_ceil(4).max(1);
        let of = if quarter < 200 { "four per run of" } else { "of" };
        let reason = format!("{of} {}{}", length.about(steps), counted(steps, "step"));
        let save_steps = self.pick("checkpoint.save_steps", &answers.save_steps, quarter.min(200), reason);
        let save_minutes = self.pick(
            "checkpoint.save_minutes",
            &answers.save_minutes,
            15,
            "a power cut costs at most this much work",
        );

        let trained = match method {
            Method::Head => fit.model.mtp_parameters() as f64,
            _ => fit.trained_parameters(method.kind(), method.rank(), method.target_modules()),
        };
        let trains_both = mtp == Mtp::Trained && method != Method::Head;
        // A checkpoint of the head has the text model's trained weights too, without their moments.
        let of_head = trained * 4.0 + fit.model.mtp_parameters() as f64 * CHECKPOINT_BYTES;
        let of_text = trained * CHECKPOINT_BYTES;
        let one = if trains_both { of_text.max(of_head) } else { of_text } as u64;
        let outputs = fit.model.checkpoint_bytes.saturating_mul(if mtp == Mtp::Trained { 2 } else { 1 });
        let tokens = (self.facts.data.total_tokens as f64 * 4.2) as u64;
        // Where there are evaluations, each that is kept has another one beside it, which was the best one
        // by then. In addition there are the newest one, if it is between two planned steps, and the one
        // being written; and while a head is trained, the last and the best one of the text model.
        let has_evals = u64::from(eval_share > 0.0);
        let more = 2 + if trains_both { 1 + has_evals } else { 0 };
        let on_disk = |keep: u64| keep.saturating_mul(1 + has_evals).saturating_add(more);
        let needed =
            |keep: u64| one.saturating_mul(on_disk(keep)).saturating_add(outputs).saturating_add(tokens);
        let free = self.facts.machine.disk_free_bytes.unwrap_or(u64::MAX);
        let recommended = (1..=3).rev().find(|keep| needed(*keep) <= free).unwrap_or(1);
        let keep = answers.keep.as_ref().map_or(recommended, |answer| u64::from(answer.value));
        let parts = format!(
            "{} for {} checkpoints of {}, {} of outputs, {} of tokens",
            bytes(one.saturating_mul(on_disk(keep))),
            on_disk(keep),
            bytes(one),
            bytes(outputs),
            bytes(tokens)
        );
        if needed(keep) > free {
            let key = if keep > 1 && answers.keep.is_some() { "checkpoint.keep" } else { "runs_dir" };
            return Err(PlanError::Disk { key, needed_bytes: needed(keep), free_bytes: free, parts });
        }
        let which = match has_evals {
            0 => "the newest ones",
            _ => "each with the one that was best by then",
        };
        let fewer = if recommended < 3 { ", fewer than 3 because of the disk space" } else { "" };
        let room = self
            .facts
            .machine
            .disk_free_bytes
            .map_or("free space unknown".to_owned(), |n| format!("{} free", bytes(n)));
        let keep = self.pick(
            "checkpoint.keep",
            &answers.keep,
            recommended as u32,
            format!("{which}{fewer}; on disk the run takes {}: {parts} ({room})", bytes(needed(keep))),
        );

        // A forward pass over 2 % of the data costs about 0.6 % of an epoch. Evaluation takes at most a
        // twentieth of the time.
        let rare = (eval_share * steps_per_epoch as f64 / 3.0 / 0.05).ceil() as u64;
        let every = rare.div_ceil(save_steps).max(1).saturating_mul(save_steps).min(1 << 40);
        let (every_steps, early_stop_patience) = if eval_share > 0.0 {
            let reason = if every == save_steps {
                "with each checkpoint, so that the best one can be kept"
            } else {
                "with checkpoints, but rarely enough to take less than 5 % of the time"
            };
            let off = "off: all epochs are trained; the best checkpoint is kept as well";
            (
                self.pick(EVERY, &answers.eval_every_steps, every, reason),
                self.pick_optional(PATIENCE, &answers.early_stop_patience, off),
            )
        } else {
            for key in [EVERY, PATIENCE] {
                let why = "there is no eval set, so nothing is evaluated";
                self.pass_over(key, why, "--eval-data, or an --eval-fraction above 0")?;
            }
            (every, None)
        };
        let sample_count = self.pick(
            "eval.sample_count",
            &answers.sample_count,
            3,
            "a few answers to read, in addition to the loss",
        );
        let sample_max_tokens =
            self.pick("eval.sample_max_tokens", &answers.sample_max_tokens, 128, "enough to judge an answer");
        Ok((
            CheckpointPlan { save_steps, save_minutes, keep },
            EvalPlan { every_steps, early_stop_patience, sample_count, sample_max_tokens },
        ))
    }

    /// Decides which prompts of the user are answered at each evaluation.
    pub(crate) fn sample_prompts(&mut self, is_evaluated: bool) -> Result<Texts, PlanError> {
        const KEY: &str = "sample_prompts";
        if !is_evaluated {
            let why = "there is no eval set, so nothing is evaluated";
            self.pass_over(KEY, why, "--eval-data, or an --eval-fraction above 0")?;
            return Ok(Texts::default());
        }
        let none = "none: only those of the eval set";
        Ok(self.pick_optional(KEY, &self.answers.sample_prompts, none).unwrap_or_default())
    }

    /// Decides which weights are exported. Without an eval set, no weights are known to be the best: then
    /// `best` is refused if the user asks for it, and passed over in a preset.
    pub(crate) fn exported_weights(&mut self, has_eval_set: bool) -> Result<Exported, PlanError> {
        const KEY: &str = "export";
        let answer = &self.answers.export;
        if has_eval_set {
            let reason = "the weights with the lowest held-out loss, also after an early stop; the MTP head is trained on them";
            return Ok(self.pick(KEY, answer, Exported::Best, reason));
        }
        let why = "there is no eval set, so no weights are known to be the best";
        match answer {
            Some(asked) if asked.value == Exported::Best && asked.origin > Origin::Preset => {
                Err(PlanError::Conflict {
                    key: KEY,
                    what: format!("{} is best, but {why}", setting(KEY).place(asked.origin)),
                    fix: "Omit it, or use --eval-data, or an --eval-fraction above 0".into(),
                })
            }
            Some(asked) if asked.value == Exported::Best => Ok(self.pick(KEY, &None, Exported::Last, why)),
            _ => Ok(self.pick(KEY, answer, Exported::Last, why)),
        }
    }

    /// Records three rows of the table that are not settings: the resulting length of the run.
    pub(crate) fn record_time(&mut self, time: &Time, duration: &DurationPlan) {
        let steps = format!(
            "{}, {} tokens each on average",
            epochs_in_words(time, duration),
            count(time.tokens_per_step)
        );
        let planned = format!("{}{}", duration.about(time.steps), count(time.steps));
        self.record("steps", planned, Origin::BuiltIn, steps);
        let speed =
            time.tokens_per_s.map_or(String::new(), |rate| format!("{} tokens/s", tokens_per_s(rate)));
        self.record("speed", speed, Origin::BuiltIn, eta::basis_in_words(time));
        let total = time.total_s().map_or(String::new(), time_in_words);
        self.record("time", total, Origin::BuiltIn, time.formula.clone());
    }
}
