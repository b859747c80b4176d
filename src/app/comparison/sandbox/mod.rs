//! Runs code that a model wrote, in a sandbox of the kernel's namespaces.
//!
//! Inside, there are no other processes, no network, and no files but those of the system's programs, which
//! cannot be changed; an empty folder in memory is all that can be written to. Memory, processor time, sizes
//! of files and the number of processes are limited. `unshare` and the other programs of util-linux make it,
//! without special rights, in `sandbox.sh`. Where the kernel refuses it, code is not run at all.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::process::geteuid;
use sparktune_base::random::mix;
use sparktune_compare::{CodeJob, CodeResult};

use crate::comparison::process::{Ended, run};

/// The longest that code may run, with what it waits for.
const PATIENCE: Duration = Duration::from_secs(20);
/// The most processor time of code, in seconds.
const SECONDS: u32 = 10;
/// The user that root becomes, because root's processes are not limited in number.
const NOBODY: u32 = 65_534;
/// Where Python is looked for: only the system's own folders are visible inside.
const PYTHON: [&str; 2] = ["/usr/bin/python3", "/usr/local/bin/python3"];
/// What makes the sandbox, from inside its namespaces.
const SCRIPT: &str = include_str!("sandbox.sh");

/// The sandbox, which this system was seen to allow.
#[derive(Debug)]
pub(in crate::comparison) struct Sandbox {
    python: &'static str,
    /// The most processor time of code, in seconds.
    seconds: u32,
}

impl Sandbox {
    /// Tries the sandbox.
    ///
    /// # Errors
    /// Why code cannot be run on this machine.
    pub(in crate::comparison) fn open() -> Result<Self, String> {
        let python = PYTHON.into_iter().find(|python| Path::new(python).exists());
        let python =
            python.ok_or_else(|| format!("there is no {}, which would run it", PYTHON.join(" and no ")))?;
        let sandbox = Self { python, seconds: SECONDS };
        // A process that sees others, or a folder of the users, is not alone.
        let probe = "import os, sys\n\
            alone = os.getpid() == 1 and os.listdir('/work') == [] and not os.path.exists('/home')\n\
            print('alone' if alone else 'not alone')\n";
        let ended = sandbox.output(probe, "", &|| false)?;
        if ended.output.trim() == "alone" {
            return Ok(sandbox);
        }
        let said = match ended.last_error() {
            "" => ended.output.trim().lines().next_back().unwrap_or("no message"),
            last => last,
        };
        Err(format!("this system does not allow the sandbox that it needs ({said})"))
    }

    /// Runs a job. Code that does not come to its end has failed.
    ///
    /// # Errors
    /// The process cannot be started.
    pub(in crate::comparison) fn run(
        &self,
        job: &CodeJob,
        is_cancelled: &dyn Fn() -> bool,
    ) -> Result<CodeResult, String> {
        let nonce = nonce();
        let ended = self.output(CodeJob::program(), &job.line(&nonce), is_cancelled)?;
        Ok(CodeJob::result(&ended.output, &nonce).unwrap_or_else(|| {
            let why = match ended.last_error() {
                "" => "it took too long, or ended by itself",
                last => last,
            };
            CodeResult {
                passed: 0,
                total: 1,
                message: Some(format!("the code did not come to its end: {why}")),
            }
        }))
    }

    /// Runs a program with this input.
    fn output(&self, program: &str, input: &str, is_cancelled: &dyn Fn() -> bool) -> Result<Ended, String> {
        let mut command = Command::new("unshare");
        command
            .args(["--user", "--map-root-user", "--mount", "--net", "--pid", "--ipc", "--uts", "--cgroup"])
            .args(["--fork", "--kill-child=KILL", "sh", "-c", SCRIPT, "sandbox", self.python])
            .arg(self.seconds.to_string())
            .arg(program)
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .current_dir("/");
        if geteuid().is_root() {
            command.uid(NOBODY).gid(NOBODY);
        }
        run(&mut command, input, PATIENCE, is_cancelled)
            .map_err(|error| format!("`unshare` of util-linux cannot be started: {error}"))
    }
}

/// Returns a word that code cannot have known before it was started.
fn nonce() -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let random = || RandomState::new().build_hasher().finish();
    format!("{:016x}{:016x}", random(), mix(random() ^ count))
}

#[cfg(test)]
mod tests;
