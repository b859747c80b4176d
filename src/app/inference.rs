//! The inference worker: a process of its own that holds a model and answers requests.
//!
//! Enters: a model's folder and requests (`sparktune_sampling::protocol`). Leaves: replies. A crash of the
//! worker is the failure of the requests that it had not answered, and nothing else; another can be started.
//!
//! The worker runs the model's tokenizer and chat template, which a stranger wrote. It is therefore watched
//! as the data worker is ([`crate::data_worker`]): if one of them takes too long or too much memory, the
//! worker is ended, and the failure names the file.

use std::fmt;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use sparktune_base::escape::escape;
use sparktune_base::units::counted;
use sparktune_ndp::Token;
use sparktune_plan::choices::Device;
use sparktune_sampling::protocol::{LONGEST_LINE, Ready, Reply, Request};

use crate::data_worker::{Ledger, Watch};
use crate::failure::{Exit, Failure};
use crate::program::Program;

/// The hidden command of the worker process.
pub const COMMAND: &str = "infer-worker";

/// How often the worker is looked at while its reply is awaited.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// What a worker is started with.
#[derive(Debug, Clone)]
pub struct WorkerOptions {
    /// The folder of a model, a run or an adapter.
    pub model: PathBuf,
    /// The base of an adapter or a run, if it is not where that says.
    pub base: Option<PathBuf>,
    /// The largest number of answers at a time.
    pub max_sequences: usize,
    /// Where and how it decodes.
    pub decoding: Decoding,
}

/// Where and how models decode: what a user can choose for all workers of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decoding {
    /// Where the model is.
    pub device: Device,
    /// The number of tokens that the MTP head drafts, if the model has one; 0 for none.
    pub draft_tokens: usize,
}

impl Default for Decoding {
    fn default() -> Self {
        Self { device: Device::Cpu, draft_tokens: 0 }
    }
}

impl fmt::Display for Decoding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "on {}", self.device)?;
        match self.draft_tokens {
            0 => Ok(()),
            tokens => write!(f, " with {}", counted(tokens as u64, "drafted token")),
        }
    }
}

/// A running worker. It ends when this value is dropped.
pub struct Worker {
    process: Process,
    ready: Ready,
}

struct Process {
    child: Child,
    input: Option<ChildStdin>,
    replies: Receiver<Reply>,
    ledger: Ledger,
    watch: Watch,
    looked_at: Instant,
    /// Why it has ended, once that is known.
    ended: Option<Failure>,
}

impl Worker {
    /// Starts a worker and waits until its model is loaded.
    ///
    /// # Errors
    /// The process cannot be started, or the model cannot be loaded or does not fit into memory.
    pub fn start(program: &Program, options: &WorkerOptions) -> Result<Self, Failure> {
        let mut process = Process::start(program, options)?;
        loop {
            match process.next(None)? {
                Some(Reply::Ready(ready)) => return Ok(Self { process, ready }),
                Some(Reply::Failed { error }) => return Err(Failure::new(process.exit(), error)),
                _ => {}
            }
        }
    }

    /// Returns what the worker said of its model.
    pub fn ready(&self) -> &Ready {
        &self.ready
    }

    /// Sends a request.
    ///
    /// # Errors
    /// The worker has ended.
    pub fn send(&mut self, request: &Request) -> Result<(), Failure> {
        let mut line = serde_json::to_string(request).expect("a request is JSON");
        line.push('\n');
        let written = self
            .process
            .input
            .as_mut()
            .map(|input| input.write_all(line.as_bytes()).and_then(|()| input.flush()));
        match written {
            Some(Ok(())) => Ok(()),
            Some(Err(_)) | None => Err(self.process.ended()),
        }
    }

    /// Returns the next reply, or `None` if there is none within `timeout`.
    ///
    /// # Errors
    /// The worker has ended, and all its replies were returned; or it was ended because a file of the model
    /// passed a limit. The requests that it had not answered have failed for the same reason.
    pub fn next(&mut self, timeout: Duration) -> Result<Option<Reply>, Failure> {
        self.process.next(Some(Instant::now() + timeout))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.process.stop();
    }
}

