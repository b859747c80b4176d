//! `data serve`: token files for other machines, until Ctrl-C.

use std::path::{Path, PathBuf};

use serde::Serialize;
use sparktune_app::failure::{Exit, Failure};
use sparktune_app::served_data::{DataServer, Offer};
use sparktune_base::escape::escape;
use sparktune_base::program_name;
use sparktune_base::shell::shown_word;
use sparktune_base::units::{bytes, counted};
use sparktune_tui::output::{note, print, print_json};

use crate::interrupt::Interrupts;
use crate::request::Style;

/// The files to serve, and where.
#[derive(Debug, Clone)]
pub struct ServeDataRequest {
    /// The token files.
    pub files: Vec<PathBuf>,
    /// The address of this machine to listen on.
    pub host: String,
    /// The port; the first free one from 7272 on if it is not given.
    pub port: Option<u16>,
}

#[derive(Serialize)]
struct Listening<'a> {
    files: &'a [Offer],
    token_file: &'a Path,
}

/// Runs `sparktune data serve` until Ctrl-C or SIGTERM.
///
/// # Errors
/// A file cannot be served, or the address cannot be had.
pub fn serve_data(request: &ServeDataRequest, style: Style) -> Result<Exit, Failure> {
    let interrupts = Interrupts::listen()?;
    let server = DataServer::open(&request.files, &request.host, request.port)?;
    let DataServer { offers, token_file, .. } = &server;
    if style.json {
        print_json(&Listening { files: offers, token_file })?;
    } else {
        for Offer { path, address, examples, bytes: size } in offers {
            let path = path.display().to_string();
            note(&format!("{}: {}, {}", escape(&path), counted(*examples, "example"), bytes(*size)));
            print(&format!("{address}\n"))?;
        }
        if server.is_everywhere {
            note("This is reachable from all networks of this machine; --host limits it to one address.");
        }
        note(&needs(&server));
    }
    let stop = interrupts.flag();
    server.run(&stop, &|text| note(text))?;
    Ok(Exit::Done)
}

/// Says what the other machine needs besides the address.
fn needs(server: &DataServer) -> String {
    let DataServer { offers, host, token_file, .. } = server;
    let (program, file) = (program_name(), token_file.display().to_string());
    let address = offers.first().map_or("", |offer| offer.address.as_str());
    format!(
        "The other machine needs the token in {}, which is a password. There:\n  \
         export SPARKTUNE_NDP_TOKEN=\"$(ssh {host} cat {})\"\n  \
         {program} check {}\n\
         Ctrl-C ends this. What it interrupts continues when it is started again.",
        escape(&file),
        shown_word(token_file.as_os_str()),
        shown_word(address.as_ref())
    )
}
