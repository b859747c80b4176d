//! The data that requests can name: files below the folders that the server was started with, the uploads,
//! the demo's data, data sets of the hub, and token files of other machines.
//!
//! Enters: ids. Leaves: regular files in these folders, names of the hub, or addresses. An id is a folder's
//! label and the names below it, with colons in between; each of them is checked by itself and none may be a
//! link, so no id leads out of its folder.

use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use sparktune_app::data_sets;
use sparktune_app::failure::Failure;
use sparktune_app::folders::demo_folder;
use sparktune_data::{DATA_ENDINGS, FileKind};

use crate::ids;
use crate::problem::Problem;
use crate::state::Served;

/// Stands between the parts of an id.
const SEPARATOR: char = ':';
/// The label of the uploads.
const UPLOADS: &str = "uploads";
/// The label of the demo.
pub(crate) const DEMO: &str = "demo";
/// What the names of data on the hub and on other machines begin with, which therefore are no labels.
const ELSEWHERE: [&str; 2] = ["hf", "ndp"];
/// The most files of a folder that are listed, and the most entries that are looked at.
const MOST_FILES: usize = 1000;
const MOST_ENTRIES: usize = 20_000;
/// The most folders inside each other.
const MOST_DEPTH: usize = 4;

/// A folder whose data can be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DataFolder {
    /// The first part of its ids.
    pub label: String,
    /// Its path, absolute and without links.
    pub path: PathBuf,
    /// The most folders inside each other that are looked into.
    depth: usize,
}

impl DataFolder {
    /// Returns whether requests can write to it.
    pub(crate) fn is_of_uploads(&self) -> bool {
        self.label == UPLOADS
    }
}

/// A data file.
#[derive(Debug, Clone)]
pub(crate) struct DataFile {
    /// Its id.
    pub id: String,
    /// Its name, with the folders below that of its label.
    pub name: String,
    /// Its path.
    pub path: PathBuf,
    /// The label of its folder.
    pub folder: String,
    /// Its size and times.
    pub metadata: Metadata,
}

/// What an id stands for.
#[derive(Debug, Clone)]
pub(crate) enum Data {
    /// A file.
    File(Box<DataFile>),
    /// A data set of the hub, `hf:OWNER/NAME`, or a token file of another machine,
    /// `ndp://HOST:PORT/NAME#KEY`.
    Elsewhere(String),
}

impl Data {
    /// Returns it as an answer to `--data`.
    pub(crate) fn answer(&self) -> PathBuf {
        match self {
            Self::File(file) => file.path.clone(),
            Self::Elsewhere(name) => name.into(),
        }
    }

    /// Returns its id.
    pub(crate) fn id(&self) -> &str {
        match self {
            Self::File(file) => &file.id,
            Self::Elsewhere(name) => name,
        }
    }
}

/// Returns the folder of the uploads, which is created if necessary.
///
/// # Errors
/// It cannot be created.
pub(crate) fn uploads(state: &Served) -> Result<DataFolder, Failure> {
    let path = state.kept(UPLOADS)?;
    let path = path.canonicalize().map_err(|error| Failure::io("open", &path, &error))?;
    Ok(DataFolder { label: UPLOADS.to_owned(), path, depth: 0 })
}

/// Returns all folders whose data can be used. One that cannot be opened is left out.
pub(crate) fn folders(state: &Served) -> Vec<DataFolder> {
    let mut folders: Vec<DataFolder> = uploads(state).into_iter().collect();
    let demo = demo_folder().and_then(|path| path.canonicalize().ok());
    folders.extend(demo.map(|path| DataFolder { label: DEMO.to_owned(), path, depth: 0 }));
    for given in &state.data_dirs {
        let Ok(path) = given.canonicalize() else { continue };
        let label = free_label(&path, &folders);
        folders.push(DataFolder { label, path, depth: MOST_DEPTH });
    }
    folders
}

/// Returns a label for a folder that no other one has.
fn free_label(path: &Path, others: &[DataFolder]) -> String {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let fit: String = name.chars().filter(|c| *c != SEPARATOR && !c.is_control()).collect();
    let name = Some(fit.trim_start_matches('.')).filter(|name| ids::checked(name).is_ok()).unwrap_or("data");
    // What can be deleted goes by its label, also where there is no folder for uploads.
    let is_taken = |label: &str| {
        ELSEWHERE.contains(&label)
            || [UPLOADS, DEMO].contains(&label)
            || others.iter().any(|folder| folder.label == label)
    };
    let numbered = (2..).map(|number| format!("{name}-{number}"));
    let mut labels = std::iter::once(name.to_owned()).chain(numbered);
    labels.find(|label| !is_taken(label)).expect("one of so many numbers is free")
}

/// Lists the data files of a folder by their names.
pub(crate) fn list(folder: &DataFolder) -> Vec<DataFile> {
    let mut files = Vec::new();
    let mut entries = MOST_ENTRIES;
    collect(folder, &mut Vec::new(), &mut entries, &mut files);
    files.sort_by(|a, b| a.name.cmp(&b.name));
    files
}

