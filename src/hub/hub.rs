//! Gets from a model's name to its folder: finds it, determines the missing files, and downloads them. For
//! data sets, `data_set` does the first half.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use sparktune_base::regular_file::read_model_json;

use crate::cache::{DEPTH_OF_DATA_SET, DEPTH_OF_MODEL, RepoCache, free_space, names_in};
use crate::cached::{self, Cached, WholeModel};
use crate::catalog::{Facts, Listed, Listing, facts, patiently};
use crate::error::Error;
use crate::http::{Http, Subject};
use crate::model_name::{ModelName, is_commit};
use crate::plan::{Config, DownloadPlan, Origin, PlannedFile, Snapshot, Source};
use crate::progress::{Event, Progress, Watch};
use crate::repo_kind::RepoKind;
use crate::select::{CONFIG, INDEX, Needs, most_bytes, select};
use crate::settings::{Patience, Settings};
use crate::transfer::{Transfer, is_whole};

/// The number of shards downloaded in parallel: storage limits each connection, and a fast line can serve
/// several.
const FILES_AT_ONCE: usize = 4;

/// Access to models in local folders, and to models and data sets in the cache and on the hub.
#[derive(Debug)]
pub struct Hub {
    settings: Settings,
    http: Http,
}

/// A model or a data set that was found.
pub(crate) struct Found {
    pub(crate) shown: String,
    /// The names of all its files. Those from the hub are untrusted: they are compared here and checked
    /// before they are used as paths.
    pub(crate) names: BTreeSet<String>,
    pub(crate) place: Place,
}

pub(crate) enum Place {
    Folder(PathBuf),
    Cached { source: Source, instead_of: Option<Error> },
    Remote { source: Source, listing: Listing },
}

impl Found {
    pub(crate) fn folder(&self) -> PathBuf {
        match &self.place {
            Place::Folder(folder) => folder.clone(),
            Place::Cached { source, .. } | Place::Remote { source, .. } => {
                source.cache.snapshot(&source.commit)
            }
        }
    }

    pub(crate) fn source(&self) -> Option<&Source> {
        match &self.place {
            Place::Folder(_) => None,
            Place::Cached { source, .. } | Place::Remote { source, .. } => Some(source),
        }
    }

    fn origin(&self) -> Origin {
        match &self.place {
            Place::Folder(_) => Origin::Folder,
            Place::Remote { .. } => Origin::Hub,
            Place::Cached { instead_of: None, .. } => Origin::Cache,
            Place::Cached { instead_of: Some(error), .. } => Origin::CacheInstead { why: error.to_string() },
        }
    }
}

impl Hub {
    /// Reads the environment through `env`: `HF_ENDPOINT`, `HF_TOKEN`, `HUGGING_FACE_HUB_TOKEN`,
    /// `HF_TOKEN_PATH`, `HF_HOME`, `HF_HUB_CACHE`, `HF_HUB_OFFLINE`, `HF_HUB_DOWNLOAD_TIMEOUT`, and their
    /// older names. Proxy variables are read by the HTTP client itself.
    ///
    /// # Errors
    /// [`Error::BadSetting`] for a value that cannot be used.
    pub fn from_env(env: impl Fn(&str) -> Option<String>) -> Result<Self, Error> {
        let settings = Settings::from_env(env)?;
        Ok(Self { http: Http::new(&settings), settings })
    }

    /// Replaces the limits on attempts and pauses.
    pub fn with_patience(mut self, patience: Patience) -> Self {
        self.settings.patience = patience;
        self.http = Http::new(&self.settings);
        self
    }

    /// Returns the part of a model that is already on this machine. It uses no network and reads no weights,
    /// so that a table of models is available at once. An invalid name has nothing on this machine.
    pub fn cached(&self, model: &str) -> Cached {
        cached::look(model, &self.settings.cache, self.settings.home.as_deref())
    }

    /// Returns the models that are completely on this machine. It uses no network and reads no weights.
    pub fn whole_models(&self) -> Vec<WholeModel> {
        cached::whole_models(&self.settings.cache)
    }

