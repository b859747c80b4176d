//! Decides which layers get adapters and their dropout, and takes what it can from the adapter that a run
//! starts from.

use std::path::Path;

use sparktune_base::escape::escape;

use crate::adapter::AdapterFacts;
use crate::answer::{Answer, Origin};
use crate::choices::MethodKind;
use crate::error::PlanError;
use crate::facts::{ParentFacts, ParentWeights};
use crate::resolve::{Resolver, setting};
use crate::shown::Shown;
use crate::targets::{ALL_LINEAR, TargetModules, words_of};

impl<'a> Resolver<'a> {
    /// Returns the run or adapter to start from, once it was looked up.
    fn parent(&self) -> Option<&'a ParentFacts> {
        let given = &self.answers.from.as_ref()?.value;
        self.facts.parent.as_ref().filter(|parent| parent.given == *given)
    }

    /// Returns the adapter to start from.
    pub(crate) fn adapter_of_parent(&self) -> Option<AdapterFacts> {
        match self.parent()?.weights {
            ParentWeights::Adapter { adapter, .. } => Some(adapter),
            ParentWeights::Model(_) => None,
        }
    }

    /// Decides what the run starts from. Returns its folder.
    pub(crate) fn start_from(&mut self, model: &str) -> Result<Option<String>, PlanError> {
        const KEY: &str = "model.from";
        let Some(answer) = &self.answers.from else {
            self.record(KEY, String::new(), Origin::BuiltIn, "nothing: the model as it is published".into());
            return Ok(None);
        };
        let Some(ParentFacts { folder, step, weights, .. }) = self.parent() else {
            self.record(KEY, answer.value.clone(), answer.origin, "not looked up yet".into());
            return Ok(Some(answer.value.clone()));
        };
        let step = step.map(|step| format!(" of step {step}")).unwrap_or_default();
        let what = match weights {
            ParentWeights::Adapter { .. } => format!("its adapter{step} is trained further"),
            ParentWeights::Model(merged) => {
                if Path::new(model) != merged && self.facts.model.path.as_ref() != Some(merged) {
                    return Err(PlanError::Conflict {
                        key: KEY,
                        what: format!(
                            "{} is a run that trained all weights, which are the model in {}, but the model is {}",
                            setting(KEY).place(answer.origin),
                            escape(&merged.display().to_string()),
                            escape(model)
                        ),
                        fix: "Choose that folder as the model".into(),
                    });
                }
                format!("its exported weights{step} are the model that is trained")
            }
        };
        let (folder, origin) = (folder.clone(), answer.origin);
        let reason = format!(
            "{what}, with a new optimizer, schedule and seed; the loss before the first step is that of these weights"
        );
        self.record(KEY, folder.clone(), origin, reason);
        Ok(Some(folder))
    }

    /// Takes a value from the adapter that the run starts from. Another answer of the user is refused, and
    /// one of a preset is ignored.
    pub(crate) fn inherited<T: Shown + Clone + PartialEq>(
        &mut self,
        key: &'static str,
        answer: &Option<Answer<T>>,
        of_parent: T,
    ) -> Result<T, PlanError> {
        let other = answer.as_ref().filter(|answer| answer.value != of_parent);
        if let Some(answer) = other.filter(|answer| answer.origin > Origin::Preset) {
            return Err(self.not_of_parent(key, answer.value.shown(), answer.origin, &of_parent.shown()));
        }
        let origin =
            answer.as_ref().filter(|_| other.is_none()).map_or(Origin::BuiltIn, |answer| answer.origin);
        self.record(key, of_parent.shown(), origin, "as in the adapter that the run starts from".into());
        Ok(of_parent)
    }

    fn not_of_parent(&self, key: &'static str, value: String, origin: Origin, of_parent: &str) -> PlanError {
        let merged = match self.parent().map(|parent| &parent.weights) {
            Some(ParentWeights::Adapter { merged: Some(merged), .. }) => {
                format!("the merged model, --model {}", escape(&merged.display().to_string()))
            }
            _ => "a model into which the adapter was merged, with --model".to_owned(),
        };
        PlanError::Conflict {
            key,
            what: format!(
                "{} is {}, but the adapter of --from has {of_parent}, and is trained further as it is",
                setting(key).place(origin),
                escape(&value)
            ),
            fix: format!("Omit it, or start from {merged}, instead of --from"),
        }
    }

    /// Decides which layers get adapters.
    pub(crate) fn target_modules(&mut self, kind: MethodKind) -> Result<TargetModules, PlanError> {
        const KEY: &str = "method.target_modules";
        if kind == MethodKind::Full {
            return Ok(TargetModules::ALL);
        }
        let (answer, config) = (&self.answers.target_modules, &self.facts.model.config);
        let asked = match answer {
            None => None,
            Some(Answer { value, origin }) => {
                let set = TargetModules::of_words(value, config).map_err(|word| PlanError::Conflict {
                    key: KEY,
                    what: format!(
                        "{} is {}, but this model has no linear layer `{}`",
                        setting(KEY).place(*origin),
                        escape(&value.shown()),
                        escape(word)
                    ),
                    fix: format!("Use some of {}", words_of(config)),
                })?;
                Some((set, *origin))
            }
        };
        if let Some(AdapterFacts { targets, .. }) = self.adapter_of_parent() {
            let other = asked.filter(|(set, origin)| *set != targets && *origin > Origin::Preset);
            if let (Some((_, origin)), Some(answer)) = (other, answer) {
                let of_parent = targets.to_string();
                return Err(self.not_of_parent(KEY, answer.value.shown(), origin, &of_parent));
            }
            let same = asked.filter(|(set, _)| *set == targets);
            let origin = same.map_or(Origin::BuiltIn, |(_, origin)| origin);
            let reason = "as in the adapter that the run starts from";
            self.record(KEY, targets.words().shown(), origin, reason.into());
            return Ok(targets);
        }
        self.pick(
            KEY,
            answer,
            vec![ALL_LINEAR.to_owned()],
            "every linear layer of the decoder, as in the Qwen3.5 recipe; with fewer, adapters are smaller and can learn less",
        );
        Ok(asked.map_or(TargetModules::ALL, |(set, _)| set))
    }

    /// Decides the dropout of adapters. It belongs to the training and not to the weights, so another one
    /// than the parent's can be chosen.
    pub(crate) fn dropout(&mut self, parent: Option<AdapterFacts>) -> f64 {
        let reason = "off, as in the Qwen3.5 recipe; it may help where several epochs of little data overfit";
        let (recommended, reason) = match parent.map(|parent| parent.dropout) {
            Some(share) if share > 0.0 => {
                (share, "as in the training of the adapter that the run starts from")
            }
            _ => (0.0, reason),
        };
        self.pick("method.dropout", &self.answers.lora_dropout, recommended, reason)
    }

    /// The answers that only adapters can follow, each with its place and its name in a sentence.
    pub(crate) fn said_of_adapters(&self) -> impl Iterator<Item = (&'static str, &'static str)> {
        let answers = self.answers;
        // `rslora = false` and a dropout of 0 ask for nothing.
        let rslora = answers.rslora.as_ref().is_some_and(|answer| answer.value);
        let dropout = answers.lora_dropout.as_ref().is_some_and(|answer| answer.value > 0.0);
        let said = [
            (answers.rank.is_some(), "method.rank", "a rank"),
            (answers.alpha.is_some(), "method.alpha", "an alpha"),
            (rslora, "method.rslora", "rslora"),
            (answers.target_modules.is_some(), "method.target_modules", "a choice of target modules"),
            (dropout, "method.dropout", "a dropout"),
        ];
        said.into_iter().filter(|(is_said, ..)| *is_said).map(|(_, key, what)| (key, what))
    }

    /// Refuses full fine-tuning together with answers that only adapters can follow. Where the method was
    /// said above them, as by the user who lays a preset's adapters aside, they are passed over.
    pub(crate) fn refuse_adapters_without_lora(&self) -> Result<(), PlanError> {
        let answers = self.answers;
        let Some(method) = answers.method.as_ref().filter(|method| method.value == MethodKind::Full) else {
            return Ok(());
        };
        for (key, _) in self.said_of_adapters() {
            let (Some(value), Some(origin)) = (answers.text(key), answers.origin(key)) else { continue };
            if origin < method.origin {
                continue;
            }
            let place = setting(key).place(origin);
            return Err(PlanError::Conflict {
                key,
                what: format!(
                    "{} is full, which has no adapters, but {place} is {value}",
                    setting("method.kind").place(method.origin),
                ),
                fix: format!("Omit {place}, or use --method lora"),
            });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::Catalog;
    use crate::facts::{DataFacts, Facts, MachineFacts, Rates};
    use crate::plan::{Method, Plan};
    use crate::resolve::resolve;
    use crate::settings::Answers;

    fn facts(parent: Option<ParentWeights>) -> Facts {
        let catalog = Catalog::shipped();
        let mem = 500_000_000_000;
        let parent = parent.map(|weights| ParentFacts {
            given: "latest".into(),
            folder: "/runs/first".into(),
            step: Some(600),
            weights,
        });
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
        let model = catalog.model_facts(catalog.find("Qwen/Qwen3.5-0.8B").unwrap());
        Facts { machine, model, data, rates: Rates::default(), parent }
    }

    fn adapter() -> ParentWeights {
        let targets = TargetModules::of_names(["q_proj", "v_proj"]).unwrap();
        ParentWeights::Adapter {
            adapter: AdapterFacts {
                rank: 24,
                alpha: 12.0,
                rslora: true,
                clipped: true,
                targets,
                dropout: 0.05,
            },
            merged: Some("/runs/first/outputs/merged".into()),
        }
    }

    fn plan(parent: Option<ParentWeights>, said: &[(&str, &str, Origin)]) -> Result<Plan, String> {
        let mut answers = Answers::default();
        for (name, text) in [("model", "Qwen/Qwen3.5-0.8B"), ("data", "x.jsonl")] {
            answers.set(name, text, Origin::Flag).unwrap();
        }
        if parent.is_some() {
            answers.set("from", "latest", Origin::Flag).unwrap();
        }
        for (name, text, origin) in said {
            answers.set(name, text, *origin).unwrap();
        }
        resolve(&answers, &facts(parent)).map_err(|error| error.to_string())
    }

    #[test]
    fn an_adapter_keeps_its_rank_scale_and_layers_and_its_dropout_unless_another_is_chosen() {
        let preset = [("rank", "8", Origin::Preset), ("method", "full", Origin::Preset)];
        let same = [("rank", "24", Origin::Flag), ("target-modules", "v_proj,q_proj", Origin::Flag)];
        let other = [("lora-dropout", "0.1", Origin::Flag)];
        let none = [("lora-dropout", "0", Origin::Flag)];
        for (said, dropout) in [(&[][..], 0.05), (&preset, 0.05), (&same, 0.05), (&other, 0.1), (&none, 0.0)]
        {
            let plan = plan(Some(adapter()), said).unwrap();
            let target_modules = TargetModules::of_names(["q_proj", "v_proj"]).unwrap();
            let method =
                Method::Lora { rank: 24, alpha: 12.0, rslora: true, clipped: true, target_modules, dropout };
            assert_eq!(plan.method, method, "{said:?}");
            assert_eq!(plan.model.from.as_deref(), Some("/runs/first"));
            let rows = plan.advice.unwrap().explain;
            let of_dropout = rows.iter().find(|row| row.key == "method.dropout").unwrap();
            assert!(of_dropout.reason.contains("as in the training of the adapter"), "{}", of_dropout.reason);
            let from = rows.iter().find(|row| row.key == "model.from").unwrap();
            assert!(from.reason.contains("its adapter of step 600 is trained further"), "{}", from.reason);
        }
        for (name, text) in [
            ("rank", "8"),
            ("alpha", "2"),
            ("rslora", "false"),
            ("target-modules", "mlp"),
            ("method", "full"),
        ] {
            let error = plan(Some(adapter()), &[(name, text, Origin::Flag)]).unwrap_err();
            assert!(error.contains(&format!("--{name} is {text}, but the adapter of --from has")), "{error}");
            assert!(error.contains("--model /runs/first/outputs/merged"), "{error}");
        }
    }

    #[test]
    fn all_weights_of_a_run_are_the_model_and_no_other_model_goes_with_them() {
        let merged = || ParentWeights::Model("Qwen/Qwen3.5-0.8B".into());
        let plan_of_model = plan(Some(merged()), &[("rank", "8", Origin::Flag)]).unwrap();
        assert_eq!(plan_of_model.method.rank(), 8);
        let error = plan(Some(ParentWeights::Model("/runs/first/outputs/merged".into())), &[]).unwrap_err();
        assert!(
            error.contains("are the model in /runs/first/outputs/merged, but the model is Qwen"),
            "{error}"
        );
    }

    #[test]
    fn fewer_layers_need_less_memory_and_work_and_a_name_that_the_model_lacks_is_refused_with_the_list() {
        // The training of the head would need the most memory of both.
        let no_head = ("mtp", "none", Origin::Flag);
        let all = plan(None, &[no_head]).unwrap();
        assert!(
            !all.to_toml().unwrap().contains("target_modules = [") && all.method.target_modules().is_all()
        );
        let few = plan(None, &[no_head, ("target-modules", "q_proj,v_proj", Origin::Flag)]).unwrap();
        let text = few.to_toml().unwrap();
        assert_eq!(Plan::from_toml(&text, "plan.toml").unwrap(), few);
        assert_eq!(few.method.target_modules().to_string(), "q_proj, v_proj");
        let [all, few] = [all, few].map(|plan| plan.advice.unwrap());
        assert!(
            few.memory.adapters * 10 < all.memory.adapters && few.memory.gradients < all.memory.gradients,
            "{:?} {:?}",
            few.memory,
            all.memory
        );
        assert!(few.time.flops_per_token < all.time.flops_per_token);
        for word in ["query", "lm_head"] {
            let error = plan(None, &[("target-modules", word, Origin::Flag)]).unwrap_err();
            assert!(error.contains(&format!("no linear layer `{word}`")), "{error}");
            assert!(
                error.contains("all-linear, attention, mlp, ") && error.contains("in_proj_qkv"),
                "{error}"
            );
        }
    }

    #[test]
    fn dropout_takes_time_which_grows_with_the_layers_that_have_adapters() {
        let time = |more: &[(&str, &str, Origin)]| {
            let plan = plan(None, &[&[("mtp", "none", Origin::Flag)][..], more].concat()).unwrap();
            let time = plan.advice.unwrap().time;
            (time.train_s.unwrap(), time.formula)
        };
        let (dropout, few) = (("lora-dropout", "0.1", Origin::Flag), ("target-modules", "mlp", Origin::Flag));
        let added = |with: &[_], without: &[_]| time(with).0 - time(without).0;
        let of_all = added(&[dropout], &[]);
        let of_few = added(&[few, dropout], &[few]);
        assert!(of_few > 0.0 && of_all > 1.5 * of_few, "{of_all} {of_few}");
        // 7 numbers of 4 bytes at 20 GB/s, for each input of the adapters and each trained token.
        assert!(time(&[dropout]).1.contains(" for dropout"), "{}", time(&[dropout]).1);
        assert!(!time(&[]).1.contains("dropout"));
    }

    #[test]
    fn what_only_adapters_have_is_refused_for_all_weights() {
        for (name, text) in [("target-modules", "mlp"), ("lora-dropout", "0.1")] {
            let error =
                plan(None, &[("method", "full", Origin::Flag), (name, text, Origin::Flag)]).unwrap_err();
            assert!(error.contains("which has no adapters"), "{error}");
        }
    }
}
