//! Decides method, rank, pack length and recompute, on which memory and time depend.

use sparktune_base::choices::PackStrategy;
use sparktune_base::escape::escape;
use sparktune_base::units::{bytes, count, counted, parameters, percent};

use crate::adapter::AdapterFacts;
use crate::answer::Origin;
use crate::choices::{Device, MethodKind};
use crate::error::{PlanError, Remedy};
use crate::fit::{Choice, Constraints, Fit};
use crate::memory::Memory;
use crate::plan::{BatchPlan, HeadPlan, Method, PackPlan};
use crate::remedies;
use crate::resolve::{Resolver, setting};

/// The number of examples from which full fine-tuning is recommended, together with [`FULL_TOKENS`].
const FULL_EXAMPLES: u64 = 100_000;
/// The number of tokens from which full fine-tuning is recommended, together with [`FULL_EXAMPLES`].
const FULL_TOKENS: u64 = 200_000_000;
/// The number of examples up to which LoRA is recommended in any case.
const LORA_EXAMPLES: u64 = 50_000;
/// The pack length of the MTP head's stage in the Qwen3.5 recipe, in tokens.
const HEAD_PACK_LENGTH: u32 = 8192;

impl Resolver<'_> {
    /// Returns the recommended method with its reason.
    fn recommended_method(&self, fit: &Fit, free: Constraints) -> (MethodKind, String) {
        let data = &self.facts.data;
        let size =
            format!("{} and {}", counted(data.examples, "example"), counted(data.total_tokens, "token"));
        if let (Some((_, what)), None) = (self.said_of_adapters().next(), &self.answers.method) {
            return (MethodKind::Lora, format!("{what} was given"));
        }
        if data.examples < FULL_EXAMPLES || data.total_tokens < FULL_TOKENS {
            let rule = format!(
                "full fine-tuning pays off from {} examples and {} tokens",
                count(FULL_EXAMPLES),
                count(FULL_TOKENS)
            );
            let reason = if data.examples <= LORA_EXAMPLES {
                format!("{size}: adapters have enough capacity for this much data; {rule}")
            } else {
                format!(
                    "{size} lie between the two limits: adapters lose little and need far less memory; {rule}"
                )
            };
            return (MethodKind::Lora, reason);
        }
        match fit.choose(&Constraints { method: MethodKind::Full, rank: 0, ..free }) {
            Ok(choice) => (
                MethodKind::Full,
                format!(
                    "{size} are enough to train every parameter, and it fits: {} of {}",
                    bytes(choice.memory.needed_bytes()),
                    bytes(choice.memory.available_bytes)
                ),
            ),
            Err(memory) => (
                MethodKind::Lora,
                format!(
                    "{size} would be enough for full fine-tuning, but it needs {} and only {} are available",
                    bytes(memory.needed_bytes()),
                    bytes(memory.available_bytes)
                ),
            ),
        }
    }

    pub(crate) fn method_and_fit(
        &mut self,
        fit: &Fit,
        free: Constraints,
    ) -> Result<(Method, Choice), PlanError> {
        let answers = self.answers;
        let parent = self.adapter_of_parent();
        let kind = match parent {
            Some(_) => self.inherited("method.kind", &answers.method, MethodKind::Lora)?,
            None => {
                self.refuse_adapters_without_lora()?;
                let (recommended, reason) = self.recommended_method(fit, free);
                self.pick("method.kind", &answers.method, recommended, reason)
            }
        };
        let hidden = self.facts.model.config.hidden_size;
        let asked_rank =
            parent.map(|parent| parent.rank).or(answers.rank.as_ref().map(|answer| answer.value));
        let usual = remedies::usual_rank(hidden);
        let constraints = Constraints {
            method: kind,
            rank: if kind == MethodKind::Lora { asked_rank.unwrap_or(usual) } else { 0 },
            targets: self.target_modules(kind)?,
            ..free
        };
        let smaller = || {
            let ranks =
                if asked_rank.is_none() { remedies::smaller_ranks(constraints.rank) } else { Vec::new() };
            ranks
                .into_iter()
                .find_map(|rank| Some((rank, fit.choose(&Constraints { rank, ..constraints }).ok()?)))
        };
        let (rank, choice) = match fit.choose(&constraints) {
            Ok(choice) => (constraints.rank, choice),
            Err(memory) => smaller().ok_or_else(|| self.does_not_fit(fit, &constraints, *memory))?,
        };
        if kind == MethodKind::Full {
            return Ok((Method::Full, choice));
        }
        let (target_modules, dropout) = (constraints.targets, self.dropout(parent));
        if let Some(AdapterFacts { rank, alpha, rslora, clipped, .. }) = parent {
            let rank = self.inherited("method.rank", &answers.rank, rank)?;
            let alpha = self.inherited("method.alpha", &answers.alpha, alpha)?;
            let rslora = self.inherited("method.rslora", &answers.rslora, rslora)?;
            return Ok((Method::Lora { rank, alpha, rslora, clipped, target_modules, dropout }, choice));
        }
        let (rank, reason) = if asked_rank.is_none() && rank < usual {
            (rank, format!("the largest that fits; {usual} is usual"))
        } else if usual < 128 {
            (
                usual,
                format!(
                    "the largest power of two up to a quarter of the hidden size, {hidden}; 128 is for hidden sizes of 512 and more"
                ),
            )
        } else {
            (
                usual,
                format!(
                    "as in the Qwen3.5 recipe; the adapters have {} parameters",
                    parameters(fit.work.adapter_parameters(usual, target_modules) as u64)
                ),
            )
        };
        let rank = self.pick("method.rank", &answers.rank, rank, reason);
        let alpha = self.pick(
            "method.alpha",
            &answers.alpha,
            2.0 * f64::from(rank),
            "twice the rank, which scales the adapters by 2 at every rank",
        );
        let rslora = self.pick(
            "method.rslora",
            &answers.rslora,
            false,
            "alpha / rank, which the recommended learning rate is meant for",
        );
        Ok((Method::Lora { rank, alpha, rslora, clipped: true, target_modules, dropout }, choice))
    }

    fn does_not_fit(&self, fit: &Fit, constraints: &Constraints, memory: Memory) -> PlanError {
        let how = match constraints.method {
            MethodKind::Lora => format!("LoRA of rank {}", constraints.rank),
            MethodKind::Full => "full fine-tuning".to_owned(),
        };
        let model = self.answers.model.as_ref().map_or("the model", |answer| &answer.value);
        let row = match (constraints.pack_length, fit.strategy) {
            (Some(length), _) if length > fit.longest => format!("packs of {} tokens", count(length.into())),
            (_, PackStrategy::Bfd) => {
                format!("an example of {} tokens in one pack", count(fit.longest.into()))
            }
            (length, PackStrategy::Stream) => {
                format!("packs of {} tokens", count(length.unwrap_or(fit.rule).into()))
            }
        };
        // The user's answers, from the smallest sacrifice to the largest.
        let asked = [
            ("pack.length", constraints.pack_length.is_some()),
            ("recompute", constraints.recompute == Some(false)),
            ("method.kind", constraints.method == MethodKind::Full && self.answers.method.is_some()),
            ("batch.micro_batch_packs", constraints.micro_batch_packs > Some(1)),
            ("method.rank", self.answers.rank.is_some()),
        ];
        PlanError::DoesNotFit {
            key: asked.iter().find(|(_, asked)| *asked).map_or("model.id", |(key, _)| key),
            what: format!("{how} of {} with {row}", escape(model)),
            memory: Box::new((&memory).into()),
            remedies: remedies::remedies(fit, constraints),
        }
    }

    pub(crate) fn recompute(&mut self, fit: &Fit, constraints: &Constraints, choice: &Choice) -> bool {
        let kept = fit.memory(constraints, choice.pack_length, false);
        let again = fit.memory(constraints, choice.pack_length, true);
        let flops =
            |recompute| fit.work.training_flops(&fit.treatment(constraints, recompute, &choice.packs));
        let figures = format!(
            "recompute would free {} and add {} more work",
            bytes(kept.activations.saturating_sub(again.activations)),
            percent(flops(true) / flops(false) - 1.0),
        );
        let reason = if kept.fits() {
            format!(
                "all activations fit ({} of {}), so no layer is computed twice; {figures}",
                bytes(kept.needed_bytes()),
                bytes(kept.available_bytes)
            )
        } else {
            format!(
                "layers are recomputed in the backward pass: without that, {} are needed and only {} are available; {figures}",
                bytes(kept.needed_bytes()),
                bytes(kept.available_bytes)
            )
        };
        self.pick("recompute", &self.answers.recompute, !kept.fits(), reason)
    }

    /// Decides the number of packs per micro-batch, and returns it with the adapted choice.
    pub(crate) fn micro_batch_packs(
        &mut self,
        fit: &Fit,
        constraints: &Constraints,
        choice: Choice,
        train_share: f64,
    ) -> (u32, Choice) {
        const KEY: &str = "batch.micro_batch_packs";
        let (answers, free) = (self.answers, Constraints { micro_batch_packs: None, ..*constraints });
        let alone = if *constraints == free { Ok(choice.clone()) } else { fit.choose(&free) };
        let alone = fit.with_micro_batch(&free, alone.unwrap_or_else(|_| choice.clone()), 1);
        let step = fit.step_packs(&alone.packs, train_share);
        // More packs per micro-batch would make the step larger than requested.
        let is_free = answers.grad_accum_steps.is_none();
        let best = if is_free { fit.largest_micro_batch(&free, &alone, step) } else { 1 };
        let busy = "one pack is long enough to keep the device busy";
        let reason = if best > 1 {
            let batched = fit.with_micro_batch(&free, alone.clone(), best);
            format!(
                "the most of 4, 2 and 1 that fit without recompute: weights are read and the head's gradient is updated only once for {best} packs, which is an estimated {} faster and needs {} more for activations",
                percent(alone.epoch_s / batched.epoch_s - 1.0),
                bytes(batched.memory.needed_bytes().saturating_sub(alone.memory.needed_bytes())),
            )
        } else if constraints.method == MethodKind::Lora {
            format!(
                "{busy}, and the gradients of adapters are small; more packs at once would only need more memory"
            )
        } else if fit.device == Device::Cpu {
            format!("{busy}; more packs at once would only need more memory")
        } else if !is_free {
            "with the given batch.grad_accum_steps, more packs at once would make larger steps".to_owned()
        } else if alone.recompute && constraints.recompute == Some(true) {
            "more packs at once would only need more memory, which recompute is given to save".to_owned()
        } else if alone.recompute {
            "one pack fits only with recompute, and more at once would need more memory".to_owned()
        } else if step.count_in_micro_batches_of(2).is_none() {
            format!("a step has {} packs, and two at once would change that", count(step.count()))
        } else {
            let two =
                fit.memory(&Constraints { micro_batch_packs: Some(2), ..free }, alone.pack_length, false);
            format!(
                "two packs at once would need {} without recompute, but only {} are available",
                bytes(two.needed_bytes()),
                bytes(two.available_bytes)
            )
        };
        let packs = self.pick(KEY, &answers.micro_batch_packs, best, reason);
        (packs, fit.with_micro_batch(constraints, choice, packs))
    }

    pub(crate) fn pack(&mut self, fit: &Fit, choice: &Choice) -> PackPlan {
        let rule = format!(
            "the rule of the Qwen3.5 recipe (the mean, {:.0}, rounded to a multiple of 128) gives {}",
            self.facts.data.mean(),
            count(fit.rule.into())
        );
        let own = choice.packs.own_packs.round() as u64;
        let longer = if own > 0 {
            format!("; {} longer than that get a pack of their own", counted(own, "example"))
        } else {
            String::new()
        };
        let waste = percent(choice.packs.waste);
        let best = choice.curve.iter().find(|point| point.pack_length == choice.pack_length);
        let relative = percent(best.map_or(1.0, |point| point.tokens_per_s_relative));
        let reason = match (&self.answers.pack_length, fit.strategy) {
            (Some(_), _) => {
                format!(
                    "{waste} of the space in packs stays empty, and the speed is {relative} of the best{longer}; {rule}"
                )
            }
            (None, PackStrategy::Bfd) => format!(
                "the shortest pack that holds 99 % of the examples and reaches {relative} of the best speed; {waste} of it stays empty{longer}; {rule}"
            ),
            (None, PackStrategy::Stream) if choice.pack_length == fit.rule => {
                format!("{rule}, and the packing strategy is the recipe's too")
            }
            (None, PackStrategy::Stream) => {
                format!("{rule}, which does not fit; this is the longest pack that does")
            }
        };
        // A length that the user gave has no recommendation, only the recipe's rule for comparison.
        let origin = self.answers.pack_length.as_ref().map_or(Origin::BuiltIn, |answer| answer.origin);
        let length = choice.pack_length;
        self.record("pack.length", length.to_string(), origin, reason);
        PackPlan { length, mtp_length: None, strategy: fit.strategy }
    }

    /// Decides the pack length of the MTP head's stage and its memory; `None` if no head is trained.
    pub(crate) fn head_pack(
        &mut self,
        fit: &Fit,
        constraints: &Constraints,
        choice: &Choice,
        batch: BatchPlan,
        head: Option<HeadPlan>,
    ) -> Result<Option<(u32, Memory)>, PlanError> {
        const KEY: &str = "pack.mtp_length";
        let answer = &self.answers.mtp_pack_length;
        let Some(HeadPlan { draft_tokens, .. }) = head else {
            self.pass_over(KEY, "no MTP head is trained", "--mtp trained")?;
            return Ok(None);
        };
        let recipe = format!("the Qwen3.5 recipe uses packs of {}", count(HEAD_PACK_LENGTH.into()));
        let step = u64::from(choice.pack_length) * batch.packs_per_step();
        // A pack longer than a step of the main training would make the head's steps larger and fewer.
        let whole_step = (step / 128 * 128).clamp(choice.pack_length.into(), u32::MAX.into()) as u32;
        let wanted = HEAD_PACK_LENGTH.min(fit.limit).min(whole_step);
        let needs = |length: u32| fit.memory_of_head(constraints, length, draft_tokens);
        let mut lengths = (1..=wanted.div_ceil(128)).rev().map(|n| (n * 128).min(wanted));
        let fitting = lengths.find(|length| needs(*length).fits());
        let length = answer.as_ref().map(|answer| answer.value).or(fitting).unwrap_or(wanted);
        let memory = needs(length);
        if !memory.fits() {
            let shorter = fitting.map(|length| Remedy {
                change: format!("{}: shorter packs for the head", setting(KEY).how(length)),
                needed_bytes: needs(length).needed_bytes(),
            });
            let untrained = Remedy {
                change: "--mtp default: keep the base model's head".into(),
                needed_bytes: choice.memory.needed_bytes(),
            };
            return Err(PlanError::DoesNotFit {
                key: if answer.is_some() { KEY } else { "mtp" },
                what: format!("training the MTP head in packs of {} tokens", count(length.into())),
                memory: Box::new((&memory).into()),
                remedies: shorter.into_iter().chain([untrained]).collect(),
            });
        }
        let why = match fitting.unwrap_or(length) {
            HEAD_PACK_LENGTH => "as in the Qwen3.5 recipe".to_owned(),
            shorter if shorter < wanted => format!("the longest packs that fit; {recipe}"),
            _ if wanted == whole_step => {
                format!(
                    "one pack makes a step of {} tokens, as large as in the main training; {recipe}",
                    count(step)
                )
            }
            _ => format!("the longest that the model supports; {recipe}"),
        };
        let most = memory.needed_bytes() > choice.memory.needed_bytes();
        let reason = format!(
            "{why}; the text model stores no activations in this stage, so {} of {} are needed{}",
            bytes(memory.needed_bytes()),
            bytes(memory.available_bytes),
            if most { ", which is more than the main training needs" } else { "" },
        );
        let length = self.pick(KEY, answer, fitting.unwrap_or(length), reason);
        Ok(Some((length, memory)))
    }
}
