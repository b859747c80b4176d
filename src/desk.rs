//! Answers the wizard: what it asks for is done here, on threads of its own, so that the screen stays alive.
//!
//! Quick things are answered in order by one thread; each slow one (see [`Ask::is_slow`]) has its own and can be cancelled.

use std::collections::HashMap;
use std::fs;
use std::io::Write;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sparktune_data::{PreviewOptions, RejectedList, Step, preview};
use sparktune_plan::{Answer, Answers, Catalog, ConfigOptions, Origin, Plan, presets};
use sparktune_runlog::RunsRoot;
use sparktune_tui::wizard::desk::{
    Ask, CacheState, Cached, DataFound, Draft, Entry, EntryKind, Finding, Listing, MachineFound, ModelFound,
    PresetFound, Progress, Recent, RejectedPage, Reply, Request, SaveOutcome, Ticket, Told, Unit,
};

use crate::answers::{self, runs_dir_of, state_folder};
use crate::failure::Failure;
use crate::job::{self, Base};
use crate::launch;
use crate::machine;
use crate::progress::{Listener, words};

/// Least time between two reports of progress.
const BETWEEN: Duration = Duration::from_millis(100);
/// Entries of a folder that are shown.
const MOST_ENTRIES: usize = 5_000;
/// Bytes of a rejected line that are shown.
const SHOWN_BYTES: usize = 2_000;
/// Runs that are looked at for what was used lately.
const RECENT_RUNS: usize = 20;
/// The unfinished wizard.
const DRAFT: &str = "wizard.toml";

/// The desk's side of the conversation.
pub struct Desk {
    replies: Sender<Reply>,
    /// What was said on the command line.
    flags: Answers,
    runs_dir: PathBuf,
    running: Mutex<HashMap<Ticket, Arc<AtomicBool>>>,
    /// Of the data that was read last.
    rejected: Mutex<Option<(PathBuf, RejectedList, u64)>>,
}

impl Desk {
    /// Answers until the wizard is gone, on threads of its own.
    pub fn open(requests: Receiver<Request>, replies: Sender<Reply>, initial: &Answers) {
        let desk = Arc::new(Self {
            replies,
            flags: initial.only(Origin::Flag),
            runs_dir: runs_dir_of(initial),
            running: Mutex::default(),
            rejected: Mutex::default(),
        });
        std::thread::spawn(move || {
            for request in requests {
                desk.clone().take(request);
            }
            // The wizard was left: nobody waits for what is still under way. What was fetched is kept.
            held(&desk.running).values().for_each(|cancel| cancel.store(true, Ordering::Relaxed));
        });
    }

    fn take(self: Arc<Self>, Request { ticket, ask }: Request) {
        if ask.is_slow() {
            let cancel = Arc::new(AtomicBool::new(false));
            held(&self.running).insert(ticket, cancel.clone());
            std::thread::spawn(move || {
                let listener = ToWizard::new(self.replies.clone(), ticket, cancel);
                let told = self.slow(ask, &listener);
                self.reply(ticket, told);
                held(&self.running).remove(&ticket);
            });
            return;
        }
        match ask {
            Ask::Cancel { of } => {
                if let Some(cancel) = held(&self.running).get(&of) {
                    cancel.store(true, Ordering::Relaxed);
                }
            }
            Ask::Keep { draft } => {
                if let Err(failure) = keep_draft(&draft) {
                    self.reply(ticket, Told::NotKept(failure.text));
                }
            }
            Ask::Forget => forget_draft(),
            ask => self.reply(ticket, self.quick(ask)),
        }
    }

    fn reply(&self, ticket: Ticket, told: Told) {
        // A wizard that is gone needs no answer.
        let _ = self.replies.send(Reply { ticket, told });
    }

    fn quick(&self, ask: Ask) -> Told {
        match ask {
            Ask::Catalog => Told::Catalog(catalog()),
            Ask::Recent => Told::Recent(self.recent()),
            Ask::List { folder } => Told::Listing(list(&folder).map_err(|failure| failure.text)),
            Ask::Rejected { offset, limit } => {
                Told::Rejected(self.rejected_lines(offset, limit).map_err(|failure| failure.text))
            }
            Ask::Presets { also } => Told::Presets(presets(also)),
            Ask::SavePreset { name, toml, replace } => {
                Told::Saved(save_preset(&name, &toml, replace).map_err(|failure| failure.text))
            }
            Ask::Demo => {
                let demo = answers::gather(self.flags.clone(), true);
                Told::Demo(demo.map(Box::new).map_err(|failure| failure.text))
            }
            _ => unreachable!("slow asks and those without an answer are handled before"),
        }
    }

