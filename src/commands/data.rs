//! `data list`, `data fetch`: the catalog of data sets, and the examples of one as JSON Lines.

use std::path::{Path, PathBuf};

use serde::Serialize;
use sparktune_app::data_fetch::{self, FetchedData};
use sparktune_app::failure::{Exit, Failure};
use sparktune_base::escape::escape;
use sparktune_base::field_map::FieldMap;
use sparktune_base::program_name;
use sparktune_base::units::{bytes, count, counted, or_unknown};
use sparktune_plan::{CatalogDataSet, DataCatalog};
use sparktune_tui::output::{print, print_json};
use sparktune_tui::progress::OnStderr;

use crate::interrupt::Interrupts;
use crate::request::Style;

/// The data set to fetch.
#[derive(Debug, Clone)]
pub struct FetchRequest {
    /// Its id in the catalog, or its name on the hub.
    pub name: String,
    /// The file to write.
    pub output: PathBuf,
    /// The largest number of examples.
    pub limit: Option<u64>,
    /// What its columns stand for, if it is not what the catalog says.
    pub map: Option<FieldMap>,
}

/// Runs `sparktune data list`.
///
/// # Errors
/// Standard output cannot be written.
pub fn list_data(json: bool) -> Result<Exit, Failure> {
    let data_sets = &DataCatalog::shipped().data_sets;
    if json {
        print_json(data_sets)?;
    } else {
        print(&table(data_sets))?;
    }
    Ok(Exit::Done)
}

fn table(data_sets: &[CatalogDataSet]) -> String {
    let mut text = format!(
        "{:<24} {:>10} {:>9}  {:<13} {}\n",
        "ID", "EXAMPLES", "DOWNLOAD", "LICENCE", "COLUMNS, AND WHAT THEY STAND FOR"
    );
    for row in data_sets {
        let map = if row.map.is_empty() { String::new() } else { format!("; {}", row.map.flag()) };
        text.push_str(&format!(
            "{:<24} {:>10} {:>9}  {:<13} {}{map}\n    {}; {}{}\n",
            row.id,
            or_unknown(row.examples, count),
            or_unknown(row.bytes, bytes),
            row.licence,
            row.columns.join(", "),
            row.about,
            row.data,
            match &row.fetched {
                Some(day) => format!("; fetched on {day}"),
                None => String::new(),
            }
        ));
    }
    let unverified = data_sets.iter().filter(|row| row.fetched.is_none()).count();
    text.push_str(&format!(
        "\n{unverified} of {} are unverified: their rows were read from pages, and nobody has fetched them with this program yet.\n\
         Read the card of a data set for its licence before you use it. `{} data fetch ID -o FILE` downloads one.\n",
        data_sets.len(),
        program_name()
    ));
    text
}

#[derive(Serialize)]
struct FetchReport<'a> {
    output: &'a Path,
    #[serde(flatten)]
    fetched: &'a FetchedData,
}

/// Runs `sparktune data fetch`.
///
/// # Errors
/// The name is unknown, the data set cannot be downloaded or read, it has no examples, or the output exists
/// or cannot be written.
pub fn fetch_data(request: &FetchRequest, style: Style) -> Result<Exit, Failure> {
    let interrupts = Interrupts::listen()?;
    let listener = OnStderr::new(interrupts.flag());
    let FetchRequest { name, output, limit, map } = request;
    let fetched = data_fetch::fetch_data(name, map.clone(), *limit, output, &listener)?;
    if style.json {
        print_json(&FetchReport { output, fetched: &fetched })?;
    } else {
        print(&in_words(output, &fetched))?;
    }
    Ok(Exit::Done)
}

fn in_words(output: &Path, fetched: &FetchedData) -> String {
    let (lines, file) = (&fetched.lines, output.display().to_string());
    let limited = if fetched.is_limited { ", the limit" } else { "" };
    let mut text = format!(
        "{}{limited}, from {} of {} of {}\n",
        counted(lines.examples, "example"),
        fetched.files_read,
        counted(fetched.files as u64, "file"),
        fetched.pinned,
    );
    if let Some((place, rejection)) = &lines.first_rejected {
        let left_out = counted(lines.rejected, "line");
        text.push_str(&format!(
            "left out: {left_out}. The first, {place}: {}\n",
            escape(&rejection.to_string())
        ));
    }
    if let Some(row) = fetched.row {
        text.push_str(&format!("licence: {} ({})\n", row.licence, row.source));
    }
    let (file, program) = (escape(&file), program_name());
    text.push_str(&format!("written to {file}; `{program} check {file}` examines it\n"));
    text
}
