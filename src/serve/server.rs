//! Starts and ends the server.

use std::path::PathBuf;
use std::sync::Arc;

use axum::Router;
use serde::Serialize;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;
use sparktune_app::failure::{Exit, Failure};
use sparktune_base::escape::escape;
use tokio::sync::watch;

use crate::address::{checked_host, checked_name, listen};
use crate::options::Options;
use crate::state::{Served, Shared};
use crate::token::Token;
use crate::{api, connections, guard, pages};

/// A server that has just begun to listen; serialises for `serve --json`.
#[derive(Debug, Clone, Serialize)]
pub struct Listening {
    /// The address to open, with the token.
    pub url: String,
    /// The file with the token; `None` if it could not be kept.
    pub token_file: Option<PathBuf>,
    /// The folder of the runs.
    pub runs_dir: PathBuf,
    /// What the user should know, in whole sentences.
    #[serde(skip)]
    pub notes: Vec<String>,
}

/// Serves until Ctrl-C or SIGTERM. `listening` receives the address once requests are answered.
///
/// # Errors
/// The address is refused or taken, the token cannot be used, or `listening` fails.
pub fn serve(
    options: Options,
    listening: impl FnOnce(&Listening) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let (stopper, stop) = watch::channel(false);
    end_at_signals(stopper)?;
    serve_until(options, stop, listening)
}

/// Serves until `stop` becomes true.
pub(crate) fn serve_until(
    options: Options,
    stop: watch::Receiver<bool>,
    listening: impl FnOnce(&Listening) -> Result<(), Failure>,
) -> Result<(), Failure> {
    if let Some(missing) = options.data_dirs.iter().find(|folder| !folder.is_dir()) {
        let text = format!("--data-dir: there is no folder {}", escape(&missing.display().to_string()));
        return Err(Failure::usage(text).hint("Correct it, or omit the flag"));
    }
    options.allowed_hosts.iter().try_for_each(|name| checked_name(name))?;
    let ip = checked_host(&options.host, !options.allowed_hosts.is_empty())?;
    let mut notes = Vec::new();
    let (token, token_file) = token(&options, &mut notes)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("serve")
        .enable_all()
        .build()
        .map_err(|error| {
            Failure::new(Exit::Device, format!("cannot start the threads of the server: {error}"))
        })?;
    let served = runtime.block_on(async {
        let listener = listen(ip, options.port).await?;
        let address = listener.local_addr().map_err(|error| Failure::usage(error.to_string()))?;
        if !ip.is_loopback() {
            notes.push(format!(
                "other machines can reach this server, and what is sent is not encrypted, unlike through `ssh -L {0}:localhost:{0}`",
                address.port()
            ));
        }
        // A wildcard address is none that a browser can open.
        let shown = match options.allowed_hosts.first() {
            Some(name) if !ip.is_loopback() => format!("{name}:{}", address.port()),
            _ => address.to_string(),
        };
        let url = format!("http://{shown}/?token={}", token.text());
        let state: Shared = Arc::new(Served::new(options, address, token, stop.clone()));
        listening(&Listening { url, token_file, runs_dir: state.runs.path().to_owned(), notes })?;
        connections::serve(listener, app(state.clone()), state, stop).await;
        Ok(())
    });
    // Work in other threads ends with the process; what it writes is complete or not there.
    runtime.shutdown_background();
    served
}

/// Everything that is served, inside the guard.
fn app(state: Shared) -> Router {
    let layer = axum::middleware::from_fn_with_state(state.clone(), guard::guard);
    let routes = api::router(&state).fallback(pages::page);
    routes.with_state(state).layer(layer)
}

/// Returns the token. If the disk is full, it is not kept.
fn token(options: &Options, notes: &mut Vec<String>) -> Result<(Token, Option<PathBuf>), Failure> {
    let Some(folder) = &options.state_dir else {
        notes.push("without a home folder the token is not kept: it changes at each start".to_owned());
        return Ok((Token::random(), None));
    };
    match Token::kept_in(folder) {
        Ok((token, path)) => Ok((token, Some(path))),
        Err(failure) if failure.exit == Exit::Device => {
            notes.push(format!("the token could not be kept, so it changes at the next start: {failure}"));
            Ok((Token::random(), None))
        }
        Err(failure) => Err(failure),
    }
}

/// Ends the server at the first SIGINT or SIGTERM, and the process at the second.
fn end_at_signals(stopper: watch::Sender<bool>) -> Result<(), Failure> {
    let refused = |error| Failure::usage(format!("cannot handle signals: {error}"));
    let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(refused)?;
    let listen = move || {
        for signal in signals.forever() {
            if stopper.send_replace(true) {
                let _ = emulate_default_handler(signal);
            }
        }
    };
    std::thread::Builder::new().name("signals".into()).spawn(listen).map(drop).map_err(refused)
}
