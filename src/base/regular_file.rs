//! Opens files of strangers. What looks like a file by its name may be a pipe on which a reader waits for
//! ever, a device without an end, or far larger than what it should hold.

use std::fs::{File, FileType, OpenOptions};
use std::io::{self, Read};
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

/// The most bytes of the JSON files of a model that are read whole: its config, the list of its weights, and
/// the config of an adapter. The list has about 100 bytes for each tensor, so this is enough for 160,000.
const MOST_MODEL_JSON_BYTES: u64 = 16 << 20;

/// Reads a JSON file of a model that is small by its nature: a config, or the list of the weight files.
///
/// # Errors
/// The same as for [`read_regular`], or it is not UTF-8.
pub fn read_model_json(path: &Path) -> io::Result<String> {
    let bytes = read_regular(path, MOST_MODEL_JSON_BYTES)?;
    String::from_utf8(bytes).map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is not UTF-8"))
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
        assert!(open_regular(root.path()).is_ok() && read_regular(root.path(), 1 << 20).is_err());
    }
}
