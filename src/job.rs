//! From answers to a plan: find the model, tokenise the data, measure the machine, decide. No weight is fetched.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use sparktune_data::token_file::TokenFile;
use sparktune_data::{
    ChatTokenizer, EvalData, EvalSplit, Format, LengthReport, MaskPolicy, PrepareOptions, Prepared,
    ThinkPolicy, Unit, prepare,
};
use sparktune_hub::{DownloadPlan, Hub, Needs, Snapshot};
use sparktune_plan::{
    Answers, Architecture, DataFacts, DataFormat, Facts, Gpu, GpuMemory, LengthBucket, MachineFacts,
    Measured, ModelConfig, ModelFacts, Plan, PlanError, Rates, Setting, Think, resolve,
};

use crate::answers::runs_dir_of;
use crate::failure::{Exit, Failure};
use crate::probe::probe;
use crate::progress::Listener;

/// File of measured speeds, beside the runs.
pub const RATES: &str = "rates.toml";

/// Everything that is decided before a run exists.
pub struct Job {
    /// The plan.
    pub plan: Plan,
    /// What it was made from.
    pub facts: Facts,
    /// The tokenised data.
    pub prepared: Prepared,
    /// What of the model is here and what is still to be fetched.
    pub download: DownloadPlan,
    /// The way to it.
    pub hub: Hub,
}

/// A model whose tokenizer and config are here.
pub struct Base {
    /// The way to its files.
    pub hub: Hub,
    /// The name to ask the hub by, revision included.
    pub name: String,
    /// The folder with its small files.
    pub folder: PathBuf,
    /// Its tokenizer and template.
    pub tokenizer: ChatTokenizer,
    /// What its config says.
    pub facts: ModelFacts,
}

/// The hub, and the name by which it knows the model of these answers.
fn hub_and_name(answers: &Answers) -> Result<(Hub, String), Failure> {
    let hub = Hub::from_env(|name| std::env::var(name).ok())?;
    let model = answers.model.as_ref().map_or("", |answer| &answer.value);
    let name = match &answers.revision {
        Some(revision) if !Path::new(model).is_dir() => format!("{model}@{}", revision.value),
        _ => model.to_owned(),
    };
    Ok((hub, name))
}

/// The family of a model where it is not known, and the one it would be computed as.
///
/// # Errors
/// A model that cannot be found.
pub fn unknown_family(answers: &Answers) -> Result<Option<(String, Architecture)>, Failure> {
    let (hub, name) = hub_and_name(answers)?;
    let ignored_fields = answers.config_options().ignored_fields;
    Ok(ModelConfig::unknown_family(&hub.fetch_config(&name)?.text, &ignored_fields))
}

/// Judges the model of these answers by its config alone, then fetches its tokenizer.
///
/// # Errors
/// A model that cannot be found or trained.
pub fn find_base(answers: &Answers, listener: &dyn Listener) -> Result<Base, Failure> {
    let (hub, name) = hub_and_name(answers)?;
    let config = hub.fetch_config(&name)?;
    let facts = ModelFacts::from_config_json_with(&config.text, &answers.config_options())?;
    if let sparktune_hub::Origin::CacheInstead { why } = &config.origin {
        listener.note(&format!("note: using the cached copy of the model: {why}"));
    }
    let snapshot = fetch(&hub, &hub.plan_download(&name, Needs::Tokenizer)?, listener)?;
    let folder =
        std::path::absolute(&snapshot.folder).map_err(|e| Failure::io("find", &snapshot.folder, &e))?;
    let tokenizer = ChatTokenizer::from_dir(&folder)?;
    Ok(Base { hub, name, folder, tokenizer, facts })
}

/// Fetches what is missing of a plan; the listener hears of it only where something is.
///
/// # Errors
/// As [`Hub::download`].
pub fn fetch(hub: &Hub, plan: &DownloadPlan, listener: &dyn Listener) -> Result<Snapshot, Failure> {
    Ok(match plan.bytes_missing() {
        0 => hub.download(plan, &())?,
        _ => hub.download(plan, listener)?,
    })
}

/// Makes the plan of a training.
///
/// # Errors
/// Whatever stands in the way: answers, model, data, machine.
pub fn plan(answers: &Answers, listener: &dyn Listener) -> Result<Job, Failure> {
    let missing = sparktune_plan::missing(answers);
    if !missing.is_empty() {
        return Err(PlanError::Missing(missing).into());
    }
    let mut base = find_base(answers, listener)?;
    let download = weigh(&mut base)?;
    let prepared = prepare_data(answers, &base.tokenizer, &base.facts, listener)?;
    accept(answers, &prepared)?;
    for finding in prepared.report.findings() {
        listener.note(&format!("data  {}", finding.trim_start()));
    }
    let facts = facts(answers, base.facts, &prepared, listener)?;
    let plan = resolve(answers, &facts)?;
    Ok(Job { plan, facts, prepared, download, hub: base.hub })
}

