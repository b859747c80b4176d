//! The program that uses this library: its path and its features.

use std::path::{Path, PathBuf};

use crate::failure::Failure;

/// The program that uses this library. It is started again as a trainer, for exports, and to probe the GPU,
/// so that a failing process does not end others.
#[derive(Debug, Clone)]
pub struct Program {
    path: Result<PathBuf, String>,
    /// Whether this build can train on a GPU.
    pub has_cuda: bool,
    /// The command that each trainer that is started from here runs at its end, instead of the one in
    /// [`ON_END`].
    pub on_end: Option<String>,
}

/// The variable with the command that a trainer runs at its end.
pub const ON_END: &str = "SPARKTUNE_ON_END";

impl Program {
    /// Returns the running program. `has_cuda` says whether it was built to train on a GPU.
    pub fn current(has_cuda: bool) -> Self {
        Self { path: std::env::current_exe().map_err(|error| error.to_string()), has_cuda, on_end: None }
    }

    /// Returns a program at this path, which cannot train on a GPU: for tests.
    pub fn at(path: PathBuf) -> Self {
        Self { path: Ok(path), has_cuda: false, on_end: None }
    }

    /// Returns the same program, whose trainers run this command at their end.
    #[must_use]
    pub fn with_on_end(self, on_end: Option<String>) -> Self {
        Self { on_end, ..self }
    }

    /// Returns the path of the program.
    ///
    /// # Errors
    /// The system does not report the path.
    pub fn path(&self) -> Result<&Path, Failure> {
        match &self.path {
            Ok(path) => Ok(path),
            Err(error) => Err(Failure::usage(format!("cannot find the program itself: {error}"))),
        }
    }

    /// Returns the BLAKE3 hash of the program, because only the same build continues a run bit for bit.
    ///
    /// # Errors
    /// The program cannot read itself.
    pub fn build_hash(&self) -> Result<String, Failure> {
        let path = self.path()?;
        let mut hasher = blake3::Hasher::new();
        std::fs::File::open(path)
            .and_then(|file| hasher.update_reader(file).map(drop))
            .map_err(|error| Failure::io("read", path, &error))?;
        Ok(hasher.finalize().to_hex().to_string())
    }
}