    fn slow(&self, ask: Ask, listener: &ToWizard) -> Told {
        match ask {
            Ask::Machine => Told::Machine(self.machine().map_err(|failure| failure.text)),
            Ask::Model { name, revision, config } => {
                let found = model(&name, revision, config, listener);
                Told::Model(found.map(Box::new).map_err(|failure| failure.text))
            }
            Ask::Data { answers } => {
                Told::Data(self.data(&answers, listener).map(Box::new).map_err(|failure| failure.text))
            }
            Ask::Start { answers } => {
                Told::Started(start(&answers, listener).map_err(|failure| failure.text))
            }
            _ => unreachable!("only these are slow"),
        }
    }

    fn machine(&self) -> Result<MachineFound, Failure> {
        let (facts, rates) = job::machine_and_rates(&self.runs_dir, &Silent)?;
        Ok(MachineFound { findings: self.findings(), facts, rates })
    }

    fn findings(&self) -> Vec<Finding> {
        let facts = sparktune_telemetry::MachineFacts::gather();
        let free = sparktune_telemetry::disk_free_bytes(&self.runs_dir);
        machine::at_a_glance(&facts, cfg!(feature = "cuda"), &self.runs_dir, free)
    }

    /// What the newest runs were made from.
    fn recent(&self) -> Recent {
        let runs = RunsRoot::new(&self.runs_dir).list().unwrap_or_default();
        let mut recent = Recent::default();
        for run in runs.iter().rev().take(RECENT_RUNS) {
            let plan = run.read_plan().ok().and_then(|text| Plan::from_toml(&text, "plan.toml").ok());
            let Some(plan) = plan else { continue };
            for path in plan.data.train {
                if path.exists() && !recent.data.contains(&path) {
                    recent.data.push(path);
                }
            }
            if !recent.models.contains(&plan.model.id) {
                recent.models.push(plan.model.id);
            }
        }
        recent
    }

    fn data(&self, answers: &Answers, listener: &ToWizard) -> Result<DataFound, Failure> {
        let Base { tokenizer, facts, .. } = job::find_base(answers, listener)?;
        let prepared = job::prepare_data(answers, &tokenizer, &facts, listener)?;
        let list = prepared.rejected.as_deref().map(RejectedList::open).transpose()?;
        *held(&self.rejected) =
            prepared.rejected.clone().zip(list).map(|(path, list)| (path, list, prepared.report.rejected));
        let inputs = answers.data.as_ref().map(|answer| answer.value.clone()).unwrap_or_default();
        let options = PreviewOptions {
            format: job::format(answers),
            max_example_tokens: Some(job::max_example_tokens(answers, &facts)),
            ..PreviewOptions::default()
        };
        Ok(DataFound {
            facts: job::data_facts(&prepared, answers.eval_data.is_none())?,
            report: prepared.report,
            preview: preview(&inputs, &tokenizer, &options)?,
        })
    }

    fn rejected_lines(&self, offset: u64, limit: usize) -> Result<RejectedPage, Failure> {
        match &mut *held(&self.rejected) {
            Some((path, list, total)) => Ok(RejectedPage {
                offset,
                rows: list.page(offset, limit, SHOWN_BYTES)?,
                total: *total,
                file: Some(path.clone()),
            }),
            None => Ok(RejectedPage { offset, ..RejectedPage::default() }),
        }
    }
}

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn catalog() -> Vec<CacheState> {
    let Ok(hub) = sparktune_hub::Hub::from_env(|name| std::env::var(name).ok()) else { return Vec::new() };
    let state = |id: &str| match hub.cached(id) {
        sparktune_hub::Cached::Nothing => Cached::Nothing,
        sparktune_hub::Cached::Partial { bytes } => Cached::Part { bytes },
        sparktune_hub::Cached::Whole { bytes } => Cached::Whole { bytes },
    };
    let models = &Catalog::shipped().models;
    models.iter().map(|model| CacheState { id: model.id.clone(), cached: state(&model.id) }).collect()
}

fn model(
    name: &str,
    revision: Option<String>,
    config: ConfigOptions,
    listener: &ToWizard,
) -> Result<ModelFound, Failure> {
    let ConfigOptions { computed_as: architecture, ignored_fields } = config;
    let mut asked = Answers {
        model: Some(Answer::flag(name.to_owned())),
        revision: revision.clone().map(Answer::flag),
        architecture: architecture.map(Answer::flag),
        ignore_config_field: (!ignored_fields.is_empty()).then(|| Answer::flag(ignored_fields)),
        ..Answers::default()
    };
    let unknown = job::unknown_family(&asked)?;
    if let (Some((_, family)), None) = (&unknown, architecture) {
        asked.architecture = Some(Answer::flag(*family));
    }
    let mut base = job::find_base(&asked, listener)?;
    let download = job::weigh(&mut base)?;
    Ok(ModelFound {
        name: name.to_owned(),
        revision,
        commit: download.commit.clone(),
        missing_bytes: download.bytes_missing(),
        facts: base.facts,
        notes: std::mem::take(&mut *held(&listener.notes)),
        unknown_architecture: unknown.map(|(family, _)| family),
    })
}

