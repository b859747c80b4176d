//! The data worker as its parent sees it: a tokenizer and chat template that are asked and never run here.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;
use sparktune_base::field_map::FieldMap;
use sparktune_base::thinking::Thinking;
use sparktune_data::{
    DataError, Format, Input, Packed, Prepared, Preview, Progress, Rejection, Report, TemplateKwargs,
};
use sparktune_ndp::Token;

use super::ledger::Ledger;
use super::protocol::{
    CheckRequest, FromWorker, Now, PackRequest, PrepareRequest, PreviewRequest, Reply, Request, ToWorker,
};
use super::watch::Watch;
use crate::failure::{Exit, Failure};

/// The hidden command that is a worker.
const COMMAND: &str = "data-worker";
/// This program, also after its file was replaced by another build.
const THIS_PROGRAM: &str = "/proc/self/exe";
/// How often the worker is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How long a cancelled worker may take to remove what it has half written.
const PATIENCE: Duration = Duration::from_secs(1);

/// The tokenizer and chat template of a model, which a process of their own runs. It is started when it is
/// first needed, and again after it was ended.
pub struct ModelTokenizer {
    folder: PathBuf,
    template: Option<PathBuf>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    worker: Option<Worker>,
    now: Now,
    oddities: Vec<String>,
}