    /// Fetches `config.json` alone, so that a model can be checked before weights are downloaded. `progress`
    /// only learns that the hub is asked, and is asked whether to cancel.
    ///
    /// # Errors
    /// Any [`Error`] except those about disk space and weights.
    pub fn fetch_config(&self, model: &str, progress: &dyn Progress) -> Result<Config, Error> {
        let stop = AtomicBool::new(false);
        let watch = Watch::quiet(&Watch::new(progress, &stop));
        let found = self.locate(model, &watch)?;
        self.select(&found, Needs::Config, &watch).map_err(|error| self.as_uncached(error, &found))?;
        let path = self.bring_small(&found, CONFIG, &watch)?;
        let text = read_model_json(&path).map_err(Error::unreadable(&path))?;
        if let Place::Remote { source, .. } = &found.place {
            source.remember(false)?;
        }
        Ok(Config { text, path, origin: found.origin() })
    }

    /// Determines the required files, their sizes, and the parts that already exist. Fetches `config.json`
    /// and the index of the shards, but no weights. `progress` only learns that the hub is asked, and is
    /// asked whether to cancel.
    ///
    /// # Errors
    /// Any [`Error`]; a disk that is too small is not an error yet.
    pub fn plan_download(
        &self,
        model: &str,
        needs: Needs,
        progress: &dyn Progress,
    ) -> Result<DownloadPlan, Error> {
        let stop = AtomicBool::new(false);
        self.plan(model, needs, &Watch::quiet(&Watch::new(progress, &stop)))
    }

    /// Downloads all files that `needs` requires, except those that already exist.
    ///
    /// # Errors
    /// Any [`Error`]. Received data is kept, and the next call continues there.
    pub fn fetch(&self, model: &str, needs: Needs, progress: &dyn Progress) -> Result<Snapshot, Error> {
        let stop = AtomicBool::new(false);
        let plan = self.plan(model, needs, &Watch::new(progress, &stop))?;
        self.download(&plan, progress)
    }

    /// Carries out a plan.
    ///
    /// # Errors
    /// [`Error::DiskFull`] before the first byte when the disk is too small, otherwise the same as for
    /// [`Hub::fetch`].
    pub fn download(&self, plan: &DownloadPlan, progress: &dyn Progress) -> Result<Snapshot, Error> {
        let todo: Vec<&PlannedFile> = plan.files.iter().filter(|file| file.facts.is_some()).collect();
        let needed = plan.bytes_missing();
        progress.on(Event::Begin { repo: &plan.repo, files: todo.len(), bytes: needed });
        if let Some(available) = free_space(&plan.folder).filter(|free| needed > *free) {
            return Err(Error::DiskFull { path: self.settings.cache.clone(), needed, available });
        }
        if let (Some(source), Origin::Hub) = (&plan.source, &plan.origin) {
            self.bring_side_by_side(plan, source, &todo, progress)?;
            source.remember(plan.is_whole)?;
        }
        Ok(Snapshot {
            folder: plan.folder.clone(),
            files: plan.files.iter().map(|file| file.name.clone()).collect(),
            commit: plan.commit.clone(),
            origin: plan.origin.clone(),
        })
    }

    fn bring_side_by_side(
        &self,
        plan: &DownloadPlan,
        source: &Source,
        todo: &[&PlannedFile],
        progress: &dyn Progress,
    ) -> Result<(), Error> {
        let next = AtomicUsize::new(0);
        let stop = AtomicBool::new(false);
        let faults = Mutex::new(Vec::new());
        let work = || {
            let watch = Watch::new(progress, &stop);
            while let Some(file) = todo.get(next.fetch_add(1, Ordering::Relaxed)) {
                let facts = file.facts.as_ref().expect("only files with facts are to be fetched");
                if let Err(error) = self.transfer(source, &plan.repo, &file.name, facts, &watch) {
                    stop.store(true, Ordering::Relaxed);
                    faults.lock().unwrap_or_else(PoisonError::into_inner).push(error);
                    return;
                }
            }
        };
        std::thread::scope(|threads| {
            for _ in 0..FILES_AT_ONCE.min(todo.len()) {
                threads.spawn(work);
            }
        });
        // An error cancels the parallel downloads as if the user had cancelled; that error is the one to
        // report.
        let faults = faults.into_inner().unwrap_or_else(PoisonError::into_inner);
        match faults.into_iter().min_by_key(|fault| matches!(fault, Error::Cancelled)) {
            Some(fault) => Err(fault),
            None => Ok(()),
        }
    }

    fn transfer(
        &self,
        source: &Source,
        shown: &str,
        file: &str,
        facts: &Facts,
        watch: &Watch<'_>,
    ) -> Result<PathBuf, Error> {
        let subject = source.subject(shown, file);
        let (http, patience, cache) = (&self.http, &self.settings.patience, &source.cache);
        Transfer { http, patience, cache, subject, facts, watch }.run()
    }

