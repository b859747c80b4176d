//! What answers and data are refused outright, before anything is decided.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use sparktune_base::escape::escape;
use sparktune_base::program_name;
use sparktune_base::units::count;

use crate::answers::{Answer, Answers};
use crate::error::PlanError;
use crate::facts::{Facts, ModelFacts};
use crate::resolve::setting;

fn in_range<T: PartialOrd + Display + Copy>(
    key: &'static str,
    answer: &Option<Answer<T>>,
    range: RangeInclusive<T>,
) -> Result<(), PlanError> {
    match answer {
        Some(answer) if !range.contains(&answer.value) => Err(PlanError::BadValue {
            key,
            place: setting(key).place(answer.origin),
            value: answer.value.to_string().chars().take(40).collect(),
            expects: format!("a value from {} to {}", range.start(), range.end()),
        }),
        _ => Ok(()),
    }
}

/// Tokens the model can take at most, as far as a plan can write them.
pub(crate) fn model_limit(model: &ModelFacts) -> u32 {
    model.config.max_example_tokens().clamp(1, 1 << 30) as u32
}

pub(crate) fn check_ranges(answers: &Answers, facts: &Facts) -> Result<(), PlanError> {
    let limit = model_limit(&facts.model);
    let steps = 1..=1u64 << 40;
    in_range("data.eval_fraction", &answers.eval_fraction, 0.0..=0.5)?;
    in_range("data.max_example_tokens", &answers.max_example_tokens, 2.min(limit)..=limit)?;
    in_range("data.max_rejected", &answers.max_rejected, 0.0..=1.0)?;
    in_range("data.crc_drop", &answers.crc_drop, 0.0..=0.9)?;
    in_range("method.rank", &answers.rank, 1..=facts.model.config.hidden_size.clamp(1, 1 << 16) as u32)?;
    in_range("method.alpha", &answers.alpha, 1e-6..=1e6)?;
    in_range("pack.length", &answers.pack_length, 16.min(limit)..=limit)?;
    in_range("pack.mtp_length", &answers.mtp_pack_length, 16.min(limit)..=limit)?;
    let vocabulary = facts.model.config.vocab_size.clamp(1, i32::MAX as usize) as u32;
    in_range("draft_vocab", &answers.draft_vocab, 1..=vocabulary)?;
    in_range("batch.micro_batch_packs", &answers.micro_batch_packs, 1..=1 << 16)?;
    in_range("batch.grad_accum_steps", &answers.grad_accum_steps, 1..=1 << 16)?;
    in_range("optimizer.learning_rate", &answers.learning_rate, 1e-12..=1.0)?;
    in_range("optimizer.min_lr_ratio", &answers.min_lr_ratio, 0.0..=1.0)?;
    in_range("optimizer.warmup_ratio", &answers.warmup_ratio, 0.0..=0.9)?;
    in_range("optimizer.beta1", &answers.beta1, 0.0..=0.999_999)?;
    in_range("optimizer.beta2", &answers.beta2, 0.0..=0.999_999_9)?;
    in_range("optimizer.eps", &answers.eps, 1e-20..=1e-2)?;
    in_range("optimizer.weight_decay", &answers.weight_decay, 0.0..=1.0)?;
    in_range("optimizer.clip_norm", &answers.clip_norm, 1e-6..=1e6)?;
    in_range("duration.epochs", &answers.epochs, 1..=10_000)?;
    in_range("duration.max_steps", &answers.max_steps, steps.clone())?;
    in_range("checkpoint.save_steps", &answers.save_steps, steps.clone())?;
    in_range("checkpoint.save_minutes", &answers.save_minutes, 1..=100_000)?;
    in_range("checkpoint.keep", &answers.keep, 1..=10_000)?;
    in_range("eval.every_steps", &answers.eval_every_steps, steps)?;
    in_range("eval.early_stop_patience", &answers.early_stop_patience, 1..=10_000)?;
    in_range("eval.sample_count", &answers.sample_count, 0..=1000)?;
    in_range("eval.sample_max_tokens", &answers.sample_max_tokens, 1..=1 << 20)?;
    // The name becomes a folder's name beside the other runs.
    match &answers.name {
        Some(Answer { value, origin })
            if value.starts_with('.')
                || value.len() > 200
                || value.contains(|c: char| "/\\".contains(c) || c.is_control()) =>
        {
            Err(PlanError::BadValue {
                key: "name",
                place: setting("name").place(*origin),
                value: escape(value).into_owned(),
                expects: "a folder's name: at most 200 bytes, no separator, no dot in front".into(),
            })
        }
        _ => Ok(()),
    }
}

pub(crate) fn check_data(facts: &Facts) -> Result<(), PlanError> {
    let data = &facts.data;
    if data.examples == 0 || data.total_tokens == 0 || data.max == 0 {
        return Err(PlanError::Data {
            key: "data.train",
            what: "the data holds no usable example".into(),
            fix: format!(
                "Run `{} check` on it: it names each rejected line with its reason and fix",
                program_name()
            ),
        });
    }
    if data.target_tokens == 0 {
        return Err(PlanError::Data {
            key: "data.train",
            what: format!(
                "none of the {} tokens carries loss: there is nothing to learn from",
                count(data.total_tokens)
            ),
            fix: format!(
                "Every conversation needs an assistant turn with content; `{} check` shows what was read",
                program_name()
            ),
        });
    }
    Ok(())
}

/// A plan is text, and so are the paths in it.
pub(crate) fn check_paths(answers: &Answers) -> Result<(), PlanError> {
    let paths = |answer: &Option<Answer<Vec<PathBuf>>>| {
        answer.as_ref().map(|answer| answer.value.clone()).unwrap_or_default()
    };
    let runs_dir = answers.runs_dir.iter().map(|answer| answer.value.clone()).collect();
    for (key, paths) in [
        ("data.train", paths(&answers.data)),
        ("data.eval", paths(&answers.eval_data)),
        ("runs_dir", runs_dir),
    ] {
        if let Some(path) = paths.iter().find(|path| path.to_str().is_none()) {
            return Err(PlanError::Data {
                key,
                what: format!(
                    "the name of {} is not UTF-8 text, and a plan cannot hold it",
                    escape(&path.display().to_string())
                ),
                fix: "Rename it, or give another".into(),
            });
        }
    }
    Ok(())
}
