//! Batch, duration, optimizer, checkpoints and evaluations: what happens at which step.

use sparktune_base::units::{bytes, count, counted, duration as time_in_words, tokens_per_s};

use crate::answer::Origin;
use crate::choices::{MethodKind, Mtp};
use crate::error::PlanError;
use crate::eta;
use crate::fit::{Choice, Fit};
use crate::plan::{BatchPlan, CheckpointPlan, DurationPlan, EvalPlan, Method, OptimizerPlan, Time};
use crate::render::epochs_in_words;
use crate::resolve::Resolver;

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
        let reason = if step_packs.is_cut() {
            format!(
                "an epoch has only {} packs: with {per_step} per step it still has {} optimizer steps",
                count(packs),
                count(packs.div_ceil(per_step))
            )
        } else {
            format!(
                "{per_step} packs of {} tokens make up the batch that the learning rate is meant for, 16 × {} tokens; an epoch has {} packs",
                count(pack_tokens as u64),
                count(fit.rule.into()),
                count(packs)
            )
        };
        let grad_accum_steps =
            self.pick("batch.grad_accum_steps", &answers.grad_accum_steps, accumulate, reason);
        let batch = BatchPlan { micro_batch_packs: micro, grad_accum_steps };
        (batch, packs.div_ceil(batch.packs_per_step()))
    }

    pub(crate) fn duration(&mut self) -> DurationPlan {
        let epochs = self.pick(
            "duration.epochs",
            &self.answers.epochs,
            3,
            "as in the Qwen3.5 recipe; the last weights are exported, and `export --best` exports those of the best evaluation",
        );
        let max_steps =
            self.pick_optional("duration.max_steps", &self.answers.max_steps, "no limit: the epochs decide");
        DurationPlan { epochs, max_steps }
    }

    pub(crate) fn optimizer(&mut self, method: MethodKind) -> OptimizerPlan {
        let answers = self.answers;
        let (rate, reason) = match method {
            MethodKind::Lora => {
                (2e-4, "as in the Qwen3.5 recipe: adapters start from zero and take large steps")
            }
            MethodKind::Full => {
                (1e-5, "usual for full fine-tuning: larger steps make the model forget what the base knows")
            }
        };
        OptimizerPlan {
            learning_rate: self.pick("optimizer.learning_rate", &answers.learning_rate, rate, reason),
            min_lr_ratio: self.pick(
                "optimizer.min_lr_ratio",
                &answers.min_lr_ratio,
                0.1,
                "the cosine ends at a tenth",
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
        }
    }

    /// Checkpoints and evaluations, so that the best loss always has a checkpoint, and the disk holds them.
    pub(crate) fn checkpoints_and_evals(
        &mut self,
        fit: &Fit,
        method: Method,
        steps: u64,
        steps_per_epoch: u64,
        evaluated: bool,
        mtp: Mtp,
    ) -> Result<(CheckpointPlan, EvalPlan), PlanError> {
        let answers = self.answers;
        let quarter = steps.div_ceil(4).max(1);
        let reason = if quarter < 200 {
            format!("four to a run of {}", counted(steps, "step"))
        } else {
            format!("of {}", counted(steps, "step"))
        };
        let save_steps = self.pick("checkpoint.save_steps", &answers.save_steps, quarter.min(200), reason);
        let save_minutes = self.pick(
            "checkpoint.save_minutes",
            &answers.save_minutes,
            15,
            "at most this much work is lost to a power cut",
        );

        let trained = match method {
            Method::Lora { rank, .. } => fit.work.adapter_parameters(rank),
            Method::Full => fit.model.text_parameters() as f64,
        };
        let one = (trained * 12.0) as u64;
        let outputs = fit.model.checkpoint_bytes.saturating_mul(if mtp == Mtp::Trained { 2 } else { 1 });
        let tokens = (self.facts.data.total_tokens as f64 * 4.2) as u64;
        // Beside those kept: the best, and one being written.
        let needed = |keep: u64| {
            one.saturating_mul(keep.saturating_add(2)).saturating_add(outputs).saturating_add(tokens)
        };
        let free = self.facts.machine.disk_free_bytes.unwrap_or(u64::MAX);
        let recommended = (1..=3).rev().find(|keep| needed(*keep) <= free).unwrap_or(1);
        let keep = answers.keep.as_ref().map_or(recommended, |answer| u64::from(answer.value));
        let parts = format!(
            "{} for {} checkpoints of {}, {} of outputs, {} of tokens",
            bytes(one.saturating_mul(keep.saturating_add(2))),
            keep.saturating_add(2),
            bytes(one),
            bytes(outputs),
            bytes(tokens)
        );
        if needed(keep) > free {
            let key = if keep > 1 && answers.keep.is_some() { "checkpoint.keep" } else { "runs_dir" };
            return Err(PlanError::Disk { key, needed_bytes: needed(keep), free_bytes: free, parts });
        }
        let fewer = if recommended < 3 { ", fewer than 3 because of the disk" } else { "" };
        let room = self
            .facts
            .machine
            .disk_free_bytes
            .map_or("free space unknown".to_owned(), |n| format!("{} free", bytes(n)));
        let keep = self.pick(
            "checkpoint.keep",
            &answers.keep,
            recommended as u32,
            format!("besides the best{fewer}; the run takes {}: {parts} ({room})", bytes(needed(keep))),
        );

        // A pass over 2 % of the data forward only costs about 0.6 % of an epoch: at most a twentieth goes to
        // evaluation.
        let rare = (self.eval_share() * steps_per_epoch as f64 / 3.0 / 0.05).ceil() as u64;
        let every = rare.div_ceil(save_steps).max(1).saturating_mul(save_steps).min(1 << 40);
        let reason = match (evaluated, every == save_steps) {
            (false, _) => "there is no eval set, so nothing is evaluated",
            (true, true) => "with each checkpoint, so that the best one is kept",
            (true, false) => "with checkpoints, but rarely enough to take less than 5 % of the time",
        };
        let every_steps = self.pick("eval.every_steps", &answers.eval_every_steps, every, reason);
        let early_stop_patience = self.pick_optional(
            "eval.early_stop_patience",
            &answers.early_stop_patience,
            "off: all epochs are trained; the best checkpoint is kept as well",
        );
        let sample_count = self.pick(
            "eval.sample_count",
            &answers.sample_count,
            3,
            "a few answers to read, besides the loss",
        );
        let sample_max_tokens =
            self.pick("eval.sample_max_tokens", &answers.sample_max_tokens, 128, "enough to judge an answer");
        Ok((
            CheckpointPlan { save_steps, save_minutes, keep },
            EvalPlan { every_steps, early_stop_patience, sample_count, sample_max_tokens },
        ))
    }

    /// Evaluation data as a share of the training data; a file of its own counts as the usual 2 %.
    fn eval_share(&self) -> f64 {
        match (&self.answers.eval_data, &self.answers.eval_fraction) {
            (None, Some(fraction)) => fraction.value,
            _ => 0.02,
        }
    }

    /// Three rows of the table that are no settings: where the run ends up.
    pub(crate) fn record_time(&mut self, time: &Time, duration: DurationPlan) {
        let steps = format!(
            "{}, {} tokens each on average",
            epochs_in_words(time, duration),
            count(time.tokens_per_step)
        );
        self.record("steps", count(time.steps), Origin::BuiltIn, steps);
        let speed =
            time.tokens_per_s.map_or(String::new(), |rate| format!("{} tokens/s", tokens_per_s(rate)));
        self.record("speed", speed, Origin::BuiltIn, eta::basis_in_words(time));
        let total = time.train_s.map_or(String::new(), |s| time_in_words(s + time.mtp_s.unwrap_or(0.0)));
        self.record("time", total, Origin::BuiltIn, time.formula.clone());
    }
}
