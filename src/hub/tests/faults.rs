//! The messages and the files left on disk when the hub, the network or the repository misbehaves.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use sparktune_hub::{Error, Event, Hub, Needs, Origin, Patience, Progress};

use crate::fake_hub::*;

fn say(status: u16, headers: &[(&'static str, &str)]) -> Act {
    Act::Say(
        status,
        headers.iter().map(|(n, v)| (*n, v.to_string())).collect(),
        b"words of the server".to_vec(),
    )
}

/// The error of fetching the model, as text, checked to hold nothing that the server wrote.
fn error_of(hub: &Hub, model: &str) -> (Error, String) {
    let error = hub.fetch(model, Needs::Model, &()).unwrap_err();
    let text = error.to_string();
    assert!(!text.contains("words of the server") && !text.contains("signed-secret"), "{text}");
    (error, text)
}

#[test]
fn a_gated_model_says_licence_and_token() {
    for (status, token) in [(401, None), (403, None), (401, Some("t0ken")), (403, Some("t0ken"))] {
        let (server, home) = (FakeHub::with_model(), Home::new());
        server.rule(move |r| {
            r.path.contains("/resolve/").then(|| say(status, &[("x-error-code", "GatedRepo")]))
        });
        let env: Vec<_> = token.map(|token| ("HF_TOKEN", token)).into_iter().collect();
        let (error, text) = error_of(&home.hub_with(&server.endpoint(), &env), ID);
        assert!(matches!(error, Error::Gated { status: s, .. } if s == status), "{text}");
        assert!(
            text.contains("HF_TOKEN")
                || text.contains("the token's account")
                || text.contains("token's account"),
            "{text}"
        );
        let page = format!("{}/org/tiny", server.endpoint());
        assert_eq!(text.contains(&page), !(status == 401 && token.is_some()), "{text}");
    }
}

#[test]
fn a_missing_model_revision_or_file_each_has_its_own_words() {
    let (server, home) = (FakeHub::with_model(), Home::new());
    let hub = home.hub(&server);
    let (error, text) = error_of(&hub, "org/absent");
    assert!(
        matches!(error, Error::RepoMissing { .. }) && text.starts_with("org/absent: no such model"),
        "{text}"
    );
    let (error, text) = error_of(&hub, "org/tiny@v9");
    assert!(matches!(error, Error::RevisionMissing { .. }) && text.starts_with("org/tiny@v9: "), "{text}");
    server.remove("tokenizer.json");
    let (error, text) = error_of(&hub, ID);
    assert!(
        matches!(error, Error::FileMissing { .. }) && text.contains("tokenizer.json is missing"),
        "{text}"
    );
    // What the hub says to strangers about models that do not exist.
    server.rule(|_| Some(say(401, &[("x-error-code", "RepoNotFound")])));
    assert!(matches!(error_of(&hub, ID).0, Error::RepoMissing { .. }));
}

#[test]
fn a_repository_without_safetensors_or_with_quantised_weights_is_refused_before_any_weight() {
    let (server, home) = (FakeHub::with_model(), Home::new());
    let hub = home.hub(&server);
    let good = r#"{"model_type":"qwen3"}"#;
    for config in [
        r#"{"quantization_config":{"quant_method":"fp8"}}"#,
        r#"{"text_config":{"quantization_config":{"quant_method":"fp8"}}}"#,
    ] {
        server.put("config.json", config.as_bytes(), false);
        let (error, text) = error_of(&Home::new().hub(&server), ID);
        assert!(matches!(error, Error::Quantised { .. }) && text.contains("fp8"), "{text}");
    }
    server.put("config.json", good.as_bytes(), false);
    server.remove(WEIGHTS);
    let (error, text) = error_of(&hub, ID);
    assert!(matches!(error, Error::NoSafetensors { .. }) && text.contains("pickled"), "{text}");
    assert!(server.log().iter().all(|r| r.role == Role::Hub));
}

#[test]
fn a_server_that_recovers_is_asked_again() {
    let (server, home) = (FakeHub::with_model(), Home::new());
    // Every question fails once with 500 or 429 before it is answered.
    let seen = std::sync::Mutex::new(std::collections::HashSet::new());
    server.rule(move |r| {
        let new = seen.lock().unwrap().insert((r.role == Role::Hub, r.method.clone(), r.path.clone()));
        let limited = say(429, &[("retry-after", "0")]);
        new.then(|| if r.method == "HEAD" { limited } else { say(500, &[]) })
    });
    let snapshot = home.hub(&server).fetch(ID, Needs::Model, &()).unwrap();
    assert_eq!(std::fs::read(snapshot.folder.join(WEIGHTS)).unwrap(), weights());
}

#[test]
fn a_server_that_stays_down_is_given_up_after_the_agreed_attempts() {
    let (server, home) = (FakeHub::with_model(), Home::new());
    server.rule(|_| Some(say(503, &[])));
    let (error, text) = error_of(&home.hub(&server), ID);
    assert!(matches!(error, Error::Server { status: 503, .. }) && text.contains("HTTP 503"), "{text}");
    assert_eq!(server.log().len(), 3);
    server.be_good();
    server.rule(|_| Some(say(429, &[("retry-after", "0")])));
    assert!(matches!(error_of(&home.hub(&server), ID).0, Error::RateLimited { .. }));
}

/// Cancels after the first question.
#[derive(Default)]
struct Impatient(AtomicUsize);

impl Progress for Impatient {
    fn on(&self, _: Event<'_>) {}

    fn cancelled(&self) -> bool {
        self.0.fetch_add(1, Ordering::Relaxed) > 0
    }
}

#[test]
fn a_cancel_while_the_server_is_down_ends_the_wait_before_anything_is_planned() {
    let (server, home) = (FakeHub::with_model(), Home::new());
    server.rule(|_| Some(say(503, &[])));
    let patience = Patience { attempts: 5, first_wait: Duration::from_secs(30), ..Patience::default() };
    let hub = home.hub(&server).with_patience(patience);
    assert!(matches!(hub.fetch_config(ID, &Impatient::default()), Err(Error::Cancelled)));
    let plan = hub.plan_download(ID, Needs::Tokenizer, &Impatient::default());
    assert!(matches!(plan, Err(Error::Cancelled)));
    assert_eq!(server.log().len(), 2, "each asked once");
}

#[test]
fn a_cut_connection_continues_and_no_byte_is_sent_twice() {
    let (server, home) = (FakeHub::with_model(), Home::new());
    server.on_weights(3, |_| Act::CutAfter(700_001));
    let snapshot = home.hub(&server).fetch(ID, Needs::Model, &()).unwrap();
    assert_eq!(std::fs::read(snapshot.folder.join(WEIGHTS)).unwrap(), weights());
    let starts: Vec<_> = server.downloads_of(WEIGHTS).iter().map(Request::start).collect();
    assert_eq!(starts, [0, 700_001, 1_400_002, 2_100_003]);
    assert_eq!(server.bytes_from_storage(), 3_000_000);
}

#[test]
fn a_download_given_up_is_continued_by_the_next_command() {
    let (server, home) = (FakeHub::with_model(), Home::new());
    server.on_weights(1, |_| Act::CutAfter(1_000_000));
    server.on_weights(9, |_| Act::CutAfter(0));
    let (error, text) = error_of(&home.hub(&server), ID);
    assert!(matches!(error, Error::Interrupted { have: 1_000_000, size: 3_000_000, .. }), "{text}");
    assert!(text.contains("1.00 MB of 3.00 MB") && text.contains("same command again to continue"), "{text}");
    assert_eq!(std::fs::metadata(home.part(&sha256(&weights()))).unwrap().len(), 1_000_000);

    server.be_good();
    server.forget();
    let hub = home.hub(&server);
    let plan = hub.plan_download(ID, Needs::Model, &()).unwrap();
    assert_eq!(plan.files.last().unwrap().missing, 2_000_000);
    let snapshot = hub.download(&plan, &()).unwrap();
    assert_eq!(std::fs::read(snapshot.folder.join(WEIGHTS)).unwrap(), weights());
    assert_eq!(server.downloads_of(WEIGHTS)[0].start(), 1_000_000);
    assert_eq!(server.bytes_from_storage(), 2_000_000);
}

#[test]
fn a_server_without_ranges_starts_over_and_the_file_is_not_doubled() {
    let (server, home) = (FakeHub::with_model(), Home::new());
    server.on_weights(1, |_| Act::CutAfter(1_000_000));
    server.on_weights(1, |_| Act::IgnoreRange);
    let snapshot = home.hub(&server).fetch(ID, Needs::Model, &()).unwrap();
    assert_eq!(std::fs::read(snapshot.folder.join(WEIGHTS)).unwrap(), weights());
}

#[test]
fn a_part_of_something_else_is_replaced_by_the_right_file() {
    for part in [noise(1_000_000, 99), noise(3_000_000, 99), noise(5_000_000, 99)] {
        let (server, home) = (FakeHub::with_model(), Home::new());
        std::fs::create_dir_all(home.repo().join("blobs")).unwrap();
        std::fs::write(home.part(&sha256(&weights())), part).unwrap();
        let snapshot = home.hub(&server).fetch(ID, Needs::Model, &()).unwrap();
        assert_eq!(std::fs::read(snapshot.folder.join(WEIGHTS)).unwrap(), weights());
    }
}

#[test]
fn altered_bytes_are_refused_and_removed() {
    let (server, home) = (FakeHub::with_model(), Home::new());
    server.on_weights(9, |_| Act::Corrupt);
    let (error, text) = error_of(&home.hub(&server), ID);
    let etag = sha256(&weights());
    assert!(matches!(&error, Error::WrongHash { expected, .. } if *expected == etag), "{text}");
    assert!(text.contains("model.safetensors: wrong hash"), "{text}");
    assert!(!home.part(&etag).exists() && !home.blob(&etag).exists());
    assert!(!home.snapshot().join(WEIGHTS).exists());
    assert_eq!(server.downloads_of(WEIGHTS).len(), 1, "fresh and wrong is not fetched twice");
}

/// The etag of a small file is git's hash of it.
#[test]
fn altered_bytes_of_a_small_file_are_refused_and_removed() {
    let (server, home) = (FakeHub::with_model(), Home::new());
    server.rule(|request| request.is_get_of("tokenizer_config.json").then_some(Act::Corrupt));
    let (error, text) = error_of(&home.hub(&server), ID);
    assert!(matches!(&error, Error::WrongHash { .. }), "{text}");
    assert!(text.contains("tokenizer_config.json: wrong hash"), "{text}");
    assert!(!home.snapshot().join("tokenizer_config.json").exists());
}

#[test]
fn a_file_of_another_size_is_refused_before_it_is_written() {
    let (server, home) = (FakeHub::with_model(), Home::new());
    server.on_weights(9, |_| Act::Say(200, vec![], vec![0; 17]));
    let (error, text) = error_of(&home.hub(&server), ID);
    assert!(matches!(error, Error::WrongSize { expected: 3_000_000, actual: 17, .. }), "{text}");
    assert_eq!(std::fs::metadata(home.part(&sha256(&weights()))).unwrap().len(), 0);
}

#[test]
fn a_range_that_was_not_asked_for_is_not_appended() {
    let (server, home) = (FakeHub::with_model(), Home::new());
    server.on_weights(1, |_| Act::CutAfter(1_000_000));
    server.on_weights(1, |_| {
        Act::Say(206, vec![("content-range", "bytes 5-1999999/3000000".into())], vec![0; 1_999_995])
    });
    let (error, text) = error_of(&home.hub(&server), ID);
    assert!(
        matches!(error, Error::BadReply { .. }) && text.contains("not the requested part of the file"),
        "{text}"
    );
    assert_eq!(std::fs::metadata(home.part(&sha256(&weights()))).unwrap().len(), 1_000_000);
}

#[test]
fn silence_is_given_up_and_the_download_continues() {
    let (server, home) = (FakeHub::with_model(), Home::new());
    server.on_weights(1, |_| Act::StallAfter(1_000_000));
    // The server may wait for a processor, and must not be silent in another place for it.
    let patience = Patience { silence: Duration::from_secs(8), ..impatient() };
    let snapshot = home.hub(&server).with_patience(patience).fetch(ID, Needs::Model, &()).unwrap();
    assert_eq!(std::fs::read(snapshot.folder.join(WEIGHTS)).unwrap(), weights());
    assert_eq!(server.downloads_of(WEIGHTS)[1].start(), 1_000_000);
}

#[test]
fn a_slow_but_steady_server_is_not_given_up() {
    let (server, home) = (FakeHub::with_model(), Home::new());
    server.on_weights(9, |_| Act::Drip { piece: 100_000, pause: Duration::from_millis(300) });
    // The whole takes nine seconds, longer than the allowed silence; no single pause does.
    let patience = Patience { silence: Duration::from_secs(8), ..impatient() };
    home.hub(&server).with_patience(patience).fetch(ID, Needs::Model, &()).unwrap();
    assert_eq!(server.downloads_of(WEIGHTS).len(), 1);
}

#[test]
fn a_server_that_drips_is_given_up_and_what_came_is_kept() {
    let (server, home) = (FakeHub::with_model(), Home::new());
    server.on_weights(9, |_| Act::Drip { piece: 100, pause: Duration::from_millis(5) });
    let patience = Patience { period: Duration::from_millis(300), ..impatient() };
    let (error, text) = error_of(&home.hub(&server).with_patience(patience), ID);
    assert!(matches!(error, Error::TooSlow { bytes: 1..65_536, .. }), "{text}");
    assert!(text.contains("model.safetensors from") && text.contains("HF_ENDPOINT"), "{text}");
    assert!(std::fs::metadata(home.part(&sha256(&weights()))).unwrap().len() > 0);
}

#[test]
fn a_server_that_cuts_after_each_few_bytes_is_given_up() {
    let (server, home) = (FakeHub::with_model(), Home::new());
    server.on_weights(99, |_| Act::CutAfter(100));
    let (error, text) = error_of(&home.hub(&server), ID);
    assert!(matches!(error, Error::Interrupted { attempts: 3, .. }), "{text}");
    assert_eq!(std::fs::metadata(home.part(&sha256(&weights()))).unwrap().len(), 300);
}

#[test]
fn a_list_that_drips_is_given_up_and_can_be_cancelled() {
    let (server, home) = (FakeHub::with_model(), Home::new());
    let drip = || Act::Drip { piece: 1, pause: Duration::from_millis(20) };
    server.rule(move |request| request.path.starts_with("/api/").then(drip));
    let patience = Patience { list: Duration::from_millis(300), ..impatient() };
    let (error, text) = error_of(&home.hub(&server).with_patience(patience), ID);
    assert!(matches!(error, Error::TooSlow { .. }) && text.contains("list of files"), "{text}");

    struct Impatient(std::time::Instant);
    impl sparktune_hub::Progress for Impatient {
        fn on(&self, _: sparktune_hub::Event<'_>) {}
        fn cancelled(&self) -> bool {
            self.0.elapsed() > Duration::from_millis(300)
        }
    }
    let person = Impatient(std::time::Instant::now());
    let error = home.hub(&server).fetch(ID, Needs::Model, &person).unwrap_err();
    assert!(matches!(error, Error::Cancelled), "{error}");
}

#[test]
fn a_hub_that_never_answers_is_a_timeout() {
    let (server, home) = (FakeHub::with_model(), Home::new());
    server.rule(|r| r.path.starts_with("/api/").then_some(Act::StallAfter(0)));
    let patience = Patience { silence: Duration::from_millis(100), ..impatient() };
    let (error, text) = error_of(&home.hub(&server).with_patience(patience), ID);
    assert!(matches!(error, Error::TimedOut { .. }) && text.contains("HF_HUB_DOWNLOAD_TIMEOUT"), "{text}");
}

#[test]
fn nobody_at_the_door_is_said_with_the_host() {
    let home = Home::new();
    let (error, text) = error_of(&home.hub_with("http://127.0.0.1:1", &[]), ID);
    assert!(matches!(error, Error::Unreachable { .. }), "{text}");
    assert!(text.starts_with("127.0.0.1:1: cannot be reached") && !text.contains("HF_HUB_OFFLINE"), "{text}");
}

#[test]
fn the_hub_is_named_once_before_it_is_asked_and_once_in_each_retry() {
    struct Told(Mutex<Vec<String>>);
    impl Progress for Told {
        fn on(&self, event: Event<'_>) {
            self.0.lock().unwrap().push(match event {
                Event::Asking { host, repo } => format!("{host}: asking for {repo}"),
                Event::Retry { name, why, .. } => format!("{name}: {why}"),
                other => format!("{other:?}"),
            });
        }
    }
    let told = Told(Mutex::default());
    let home = Home::new();
    let hub = home.hub_with("http://127.0.0.1:1", &[]);
    hub.fetch_config(ID, &told).unwrap_err();
    let asking = format!("127.0.0.1:1: asking for {ID}");
    assert_eq!(*told.0.lock().unwrap(), std::slice::from_ref(&asking), "a plan is otherwise quiet");
    hub.fetch(ID, Needs::Model, &told).unwrap_err();
    let told = told.0.into_inner().unwrap();
    assert!(told.len() > 2 && told[1] == asking, "{told:?}");
    assert!(told[2..].iter().all(|line| line.starts_with("127.0.0.1:1: cannot be reached (")), "{told:?}");
}

#[test]
fn an_unreachable_hub_is_replaced_by_a_cache_that_has_it_all() {
    let (server, home) = (FakeHub::with_model(), Home::new());
    home.hub(&server).fetch(ID, Needs::Model, &()).unwrap();
    let cut_off = home.hub_with("http://127.0.0.1:1", &[]);
    let snapshot = cut_off.fetch(ID, Needs::Model, &()).unwrap();
    assert!(matches!(&snapshot.origin, Origin::CacheInstead { why } if why.contains("cannot be reached")));
    std::fs::remove_file(home.snapshot().join(WEIGHTS)).unwrap();
    let (error, text) = error_of(&cut_off, ID);
    assert!(matches!(error, Error::HubAway { .. }) && text.contains("the weights"), "{text}");
}

#[test]
fn nonsense_from_a_server_is_refused_in_words() {
    let list = |body: &str| {
        let (server, home) = (FakeHub::with_model(), Home::new());
        let body = body.as_bytes().to_vec();
        server.rule(move |r| r.path.starts_with("/api/").then(|| Act::Say(200, vec![], body.clone())));
        error_of(&home.hub(&server), ID)
    };
    for (body, part) in [
        ("{\"sha\":", "not valid JSON for a repository (line 1, column 7)"),
        ("<html>", "not valid JSON"),
        (r#"{"sha":"../../../evil","siblings":[]}"#, "`sha` is not a commit"),
    ] {
        let (error, text) = list(body);
        assert!(matches!(error, Error::BadReply { .. }) && text.contains(part), "{text}");
    }
    for headers in [
        vec![("etag", "\"../../../../evil\"".to_string())],
        vec![("etag", "\"\"".to_string())],
        vec![],
        vec![("x-linked-etag", "a/b".to_string())],
    ] {
        let (server, home) = (FakeHub::with_model(), Home::new());
        server.rule(move |r| (r.method == "HEAD").then(|| Act::Say(200, headers.clone(), vec![])));
        let (error, text) = error_of(&home.hub(&server), ID);
        assert!(matches!(error, Error::BadReply { .. }) && text.contains("no usable etag"), "{text}");
    }
    let (server, home) = (FakeHub::with_model(), Home::new());
    server.rule(|r| Some(say(302, &[("location", &r.path)])));
    assert!(error_of(&home.hub(&server), ID).1.contains("endless redirects"));
    server.be_good();
    server.rule(|_| Some(say(302, &[("location", "file:///etc/passwd")])));
    assert!(error_of(&home.hub(&server), ID).1.contains("a redirect without a usable address"));
}

#[test]
fn a_hostile_index_cannot_write_outside_the_snapshot() {
    let (server, home) = (FakeHub::with_shards(), Home::new());
    server.put("../x.safetensors", b"evil", true);
    server.put("model.safetensors.index.json", br#"{"weight_map":{"a":"../x.safetensors"}}"#, false);
    let (error, text) = error_of(&home.hub(&server), ID);
    assert!(matches!(error, Error::UnsafeName { .. }) && text.contains("../x.safetensors"), "{text}");
    assert!(server.log().iter().all(|r| r.role == Role::Hub), "nothing was fetched from storage");
    assert!(!home.repo().join("snapshots/x.safetensors").exists());
}

#[test]
fn a_cancelled_download_ends_and_is_continued_later() {
    #[derive(Default)]
    struct Stopper(AtomicBool, AtomicUsize);
    impl Progress for Stopper {
        fn on(&self, event: Event<'_>) {
            if let Event::Bytes { name: WEIGHTS, count } = event {
                self.1.fetch_add(count as usize, Ordering::SeqCst);
                self.0.store(true, Ordering::SeqCst);
            }
        }
        fn cancelled(&self) -> bool {
            self.0.load(Ordering::SeqCst)
        }
    }
    let (server, home) = (FakeHub::with_model(), Home::new());
    let stopper = Stopper::default();
    let error = home.hub(&server).fetch(ID, Needs::Model, &stopper).unwrap_err();
    assert!(matches!(error, Error::Cancelled), "{error}");
    let have = stopper.1.load(Ordering::SeqCst);
    assert!(have > 0 && have < 3_000_000);
    assert_eq!(std::fs::metadata(home.part(&sha256(&weights()))).unwrap().len(), have as u64);
    server.forget();
    home.hub(&server).fetch(ID, Needs::Model, &()).unwrap();
    assert_eq!(server.downloads_of(WEIGHTS)[0].start(), have);
}

#[test]
fn a_fault_in_one_shard_is_what_is_told_and_the_others_stop() {
    let (server, home) = (FakeHub::with_shards(), Home::new());
    server.rule(|r| {
        let slow = Act::Drip { piece: 1000, pause: Duration::from_millis(100) };
        match (r.role, r.is_get_of("model-1.safetensors")) {
            (Role::Cdn, true) => Some(slow),
            (Role::Cdn, false) => Some(Act::Corrupt),
            _ => None,
        }
    });
    let (error, text) = error_of(&home.hub(&server), ID);
    assert!(matches!(&error, Error::WrongHash { file, .. } if file == "model-2.safetensors"), "{text}");
    assert!(!home.snapshot().join("model-1.safetensors").exists());
}

#[test]
fn a_small_file_that_is_said_to_be_huge_is_not_downloaded() {
    const HUGE: u64 = 300 << 20;
    let is_huge = |file: &'static str| {
        move |r: &Request| {
            let headers = vec![("x-linked-etag", sha256(b"x")), ("x-linked-size", HUGE.to_string())];
            (r.method == "HEAD" && r.path.ends_with(file)).then(|| Act::Say(200, headers, vec![]))
        }
    };
    for file in ["config.json", "model.safetensors.index.json", "tokenizer.json", "chat_template.jinja"] {
        let (server, home) = (FakeHub::with_shards(), Home::new());
        server.rule(is_huge(file));
        let error = home.hub(&server).plan_download(ID, Needs::Model, &()).unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, Error::TooLarge { size: HUGE, .. }) && text.contains(file), "{text}");
        assert!(server.log().iter().all(|request| !request.is_get_of(file)));
    }
    let (server, home) = (FakeHub::with_model(), Home::new());
    server.rule(is_huge(WEIGHTS));
    assert!(home.hub(&server).plan_download(ID, Needs::Model, &()).unwrap().bytes_missing() > HUGE);

    // The card of a data set whose list has no sizes.
    let (server, home) = (FakeHub::with_data_set(), Home::new());
    let siblings = ["README.md", "train.jsonl"].map(|name| serde_json::json!({"rfilename": name}));
    let list = serde_json::json!({"sha": COMMIT, "siblings": siblings}).to_string().into_bytes();
    server.rule(move |r| r.path.starts_with("/api/").then(|| Act::Say(200, vec![], list.clone())));
    server.rule(is_huge("README.md"));
    let error = home.hub(&server).plan_data_set("hf:org/tiny", &()).unwrap_err();
    assert!(matches!(error, Error::TooLarge { .. }), "{error}");
    assert!(server.log().iter().all(|request| !request.is_get_of("README.md")));
}

#[test]
fn a_file_of_the_users_own_folder_that_cannot_be_read_is_no_fault_of_the_cache() {
    let (folder, home) = (tempfile::tempdir().unwrap(), Home::new());
    let hub = home.hub_with("http://127.0.0.1:1", &[]);
    let name = folder.path().to_str().unwrap();
    std::fs::write(folder.path().join("config.json"), [0xff]).unwrap();
    std::fs::write(folder.path().join("tokenizer.json"), "{}").unwrap();
    std::fs::write(folder.path().join("model.safetensors.index.json"), [0xff]).unwrap();
    for error in
        [hub.fetch_config(name, &()).unwrap_err(), hub.plan_download(name, Needs::Model, &()).unwrap_err()]
    {
        let text = error.to_string();
        assert!(matches!(error, Error::Unreadable { .. }) && text.contains("not UTF-8"), "{text}");
        assert!(!text.contains("HF_"), "{text}");
    }
}