/// The whole way to a running trainer. What is prepared already is found again, not made again.
fn start(answers: &Answers, listener: &ToWizard) -> Result<PathBuf, Failure> {
    let job = job::plan(answers, listener)?;
    let run = launch::make_run(job, listener)?;
    if listener.cancel.load(Ordering::Relaxed) {
        // It holds nothing yet that the next start does not find elsewhere.
        run.delete()?;
        return Err(Failure::usage("cancelled before the first step"));
    }
    launch::start(&run)?;
    forget_draft();
    Ok(run.path().to_owned())
}

fn list(folder: &Path) -> Result<Listing, Failure> {
    let unreadable = |error: std::io::Error| Failure::io("list", folder, &error);
    let folder = std::path::absolute(folder).map_err(unreadable)?;
    let mut listing = Listing { folder: folder.clone(), ..Listing::default() };
    for entry in fs::read_dir(&folder).map_err(unreadable)? {
        let name = entry.map_err(unreadable)?.file_name();
        if name.as_encoded_bytes().starts_with(b".") {
            continue;
        }
        if listing.entries.len() == MOST_ENTRIES {
            listing.left_out += 1;
            continue;
        }
        listing.entries.push(describe(&folder, name));
    }
    Ok(listing)
}

fn describe(folder: &Path, name: std::ffi::OsString) -> Entry {
    let path = folder.join(&name);
    let meta = fs::metadata(&path).ok();
    let kind = match &meta {
        Some(meta) if meta.is_dir() => EntryKind::Folder,
        Some(meta) if meta.is_file() => EntryKind::File,
        _ => EntryKind::Other,
    };
    let is_data = match kind {
        EntryKind::Folder => {
            // Enough of them to know; a huge folder is not read to its end for a mark.
            let inside = fs::read_dir(&path).into_iter().flatten().flatten().take(200);
            inside.map(|entry| entry.file_name()).any(|name| is_data_file(Path::new(&name)))
        }
        EntryKind::File => is_data_file(&path),
        EntryKind::Other => false,
    };
    Entry {
        is_model: kind == EntryKind::Folder && path.join("config.json").is_file(),
        bytes: meta.filter(fs::Metadata::is_file).map(|meta| meta.len()),
        is_data,
        kind,
        name,
    }
}

fn is_data_file(path: &Path) -> bool {
    let name = path.as_os_str().as_encoded_bytes();
    [".jsonl", ".jsonl.gz", ".jsonl.zst"].iter().any(|end| name.ends_with(end.as_bytes()))
}

/// Shipped presets, then the user's, then the one that is wanted in any case, where it is another file.
pub fn presets(also: Option<String>) -> Vec<PresetFound> {
    let user = answers::user_presets();
    let read = |name: &String| {
        let path = user.path(name).map_err(|error| error.to_string())?;
        fs::read_to_string(&path).map_err(|error| Failure::io("read", &path, &error).text)
    };
    let own: Vec<(&String, Result<String, String>)> =
        user.names.iter().map(|name| (name, read(name))).collect();
    let readable = own.iter().filter_map(|(name, text)| Some((name.as_str(), text.as_deref().ok()?)));
    let listed = presets::list(readable);
    let shipped = presets::PRESETS.iter().map(|preset| PresetFound {
        name: preset.name.into(),
        about: preset.about.into(),
        toml: Ok(preset.toml.into()),
        shipped: true,
    });
    let own = own.iter().map(|(name, text)| PresetFound {
        name: (*name).clone(),
        about: listed.iter().find(|one| one.name == **name).map(|one| one.about.clone()).unwrap_or_default(),
        toml: text.clone(),
        shipped: false,
    });
    let mut all: Vec<PresetFound> = shipped.chain(own).collect();
    if let Some(name) = also.filter(|name| all.iter().all(|preset| preset.name != *name))
        && let Ok(presets::PresetSource::File(path)) = presets::find(&Answer::flag(name.clone()), &user)
    {
        let toml = fs::read_to_string(&path).map_err(|error| Failure::io("read", &path, &error).text);
        all.push(PresetFound { name, about: String::new(), toml, shipped: false });
    }
    all
}

/// Writes a preset of the user's own.
///
/// # Errors
/// A name that no preset can have, or a folder that cannot be written.
pub fn save_preset(name: &str, toml: &str, replace: bool) -> Result<SaveOutcome, Failure> {
    let user = answers::user_presets();
    if user.folder.as_os_str().is_empty() {
        return Err(Failure::usage("presets cannot be kept: neither XDG_CONFIG_HOME nor HOME is set"));
    }
    let path = user.path(name.trim())?;
    if path.exists() && !replace {
        return Ok(SaveOutcome::Exists { path });
    }
    write_private(&path, toml)?;
    Ok(SaveOutcome::Saved { path })
}