    fn plan(&self, model: &str, needs: Needs, watch: &Watch<'_>) -> Result<DownloadPlan, Error> {
        let found = self.locate(model, watch)?;
        let names = self.select(&found, needs, watch).map_err(|error| self.as_uncached(error, &found))?;
        if needs == Needs::Model {
            let path = self.bring_small(&found, CONFIG, watch)?;
            refuse_quantised(&path, &found.shown)?;
        }
        self.plan_of(found, names, needs == Needs::Model, watch)
    }

    /// Plans the download of these files.
    pub(crate) fn plan_of(
        &self,
        found: Found,
        names: Vec<String>,
        is_whole: bool,
        watch: &Watch<'_>,
    ) -> Result<DownloadPlan, Error> {
        let files =
            names.into_iter().map(|name| self.look_up(&found, name, watch)).collect::<Result<_, _>>()?;
        Ok(DownloadPlan {
            commit: found.source().map(|source| source.commit.clone()),
            folder: found.folder(),
            files,
            disk_available: free_space(&found.folder()),
            origin: found.origin(),
            is_whole,
            source: found.source().cloned(),
            repo: found.shown,
        })
    }

    fn locate(&self, model: &str, watch: &Watch<'_>) -> Result<Found, Error> {
        let name = ModelName::parse(model, self.settings.home.as_deref())?;
        let shown = name.to_string();
        match name {
            ModelName::Folder(folder) => {
                let names = names_in(&folder, DEPTH_OF_MODEL)?;
                Ok(Found { shown, names, place: Place::Folder(folder) })
            }
            ModelName::Repo { id, revision } => {
                self.locate_repo(RepoKind::Model, &id, &revision, shown, watch)
            }
        }
    }

    /// Finds a repository in the cache or on the hub.
    pub(crate) fn locate_repo(
        &self,
        kind: RepoKind,
        id: &str,
        revision: &str,
        shown: String,
        watch: &Watch<'_>,
    ) -> Result<Found, Error> {
        let cache = RepoCache::new(&self.settings.cache, kind, id);
        let source =
            |commit| Source { cache: cache.clone(), id: id.into(), revision: revision.into(), commit };
        let in_cache = cache.commit_of(revision).filter(|commit| cache.snapshot(commit).is_dir());
        let from_cache = |commit: String, instead_of| {
            // The list tells which files of a data set are missing. For a model, its own files do.
            let listing = Listing::kept(&cache, &commit).filter(|_| kind == RepoKind::DataSet);
            let names = match listing {
                Some(listing) => listing.files.into_keys().collect(),
                None if kind == RepoKind::Model => names_in(&cache.snapshot(&commit), DEPTH_OF_MODEL)?,
                None => names_in(&cache.snapshot(&commit), DEPTH_OF_DATA_SET)?,
            };
            let place = Place::Cached { source: source(commit), instead_of };
            Ok(Found { shown: shown.clone(), names, place })
        };
        if self.settings.offline {
            let missing = || self.offline(&shown, &format!("no file of this {kind} is there"));
            return from_cache(in_cache.ok_or_else(missing)?, None);
        }
        // The files of a commit never change, so a saved list is as good as a new one.
        if kind == RepoKind::DataSet
            && is_commit(revision)
            && let Some(listing) = Listing::kept(&cache, revision)
        {
            return Ok(listed(shown.clone(), source(listing.commit.clone()), listing));
        }
        let subject = Subject { kind, id, shown: &shown, revision, file: None };
        // If it is in the cache, there is no point in waiting long for a missing network.
        let attempts = if in_cache.is_some() { 1 } else { self.settings.patience.attempts };
        let patience = Patience { attempts, ..self.settings.patience };
        let ask = || Listing::ask(&self.http, &subject, patience.list, watch);
        let host = self.http.host();
        watch.asking(&host, &shown);
        let asked = patiently(&patience, &host, watch, ask);
        let listing = match (asked, in_cache) {
            (Ok(listing), _) => listing,
            (Err(error), Some(commit)) if error.is_passing() => return from_cache(commit, Some(error)),
            (Err(error), _) => return Err(error),
        };
        Ok(listed(shown.clone(), source(listing.commit.clone()), listing))
    }

    fn select(&self, found: &Found, needs: Needs, watch: &Watch<'_>) -> Result<Vec<String>, Error> {
        select(needs, &found.shown, &found.names, || self.bring_small(found, INDEX, watch))
    }

