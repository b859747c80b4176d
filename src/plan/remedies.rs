//! Finds changes that make a plan fit into memory.

use sparktune_base::choices::PackStrategy;
use sparktune_base::units::count;

use crate::catalog::Catalog;
use crate::choices::MethodKind;
use crate::cost::Work;
use crate::error::Remedy;
use crate::fit::{Choice, Constraints, Fit, up_to_128};
use crate::plan::Plan;
use crate::setting::Setting;

/// Returns the usual rank for a model of this hidden size: 128, or the largest power of two up to a quarter
/// of the hidden size if that is less.
pub(crate) fn usual_rank(hidden_size: usize) -> u32 {
    let quarter = (hidden_size / 4).clamp(1, 128) as u32;
    1 << quarter.ilog2()
}

/// Returns half of this rank, rounded down to a multiple of 8, because a GPU would pad other ranks.
const fn half_rank(rank: u32) -> u32 {
    rank / 2 / 8 * 8
}

/// Returns smaller ranks to try, largest first, down to 8.
pub(crate) fn smaller_ranks(rank: u32) -> Vec<u32> {
    let halves = std::iter::successors(Some(half_rank(rank)), |rank| Some(half_rank(*rank)));
    halves.take_while(|rank| *rank >= 8).collect()
}

fn how(key: &str, value: impl std::fmt::Display) -> String {
    Setting::of(key).map(|setting| setting.how(value)).unwrap_or_default()
}

impl Plan {
    /// Returns settings with which a new run would need less memory, from the smallest sacrifice to the
    /// largest. They are suggested when memory ran out although the estimate said that the plan fits.
    pub fn lighter(&self) -> Vec<String> {
        let shorter = up_to_128(self.pack.length / 2);
        let rank = self.method.rank();
        let changes = [
            (self.batch.micro_batch_packs > 1).then(|| how("batch.micro_batch_packs", 1)),
            (!self.recompute).then(|| how("recompute", true)),
            (shorter < self.pack.length).then(|| how("pack.length", shorter)),
            (self.method.kind() == MethodKind::Full).then(|| how("method.kind", "lora")),
            (rank >= 16 && self.model.from.is_none()).then(|| how("method.rank", half_rank(rank))),
        ];
        changes.into_iter().flatten().collect()
    }
}

fn needs(fit: &Fit, constraints: &Constraints) -> Option<u64> {
    fit.choose(constraints).ok().map(|choice| choice.memory.needed_bytes())
}