/// What was left unfinished the last time. One that cannot be read is as good as none.
pub fn kept_draft() -> Option<Draft> {
    let path = state_folder()?.join(DRAFT);
    let text = fs::read_to_string(&path).ok()?;
    Draft::from_text(&text, &path.display().to_string()).ok()
}

fn keep_draft(draft: &Draft) -> Result<(), Failure> {
    let folder = state_folder().ok_or_else(|| {
        Failure::usage("the unfinished wizard cannot be kept: neither XDG_STATE_HOME nor HOME is set")
    })?;
    write_private(&folder.join(DRAFT), &draft.to_text())
}

fn forget_draft() {
    if let Some(folder) = state_folder() {
        // Not there is as wanted.
        let _ = fs::remove_file(folder.join(DRAFT));
    }
}

/// Writes a file of the user's own in one piece.
fn write_private(path: &Path, text: &str) -> Result<(), Failure> {
    let failed = |error: std::io::Error| Failure::io("write", path, &error);
    let folder = path.parent().unwrap_or(Path::new("."));
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(failed)?;
    let mut file = tempfile::NamedTempFile::new_in(folder).map_err(failed)?;
    file.write_all(text.as_bytes()).map_err(failed)?;
    file.persist(path).map_err(|error| failed(error.error))?;
    Ok(())
}

/// Hears nothing.
struct Silent;

impl Listener for Silent {
    fn note(&self, _: &str) {}
}

impl sparktune_hub::Progress for Silent {
    fn on(&self, _: sparktune_hub::Event<'_>) {}
}

impl sparktune_data::Progress for Silent {
    fn step(&self, _: Step) {}
}

/// Tells the wizard how far slow work is.
struct ToWizard {
    replies: Sender<Reply>,
    ticket: Ticket,
    cancel: Arc<AtomicBool>,
    progress: Mutex<Shown>,
    notes: Mutex<Vec<String>>,
}

struct Shown {
    progress: Progress,
    at: Option<Instant>,
}

impl ToWizard {
    fn new(replies: Sender<Reply>, ticket: Ticket, cancel: Arc<AtomicBool>) -> Self {
        let progress = Progress { what: String::new(), done: 0, total: None, unit: Unit::Bytes, note: None };
        Self {
            replies,
            ticket,
            cancel,
            progress: Mutex::new(Shown { progress, at: None }),
            notes: Mutex::default(),
        }
    }

    /// Changes the progress and tells of it, unless it did so a moment ago; a new stretch is told of at once.
    fn tell(&self, change: impl FnOnce(&mut Progress)) {
        let mut shown = held(&self.progress);
        let before = shown.progress.what.clone();
        change(&mut shown.progress);
        let due = shown.at.is_none_or(|at| at.elapsed() >= BETWEEN);
        if due || shown.progress.what != before {
            shown.at = Some(Instant::now());
            let told = Told::Progress(shown.progress.clone());
            let _ = self.replies.send(Reply { ticket: self.ticket, told });
        }
    }
}

impl Listener for ToWizard {
    fn note(&self, text: &str) {
        held(&self.notes).push(text.to_owned());
    }
}

impl sparktune_hub::Progress for ToWizard {
    fn on(&self, event: sparktune_hub::Event<'_>) {
        use sparktune_hub::Event as E;
        self.tell(|progress| match event {
            E::Begin { repo, bytes, .. } => {
                *progress = Progress {
                    what: format!("fetching {repo}"),
                    done: 0,
                    total: Some(bytes),
                    unit: Unit::Bytes,
                    note: None,
                };
            }
            E::Bytes { count, .. } => {
                progress.done += count;
                progress.note = None;
            }
            E::Retry { name, wait, why } => {
                progress.note = Some(format!("{name}: {why}; trying again in {} s", wait.as_secs()));
            }
            E::Waiting { name } => progress.note = Some(format!("{name}: another process is fetching it")),
            _ => {}
        });
    }

    fn cancelled(&self) -> bool {
        self.cancel.load(Ordering::Relaxed)
    }
}

impl sparktune_data::Progress for ToWizard {
    fn step(&self, step: Step) {
        self.tell(|progress| {
            *progress = Progress {
                what: words(step.phase).to_owned(),
                done: step.bytes_done,
                total: Some(step.bytes_total),
                unit: Unit::Bytes,
                note: (step.examples > 0)
                    .then(|| format!("{} examples", sparktune_tui::count(step.examples))),
            };
        });
    }

    fn cancelled(&self) -> bool {
        self.cancel.load(Ordering::Relaxed)
    }
}
