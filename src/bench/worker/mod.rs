//! A process that takes optimizer steps on request: our own stepper, or the peer.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use sparktune_base::kept_pages;
use sparktune_model::PackedSequence;
use sparktune_plan::{Device, MethodKind, Plan};

use crate::error::BenchError;
use crate::protocol::{Answer, Finished, PROTOCOL, QUIT, Ready, STEP, Stepped, write_packs};

/// The peer: the same steps by transformers and peft. It is run from a copy, so that it is always the one of
/// this build.
const TRAIN_STEPS: &str = include_str!("../../../tests/peers/train_steps.py");

/// The end of every message about a peer that failed.
const ADVICE: &str = "Use --peers to name a Python that has torch, transformers and peft; docker/Dockerfile.peers builds an image with them";

/// The work that both sides of a comparison do, in a folder that both read.
pub(crate) struct Work<'a> {
    plan: &'a Plan,
    model: PathBuf,
    folder: PathBuf,
    steps: u64,
}

impl<'a> Work<'a> {
    /// Writes the plan and the packs of each step into an existing folder. The adapters' initial values will
    /// be there too.
    pub(crate) fn new(
        plan: &'a Plan,
        folder: &Path,
        steps: &[&[PackedSequence]],
    ) -> Result<Self, BenchError> {
        let model = plan.model.path.clone().ok_or(sparktune_train::TrainError::NoModelFolder)?;
        let work = Self { plan, model, folder: folder.to_owned(), steps: steps.len() as u64 };
        let path = work.plan_file();
        std::fs::write(&path, plan.to_toml()?).map_err(BenchError::io("write", &path))?;
        write_packs(&work.packs_file(), steps.iter().copied())?;
        Ok(work)
    }

    fn plan_file(&self) -> PathBuf {
        self.folder.join("plan.toml")
    }

    fn packs_file(&self) -> PathBuf {
        self.folder.join("packs.jsonl")
    }

    fn trains_adapters(&self) -> bool {
        self.plan.method.kind() == MethodKind::Lora
    }

    /// The command that makes these steps with this program, started as a trainer is.
    fn ours(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.envs(kept_pages()).args(["bench", "stepper", "--plan"]).arg(self.plan_file());
        command.arg("--packs").arg(self.packs_file());
        if self.trains_adapters() {
            command.arg("--adapter").arg(&self.folder);
        }
        command
    }

    /// The command that makes these steps with the peer: one example after the other, which is what packing
    /// has to equal.
    fn peer(&self, python: &Path) -> Result<Command, BenchError> {
        let script = self.folder.join("train_steps.py");
        std::fs::write(&script, TRAIN_STEPS).map_err(BenchError::io("write", &script))?;
        let optimizer = self.plan.optimizer;
        let warmup_steps = (optimizer.warmup_ratio * self.steps as f64).round();
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let (device, dtype) = match self.plan.device {
            Device::Cpu => ("cpu", "float32"),
            Device::Cuda => ("cuda", "bfloat16"),
        };
        let mut command = Command::new(python);
        command.arg(&script).arg("--model").arg(&self.model).arg("--packs").arg(self.packs_file());
        command.args(["--method", self.plan.method.kind().word(), "--layout", "single"]);
        command.args(["--device", device, "--dtype", dtype]);
        for (option, value) in [
            ("--threads", threads as f64),
            ("--learning-rate", optimizer.learning_rate),
            ("--min-lr-ratio", optimizer.min_lr_ratio),
            ("--warmup-steps", warmup_steps),
            ("--total-steps", self.steps as f64),
            ("--beta1", optimizer.beta1),
            ("--beta2", optimizer.beta2),
            ("--eps", optimizer.eps),
            ("--weight-decay", optimizer.weight_decay),
            ("--clip-norm", optimizer.clip_norm),
        ] {
            command.args([option, &value.to_string()]);
        }
        if self.trains_adapters() {
            command.arg("--adapter").arg(&self.folder);
        }
        Ok(command)
    }
}

/// A process that is ready to make steps. It ends with this value.
pub(crate) struct Worker {
    side: Side,
    child: Child,
    commands: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    /// Its standard error.
    log: File,
    /// The number of requested steps.
    asked: u64,
    /// Its description of itself.
    pub(crate) ready: Ready,
}

/// The side of a comparison.
enum Side {
    Ours,
    Peer(PathBuf),
}

impl Worker {
    /// Starts our own side. It writes the adapters' initial values, so it has to be started before the peer.
    ///
    /// # Errors
    /// A program that does not start, or a plan that it cannot train.
    pub(crate) fn ours(program: &Path, work: &Work) -> Result<Self, BenchError> {
        Self::start(Side::Ours, work.ours(program), program)
    }

    /// Starts the peer.
    ///
    /// # Errors
    /// A Python that does not start, or that lacks a library.
    pub(crate) fn peer(python: &Path, work: &Work) -> Result<Self, BenchError> {
        Self::start(Side::Peer(python.to_owned()), work.peer(python)?, python)
    }

