//! Makes a plan from answers and facts. Each value is decided once, with its reason.
//!
//! An answer of the user is used or refused, never changed silently. Everything else follows a rule, and the
//! reason contains its figures. Related files: refusals in `ranges`, what the machine and the model can do in
//! `abilities`, shapes that slow a GPU down in `without_kernels`, the turns that become examples in `turns`,
//! what token files decide in `packed`, method and size in `sizing` (with `fit` and `remedies`), the schedule
//! of steps in `schedule`, duration in `eta`.

use std::path::PathBuf;

use sparktune_base::choices::PackStrategy;
use sparktune_base::field_map::FieldMap;
use sparktune_base::held_out;
use sparktune_base::units::{bytes, count, counted, parameters, percent};

use crate::answer::{Answer, Origin};
use crate::answers::MODEL_PATH;
use crate::choices::{CombineRanks, DataFormat, Device, MethodKind, Mtp, OnDamage, Products, Sentry};
use crate::error::{Missing, PlanError};
use crate::eta;
use crate::facts::Facts;
use crate::fit::{Constraints, Fit};
use crate::head_of_another::{head_of_another, no_head_to_train};
use crate::judgement::too_little_to_judge;
use crate::packing::Lengths;
use crate::plan::{Advice, DataPlan, DurationPlan, Explained, LogPlan, Method, ModelPlan, Plan, RanksPlan};
use crate::ranges::{check_data, check_paths, check_ranges, model_limit};
use crate::setting::Setting;
use crate::settings::{Answers, SETTINGS};
use crate::shown::Shown;
use crate::sync::SyncPlan;
use crate::targets::TargetModules;
use crate::without_kernels;

/// Returns the missing answers that no rule can supply and without which there is no plan; empty if there are
/// none.
pub fn missing(answers: &Answers) -> Vec<Missing> {
    SETTINGS
        .iter()
        .filter(|setting| setting.is_required && answers.origin(setting.key).is_none())
        .map(|setting| Missing {
            key: setting.key,
            flag: format!("--{}", setting.name),
            env: setting.env(),
            about: setting.about,
        })
        .collect()
}

/// Makes the plan.
///
/// # Errors
/// All missing answers at once; an answer that is out of its range or contradicts another; data without
/// trained tokens; a device that cannot be used; a plan that does not fit into memory or on the disk, with
/// changes that would make it fit.
pub fn resolve(answers: &Answers, facts: &Facts) -> Result<Plan, PlanError> {
    let missing = missing(answers);
    if !missing.is_empty() {
        return Err(PlanError::Missing(missing));
    }
    resolve_with(answers, facts, None)
}

/// Makes the plan of `head`: only the MTP head is trained, on a finished text model that was trained with
/// this method.
///
/// # Errors
/// The same as for [`resolve`]; a model without an MTP head.
pub fn resolve_head(answers: &Answers, facts: &Facts, finished: Method) -> Result<Plan, PlanError> {
    let missing = missing(answers);
    if !missing.is_empty() {
        return Err(PlanError::Missing(missing));
    }
    resolve_with(answers, facts, Some(finished))
}

fn resolve_with(answers: &Answers, facts: &Facts, finished: Option<Method>) -> Result<Plan, PlanError> {
    check_paths(answers)?;
    check_ranges(answers, facts)?;
    check_data(facts)?;
    let with_head = head_of_another(answers, facts)?;
    let facts = with_head.as_ref().unwrap_or(facts);
    if finished.is_some() && !facts.model.has_mtp() {
        return Err(no_head_to_train(answers));
    }
    Resolver { answers, facts, finished, explain: Vec::new(), warnings: Vec::new() }.plan()
}

pub(crate) fn setting(key: &str) -> &'static Setting {
    Setting::of(key).expect("keys in this crate are in the table")
}

pub(crate) struct Resolver<'a> {
    pub answers: &'a Answers,
    pub facts: &'a Facts,
    /// The method of the finished text model, if only the MTP head is trained.
    pub finished: Option<Method>,
    explain: Vec<Explained>,
    warnings: Vec<String>,
}

/// The settings that decide how far the weights move. Ten times more or less of them is usually a mistake.
const DECISIVE: [&str; 4] =
    ["optimizer.learning_rate", "optimizer.clip_norm", "batch.grad_accum_steps", "duration.epochs"];

