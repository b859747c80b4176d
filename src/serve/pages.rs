//! The files of the page, which are part of the program.
//!
//! They are the same for everybody and can be had without the token. Each has an ETag, and text is
//! compressed once.

use std::borrow::Cow;
use std::collections::HashMap;
use std::io::Write;
use std::sync::{Mutex, OnceLock};

use axum::body::Body;
use axum::extract::Request;
use axum::http::header::{
    ACCEPT_ENCODING, ALLOW, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_TYPE, ETAG, IF_NONE_MATCH, VARY,
};
use axum::http::{HeaderValue, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use flate2::Compression;
use flate2::write::GzEncoder;
use rust_embed::Embed;

use crate::guide::picture;
use crate::locked::lock;
use crate::problem::Problem;

/// The files in `web/`.
#[derive(Embed)]
#[folder = "web/"]
struct Files;

/// The folder of the page about the API, and where it is served.
const DOCS: (&str, &str) = ("docs/", "/api/docs/");
/// The smallest file that is worth compressing.
const SMALL: usize = 1024;

/// Returns whether the path is that of a file of the page.
pub(crate) fn has(path: &str) -> bool {
    find(&file_of(path)).is_some()
}

/// Returns the bytes of a file of the page, or of a picture of the guide, with their hash.
fn find(name: &str) -> Option<(Cow<'static, [u8]>, [u8; 32])> {
    let own = Files::get(name).map(|file| (file.data, file.metadata.sha256_hash()));
    own.or_else(|| picture(name))
}

/// Answers with a file of the page, or that there is nothing.
pub(crate) async fn page(request: Request) -> Response {
    let path = request.uri().path();
    if path == "/api/docs" {
        return axum::response::Redirect::permanent(DOCS.1).into_response();
    }
    let name = file_of(path);
    let Some((data, hash)) = find(&name) else {
        return Problem::not_found("page or endpoint", path)
            .advise("/api/docs/ lists the endpoints")
            .into_response();
    };
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let problem = Problem::new(StatusCode::METHOD_NOT_ALLOWED, "this is a file, which can only be read");
        return ([(ALLOW, "GET, HEAD")], problem).into_response();
    }
    let tag: String = hash[..16].iter().map(|byte| format!("{byte:02x}")).collect();
    let given = |name| request.headers().get(name).and_then(|value: &HeaderValue| value.to_str().ok());
    let is_text = is_text(&name);
    let compressed = given(ACCEPT_ENCODING)
        .filter(|encodings| is_text && encodings.contains("gzip") && data.len() >= SMALL)
        .map(|_| gzip(&name, &data));
    let tag = format!("\"{tag}{}\"", if compressed.is_some() { "-gz" } else { "" });
    let is_known = given(IF_NONE_MATCH).is_some_and(|tags| tags.split(',').any(|known| known.trim() == tag));
    let mut response = match (is_known, &compressed) {
        (true, _) => StatusCode::NOT_MODIFIED.into_response(),
        (false, Some(bytes)) => Body::from(*bytes).into_response(),
        (false, None) => match data {
            Cow::Borrowed(bytes) => Body::from(bytes).into_response(),
            Cow::Owned(bytes) => Body::from(bytes).into_response(),
        },
    };
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(media_type(&name)));
    headers.insert(ETAG, HeaderValue::from_str(&tag).expect("digits are a header"));
    headers.insert(VARY, HeaderValue::from_static("Accept-Encoding"));
    // The next program may have another file of this name.
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    if compressed.is_some() {
        headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    response
}

/// Returns the name in `web/` of a path. Nothing else than these names exists, so nothing needs to be
/// resolved.
fn file_of(path: &str) -> Cow<'_, str> {
    let name = match path.strip_prefix(DOCS.1) {
        Some(name) => Cow::Owned(format!("{}{name}", DOCS.0)),
        None => Cow::Borrowed(path.strip_prefix('/').unwrap_or(path)),
    };
    if name.is_empty() || name.ends_with('/') { Cow::Owned(format!("{name}index.html")) } else { name }
}

/// Returns a file compressed; it is compressed only once.
fn gzip(name: &str, bytes: &[u8]) -> &'static [u8] {
    static COMPRESSED: OnceLock<Mutex<HashMap<String, &'static [u8]>>> = OnceLock::new();
    let mut compressed = lock(COMPRESSED.get_or_init(Mutex::default));
    if let Some(bytes) = compressed.get(name) {
        return bytes;
    }
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    let written = encoder.write_all(bytes).and_then(|()| encoder.finish());
    // There are as many of these as files in the program, so they may stay to its end.
    let bytes: &'static [u8] = Vec::leak(written.expect("memory can be written"));
    compressed.insert(name.to_owned(), bytes);
    bytes
}

fn is_text(name: &str) -> bool {
    !matches!(name.rsplit_once('.'), Some((_, "png" | "ico" | "woff2")))
}

fn media_type(name: &str) -> &'static str {
    match name.rsplit_once('.').map_or("", |(_, end)| end) {
        "html" => "text/html; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "js" | "mjs" => "text/javascript; charset=utf-8",
        "json" | "map" => "application/json",
        "webmanifest" => "application/manifest+json",
        "svg" => "image/svg+xml",
        "png" => "image/png",
        "ico" => "image/x-icon",
        "woff2" => "font/woff2",
        "txt" => "text/plain; charset=utf-8",
        _ => "application/octet-stream",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_names_of_files_and_nothing_else_is_found() {
        assert_eq!(file_of("/"), "index.html");
        assert_eq!(file_of("/api/docs/"), "docs/index.html");
        assert_eq!(file_of("/vendor/a.js"), "vendor/a.js");
        assert!(
            has("/")
                && has("/guide/screens/chat.svg")
                && !has("/api/v1/runs")
                && !has("/../lib.rs")
                && !has("//etc/passwd")
        );
    }
}
