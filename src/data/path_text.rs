//! Paths as serde writes them between processes: as text, or as bytes where a path is not UTF-8, which
//! serde's own way refuses.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

#[derive(Deserialize)]
#[serde(untagged)]
enum Written {
    Text(PathBuf),
    Bytes(Vec<u8>),
}

/// Writes a path.
///
/// # Errors
/// Those of the serializer.
pub fn serialize<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    match path.to_str() {
        Some(text) => serializer.serialize_str(text),
        None => path.as_os_str().as_bytes().serialize(serializer),
    }
}

/// Reads a path.
///
/// # Errors
/// Those of the deserializer.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PathBuf, D::Error> {
    Ok(match Written::deserialize(deserializer)? {
        Written::Text(path) => path,
        Written::Bytes(bytes) => OsString::from_vec(bytes).into(),
    })
}

/// The same for a path that may be missing.
pub mod optional {
    use super::*;

    #[derive(Serialize, Deserialize)]
    struct One(#[serde(with = "super")] PathBuf);

    /// Writes a path, or null.
    ///
    /// # Errors
    /// Those of the serializer.
    pub fn serialize<S: Serializer>(path: &Option<PathBuf>, serializer: S) -> Result<S::Ok, S::Error> {
        path.clone().map(One).serialize(serializer)
    }

    /// Reads a path, or null.
    ///
    /// # Errors
    /// Those of the deserializer.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<PathBuf>, D::Error> {
        Ok(Option::<One>::deserialize(deserializer)?.map(|One(path)| path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Paths {
        #[serde(with = "super")]
        one: PathBuf,
        #[serde(with = "super::optional")]
        other: Option<PathBuf>,
    }

    #[test]
    fn any_path_is_read_as_it_was_written() {
        let odd = PathBuf::from(OsString::from_vec(b"caf\xe9.jsonl".to_vec()));
        for other in [None, Some(odd.clone()), Some("plain".into())] {
            for one in [odd.clone(), "plain \u{e9}".into()] {
                let paths = Paths { one, other: other.clone() };
                let text = serde_json::to_string(&paths).unwrap();
                assert_eq!(serde_json::from_str::<Paths>(&text).unwrap(), paths, "{text}");
            }
        }
    }
}
