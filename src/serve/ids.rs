//! Names in requests. A name of a run, a task, a data set or a file never leads out of its folder.

use axum::extract::rejection::PathRejection;
use axum::extract::{FromRequestParts, Path};
use axum::http::request::Parts;
use rustix::rand::{GetRandomFlags, getrandom};
use time::OffsetDateTime;
use time::macros::format_description;

use crate::problem::Problem;

/// The most bytes of a name. A file's name has at most 255 on the usual file systems, and what is kept under
/// a name gets an ending in addition.
const LONGEST: usize = 200;

/// Checks that a name from a request is one and no path: not empty or hidden, no separator, nothing that
/// controls a terminal.
///
/// # Errors
/// It is not. The status is that of a name that does not exist, because none of this form does.
pub(crate) fn checked(id: &str) -> Result<&str, Problem> {
    let is_bad = |c: char| c == '/' || c == '\\' || c.is_control();
    if id.is_empty() || id.len() > LONGEST || id.starts_with('.') || id.chars().any(is_bad) {
        return Err(Problem::not_found("thing named", &id.escape_debug().to_string()));
    }
    Ok(id)
}

/// A name in the path of a URL. It is never a path of files.
pub(crate) struct Id(pub String);

impl<S: Send + Sync> FromRequestParts<S> for Id {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let refused = |refused: PathRejection| Problem::new(refused.status(), refused.body_text()).at("path");
        let Path(id): Path<String> = Path::from_request_parts(parts, state).await.map_err(refused)?;
        checked(&id)?;
        Ok(Self(id))
    }
}

/// Returns a name for something new: the time, so that names sort by it, and random digits.
pub(crate) fn new() -> String {
    let utc = OffsetDateTime::now_utc()
        .format(format_description!("[year][month][day]T[hour][minute][second]Z"))
        .expect("the current time has a calendar form");
    let mut bytes = [0_u8; 4];
    // If the generator failed, whoever creates the file would notice that the name exists.
    let _ = getrandom(&mut bytes[..], GetRandomFlags::empty());
    let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{utc}-{digits}")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_could_lead_elsewhere_is_no_name() {
        for bad in ["", ".", "..", "../x", "a/b", "/etc", ".hidden", "a\\b", "a\0", "a\nb", &"x".repeat(201)]
        {
            assert_eq!(checked(bad).unwrap_err().status, 404, "{bad:?}");
        }
        for good in
            ["20261120T130000Z-qwen-lora-0001", "train.jsonl", "a b", "größe", "..a".trim_matches('.')]
        {
            assert!(checked(good).is_ok(), "{good:?}");
        }
        assert!(checked(&new()).is_ok());
    }

    proptest! {
        #[test]
        fn a_checked_name_stays_in_its_folder(id in any::<String>()) {
            if checked(&id).is_ok() {
                let path = std::path::Path::new("/folder").join(&id);
                prop_assert_eq!(path.parent(), Some(std::path::Path::new("/folder")));
                prop_assert_eq!(path.components().count(), 3);
            }
        }
    }
}