impl Process {
    fn start(program: &Program, options: &WorkerOptions) -> Result<Self, Failure> {
        let path = program.path()?;
        let mut command = Command::new(path);
        // It runs templates of strangers, and receives nothing from other machines.
        command.env_remove(Token::VARIABLE);
        command.arg(COMMAND).arg(&options.model);
        if let Some(base) = &options.base {
            command.arg("--base").arg(base);
        }
        command.args(["--max-sequences", &options.max_sequences.to_string()]);
        let Decoding { device, draft_tokens } = options.decoding;
        command.args(["--device", device.word(), "--draft-tokens", &draft_tokens.to_string()]);
        let failed = |error| Failure::io("start", path, &error);
        let ledger = Ledger::create().map_err(failed)?;
        let errors = ledger.file().map_err(failed)?;
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(errors);
        let mut child = command.spawn().map_err(failed)?;
        let pipes = (child.stdin.take(), child.stdout.take());
        let (input, Some(output)) = pipes else { unreachable!("both are piped") };
        let (sender, replies) = channel();
        let started =
            thread::Builder::new().name("replies".into()).spawn(move || read_replies(output, &sender));
        let watch = Watch::beside_model(child.id());
        let mut process =
            Self { child, input, replies, ledger, watch, looked_at: Instant::now(), ended: None };
        match started {
            Ok(_) => Ok(process),
            Err(error) => {
                process.stop();
                Err(failed(error))
            }
        }
    }

    /// Waits for the next reply, at most until the deadline, and looks at the worker meanwhile.
    fn next(&mut self, deadline: Option<Instant>) -> Result<Option<Reply>, Failure> {
        loop {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            match self.replies.recv_timeout(left.unwrap_or(LOOK_EVERY).min(LOOK_EVERY)) {
                Ok(reply) => return Ok(Some(reply)),
                Err(RecvTimeoutError::Disconnected) => return Err(self.ended()),
                Err(RecvTimeoutError::Timeout) => {}
            }
            if self.looked_at.elapsed() >= LOOK_EVERY {
                self.looked_at = Instant::now();
                if let Some(failure) = self.watch.look(&self.ledger) {
                    let _ = self.child.kill();
                    self.stop();
                    return Err(self.ended.insert(of_model(failure)).clone());
                }
            }
            if left.is_some_and(|left| left <= LOOK_EVERY) {
                return Ok(None);
            }
        }
    }

    /// Ends the process, at once if it does not end by itself soon after its input has ended.
    fn stop(&mut self) {
        self.stop_after(Duration::from_millis(200));
    }

