//! Requests to the hub: addresses, redirects, the token, and the interpretation of statuses.
//!
//! Redirects are followed here and not by ureq, because two things depend on the host: the token is sent only
//! to the endpoint's own origin, and the headers that describe a large file are in the *last response of the
//! hub*, before the redirect to storage.

use std::time::Duration;

use hf_hub::api::sync::{Api, ApiBuilder};
use hf_hub::{Cache, Repo};
use ureq::http::{HeaderMap, Method, Request, Uri};
use ureq::{Agent, Body, Proxy};

use crate::error::Error;
use crate::repo_kind::RepoKind;
use crate::settings::{Settings, Token};

const USER_AGENT: &str = concat!("sparktune/", env!("CARGO_PKG_VERSION"));
/// The largest number of redirects. Hub → renamed repository → storage → storage's mirror is four; more is a
/// loop.
const MOST_REDIRECTS: usize = 8;

/// A connection to one endpoint.
#[derive(Debug)]
pub(crate) struct Http {
    agent: Agent,
    /// hf-hub's knowledge of the routes. It gets no token and makes no requests.
    routes: Api,
    endpoint: String,
    origin: Origin,
    token: Option<Token>,
}

/// One revision of a repository and optionally one of its files, for addresses and error messages.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Subject<'a> {
    pub kind: RepoKind,
    pub id: &'a str,
    /// The name that the user gave.
    pub shown: &'a str,
    /// The requested branch, tag or commit.
    pub revision: &'a str,
    pub file: Option<&'a str>,
}

/// The extent to which redirects are followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Follow {
    /// Up to the first response outside the endpoint's origin, which is returned.
    WithinHub,
    /// Up to the end.
    Everywhere,
}

/// A response and its host.
#[derive(Debug)]
pub(crate) struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Body,
    pub host: String,
    from_hub: bool,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    pub(crate) fn is_redirect(&self) -> bool {
        matches!(self.status, 301 | 302 | 303 | 307 | 308)
    }
}

impl Http {
    pub(crate) fn new(settings: &Settings) -> Self {
        let silence = settings.patience.silence;
        let agent = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .proxy(settings.proxy.then(Proxy::try_from_env).flatten())
            .user_agent(USER_AGENT)
            // A file must arrive as it is stored, because offsets and hashes refer to those bytes.
            .accept_encoding("identity")
            .timeout_resolve(Some(silence))
            .timeout_connect(Some(silence))
            .timeout_send_request(Some(silence))
            .timeout_recv_response(Some(silence))
            .timeout_per_read(Some(silence))
            .build()
            .new_agent();
        // There is no token file next to this cache folder, so none is read.
        let routes = ApiBuilder::from_cache(Cache::new("/dev/null/hub".into()))
            .with_token(None)
            .with_endpoint(settings.endpoint.clone())
            .build()
            .expect("rustls needs no set-up");
        let uri: Uri = settings.endpoint.parse().expect("an endpoint checked by Settings");
        Self {
            agent,
            routes,
            origin: Origin::of(&uri),
            endpoint: settings.endpoint.clone(),
            token: settings.token.clone(),
        }
    }

    pub(crate) fn host(&self) -> String {
        self.origin.to_string()
    }

    fn repo(&self, subject: &Subject<'_>) -> hf_hub::api::sync::ApiRepo {
        let (id, revision) = (subject.id.into(), subject.revision.into());
        self.routes.repo(Repo::with_revision(id, subject.kind.of_hub(), revision))
    }

    /// Requests the list of files of a revision.
    pub(crate) fn list(&self, subject: &Subject<'_>) -> Result<Answer, Error> {
        let request = self.repo(subject).info_request();
        let route = request.uri_ref().expect("hf-hub builds a whole address");
        let answer = self.send(Method::GET, &format!("{route}?blobs=true"), None, Follow::WithinHub)?;
        if answer.status == 200 { Ok(answer) } else { Err(self.refusal(&answer, subject)) }
    }

    /// Requests the headers that describe a file, without its contents.
    pub(crate) fn describe(&self, subject: &Subject<'_>) -> Result<Answer, Error> {
        let answer = self.send(Method::HEAD, &self.file_url(subject), None, Follow::WithinHub)?;
        if answer.status == 200 || answer.is_redirect() {
            Ok(answer)
        } else {
            Err(self.refusal(&answer, subject))
        }
    }

    /// Requests the contents of a file from `start` on: 200 (whole), 206 (from `start`) or 416 (`start` is
    /// past the end).
    pub(crate) fn read(&self, subject: &Subject<'_>, start: u64) -> Result<Answer, Error> {
        let answer = self.send(Method::GET, &self.file_url(subject), Some(start), Follow::Everywhere)?;
        if matches!(answer.status, 200 | 206 | 416) {
            Ok(answer)
        } else {
            Err(self.refusal(&answer, subject))
        }
    }

