//! Answers the wizard's requests on separate threads, so that the screen stays responsive.
//!
//! Enters: [`Request`]s. Leaves: [`Response`]s, made by the library behind every interface. One thread
//! answers quick requests in order; each slow one has a thread of its own and can be cancelled.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use sparktune_app::answers::gather;
use sparktune_app::data::{RejectedLines, RejectedPage};
use sparktune_app::draft::{forget_draft, keep_draft};
use sparktune_app::failure::Failure;
use sparktune_app::folders::runs_dir_of;
use sparktune_app::listener::{Listener, Reporter};
use sparktune_app::program::Program;
use sparktune_app::{check, data, files, launch, machine, model, presets, runs};
use sparktune_plan::{Answers, Origin};

use super::request::{Request, Response, Ticket, Ticketed};

/// The number of bytes shown of a rejected line.
const SHOWN_BYTES: usize = 2_000;

/// The state of the threads that answer requests.
pub struct Backend {
    program: Program,
    responses: Sender<Ticketed<Response>>,
    /// The answers from the command line.
    flags: Answers,
    runs_dir: PathBuf,
    /// The cancel flags of slow requests.
    running: Mutex<HashMap<Ticket, Arc<AtomicBool>>>,
    /// The rejected lines of the data that was read last.
    rejected: Mutex<Option<RejectedLines>>,
}

impl Backend {
    /// Answers requests on separate threads until the wizard ends. The returned thread ends once all quick
    /// requests were handled, such as that to save the last draft.
    pub fn spawn(
        program: Program,
        requests: Receiver<Ticketed<Request>>,
        responses: Sender<Ticketed<Response>>,
        initial: &Answers,
    ) -> JoinHandle<()> {
        let backend = Arc::new(Self {
            program,
            responses,
            flags: initial.only(Origin::Flag),
            runs_dir: runs_dir_of(initial),
            running: Mutex::default(),
            rejected: Mutex::default(),
        });
        std::thread::spawn(move || {
            for request in requests {
                backend.clone().handle(request);
            }
            // The wizard has ended, so the remaining work is cancelled. Downloaded files are kept.
            lock(&backend.running).values().for_each(|cancel| cancel.store(true, Ordering::Relaxed));
        })
    }

    fn handle(self: Arc<Self>, Ticketed { ticket, body: request }: Ticketed<Request>) {
        if request.is_slow() {
            let cancel = Arc::new(AtomicBool::new(false));
            lock(&self.running).insert(ticket, cancel.clone());
            std::thread::spawn(move || {
                let response = self.work(request, ticket, cancel);
                self.respond(ticket, response);
                lock(&self.running).remove(&ticket);
            });
            return;
        }
        match request {
            Request::Cancel { ticket } => {
                if let Some(cancel) = lock(&self.running).get(&ticket) {
                    cancel.store(true, Ordering::Relaxed);
                }
            }
            Request::KeepDraft { draft } => {
                if let Err(failure) = keep_draft(&draft) {
                    self.respond(ticket, Response::NotKept(failure.to_string()));
                }
            }
            Request::ForgetDraft => forget_draft(),
            request => self.respond(ticket, self.answer(request)),
        }
    }

    fn respond(&self, ticket: Ticket, body: Response) {
        // If the wizard has ended, the response is dropped.
        let _ = self.responses.send(Ticketed { ticket, body });
    }

    /// Answers a quick request.
    fn answer(&self, request: Request) -> Response {
        match request {
            Request::Presets { also } => Response::Presets(presets::list(also)),
            Request::SavePreset { name, toml, replace } => {
                Response::Saved(presets::save(&name, &toml, replace).map_err(text))
            }
            Request::Demo => Response::Demo(gather(self.flags.clone(), true).map(Box::new).map_err(text)),
            _ => unreachable!("slow requests and those without a response are handled before"),
        }
    }

