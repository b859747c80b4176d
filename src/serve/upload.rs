//! Uploads: a body becomes a file, as a whole or not at all.
//!
//! Enters: the pieces of a body. Leaves: a file under its own name. It is written under a hidden one first,
//! by a thread that may wait for the disk; a client that leaves, a body that is too long and a full disk
//! leave nothing behind.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, SystemTime};

use axum::body::{Body, Bytes};
use axum::http::StatusCode;
use sparktune_app::failure::Failure;
use sparktune_base::units::bytes;
use tempfile::NamedTempFile;
use tokio::sync::mpsc;
use tokio_stream::StreamExt;

use crate::problem::{Problem, blocking};

/// What the names of unfinished uploads begin with.
const UNFINISHED: &str = ".upload-";
/// The age after which an unfinished upload is that of a server that was killed.
const ABANDONED: Duration = Duration::from_secs(24 * 60 * 60);
/// The number of pieces that may wait for the disk.
const WAITING: usize = 16;

/// A part of the way of a body.
enum Part {
    Bytes(Bytes),
    End,
}

/// Writes a body of at most `most` bytes to `folder` under this name, which was checked.
///
/// # Errors
/// A file of this name exists, the body is too long or does not end, or the disk is full.
pub(crate) async fn receive(folder: &Path, name: &str, body: Body, most: u64) -> Result<(), Problem> {
    let (sender, receiver) = mpsc::channel(WAITING);
    let (folder, name) = (folder.to_owned(), name.to_owned());
    let writer = tokio::spawn(blocking(move || write(&folder, &name, receiver)));
    let read = read(body, most, &sender).await;
    // Without an end, the writer keeps nothing.
    if read.is_ok() {
        let _ = sender.send(Part::End).await;
    }
    drop(sender);
    let written = writer.await.unwrap_or_else(|_| {
        Err(Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "a bug in sparktune ended this upload"))
    });
    read.and(written)
}

async fn read(body: Body, most: u64, sender: &mpsc::Sender<Part>) -> Result<(), Problem> {
    let mut stream = body.into_data_stream();
    let mut received = 0_u64;
    while let Some(piece) = stream.next().await {
        let piece = piece.map_err(|_| {
            Problem::new(
                StatusCode::REQUEST_TIMEOUT,
                "the upload did not arrive in time or was cut off, so nothing is kept of it",
            )
            .advise("Send it again")
        })?;
        received += piece.len() as u64;
        if received > most {
            return Err(too_long(most));
        }
        // The writer has ended with an error, which is the answer.
        if sender.send(Part::Bytes(piece)).await.is_err() {
            break;
        }
    }
    Ok(())
}

/// Returns the answer to a body of more than `most` bytes.
pub(crate) fn too_long(most: u64) -> Problem {
    Problem::new(StatusCode::PAYLOAD_TOO_LARGE, format!("an upload has at most {}", bytes(most)))
        .at("body")
        .advise("Compress the file with gzip or zstd, or put it into a folder and name that with --data-dir")
}

fn exists(name: &str) -> Problem {
    Problem::new(StatusCode::CONFLICT, format!("there is an upload '{name}' already"))
        .at("name")
        .advise("Give another name, or delete the existing one")
}

fn write(folder: &Path, name: &str, mut parts: mpsc::Receiver<Part>) -> Result<(), Problem> {
    let path = folder.join(name);
    let failed = |error: &std::io::Error| Problem::from(Failure::io("write", &path, error));
    if fs::symlink_metadata(&path).is_ok() {
        return Err(exists(name));
    }
    remove_abandoned(folder);
    // Temporary files are private, like everything in this folder.
    let mut file = tempfile::Builder::new().prefix(UNFINISHED).tempfile_in(folder).map_err(|e| failed(&e))?;
    loop {
        match parts.blocking_recv() {
            Some(Part::Bytes(bytes)) => file.write_all(&bytes).map_err(|e| failed(&e))?,
            Some(Part::End) => return keep(file, &path, name),
            None => return Ok(()),
        }
    }
}

/// Gives a complete file its name, unless another upload has taken it.
fn keep(file: NamedTempFile, path: &Path, name: &str) -> Result<(), Problem> {
    file.as_file().sync_all().map_err(|error| Failure::io("write", path, &error))?;
    match file.persist_noclobber(path) {
        Ok(_) => Ok(()),
        Err(refused) if refused.error.kind() == std::io::ErrorKind::AlreadyExists => Err(exists(name)),
        Err(refused) => Err(Failure::io("write", path, &refused.error).into()),
    }
}

fn remove_abandoned(folder: &Path) {
    let is_old = |time: SystemTime| time.elapsed().is_ok_and(|age| age > ABANDONED);
    for entry in fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok) {
        let is_unfinished = entry.file_name().as_encoded_bytes().starts_with(UNFINISHED.as_bytes());
        if is_unfinished && entry.metadata().and_then(|found| found.modified()).is_ok_and(is_old) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio_stream::wrappers::ReceiverStream;

    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_body_becomes_a_file_as_a_whole_or_not_at_all() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path();
        receive(folder, "a.jsonl", Body::from("{}\n"), 100).await.unwrap();
        assert_eq!(fs::read_to_string(folder.join("a.jsonl")).unwrap(), "{}\n");
        assert_eq!(receive(folder, "a.jsonl", Body::from("other"), 100).await.unwrap_err().status, 409);
        assert_eq!(fs::read_to_string(folder.join("a.jsonl")).unwrap(), "{}\n");

        let refused = receive(folder, "b.jsonl", Body::from(vec![b'x'; 101]), 100).await.unwrap_err();
        assert!(refused.status == 413 && refused.advice.unwrap().contains("--data-dir"));
        // The client leaves in the middle.
        let (sender, receiver) = mpsc::channel::<Result<Bytes, std::io::Error>>(2);
        sender.send(Ok(Bytes::from_static(b"{\"half"))).await.unwrap();
        sender.send(Err(std::io::ErrorKind::ConnectionReset.into())).await.unwrap();
        drop(sender);
        let body = Body::from_stream(ReceiverStream::new(receiver));
        assert_eq!(receive(folder, "c.jsonl", body, 100).await.unwrap_err().status, 408);
        assert_eq!(names(folder), ["a.jsonl"]);

        let nowhere = receive(&folder.join("missing"), "d.jsonl", Body::from("{}"), 100).await.unwrap_err();
        assert!(nowhere.detail.contains("d.jsonl"), "{nowhere:?}");
    }

    #[test]
    fn what_a_killed_server_left_is_removed_after_a_day() {
        let place = tempfile::tempdir().unwrap();
        for (name, age_h) in [(".upload-new", 1), (".upload-old", 25), ("old.jsonl", 25)] {
            let file = fs::File::create(place.path().join(name)).unwrap();
            file.set_modified(SystemTime::now() - Duration::from_secs(age_h * 3600)).unwrap();
        }
        remove_abandoned(place.path());
        let mut left = names(place.path());
        left.sort();
        assert_eq!(left, [".upload-new", "old.jsonl"]);
    }
}