    /// Converts the error about a file that is missing in the cache, which says nothing about the repository.
    fn as_uncached(&self, error: Error, found: &Found) -> Error {
        let missing = match &error {
            Error::FileMissing { file, .. } => file.clone(),
            Error::NoSafetensors { .. } => "the weights".into(),
            _ => return error,
        };
        self.uncached(found, missing).unwrap_or(error)
    }

    /// Returns the error about a file that is not in the cache, if the cache is all there is.
    pub(crate) fn uncached(&self, found: &Found, missing: String) -> Option<Error> {
        match &found.place {
            Place::Cached { instead_of: None, .. } => Some(self.offline(&found.shown, &missing)),
            Place::Cached { instead_of: Some(why), .. } => {
                Some(Error::HubAway { repo: found.shown.clone(), missing, why: why.to_string() })
            }
            _ => None,
        }
    }

    fn offline(&self, repo: &str, missing: &str) -> Error {
        Error::Offline { repo: repo.into(), cache: self.settings.cache.clone(), missing: missing.into() }
    }

    /// Fetches a file that the plan itself reads.
    pub(crate) fn bring_small(&self, found: &Found, name: &str, watch: &Watch<'_>) -> Result<PathBuf, Error> {
        let planned = self.look_up(found, name.into(), watch)?;
        match (planned.facts, found.source()) {
            (Some(facts), Some(source)) => {
                self.transfer(source, &found.shown, name, &facts, &Watch::quiet(watch))
            }
            _ => Ok(found.folder().join(name)),
        }
    }

    /// Returns the size of a file and of the part that exists.
    fn look_up(&self, found: &Found, name: String, watch: &Watch<'_>) -> Result<PlannedFile, Error> {
        let path = found.folder().join(&name);
        let there = path.metadata().ok().filter(|there| there.is_file()).map(|there| there.len());
        let Place::Remote { source, listing } = &found.place else {
            let size = there.ok_or_else(|| Error::unreadable(&path)(std::io::ErrorKind::NotFound.into()))?;
            return Ok(PlannedFile { name, size, missing: 0, facts: None });
        };
        let in_list = listing.files.get(&name);
        let listed = in_list.and_then(|file| file.size);
        if let Some(size) = there.filter(|size| listed.is_none_or(|listed| listed == *size)) {
            return Ok(PlannedFile { name, size, missing: 0, facts: None });
        }
        let subject = source.subject(&found.shown, &name);
        let ask = || {
            patiently(&self.settings.patience, &self.http.host(), watch, || {
                facts(&self.http, &subject, listed)
            })
        };
        // A data set may have thousands of files, and a request for each would take minutes.
        let known = in_list.and_then(Listed::facts).filter(|_| source.cache.kind() == RepoKind::DataSet);
        let facts = known.map_or_else(ask, Ok)?;
        let size = facts.size;
        // Small files are fetched before anybody has agreed to a download.
        if let Some(most) = most_bytes(source.cache.kind(), &name).filter(|most| size > *most) {
            return Err(Error::TooLarge { repo: found.shown.clone(), file: name, size, most });
        }
        let missing = if is_whole(&source.cache.blob(&facts.etag), size) {
            0
        } else {
            let part = source.cache.incomplete(&facts.etag).metadata().map_or(0, |part| part.len());
            if part > size { size } else { size - part }
        };
        Ok(PlannedFile { name, size, missing, facts: Some(facts) })
    }
}

/// Returns a repository with the files that the hub listed.
fn listed(shown: String, source: Source, listing: Listing) -> Found {
    let names = listing.files.keys().cloned().collect();
    Found { shown, names, place: Place::Remote { source, listing } }
}

fn refuse_quantised(config: &Path, repo: &str) -> Result<(), Error> {
    let text = read_model_json(config).map_err(Error::unreadable(config))?;
    // A config that is not JSON is reported by the model's own check.
    let Ok(config) = serde_json::from_str::<serde_json::Value>(&text) else { return Ok(()) };
    let quantisation = [&config["quantization_config"], &config["text_config"]["quantization_config"]];
    match quantisation.into_iter().find(|value| value.is_object()) {
        None => Ok(()),
        Some(value) => {
            let method =
                value["quant_method"].as_str().unwrap_or("method not named").chars().take(40).collect();
            Err(Error::Quantised { repo: repo.into(), method })
        }
    }
}
