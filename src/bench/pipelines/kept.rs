//! Measurements that have ended, one file each, in a folder that belongs to one kind of measurement.

use std::fs::TryLockError;
use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;
use sparktune_base::files::{create_private_folder, private_file, write_shared};
use sparktune_base::locked::Locked;
use sparktune_base::regular_file::read_regular;

use crate::error::BenchError;

/// The name of the file that says what is measured in a folder.
const IDENTITY: &str = "identity";
/// The most bytes of a measurement.
const MOST_BYTES: u64 = 256 << 20;

/// A folder of measurements, which nobody else uses meanwhile.
#[derive(Debug)]
pub struct Kept {
    folder: PathBuf,
    _lock: Locked,
}

impl Kept {
    /// Opens a folder, which is created if necessary. `identity` stands for everything that decides the
    /// values.
    ///
    /// # Errors
    /// It cannot be created, another benchmark uses it, or it has measurements of another identity.
    pub fn open(folder: PathBuf, identity: &str) -> Result<Self, BenchError> {
        create_private_folder(&folder).map_err(BenchError::io("create", &folder))?;
        let path = folder.join(".lock");
        let lock = private_file().create(true).open(&path).map_err(BenchError::io("create", &path))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(BenchError::FolderInUse { folder }),
            Err(TryLockError::Error(error)) => return Err(BenchError::io("lock", &path)(error)),
        }
        let path = folder.join(IDENTITY);
        match read_regular(&path, 1024) {
            Ok(known) if known == identity.as_bytes() => {}
            Ok(_) => return Err(BenchError::OtherMeasurements { folder }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                write_shared(&path, identity).map_err(BenchError::io("write", &path))?;
            }
            Err(error) => return Err(BenchError::io("read", &path)(error)),
        }
        Ok(Self { folder, _lock: Locked::new(lock) })
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
        serde_json::from_slice(&read_regular(&self.file(name), MOST_BYTES).ok()?).ok()
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