    /// Ends the input of the process, and kills it if it does not end by itself within this time.
    fn stop_after(&mut self, time: Duration) {
        self.input = None;
        let deadline = Instant::now() + time;
        while Instant::now() < deadline {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            thread::sleep(Duration::from_millis(5));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Returns the exit code of a process that has said why it ends.
    fn exit(&mut self) -> Exit {
        // The code is lost if the process is killed while it ends, which may take long on a busy machine.
        self.stop_after(Duration::from_secs(10));
        let code = self.child.wait().ok().and_then(|status| status.code());
        code.filter(|code| *code != 0).map_or(Exit::Device, Exit::from_code)
    }

    /// Explains the end of a process whose output has ended.
    fn ended(&mut self) -> Failure {
        if let Some(ended) = &self.ended {
            return ended.clone();
        }
        self.stop();
        let status = self.child.wait();
        let crash = status.as_ref().ok().and_then(|status| self.watch.crashed(&self.ledger, *status));
        if let Some(crash) = crash {
            return self.ended.insert(of_model(crash)).clone();
        }
        let how = status.map_or_else(|error| error.to_string(), |status| status.to_string());
        let messages = self.ledger.last_words();
        let last = messages.lines().next_back().unwrap_or_default();
        let said = if last.is_empty() { String::new() } else { format!(", and said: {}", escape(last)) };
        let ended = Failure::new(Exit::Device, format!("the inference worker has ended ({how}){said}"))
            .hint("Ask again. If it ends again, free memory or choose a smaller model");
        self.ended = Some(ended.clone());
        ended
    }
}

/// Sends each reply on, until the output ends or is damaged.
fn read_replies(output: ChildStdout, sender: &Sender<Reply>) {
    let mut output = BufReader::new(output);
    loop {
        let mut line = Vec::new();
        let read = (&mut output).take(LONGEST_LINE as u64).read_until(b'\n', &mut line);
        if !matches!(read, Ok(length) if length > 0) {
            return;
        }
        let Ok(reply) = serde_json::from_slice(&line) else { return };
        if sender.send(reply).is_err() {
            return;
        }
    }
}

/// A model that answers brings its own template, so there is only one remedy.
fn of_model(failure: Failure) -> Failure {
    Failure { hints: vec!["Choose another model".to_owned()], ..failure }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    use sparktune_sampling::SamplingParams;
    use sparktune_sampling::protocol::{Generate, Prompt};

    use super::*;

    pub(crate) const READY: &str = r#"{"event":"ready","model":"m","context_tokens":9,"cache_tokens":9,"draft_tokens":0,"has_template":false,"planned_bytes":1}"#;

    /// Starts a shell script as the worker.
    pub(crate) fn start(folder: &tempfile::TempDir, script: &str) -> Result<Worker, Failure> {
        let [draft, path] = ["draft.sh", "worker.sh"].map(|name| folder.path().join(name));
        fs::write(&draft, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&draft, Permissions::from_mode(0o700)).unwrap();
        // A process that another test starts meanwhile may hold the draft open for writing, but not the copy.
        assert!(Command::new("cp").args([&draft, &path]).status().unwrap().success());
        let options = WorkerOptions {
            model: "model".into(),
            base: None,
            max_sequences: 2,
            decoding: Decoding::default(),
        };
        Worker::start(&Program::at(path), &options)
    }

    fn ask(id: &str) -> Request {
        let prompt = Prompt::Prompt("x".into());
        let sampling = SamplingParams::default();
        Request::Generate(Box::new(Generate { id: id.into(), prompt, adapter: None, sampling }))
    }

    fn next(worker: &mut Worker) -> Result<Reply, Failure> {
        worker.next(Duration::from_secs(60)).map(|reply| reply.expect("a reply within a minute"))
    }

    #[test]
    fn a_crash_is_a_failure_of_the_machine_behind_the_replies_that_were_sent_before() {
        let folder = tempfile::tempdir().unwrap();
        let refused = r#"{"event":"error","id":"a","error":"too long"}"#;
        let script =
            format!("echo '{READY}'; read a; echo '{refused}'; read b; echo 'no luck' >&2; kill -9 $$");
        let mut worker = start(&folder, &script).unwrap();
        assert_eq!(worker.ready().model, "m");
        for id in ["a", "b"] {
            worker.send(&ask(id)).unwrap();
        }
        let error = Reply::Error { id: Some("a".into()), error: "too long".into(), no_room: false };
        assert_eq!(next(&mut worker).unwrap(), error);
        let ended = next(&mut worker).unwrap_err();
        assert_eq!(ended.exit, Exit::Device);
        let words = ended.to_string();
        for part in ["signal: 9", "no luck", "Ask again"] {
            assert!(words.contains(part), "{words}");
        }
        assert_eq!(worker.send(&ask("c")).unwrap_err(), ended);
    }

    #[test]
    fn a_worker_that_cannot_load_its_model_says_why() {
        let folder = tempfile::tempdir().unwrap();
        let failed = start(&folder, r#"echo '{"event":"failed","error":"too large"}'"#).err().unwrap();
        assert_eq!((failed.exit, failed.text.as_str()), (Exit::Device, "too large"));
        let silent = start(&folder, "echo 'no such thing' >&2; exit 70").err().unwrap().to_string();
        assert!(silent.contains("no such thing") && silent.contains("70"), "{silent}");
        let damaged = start(&folder, "echo '{\"event\":'; exec sleep 60").err().unwrap().to_string();
        assert!(damaged.contains("has ended"), "{damaged}");
    }

    #[test]
    fn a_worker_is_gone_when_it_is_dropped() {
        let folder = tempfile::tempdir().unwrap();
        let worker = start(&folder, &format!("echo '{READY}'; exec sleep 600")).unwrap();
        let process = worker.process.child.id();
        assert!(Path::new(&format!("/proc/{process}")).exists());
        drop(worker);
        assert!(!Path::new(&format!("/proc/{process}")).exists());
    }
}