fn collect(folder: &DataFolder, below: &mut Vec<String>, entries: &mut usize, files: &mut Vec<DataFile>) {
    let path = below.iter().fold(folder.path.clone(), |path, name| path.join(name));
    let (mut here, mut inside) = (Vec::new(), Vec::new());
    for entry in fs::read_dir(&path).into_iter().flatten().filter_map(Result::ok) {
        if *entries == 0 {
            break;
        }
        *entries -= 1;
        // Neither the kind nor the times are those of what a link leads to.
        let (Ok(name), Ok(kind)) = (entry.file_name().into_string(), entry.file_type()) else { continue };
        if !is_part(&name) {
            continue;
        }
        if kind.is_dir() && below.len() < folder.depth {
            inside.push(name);
        } else if kind.is_file()
            && is_data_name(&name)
            && let Ok(metadata) = entry.metadata()
        {
            let name = below.iter().chain([&name]).cloned().collect::<Vec<_>>();
            here.push(data_file(folder, &name, metadata));
        }
    }
    let is_text = |file: &DataFile| FileKind::of(&file.path) == FileKind::Text;
    // Data sets come with a README.
    if !folder.is_of_uploads() && here.iter().any(|file| !is_text(file)) {
        here.retain(|file| !is_text(file));
    }
    files.extend(here.into_iter().take(MOST_FILES.saturating_sub(files.len())));
    inside.sort_unstable();
    for name in inside {
        below.push(name);
        collect(folder, below, entries, files);
        below.pop();
    }
}

fn data_file(folder: &DataFolder, parts: &[String], metadata: Metadata) -> DataFile {
    let id = std::iter::once(&folder.label).chain(parts).cloned().collect::<Vec<_>>();
    DataFile {
        id: id.join(&SEPARATOR.to_string()),
        name: parts.join("/"),
        path: parts.iter().fold(folder.path.clone(), |path, name| path.join(name)),
        folder: folder.label.clone(),
        metadata,
    }
}

/// Returns whether a name can be part of an id.
fn is_part(name: &str) -> bool {
    ids::checked(name).is_ok() && !name.contains(SEPARATOR)
}

fn is_data_name(name: &str) -> bool {
    let path = Path::new(name);
    FileKind::is_data(path) || path.extension().is_some_and(|ending| ending == "qubgpu")
}

/// Finds what an id stands for.
///
/// # Errors
/// There is no such file, or the name of data elsewhere is malformed.
pub(crate) fn find(folders: &[DataFolder], id: &str) -> Result<Data, Problem> {
    if data_sets::is_elsewhere(Path::new(id)) {
        data_sets::check_name(id).map_err(|problem| Problem::bad_request(problem).at(id))?;
        return Ok(Data::Elsewhere(id.to_owned()));
    }
    find_file(folders, id).map(|file| Data::File(Box::new(file)))
}

/// Finds a data file by its id.
///
/// # Errors
/// There is no such file.
pub(crate) fn find_file(folders: &[DataFolder], id: &str) -> Result<DataFile, Problem> {
    let missing = || Problem::not_found("data set", id).advise("GET /api/v1/datasets lists them");
    let mut parts = id.split(SEPARATOR);
    let label = parts.next().unwrap_or_default();
    let folder = folders.iter().find(|folder| folder.label == label).ok_or_else(missing)?;
    let parts: Vec<String> = parts.map(str::to_owned).collect();
    let Some((name, above)) = parts.split_last() else { return Err(missing()) };
    if above.len() > folder.depth || !parts.iter().all(|part| is_part(part)) || !is_data_name(name) {
        return Err(missing());
    }
    let mut path = folder.path.clone();
    for part in above {
        path.push(part);
        // A link to a folder would lead out of this one.
        if !fs::symlink_metadata(&path).is_ok_and(|found| found.is_dir()) {
            return Err(missing());
        }
    }
    match fs::symlink_metadata(path.join(name)) {
        Ok(metadata) if metadata.is_file() => Ok(data_file(folder, &parts, metadata)),
        _ => Err(missing()),
    }
}

/// Checks the name of a file that is to be uploaded.
///
/// # Errors
/// It is no name, or not that of a data file.
pub(crate) fn check_upload_name(name: &str) -> Result<(), Problem> {
    if !is_part(name) {
        let problem = Problem::bad_request("this is not the name of a file").at("name");
        return Err(problem
            .advise("Give a plain name without folders, colons or a dot in front, such as train.jsonl"));
    }
    if !is_data_name(name) {
        let problem = Problem::bad_request("the name does not end like that of a data file").at("name");
        return Err(problem.advise(format!("Data files end in {DATA_ENDINGS}, or in .qubgpu")));
    }
    Ok(())
}

