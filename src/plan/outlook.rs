//! Estimates for each model on this machine, before one is chosen: whether it fits, with which pack length,
//! and its speed.
//!
//! Enters: machine, past speeds, and the data if it is known; then one model after the other. Leaves: an
//! [`Outlook`] for a row of a table. The figures are those of `resolve` without answers and without the check
//! of the disk.

use sparktune_base::choices::PackStrategy;
use sparktune_base::units::{bytes, count, counted};

use crate::choices::{Device, MethodKind};
use crate::eta;
use crate::facts::{DataFacts, MachineFacts, ModelFacts, Rates};
use crate::fit::{Choice, Constraints, Fit};
use crate::memory::Memory;
use crate::packing::Lengths;
use crate::plan::RateBasis;
use crate::remedies::{smaller_ranks, usual_rank};
use crate::targets::TargetModules;

/// Returns the data set that is assumed while none is known: chats of ordinary length.
pub fn assumed_data() -> DataFacts {
    DataFacts {
        examples: 10_000,
        total_tokens: 8_000_000,
        target_tokens: 3_200_000,
        p50: 620,
        p90: 1500,
        p99: 3000,
        max: 4096,
        histogram: Vec::new(),
        ..DataFacts::default()
    }
}

/// Computes outlooks. Use one value for all rows of a table, because it packs the data only once.
pub struct Outlooks<'a> {
    machine: &'a MachineFacts,
    rates: &'a Rates,
    data: DataFacts,
    is_assumed: bool,
    lengths: Lengths,
}

/// The estimates for one model, for each method of training.
#[derive(Debug, Clone, PartialEq)]
pub struct Outlook {
    /// With LoRA adapters.
    pub lora: MethodOutlook,
    /// With full fine-tuning.
    pub full: MethodOutlook,
}

/// The estimates for one method of training.
#[derive(Debug, Clone, PartialEq)]
pub struct MethodOutlook {
    /// Which parameters would be trained.
    pub method: MethodKind,
    /// The rank of the adapters: the usual one, or the largest that fits; 0 for full fine-tuning.
    pub rank: u32,
    /// The longest pack that fits into the memory, in steps of 128 tokens and up to the model's own limit;
    /// `None` when none does.
    pub longest_pack: Option<u32>,
    /// The pack length that the plan would choose; `None` when the data does not fit.
    pub pack_length: Option<u32>,
    /// Whether layers would be computed again in the backward pass.
    pub recompute: bool,
    /// The memory needed with that pack length, or by the setting that comes closest to fitting.
    pub memory: Memory,
    /// Tokens per second with that pack length, if there is a basis for an estimate.
    pub tokens_per_s: Option<f64>,
    /// The basis of that figure.
    pub basis: RateBasis,
    /// The basis of that figure, in words.
    pub basis_in_words: String,
}

impl MethodOutlook {
    /// Returns whether the data can be trained on this machine.
    pub const fn fits(&self) -> bool {
        self.pack_length.is_some()
    }

    /// Describes whether it fits: `pack length 4,096: 41.0 GB of 119 GB, with recompute; rows up to 26,240
    /// tokens fit`.
    pub fn fit_in_words(&self) -> String {
        let memory =
            format!("{} of {}", bytes(self.memory.needed_bytes()), bytes(self.memory.available_bytes));
        let again = if self.recompute { ", with recompute" } else { "" };
        match (self.pack_length, self.longest_pack) {
            (Some(length), longest) => {
                let longest = count(longest.unwrap_or(length).into());
                format!(
                    "pack length {}: {memory}{again}; packs of up to {longest} tokens fit",
                    count(length.into())
                )
            }
            (None, Some(longest)) => {
                let longest = count(longest.into());
                format!(
                    "the longest example does not fit: it needs {memory}; packs of up to {longest} tokens fit"
                )
            }
            (None, None) => format!("does not fit: needs {memory}"),
        }
    }
}

impl<'a> Outlooks<'a> {
    /// Creates an estimator. Without `data`, chats of ordinary length are assumed. Training is on the GPU if
    /// `machine` has one, otherwise on the CPU.
    pub fn new(machine: &'a MachineFacts, rates: &'a Rates, data: Option<&DataFacts>) -> Self {
        let known = data.filter(|data| data.examples > 0 && data.total_tokens > 0 && data.max > 0);
        let data = known.cloned().unwrap_or_else(assumed_data);
        let lengths = Lengths::of(&data, u32::MAX);
        Self { machine, rates, is_assumed: known.is_none(), lengths, data }
    }

