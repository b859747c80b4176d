//! One layer around everything: the page, the API, and answers that nothing was found.
//!
//! In this order: the name of the server in `Host` and in the URL, the site in `Origin`, the token, the
//! pace of the body. On the way back it adds the headers that tell a browser what the page may do.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, BodyDataStream, Bytes};
use axum::extract::{Request, State};
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, HOST, LOCATION, ORIGIN, REFERRER_POLICY, SET_COOKIE,
    X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tokio::time::{Instant, Sleep};
use tokio_stream::Stream;

use crate::problem::Problem;
use crate::state::{Served, Shared};
use crate::{api, pages};

/// What a browser lets the page do: load from this server alone, and be in no frame of another page.
const POLICY: &str =
    "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; object-src 'none'";

/// The headers of every answer that has not set them itself.
const HEADERS: [(HeaderName, &str); 8] = [
    (CONTENT_SECURITY_POLICY, POLICY),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (X_FRAME_OPTIONS, "DENY"),
    (REFERRER_POLICY, "no-referrer"),
    (CACHE_CONTROL, "no-store"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (
        HeaderName::from_static("permissions-policy"),
        "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    ),
];

/// Lets a request pass, or answers it.
pub(crate) async fn guard(State(state): State<Shared>, request: Request, next: Next) -> Response {
    state.counters.request();
    let mut response = match refusal(&state, &request) {
        Some(response) => response,
        None => next.run(request.map(|body| paced(body, state.limits.body_grace))).await,
    };
    for (name, value) in HEADERS {
        response.headers_mut().entry(name).or_insert(HeaderValue::from_static(value));
    }
    response
}

/// Returns the answer to a request that may not pass.
fn refusal(state: &Served, request: &Request) -> Option<Response> {
    let (headers, uri) = (request.headers(), request.uri());
    let host = match named_host(state, headers, uri) {
        Ok(host) => host,
        Err(problem) => return Some(problem.into_response()),
    };
    if let Err(problem) = own_origin(headers, host, uri.path()) {
        return Some(problem.into_response());
    }
    if let Some(response) = sign_in(state, request) {
        return Some(response);
    }
    if state.token.is_in(headers, state.port) || is_public(request) {
        return None;
    }
    let problem = Problem::new(StatusCode::UNAUTHORIZED, "this server answers only those who know its token")
        .advise("Open the address that `sparktune serve` printed, or send `Authorization: Bearer` with the token in it");
    Some(problem.into_response())
}

/// Returns the `Host` of a request if it is a name of this server, whatever the URL says.
fn named_host<'a>(state: &Served, headers: &'a HeaderMap, uri: &Uri) -> Result<&'a str, Problem> {
    let mut hosts = headers.get_all(HOST).iter();
    let (Some(host), None) = (hosts.next(), hosts.next()) else {
        return Err(Problem::bad_request("a request has exactly one Host").at("Host"));
    };
    let host = host.to_str().unwrap_or_default();
    let is_own = state.names.has(host) && uri.authority().is_none_or(|name| state.names.has(name.as_str()));
    if is_own {
        return Ok(host);
    }
    let problem = Problem::new(StatusCode::FORBIDDEN, "this server is not called by that name").at("Host");
    Err(problem.advise("Use localhost, or start the server with --allow-host and the name"))
}

/// Checks that a browser sends the request for a page of this server, or that it is no browser.
fn own_origin(headers: &HeaderMap, host: &str, path: &str) -> Result<(), Problem> {
    let foreign = || {
        Problem::new(StatusCode::FORBIDDEN, "this request comes from the page of another site")
            .at("Origin")
            .advise("Only pages of this server, and programs, may use it")
    };
    let mut origins = headers.get_all(ORIGIN).iter();
    match (origins.next(), origins.next()) {
        (None, _) => {}
        (Some(origin), None) => {
            let name = origin.to_str().ok().and_then(|origin| origin.strip_prefix("http://"));
            if !name.is_some_and(|name| name.eq_ignore_ascii_case(host)) {
                return Err(foreign());
            }
        }
        (Some(_), Some(_)) => return Err(foreign()),
    }
    // Another port of this machine is the same site for cookies, and a GET without CORS has no Origin.
    let fetched = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let is_foreign = matches!(fetched("sec-fetch-site"), Some("same-site" | "cross-site"));
    let is_link = fetched("sec-fetch-mode") == Some("navigate") && is_shown(path);
    if is_foreign && !is_link {
        return Err(foreign());
    }
    Ok(())
}

/// Returns whether links from other sites may lead to this path: those to the page, and to files that are
/// pages of their own, may. Other endpoints answer programs, and some start work that whoever follows a link
/// did not ask for.
fn is_shown(path: &str) -> bool {
    let endpoint = path.strip_prefix(api::ROOT);
    pages::has(path)
        || endpoint.is_some_and(|endpoint| {
            let is_report = endpoint.starts_with("/runs/") && endpoint.ends_with("/report");
            is_report || endpoint == "/white-paper/file"
        })
}

/// Answers the address that was printed, `/?token=…`: a cookie, and the page without the token in its
/// address.
fn sign_in(state: &Served, request: &Request) -> Option<Response> {
    if request.uri().path() != "/" || request.method() != Method::GET {
        return None;
    }
    let mut pairs = request.uri().query()?.split('&');
    let token = pairs.find_map(|pair| pair.strip_prefix("token="))?;
    let mut response = (StatusCode::SEE_OTHER, [(LOCATION, "/")]).into_response();
    // With a wrong token the page opens too, and says what it needs.
    if state.token.is(token) {
        response.headers_mut().insert(SET_COOKIE, state.token.cookie(state.port));
    }
    Some(response)
}

/// Returns whether everybody may see this: files of the page, which are the same for everyone.
fn is_public(request: &Request) -> bool {
    matches!(*request.method(), Method::GET | Method::HEAD) && pages::has(request.uri().path())
}

/// A body that has to keep a pace.
struct Paced {
    body: BodyDataStream,
    begun: Instant,
    grace: Duration,
    received: u64,
    alarm: Pin<Box<Sleep>>,
}

/// Returns the body with an error once it is slower than 1 KiB a second, after some time of grace.
fn paced(body: Body, grace: Duration) -> Body {
    if axum::body::HttpBody::is_end_stream(&body) {
        return body;
    }
    let begun = Instant::now();
    let alarm = Box::pin(tokio::time::sleep_until(begun + grace));
    Body::from_stream(Paced { body: body.into_data_stream(), begun, grace, received: 0, alarm })
}

impl Stream for Paced {
    type Item = Result<Bytes, axum::Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        match Pin::new(&mut self.body).poll_next(context) {
            Poll::Ready(Some(Ok(bytes))) => {
                self.received += bytes.len() as u64;
                let until = self.begun + self.grace + Duration::from_secs(self.received / 1024);
                self.alarm.as_mut().reset(until);
                Poll::Ready(Some(Ok(bytes)))
            }
            Poll::Pending => self
                .alarm
                .as_mut()
                .poll(context)
                .map(|()| Some(Err(axum::Error::new(std::io::Error::from(std::io::ErrorKind::TimedOut))))),
            ready => ready,
        }
    }
}
