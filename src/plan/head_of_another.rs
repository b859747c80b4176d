//! A base that gets the MTP head of another model (`--mtp-from`), although its own config declares none.
//!
//! Enters: answers and facts. Leaves: facts with the head that the base's family describes, or the reason why
//! there can be none. The weights are compared where they are read.

use sparktune_base::escape::escape;

use crate::answer::Origin;
use crate::choices::Mtp;
use crate::error::PlanError;
use crate::facts::Facts;
use crate::setting::Setting;
use crate::settings::Answers;

/// Returns the facts about a base that gets the head of another model. `None` if it gets none, or has one of
/// its own.
///
/// # Errors
/// [`PlanError::Conflict`] if models of its family have no head.
pub(crate) fn head_of_another(answers: &Answers, facts: &Facts) -> Result<Option<Facts>, PlanError> {
    const KEY: &str = "model.mtp_from";
    let is_left_out = answers.mtp.as_ref().is_some_and(|answer| answer.value == Mtp::None);
    let Some(from) = answers.mtp_from.as_ref().filter(|_| !is_left_out && !facts.model.has_mtp()) else {
        return Ok(None);
    };
    if facts.model.config.mtp.is_none() {
        return Err(PlanError::Conflict {
            key: KEY,
            what: format!(
                "{} is {}, but sparktune knows no MTP head for models of the family {}",
                place(KEY, from.origin),
                escape(&from.value),
                facts.model.config.architecture
            ),
            fix: "Omit it".into(),
        });
    }
    let mut facts = facts.clone();
    facts.model.config.declare_head();
    Ok(Some(facts))
}

/// Says that a model has no head that `head` could train.
pub(crate) fn no_head_to_train(answers: &Answers) -> PlanError {
    let model = answers.model.as_ref().map_or("the model", |answer| &answer.value);
    let origin = answers.model.as_ref().map_or(Origin::Flag, |answer| answer.origin);
    PlanError::Conflict {
        key: "mtp",
        what: format!(
            "{} is {}, which has no MTP head to train (mtp_num_hidden_layers is 0 in its config.json)",
            place("model.id", origin),
            escape(model)
        ),
        fix: "Take the head from the model that it was trained from, with --mtp-from, or name another model"
            .into(),
    }
}

