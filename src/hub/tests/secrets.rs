//! Tests that the token is sent only to the hub's own origin, and never appears in any text.

use std::sync::Mutex;

use sparktune_hub::{Event, Needs, Progress};

use crate::fake_hub::*;

const TOKEN: &str = "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";

/// Long enough to be the token's, short enough to show in a hex dump's row of sixteen.
const FRAGMENT: &str = "cretThat";

fn is_clean(text: &str) -> bool {
    !text.contains(FRAGMENT) && !text.contains("MustNotBe") && !text.contains("signed-secret")
}

#[test]
fn the_token_goes_to_the_hub_and_never_to_storage() {
    let (server, home) = (FakeHub::with_model(), Home::new());
    home.hub_with(&server.endpoint(), &[("HF_TOKEN", TOKEN)]).fetch(ID, Needs::Model, &()).unwrap();
    let bearer = format!("Bearer {TOKEN}");
    for request in server.log() {
        let sent = request.headers.get("authorization");
        match request.role {
            Role::Hub => assert_eq!(sent, Some(&bearer), "{request:?}"),
            Role::Cdn => assert!(!format!("{request:?}").contains(TOKEN), "{request:?}"),
        }
    }
    assert_eq!(server.downloads_of(WEIGHTS).len(), 1);
}

#[test]
fn a_question_redirected_to_another_host_takes_no_token_along() {
    let (server, home) = (FakeHub::with_model(), Home::new());
    let storage = server.storage();
    server.rule(move |r| {
        (r.role == Role::Hub)
            .then(|| Act::Say(302, vec![("location", format!("{storage}{}", r.path))], vec![]))
    });
    let hub = home.hub_with(&server.endpoint(), &[("HF_TOKEN", TOKEN)]);
    hub.fetch(ID, Needs::Model, &()).unwrap_err();
    assert!(
        server.log().iter().all(|r| r.role == Role::Hub),
        "a list of files from elsewhere is not believed"
    );
}

/// Collects every record of every logger call in this process, at the finest level there is.
struct Ear(Mutex<Vec<String>>);

impl log::Log for Ear {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }
    fn log(&self, record: &log::Record<'_>) {
        self.0.lock().unwrap().push(format!("{} {} {}", record.level(), record.target(), record.args()));
    }
    fn flush(&self) {}
}

static EAR: Ear = Ear(Mutex::new(Vec::new()));

#[derive(Default)]
struct Told(Mutex<String>);

impl Progress for Told {
    fn on(&self, event: Event<'_>) {
        self.0.lock().unwrap().push_str(&format!("{event:?}\n"));
    }
}

#[test]
fn the_token_is_in_no_error_no_event_no_debug_output_and_no_log() {
    log::set_logger(&EAR).unwrap();
    log::set_max_level(log::LevelFilter::Trace);
    let told = Told::default();
    let mut texts = Vec::new();
    // A server that sends everything it was given back, in every place there is.
    for (part, status) in [
        ("/api/", 400),
        ("/api/", 401),
        ("/api/", 403),
        ("/api/", 404),
        ("/api/", 429),
        ("/api/", 500),
        ("/api/", 200),
        ("/resolve/", 401),
        ("/resolve/", 403),
        ("/resolve/", 404),
        ("/resolve/", 503),
        ("/resolve/", 302),
        ("/resolve/", 200),
        ("/stored/", 403),
        ("/stored/", 404),
        ("/stored/", 200),
        ("/stored/", 206),
        ("none", 0),
    ] {
        let (server, home) = (FakeHub::with_model(), Home::new());
        server.rule(move |r| {
            let echo = r.headers.get("authorization").cloned().unwrap_or_else(|| format!("Bearer {TOKEN}"));
            let headers = [
                "x-error-message",
                "x-error-code",
                "etag",
                "content-range",
                "retry-after",
                "location",
                "server-timing",
            ];
            let headers =
                headers.map(|name| (name, if name == "retry-after" { "0".into() } else { echo.clone() }));
            r.path
                .contains(part)
                .then(|| Act::Say(status, headers.into(), format!("{{\"sha\":\"{echo}\"}}").into_bytes()))
        });
        let hub = home.hub_with(&server.endpoint(), &[("HF_TOKEN", TOKEN)]);
        texts.push(format!("{hub:?} {hub:#?}"));
        match hub.fetch(ID, Needs::Model, &told) {
            Ok(snapshot) => assert_eq!((part, snapshot.files.len()), ("none", 5)),
            Err(error) => texts.push(format!("{error} {error:?} {error:#?}")),
        }
    }
    texts.push(told.0.into_inner().unwrap());
    for text in &texts {
        assert!(is_clean(text), "{text}");
    }
    let heard = EAR.0.lock().unwrap();
    assert!(heard.iter().any(|line| line.contains("ureq")), "the ear must hear, or this test proves nothing");
    for line in heard.iter() {
        assert!(is_clean(line) && !line.starts_with("TRACE"), "{line}");
    }
}
