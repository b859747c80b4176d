//! Measurements that have ended, one file each, in a folder that belongs to one kind of measurement.

use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;
use sparktune_base::files::{create_private_folder, write_shared};

use crate::error::BenchError;

/// A folder of measurements.
#[derive(Debug, Clone)]
pub struct Kept {
    folder: PathBuf,
}

impl Kept {
    /// Opens a folder, which is created if necessary.
    ///
    /// # Errors
    /// It cannot be created.
    pub fn open(folder: PathBuf) -> Result<Self, BenchError> {
        create_private_folder(&folder).map_err(BenchError::io("create", &folder))?;
        Ok(Self { folder })
    }

    /// Returns the folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.json"))
    }

    /// Returns a measurement, if it has ended. A file that cannot be read counts as none, and is replaced.
    pub fn read<T: DeserializeOwned>(&self, name: &str) -> Option<T> {
        serde_json::from_slice(&std::fs::read(self.file(name)).ok()?).ok()
    }

    /// Keeps a measurement. A kill leaves the whole file or none.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write(&self, name: &str, value: &impl Serialize) -> Result<(), BenchError> {
        let path = self.file(name);
        let text = serde_json::to_string(value).expect("plain fields serialise");
        write_shared(&path, text).map_err(BenchError::io("write", &path))
    }
}

/// Returns the system's mean number of running processes in the last minute.
pub fn load_average() -> Option<f64> {
    std::fs::read_to_string("/proc/loadavg").ok()?.split(' ').next()?.parse().ok()
}