    /// Does the work of a slow request.
    fn work(&self, request: Request, ticket: Ticket, cancel: Arc<AtomicBool>) -> Response {
        let reporter = Reporter::new(cancel, |progress| self.respond(ticket, Response::Progress(progress)));
        match request {
            Request::Machine => {
                Response::Machine(machine::look_at_machine(&self.program, &self.runs_dir).map_err(text))
            }
            Request::Catalog => Response::Catalog(model::cached_models()),
            Request::Recent => Response::Recent(runs::recently_used(&self.runs_dir)),
            Request::Model { name, revision, config } => {
                let found = model::look_up(&name, revision, config, &reporter);
                let found = found.map(|found| model::ModelFound { notes: reporter.take_notes(), ..found });
                Response::Model(found.map(Box::new).map_err(text))
            }
            Request::List { folder } => Response::Listing(files::list(&folder, false).map_err(text)),
            Request::Rejected { offset, limit } => {
                Response::Rejected(self.rejected_lines(offset, limit).map_err(text))
            }
            Request::Data { answers } => {
                Response::Data(self.data(&answers, &reporter).map(Box::new).map_err(text))
            }
            Request::Find { answers, wanted } => {
                Response::Found(check::find(&answers, wanted, &reporter).map(Box::new).map_err(text))
            }
            Request::Start { answers, forgets_draft } => {
                let run = launch::start(&self.program, &answers, &reporter);
                if run.is_ok() && forgets_draft {
                    forget_draft();
                }
                Response::Started(run.map(|run| run.path().to_owned()).map_err(text))
            }
            _ => unreachable!("only these are slow"),
        }
    }

    fn data(&self, answers: &Answers, listener: &dyn Listener) -> Result<data::DataFound, Failure> {
        let (found, rejected) = data::read(answers, listener)?;
        *lock(&self.rejected) = rejected;
        Ok(found)
    }

    fn rejected_lines(&self, offset: u64, limit: usize) -> Result<RejectedPage, Failure> {
        match &mut *lock(&self.rejected) {
            Some(lines) => lines.page(offset, limit, SHOWN_BYTES),
            None => Ok(RejectedPage { offset, ..RejectedPage::default() }),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Formats a failure and its hints as one text, which the wizard shows.
fn text(failure: Failure) -> String {
    failure.to_string()
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use super::*;

    #[test]
    fn every_quick_request_is_handled_before_the_thread_ends() {
        let (sender, requests) = channel();
        let (responses, received) = channel();
        let program = Program::at("/nowhere".into());
        let thread = Backend::spawn(program, requests, responses, &Answers::default());
        for ticket in 1..=200 {
            sender.send(Ticketed { ticket, body: Request::Presets { also: None } }).unwrap();
        }
        drop(sender);
        thread.join().unwrap();
        assert_eq!(received.try_iter().count(), 200);
    }

    #[test]
    fn what_a_disk_is_slow_to_read_delays_neither_quick_requests_nor_leaving() {
        let (responses, received) = channel();
        let backend = Arc::new(Backend {
            program: Program::at("/nowhere".into()),
            responses,
            flags: Answers::default(),
            runs_dir: PathBuf::new(),
            running: Mutex::default(),
            rejected: Mutex::default(),
        });
        // Whoever holds the rejected lines is as slow as the disk that they are read from.
        let slow = lock(&backend.rejected);
        let (done, is_done) = channel();
        let queue = backend.clone();
        std::thread::spawn(move || {
            queue.clone().handle(Ticketed { ticket: 1, body: Request::Rejected { offset: 0, limit: 1 } });
            queue.handle(Ticketed { ticket: 2, body: Request::Presets { also: None } });
            done.send(()).unwrap();
        });
        is_done.recv_timeout(Duration::from_secs(30)).unwrap();
        assert_eq!(received.recv().unwrap().ticket, 2);
        drop(slow);
        assert_eq!(received.recv().unwrap().ticket, 1);
        assert!(Request::List { folder: PathBuf::new() }.is_slow());
    }
}
