//! The table of settings. Each has one row with everything about it.
//!
//! A row gives its field in [`Answers`], its type, its place in TOML (the same as in `plan.toml`, so that the
//! plan of an old run is itself a preset), its name as a flag, its description, and its place in the
//! interfaces. Heading and page are required; the other fields of [`Setting`] may be left out where
//! [`Setting::BARE`] is right. The text form of values is defined in `values`; reading and merging layers of
//! answers, in `answers`.

use std::path::{Path, PathBuf};

use sparktune_base::choices::{Overlong, PackStrategy, Think, TrainOn};
use sparktune_base::field_map::FieldMap;

use crate::answer::{Answer, Origin};
use crate::choices::{
    Architecture, CombineRanks, DataFormat, DeviceChoice, Exported, MethodKind, Mtp, OnDamage, Products,
    Sentry,
};
use crate::setting::Page::{AllSettings, Essential, Own};
use crate::setting::Step::{By, Double, OneTwoFive};
use crate::setting::{Completes, Heading as In, Kind, Limit, Number, Setting};
use crate::sync::SyncPlan;
use crate::template_kwargs::TemplateKwargs;
use crate::values::{Texts, Value, text_of, written};
use crate::weights::Weights;

/// The form in which an answer was given.
pub(crate) enum Given<'a> {
    /// A value in a file.
    Toml(&'a toml::Value),
    /// A single text.
    Text(&'a str),
    /// The words after a flag.
    Words(&'a [&'a str]),
}

impl Given<'_> {
    fn read<T: Value>(&self) -> Option<T> {
        match self {
            Self::Toml(value) => T::from_toml(value),
            Self::Text(text) => T::from_text(text),
            Self::Words(words) => T::from_words(words),
        }
    }
}

macro_rules! settings {
    ($(
        $field:ident: $type:ty = $key:literal, $name:literal, $about:literal {
            heading: $heading:expr, page: $page:expr $(, $more:ident: $value:expr)* $(,)?
        }
    )+) => {
        /// All answers a user may give. The plan decides everything else.
        #[derive(Debug, Clone, Default, PartialEq)]
        pub struct Answers { $(#[doc = $about] pub $field: Option<Answer<$type>>,)+ }

        /// All settings, in the order of `plan.toml`.
        pub const SETTINGS: &[Setting] = &[$(
            Setting {
                key: $key, name: $name, about: $about, kind: <$type as Value>::KIND,
                heading: $heading, page: $page, $($more: $value,)* ..Setting::BARE
            }.checked(),
        )+];

        impl Answers {
            /// Merges `above` into these answers: the higher origin wins, and `above` wins among equal
            /// origins.
            #[must_use]
            pub fn merge(self, above: Self) -> Self {
                Self { $($field: stronger(self.$field, above.$field),)+ }
            }

            /// Returns the origin of the answer with this key, if there is one.
            pub fn origin(&self, key: &str) -> Option<Origin> {
                match key { $($key => self.$field.as_ref().map(|answer| answer.origin),)+ _ => None }
            }

            /// Returns the answer with this key as a number, if it is one.
            pub(crate) fn number(&self, key: &str) -> Option<f64> {
                match key { $($key => self.$field.as_ref()?.value.number(),)+ _ => None }
            }

            /// The paths of the answer at this place, where it has any.
            pub(crate) fn paths(&self, key: &str) -> Vec<&Path> {
                match key {
                    $($key => self.$field.as_ref().map_or_else(Vec::new, |answer| answer.value.paths()),)+
                    _ => Vec::new(),
                }
            }

            pub(crate) fn text(&self, key: &str) -> Option<String> {
                match key { $($key => text_of(&self.$field.as_ref()?.value),)+ _ => None }
            }

            /// Returns the answer with this key as the words after its flag.
            pub(crate) fn words(&self, key: &str) -> Option<Vec<String>> {
                match key { $($key => self.$field.as_ref()?.value.to_words(),)+ _ => None }
            }

            pub(crate) fn toml(&self, key: &str) -> Option<toml::Value> {
                match key { $($key => written(&self.$field.as_ref()?.value),)+ _ => None }
            }

            pub(crate) fn forget(&mut self, key: &str) {
                match key { $($key => self.$field = None,)+ _ => {} }
            }

            /// Sets an answer. Returns false if it cannot be read or is out of the setting's range.
            pub(crate) fn store(&mut self, setting: &Setting, given: Given<'_>, origin: Origin) -> bool {
                match setting.key {
                    $($key => match given.read::<$type>() {
                        Some(value) if setting.allows(value.number()) => {
                            self.$field = Some(Answer::new(value, origin));
                        }
                        _ => return false,
                    },)+
                    _ => return false,
                }
                true
            }
        }
    };
}

fn stronger<T>(below: Option<Answer<T>>, above: Option<Answer<T>>) -> Option<Answer<T>> {
    match (below, above) {
        (Some(below), Some(above)) if below.origin > above.origin => Some(below),
        (below, above) => above.or(below),
    }
}

impl Setting {
    /// The defaults for fields that a row leaves out.
    const BARE: Self = Self {
        key: "",
        name: "",
        about: "",
        kind: Kind::Text,
        number: None,
        heading: In::Run,
        page: AllSettings,
        is_common: false,
        completes: Completes::Nothing,
        aliases: &[],
        nearest_to: &[],
        reads_data: false,
        of_one_run: false,
        of_check: false,
        is_required: false,
    };

    /// Returns the setting with this key in TOML.
    pub fn of(key: &str) -> Option<&'static Self> {
        SETTINGS.iter().find(|setting| setting.key == key)
    }

    /// Returns the setting with this command-line name.
    pub fn named(name: &str) -> Option<&'static Self> {
        SETTINGS.iter().find(|setting| setting.name == name)
    }
}