    /// Describes the data that the figures are for, as a note below the table.
    pub fn data_in_words(&self) -> String {
        let DataFacts { examples, max, .. } = self.data;
        let lengths = format!(
            "{} of {:.0} tokens on average, the longest {}",
            counted(examples, "example"),
            self.data.mean(),
            count(max.into())
        );
        if self.is_assumed {
            format!("assuming {lengths}, until you choose data")
        } else {
            format!("your data: {lengths}")
        }
    }

    /// Returns the outlook of a model; `name` is the id that its measured speeds are stored under.
    pub fn of(&self, name: &str, model: &ModelFacts) -> Outlook {
        let device = if self.machine.gpus.is_empty() { Device::Cpu } else { Device::Cuda };
        let fit = Fit::new(model, self.machine, &self.data, device, PackStrategy::Bfd, self.lengths.clone());
        let fit = Fit { lengths: fit.lengths.up_to(fit.limit), ..fit };
        Outlook {
            lora: self.method(name, &fit, MethodKind::Lora),
            full: self.method(name, &fit, MethodKind::Full),
        }
    }

    fn method(&self, name: &str, fit: &Fit, method: MethodKind) -> MethodOutlook {
        let rank = if method == MethodKind::Lora { usual_rank(fit.model.config.hidden_size) } else { 0 };
        let usual = Constraints {
            method,
            rank,
            targets: TargetModules::ALL,
            recompute: None,
            pack_length: None,
            micro_batch_packs: None,
        };
        let chosen = fit.choose(&usual).map(|choice| (usual, choice));
        let chosen = chosen.or_else(|memory| {
            let mut smaller = smaller_ranks(rank).into_iter().map(|rank| Constraints { rank, ..usual });
            smaller.find_map(|constraints| Some((constraints, fit.choose(&constraints).ok()?))).ok_or(memory)
        });
        let (constraints, choice, memory) = match chosen {
            Ok((constraints, choice)) => {
                let step = fit.step_packs(&choice.packs, 1.0 - self.data.held_out_share());
                let packs = fit.largest_micro_batch(&constraints, &choice, step);
                let choice = fit.with_micro_batch(&constraints, choice, packs);
                (constraints, Some(choice.clone()), choice.memory)
            }
            Err(memory) => (usual, None, *memory),
        };
        let (tokens_per_s, basis, basis_in_words) = match &choice {
            Some(choice) => eta::speed(name, self.rates, fit, &constraints, choice),
            None => (None, RateBasis::Unknown, "it does not fit".to_owned()),
        };
        MethodOutlook {
            method,
            rank: constraints.rank,
            longest_pack: longest_pack(fit, &constraints),
            pack_length: choice.as_ref().map(|choice| choice.pack_length),
            recompute: choice.as_ref().is_some_and(|choice: &Choice| choice.recompute),
            memory,
            tokens_per_s: tokens_per_s.filter(|rate| rate.is_finite() && *rate > 0.0),
            basis,
            basis_in_words,
        }
    }
}

