//! The program that uses this library: where it lies, and what it was built with.

use std::path::{Path, PathBuf};

use crate::failure::Failure;

/// The program that uses this library. It is started again as a trainer, for exports, and to probe the GPU,
/// so that a process that fails takes no other with it.
#[derive(Debug, Clone)]
pub struct Program {
    path: Result<PathBuf, String>,
    /// This build can train on a GPU.
    pub has_cuda: bool,
}

impl Program {
    /// The running program. `has_cuda`: it was built to train on a GPU.
    pub fn current(has_cuda: bool) -> Self {
        Self { path: std::env::current_exe().map_err(|error| error.to_string()), has_cuda }
    }

    /// Returns the path of the program.
    ///
    /// # Errors
    /// The system does not say where it is.
    pub fn path(&self) -> Result<&Path, Failure> {
        match &self.path {
            Ok(path) => Ok(path),
            Err(error) => Err(Failure::usage(format!("cannot find the program itself: {error}"))),
        }
    }

    /// Returns the BLAKE3 hash of the program: only the same build continues a run bit for bit.
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