/// The upper limit of seeds, because of the range of TOML integers.
const SEEDS: f64 = (1u64 << 63) as f64;
/// The upper limit of steps, far beyond any real run.
const STEPS: f64 = (1u64 << 40) as f64;
/// The upper limit of tokens at once, far beyond any model.
const TOKENS: f64 = (1u32 << 30) as f64;

settings! {
    preset: String = "preset", "preset", "Preset to start from: the name of a preset, or the path of a TOML file." {
        heading: In::Run, page: Own, is_common: true, completes: Completes::Presets, of_one_run: true,
    }
    seed: u64 = "seed", "seed", "Random seed for shuffling and for the initial adapters; the eval set does not depend on it." {
        heading: In::Run, page: AllSettings, is_common: true, number: Some(Number::between(0.0, SEEDS, By(1.0))),
    }
    device: DeviceChoice = "device", "device", "Where to train; auto uses the GPU if there is a usable one, otherwise the CPU." {
        heading: In::Device, page: AllSettings, is_common: true,
    }
    recompute: bool = "recompute", "recompute", "Save memory by recomputing activations in the backward pass instead of storing them." {
        heading: In::Device, page: Essential(9), aliases: &["gradient-checkpointing", "grad-checkpointing"],
    }
    fp8: bool = "fp8", "fp8", "Compute wide linear layers in fp8 (e4m3); lossy; needs a GPU of compute capability 8.9 or newer." {
        heading: In::Device, page: AllSettings,
    }
    products: Products = "products", "products", "Who computes the matrix products on a GPU: own always uses sparktune's kernels; auto leaves each to cuBLASLt where that is installed, was measured to be faster, and its numbers differ by rounding alone." {
        heading: In::Device, page: AllSettings,
    }
    mtp: Mtp = "mtp", "mtp", "Train the MTP head, keep the base model's head, or leave it out." {
        heading: In::Mtp, page: AllSettings, is_common: true,
    }
    draft_vocab: u32 = "draft_vocab", "draft-vocab", "Let the MTP head draft only from this many tokens, the most frequent in the training data; by default all." {
        heading: In::Mtp, page: AllSettings,
        number: Some(Number::between(1.0, TOKENS, Double).within(Limit::Vocabulary).starting_at("32768")),
    }
    export: Exported = "export", "export", "Export the weights with the lowest held-out loss, or those of the last step." {
        heading: In::Evaluation, page: Essential(7), is_common: true,
    }
    runs_dir: PathBuf = "runs_dir", "runs-dir", "Folder in which the runs are stored." {
        heading: In::Run, page: AllSettings, is_common: true, completes: Completes::Folders,
        nearest_to: &["output-dir", "output"], reads_data: true, of_one_run: true,
    }
    name: String = "name", "name", "Name of the run's folder." {
        heading: In::Run, page: AllSettings, is_common: true, aliases: &["run-name"], of_one_run: true,
    }
    model: String = "model.id", "model", "Model to fine-tune: a Hugging Face id (org/name), a local folder, or demo for the included model." {
        heading: In::Model, page: Own, is_common: true, completes: Completes::Models,
        aliases: &["base-model", "model-name", "model-name-or-path"], nearest_to: &["model-path", "tokenizer"], of_one_run: true,
        of_check: true, is_required: true,
    }
    revision: String = "model.revision", "revision", "Commit, tag or branch of the model." {
        heading: In::Model, page: Own, of_one_run: true, of_check: true,
    }
    architecture: Architecture = "model.architecture", "architecture", "Treat a model of an unknown family as one of this family." {
        heading: In::Model, page: Own, of_one_run: true, of_check: true,
    }
    ignore_config_field: Vec<String> = "model.ignored_fields", "ignore-config-field", "Ignore this unknown field of config.json; several can be given." {
        heading: In::Model, page: Own, of_one_run: true, of_check: true,
    }
    chat_template: PathBuf = "model.chat_template", "chat-template", "Render conversations with the chat template in this file instead of the model's own; exported models get it too." {
        heading: In::Model, page: Essential(18), completes: Completes::Files, reads_data: true, of_one_run: true,
        of_check: true,
    }
    mtp_from: String = "model.mtp_from", "mtp-from", "Take the MTP head from this model, for a base whose weights have none." {
        heading: In::Mtp, page: AllSettings, completes: Completes::Models, of_one_run: true,
    }
    from: String = "model.from", "from", "Start from the weights of a run (its folder, a unique beginning of its name, or latest) or of a PEFT adapter's folder." {
        heading: In::Model, page: AllSettings, is_common: true, completes: Completes::Folders,
        aliases: &["from-run", "adapter", "adapter-path", "adapter-name-or-path"],
        nearest_to: &["init-from", "finetune-from", "lora-model-dir"],
        reads_data: true, of_one_run: true,
    }
    write_template_default: bool = "model.write_template_default", "write-template-default", "Write the template variables into the exported chat template as its defaults, so that a server needs no flag for them." {
        heading: In::Model, page: AllSettings,
    }
    data: Vec<PathBuf> = "data.train", "data", "Training data: files of JSON Lines, CSV, TSV, Parquet or raw text, folders that contain them, data sets of the hub (hf:OWNER/NAME), or token files (.qubgpu), also of another machine (ndp://…)." {
        heading: In::Data, page: Own, is_common: true, completes: Completes::Files,
        aliases: &["dataset", "train-data", "train-file"], reads_data: true, of_one_run: true, is_required: true,
    }
    weights: Weights = "data.weights", "weight", "How often an epoch trains each example of a data set, called as it is given to --data: 2 is twice, 0.5 half of them." {
        heading: In::Data, page: AllSettings, nearest_to: &["weights", "data-weights", "mix-probs"], of_one_run: true,
        of_check: true,
    }
    eval_data: Vec<PathBuf> = "data.eval", "eval-data", "Files, folders, data sets of the hub (hf:OWNER/NAME) or token files of the eval set, to use instead of a share of the training data." {
        heading: In::Data, page: AllSettings, is_common: true, completes: Completes::Files,
        aliases: &["eval-file", "validation-data", "validation-file"], reads_data: true, of_one_run: true,
        of_check: true,
    }
    eval_fraction: f64 = "data.eval_fraction", "eval-fraction", "Share of the examples set aside as the eval set (0.02 = 2 %)." {
        heading: In::Data, page: Essential(11), number: Some(Number::between(0.0, 0.5, By(0.01))),
        nearest_to: &["val-size", "test-size", "val-set-size"], reads_data: true,
    }
    format: DataFormat = "data.format", "format", "Format of the data; auto detects it for each file." {
        heading: In::Data, page: AllSettings, reads_data: true, of_check: true,
    }
    map: FieldMap = "data.map", "map", "What the columns of the data stand for, if no format fits: question=instruction,answer=output." {
        heading: In::Data, page: AllSettings, aliases: &["column-mapping"], reads_data: true, of_one_run: true, of_check: true,
    }
    think: Think = "data.think", "think", "Train on the empty think block that the chat template adds, or skip it." {
        heading: In::Data, page: AllSettings, reads_data: true, of_check: true,
    }
    train_on: TrainOn = "data.train_on", "train-on", "Train all assistant turns of a conversation, or only the last." {
        heading: In::Data, page: Essential(14), nearest_to: &["mask-history"], reads_data: true, of_check: true,
    }
    split_turns: bool = "data.split_turns", "split-turns", "Make each trained turn an example of its own, after the conversation before it as a server renders it." {
        heading: In::Data, page: Essential(15), reads_data: true, of_check: true,
    }
    template_kwargs: TemplateKwargs = "data.template_kwargs", "template-kwargs", "Variables for the chat template, as a JSON object; a server has to set the same ones." {
        heading: In::Data, page: Essential(17), aliases: &["chat-template-kwargs"], reads_data: true, of_check: true,
    }
    max_example_tokens: u32 = "data.max_example_tokens", "max-example-tokens", "Largest number of tokens of an example." {
        heading: In::Data, page: AllSettings, number: Some(Number::between(2.0, TOKENS, Double).within(Limit::Context)),
        nearest_to: &["max-tokens"],
        reads_data: true, of_check: true,
    }
    overlong: Overlong = "data.overlong", "overlong", "What becomes of an example that is too long: auto splits raw text and leaves anything else out, drop leaves it out, truncate cuts off its end, split makes examples of whole turns or pieces of raw text." {
        heading: In::Data, page: Essential(16), reads_data: true, of_check: true,
    }
    max_rejected: f64 = "data.max_rejected", "max-rejected", "Stop if more than this share of the lines is rejected (0.01 = 1 %)." {
        heading: In::Data, page: AllSettings, is_common: true, number: Some(Number::between(0.0, 1.0, By(0.01))),
        of_check: true,
    }
    on_damage: OnDamage = "data.on_damage", "on-damage", "What becomes of damaged examples in token files: stop refuses the file, drop leaves them out and counts them." {
        heading: In::Data, page: AllSettings, reads_data: true, of_check: true,
    }
    crc_drop: f64 = "data.crc_drop", "crc-drop", "Share of examples dropped at random in each epoch, as augmentation." {
        heading: In::Data, page: AllSettings, number: Some(Number::between(0.0, 0.9, By(0.01))),
    }
    method: MethodKind = "method.kind", "method", "What to train: LoRA adapters or all weights." {
        heading: In::Method, page: Essential(1), is_common: true,
    }
    rank: u32 = "method.rank", "rank", "LoRA rank; each adapter's is clipped to the smaller width of its layer." {
        heading: In::Method, page: Essential(3), is_common: true,
        number: Some(Number::between(1.0, 65_536.0, Double).within(Limit::HiddenSize)), aliases: &["lora-rank", "lora-r"],
    }
    alpha: f64 = "method.alpha", "alpha", "LoRA alpha; the adapters are scaled by alpha / rank." {
        heading: In::Method, page: AllSettings, is_common: true, number: Some(Number::between(1e-6, 1e6, Double)),
        aliases: &["lora-alpha"],
    }
    rslora: bool = "method.rslora", "rslora", "Scale the adapters by alpha / sqrt(rank) instead of alpha / rank." {
        heading: In::Method, page: AllSettings, aliases: &["use-rslora"],
    }
    target_modules: Vec<String> = "method.target_modules", "target-modules", "Linear layers that get adapters: all-linear, attention, mlp, or names such as q_proj,v_proj." {
        heading: In::Method, page: AllSettings,
        aliases: &["lora-target-modules", "lora-target", "lora-targets"],
    }
    lora_dropout: f64 = "method.dropout", "lora-dropout", "Share of the adapters' inputs that is set to 0 at random in training." {
        heading: In::Method, page: AllSettings, number: Some(Number::between(0.0, 0.9, By(0.05))),
        aliases: &["dropout"],
    }
    pack_length: u32 = "pack.length", "pack-length", "Length of a pack, the sequence that several examples share, in tokens." {
        heading: In::Batch, page: Essential(2), is_common: true,
        number: Some(Number::between(16.0, TOKENS, By(128.0)).within(Limit::Context)),
        nearest_to: &["max-seq-length", "max-seq-len", "max-length", "cutoff-len", "seq-length", "sequence-len"],
    }
    mtp_pack_length: u32 = "pack.mtp_length", "mtp-pack-length", "Length of a pack while the MTP head is trained, in tokens." {
        heading: In::Mtp, page: AllSettings, number: Some(Number::between(16.0, TOKENS, By(128.0)).within(Limit::Context)),
    }
    pack_strategy: PackStrategy = "pack.strategy", "pack-strategy", "How examples share a pack: bfd never splits an example, stream cuts at the end of each pack." {
        heading: In::Batch, page: Essential(10), nearest_to: &["pack", "packing", "sample-packing"],
    }
    micro_batch_packs: u32 = "batch.micro_batch_packs", "micro-batch-packs", "Packs that the model processes at once." {
        heading: In::Batch, page: AllSettings, number: Some(Number::between(1.0, 65_536.0, By(1.0))),
        nearest_to: &["micro-batch-size", "per-device-train-batch-size"],
    }
    grad_accum_steps: u32 = "batch.grad_accum_steps", "grad-accum-steps", "Micro-batches per optimizer step." {
        heading: In::Batch, page: Essential(5), is_common: true, number: Some(Number::between(1.0, 65_536.0, By(1.0))),
        aliases: &["gradient-accumulation-steps", "gradient-accumulation", "grad-accum"], nearest_to: &["batch-size", "train-batch-size", "per-device-batch-size"],
    }
    sync: SyncPlan = "batch.sync", "sync", "When several ranks exchange what they learned: step, in every step, which is exact; or diloco:H, after H steps alone, for slow links, which is another training." {
        heading: In::Batch, page: AllSettings,
    }
    learning_rate: f64 = "optimizer.learning_rate", "learning-rate", "Peak learning rate." {
        heading: In::Optimizer, page: Essential(6), is_common: true, number: Some(Number::between(1e-12, 1.0, OneTwoFive)),
        aliases: &["lr"],
    }
    min_lr_ratio: f64 = "optimizer.min_lr_ratio", "min-lr-ratio", "Learning rate at the end of the cosine schedule, as a share of the peak." {
        heading: In::Optimizer, page: AllSettings, number: Some(Number::between(0.0, 1.0, By(0.05))), nearest_to: &["min-lr"],
    }
    warmup_ratio: f64 = "optimizer.warmup_ratio", "warmup-ratio", "Share of the steps during which the learning rate warms up." {
        heading: In::Optimizer, page: AllSettings, number: Some(Number::between(0.0, 0.9, By(0.01))),
        nearest_to: &["warmup-steps", "warmup"],
    }
    beta1: f64 = "optimizer.beta1", "beta1", "AdamW's decay rate of the first moment." {
        heading: In::Optimizer, page: AllSettings, number: Some(Number::between(0.0, 0.999_999, By(0.05))),
        aliases: &["adam-beta1"],
    }
    beta2: f64 = "optimizer.beta2", "beta2", "AdamW's decay rate of the second moment." {
        heading: In::Optimizer, page: AllSettings, number: Some(Number::between(0.0, 0.999_999_9, By(0.005))),
        aliases: &["adam-beta2"],
    }
    eps: f64 = "optimizer.eps", "eps", "AdamW's epsilon." {
        heading: In::Optimizer, page: AllSettings, number: Some(Number::between(1e-20, 1e-2, OneTwoFive)),
        aliases: &["adam-epsilon"],
    }
    weight_decay: f64 = "optimizer.weight_decay", "weight-decay", "Weight decay, applied to matrices only." {
        heading: In::Optimizer, page: AllSettings, number: Some(Number::between(0.0, 1.0, OneTwoFive)),
    }
    clip_norm: f64 = "optimizer.clip_norm", "clip-norm", "Clip gradients to this global norm." {
        heading: In::Optimizer, page: AllSettings, number: Some(Number::between(1e-6, 1e6, By(0.1))),
        aliases: &["max-grad-norm", "grad-clip"],
    }
    epochs: f64 = "duration.epochs", "epochs", "Passes over the training data; a fraction ends within one." {
        heading: In::Duration, page: Essential(4), is_common: true, number: Some(Number::between(0.001, 10_000.0, By(1.0))),
        aliases: &["num-epochs", "num-train-epochs"],
    }
    max_steps: u64 = "duration.max_steps", "max-steps", "Stop after this many optimizer steps." {
        heading: In::Duration, page: Essential(12), is_common: true,
        number: Some(Number::between(1.0, STEPS, OneTwoFive).starting_at("1000")),
    }
    mtp_learning_rate: f64 = "head.learning_rate", "mtp-learning-rate", "Peak learning rate of the MTP head." {
        heading: In::Mtp, page: AllSettings, number: Some(Number::between(1e-12, 1.0, OneTwoFive)),
    }
    mtp_epochs: u32 = "head.epochs", "mtp-epochs", "Passes over the training data for the MTP head." {
        heading: In::Mtp, page: AllSettings, number: Some(Number::between(1.0, 10_000.0, By(1.0))),
    }
    mtp_draft_tokens: u32 = "head.draft_tokens", "mtp-draft-tokens", "Train the MTP head to draft this many tokens in a row." {
        heading: In::Mtp, page: AllSettings, number: Some(Number::between(1.0, 4.0, By(1.0))),
    }
    save_steps: u64 = "checkpoint.save_steps", "save-steps", "Optimizer steps between checkpoints." {
        heading: In::Checkpoints, page: Essential(13), is_common: true, number: Some(Number::between(1.0, STEPS, By(50.0))),
    }
    save_minutes: u32 = "checkpoint.save_minutes", "save-minutes", "Longest time between checkpoints, in minutes." {
        heading: In::Checkpoints, page: AllSettings, number: Some(Number::between(1.0, 100_000.0, By(5.0))),
    }
    keep: u32 = "checkpoint.keep", "keep", "Number of checkpoints every save-steps to keep, each with the one that was best by then; the newest is always kept." {
        heading: In::Checkpoints, page: AllSettings, number: Some(Number::between(1.0, 10_000.0, By(1.0))),
        aliases: &["save-total-limit"],
    }
    eval_every_steps: u64 = "eval.every_steps", "eval-every-steps", "Optimizer steps between evaluations." {
        heading: In::Evaluation, page: AllSettings, number: Some(Number::between(1.0, STEPS, By(50.0))), aliases: &["eval-steps"],
    }
    early_stop_patience: u32 = "eval.early_stop_patience", "early-stop-patience", "Stop after this many evaluations without a lower loss." {
        heading: In::Evaluation, page: Essential(8), number: Some(Number::between(1.0, 10_000.0, By(1.0)).starting_at("3")),
        aliases: &["early-stopping-patience", "patience"],
    }
    sample_count: u32 = "eval.sample_count", "sample-count", "Number of sample answers generated at each evaluation." {
        heading: In::Evaluation, page: AllSettings, number: Some(Number::between(0.0, 1000.0, By(1.0))),
    }
    sample_prompts: Texts = "sample_prompts", "sample-prompt", "Prompt of your own, which is answered at each evaluation like those of the eval set; can be repeated." {
        heading: In::Evaluation, page: AllSettings,
    }
    sample_max_tokens: u32 = "eval.sample_max_tokens", "sample-max-tokens", "Maximum length of a sample answer, in tokens." {
        heading: In::Evaluation, page: AllSettings, number: Some(Number::between(1.0, 1_048_576.0, By(32.0))),
    }
    sentry: Sentry = "ranks.sentry", "sentry", "With several ranks, judge each rank's gradient before it counts: off, warn of those that differ from the others, or drop them." {
        heading: In::Device, page: AllSettings,
    }
    sentry_sigma: f64 = "ranks.sentry_sigma", "sentry-sigma", "Deviations from what is usual beyond which a rank's gradient is clipped or dropped." {
        heading: In::Device, page: AllSettings, number: Some(Number::between(1.0, 100.0, By(0.5))),
    }
    combine_ranks: CombineRanks = "ranks.combine", "combine-ranks", "With several ranks, add their gradients; or take the trimmed mean or the median of each number, which trains something else." {
        heading: In::Device, page: AllSettings,
    }
    swarm: bool = "ranks.swarm", "swarm", "With several ranks, go on without one that is gone: the others do the step again." {
        heading: In::Device, page: AllSettings,
    }
    silence_s: u32 = "ranks.silence_s", "silence-s", "Seconds after which a rank that says nothing is gone, with --swarm." {
        heading: In::Device, page: AllSettings, number: Some(Number::between(2.0, 30.0, By(1.0))),
    }
    tensorboard: bool = "log.tensorboard", "tensorboard", "Also write event files for TensorBoard." {
        heading: In::Run, page: AllSettings,
    }
}