/// Everything the plan is made from, beside the answers.
///
/// # Errors
/// Token files or measured speeds that cannot be read.
pub fn facts(
    answers: &Answers,
    model: ModelFacts,
    prepared: &Prepared,
    listener: &dyn Listener,
) -> Result<Facts, Failure> {
    let (machine, rates) = machine_and_rates(&runs_dir_of(answers), listener)?;
    Ok(Facts { machine, model, data: data_facts(prepared, answers.eval_data.is_none())?, rates })
}

/// Learns the true size of the weights and whether they are here.
///
/// # Errors
/// As [`Hub::plan_download`].
pub fn weigh(base: &mut Base) -> Result<DownloadPlan, Failure> {
    let download = base.hub.plan_download(&base.name, Needs::Model)?;
    base.facts.checkpoint_bytes =
        download.files.iter().filter(|file| file.name.ends_with(".safetensors")).map(|file| file.size).sum();
    base.facts.path = (download.bytes_missing() == 0).then(|| base.folder.clone());
    Ok(download)
}

/// Whether a setting decides what becomes tokens, or where they are kept, so that the data is read again when it
/// changes.
pub fn decides_tokens(setting: &Setting) -> bool {
    setting.key.starts_with("data.") || setting.name == "runs-dir"
}

/// What of an example is trained, by the answers or by the plan's own rule.
pub fn mask_policy(answers: &Answers) -> MaskPolicy {
    match answers.think.as_ref().map_or(Think::Skip, |answer| answer.value) {
        Think::Train => ThinkPolicy::Train,
        Think::Skip => ThinkPolicy::Skip,
    }
    .into()
}

/// The format the answers insist on.
pub fn format(answers: &Answers) -> Option<Format> {
    match answers.format.as_ref()?.value {
        DataFormat::Auto => None,
        DataFormat::Messages => Some(Format::Messages),
        DataFormat::Sharegpt => Some(Format::ShareGpt),
        DataFormat::Alpaca => Some(Format::Alpaca),
        DataFormat::PromptCompletion => Some(Format::PromptCompletion),
    }
}

/// The longest example that can be trained, tokens.
pub fn max_example_tokens(answers: &Answers, model: &ModelFacts) -> u32 {
    let limit = u32::try_from(model.config.max_example_tokens()).unwrap_or(u32::MAX);
    answers.max_example_tokens.as_ref().map_or(limit, |answer| answer.value.min(limit))
}

/// Tokenises the data into the cache beside the runs, or finds it there.
///
/// # Errors
/// Data that cannot be read, or a stop on request. What was found in it, the report says.
pub fn prepare_data(
    answers: &Answers,
    tokenizer: &ChatTokenizer,
    model: &ModelFacts,
    listener: &dyn Listener,
) -> Result<Prepared, Failure> {
    let inputs = answers.data.as_ref().map(|answer| answer.value.clone()).unwrap_or_default();
    let eval = match (&answers.eval_data, &answers.eval_fraction) {
        (Some(files), _) => EvalData::Files(files.value.clone()),
        // A share that was asked for is taken at its word, without a smallest number.
        (None, Some(share)) => {
            EvalData::Split(EvalSplit { fraction: share.value, min_examples: 0, ..EvalSplit::default() })
        }
        (None, None) => EvalData::default(),
    };
    let options = PrepareOptions {
        format: format(answers),
        policy: mask_policy(answers),
        max_example_tokens: Some(max_example_tokens(answers, model)),
        eval,
    };
    let cache = runs_dir_of(answers).join(".tokens");
    private_folder(&cache).map_err(|error| Failure::io("create", &cache, &error))?;
    let folder = cache.join(cache_key(tokenizer, &inputs, &options));
    Ok(prepare(&inputs, tokenizer, &options, &folder, listener)?)
}

/// Refuses data of which too much was rejected.
///
/// # Errors
/// With the report, and where the rejected lines are kept.
pub fn accept(answers: &Answers, prepared: &Prepared) -> Result<(), Failure> {
    let max_rejected = answers.max_rejected.as_ref().map_or(MAX_REJECTED, |answer| answer.value);
    match prepared.report.exceeds(max_rejected) {
        true => Err(refused(prepared, max_rejected)),
        false => Ok(()),
    }
}

/// Share of rejected lines that ends a run where nobody said another; the plan's own rule.
pub const MAX_REJECTED: f64 = 0.01;

/// Makes a folder that nobody else looks in: tokens and rejected lines are the user's text.
fn private_folder(folder: &Path) -> io::Result<()> {
    folder.parent().map_or(Ok(()), fs::create_dir_all)?;
    match fs::DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made,
    }
}

/// One folder for one set of inputs and one way of reading them; whether its content is current, `prepare` knows.
fn cache_key(tokenizer: &ChatTokenizer, inputs: &[PathBuf], options: &PrepareOptions) -> String {
    let absolute: Vec<PathBuf> =
        inputs.iter().map(|path| path.canonicalize().unwrap_or_else(|_| path.clone())).collect();
    let key = format!("{} {absolute:?} {options:?}", tokenizer.fingerprint());
    blake3::hash(key.as_bytes()).to_hex()[..16].to_owned()
}