fn place(key: &str, origin: Origin) -> String {
    Setting::of(key).expect("the table has it").place(origin)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::Catalog;
    use crate::facts::{DataFacts, MachineFacts, ModelFacts, Rates};
    use crate::plan::{Method, Plan, Time};
    use crate::render::summary;
    use crate::resolve::{resolve, resolve_head};

    fn facts(model: ModelFacts) -> Facts {
        let mem = 500_000_000_000;
        let data = DataFacts {
            examples: 1000,
            total_tokens: 500_000,
            target_tokens: 200_000,
            p50: 500,
            p90: 500,
            p99: 500,
            max: 500,
            ..DataFacts::default()
        };
        let machine = MachineFacts {
            mem_total_bytes: mem,
            mem_available_bytes: mem,
            cores: 8,
            ..MachineFacts::default()
        };
        Facts { machine, model, data, rates: Rates::default(), parent: None }
    }

    fn model(id: &str) -> ModelFacts {
        let catalog = Catalog::shipped();
        catalog.model_facts(catalog.find(id).unwrap())
    }

    fn of_a_family_without_heads() -> ModelFacts {
        let mut facts = model("Qwen/Qwen3.5-0.8B");
        (facts.config.mtp, facts.config.mtp_num_hidden_layers) = (None, 0);
        facts
    }

    fn answers(more: &[(&str, &str)]) -> Answers {
        let mut answers = Answers::default();
        for (name, text) in [("model", "base"), ("data", "x.jsonl")].iter().chain(more) {
            answers.set(name, text, Origin::Flag).unwrap();
        }
        answers
    }

    #[test]
    fn a_base_that_declares_no_head_gets_one_from_another_model_if_its_family_has_heads() {
        let mut bare = model("Qwen/Qwen3.5-0.8B");
        bare.config.mtp_num_hidden_layers = 0;
        assert_eq!(resolve(&answers(&[]), &facts(bare.clone())).unwrap().mtp, Mtp::None);
        let plan = resolve(&answers(&[("mtp-from", "donor")]), &facts(bare.clone())).unwrap();
        assert_eq!((plan.mtp, plan.model.mtp_from.as_deref()), (Mtp::Trained, Some("donor")));
        let with_its_own = resolve(&answers(&[]), &facts(model("Qwen/Qwen3.5-0.8B"))).unwrap();
        let memory = |plan: &Plan| plan.advice.as_ref().unwrap().memory.clone();
        assert_eq!(memory(&plan), memory(&with_its_own), "the head is counted");
        let error = resolve(&answers(&[("mtp-from", "donor"), ("mtp", "none")]), &facts(bare))
            .unwrap_err()
            .to_string();
        assert!(error.contains("--mtp-from is donor, but the MTP head is left out"), "{error}");
        let without_heads = facts(of_a_family_without_heads());
        let error = resolve(&answers(&[("mtp-from", "donor")]), &without_heads).unwrap_err().to_string();
        assert!(error.contains("--mtp-from is donor, but sparktune knows no MTP head"), "{error}");
    }

    #[test]
    fn the_plan_of_the_head_alone_has_its_steps_its_time_and_its_memory_and_no_method() {
        let facts = facts(model("Qwen/Qwen3.5-0.8B"));
        let flags = [("mtp-epochs", "2"), ("rank", "1"), ("method", "lora")];
        let whole = resolve(&answers(&flags), &facts).unwrap();
        let alone = resolve_head(&answers(&flags), &facts, Method::Head).unwrap();
        assert!(alone.is_of_head_alone() && !whole.is_of_head_alone());
        assert_eq!(alone.method, Method::Head);
        assert_eq!(Plan::from_toml(&alone.to_toml().unwrap(), "plan.toml").unwrap(), alone);
        let [of_whole, of_alone] = [&whole, &alone].map(|plan| plan.advice.clone().unwrap());
        assert_eq!(of_alone.time.steps, 2 * of_alone.time.steps_per_epoch);
        assert!(of_alone.time.total_s().unwrap() < of_whole.time.total_s().unwrap());
        let Time { start_s, finish_s, .. } = of_alone.time;
        let head_s = of_alone.time.total_s().unwrap() - finish_s.unwrap() - start_s.unwrap();
        assert!((head_s / of_whole.time.mtp_s.unwrap() - 1.0).abs() < 1e-9);
        assert!(of_alone.time.finish_s > Some(0.0));
        assert!(of_alone.memory.needed_bytes() <= of_whole.memory.needed_bytes());
        let rows = |key: &str| of_alone.explain.iter().filter(|row| row.key.starts_with(key)).count();
        assert_eq!((rows("method."), rows("head.")), (1, 3));
        let text = summary(&alone);
        assert!(text.contains("how   only the MTP head, on the finished text model, on cpu"), "{text}");
        let steps = format!(
            "steps about {} (about {} per epoch, 2 epochs)",
            of_alone.time.steps, of_alone.time.steps_per_epoch
        );
        assert!(text.contains(&steps), "{text}");
        assert!(!text.contains("LoRA") && !text.contains("; 8,192 for the MTP head"), "{text}");

        let few = [&flags[..], &[("max-steps", "1")]].concat();
        let few = resolve_head(&answers(&few), &facts, whole.method).unwrap();
        assert_eq!((few.advice.unwrap().time.steps, few.method), (1, whole.method));
        let error = resolve_head(&answers(&[]), &self::facts(of_a_family_without_heads()), Method::Head);
        let error = error.unwrap_err().to_string();
        assert!(error.contains("--model is base, which has no MTP head to train"), "{error}");
    }
}