impl ModelTokenizer {
    /// Reads `tokenizer.json` of a folder, and its chat template or the one that is given.
    ///
    /// # Errors
    /// The worker cannot be started, or one of the files cannot be used.
    pub fn open(folder: &Path, template: Option<&Path>, progress: &dyn Progress) -> Result<Self, Failure> {
        let tokenizer = Self {
            folder: folder.to_owned(),
            template: template.map(Path::to_owned),
            state: Mutex::default(),
        };
        tokenizer.running(&mut tokenizer.state(), progress)?;
        Ok(tokenizer)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Describes what is odd about the tokenizer, in sentences that name its file.
    pub fn oddities(&self) -> Vec<String> {
        self.state().oddities.clone()
    }

    /// Returns what the template does about thinking with the variables that are set now.
    pub fn thinking_now(&self) -> Thinking {
        self.state().now.thinking
    }

    /// Returns a hash of tokenizer, template and variables. Equal fingerprints tokenise equally.
    pub(crate) fn fingerprint(&self) -> String {
        self.state().now.fingerprint.clone()
    }

    /// Sets the variables of the template.
    ///
    /// # Errors
    /// The template cannot be used with them.
    pub(crate) fn set_kwargs(&self, kwargs: TemplateKwargs, progress: &dyn Progress) -> Result<(), Failure> {
        self.set(Request::SetKwargs(kwargs), progress)
    }

    /// Sets the variables of the template to those that the user gave, or to those that suit the data.
    ///
    /// # Errors
    /// The template does not read a variable, or gets it from the tokenizer, or the data cannot be read.
    pub(crate) fn choose_kwargs(
        &self,
        given: Option<TemplateKwargs>,
        inputs: &[Input],
        (format, map): (Option<Format>, &FieldMap),
        progress: &dyn Progress,
    ) -> Result<(), Failure> {
        let (inputs, map) = (inputs.to_vec(), map.clone());
        self.set(Request::ChooseKwargs { given, inputs, format, map }, progress)
    }

    fn set(&self, request: Request, progress: &dyn Progress) -> Result<(), Failure> {
        match self.ask(request, progress)? {
            Reply::Now(now) => {
                self.state().now = now;
                Ok(())
            }
            _ => Err(unexpected()),
        }
    }

    /// Checks data.
    ///
    /// # Errors
    /// The same as for [`sparktune_data::check`], or a file of the model cannot be used.
    pub(crate) fn check(&self, request: CheckRequest, progress: &dyn Progress) -> Result<Report, Failure> {
        match self.ask(Request::Check(request), progress)? {
            Reply::Checked(report) => Ok(report),
            _ => Err(unexpected()),
        }
    }

    /// Tokenises data into a folder.
    ///
    /// # Errors
    /// The same as for [`sparktune_data::prepare`], or a file of the model cannot be used.
    pub(crate) fn prepare(
        &self,
        request: PrepareRequest,
        progress: &dyn Progress,
    ) -> Result<Prepared, Failure> {
        match self.ask(Request::Prepare(request), progress)? {
            Reply::Prepared(prepared) => Ok(prepared),
            _ => Err(unexpected()),
        }
    }

    /// Renders a few examples.
    ///
    /// # Errors
    /// The same as for [`sparktune_data::preview`], or a file of the model cannot be used.
    pub(crate) fn preview(
        &self,
        request: PreviewRequest,
        progress: &dyn Progress,
    ) -> Result<Preview, Failure> {
        match self.ask(Request::Preview(request), progress)? {
            Reply::Preview(preview) => Ok(preview),
            _ => Err(unexpected()),
        }
    }

    /// Returns the token ids of what a user says to the model, as a server renders it.
    ///
    /// # Errors
    /// The template refuses a text, or the worker was ended.
    pub(crate) fn prompts(
        &self,
        texts: &[String],
        progress: &dyn Progress,
    ) -> Result<Vec<Vec<u32>>, Failure> {
        match self.ask(Request::Prompts(texts.to_vec()), progress)? {
            Reply::Prompts(prompts) => Ok(prompts),
            _ => Err(unexpected()),
        }
    }

    /// Renders messages in OpenAI's form with these variables of the template, as
    /// [`sparktune_data::ChatTokenizer::render_messages`] does, or returns why they are refused.
    ///
    /// # Errors
    /// The worker was ended.
    pub fn render(
        &self,
        messages: &Value,
        kwargs: &TemplateKwargs,
    ) -> Result<Result<String, Rejection>, Failure> {
        let request = Request::Render { messages: messages.clone(), kwargs: kwargs.clone() };
        match self.ask(request, &())? {
            Reply::Rendered(rendered) => Ok(rendered),
            _ => Err(unexpected()),
        }
    }

    /// Packs data into a token file.
    ///
    /// # Errors
    /// The same as for [`sparktune_data::pack_text`], or a file of the model cannot be used.
    pub(crate) fn pack(&self, request: PackRequest, progress: &dyn Progress) -> Result<Packed, Failure> {
        match self.ask(Request::Pack(request), progress)? {
            Reply::Packed(packed) => Ok(packed),
            _ => Err(unexpected()),
        }
    }

    fn ask(&self, request: Request, progress: &dyn Progress) -> Result<Reply, Failure> {
        let mut state = self.state();
        let answer = self.running(&mut state, progress)?.ask(request, progress);
        if state.worker.as_ref().is_some_and(|worker| worker.has_ended) {
            state.worker = None;
        }
        answer
    }

    /// Returns the worker, which is started and has read the tokenizer.
    fn running<'s>(&self, state: &'s mut State, progress: &dyn Progress) -> Result<&'s mut Worker, Failure> {
        if state.worker.is_none() {
            let mut worker = Worker::start()?;
            let open = Request::Open { folder: self.folder.clone(), template: self.template.clone() };
            let Reply::Opened { oddities, mut now } = worker.ask(open, progress)? else {
                return Err(unexpected());
            };
            // Those that were set before this worker was started.
            if now.kwargs != state.now.kwargs {
                let set = Request::SetKwargs(state.now.kwargs.clone());
                let Reply::Now(as_before) = worker.ask(set, progress)? else { return Err(unexpected()) };
                now = as_before;
            }
            (state.oddities, state.now) = (oddities, now);
            return Ok(state.worker.insert(worker));
        }
        state.worker.as_mut().ok_or_else(unexpected)
    }
}

fn unexpected() -> Failure {
    Failure::new(Exit::Bug, "the process that reads the data answered another question")
        .hint("Please report this")
}

