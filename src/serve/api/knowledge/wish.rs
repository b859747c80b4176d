//! What a request says of facts, and the flags of `sparktune edit` that follow from it.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use sparktune_app::comparison::suites;
use sparktune_app::failure::Failure;
use sparktune_base::files::write_shared;

use super::fact::{FactWish, lines};
use crate::data_files;
use crate::problem::Problem;
use crate::state::Served;

/// The methods of `sparktune edit`.
const METHODS: [&str; 5] = ["auto", "rome", "memit", "ultraedit", "memory"];
/// The file of typed facts. Messages name it with the line, which is the number of the fact.
pub(super) const TYPED: &str = "facts.jsonl";
/// The most bytes of a list of layers.
const LONGEST_LAYERS: usize = 100;
/// More layers than any model has.
const MOST_LAYERS: usize = 4096;

/// Where facts come from.
pub(super) enum Source {
    /// They are in the request, here as lines of JSON.
    Typed(String),
    /// They are in a file.
    File(PathBuf),
}

impl Source {
    /// Returns where the facts of a request are.
    ///
    /// # Errors
    /// There are none, too many, or both; or there is no such file.
    pub(super) fn of(state: &Served, facts: &[FactWish], data: Option<&str>) -> Result<Self, Problem> {
        match (facts.is_empty(), data) {
            (false, None) => Ok(Self::Typed(lines(facts)?)),
            (true, Some(id)) => Ok(Self::File(file(state, id, "data")?)),
            _ => {
                Err(Problem::bad_request("the facts are either in `facts` or in the file that `data` names")
                    .at("facts")
                    .advise("Type at least one fact, or name a file of facts"))
            }
        }
    }

    /// Returns the file of the facts. Typed ones are written into `folder`.
    ///
    /// # Errors
    /// It cannot be written.
    pub(super) fn file(&self, folder: &Path) -> Result<PathBuf, Problem> {
        match self {
            Self::File(path) => Ok(path.clone()),
            Self::Typed(text) => {
                let path = folder.join(TYPED);
                write_shared(&path, text).map_err(|error| Failure::io("write", &path, &error))?;
                Ok(path)
            }
        }
    }
}

/// Returns the file of a data set; `place` is the field that names it.
///
/// # Errors
/// There is none of this id.
pub(super) fn file(state: &Served, id: &str, place: &str) -> Result<PathBuf, Problem> {
    let found = data_files::find_file(&data_files::folders(state), id);
    found.map(|file| file.path).map_err(|problem| problem.at(place))
}

/// How facts are written and judged.
#[derive(Default)]
pub(super) struct EditSettings<'a> {
    pub method: Option<&'a str>,
    pub layers: Option<&'a str>,
    pub chat: bool,
    /// The id of a data set with ordinary text.
    pub text: Option<&'a str>,
    /// The name of a general suite that is asked too.
    pub suite: Option<&'a str>,
}

impl EditSettings<'_> {
    /// Returns the flags that say it.
    ///
    /// # Errors
    /// There is no such method, text or suite, or the layers are none.
    pub(super) fn flags(&self, state: &Served) -> Result<Vec<OsString>, Problem> {
        if let Some(method) = self.method.filter(|method| !METHODS.contains(method)) {
            let problem = Problem::bad_request(format!("there is no method '{}'", method.escape_debug()));
            return Err(problem.at("method").advise(format!("There are {}", METHODS.join(", "))));
        }
        if self.layers.is_some_and(|layers| !names_layers(layers)) {
            let problem = Problem::bad_request("these are no layers").at("layers");
            return Err(problem.advise("Write 4, 2,3 or 2-4"));
        }
        let text = self.text.map(|id| file(state, id, "text")).transpose()?;
        // A name that is none is never taken as that of a file.
        let names: Vec<&str> = suites().iter().map(|suite| suite.name).collect();
        if let Some(suite) = self.suite.filter(|suite| !names.contains(suite)) {
            let problem = Problem::not_found("suite", suite).at("suite");
            return Err(problem.advise(format!("There are {}", names.join(", "))));
        }
        let mut flags =
            vec![flag("method", self.method.unwrap_or("auto")), flag("runs-dir", state.runs.path())];
        flags.extend(self.layers.map(|layers| flag("layer", layers)));
        flags.extend(text.map(|text| flag("text", text)));
        flags.extend(self.suite.map(|suite| flag("suite", suite)));
        flags.extend(self.chat.then(|| "--chat".into()));
        Ok(flags)
    }
}

/// Returns whether a text names layers as the command reads them: `4`, `2,3`, `2-4`.
fn names_layers(text: &str) -> bool {
    let number = |text: &str| text.parse::<usize>().ok().filter(|layer| *layer < MOST_LAYERS);
    let names = |part: &str| match part.split_once('-') {
        None => number(part).is_some(),
        Some((first, last)) => number(first).zip(number(last)).is_some_and(|(first, last)| first <= last),
    };
    text.len() <= LONGEST_LAYERS && text.split(',').all(names)
}

/// Returns the files of data sets with their ids, by which messages name them.
pub(super) fn named_files(state: &Served, ids: &[Option<&str>]) -> Vec<(PathBuf, String)> {
    let named = |id: &str| Some((file(state, id, "data").ok()?, id.to_owned()));
    ids.iter().copied().flatten().filter_map(named).collect()
}

/// Returns `--NAME=VALUE`, so that no value is taken for a flag.
pub(super) fn flag(name: &str, value: impl AsRef<OsStr>) -> OsString {
    let mut flag = OsString::from(format!("--{name}="));
    flag.push(value);
    flag
}
