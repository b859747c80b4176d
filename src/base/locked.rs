//! A lock that ends when its owner lets go of it.

use std::fs::File;
use std::ops::Deref;

/// A file or folder that this process has locked, until this is dropped.
///
/// Closing it would not be enough: `flock` locks the open file for all that have it, and a process that
/// another thread is just starting has all open files of this one until its own program is loaded.
#[derive(Debug)]
pub struct Locked(File);

impl Locked {
    /// Takes over a file that is locked, or is about to be.
    pub fn new(file: File) -> Self {
        Self(file)
    }
}

impl Deref for Locked {
    type Target = File;

    fn deref(&self) -> &File {
        &self.0
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        let _ = self.0.unlock();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_ends_though_a_process_that_is_just_starting_has_the_open_file() {
        let named = tempfile::NamedTempFile::new().unwrap();
        let file = named.reopen().unwrap();
        file.try_lock().unwrap();
        // What a process has of its parent before its own program is loaded.
        let _inherited = file.try_clone().unwrap();
        let locked = Locked::new(file);
        let other = named.reopen().unwrap();
        assert!(other.try_lock().is_err());
        drop(locked);
        other.try_lock().unwrap();
    }
}