    fn file_url(&self, subject: &Subject<'_>) -> String {
        self.repo(subject).url(&in_address(subject.file.expect("a file's address needs a file")))
    }

    fn send(&self, method: Method, url: &str, start: Option<u64>, follow: Follow) -> Result<Answer, Error> {
        let bad = |place: &Origin, why: &str| Error::BadReply { place: place.to_string(), why: why.into() };
        let mut uri: Uri = url.parse().map_err(|_| bad(&self.origin, "the name makes no valid address"))?;
        for _ in 0..=MOST_REDIRECTS {
            let origin = Origin::of(&uri);
            let from_hub = origin == self.origin;
            let mut request = Request::builder().method(method.clone()).uri(uri.clone());
            if let Some(start) = start.filter(|start| *start > 0) {
                request = request.header("range", format!("bytes={start}-"));
            }
            if let Some(token) = self.token.as_ref().filter(|_| from_hub) {
                request = request.header("authorization", token.bearer());
            }
            let request = request.body(()).expect("headers of visible ASCII");
            let response = self.agent.run(request).map_err(|error| network_fault(&origin, error))?;
            let (head, body) = response.into_parts();
            let answer = Answer {
                status: head.status.as_u16(),
                headers: head.headers,
                body,
                host: origin.to_string(),
                from_hub,
            };
            if !answer.is_redirect() {
                return Ok(answer);
            }
            let next = answer
                .header("location")
                .and_then(|location| resolve(&uri, location))
                .ok_or_else(|| bad(&origin, "a redirect without a usable address"))?;
            if follow == Follow::WithinHub && Origin::of(&next) != self.origin {
                return Ok(answer);
            }
            if is_downgrade(&uri, &next) {
                return Err(bad(
                    &origin,
                    "a redirect from https to an unencrypted address, which is not followed",
                ));
            }
            uri = next;
        }
        Err(bad(&self.origin, "endless redirects"))
    }

    /// Interprets an unsuccessful status. The hub's `x-error-code` is used; its free text is never shown.
    fn refusal(&self, answer: &Answer, subject: &Subject<'_>) -> Error {
        let (kind, repo) = (subject.kind, subject.shown.to_string());
        let host = answer.host.clone();
        let status = answer.status;
        if status == 429 {
            let seconds = answer.header("retry-after").and_then(|text| text.trim().parse().ok());
            return Error::RateLimited { host, retry_after: seconds.map(Duration::from_secs) };
        }
        if !answer.from_hub {
            return Error::Server { host, status };
        }
        match (answer.header("x-error-code"), status, subject.file) {
            (Some("RepoNotFound"), _, _) if self.token.is_none() || status == 404 => {
                Error::RepoMissing { kind, repo, host }
            }
            (Some("RevisionNotFound"), ..) => Error::RevisionMissing { kind, repo },
            (Some("GatedRepo"), ..) | (_, 401 | 403, _) => {
                Error::Gated { repo, status, advice: self.advice(status, subject) }
            }
            (_, 404, Some(file)) => {
                let advice = "It was in the list of files a moment ago. Run the same command again";
                Error::FileMissing { repo, file: file.into(), advice }
            }
            (_, 404, None) => Error::RepoMissing { kind, repo, host },
            _ => Error::Server { host, status },
        }
    }

    fn advice(&self, status: u16, subject: &Subject<'_>) -> String {
        let page = format!("{}/{}{}", self.endpoint, subject.kind.page(), subject.id);
        match (&self.token, status) {
            (None, _) => {
                format!(
                    "Accept the licence at {page} if it asks for one, then set HF_TOKEN to a token of that account"
                )
            }
            (Some(_), 401) => {
                "The token was not accepted; it may have expired. Set HF_TOKEN to a valid one".into()
            }
            (Some(_), _) => format!(
                "The token's account has no access yet: accept the licence at {page} (access may be granted by hand, which takes time), and give the token permission to read gated repositories"
            ),
        }
    }
}

/// Returns the path of a file as it is written in an address. Slashes stay.
fn in_address(path: &str) -> String {
    let is_plain =
        |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~' | b'/');
    path.bytes().fold(String::new(), |mut text, byte| {
        if is_plain(byte) {
            text.push(char::from(byte));
        } else {
            text.push_str(&format!("%{byte:02X}"));
        }
        text
    })
}

/// Scheme, host and port, which decide whether the token may be sent.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Origin {
    scheme: String,
    host: String,
    port: Option<u16>,
}

