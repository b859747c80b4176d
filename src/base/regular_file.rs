//! Opens files of strangers. What looks like a file by its name may be a pipe on which a reader waits for
//! ever, a device without an end, or far larger than what it should hold.

use std::fs::{File, FileType, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;

use crate::units::bytes as bytes_text;

/// Opens a file for reading. A folder can be opened too; reading it then fails.
///
/// # Errors
/// It does not exist, may not be read, or is a pipe, a socket or a device.
pub fn open_regular(path: &Path) -> io::Result<File> {
    // Opening alone can have an effect on a device, so the kind is known first.
    refuse_other_kinds(std::fs::metadata(path)?.file_type())?;
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    refuse_other_kinds(file.metadata()?.file_type())?;
    Ok(file)
}

/// Reads a whole file of at most `most` bytes.
///
/// # Errors
/// The same as for [`open_regular`], or it is larger.
pub fn read_regular(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let file = open_regular(path)?;
    let size = file.metadata()?.len();
    let too_large =
        || io::Error::other(format!("it has more than {}, which no file of this kind has", bytes_text(most)));
    if size > most {
        return Err(too_large());
    }
    let mut bytes = Vec::with_capacity(size as usize);
    file.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most { Err(too_large()) } else { Ok(bytes) }
}

/// Reads the last lines of a file that grows, of at most `most` bytes together. A line that is longer is read
/// from somewhere in it.
///
/// # Errors
/// The same as for [`open_regular`].
pub fn read_last_lines(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut file = open_regular(path)?;
    let start = file.metadata()?.len().saturating_sub(most);
    file.seek(SeekFrom::Start(start))?;
    let mut bytes = Vec::new();
    file.take(most).read_to_end(&mut bytes)?;
    if start > 0
        && let Some(end) = bytes.iter().position(|byte| *byte == b'\n')
    {
        bytes.drain(..=end);
    }
    Ok(bytes)
}

/// The most bytes of the JSON files of a model that are read whole: its config, the list of its weights, and
/// the config of an adapter. The list has about 100 bytes for each tensor, so this is enough for 160,000.
pub const MOST_MODEL_JSON_BYTES: u64 = 16 << 20;

/// Reads a JSON file of a model that is small by its nature: a config, or the list of the weight files.
///
/// # Errors
/// The same as for [`read_regular`], or it is not UTF-8.
pub fn read_model_json(path: &Path) -> io::Result<String> {
    let bytes = read_regular(path, MOST_MODEL_JSON_BYTES)?;
    String::from_utf8(bytes).map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is not UTF-8"))
}

/// The most bytes of a `tokenizer.json` that is read. That of the largest published vocabularies has 40 MB.
const MOST_TOKENIZER_BYTES: u64 = 256 << 20;

/// Reads the `tokenizer.json` of a model.
///
/// # Errors
/// The same as for [`read_regular`].
pub fn read_tokenizer_json(path: &Path) -> io::Result<Vec<u8>> {
    read_regular(path, MOST_TOKENIZER_BYTES)
}

/// Refuses what has no end or may never have a beginning.
///
/// # Errors
/// It is neither a file nor a folder.
pub fn refuse_other_kinds(kind: FileType) -> io::Result<()> {
    let what = if kind.is_fifo() {
        "a pipe"
    } else if kind.is_socket() {
        "a socket"
    } else if kind.is_char_device() || kind.is_block_device() {
        "a device"
    } else {
        return Ok(());
    };
    Err(io::Error::new(
        io::ErrorKind::InvalidInput,
        format!("it is {what}, and only files are read. Save what it holds in a file, and name that"),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pipes_sockets_and_devices_are_refused_in_words_without_waiting() {
        let root = tempfile::tempdir().unwrap();
        let pipe = root.path().join("pipe.jsonl");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        let socket = root.path().join("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        for (path, what) in
            [(pipe.as_path(), "a pipe"), (&socket, "a socket"), (Path::new("/dev/zero"), "a device")]
        {
            let refused = open_regular(path).unwrap_err().to_string();
            assert!(refused.contains(what) && refused.contains("Save"), "{refused}");
        }
    }

    #[test]
    fn a_file_is_read_up_to_its_limit() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("file");
        std::fs::write(&path, "four").unwrap();
        assert_eq!(read_regular(&path, 4).unwrap(), b"four");
        assert!(read_regular(&path, 3).unwrap_err().to_string().contains("more than 3 B,"));
        assert_eq!(read_model_json(&path).unwrap(), "four");
        File::create(&path).unwrap().set_len(MOST_MODEL_JSON_BYTES + 1).unwrap();
        assert!(read_model_json(&path).unwrap_err().to_string().contains("more than 16.8 MB"));
        std::fs::write(&path, [0xff]).unwrap();
        assert!(read_model_json(&path).unwrap_err().to_string().contains("UTF-8"));
        File::create(&path).unwrap().set_len(MOST_TOKENIZER_BYTES + 1).unwrap();
        assert!(read_tokenizer_json(&path).is_err());
        assert!(open_regular(root.path()).is_ok() && read_regular(root.path(), 1 << 20).is_err());
    }

    #[test]
    fn of_a_file_that_grew_too_large_the_last_whole_lines_are_read() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("file");
        std::fs::write(&path, "one\ntwo\nthree").unwrap();
        for (most, read) in [
            (99, "one\ntwo\nthree"),
            (13, "one\ntwo\nthree"),
            (12, "two\nthree"),
            (7, "three"),
            (3, "ree"),
            (0, ""),
        ] {
            assert_eq!(read_last_lines(&path, most).unwrap(), read.as_bytes(), "{most}");
        }
    }
}