/// Returns the longest pack that fits with recompute. The search relies on memory growing with the number of
/// tokens.
fn longest_pack(fit: &Fit, constraints: &Constraints) -> Option<u32> {
    const STEP: u32 = 128;
    let fits = |pack: u32| fit.memory_of_pack(constraints, pack, true).fits();
    if fits(fit.limit) {
        return Some(fit.limit);
    }
    let (mut fitting, mut over) = (0, fit.limit.div_ceil(STEP));
    while over - fitting > 1 {
        let middle = fitting + (over - fitting) / 2;
        *(if fits(middle * STEP) { &mut fitting } else { &mut over }) = middle;
    }
    (fitting > 0).then_some(fitting * STEP)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::Catalog;
    use crate::facts::{Facts, Gpu, GpuMemory, LengthBucket, Rate};
    use crate::measured::Measured;
    use crate::{Answer, Answers, resolve};

    fn spark() -> MachineFacts {
        MachineFacts {
            mem_total_bytes: 128_500_000_000,
            mem_available_bytes: 119_000_000_000,
            cores: 20,
            cpu_speed: None,
            gpus: vec![Gpu {
                name: "NVIDIA GB10".into(),
                memory: GpuMemory::Unified,
                compute_capability: Some((12, 1)),
            }],
            ..MachineFacts::default()
        }
    }

    fn of(id: &str, machine: &MachineFacts, data: Option<&DataFacts>) -> Outlook {
        let catalog = Catalog::shipped();
        let model = catalog.model_facts(catalog.find(id).unwrap());
        Outlooks::new(machine, &Rates::default(), data).of(id, &model)
    }

    #[test]
    fn a_spark_trains_small_models_whole_and_all_of_them_with_adapters() {
        for model in &Catalog::shipped().models {
            let outlook = of(&model.id, &spark(), None);
            assert!(outlook.lora.fits(), "{} {}", model.id, outlook.lora.fit_in_words());
            let small = ["0.8B", "2B", "4B"].contains(&model.shape.as_str());
            assert_eq!(outlook.full.fits(), small, "{} {}", model.id, outlook.full.fit_in_words());
        }
        let two = of("Qwen/Qwen3.5-2B", &spark(), None);
        assert_eq!((two.lora.tokens_per_s, two.lora.basis), (Some(3461.0), RateBasis::OriginalRecipe));
        assert_eq!((two.full.tokens_per_s, two.full.basis), (Some(3173.0), RateBasis::OriginalRecipe));
        let large = of("Qwen/Qwen3.5-27B", &spark(), None).full;
        assert!(large.fit_in_words().starts_with("does not fit: needs"), "{}", large.fit_in_words());
        assert_eq!((large.longest_pack, large.tokens_per_s), (None, None));
    }

    #[test]
    fn the_longest_pack_fits_and_one_step_more_does_not() {
        let outlook = of("Qwen/Qwen3.5-27B", &spark(), None).lora;
        let longest = outlook.longest_pack.unwrap();
        let catalog = Catalog::shipped();
        let facts = |max: u32| Facts {
            machine: spark(),
            model: catalog.model_facts(catalog.find("Qwen/Qwen3.5-27B").unwrap()),
            data: DataFacts { max, p99: max, ..assumed_data() },
            rates: Rates::default(),
            parent: None,
        };
        let answers = Answers {
            model: Some(Answer::flag("Qwen/Qwen3.5-27B".into())),
            data: Some(Answer::flag(vec!["x.jsonl".into()])),
            rank: Some(Answer::flag(outlook.rank)),
            ..Answers::default()
        };
        assert!(resolve(&answers, &facts(longest)).is_ok(), "{longest}");
        assert!(resolve(&answers, &facts(longest + 128)).is_err(), "{longest}");
    }

    #[test]
    fn the_table_says_what_the_plan_will_say() {
        let data = DataFacts {
            histogram: (1..=200).map(|i| LengthBucket { up_to: i * 41, count: 5000 }).collect(),
            examples: 1_000_000,
            total_tokens: 1_500_000_000,
            target_tokens: 700_000_000,
            p50: 1200,
            p90: 3000,
            p99: 6000,
            max: 8200,
            ..DataFacts::default()
        };
        let (machine, rates) = (spark(), Rates::default());
        let outlooks = Outlooks::new(&machine, &rates, Some(&data));
        assert!(outlooks.data_in_words().starts_with("your data: 1,000,000 examples of 1500 tokens"));
        let catalog = Catalog::shipped();
        for model in &catalog.models {
            let facts = catalog.model_facts(model);
            let outlook = outlooks.of(&model.id, &facts);
            for outlook in [&outlook.lora, &outlook.full] {
                let answers = Answers {
                    model: Some(Answer::flag(model.id.clone())),
                    data: Some(Answer::flag(vec!["x.jsonl".into()])),
                    method: Some(Answer::flag(outlook.method)),
                    ..Answers::default()
                };
                let facts = Facts {
                    machine: machine.clone(),
                    model: facts.clone(),
                    data: data.clone(),
                    rates: rates.clone(),
                    parent: None,
                };
                let plan = resolve(&answers, &facts).ok();
                assert_eq!(outlook.pack_length, plan.as_ref().map(|plan| plan.pack.length), "{}", model.id);
                let Some(plan) = plan else { continue };
                let advice = plan.advice.unwrap();
                assert_eq!(
                    (outlook.rank, outlook.recompute),
                    (plan.method.rank(), plan.recompute),
                    "{}",
                    model.id
                );
                assert_eq!(
                    (outlook.tokens_per_s, &outlook.memory),
                    (advice.time.tokens_per_s, &advice.memory)
                );
            }
        }
    }

    #[test]
    fn without_data_the_assumption_is_named_and_a_measured_speed_is_preferred() {
        let (machine, catalog) = (spark(), Catalog::shipped());
        let rate = Rate {
            tokens_per_s: 2000.0,
            flops_per_token: 12e9,
            dropout_s_per_token: 0.0,
            model: "Qwen/Qwen3.5-2B".into(),
            device: "NVIDIA GB10".into(),
            method: MethodKind::Full,
        };
        let rates = Rates { rates: vec![rate], ..Rates::default() };
        let outlooks = Outlooks::new(&machine, &rates, Some(&DataFacts::default()));
        assert!(outlooks.data_in_words().starts_with("assuming 10,000 examples"));
        let model = catalog.model_facts(catalog.find("Qwen/Qwen3.5-2B").unwrap());
        let outlook = outlooks.of("Qwen/Qwen3.5-2B", &model);
        assert_eq!(outlook.full.basis, RateBasis::MeasuredHere);
        assert_eq!(outlook.lora.basis, RateBasis::OriginalRecipe);
    }

    #[test]
    fn a_size_measured_on_such_a_device_is_told_from_one_that_is_carried_over() {
        let page = crate::measured::tests::PAGE.replace("NVIDIA Made-up", "NVIDIA GB10");
        let measured = Measured::from_page(&page).unwrap();
        let rates = Rates { measured, ..Rates::default() };
        let (machine, catalog) = (spark(), Catalog::shipped());
        let outlooks = Outlooks::new(&machine, &rates, None);
        let lora = |id: &str| outlooks.of(id, &catalog.model_facts(catalog.find(id).unwrap())).lora;
        assert_eq!(lora("Qwen/Qwen3.5-2B-Base").basis, RateBasis::Measured);
        let four = lora("Qwen/Qwen3.5-4B");
        assert_eq!(four.basis, RateBasis::Estimate);
        assert!(four.basis_in_words.contains("10,000 tokens/s with 2B"), "{}", four.basis_in_words);
    }

    /// The 27B leaves room for 17,536 tokens beside its weights, and so do its siblings.
    #[test]
    fn a_spark_has_room_for_32_768_tokens_with_every_model_but_the_27b_and_for_131_072_with_the_2b() {
        for model in &Catalog::shipped().models {
            let Outlook { lora, full } = of(&model.id, &spark(), None);
            for outlook in [lora, full].into_iter().filter(MethodOutlook::fits) {
                let expected = match model.shape.as_str() {
                    "0.8B" | "2B" => 131_072..=u32::MAX,
                    "27B" => 16_384..=32_767,
                    _ => 32_768..=u32::MAX,
                };
                let longest = outlook.longest_pack.unwrap();
                assert!(expected.contains(&longest), "{} {}", model.id, outlook.fit_in_words());
            }
        }
    }

    #[test]
    fn a_plan_has_room_for_one_document_of_131_072_tokens() {
        let catalog = Catalog::shipped();
        let facts = Facts {
            machine: spark(),
            model: catalog.model_facts(catalog.find("Qwen/Qwen3.5-2B").unwrap()),
            data: DataFacts { max: 131_072, ..assumed_data() },
            rates: Rates::default(),
            parent: None,
        };
        for method in [MethodKind::Lora, MethodKind::Full] {
            let answers = Answers {
                model: Some(Answer::flag("Qwen/Qwen3.5-2B".into())),
                data: Some(Answer::flag(vec!["x.jsonl".into()])),
                method: Some(Answer::flag(method)),
                ..Answers::default()
            };
            let memory = resolve(&answers, &facts).unwrap().advice.unwrap().memory;
            assert!(memory.fits() && memory.activations > 30_000_000_000, "{method} {memory:?}");
        }
    }

    #[test]
    fn a_machine_too_small_for_the_longest_example_says_which_packs_fit() {
        let machine = MachineFacts {
            mem_total_bytes: 8_000_000_000,
            mem_available_bytes: 7_500_000_000,
            cores: 2,
            ..MachineFacts::default()
        };
        let data = DataFacts { max: 32_768, ..assumed_data() };
        let outlook = of("Qwen/Qwen3.5-0.8B", &machine, Some(&data)).lora;
        assert!(!outlook.fits() && outlook.longest_pack.is_some(), "{}", outlook.fit_in_words());
        assert!(outlook.fit_in_words().contains("tokens fit"), "{}", outlook.fit_in_words());
        assert!(!of("Qwen/Qwen3.5-9B", &machine, None).lora.fits());
    }
}