impl Origin {
    fn of(uri: &Uri) -> Self {
        let scheme = uri.scheme_str().unwrap_or_default().to_ascii_lowercase();
        let default = if scheme == "https" { Some(443) } else { Some(80) };
        let host = uri.host().unwrap_or_default().to_ascii_lowercase();
        Self { port: uri.port_u16().or(default), host, scheme }
    }
}

impl std::fmt::Display for Origin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.scheme.as_str(), self.port) {
            ("https", Some(443)) | ("http", Some(80)) | (_, None) => f.write_str(&self.host),
            (_, Some(port)) => write!(f, "{}:{port}", self.host),
        }
    }
}

/// Resolves `Location`, which is absolute or relative to the host. The hub does not use paths relative to the
/// current folder.
fn resolve(base: &Uri, location: &str) -> Option<Uri> {
    let text = match location {
        _ if location.starts_with("//") => format!("{}:{location}", base.scheme_str()?),
        _ if location.starts_with('/') => format!("{}://{}{location}", base.scheme_str()?, base.authority()?),
        _ => location.into(),
    };
    let uri: Uri = text.parse().ok()?;
    let web = matches!(uri.scheme_str(), Some("http" | "https"));
    // Credentials in an address would be forwarded and shown.
    (web && !uri.authority()?.as_str().contains('@')).then_some(uri)
}

fn is_downgrade(from: &Uri, to: &Uri) -> bool {
    from.scheme_str() == Some("https") && to.scheme_str() != Some("https")
}

fn network_fault(origin: &Origin, error: ureq::Error) -> Error {
    let host = origin.to_string();
    let why = match error {
        ureq::Error::Timeout(_) => return Error::TimedOut { host },
        ureq::Error::HostNotFound => "no such host".into(),
        // Only these variants are known not to contain an address; others could show a signed link.
        ureq::Error::Io(error) => error.to_string(),
        ureq::Error::Tls(text) => text.into(),
        ureq::Error::Rustls(error) => error.to_string(),
        ureq::Error::Protocol(error) => format!("invalid HTTP: {error}"),
        ureq::Error::ConnectProxyFailed(_) => "the proxy refused the connection".into(),
        ureq::Error::InvalidProxyUrl => "the proxy variable does not contain a valid address".into(),
        ureq::Error::LargeResponseHeader(..) => "endless headers".into(),
        _ => "the connection failed".into(),
    };
    Error::Unreachable { host, why }
}

/// Returns the error for a failure while a body is read.
pub(crate) fn body_fault(host: &str, error: std::io::Error) -> Error {
    match ureq::Error::from(error) {
        ureq::Error::Timeout(_) => Error::TimedOut { host: host.into() },
        _ => Error::Cut { host: host.into() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uri(text: &str) -> Uri {
        text.parse().unwrap()
    }

    #[test]
    fn a_path_keeps_its_slashes_in_an_address_and_nothing_else_with_a_meaning() {
        assert_eq!(in_address("data/train-00000-of-00002.parquet"), "data/train-00000-of-00002.parquet");
        assert_eq!(in_address("a b/ö=1?#%.jsonl"), "a%20b/%C3%B6%3D1%3F%23%25.jsonl");
    }

    #[test]
    fn an_origin_is_scheme_host_and_port() {
        let origin = |text| Origin::of(&uri(text));
        assert_eq!(origin("https://Hub.invalid/a?b"), origin("https://hub.invalid:443/c"));
        for other in [
            "http://hub.invalid/",
            "https://hub.invalid:444/",
            "https://cdn.hub.invalid/",
            "https://hub.invalid.evil/",
        ] {
            assert_ne!(origin("https://hub.invalid/"), origin(other), "{other}");
        }
    }

    #[test]
    fn locations_are_absolute_or_relative_to_the_host() {
        let base = uri("https://hub.invalid/a/b");
        let next = |location| resolve(&base, location).map(|uri| uri.to_string());
        assert_eq!(next("/x?y=1").as_deref(), Some("https://hub.invalid/x?y=1"));
        assert_eq!(next("//cdn.invalid/x").as_deref(), Some("https://cdn.invalid/x"));
        assert_eq!(next("http://cdn.invalid/x").as_deref(), Some("http://cdn.invalid/x"));
        assert!(
            is_downgrade(&base, &uri("http://hub.invalid/"))
                && !is_downgrade(&base, &uri("https://cdn.invalid/"))
        );
        for bad in ["x", "file:///etc/passwd", "https://me:pw@cdn.invalid/", "https://", ""] {
            assert_eq!(next(bad), None, "{bad}");
        }
    }
}