/// Returns when a file was changed, in microseconds since the Unix epoch.
pub(crate) fn modified_us(metadata: &Metadata) -> u64 {
    u64::try_from(metadata.mtime() * 1_000_000 + metadata.mtime_nsec() / 1000).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::slice;

    use proptest::prelude::*;

    use super::*;

    fn folder(path: &Path) -> DataFolder {
        DataFolder { label: "data".into(), path: path.canonicalize().unwrap(), depth: MOST_DEPTH }
    }

    /// A folder with data, and a secret beside it.
    fn place() -> (tempfile::TempDir, DataFolder) {
        let place = tempfile::tempdir().unwrap();
        let data = place.path().join("data");
        fs::create_dir_all(data.join("chats/old")).unwrap();
        for name in
            ["train.jsonl", "README.md", "chats/a.csv", "chats/old/b.jsonl.gz", ".hidden.jsonl", "a:b.jsonl"]
        {
            fs::write(data.join(name), "{}\n").unwrap();
        }
        fs::write(data.join("notes.pdf"), "").unwrap();
        fs::write(place.path().join("secret.jsonl"), "secret").unwrap();
        symlink(place.path().join("secret.jsonl"), data.join("link.jsonl")).unwrap();
        symlink(place.path(), data.join("chats/out")).unwrap();
        let folder = folder(&data);
        (place, folder)
    }

    #[test]
    fn files_below_the_folder_are_listed_and_found_by_their_ids() {
        let (_place, folder) = place();
        let files = list(&folder);
        let ids: Vec<&str> = files.iter().map(|file| file.id.as_str()).collect();
        assert_eq!(ids, ["data:chats:a.csv", "data:chats:old:b.jsonl.gz", "data:train.jsonl"]);
        assert_eq!(files[0].name, "chats/a.csv");
        for file in &files {
            assert_eq!(find_file(slice::from_ref(&folder), &file.id).unwrap().path, file.path);
            assert!(file.path.starts_with(&folder.path));
        }
    }

    #[test]
    fn no_id_leads_out_of_its_folder() {
        let (_place, folder) = place();
        for id in [
            "data:../secret.jsonl",
            "data:..:secret.jsonl",
            "data:chats:..:..:secret.jsonl",
            "data:link.jsonl",
            "data:chats:out:secret.jsonl",
            "data:/etc/passwd",
            "data::secret.jsonl",
            "data:.hidden.jsonl",
            "data:chats",
            "data",
            "",
            "other:train.jsonl",
            "data:notes.pdf",
            "data:train.jsonl\0",
            "data:a:b:c:d:e:f.jsonl",
        ] {
            assert_eq!(find_file(slice::from_ref(&folder), id).unwrap_err().status, 404, "{id:?}");
        }
    }

    proptest! {
        #[test]
        fn what_any_id_finds_is_in_its_folder(parts in prop::collection::vec("(\\.\\.|[a-z./:]{0,6}|train.jsonl|chats|out|link.jsonl|secret.jsonl)", 0..5)) {
            let (_place, folder) = place();
            if let Ok(file) = find_file(slice::from_ref(&folder), &format!("data:{}", parts.join(":"))) {
                prop_assert!(file.path.canonicalize().unwrap().starts_with(&folder.path));
            }
        }
    }

    #[test]
    fn names_of_data_elsewhere_are_checked_and_labels_are_free() {
        let of_machine = format!("ndp://spark-a:7272/train#{}", "0f".repeat(32));
        for name in ["hf:org/set:test", of_machine.as_str()] {
            assert!(matches!(find(&[], name), Ok(Data::Elsewhere(found)) if found == name));
        }
        for name in ["hf:../x", "ndp://spark-a:7272/train", "ndp:///etc/passwd"] {
            assert_eq!(find(&[], name).unwrap_err().status, 400, "{name}");
        }
        let at = |path: &str, others: &[DataFolder]| free_label(Path::new(path), others);
        for taken in ["hf", "ndp", "uploads", "demo"] {
            assert_eq!(
                at(&format!("/a/{taken}"), &[]),
                format!("{taken}-2"),
                "also where there is no folder of it"
            );
        }
        let taken = [DataFolder { label: "x".into(), path: "/x".into(), depth: 0 }];
        assert_eq!(
            (at("/b/x", &taken).as_str(), at("/", &taken).as_str(), at("/.x:y", &[]).as_str()),
            ("x-2", "data", "xy")
        );
    }

    #[test]
    fn only_names_of_data_files_are_uploaded() {
        for name in ["train.jsonl", "größe.csv.gz", "a b.parquet", "x.qubgpu", "notes.txt"] {
            assert!(check_upload_name(name).is_ok(), "{name}");
        }
        for name in [
            "",
            "..",
            "a/b.jsonl",
            ".x.jsonl",
            "x.py",
            "x:y.jsonl",
            "a\n.jsonl",
            &format!("{}.jsonl", "x".repeat(255)),
        ] {
            let problem = check_upload_name(name).unwrap_err();
            assert!(problem.status == 400 && problem.advice.is_some(), "{name:?}");
        }
    }
}