fn refused(prepared: &Prepared, max_rejected: f64) -> Failure {
    let report = &prepared.report;
    let kept = match &prepared.rejected {
        Some(path) => format!(" They are kept with reasons in {}.", path.display()),
        None => String::new(),
    };
    Failure {
        exit: Exit::Data,
        text: format!(
            "the data was refused: {} of {} lines were rejected, at most {} % may be.{kept} Correct them (`sparktune check` \
             shows each with its fix), or raise --max-rejected\n{}",
            report.rejected,
            report.rejected + report.examples,
            max_rejected * 100.0,
            report.to_string().trim_end()
        ),
    }
}

/// The data in numbers, from the token files themselves. `split`: the held-out examples are a share of the same data.
///
/// # Errors
/// Token files that cannot be read.
pub fn data_facts(prepared: &Prepared, split: bool) -> Result<DataFacts, Failure> {
    let mut files = vec![TokenFile::open(&prepared.train)?];
    if split {
        files.push(TokenFile::open(&prepared.eval)?);
    }
    let mut lengths: Vec<u32> = files.iter().flat_map(|file| file.lengths().iter().copied()).collect();
    let Some(report) = LengthReport::new(Unit::Tokens, &mut lengths) else { return Ok(DataFacts::default()) };
    let shorter = report.histogram.first().filter(|bin| bin.from > 0);
    let none = shorter.map(|bin| LengthBucket { up_to: bin.from - 1, count: 0 });
    let bins = report.histogram.iter().map(|bin| LengthBucket { up_to: bin.to - 1, count: bin.count });
    Ok(DataFacts {
        examples: report.count,
        total_tokens: report.total,
        target_tokens: files.iter().map(TokenFile::target_tokens).sum(),
        p50: report.p50,
        p90: report.p90,
        p99: report.p99,
        max: report.max,
        histogram: none.into_iter().chain(bins).collect(),
    })
}

/// The machine as the plan sees it, its GPU probed where that is of use, and the speeds that were measured.
///
/// # Errors
/// As [`rates`].
pub fn machine_and_rates(runs_dir: &Path, listener: &dyn Listener) -> Result<(MachineFacts, Rates), Failure> {
    let (mut machine, rates) = (machine(runs_dir), rates(runs_dir, listener)?);
    machine.probe = probe(&machine, &rates);
    Ok((machine, rates))
}

/// The machine without a probe of its GPU.
pub fn machine(runs_dir: &Path) -> MachineFacts {
    let facts = sparktune_telemetry::MachineFacts::gather();
    let gpus: Vec<Gpu> = match cfg!(feature = "cuda") {
        true => facts.gpus.iter().map(gpu).collect(),
        false => Vec::new(),
    };
    let no_gpu_because = gpus.is_empty().then(|| match (facts.gpus.is_empty(), cfg!(feature = "cuda")) {
        (true, true) => "no NVIDIA GPU was found".into(),
        (true, false) => "no NVIDIA GPU was found, and this build has no CUDA".into(),
        (false, _) => "this build has no CUDA".into(),
    });
    MachineFacts {
        mem_total_bytes: facts.mem_total_bytes,
        mem_available_bytes: facts.mem_available_bytes,
        cores: facts.cores_usable,
        disk_free_bytes: sparktune_telemetry::disk_free_bytes(runs_dir),
        gpus,
        no_gpu_because,
        probe: None,
    }
}

fn gpu(facts: &sparktune_telemetry::GpuFacts) -> Gpu {
    let memory = match facts.mem_total_bytes {
        None => GpuMemory::Unified,
        Some(total_bytes) => {
            GpuMemory::Dedicated { total_bytes, free_bytes: facts.mem_free_bytes.unwrap_or(total_bytes) }
        }
    };
    let capability = facts.compute_capability.as_deref().and_then(|text| text.split_once('.'));
    let capability = capability.and_then(|(major, minor)| major.parse().ok().zip(minor.parse().ok()));
    let name = facts.name.clone().unwrap_or_else(|| format!("GPU {}", facts.index));
    Gpu { name, memory, compute_capability: capability }
}

/// The speeds measured in earlier runs of this folder, and those that the GPU tests measured anywhere.
///
/// # Errors
/// A file that cannot be read. One that holds something else is passed over with a note: an estimate is not worth a
/// refusal.
fn rates(runs_dir: &Path, listener: &dyn Listener) -> Result<Rates, Failure> {
    let path = runs_dir.join(RATES);
    let here = match std::fs::read_to_string(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Rates::default(),
        Err(error) => return Err(Failure::io("read", &path, &error)),
        Ok(text) => Rates::from_toml(&text, &path.display().to_string()).unwrap_or_else(|error| {
            listener.note(&format!("note: measured speeds are passed over: {error}"));
            Rates::default()
        }),
    };
    Ok(Rates { measured: Measured::shipped().clone(), ..here })
}