/// Returns how many times larger or smaller a value is than the recommendation, if it is ten times or more.
fn times_off(value: &str, recommended: &str) -> Option<f64> {
    let ratio = value.parse::<f64>().ok()? / recommended.parse::<f64>().ok()?;
    let factor = ratio.max(1.0 / ratio);
    // 2e-3 is a little less than ten times 2e-4 in binary.
    (factor.is_finite() && factor > 9.99).then_some(factor)
}

impl Resolver<'_> {
    pub(crate) fn record(&mut self, key: &str, value: String, origin: Origin, reason: String) {
        self.explain.push(Explained { key: key.into(), value, origin, reason });
    }

    /// Returns the answer, or else the recommendation. The reason of an answer names the recommendation.
    pub(crate) fn pick<T: Shown + Clone + PartialEq>(
        &mut self,
        key: &str,
        answer: &Option<Answer<T>>,
        recommended: T,
        reason: impl Into<String>,
    ) -> T {
        let reason = reason.into();
        let Some(answer) = answer else {
            self.record(key, recommended.shown(), Origin::BuiltIn, reason);
            return recommended;
        };
        let (value, usual) = (answer.value.shown(), recommended.shown());
        let is_own = answer.origin > Origin::Preset;
        let factor = times_off(&value, &usual).filter(|_| is_own && DECISIVE.contains(&key));
        if let Some(factor) = factor {
            self.warnings.push(format!(
                "{} is {value}, but {usual} is recommended here, and the two differ {}-fold. If that is not intended, omit it",
                setting(key).place(answer.origin),
                count(factor.round() as u64)
            ));
        }
        let reason = if answer.value == recommended {
            format!("as recommended: {reason}")
        } else {
            format!("recommended was {usual}: {reason}")
        };
        self.record(key, value, answer.origin, reason);
        answer.value.clone()
    }

    pub(crate) fn warn(&mut self, warning: String) {
        self.warnings.push(warning);
    }

    /// Returns an answer that has no recommendation.
    pub(crate) fn pick_optional<T: Shown + Clone>(
        &mut self,
        key: &str,
        answer: &Option<Answer<T>>,
        without: &str,
    ) -> Option<T> {
        match answer {
            Some(answer) => {
                self.record(key, answer.value.shown(), answer.origin, "as given".into());
                Some(answer.value.clone())
            }
            None => {
                self.record(key, String::new(), Origin::BuiltIn, without.into());
                None
            }
        }
    }

    fn plan(mut self) -> Result<Plan, PlanError> {
        let (answers, facts) = (self.answers, self.facts);
        let mut model = self.model();
        model.from = self.start_from(&model.id)?;
        let preset = self.pick_optional("preset", &answers.preset, "none: the built-in rules decide");
        let seed = self.pick("seed", &answers.seed, 42, "any fixed number will do");
        let runs_dir =
            self.pick("runs_dir", &answers.runs_dir, Plan::RUNS_DIR.into(), "in the current folder");
        let name = self.pick_optional("name", &answers.name, "made from the time, the model and the method");
        let device = self.device()?;
        if device == Device::Cuda {
            self.warnings.extend(without_kernels::warnings(&facts.model.config));
        }
        let fp8 = self.fp8(device)?;
        let products = self.products(device);
        let mtp = self.mtp(&model.id)?;
        let draft_vocab = self.draft_vocab(mtp)?;
        model.mtp_from = self.mtp_from(mtp)?;
        let data = self.data()?;
        model.write_template_default = self.write_template_default(&data.template_kwargs)?;

        let strategy = self.pick(
            "pack.strategy",
            &answers.pack_strategy,
            PackStrategy::Bfd,
            "best-fit decreasing never splits an example; `stream` splits at the pack length, as the Qwen3.5 recipe does",
        );
        let sets = self.shares(&data)?;
        let has_weights = sets.iter().any(|set| set.weight != 1.0);
        let lengths = if has_weights {
            let weighted: Vec<_> = facts
                .data
                .sets
                .iter()
                .zip(&sets)
                .map(|(set, share)| (set.lengths.clone(), share.weight))
                .collect();
            Lengths::of_epoch(&weighted, data.max_example_tokens)
        } else {
            Lengths::of(&facts.data, data.max_example_tokens)
        };
        let fit = Fit::new(&facts.model, &facts.machine, &facts.data, device, strategy, lengths);
        let longest = fit.longest.min(data.max_example_tokens);
        let library = device == Device::Cuda && products == Products::Auto;
        let fit = Fit { longest, host_copies: self.host_copies(), library, ..fit };
        if fit.lengths.examples() == 0.0 {
            return Err(PlanError::Data {
                key: "data.max_example_tokens",
                what: format!(
                    "every example is longer than data.max_example_tokens = {}",
                    count(data.max_example_tokens.into())
                ),
                fix: "Raise it, or omit it to use the model's own limit".into(),
            });
        }

        let free = Constraints {
            method: MethodKind::Lora,
            rank: 0,
            targets: TargetModules::ALL,
            recompute: answers.recompute.as_ref().map(|answer| answer.value),
            pack_length: answers.pack_length.as_ref().map(|answer| answer.value),
            micro_batch_packs: answers.micro_batch_packs.as_ref().map(|answer| answer.value),
        };
        let (method, choice) = self.method_and_fit(&fit, free)?;
        let constraints = Constraints {
            method: method.kind(),
            rank: method.rank(),
            targets: method.target_modules(),
            ..free
        };
        // Other examples are dropped in each epoch, so every epoch is that much shorter.
        // The lengths of weighted sets are without the eval set already.
        let trained = if has_weights { 1.0 } else { 1.0 - data.eval_fraction };
        let train_share = trained * (1.0 - data.crc_drop);
        let (micro_batch_packs, choice) = self.micro_batch_packs(&fit, &constraints, choice, train_share);
        let constraints = Constraints { micro_batch_packs: Some(micro_batch_packs), ..constraints };
        let recompute = self.recompute(&fit, &constraints, &choice);
        let mut pack = self.pack(&fit, &choice);

        let (batch, steps_per_epoch) = self.batch(&fit, &choice, micro_batch_packs, train_share);
        // The memory figures apply to the whole run.
        let mut memory = choice.memory.clone();
        let head = self.head(mtp)?;
        if let Some((length, of_head)) = self.head_pack(&fit, &constraints, &choice, batch, head)? {
            pack.mtp_length = Some(length);
            if of_head.needed_bytes() > memory.needed_bytes() || self.finished.is_some() {
                memory = of_head;
            }
        }
        let duration = self.duration();
        let of_head = head.map(|head| (head, eta::head_steps(&fit, pack, batch, train_share)));
        // The epochs and the number of steps of what the run is about.
        let (epochs, steps_per_epoch) = match of_head {
            Some((head, steps)) if head.alone => (f64::from(head.epochs), steps),
            _ => (duration.epochs, steps_per_epoch),
        };
        let length = DurationPlan { epochs, ..duration.clone() };
        let steps = length.steps(steps_per_epoch);
        let steps_of_head = of_head.map_or(0, |(head, steps)| steps.saturating_mul(head.epochs.into()));
        let is_of_head = of_head.is_some_and(|(head, _)| head.alone);
        let raise = if is_of_head { "head.epochs" } else { "duration.epochs" };
        self.warn_of_a_limit_that_is_not_reached(steps, steps_of_head, &length, raise);
        let (optimizer, recommended_rate) = self.optimizer(method);
        // A file of its own counts as the usual share.
        let eval_share = if data.eval.is_empty() { data.eval_fraction } else { held_out::SHARE };
        let (checkpoint, eval) =
            self.checkpoints_and_evals(&fit, method, &length, steps_per_epoch, eval_share, mtp)?;
        let export = self.exported_weights(eval_share > 0.0)?;
        let sample_prompts = self.sample_prompts(eval_share > 0.0)?;
        self.warn_of_too_little_to_judge(eval_share);
        let ranks = self.ranks(batch.sync)?;
        let tensorboard = self.pick(
            "log.tensorboard",
            &answers.tensorboard,
            true,
            "about 200 bytes per step; `tensorboard --logdir` with the runs folder shows all runs",
        );
        let mut time = eta::time(&eta::Run {
            fit: &fit,
            constraints: &constraints,
            choice: &choice,
            model: &model.id,
            rates: &facts.rates,
            train_share,
            steps_per_epoch,
            steps,
            epochs,
            micro_batch_packs,
            head: of_head.map(|(head, steps)| (head, eta::head_epochs(steps, &duration, head))),
            has_dropout: method.dropout() > 0.0,
            head_steps: of_head.map_or(0, |(head, steps)| {
                (eta::head_epochs(steps, &duration, head) * steps as f64).round() as u64
            }),
            measured_heads: match mtp {
                Mtp::Trained => 2 + u32::from(draft_vocab.is_some()),
                Mtp::Default if facts.model.has_mtp() => 1 + u32::from(draft_vocab.is_some()),
                Mtp::Default | Mtp::None => 0,
            },
            evals: (eval_share > 0.0).then(|| eta::Evals {
                tokens: match facts.data.eval_set.filter(|_| !data.eval.is_empty()) {
                    Some(of_its_own) => of_its_own.total_tokens as f64,
                    None => eval_share * facts.data.total_tokens as f64,
                },
                plan: eval,
                own_prompts: sample_prompts.0.len(),
            }),
        });
        if fp8 {
            time.formula.push_str("; the effect of fp8 is not included, because its speed is unmeasured");
        }
        self.record_time(&time, &length);
        if self.finished == Some(Method::Head) {
            // The plan of adapters was only a means to choose the packs.
            self.explain.retain(|row| !row.key.starts_with("method."));
            let reason = "only the MTP head is trained, on the model as it is".to_owned();
            self.record("method.kind", Method::Head.word().to_owned(), Origin::Flag, reason);
        }

        let order = |key: &str| {
            let beside = if key == MODEL_PATH { "model.revision" } else { key };
            SETTINGS.iter().position(|setting| setting.key == beside).unwrap_or(SETTINGS.len())
        };
        self.explain.sort_by_key(|row| order(&row.key));
        let advice = Advice {
            recipe_pack_length: fit.rule,
            recommended_learning_rate: Some(recommended_rate),
            warnings: self.warnings,
            sets: if has_weights || sets.len() > 1 { sets } else { Vec::new() },
            memory,
            time,
            explain: self.explain,
            curve: choice.curve,
        };
        Ok(Plan {
            preset,
            seed,
            device,
            recompute,
            fp8,
            products,
            mtp,
            draft_vocab,
            export,
            sample_prompts,
            runs_dir,
            name,
            model,
            data,
            method: self.finished.unwrap_or(method),
            pack,
            batch,
            optimizer,
            duration,
            head,
            checkpoint,
            eval,
            ranks,
            log: LogPlan { tensorboard },
            advice: Some(advice),
        })
    }

    /// Decides whether the vendor's library may compute matrix products.
    fn products(&mut self, device: Device) -> Products {
        let answer = &self.answers.products;
        let capability = self.facts.machine.gpus.first().and_then(|gpu| gpu.compute_capability);
        let (recommended, why) = match (device, Products::recommended(capability)) {
            (Device::Cpu, _) => (Products::Own, "the CPU has one way"),
            (Device::Cuda, Products::Auto) => (
                Products::Auto,
                "cuBLASLt uses instructions of this GPU that sparktune's kernels do not; each product is timed, and its numbers are compared. With own, every run with the same seed has the same bits",
            ),
            (Device::Cuda, Products::Own) => (
                Products::Own,
                "cuBLASLt multiplies by the same instructions on this GPU; with auto each product is measured, and its last bits may differ between runs",
            ),
        };
        self.pick("products", answer, recommended, why)
    }

    /// Returns how many f32 copies of the trained parameters ranks keep over TCP: DiLoCo the weights of the
    /// last exchange, the outer momentum and the changes that are averaged; a sentry that drops, and ranks
    /// that are combined in another way than by their sum, all contributions to a rank's chunks until it is
    /// known what counts. Engines that add unseen take two with any sentry, but a plan does not know the
    /// engine.
    fn host_copies(&self) -> u32 {
        let answers = self.answers;
        if answers.sync.as_ref().is_some_and(|sync| !sync.value.is_step()) {
            return 3;
        }
        let drops = answers.sentry.as_ref().is_some_and(|sentry| sentry.value == Sentry::Drop);
        let combines = answers.combine_ranks.as_ref().is_some_and(|how| how.value != CombineRanks::Sum);
        u32::from(drops || combines)
    }

    /// Decides how several ranks train together, if there are.
    fn ranks(&mut self, sync: SyncPlan) -> Result<RanksPlan, PlanError> {
        const SIGMA: &str = "ranks.sentry_sigma";
        const SILENCE: &str = "ranks.silence_s";
        if !sync.is_step() {
            for key in ["ranks.sentry", SIGMA, "ranks.combine"] {
                self.pass_over(key, "ranks that exchange rarely exchange no gradients", "--sync step")?;
            }
            for key in ["ranks.swarm", SILENCE] {
                let why = "ranks that exchange rarely have different weights, so none can be missed";
                self.pass_over(key, why, "--sync step")?;
            }
            return Ok(RanksPlan::default());
        }
        let answers = self.answers;
        let reason = "ranks are trusted, and `drop` takes the memory of another gradient";
        let sentry = self.pick("ranks.sentry", &answers.sentry, Sentry::Off, reason);
        let sentry_sigma = if sentry == Sentry::Off {
            self.pass_over(SIGMA, "no rank's gradient is judged", "--sentry warn or drop")?;
            RanksPlan::SIGMA
        } else {
            let reason = "the rates of false alarms and of lies that are found are measured for it";
            self.pick(SIGMA, &answers.sentry_sigma, RanksPlan::SIGMA, reason)
        };
        let reason = "only their sum is the gradient of the loss";
        let combine = self.pick("ranks.combine", &answers.combine_ranks, CombineRanks::Sum, reason);
        if combine != CombineRanks::Sum {
            self.warnings.push(format!(
                "with several ranks, the {combine} of their gradients is not the gradient of the loss: rare examples that few ranks have count less, and the model is another one than with --combine-ranks sum"
            ));
        }
        let swarm = if sentry == Sentry::Off && combine == CombineRanks::Sum {
            let reason = "a run whose ranks stop together has the same bits each time";
            self.pick("ranks.swarm", &answers.swarm, false, reason)
        } else {
            let why = "ranks that are judged or combined in another way than by their sum end together";
            self.pass_over("ranks.swarm", why, "--sentry off and --combine-ranks sum")?;
            false
        };
        let silence_s = if swarm {
            let reason = "ranks say twice a second that they live";
            self.pick(SILENCE, &answers.silence_s, RanksPlan::SILENCE_S, reason)
        } else {
            self.pass_over(SILENCE, "a run stops when a rank is gone", "--swarm true")?;
            RanksPlan::SILENCE_S
        };
        Ok(RanksPlan { sentry, sentry_sigma, combine, swarm, silence_s })
    }

    /// Warns if the eval set cannot show whether the model improves.
    fn warn_of_too_little_to_judge(&mut self, eval_share: f64) {
        let size = match self.facts.data.eval_set {
            _ if eval_share == 0.0 => None,
            Some(eval) if eval.target_tokens == 0 => None,
            Some(eval) => Some((eval.examples, eval.target_tokens)),
            None => return,
        };
        self.warnings.extend(too_little_to_judge(size));
    }

    fn model(&mut self) -> ModelPlan {
        let (answers, facts) = (self.answers, &self.facts.model);
        let answer = answers.model.as_ref().expect("checked by `missing`");
        let reason = format!(
            "{} parameters{}; the weights are {}",
            parameters(facts.text_parameters()),
            match facts.mtp_parameters() {
                0 => " and no MTP head".to_owned(),
                mtp => format!(" and {} in the MTP head", parameters(mtp)),
            },
            bytes(facts.checkpoint_bytes),
        );
        self.record("model.id", answer.value.clone(), answer.origin, reason);
        let revision = self.pick_optional("model.revision", &answers.revision, "the newest");
        let path = facts.path.clone();
        let found = if path.is_some() { "already downloaded" } else { "not downloaded yet" };
        self.record(
            MODEL_PATH,
            path.as_ref().map(Shown::shown).unwrap_or_default(),
            Origin::BuiltIn,
            found.into(),
        );
        let architecture =
            self.pick_optional("model.architecture", &answers.architecture, "as given in its config.json");
        let ignored_fields = self
            .pick_optional("model.ignored_fields", &answers.ignore_config_field, "none")
            .unwrap_or_default();
        let chat_template =
            self.pick_optional("model.chat_template", &answers.chat_template, "the model's own");
        ModelPlan {
            id: answer.value.clone(),
            revision,
            path,
            architecture,
            ignored_fields,
            chat_template,
            mtp_from: None,
            mtp_path: None,
            write_template_default: false,
            from: None,
        }
    }

    /// Handles a setting that would have no effect, because there is no head or no eval set: an answer of the
    /// user is refused, and one of a preset, which is written for many models and data sets, is ignored.
    pub(crate) fn pass_over(&mut self, key: &'static str, why: &str, wanted: &str) -> Result<(), PlanError> {
        match (self.answers.text(key), self.answers.origin(key)) {
            (Some(value), Some(origin)) if origin > Origin::Preset => Err(PlanError::Conflict {
                key,
                what: format!("{} is {value}, but {why}", setting(key).place(origin)),
                fix: format!("Omit it, or use {wanted}"),
            }),
            _ => {
                self.record(key, String::new(), Origin::BuiltIn, why.into());
                Ok(())
            }
        }
    }

    fn data(&mut self) -> Result<DataPlan, PlanError> {
        let (answers, data) = (self.answers, &self.facts.data);
        let limit = model_limit(&self.facts.model);
        let train = answers.data.as_ref().expect("checked by `missing`");
        let figures = format!(
            "{}, {}, mean {}, p99 {}, longest {}; {} of the tokens are trained",
            counted(data.examples, "example"),
            counted(data.total_tokens, "token"),
            count(data.mean().round() as u64),
            count(data.p99.into()),
            count(data.max.into()),
            percent(data.target_share()),
        );
        let pinned = |paths: &[PathBuf]| {
            let one = |path: &PathBuf| match data.pinned.get(&path.display().to_string()) {
                Some(pinned) => pinned.into(),
                None => path.clone(),
            };
            paths.iter().map(one).collect::<Vec<PathBuf>>()
        };
        let sets = pinned(&train.value);
        self.record("data.train", sets.shown(), train.origin, figures);
        let eval = self
            .pick_optional("data.eval", &answers.eval_data, "none: a share of the training data is set aside")
            .map(|eval| pinned(&eval))
            .unwrap_or_default();
        let weights = self.weights(&train.value, &sets)?;

        let share = data.held_out_share();
        let (recommended, reason) = if !eval.is_empty() {
            (0.0, "no share is needed, because the eval set has files of its own".to_owned())
        } else if share == 0.0 {
            (0.0, format!("fewer than {} examples are not split", held_out::ONE_IN))
        } else {
            let drawn = format!(
                "about {} of {} examples, chosen by a seeded hash of each",
                count((share * data.examples as f64).round() as u64),
                count(data.examples)
            );
            let (usual, one_in) = (percent(held_out::SHARE), held_out::ONE_IN);
            let rule = if share == held_out::SHARE {
                usual
            } else if data.examples > held_out::FIRST {
                format!("at least {}, because {usual} would be fewer", held_out::LEAST)
            } else {
                format!("one in {one_in}, because {usual} would be fewer than {}", held_out::LEAST)
            };
            (share, format!("{rule}: {drawn}"))
        };
        if let (Some(answer), false) = (&answers.eval_fraction, eval.is_empty())
            && answer.value > 0.0
            && answer.origin > Origin::Preset
        {
            return Err(PlanError::Conflict {
                key: "data.eval_fraction",
                what: format!(
                    "{} sets examples aside for evaluation, but --eval-data is given too",
                    setting("data.eval_fraction").place(answer.origin)
                ),
                fix: "Omit one of the two".into(),
            });
        }
        let eval_fraction = if eval.is_empty() {
            self.pick("data.eval_fraction", &answers.eval_fraction, recommended, reason)
        } else {
            self.pick("data.eval_fraction", &None, recommended, reason)
        };
        let format = self.pick_packed(
            "data.format",
            &answers.format,
            |packed| packed.format,
            DataFormat::Auto,
            "detected for each file from its lines",
        );
        let map = self.pick(
            "data.map",
            &answers.map,
            FieldMap::default(),
            "the columns of the data have the names of a format",
        );
        let think = self.pick_packed(
            "data.think",
            &answers.think,
            |packed| packed.think,
            data.thinking.think(),
            data.thinking.reason(),
        );
        let (train_on, split_turns, overlong) = self.examples();
        let template_kwargs = self.template_kwargs();
        let over =
            if data.max > limit { "; data.overlong decides about longer ones" } else { "; none is longer" };
        let max_example_tokens = self.pick_packed(
            "data.max_example_tokens",
            &answers.max_example_tokens,
            |packed| packed.max_example_tokens.map_or(limit, |packed| packed.min(limit)),
            limit,
            format!("the model's own limit; the longest example has {} tokens{over}", count(data.max.into())),
        );
        let max_rejected = self.pick(
            "data.max_rejected",
            &answers.max_rejected,
            DataPlan::MAX_REJECTED,
            "if more lines are rejected, something is wrong with the data",
        );
        let on_damage =
            self.pick("data.on_damage", &answers.on_damage, OnDamage::Stop, "nothing is left out unasked");
        let crc_drop = self.pick("data.crc_drop", &answers.crc_drop, 0.0, "nothing is dropped");
        Ok(DataPlan {
            train: sets,
            eval,
            eval_fraction,
            format,
            map,
            think,
            train_on,
            split_turns,
            max_example_tokens,
            overlong,
            max_rejected,
            on_damage,
            crc_drop,
            template_kwargs,
            weights,
        })
    }
}