/// The command that starts a worker. It runs templates and tokenizers of strangers, and receives nothing from
/// other machines, so it does not get the token for that.
fn command() -> Command {
    let mut command = Command::new(THIS_PROGRAM);
    command.arg0("sparktune").arg(COMMAND).env_remove(Token::VARIABLE);
    command
}

/// A running worker.
struct Worker {
    child: Child,
    requests: ChildStdin,
    replies: Receiver<FromWorker>,
    ledger: Ledger,
    has_ended: bool,
}

impl Worker {
    fn start() -> Result<Self, Failure> {
        let failed = |error: std::io::Error| {
            Failure::io("start", Path::new("the process that reads the data"), &error)
        };
        let ledger = Ledger::create().map_err(failed)?;
        let errors: File = ledger.file().map_err(failed)?;
        let mut child = command()
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(errors)
            // Ctrl-C of a terminal is for this process alone, which then cancels the worker.
            .process_group(0)
            .spawn()
            .map_err(failed)?;
        let (Some(requests), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(unexpected());
        };
        Ok(Self { child, requests, replies: replies_of(output), ledger, has_ended: false })
    }

    /// Sends a request and waits for the answer. The worker is ended if it passes a limit.
    fn ask(&mut self, request: Request, progress: &dyn Progress) -> Result<Reply, Failure> {
        let mut watch = Watch::new(self.child.id());
        self.send(&ToWorker::Request(Box::new(request)))?;
        let mut looked_at = Instant::now();
        let mut cancelled_at: Option<Instant> = None;
        loop {
            let reply = self.replies.recv_timeout(LOOK_EVERY);
            match reply {
                Ok(FromWorker::Done(reply)) if cancelled_at.is_none() => return Ok(*reply),
                Ok(FromWorker::Failed(failure)) if cancelled_at.is_none() => return Err(failure),
                Ok(FromWorker::Done(_) | FromWorker::Failed(_)) => return Err(DataError::Cancelled.into()),
                Ok(FromWorker::Step(step)) => {
                    watch.examples = step.examples;
                    progress.step(step);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    self.has_ended = true;
                    let status = self.child.wait().map_err(|_| unexpected())?;
                    let failure = watch.ended(&self.ledger, status);
                    return Err(if cancelled_at.is_some() { DataError::Cancelled.into() } else { failure });
                }
            }
            match cancelled_at {
                None if progress.cancelled() => {
                    cancelled_at = Some(Instant::now());
                    self.send(&ToWorker::Cancel)?;
                }
                Some(at) if at.elapsed() > PATIENCE => {
                    self.end();
                    return Err(DataError::Cancelled.into());
                }
                _ => {}
            }
            if looked_at.elapsed() >= LOOK_EVERY {
                looked_at = Instant::now();
                if let Some(failure) = watch.look(&self.ledger) {
                    self.end();
                    return Err(failure);
                }
            }
        }
    }

    /// Sends a line. If the worker has ended, that is noticed when its answer is awaited.
    fn send(&mut self, line: &ToWorker) -> Result<(), Failure> {
        let text = serde_json::to_string(line).map_err(|error| Failure::new(Exit::Bug, error.to_string()))?;
        let _ = self.requests.write_all(format!("{text}\n").as_bytes());
        Ok(())
    }

    fn end(&mut self) {
        self.has_ended = true;
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.end();
    }
}

/// Reads the replies on a thread of their own, because the worker has to be looked at meanwhile. The channel
/// ends with the worker.
fn replies_of(output: ChildStdout) -> Receiver<FromWorker> {
    let (sender, replies) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(output).lines() {
            let reply = line.ok().and_then(|line| serde_json::from_str(&line).ok());
            let Some(reply) = reply else { return };
            if sender.send(reply).is_err() {
                return;
            }
        }
    });
    replies
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_does_not_inherit_the_token_for_data_of_other_machines() {
        let command = command();
        let of_token = command.get_envs().find(|(name, _)| *name == "SPARKTUNE_NDP_TOKEN");
        assert_eq!(of_token, Some(("SPARKTUNE_NDP_TOKEN".as_ref(), None)));
    }
}
