//! Fetches a data set of the hub as JSON Lines.
//!
//! Enters: a name of the catalog or of the hub. Leaves: one file with its examples, whose columns have the
//! names of a known format. The download itself is kept in the hub's cache, so that it continues where it was
//! interrupted.

use std::fs::Permissions;
use std::io::{BufWriter, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use serde::Serialize;
use sparktune_base::escape::escape;
use sparktune_base::field_map::FieldMap;
use sparktune_base::program_name;
use sparktune_data::{Input, InputFile, MappedLines, write_mapped_lines};
use sparktune_hub::Origin;
use sparktune_plan::{CatalogDataSet, DataCatalog};

use crate::data_sets::is_of_hub;
use crate::failure::{Exit, Failure};
use crate::listener::Listener;
use crate::model::{fetch, hub};

/// A data set that was fetched.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FetchedData {
    /// The name that means the same files for ever.
    pub pinned: String,
    /// What its columns stand for.
    pub map: FieldMap,
    /// The lines that were written and left out.
    #[serde(flatten)]
    pub lines: MappedLines,
    /// The number of its files that were read.
    pub files_read: usize,
    /// The number of its files.
    pub files: usize,
    /// Whether the limit ended the reading, so that the data set has more lines or files.
    pub is_limited: bool,
    /// Its row of the catalog, if it was named by that.
    pub row: Option<&'static CatalogDataSet>,
}

/// Downloads a data set and writes up to `limit` of its examples into `output`, which appears when it is
/// complete. `map` takes the place of that of the catalog. Files that the limit does not need are not
/// downloaded.
///
/// # Errors
/// The name is unknown, `output` exists or cannot be written, the data set cannot be found, downloaded or
/// read, or none of its lines is an example.
pub fn fetch_data(
    name: &str,
    map: Option<FieldMap>,
    limit: Option<u64>,
    output: &Path,
    listener: &dyn Listener,
) -> Result<FetchedData, Failure> {
    let row = DataCatalog::shipped().find(name);
    let data = match row {
        Some(row) => row.data.as_str(),
        None if is_of_hub(Path::new(name)) => name,
        None => return Err(unknown(name)),
    };
    if output.exists() {
        let text = format!("{} exists, so it is not overwritten", escape(&output.display().to_string()));
        return Err(Failure::usage(text).hint("Name another file with --output, or delete it"));
    }
    let map = map.or_else(|| row.map(|row| row.map.clone())).unwrap_or_default();
    let failed = |error: std::io::Error| Failure::io("write", output, &error);
    let folder = output.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let as_any_file = Permissions::from_mode(0o666);
    let partial = tempfile::Builder::new().prefix(".fetching-").permissions(as_any_file).tempfile_in(folder);
    let partial = partial.map_err(failed)?;

    let hub = hub()?;
    let found = hub.plan_data_set(data, listener)?;
    let most = limit.unwrap_or(u64::MAX);
    let mut lines = MappedLines::default();
    let (mut files_read, mut has_more_lines, mut out) =
        (0, false, BufWriter::with_capacity(1 << 20, partial.as_file()));
    while files_read < found.download.files.len() && lines.examples < most {
        // With a limit, the next file is downloaded only when it is needed.
        let part = match limit {
            Some(_) => found.download.of_file(files_read),
            None => found.download.clone(),
        };
        let snapshot = fetch(&hub, &part, listener)?;
        if let Origin::CacheInstead { why } = &snapshot.origin
            && files_read == 0
        {
            listener.note(&format!("note: using the cached copy of the data set {data}: {why}"));
        }
        let file =
            |file: &String| InputFile { name: format!("{data} {file}"), path: snapshot.folder.join(file) };
        let files: Vec<InputFile> = snapshot.files.iter().map(file).collect();
        files_read += files.len();
        let input = Input { name: data.to_owned(), pinned: None, files };
        has_more_lines = write_mapped_lines(&input, &map, most, (&mut out, output), &mut lines, listener)?;
    }
    out.flush().map_err(failed)?;
    drop(out);
    if lines.examples == 0 {
        return Err(nothing(data, &lines));
    }
    partial.as_file().sync_all().map_err(failed)?;
    partial.persist_noclobber(output).map_err(|refused| failed(refused.error))?;
    Ok(FetchedData {
        pinned: found.pinned,
        map,
        is_limited: has_more_lines || files_read < found.download.files.len(),
        lines,
        files_read,
        files: found.download.files.len(),
        row,
    })
}

fn unknown(name: &str) -> Failure {
    let program = program_name();
    let text = format!("there is no data set '{}' in the catalog", escape(name));
    Failure::usage(text).hint(format!(
        "`{program} data list` lists them; any other data set of the hub is named as hf:OWNER/NAME"
    ))
}

/// Returns the failure of a data set without any example.
fn nothing(data: &str, lines: &MappedLines) -> Failure {
    let text = match &lines.first_rejected {
        None => format!("{data} has no examples"),
        Some((place, rejection)) => {
            let why = escape(&rejection.to_string()).into_owned();
            format!("no line of {data} is an example, so nothing was written. {place}: {why}")
        }
    };
    Failure::new(Exit::Data, text).hint("Say with --map what its columns stand for")
}