    fn start(side: Side, mut command: Command, program: &Path) -> Result<Self, BenchError> {
        let temporary = std::env::temp_dir();
        let log = tempfile::tempfile().map_err(BenchError::io("create a file in", &temporary))?;
        let stderr = log.try_clone().map_err(BenchError::io("create a file in", &temporary))?;
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(stderr);
        let mut child = command.spawn().map_err(|source| match &side {
            Side::Ours => BenchError::io("start", program)(source),
            Side::Peer(python) => BenchError::Peer {
                peer: python.display().to_string(),
                what: format!("cannot be started: {}", sparktune_runlog::in_words(&source)),
                advice: ADVICE.into(),
            },
        })?;
        let commands = child.stdin.take();
        let answers = BufReader::new(child.stdout.take().expect("is piped"));
        let ready = Ready { protocol: 0, peer: String::new(), torch: None, trained_parameters: 0 };
        let mut worker = Self { side, child, commands, answers, log, asked: 0, ready };
        worker.ready = match worker.answer()? {
            Answer::Ready(ready) if ready.protocol == PROTOCOL => ready,
            other => return Err(worker.unexpected(&other)),
        };
        Ok(worker)
    }

    /// Its description, with versions.
    pub(crate) fn name(&self) -> String {
        let Ready { peer, torch, .. } = &self.ready;
        torch.as_ref().map_or_else(|| peer.clone(), |torch| format!("{peer}, torch {torch}"))
    }

    /// Has it make one optimizer step.
    ///
    /// # Errors
    /// A process that failed, ended, or answered something else.
    pub(crate) fn step(&mut self) -> Result<Stepped, BenchError> {
        self.asked += 1;
        self.command(STEP);
        match self.answer()? {
            Answer::Step(stepped) => Ok(stepped),
            other => Err(self.unexpected(&other)),
        }
    }

    /// Ends it.
    ///
    /// # Errors
    /// As [`Self::step`].
    pub(crate) fn finish(mut self) -> Result<Finished, BenchError> {
        self.command(QUIT);
        match self.answer()? {
            Answer::Finished(finished) => Ok(finished),
            other => Err(self.unexpected(&other)),
        }
    }

    fn command(&mut self, command: &str) {
        let commands = self.commands.as_mut().expect("is there until the process is dropped");
        // A process that cannot be written to has ended. Reading its answer reports that too, with the
        // reason.
        let _ = writeln!(commands, "{command}").and_then(|()| commands.flush());
    }

    fn answer(&mut self) -> Result<Answer, BenchError> {
        let mut line = Vec::new();
        // A pipe that cannot be read has no other end any more.
        let read = self.answers.read_until(b'\n', &mut line).unwrap_or(0);
        let place = self.place();
        match serde_json::from_slice(&line) {
            Ok(Answer::Error { message }) => {
                Err(self.failed(format!("failed {place}: {}", shortened(&message))))
            }
            Ok(answer) => Ok(answer),
            Err(_) if read == 0 => {
                let status = self.status();
                Err(self.failed(format!("ended {place} ({status})")))
            }
            Err(_) => {
                let line = shortened(&String::from_utf8_lossy(&line));
                Err(self.failed(format!("gave an answer {place} that is not in the protocol: {line}")))
            }
        }
    }

    /// Returns how a process that closed its end of the pipe ended. If it is still running, it is killed.
    fn status(&mut self) -> String {
        let patience = Instant::now() + Duration::from_secs(10);
        while Instant::now() < patience {
            match self.child.try_wait() {
                Ok(Some(status)) => return status.to_string(),
                Ok(None) => std::thread::sleep(Duration::from_millis(10)),
                Err(error) => return error.to_string(),
            }
        }
        let _ = self.child.kill();
        "it closed its standard output and continued".into()
    }

    fn unexpected(&mut self, answer: &Answer) -> BenchError {
        let line = serde_json::to_string(answer).expect("plain fields serialise");
        self.failed(format!("gave an unexpected answer {}: {}", self.place(), shortened(&line)))
    }

    /// Describes its position in the work.
    fn place(&self) -> String {
        if self.asked == 0 { "before the first step".into() } else { format!("in step {}", self.asked) }
    }

    /// The error of this side, with the last lines that the process wrote to standard error.
    fn failed(&mut self, what: String) -> BenchError {
        let mut log = String::new();
        let read = self.log.rewind().and_then(|()| self.log.read_to_string(&mut log));
        let lines: Vec<&str> = log.lines().filter(|line| !line.trim().is_empty()).collect();
        let last = lines[lines.len().saturating_sub(LAST_LINES)..].join("\n  ");
        let last_lines = if read.is_ok() && !last.is_empty() {
            format!("\nThe last lines of its standard error:\n  {last}")
        } else {
            String::new()
        };
        match &self.side {
            Side::Ours => {
                let status = self.child.try_wait().ok().flatten();
                BenchError::Ours { what, exit_code: status.and_then(|status| status.code()), last_lines }
            }
            Side::Peer(python) => BenchError::Peer {
                peer: python.display().to_string(),
                what,
                advice: format!("{ADVICE}{last_lines}"),
            },
        }
    }
}

/// The number of lines shown of a failed process's output.
const LAST_LINES: usize = 8;

impl Drop for Worker {
    fn drop(&mut self) {
        // Without commands it ends by itself; one that hangs is ended.
        drop(self.commands.take());
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The first characters of a text, on one line and in quotes.
pub(crate) fn shortened(text: &str) -> String {
    const MOST: usize = 200;
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if line.is_empty() {
        return "nothing".into();
    }
    match line.char_indices().nth(MOST) {
        Some((end, _)) => format!("`{}…`", &line[..end]),
        None => format!("`{line}`"),
    }
}

#[cfg(test)]
mod tests;