/// Returns single changes that make the plan fit, or all of them together when no single one suffices.
pub(crate) fn remedies(fit: &Fit, constraints: &Constraints) -> Vec<Remedy> {
    let mut found = Vec::new();
    let mut offer = |change: String, needed: Option<u64>| {
        found.extend(needed.map(|needed_bytes| Remedy { change, needed_bytes }));
    };
    let lora = Constraints {
        method: MethodKind::Lora,
        rank: usual_rank(fit.model.config.hidden_size),
        ..*constraints
    };

    if constraints.recompute == Some(false) {
        offer(how("recompute", true), needs(fit, &Constraints { recompute: None, ..*constraints }));
    }
    if constraints.pack_length.is_some()
        && let Ok(choice) = fit.choose(&Constraints { pack_length: None, ..*constraints })
    {
        offer(how("pack.length", choice.pack_length), Some(choice.memory.needed_bytes()));
    }
    if constraints.micro_batch_packs > Some(1) {
        offer(
            how("batch.micro_batch_packs", 1),
            needs(fit, &Constraints { micro_batch_packs: Some(1), ..*constraints }),
        );
    }
    if constraints.method == MethodKind::Full {
        offer(how("method.kind", "lora"), needs(fit, &lora));
    } else {
        let smaller = smaller_ranks(constraints.rank)
            .into_iter()
            .map(|rank| (rank, needs(fit, &Constraints { rank, ..*constraints })));
        if let Some((rank, needed)) = smaller.into_iter().find(|(_, needed)| needed.is_some()) {
            offer(how("method.rank", rank), needed);
        }
    }
    if fit.strategy == PackStrategy::Bfd
        && let Some(Shorter { tokens, left_out, choice }) = shorter_examples(fit, constraints)
    {
        let mut change = how("data.max_example_tokens", tokens);
        if constraints.pack_length.is_some_and(|length| length != choice.pack_length) {
            change = format!("{change} {}", how("pack.length", choice.pack_length));
        }
        let needed = choice.memory.needed_bytes();
        offer(format!("{change}, which about {} examples exceed", count(left_out)), Some(needed));
    }
    let catalog = Catalog::shipped();
    let smaller = catalog.models.iter().rev().filter(|model| !model.id.ends_with("-Base"));
    for model in smaller {
        let facts = catalog.model_facts(model);
        if facts.text_parameters() >= fit.model.text_parameters() {
            continue;
        }
        let work = Work::from_config(&facts.config);
        let rank = constraints.rank.min(facts.config.hidden_size as u32);
        if let Some(needed) =
            needs(&Fit { model: &facts, work, ..fit.clone() }, &Constraints { rank, ..*constraints })
        {
            offer(how("model.id", &model.id), Some(needed));
            break;
        }
    }
    if found.is_empty() {
        let least = Constraints {
            rank: lora.rank.min(8),
            recompute: Some(true),
            pack_length: None,
            micro_batch_packs: Some(1),
            ..lora
        };
        // Everything by which these settings differ from the user's, which may include the pack length.
        let together = |choice: &Choice| {
            let mut changes =
                vec![how("method.kind", "lora"), how("method.rank", least.rank), how("recompute", true)];
            if constraints.micro_batch_packs > Some(1) {
                changes.push(how("batch.micro_batch_packs", 1));
            }
            if constraints.pack_length.is_some_and(|length| length != choice.pack_length) {
                changes.push(how("pack.length", choice.pack_length));
            }
            format!("{} together", changes.join(" "))
        };
        if let Ok(choice) = fit.choose(&least) {
            let needed_bytes = choice.memory.needed_bytes();
            found.push(Remedy { change: together(&choice), needed_bytes });
        } else if let Some(Shorter { tokens, left_out, choice }) = shorter_examples(fit, &least) {
            let examples = how("data.max_example_tokens", tokens);
            found.push(Remedy {
                change: format!(
                    "{} with {examples}, which about {} examples exceed",
                    together(&choice),
                    count(left_out)
                ),
                needed_bytes: choice.memory.needed_bytes(),
            });
        }
    }
    found
}

/// A limit on the length of examples with which a plan fits.
struct Shorter {
    tokens: u32,
    /// The number of examples that exceed it.
    left_out: u64,
    choice: Choice,
}

/// Returns a limit on the length of examples that is about an eighth lower, a multiple of 128.
fn next_limit(tokens: u32) -> u32 {
    up_to_128((tokens - tokens / 8).saturating_sub(127))
}

/// Returns the largest limit on the length of examples with which the plan fits.
fn shorter_examples(fit: &Fit, constraints: &Constraints) -> Option<Shorter> {
    let mut tokens = fit.longest;
    let all = fit.lengths.examples();
    while tokens > 128 {
        tokens = next_limit(tokens);
        let lengths = fit.lengths.up_to(tokens);
        let left_out = all - lengths.examples();
        // Leaving out most of the data is not a useful remedy.
        if left_out > all / 2.0 {
            return None;
        }
        let shorter = Fit { longest: fit.longest.min(tokens), lengths, ..fit.clone() };
        let constraints = Constraints {
            pack_length: constraints.pack_length.map(|length| length.min(tokens)),
            ..*constraints
        };
        if let Ok(choice) = shorter.choose(&constraints) {
            return Some(Shorter { tokens, left_out: left_out.round() as u64, choice });
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_that_are_proposed_are_multiples_of_8() {
        assert_eq!(smaller_ranks(128), [64, 32, 16, 8]);
        assert_eq!(smaller_ranks(100), [48, 24, 8]);
        assert_eq!(smaller_ranks(24), [8]);
        assert!(smaller_ranks(15).is_empty());
    }

    #[test]
    fn limits_on_examples_fall_down_to_128() {
        assert_eq!(
            [u32::MAX, 6000, 300, 256, 145, 144, 129].map(next_limit),
            [3_758_096_384, 5248, 256, 128, 128, 128, 128]
        );
        assert!((129..2000).all(|tokens| next_limit(tokens) < tokens));
    }
}
